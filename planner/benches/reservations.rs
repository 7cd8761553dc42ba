//! Decisions about a cloud of CHISim's size: 274 nodes with two jobs each, a week of requests. In: a made-up cloud. Out: the time of one
//! decision about notices, of taking nodes for a lease, and of choosing a job for a node; of a whole answer of `gleaner plan fill`; and of
//! a look of production at a partition's nodes. Called by `cargo bench`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_planner::reservations::fill::Filling;
use gleaner_planner::reservations::forecast::{Forecaster, Scale};
use gleaner_planner::reservations::history::{HOUR_S, History, Request};
use gleaner_planner::reservations::learnt::Learnt;
use gleaner_planner::reservations::node::{Held, Node, Notice, Running};
use gleaner_planner::reservations::partition::{
    self, Draining, Leases, NodeLease, RunningTask, TaskTimes, WaitingTasks,
};
use gleaner_planner::reservations::preemption::Preemption;
use gleaner_planner::reservations::surviving::{Surviving, Waiting};
use gleaner_planner::snapshot::VERSION;
use gleaner_planner::snapshot::fill::{
    FillNode, FillPolicy, FillQuestion, Lease, Record, RunningJob, WaitingJob, fill,
};
use gleaner_types::id::{HostId, JobId, ReservationId};

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

/// Fifty nodes of sixteen cores, half full of jobs, and 1,000 jobs in all. A week of leases is on record; one of five nodes begins now, and
/// twenty that name their hosts are still to come.
fn question(policy: FillPolicy) -> FillQuestion {
    let host = |number: u32| HostId::new(format!("n{number}")).expect("a valid name");
    let job = |number: u32| JobId::new(format!("job-{number}")).expect("a valid name");
    let lease = |number: u32, start_s: f64, length_s: f64, nodes: u32, hosts: Vec<HostId>| Lease {
        lease: ReservationId::new(format!("lease-{number}")).expect("a valid name"),
        created_s: Some(start_s.min(NOW_S)),
        start_s,
        end_s: start_s + length_s,
        nodes: Some(nodes),
        hosts,
    };
    let node = |number: u32| FillNode {
        host: host(number),
        cores: 16,
        present: true,
        deployed_s: 0.0,
        ready_s: 0.0,
        notice: None,
        reserved: false,
    };
    let running = |number: u32| RunningJob {
        job: job(number),
        host: host(number % 50),
        cores: 1,
        started_s: NOW_S - f64::from(number * 37 % 9_000),
        estimate_s: Some(f64::from(9_001 + number * 53 % 3_000)),
        checkpoint_s: None,
        resubmissions: number % 3,
    };
    let waiting = |number: u32| WaitingJob {
        job: job(number),
        cores: 1,
        estimate_s: Some(f64::from(100 + number * 7)),
        checkpoint_s: None,
    };
    // Those that are over had half an hour each.
    let mut leases: Vec<Lease> = (0..184)
        .map(|number| lease(number, f64::from(number) * HOUR_S + 600.0, 1_800.0, 1 + number % 3, Vec::new()))
        .collect();
    leases.push(lease(184, NOW_S, HOUR_S, 5, Vec::new()));
    leases.extend(
        (0..20).map(|number| {
            lease(185 + number, NOW_S + 300.0 * f64::from(1 + number), HOUR_S, 1, vec![host(2 * number)])
        }),
    );
    FillQuestion {
        version: VERSION,
        now_s: NOW_S,
        policy,
        preemption: Preemption::default(),
        forecaster: Forecaster::default(),
        scale: Scale::default(),
        surviving: Surviving::default(),
        seed: 1,
        record: Record { since_s: 0.0, gaps: Vec::new() },
        leases,
        nodes: (0..50).map(node).collect(),
        running: (0..400).map(running).collect(),
        waiting: (400..1_000).map(waiting).collect(),
    }
}

fn whole_answers(criterion: &mut Criterion) {
    for (name, policy) in [("surviving", FillPolicy::Surviving), ("predictive", FillPolicy::Predictive)] {
        let question = question(policy);
        let answer = fill(&question).expect("a valid question");
        assert!(answer.unknown.is_none() && !answer.start.is_empty() && !answer.leases.is_empty(), "{answer:?}");
        criterion.bench_function(&format!("plan fill, 1,000 jobs on 50 nodes, {name}"), |bench| {
            bench.iter(|| fill(black_box(&question)));
        });
    }
}

/// A look as engine `slurm` takes it every two seconds: every node has a lease to come and two tasks; four arrays wait.
fn look(criterion: &mut Criterion) {
    let filling = partition::Filling { draining: Draining::Surviving, vacate_s: 10.0, look_s: 2.0 };
    let times = |mean_s: f64| Some(TaskTimes { ended: 9, mean_s, deviation_s: mean_s / 5.0 });
    let waiting: Vec<WaitingTasks> = (1..=4)
        .map(|array| WaitingTasks { tasks: 50 * array, cpus: 1, times: times(150.0 * f64::from(array)) })
        .collect();
    for nodes in [50_u32, 1_000] {
        let name = |number: u32| format!("n{number}");
        let lease = |number: u32| NodeLease {
            lease: ReservationId::new(format!("lease-{number}")).expect("a valid name"),
            nodes: [name(number)].into(),
            start_s: NOW_S + f64::from(number * 37 % 900),
            end_s: NOW_S + 1_800.0,
        };
        let leases = Leases { leases: (0..nodes).map(lease).collect(), read_s: NOW_S, is_stale: false };
        let task = |number: u32| RunningTask {
            nodes: vec![name(number / 2)],
            began_s: NOW_S - f64::from(number * 53 % 300),
            times: times(f64::from(60 + number % 600)),
        };
        let running: Vec<RunningTask> = (0..2 * nodes).map(task).collect();
        criterion.bench_function(&format!("a look at {nodes} nodes of a partition"), |bench| {
            bench.iter(|| filling.look(black_box(&leases), black_box(&running), black_box(&waiting), NOW_S));
        });
    }
}

criterion_group!(benches, decisions, whole_answers, look);
criterion_main!(benches);
