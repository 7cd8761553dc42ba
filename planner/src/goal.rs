//! A job's goal as a score of candidates (RHIC §4.4, "Goal estimation"). In: a candidate's completion time, cost and
//! energy. Out: a [`Score`], by which [`crate::sizing`] compares candidates.

use gleaner_types::job::Goal;
use gleaner_types::units::Dollars;

/// The margin of deadline plans, so that a burst of the foreground after the last decision does not make a job miss its
/// deadline. All chosen, on the simulator's calibration mixes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margins {
    /// Part of the time left; it shrinks with it.
    pub part: f64,
    /// At least so many evaluation intervals, because a decision cannot be corrected before the next one.
    pub intervals: f64,
    /// Evaluation intervals before the deadline in which no worker is released any more.
    pub last_intervals: f64,
}

impl Margins {
    /// On one host a burst hits the whole job.
    pub const ONE_HOST: Self = Self { part: 0.03, intervals: 0.5, last_intervals: 5.0 };
    /// Over many hosts bursts even out.
    pub const CLUSTER: Self = Self { part: 0.005, intervals: 1.0 / 6.0, last_intervals: 1.0 };
}

/// A candidate's score on the goal. Order: one that meets the goal beats one that does not, whatever the
/// score; among equals the smaller score wins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// The goal is met.
    pub meets_goal: bool,
    /// Smaller is better.
    pub value: f64,
}

impl Score {
    /// Scores a candidate by its completion time and the cost of the whole job with it. `plan_deadline_s`
    /// is [`plan_deadline`]; other goals ignore it.
    ///
    /// - Deadline: RHIC scores |estimate − deadline|, which allows a completion slightly late. Here one that
    ///   finishes late always loses to one that finishes in time, however close.
    /// - Cost: the cost; with a budget, the completion time among those within the budget.
    /// - Energy: `energy_wh`, the energy of the whole job; without a power model no candidate meets the goal.
    #[must_use]
    pub fn of(goal: Goal, plan_deadline_s: f64, completion_s: f64, cost: Dollars, energy_wh: Option<f64>) -> Self {
        match goal {
            Goal::Deadline { .. } => {
                let target = plan_deadline_s;
                Self { meets_goal: completion_s <= target, value: (completion_s - target).abs() }
            }
            Goal::Energy => Self { meets_goal: energy_wh.is_some(), value: energy_wh.unwrap_or(f64::MAX) },
            Goal::Cost { budget: None } => Self { meets_goal: true, value: cost.amount() },
            Goal::Cost { budget: Some(budget) } => {
                let within = cost <= budget;
                Self { meets_goal: within, value: if within { completion_s } else { cost.amount() } }
            }
        }
    }

    /// Strictly better than `other`.
    #[must_use]
    pub fn beats(self, other: Self) -> bool {
        match (self.meets_goal, other.meets_goal) {
            (true, false) => true,
            (false, true) => false,
            _ => self.value.total_cmp(&other.value).is_lt(),
        }
    }
}

/// The time a plan aims at: the deadline less the margin, of which the intervals count while they are less than half of
/// the time left.
#[must_use]
pub fn plan_deadline(deadline_in_s: f64, evaluation_interval_s: f64, margins: Margins) -> f64 {
    let left = deadline_in_s.max(0.0);
    deadline_in_s - (left * margins.part).max((evaluation_interval_s * margins.intervals).min(left / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(completion_s: f64) -> Score {
        Score::of(
            Goal::Deadline { within_s: 100.0 },
            plan_deadline(100.0, 0.0, Margins::ONE_HOST),
            completion_s,
            Dollars::ZERO,
            None,
        )
    }

    #[test]
    fn late_always_loses_and_the_deadline_is_hugged() {
        assert!(deadline(10.0).beats(deadline(97.1)), "97 s is what the plan aims at");
        assert!(deadline(96.0).beats(deadline(50.0)));
        assert!(deadline(98.0).beats(deadline(120.0)));
        assert!(deadline(1e6).beats(deadline(f64::INFINITY)));
    }

    #[test]
    fn margins() {
        let plan = |left_s, interval_s| plan_deadline(left_s, interval_s, Margins::ONE_HOST);
        assert!((plan(1_000.0, 20.0) - 970.0).abs() < 1e-9, "3 %");
        assert!((plan(100.0, 20.0) - 90.0).abs() < 1e-9, "half an interval");
        assert!((plan(10.0, 20.0) - 5.0).abs() < 1e-9, "half of what is left");
        assert!((plan(-10.0, 20.0) + 10.0).abs() < 1e-9, "nothing is left");
    }

    #[test]
    fn the_least_energy_wins_and_unknown_energy_never_does() {
        let energy = |energy_wh| Score::of(Goal::Energy, 0.0, 1.0, Dollars::ZERO, energy_wh);
        assert!(energy(Some(700.0)).beats(energy(Some(701.0))));
        assert!(energy(Some(1e9)).beats(energy(None)));
    }

    #[test]
    fn cost_with_and_without_a_budget() {
        let cost = |budget: Option<f64>, completion_s, amount| {
            let goal = Goal::Cost { budget: budget.map(Dollars::clamped) };
            Score::of(goal, 0.0, completion_s, Dollars::clamped(amount), None)
        };
        assert!(cost(None, 900.0, 1.0).beats(cost(None, 10.0, 1.1)));
        assert!(cost(Some(2.0), 10.0, 1.9).beats(cost(Some(2.0), 900.0, 1.0)), "the earliest within the budget");
        assert!(cost(Some(2.0), 900.0, 2.0).beats(cost(Some(2.0), 10.0, 2.1)));
        assert!(cost(Some(2.0), 900.0, 2.1).beats(cost(Some(2.0), 10.0, 2.2)), "else the cheapest");
    }
}
