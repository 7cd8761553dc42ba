//! One virtual host on whose kernel a volunteer does a known harm. In: [`Scenario`]. Out: [`Outcome`]: what was
//! harvested, and the true harm. Called by `gleaner reproduce harm` and tests.
//!
//! The foreground replays a session. The volunteer takes what its protection leaves it. Where it is held by its harm,
//! the production state machine (`planner::protecting`) judges trials that are as noisy as real ones.
//!
//! The harm of a posture is assumed, by kind of kernel, after single measurements on two CPUs (docs/harm.md). So the
//! outcomes show how the state machine behaves on such kernels, and are no measurement of any kernel.

use std::time::Duration;

use gleaner_planner::harm::{Budgets, Compared, Comparison, RunTime, Schedule};
use gleaner_planner::protecting::{Change, Ladder, Means, Posture, Protecting};
use gleaner_types::id::WorkloadId;

use crate::foreground::{Session, SessionTrace};
use crate::random::Random;

/// How the volunteer's loops and the foreground's wake-ups meet on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Its idle class yields at once: nothing harms.
    Yields,
    /// It packs wake-ups onto few CPUs: loops everywhere harm, a share of the machine or forced scheduling points hardly do,
    /// CPUs kept free of the volunteer crowd it and harm more.
    Packs,
    /// It spreads wake-ups to CPUs that do nothing: only a CPU kept free of the volunteer helps, and forced scheduling points
    /// harm.
    Spreads,
    /// A foreground that wakes waits until something makes the scheduler choose: only forced scheduling points help.
    Delays,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Yields, Self::Packs, Self::Spreads, Self::Delays];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Yields => "yields",
            Self::Packs => "packs",
            Self::Spreads => "spreads",
            Self::Delays => "delays",
        }
    }

    /// True harm of a volunteer that runs under a posture, in percent, on a host with so many CPUs. (Assumed.)
    #[must_use]
    pub fn harm_percent(self, posture: Posture, cpus: u32) -> f64 {
        let room = Ladder::new(cpus, Means::default()).room(posture) / f64::from(cpus.max(1));
        match (self, posture) {
            (_, Posture::Hold) => 0.0,
            (Self::Yields, _) => 0.2,
            (Self::Packs, Posture::Open) => 11.0,
            (Self::Packs, Posture::Spare { .. }) => 25.0,
            (Self::Packs, Posture::Points) => 1.9,
            (Self::Spreads, Posture::Points) => 8.0,
            (Self::Spreads | Self::Delays, Posture::Open) => 5.0,
            // A throttled loop still meets a wake-up while it runs.
            (Self::Spreads | Self::Delays, Posture::Share { .. }) => 5.0 * room,
            (Self::Delays, Posture::Spare { .. }) => 3.0,
            (Self::Packs, Posture::Share { .. })
            | (Self::Spreads, Posture::Spare { .. })
            | (Self::Delays, Posture::Points) => 0.3,
        }
    }
}

/// How the foreground is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// The idle class and nothing else.
    IdleClass,
    /// The idle class, and never more than three quarters of the machine.
    FixedShare,
    /// The idle class, and always forced scheduling points.
    Points,
    /// Held by the harm it does (`guard.follow_harm`).
    ByHarm,
}

impl Protection {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::IdleClass, Self::FixedShare, Self::Points, Self::ByHarm];

    /// The words for it.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::IdleClass => "idle class alone",
            Self::FixedShare => "at most 75 %",
            Self::Points => "scheduling points",
            Self::ByHarm => "held by its harm",
        }
    }
}

/// What to simulate.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Seed of everything random.
    pub seed: u64,
    /// The kernel.
    pub kernel: Kernel,
    /// CPUs of the host.
    pub cpus: u32,
    /// What can be done on it.
    pub means: Means,
    /// The foreground.
    pub session: Session,
    /// How it is protected.
    pub protection: Protection,
    /// The most harm there should be, in percent.
    pub budget_percent: f64,
    /// Part of the time in which the volunteer is held to measure harm; of [`Protection::ByHarm`] alone.
    pub pause_share: f64,
    /// How long it runs.
    pub duration: Duration,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The part of the CPU time that the foreground left free which the volunteer used.
    pub harvested: f64,
    /// How much slower the foreground's work was in the mean, in percent: the truth, which the machine only samples.
    pub harm_percent: f64,
    /// The part of the foreground's work that was slower than the budget allows.
    pub over_budget: f64,
    /// What the machine chose, and when.
    pub changes: Vec<(Duration, Change)>,
    /// The posture at the end.
    pub posture: Posture,
}

