//! Jobs that nobody chose: drawn from a seed over the space of what users run, with the hosts they run on. In: a seed. Out:
//! test beds with a job each. Called by the any-job report.

use crate::baselines::sizing::Scenario;
use gleaner_simulator::random::Random;
use gleaner_simulator::scenario::{HostClass, JobProfile};

/// Mean CPU time of a task, in seconds, drawn evenly on a logarithmic scale.
pub const TASK_CPU_S: (f64, f64) = (2.0, 600.0);
/// Coefficient of variation of it, drawn evenly.
pub const VARIATION: (f64, f64) = (0.1, 1.5);
/// Most data read, in MB per second of CPU time. Drawn as the square of an even number: dense where disks and CPUs are in
/// balance, which on these hosts is at 6 MB, and thin where dedicated hosts alone saturate them.
pub const READ_MB: f64 = 20.0;
/// Tasks, drawn evenly on a logarithmic scale.
pub const TASKS: (f64, f64) = (100.0, 50_000.0);
/// Most dedicated hosts; at least one.
pub const DEDICATED: u32 = 12;
/// Interactive hosts, drawn evenly.
pub const INTERACTIVE: (u32, u32) = (6, 36);
/// Hardware classes: CPUs and speed. A bed has the first one, two or all.
pub const CLASSES: [(u32, f64); 3] = [(16, 1.0), (8, 2.0), (16, 0.5)];
/// How long the dedicated hosts alone may take, in seconds. What is shorter is over before it is sized; what is longer takes
/// too long to simulate. Such a job is drawn anew.
pub const ALONE_S: (f64, f64) = (1_200.0, 21_600.0);
/// Longest simulated time: no size may take longer.
pub const LIMIT_S: u32 = 86_400;

/// A host of a class, and how many.
#[must_use]
pub fn hosts_of(class: usize, count: u32) -> HostClass {
    let (cores, speed) = CLASSES[class];
    HostClass { count, cores, speed, ..HostClass::default() }
}

/// The job of this number of a seed, on its hosts. The foreground is of a seed of its own.
#[must_use]
pub fn drawn(seed: u64, number: u64) -> Scenario {
    let mut random = Random::part(seed, number);
    loop {
        let (job, dedicated) = (job(&mut random, number), 1 + below(&mut random, DEDICATED));
        let classes = 1 + below(&mut random, 3);
        let interactive = INTERACTIVE.0 + below(&mut random, INTERACTIVE.1 - INTERACTIVE.0 + 1);
        let host = HostClass { count: dedicated, ..HostClass::default() };
        let disks = job.read_mb_per_cpu_s * f64::from(host.cores) / host.disk_mb_s;
        let cores = f64::from(dedicated * host.cores);
        let alone_s = f64::from(job.tasks) * job.task_cpu_s * disks.max(1.0) / cores;
        if !(ALONE_S.0..=ALONE_S.1).contains(&alone_s) {
            continue;
        }
        let part = |class: u32| interactive / classes + u32::from(class < interactive % classes);
        return Scenario {
            seed: seed.wrapping_add(number),
            foreground_seed: seed.wrapping_add(number),
            dedicated: vec![host],
            interactive: (0..classes).map(|class| hosts_of(class as usize, part(class))).collect(),
            job,
            limit_s: LIMIT_S,
            ..Scenario::default()
        };
    }
}

fn job(random: &mut Random, number: u64) -> JobProfile {
    let even = |random: &mut Random, (least, most): (f64, f64)| least + (most - least) * random.uniform();
    let logarithmic = |random: &mut Random, (least, most): (f64, f64)| even(random, (least.ln(), most.ln())).exp();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 50,000")]
    let tasks = logarithmic(random, TASKS).round() as u32;
    JobProfile {
        name: format!("drawn-{number}"),
        tasks,
        task_cpu_s: logarithmic(random, TASK_CPU_S),
        task_variation: even(random, VARIATION),
        read_mb_per_cpu_s: READ_MB * random.uniform().powi(2),
        ..JobProfile::default()
    }
}

fn below(random: &mut Random, end: u32) -> u32 {
    u32::try_from(random.below(end as usize)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_spread_over_the_space_and_follow_from_the_seed() {
        let jobs: Vec<Scenario> = (0..200).map(|number| drawn(7, number)).collect();
        for scenario in &jobs {
            assert_eq!(scenario.problems(), [] as [String; 0]);
            let job = &scenario.job;
            assert!((TASK_CPU_S.0..=TASK_CPU_S.1).contains(&job.task_cpu_s), "{job:?}");
            assert!((VARIATION.0..=VARIATION.1).contains(&job.task_variation), "{job:?}");
            assert!((0.0..=READ_MB).contains(&job.read_mb_per_cpu_s), "{job:?}");
            assert!((100..=50_000).contains(&job.tasks), "{job:?}");
        }
        let some = |what: &dyn Fn(&Scenario) -> bool| jobs.iter().filter(|scenario| what(scenario)).count();
        assert!(some(&|scenario| scenario.job.task_cpu_s < 20.0) > 20, "short tasks");
        assert!(some(&|scenario| scenario.job.task_variation > 1.0) > 20, "skewed tasks");
        assert!(some(&|scenario| scenario.job.read_mb_per_cpu_s > 8.0) > 10, "disks that are full from the start");
        assert!(some(&|scenario| scenario.dedicated[0].count <= 2) > 10, "two dedicated hosts and fewer");
        assert!((1..=3).all(|classes| some(&|scenario| scenario.interactive.len() == classes) > 20), "classes");
        assert_eq!(drawn(7, 3), jobs[3]);
        assert_ne!(drawn(8, 3), jobs[3]);
    }
}
