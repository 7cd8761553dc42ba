//! Decisions about a cloud of CHISim's size: 274 nodes with two jobs each, a week of requests. In: a made-up cloud. Out: the time of one
//! decision about notices, of taking nodes for a lease, and of choosing a job for a node. Called by `cargo bench`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_planner::reservations::fill::Filling;
use gleaner_planner::reservations::forecast::{Forecaster, Scale};
use gleaner_planner::reservations::history::{HOUR_S, History, Request};
use gleaner_planner::reservations::learnt::Learnt;
use gleaner_planner::reservations::node::{Held, Node, Notice, Running};
use gleaner_planner::reservations::preemption::Preemption;
use gleaner_planner::reservations::surviving::{Surviving, Waiting};

const NODES: u32 = 274;
const NOW_S: f64 = 8.0 * 24.0 * HOUR_S;

fn history() -> History {
    let probes = (0..64).map(|slot| Request { at_s: f64::from(slot) * 3.0 * HOUR_S + 1_860.0, nodes: 1 });
    let others = (0..300).map(|number| Request { at_s: f64::from(number * 2_297 % 691_200), nodes: 1 + number % 7 });
    let mut requests: Vec<Request> = probes.chain(others).collect();
    requests.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    History::new(0.0, requests, Vec::new()).expect("in order")
}

fn nodes() -> Vec<Node> {
    let job = |number: u32| Running {
        job: number.into(),
        cores: 1,
        started_s: NOW_S - f64::from(number * 37 % 9_000),
        estimate_s: Some(f64::from(9_001 + number * 53 % 3_000)),
        checkpoint_s: None,
        resubmissions: number % 3,
    };
    let node =
        |number: u32| Node { held: Held::Filled, running: vec![job(2 * number), job(2 * number + 1)], ..Node::free(2) };
    (0..NODES).map(node).collect()
}

fn decisions(criterion: &mut Criterion) {
    let (history, nodes, learnt) = (history(), nodes(), Learnt::default());
    let surviving = Filling::Surviving(Surviving::default());
    let predictive = Filling::Predictive {
        forecaster: Forecaster::RollingMedian,
        preemption: Preemption::LeastCoreHours,
        scale: Scale::PAPER,
    };
    for (name, filling) in [("surviving", surviving), ("predictive", predictive)] {
        criterion.bench_function(&format!("notices, {name}"), |bench| {
            bench.iter(|| filling.reserve((&learnt, black_box(&history)), &[], black_box(&nodes), NOW_S, 1));
        });
        criterion.bench_function(&format!("a lease of 50 nodes, {name}"), |bench| {
            bench.iter(|| filling.take(black_box(&nodes), 50, NOW_S, (0.01, 1)));
        });
    }
    let notice = Notice {
        given_s: NOW_S,
        wanted_s: NOW_S + 900.0,
        latest_s: NOW_S + 900.0,
        until_s: NOW_S + 1_500.0,
        probability: 0.8,
    };
    let empty = Node { held: Held::Filled, notice: Some(notice), ..Node::free(2) };
    let waiting: Vec<Waiting> = (0..1_000)
        .map(|number| Waiting { cores: 1, estimate_s: Some(f64::from(100 + number * 7)), checkpoint_s: None })
        .collect();
    criterion.bench_function("a job of 1,000 for a gap", |bench| {
        bench.iter(|| surviving.place(black_box(&empty), black_box(&waiting), NOW_S));
    });
}

criterion_group!(benches, decisions);
criterion_main!(benches);