/// Waits that the foreground has by itself, as a part of its CPU time, and how much single windows vary. (Assumed: waits have
/// long tails.)
const OWN_WAIT: f64 = 0.01;
const VARIATION: f64 = 1.0;

/// The foreground's demand, a second at a time, and what happened to it so far.
struct World<'s> {
    scenario: &'s Scenario,
    trace: SessionTrace,
    /// CPUs the foreground uses in the present second.
    foreground: f64,
    second: u64,
    now: Duration,
    free_core_s: f64,
    harvested_core_s: f64,
    foreground_core_s: f64,
    harmed_core_s: f64,
    over_core_s: f64,
}

impl<'s> World<'s> {
    fn new(scenario: &'s Scenario) -> Self {
        Self {
            scenario,
            trace: SessionTrace::new(scenario.session, scenario.seed),
            foreground: 0.0,
            second: 0,
            now: Duration::ZERO,
            free_core_s: 0.0,
            harvested_core_s: 0.0,
            foreground_core_s: 0.0,
            harmed_core_s: 0.0,
            over_core_s: 0.0,
        }
    }

    /// CPUs that the volunteer uses under a posture: what the foreground leaves, and no more than the posture does.
    fn harvest(&self, posture: Posture) -> f64 {
        let room = Ladder::new(self.scenario.cpus, self.scenario.means).room(posture);
        room.min(f64::from(self.scenario.cpus) - self.foreground).max(0.0)
    }

    /// So long under a posture. Returns the foreground's CPU time in it, in core-seconds.
    fn run(&mut self, duration: Duration, posture: Posture) -> f64 {
        let until = self.now + duration;
        let harm = self.scenario.kernel.harm_percent(posture, self.scenario.cpus);
        let mut used = 0.0;
        while self.now < until {
            let second = self.now.as_secs() + 1;
            while self.second < second {
                let percent = self.trace.next().unwrap_or(0.0);
                self.foreground = percent / 100.0 * f64::from(self.scenario.cpus);
                self.second += 1;
            }
            let step = until.min(Duration::from_secs(second)) - self.now;
            let (step_s, harvest) = (step.as_secs_f64(), self.harvest(posture));
            self.free_core_s += (f64::from(self.scenario.cpus) - self.foreground) * step_s;
            self.harvested_core_s += harvest * step_s;
            let worked = self.foreground * step_s;
            used += worked;
            self.foreground_core_s += worked;
            self.harmed_core_s += worked * harm / 100.0;
            if harm > self.scenario.budget_percent {
                self.over_core_s += worked;
            }
            self.now += step;
        }
        used
    }

    fn outcome(self, posture: Posture, changes: Vec<(Duration, Change)>) -> Outcome {
        let part = |of: f64, all: f64| if all > 0.0 { of / all } else { 0.0 };
        Outcome {
            harvested: part(self.harvested_core_s, self.free_core_s),
            harm_percent: part(self.harmed_core_s, self.foreground_core_s) * 100.0,
            over_budget: part(self.over_core_s, self.foreground_core_s),
            changes,
            posture,
        }
    }
}

/// What a meter counts in a window in which the foreground ran for so long and was slower by so many percent.
#[must_use]
pub fn counted(used_core_s: f64, harm_percent: f64, random: &mut Random) -> RunTime {
    let own = OWN_WAIT * random.around_one(VARIATION);
    let added = harm_percent / 100.0 * (1.0 + OWN_WAIT) * random.around_one(VARIATION);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a window, not negative")]
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    RunTime { cpu_ns: ns(used_core_s), wait_ns: ns(used_core_s * (own + added)) }
}

/// Runs a scenario.
#[must_use]
pub fn simulate(scenario: &Scenario) -> Outcome {
    let mut world = World::new(scenario);
    let fixed = match scenario.protection {
        Protection::IdleClass => Posture::Open,
        Protection::FixedShare => Posture::Share { percent: 75 },
        Protection::Points => Posture::Points,
        Protection::ByHarm => return held_by_harm(scenario, world),
    };
    world.run(scenario.duration, fixed);
    world.outcome(fixed, Vec::new())
}

