//! A look at a queue of 1,000 arrays, and at smaller ones: the time since the last look is booked, and every array is told what it
//! may do. In: made-up arrays of 40 users, ten minutes in. Out: the time of a look. Called by `cargo bench`.

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gleaner_planner::pool::UserShares;
use gleaner_planner::queue::{Array, QueueAccount};
use gleaner_types::id::UserName;

const CPUS: u32 = 4_000;
/// Seconds between two looks of engine `slurm`.
const LOOK_S: f64 = 2.0;

/// Arrays after so many seconds, each a little further than before.
fn arrays(count: u64, at_s: f64) -> BTreeMap<u64, Array> {
    let array = |number: u64| {
        let varied = |most: u64, step: u64| u32::try_from(number * step % most).unwrap_or(0);
        let (cpus, task_s) = (1 + varied(4, 3), f64::from(5 + varied(300, 37)));
        let running = varied(9, 5);
        let waiting = 10 + varied(400, 89);
        let done_s = f64::from(running) * at_s.min(task_s);
        let array = Array {
            user: UserName::new(format!("user-{}", number % 40)).ok(),
            cpus,
            waiting,
            running,
            left_cpu_s: (f64::from(waiting + running) * task_s - done_s).max(1.0) * f64::from(cpus),
            task_s,
            own_bound: number.is_multiple_of(7).then_some(20),
        };
        (number, array)
    };
    (0..count).map(array).collect()
}

/// The 40 users weigh 1 to 3.
fn users() -> UserShares {
    let names: Vec<String> = (0..40).map(|user| format!("user-{user}")).collect();
    let weighed = names.iter().zip(0..).map(|(name, user)| (name.as_str(), f64::from(1 + user % 3)));
    UserShares::new(weighed).unwrap_or_default()
}

fn looks(criterion: &mut Criterion) {
    let users = users();
    for count in [30, 100, 101, 300, 1_000] {
        let mut account = QueueAccount::default();
        for look in 0..300 {
            let at_s = f64::from(look) * LOOK_S;
            account.turns(&arrays(count, at_s), CPUS, &users, at_s);
        }
        let next = arrays(count, 300.0 * LOOK_S);
        criterion.bench_function(&format!("a look at {count} arrays"), |bencher| {
            bencher.iter_batched(
                || account.clone(),
                |mut account| {
                    let turns = account.turns(&next, CPUS, &users, 300.0 * LOOK_S);
                    black_box((account, turns))
                },
                BatchSize::LargeInput,
            );
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_secs(2));
    targets = looks
}
criterion_main!(benches);
