//! A decision about a MapReduce job: at the size of the paper's experiments, with jobs that share nodes and follow, and on a
//! hundred nodes; and a fit of training runs.
//! In: made-up situations. Out: the time of one decision. Called by `cargo bench`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_planner::mapreduce::decide::{Wanted, decide};
use gleaner_planner::mapreduce::equations::{Layout, WORD_COUNT, Work};
use gleaner_planner::mapreduce::fit::{TrainingRun, fit};
use gleaner_planner::mapreduce::situation::{Following, JobState, LostOutput, NewNode, Node, OtherJob, Situation};
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::Goal;
use gleaner_types::units::{Dollars, DollarsPerHour};

const SLA: Wanted = Wanted { goal: Goal::Deadline { within_s: 3_000.0 }, reserve: 0.0, spent: Dollars::ZERO };

/// So many map nodes and a reduce node at 1000 s.
fn situation(map_nodes: u32) -> Situation {
    let price = DollarsPerHour::clamped(1.0);
    let node = |index: u32| Node {
        name: HostId::new(format!("node-{index}")).expect("a valid name"),
        cores: 1,
        map_slots_per_core: u32::from(index > 0),
        reduce_slots_per_core: u32::from(index == 0),
        speed: 1.0,
        price,
        only_for: None,
        removable: index > 0,
        maps_done: if index > 0 { 31 } else { 0 },
        map_pace_s: (index > 0).then_some(32.0),
        maps_running: if index > 0 { vec![0.4] } else { Vec::new() },
        reduces_running: Vec::new(),
    };
    let new =
        NewNode { most: 8, lead_s: 45.0, cores: 1, map_slots_per_core: 1, reduce_slots_per_core: 0, speed: 1.0, price };
    Situation {
        elapsed_s: 1_000.0,
        job: JobState {
            name: JobId::new("wordcount").expect("a valid name"),
            input_mb: 12_288.0 / 4.0 * f64::from(map_nodes),
            maps: 190 / 4 * map_nodes,
            reduces: 1,
            weight: 1.0,
            maps_safe: 0,
            reduces_done: 0,
            workload: WORD_COUNT,
        },
        nodes: (0..=map_nodes).map(node).collect(),
        others: Vec::new(),
        following: Vec::new(),
        map_node: Some(new),
        reduce_node: None,
        lost_output: LostOutput::Counted,
    }
}

fn decisions(criterion: &mut Criterion) {
    let paper = situation(4);
    criterion.bench_function("mapreduce/decision/paper", |b| b.iter(|| decide(black_box(&paper), SLA)));
    let mut full = paper;
    let other = |index: u32| OtherJob {
        name: JobId::new(format!("other-{index}")).expect("a valid name"),
        weight: 1.0,
        arrives_s: f64::from(index) * 100.0,
        core_s: Some(500.0),
    };
    full.others = (0..3).map(other).collect();
    full.following = vec![Following { input_mb: 1_536.0, maps: 100, reduces: 1, times: 3, workload: WORD_COUNT }];
    full.reduce_node = full.map_node.map(|own| NewNode { most: 2, reduce_slots_per_core: 1, ..own });
    criterion.bench_function("mapreduce/decision/shared_and_followed", |b| b.iter(|| decide(black_box(&full), SLA)));
    let hundred = situation(100);
    criterion.bench_function("mapreduce/decision/100_nodes", |b| b.iter(|| decide(black_box(&hundred), SLA)));
}

fn training(criterion: &mut Criterion) {
    let run = |index: u32| {
        let (maps, reduces, task_mb) = (20 + 7 * (index % 5), 1 + index % 6, 32.0 * f64::from(1 + index % 4));
        let work = Work { input_mb: task_mb * f64::from(maps), maps, reduces };
        let on = Layout { map_cores: 3.0, map_slots_per_core: 1, reduce_cores: 2.0, reduce_slots_per_core: 1 };
        TrainingRun {
            input_mb: work.input_mb,
            maps,
            reduces,
            map_cores: 3.0,
            map_slots_per_core: 1,
            reduce_cores: 2.0,
            reduce_slots_per_core: 1,
            map_stage_s: WORD_COUNT.map_stage_s(work, on).expect("a time") * (1.0 + 0.01 * f64::from(index % 3)),
            reduce_stage_s: WORD_COUNT.reduce_stage_s(work, on).expect("a time"),
            set_up_s: 0.0,
        }
    };
    let runs: Vec<TrainingRun> = (0..24).map(run).collect();
    criterion.bench_function("mapreduce/fit/24_runs", |b| b.iter(|| fit(black_box(&runs))));
}

criterion_group!(benches, decisions, training);
criterion_main!(benches);