fn held_by_harm(scenario: &Scenario, mut world: World<'_>) -> Outcome {
    let mut schedule = Schedule::new(scenario.seed, scenario.pause_share);
    let mut machine = Protecting::new(Ladder::new(scenario.cpus, scenario.means), Duration::ZERO);
    let mut noise = Random::part(scenario.seed, 1);
    let budgets = Budgets { all_percent: scenario.budget_percent, ..Budgets::default() };
    let mut changes = Vec::new();
    while world.now < scenario.duration {
        schedule.set_pause_share(scenario.pause_share * machine.pace(world.now));
        let Some(trial) = schedule.next_trial() else {
            world.run(scenario.duration - world.now, machine.posture());
            break;
        };
        world.run(trial.wait, machine.posture());
        let mut change = machine.tick(world.now);
        let posture = machine.posture();
        let used = world.run(trial.window, posture);
        if posture != Posture::Hold && change.is_none() {
            let harm = scenario.kernel.harm_percent(posture, scenario.cpus);
            let with = counted(used, harm, &mut noise);
            let harvest = world.harvest(posture);
            world.run(gleaner_planner::harm::SETTLING_TIME, Posture::Hold);
            let without = counted(world.run(trial.window, Posture::Hold), 0.0, &mut noise);
            let compared: Vec<Compared> =
                foreground().into_iter().map(|id| (id, Ok(Comparison::counted(with, without)))).collect();
            change = machine.trial(world.now, &compared, harvest, &budgets);
        }
        changes.extend(change.map(|change| (world.now, change)));
    }
    world.outcome(machine.posture(), changes)
}

fn foreground() -> Option<WorkloadId> {
    WorkloadId::new("foreground").ok()
}

#[cfg(test)]
mod tests {
    use gleaner_planner::protecting::Cause;

    use super::*;

    fn scenario(kernel: Kernel, protection: Protection, seed: u64) -> Scenario {
        Scenario {
            seed,
            kernel,
            cpus: 2,
            means: Means { spare: true, points: true },
            session: Session::Matlab,
            protection,
            budget_percent: 1.0,
            pause_share: 0.03,
            duration: Duration::from_secs(6 * 3_600),
        }
    }

    #[test]
    fn the_machine_finds_what_each_kernel_takes_by_trials_as_noisy_as_real_ones() {
        for seed in 1..=3 {
            let of = |kernel| simulate(&scenario(kernel, Protection::ByHarm, seed));
            let (yields, packs, spreads) = (of(Kernel::Yields), of(Kernel::Packs), of(Kernel::Spreads));
            let delays = of(Kernel::Delays);
            assert!(yields.harvested > 0.8 && yields.over_budget == 0.0, "{yields:?}");
            // The idle class alone does 11 % and 5 %.
            assert!(packs.harm_percent < 3.0 && packs.harvested > 0.4, "{packs:?}");
            assert!(spreads.harm_percent < 2.5 && spreads.harvested > 0.2, "{spreads:?}");
            assert!(delays.harm_percent < 1.0 && delays.harvested > 0.6, "{delays:?}");
            let kinds: Vec<Posture> = spreads.changes.iter().map(|(_, change)| change.to).collect();
            assert!(kinds.contains(&Posture::Spare { cpus: 1 }), "{kinds:?}");
        }
    }

    #[test]
    fn a_simulation_is_repeatable_and_fixed_protections_measure_nothing() {
        let scenario = scenario(Kernel::Packs, Protection::ByHarm, 5);
        assert_eq!(simulate(&scenario), simulate(&scenario));
        let idle = simulate(&Scenario { protection: Protection::IdleClass, ..scenario.clone() });
        assert!((idle.harvested - 1.0).abs() < 1e-9 && (idle.harm_percent - 11.0).abs() < 1e-9, "{idle:?}");
        let fixed = simulate(&Scenario { protection: Protection::FixedShare, ..scenario });
        assert!(fixed.harvested < 1.0 && fixed.changes.is_empty(), "{fixed:?}");
    }

    /// On hosts of any size and by the meter's own schedule: where every posture does far more harm than the budget, each
    /// choice tightens until the volunteer is held, but for the trial after that and while the foreground sleeps; and it is
    /// held soon.
    #[test]
    fn harm_above_the_budget_always_tightens() {
        for (seed, cpus) in (1..).zip([1, 2, 3, 4, 8, 16, 64]) {
            let base = scenario(Kernel::Spreads, Protection::ByHarm, seed);
            // Without CPUs to spare this kernel does 1.25 % and more.
            let run = simulate(&Scenario { cpus, means: Means::default(), budget_percent: 0.2, ..base });
            let held = run.changes.iter().find(|(_, change)| change.to == Posture::Hold).map(|(at, _)| *at);
            assert!(held.is_some_and(|at| at < Duration::from_secs(3 * 3_600)), "{cpus} CPUs: {:?}", run.changes);
            let ladder = Ladder::new(cpus, Means::default());
            for (at, change) in &run.changes {
                let tighter = ladder.room(change.to) < ladder.room(change.from);
                let may_loosen = change.from == Posture::Hold || change.cause == Cause::NoForeground;
                assert!(tighter || may_loosen, "{cpus} CPUs, at {at:?}: {change}");
            }
        }
    }
}
