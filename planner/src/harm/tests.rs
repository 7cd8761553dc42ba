//! Synthetic workloads of which the harm is known.

use std::time::Duration;

use gleaner_types::absence::{Absence, Reason};
use gleaner_types::harm::HarmInterval;
use gleaner_types::id::WorkloadId;
use gleaner_types::report::Reading;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;

/// Workloads that wait at random.
struct Synthetic {
    random: ChaCha8Rng,
    /// Wait per CPU time without the volunteer.
    alone: f64,
    /// What the volunteer adds to it.
    added: f64,
}

impl Synthetic {
    fn unit(&mut self) -> f64 {
        (f64::from(self.random.next_u32()) + 1.0) / (f64::from(u32::MAX) + 2.0)
    }

    /// Positive, of mean 1, with a spread of half to all of it and a long tail.
    fn noise(&mut self) -> f64 {
        -(self.unit() * self.unit()).ln() / 2.0
    }

    fn trial(&mut self) -> Comparison {
        // The two windows are of the same minute: how busy it is they have in common.
        let (alone, added) = (self.alone, self.added);
        let busy = 20e6 * self.noise();
        let mut side = |waits: f64| {
            let cpu = busy * self.noise();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
            RunTime { cpu_ns: cpu as u64, wait_ns: (cpu * waits * self.noise()) as u64 }
        };
        Comparison::counted(side(alone + added), side(alone))
    }

    /// The true harm, in percent.
    fn harm_percent(&self) -> f64 {
        100.0 * ((1.0 + self.alone + self.added) / (1.0 + self.alone) - 1.0)
    }
}

