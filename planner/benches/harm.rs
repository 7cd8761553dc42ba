//! What the summary after one trial costs: a workload's trials kept in full, its estimate with the jackknife interval, and
//! a host of 100 workloads.
//! In: made-up trials. Out: the time of one estimate. Called by `cargo bench`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_planner::harm::{Budgets, Comparison, HarmTracker, MOST_TRIALS, RunTime, Trials};
use gleaner_types::id::WorkloadId;

fn trial(number: u64) -> Comparison {
    let side = |wait_ns: u64| RunTime { cpu_ns: 50_000_000 + 1_000 * number, wait_ns: wait_ns * (1 + number % 7) };
    Comparison::counted(side(900_000), side(300_000))
}

fn harm(criterion: &mut Criterion) {
    let mut trials = Trials::default();
    (0..MOST_TRIALS as u64).for_each(|number| trials.add(Duration::from_secs(number), trial(number)));
    criterion.bench_function("harm/estimate", |bencher| bencher.iter(|| black_box(&trials).estimate()));

    let ids: Vec<WorkloadId> = (0..100).map(|n| WorkloadId::from_untrusted(&format!("guest-{n}"))).collect();
    let mut tracker = HarmTracker::default();
    let budgets = Budgets { all_percent: 1.0, ..Budgets::default() };
    let mut number = 0;
    let mut after_a_trial = move || {
        number += 1;
        let now = Duration::from_secs(number);
        tracker.record(now, ids.iter().map(|id| (id.clone(), Ok(trial(number)))));
        tracker.forget(now);
        (tracker.crossings(&budgets), tracker.foreground(), tracker.workloads())
    };
    for _ in 0..MOST_TRIALS {
        after_a_trial();
    }
    criterion.bench_function("harm/trial_of_100_workloads", |bencher| bencher.iter(&mut after_a_trial));
}

criterion_group!(benches, harm);
criterion_main!(benches);
