//! The cost of a simulated hour of a cluster, controller included. In: two scenarios: 42 hosts as in the papers' test
//! bed, and 1,000. Out: times, by Criterion. Run by `cargo xtask bench hour`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_simulator::cluster::simulate;
use gleaner_simulator::scenario::{ClusterScenario, HostClass};

/// Work for more than an hour.
fn scenario(interactive: u32, dedicated: u32) -> ClusterScenario {
    let mut scenario = ClusterScenario { limit_s: 3_600, ..ClusterScenario::default() };
    scenario.dedicated = vec![HostClass { count: dedicated, ..HostClass::default() }];
    scenario.interactive = vec![HostClass { count: interactive, ..HostClass::default() }];
    (scenario.job.tasks, scenario.job.task_cpu_s) = (400 * interactive, 400.0);
    scenario.job.read_mb_per_cpu_s = 0.1;
    scenario
}

fn hour(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulated hour");
    group.sample_size(10);
    for (interactive, dedicated) in [(36, 6), (950, 50)] {
        let scenario = scenario(interactive, dedicated);
        group.bench_function(format!("{} hosts", interactive + dedicated), |bencher| {
            bencher.iter(|| black_box(simulate(&scenario).expect("a scenario that can run")));
        });
    }
    group.finish();
}

criterion_group!(benches, hour);
criterion_main!(benches);