fn estimated(seed: u64, alone: f64, added: f64, count: u32) -> (f64, HarmInterval) {
    let mut workload = Synthetic { random: ChaCha8Rng::seed_from_u64(seed), alone, added };
    let mut trials = Trials::default();
    for number in 0..count {
        trials.add(Duration::from_secs(number.into()), workload.trial());
    }
    match trials.estimate() {
        Estimate::Known(harm) => (workload.harm_percent(), harm),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hand_computed_example() {
    // 100 ms of CPU each time. With the volunteer it waits 12 ms, without 2 ms: 1.12 / 1.02.
    let of = |wait_ms: u64| RunTime { cpu_ns: 100_000_000, wait_ns: wait_ms * 1_000_000 };
    let mut trials = Trials::default();
    assert_eq!(trials.estimate(), Estimate::TooFewTrials(0));
    for second in 0..10 {
        trials.add(Duration::from_secs(second), Comparison::counted(of(12), of(2)));
    }
    let Estimate::Known(harm) = trials.estimate() else { panic!("{:?}", trials.estimate()) };
    assert!((harm.mean_percent - 100.0 * (1.12 / 1.02 - 1.0)).abs() < 1e-9, "{harm:?}");
    assert!(harm.margin_percent() < 1e-6, "no trial differs from another: {harm:?}");
    assert_eq!(harm.trials, 10);
}

/// With the counters' word: so many cycles for 300 million instructions, with and without the volunteer.
fn worked(comparison: Comparison, cycles_with: u64, cycles_without: u64) -> Comparison {
    let of = |cycles: u64| Work { cycles, instructions: 300_000_000 };
    Comparison { worked: Some(Worked { with: of(cycles_with), without: of(cycles_without) }), ..comparison }
}

fn known(estimate: Estimate) -> HarmInterval {
    match estimate {
        Estimate::Known(harm) => harm,
        other => panic!("{other:?}"),
    }
}

#[test]
fn waits_and_cycles_per_instruction_are_one_harm_and_count_once() {
    // 100 ms of CPU each time, in 10 % more cycles per instruction beside the volunteer. It waits 12 ms and 2 ms.
    let of = |wait_ms: u64| RunTime { cpu_ns: 100_000_000, wait_ns: wait_ms * 1_000_000 };
    let mut trials = Trials::default();
    for second in 0..10 {
        let trial = worked(Comparison::counted(of(12), of(2)), 330_000_000, 300_000_000);
        trials.add(Duration::from_secs(second), trial);
    }
    let (cpi, whole) = (known(trials.cpi()), known(trials.estimate()));
    assert!((cpi.mean_percent - 10.0).abs() < 1e-9 && cpi.margin_percent() < 1e-6, "{cpi:?}");
    assert!((whole.mean_percent - 100.0 * (1.12 / 1.02 * 1.1 - 1.0)).abs() < 1e-9, "{whole:?}");

    // The same work in a tenth less CPU time without the volunteer, and no waits: the harm is the time it took.
    let mut trials = Trials::default();
    for second in 0..10 {
        let side = |cpu_ns| RunTime { cpu_ns, wait_ns: 0 };
        let trial = worked(Comparison::counted(side(100_000_000), side(90_000_000)), 300_000_000, 270_000_000);
        trials.add(Duration::from_secs(second), trial);
    }
    assert!((known(trials.estimate()).mean_percent - 100.0 / 9.0).abs() < 1e-9);
}

#[test]
fn without_enough_counted_trials_waits_alone_are_judged() {
    let of = |wait_ms: u64| RunTime { cpu_ns: 100_000_000, wait_ns: wait_ms * 1_000_000 };
    let plain = Comparison::counted(of(12), of(2));
    let mut trials = Trials::default();
    for second in 0..20 {
        // The counters did not have their turn in most of them.
        let trial = if second < 7 { worked(plain, 600_000_000, 300_000_000) } else { plain };
        trials.add(Duration::from_secs(second), trial);
    }
    assert_eq!(trials.cpi(), Estimate::TooFewTrials(7));
    assert!((known(trials.estimate()).mean_percent - 100.0 * (1.12 / 1.02 - 1.0)).abs() < 1e-9);
    trials.add(Duration::from_secs(20), worked(plain, 600_000_000, 300_000_000));
    assert!((known(trials.estimate()).mean_percent - 100.0 * (2.24 / 1.02 - 1.0)).abs() < 1e-9, "the eighth");
    assert_eq!((known(trials.estimate()).trials, known(trials.cpi()).trials), (21, 8));
}

#[test]
fn counters_of_some_workloads_say_nothing_of_all_together() {
    let busy = Comparison::counted(RunTime { cpu_ns: 5, wait_ns: 1 }, RunTime { cpu_ns: 5, wait_ns: 0 });
    let counted = worked(busy, 20, 10);
    let sum = counted.plus(counted).worked.unwrap();
    assert_eq!((sum.with.cycles, sum.without.cycles, sum.with.instructions), (40, 20, 600_000_000));
    assert_eq!(counted.plus(busy).worked, None);
    assert_eq!(busy.plus(counted).worked, None);
    assert_eq!(counted.plus(Comparison::default()).worked, counted.worked, "one that sleeps has nothing to count");
    assert_eq!(Comparison::default().plus(counted).worked, counted.worked);
}

#[test]
fn the_interval_by_cycles_holds_the_truth_too() {
    for (added, slower) in [(0.0, 1.0), (0.0, 1.1), (0.05, 1.02), (0.2, 1.5)] {
        let holds = |seed: u64| {
            let mut workload = Synthetic { random: ChaCha8Rng::seed_from_u64(seed), alone: 0.02, added };
            let mut trials = Trials::default();
            for number in 0..30 {
                let plain = workload.trial();
                let mut side = |time: RunTime, cpi: f64| {
                    // Phases of the workload differ by some percent in their cycles per instruction.
                    let phase = 0.95 + 0.1 * workload.unit();
                    let cycles = 3 * time.cpu_ns;
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
                    Work { cycles, instructions: (cycles as f64 / (cpi * phase)) as u64 }
                };
                let worked = Worked { with: side(plain.with, slower), without: side(plain.without, 1.0) };
                trials.add(Duration::from_secs(number), Comparison { worked: Some(worked), ..plain });
            }
            let truth = ((1.0 + workload.harm_percent() / 100.0) * slower - 1.0) * 100.0;
            let (whole, cpi) = (known(trials.estimate()), known(trials.cpi()));
            let within = |harm: HarmInterval, truth: f64| harm.low_percent <= truth && truth <= harm.high_percent;
            [within(whole, truth), within(cpi, (slower - 1.0) * 100.0)]
        };
        let held = (0..400).map(holds).fold([0, 0], |[a, b], [whole, cpi]| [a + i32::from(whole), b + i32::from(cpi)]);
        println!("{added} of waits, {slower} times the cycles: {held:?} of 400");
        assert!(held.iter().all(|held| (352..=396).contains(held)), "{added}, {slower}: {held:?}");
    }
}

#[test]
fn the_interval_holds_the_truth_19_times_in_20() {
    for (alone, added) in [(0.02, 0.0), (0.02, 0.01), (0.02, 0.2), (0.5, 0.0), (0.5, 0.05), (0.1, 1.5)] {
        for count in [LEAST_TRIALS, 30, 128] {
            let seeds = 600_u32;
            let holds = |seed: u32| {
                let (truth, harm) = estimated(seed.into(), alone, added, count);
                harm.low_percent <= truth && truth <= harm.high_percent
            };
            let held = (0..seeds).filter(|seed| holds(*seed)).count();
            let part = held as f64 / f64::from(seeds);
            // Sums of few long-tailed waits are skewed: with few trials it holds a little less often.
            let least = match count {
                LEAST_TRIALS => 0.88,
                30 => 0.90,
                _ => 0.92,
            };
            println!("{alone} + {added}, {count} trials: {part:.3}");
            assert!((least..=0.985).contains(&part), "{alone} + {added}, {count} trials: {part}");
        }
    }
}

#[test]
fn more_trials_say_more() {
    let width = |count| {
        let (_, harm) = estimated(7, 0.05, 0.05, count);
        harm.high_percent - harm.low_percent
    };
    assert!(width(128) < width(32) && width(32) < width(8), "{} {} {}", width(128), width(32), width(8));
}

#[test]
fn a_workload_that_sleeps_is_not_compared() {
    let asleep = RunTime { cpu_ns: 20_000, wait_ns: 5 };
    let mut trials = Trials::default();
    for second in 0..50 {
        trials.add(Duration::from_secs(second), Comparison::counted(asleep, asleep));
    }
    assert_eq!(trials.estimate(), Estimate::TooLittleActivity);
    // All of its activity in one trial says nothing of its spread.
    let once = RunTime { cpu_ns: 1_000_000_000, wait_ns: 5 };
    let mut trials = Trials::default();
    for second in 0..20 {
        let side = if second == 5 { once } else { RunTime::default() };
        trials.add(Duration::from_secs(second), Comparison::counted(side, side));
    }
    assert_eq!(trials.estimate(), Estimate::TooLittleActivity);
}

#[test]
fn the_share_of_pauses_is_as_asked() {
    for share in [0.005, 0.03, 0.1, LARGEST_PAUSE_SHARE] {
        let mut schedule = Schedule::new(3, share);
        let (mut held, mut total) = (0.0, 0.0);
        for _ in 0..4_000 {
            let trial = schedule.next_trial().unwrap();
            assert!((0.2..=0.5).contains(&trial.window.as_secs_f64()), "{trial:?}");
            held += trial.held().as_secs_f64();
            total += (trial.wait + trial.window + trial.held()).as_secs_f64();
        }
        assert!((held / total / share - 1.0).abs() < 0.02, "{share}: {}", held / total);
    }
    let mut schedule = Schedule::new(3, 0.0);
    assert_eq!(schedule.next_trial(), None);
    schedule.set_pause_share(f64::NAN);
    assert_eq!(schedule.next_trial(), None);
    schedule.set_pause_share(9.0);
    assert!(schedule.next_trial().is_some());
}

fn id(name: &str) -> WorkloadId {
    WorkloadId::new(name).unwrap()
}

fn compared(name: &str, wait_ms: u64) -> Compared {
    let side = |wait_ms: u64| RunTime { cpu_ns: 100_000_000, wait_ns: wait_ms * 1_000_000 };
    (id(name), Ok(Comparison::counted(side(wait_ms), side(1))))
}

#[test]
fn the_budget_is_crossed_once_each_way() {
    let mut tracker = HarmTracker::default();
    let budgets = Budgets { all_percent: 1.0, ..Budgets::default() };
    let mut crossings = Vec::new();
    let mut now = Duration::ZERO;
    // 10 % of harm, then none until no trial with harm is kept.
    for wait_ms in [vec![11; 20], vec![1; MOST_TRIALS]].concat() {
        now += Duration::from_secs(5);
        tracker.record(now, [compared("shop", wait_ms), compared("idle", 1)]);
        tracker.forget(now);
        crossings.extend(tracker.crossings(&budgets));
    }
    let edges: Vec<_> = crossings.iter().map(|one| (one.workload.as_str(), one.edge)).collect();
    assert_eq!(edges, [("shop", Edge::Over), ("shop", Edge::Within)]);
    assert!(crossings[0].harm.low_percent > 1.0 && crossings[1].harm.high_percent < 1.0, "{crossings:?}");
}

#[test]
fn says_why_nothing_is_known() {
    let reason = |tracker: &HarmTracker| match tracker.foreground() {
        Reading::Absent(absence) => absence.reason,
        Reading::Value(harm) => panic!("{harm:?}"),
    };
    let mut tracker = HarmTracker::default();
    assert_eq!(reason(&tracker), Reason::MoreTrialsNeeded { taken: 0, needed: LEAST_TRIALS });
    tracker.skip(Skipped::NotRunning);
    assert_eq!(reason(&tracker), Reason::VolunteerNeverRan);
    tracker.skip(Skipped::HeldByGuard);
    assert_eq!(reason(&tracker), Reason::VolunteerHeldByGuard);
    tracker.skip(Skipped::NotHeld);
    assert_eq!(reason(&tracker), Reason::VolunteerNotHeld);
    tracker.record(Duration::ZERO, []);
    assert_eq!(reason(&tracker), Reason::NoForegroundWorkload);
    tracker.skip(Skipped::NotRunning);
    assert_eq!(reason(&tracker), Reason::NoForegroundWorkload, "it rests between two tasks");
    let many = || Err(Absence::because(Reason::TooManyThreads { most: 1_024 }));
    tracker.record(Duration::ZERO, [(id("big"), many())]);
    assert_eq!(reason(&tracker), Reason::TooManyThreads { most: 1_024 });
    tracker.record(Duration::ZERO, [(id("big"), many()), compared("shop", 2)]);
    assert_eq!(reason(&tracker), Reason::MoreTrialsNeeded { taken: 1, needed: LEAST_TRIALS });
    let workloads = tracker.workloads();
    assert!(
        matches!(&workloads[0].harm, Reading::Absent(absence) if absence.reason == Reason::TooManyThreads { most: 1_024 })
    );
    // What is old is forgotten.
    tracker.skip(Skipped::NotRunning);
    tracker.forget(HISTORY + Duration::from_secs(1));
    assert_eq!(reason(&tracker), Reason::VolunteerNeverRan);
    assert!(tracker.workloads().is_empty());
}

#[test]
fn says_of_cycles_per_instruction_what_is_known() {
    let mut tracker = HarmTracker::default();
    let reason = |tracker: &HarmTracker| match tracker.cpi().foreground {
        Reading::Absent(absence) => absence.reason,
        Reading::Value(harm) => panic!("{harm:?}"),
    };
    tracker.skip(Skipped::NotRunning);
    assert_eq!(reason(&tracker), Reason::VolunteerNeverRan, "as of the harm itself");
    let of = |name: &str| (id(name), compared(name, 1).1.map(|one| worked(one, 360_000_000, 300_000_000)));
    for second in 0..20 {
        let now = Duration::from_secs(second);
        tracker.record(now, [of("counted"), compared("xen", 1)]);
        tracker.uncounted(Absence::because(Reason::NoCounters));
    }
    assert_eq!(reason(&tracker), Reason::NoCounters, "of all together");
    let cpi = tracker.cpi().workloads;
    assert_eq!((cpi.len(), cpi[0].workload.as_str()), (1, "counted"));
    assert!(matches!(&cpi[0].harm, Reading::Value(harm) if (harm.mean_percent - 20.0).abs() < 1e-6), "{cpi:?}");
    // It crosses the budget by that alone.
    let crossings = tracker.crossings(&Budgets { all_percent: 1.0, ..Budgets::default() });
    assert!(crossings.len() == 1 && crossings[0].workload.as_str() == "counted", "{crossings:?}");

    for second in 20..160 {
        tracker.record(Duration::from_secs(second), [of("counted")]);
    }
    assert!(matches!(tracker.cpi().foreground, Reading::Value(harm) if (harm.mean_percent - 20.0).abs() < 1e-6));
}

proptest! {
    #[test]
    fn any_counters_give_an_interval_in_order_or_none(
        trials in prop::collection::vec(any::<([u64; 2], [u64; 4], bool)>(), 0..200),
    ) {
        let mut kept = Trials::default();
        for (second, ([cpu, wait], [a, b, c, d], is_counted)) in (0..).zip(trials.iter().copied()) {
            let side = RunTime { cpu_ns: cpu, wait_ns: wait };
            let with = Work { cycles: a, instructions: b };
            let worked = is_counted.then_some(Worked { with, without: Work { cycles: c, instructions: d } });
            kept.add(Duration::from_secs(second), Comparison { worked, ..Comparison::counted(side, side) });
        }
        for estimate in [kept.estimate(), kept.cpi()] {
            if let Estimate::Known(harm) = estimate {
                prop_assert!(harm.low_percent <= harm.mean_percent && harm.mean_percent <= harm.high_percent);
                prop_assert!(harm.low_percent >= -100.0 && harm.high_percent.is_finite());
            }
        }
    }

    #[test]
    fn an_estimate_is_an_interval_in_order_whatever_the_counters_say(
        trials in prop::collection::vec(any::<(u64, u64, u64, u64)>(), 0..200),
    ) {
        let mut kept = Trials::default();
        for (second, (cpu, wait, cpu_alone, wait_alone)) in (0..).zip(trials.iter().copied()) {
            let with = RunTime { cpu_ns: cpu, wait_ns: wait };
            let without = RunTime { cpu_ns: cpu_alone, wait_ns: wait_alone };
            kept.add(Duration::from_secs(second), Comparison::counted(with, without));
        }
        match kept.estimate() {
            Estimate::Known(harm) => {
                prop_assert!(harm.low_percent <= harm.mean_percent && harm.mean_percent <= harm.high_percent);
                prop_assert!(harm.low_percent >= -100.0 && harm.high_percent.is_finite());
                prop_assert!(harm.trials as usize == trials.len().min(MOST_TRIALS));
            }
            Estimate::TooFewTrials(count) => prop_assert!(count < LEAST_TRIALS),
            Estimate::TooLittleActivity => {}
        }
    }

    #[test]
    fn twice_the_work_is_the_same_harm(seed: u64, alone in 0.0..1.0f64, added in 0.0..1.0f64) {
        let mut workload = Synthetic { random: ChaCha8Rng::seed_from_u64(seed), alone, added };
        let (mut once, mut twice) = (Trials::default(), Trials::default());
        for second in 0..20 {
            let trial = workload.trial();
            once.add(Duration::from_secs(second), trial);
            let double = |side: RunTime| side.plus(side);
            let doubled = Comparison::counted(double(trial.with), double(trial.without));
            twice.add(Duration::from_secs(second), doubled);
        }
        let (Estimate::Known(once), Estimate::Known(twice)) = (once.estimate(), twice.estimate()) else {
            return Err(TestCaseError::reject("asleep"));
        };
        prop_assert!((once.mean_percent - twice.mean_percent).abs() < 1e-6);
        prop_assert!((once.margin_percent() - twice.margin_percent()).abs() < 1e-6);
    }
}
