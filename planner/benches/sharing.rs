//! A round of CANAL with 500 running jobs: the tasks of a second have ended, on 1,200 nodes and on 10,000. Once as it is most
//! of the time, and once with what makes it longest: a job has arrived, so fair completions are new, and an epoch has ended.
//! In: a made-up cluster and jobs. Out: the time of one round. Called by `cargo bench`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gleaner_planner::pool::{Claim, Ledger};
use gleaner_planner::sharing::canal::{Awareness, Canal};
use gleaner_planner::sharing::engine::{Play, Policy, Truth};
use gleaner_planner::sharing::input::{Cluster, Input, Job, Node, Stage, Workload};
use gleaner_planner::sharing::resources::Resources;
use gleaner_types::id::{HostId, JobId};

const JOBS: u32 = 500;
const EPOCH_S: f64 = 20.0;

fn cluster(nodes: u32) -> Cluster {
    let capacity = Resources { cpu: 24.0, memory: 32.0, disk: 330.0, network: 1_000.0 };
    let node =
        |index| Node { name: HostId::new(format!("node-{index}")).expect("a valid name"), capacity, rack: index / 20 };
    Cluster { nodes: (0..nodes).map(node).collect(), switch: f64::from(nodes) * 100.0 }
}

/// Jobs of 300 map tasks with inputs and 75 reduce tasks, half of them network-intensive; a task needs `size` threads. All
/// but the last arrive in the first 50 s, that one at 60.2 s.
fn workload(nodes: u32, size: f64) -> Workload {
    let cluster = cluster(nodes);
    let job = |index: u32| {
        let varied = |most: u32, step: u32| f64::from(index * step % most);
        let demand =
            Resources { cpu: size, memory: size * (1.0 + varied(3, 7)), disk: 5.0 * size + varied(9, 5), network: 0.0 };
        let holders = |task: u32| {
            let holder =
                |copy: u32| cluster.nodes[((index * 7_919 + task * 104_729 + copy * 31) % nodes) as usize].name.clone();
            (0..3).map(holder).collect()
        };
        let input =
            Input { nodes: (0..300).map(holders).collect(), network: 100.0, rack_extra_s: 2.0, off_rack_extra_s: 5.0 };
        let network = if index.is_multiple_of(2) { 100.0 } else { 1.0 };
        let stages = vec![
            Stage { tasks: 300, demand, duration_s: 15.0 + varied(20, 3), input: Some(input) },
            Stage {
                tasks: 75,
                demand: Resources { network, ..demand },
                duration_s: 20.0 + varied(15, 11),
                input: None,
            },
        ];
        let release_s = if index + 1 == JOBS { 60.2 } else { f64::from(index) / 10.0 };
        Job { name: JobId::new(format!("job-{index}")).expect("a valid name"), release_s, stages }
    };
    let jobs = (0..JOBS).map(job).collect();
    Workload::new(cluster, jobs).expect("a valid workload")
}

/// The play at a time, without the policy having been asked about the last second.
fn before_round(workload: &Workload, at_s: f64) -> (Play<'_>, Canal) {
    let mut canal = Canal::new(EPOCH_S, Awareness::BOTH, 1);
    let mut play = Play::new(workload, &Truth::default(), f64::INFINITY);
    while play.state.now_s < at_s - 1.0 && play.step(&mut canal) {}
    play.skip_to(at_s);
    (play, canal)
}

fn rounds(criterion: &mut Criterion) {
    for (nodes, size) in [(1_200, 2.0), (10_000, 8.0)] {
        let workload = workload(nodes, size);
        for (what, at_s) in [("", 62.9), (" with an arrival and the end of an epoch", 60.9)] {
            let before = before_round(&workload, at_s);
            criterion.bench_function(&format!("round of {nodes} nodes{what}"), |bencher| {
                bencher.iter_batched(
                    || before.clone(),
                    |(mut play, mut canal)| {
                        canal.schedule(&mut play.state);
                        black_box((play, canal))
                    },
                    BatchSize::LargeInput,
                );
            });
        }
    }
}

/// Jobs of the pool's ledger that hold, want and have done different amounts, ten minutes in.
fn ledger(jobs: u64) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.set_capacity(1_000.0);
    for job in 0..jobs {
        let most = 5.0 + (job * 37 % 200) as f64;
        ledger.claim(job, Claim { weight: 1.0, least: 1.0, most, change_s: 5.0 });
        ledger.progressed(job, 0.0);
        ledger.hold(job, 1.0 + (job * 11 % 20) as f64, 0.0);
    }
    ledger.pass(600.0);
    (0..jobs).for_each(|job| ledger.progressed(job, 0.1 + (job * 13 % 80) as f64 / 100.0));
    ledger
}

fn pool(criterion: &mut Criterion) {
    for jobs in [2, 8, 30, 100, 400] {
        let ledger = ledger(jobs);
        criterion.bench_function(&format!("pool of 1,000 hosts allotted to {jobs} jobs"), |bencher| {
            bencher.iter(|| black_box(ledger.outlook(10.0)));
        });
        criterion.bench_function(&format!("a second of the pool of {jobs} jobs"), |bencher| {
            bencher.iter_batched(
                || ledger.clone(),
                |mut ledger| {
                    ledger.pass(601.0);
                    black_box(ledger)
                },
                BatchSize::SmallInput,
            );
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_secs(2));
    targets = rounds, pool
}
criterion_main!(benches);
