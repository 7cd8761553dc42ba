//! Ways to size a cluster that Gleaner is compared with, in the same controller and with the same selection of hosts
//! (RHIC §5.2 and §5.3): a fixed number, a threshold, and fuzzy control. In: what a scenario says of `sizing`. Out: a
//! policy that the simulator gives to the controller. No job of an operator can name one.

use std::collections::BTreeMap;

use gleaner_planner::sizing::policy::{Adaptive, Situation, SizingPolicy};
use gleaner_planner::sizing::{Choice, Sizing as Input};
use gleaner_simulator::scenario::{ClusterScenario, SizingChoice};
use gleaner_types::id::JobId;
use gleaner_types::job::{Bound, Goal};
use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

/// A scenario that may name a baseline.
pub type Scenario = ClusterScenario<Sizing>;

/// How the number of volunteers of a job on a cluster is chosen. All but the first are baselines to compare with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sizing {
    /// By the model, for the goal (RHIC §4): what ships.
    #[default]
    Adaptive,
    /// A fixed number: RHIC's "targeted" mode (§5.2).
    Fixed {
        /// Volunteers.
        volunteers: u32,
    },
    /// Every host that leaves at least this part of its CPU: Threshold(t) (RHIC §5.3).
    Threshold {
        /// Least part of a host's CPU, in 0..=1.
        residual: Fraction,
    },
    /// Fuzzy control over the last two intervals: FUZZY(p) (RHIC §5.3).
    Fuzzy {
        /// Volunteers added or removed while that helps.
        step: u32,
        /// Part of the pool it begins with after the profile, in 0..=1.
        start: Fraction,
    },
}

impl SizingChoice for Sizing {
    fn policy(&self) -> Box<dyn SizingPolicy> {
        match *self {
            Self::Adaptive => Box::new(Adaptive),
            Self::Fixed { volunteers } => Box::new(Fixed { volunteers }),
            Self::Threshold { residual } => Box::new(Threshold { residual }),
            Self::Fuzzy { step, start } => Box::new(FuzzyPolicy { step, start, jobs: BTreeMap::new() }),
        }
    }

    fn problems(&self) -> Vec<String> {
        let (field, part) = match self {
            Self::Threshold { residual } => ("threshold.residual", residual.value()),
            Self::Fuzzy { start, .. } => ("fuzzy.start", start.value()),
            Self::Adaptive | Self::Fixed { .. } => return Vec::new(),
        };
        if part <= 1.0 { Vec::new() } else { vec![format!("sizing.{field}: {part}; 0 to 1")] }
    }
}

fn pool(sizing: &Input<'_>) -> u32 {
    u32::try_from(sizing.offers.len()).unwrap_or(u32::MAX)
}

/// A size by a policy, less the volunteers that find no task to run any more: what ships lets those go too, so that a comparison is
/// of sizes alone.
fn with_tasks(sizing: &Input<'_>, size: u32) -> Choice {
    sizing.forced(size.min(sizing.useful), Bound::Policy)
}

struct Fixed {
    volunteers: u32,
}

impl SizingPolicy for Fixed {
    fn choose(&mut self, Situation { sizing, .. }: Situation<'_, '_>) -> Choice {
        with_tasks(&sizing, self.volunteers)
    }
}

struct Threshold {
    residual: Fraction,
}

impl SizingPolicy for Threshold {
    fn choose(&mut self, Situation { sizing, capacity_of, .. }: Situation<'_, '_>) -> Choice {
        let least = |host| self.residual.value() * capacity_of(host).cores() * 100.0;
        let above = sizing.offers.iter().filter(|offer| offer.potential.percent() >= least(&offer.host)).count();
        with_tasks(&sizing, u32::try_from(above).unwrap_or(u32::MAX))
    }
}

/// Where a job stood at the last evaluation.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    spent: f64,
    energy_wh: f64,
    done: f64,
}

/// FUZZY(p) with the score it climbs by.
struct FuzzyPolicy {
    step: u32,
    start: Fraction,
    jobs: BTreeMap<JobId, (Fuzzy, Mark)>,
}

impl SizingPolicy for FuzzyPolicy {
    fn choose(&mut self, Situation { job, sizing, .. }: Situation<'_, '_>) -> Choice {
        let (fuzzy, mark) = self.jobs.entry(job.clone()).or_default();
        let now = Mark {
            spent: sizing.spent.amount(),
            energy_wh: sizing.energy.map_or(0.0, |energy| energy.spent_wh),
            done: 1.0 - sizing.remaining.value(),
        };
        let mark = std::mem::replace(mark, now);
        let done = now.done - mark.done;
        let per_progress = |spent: f64| (done > 0.0).then(|| spent / done);
        let score = match sizing.goal {
            Goal::Cost { .. } => per_progress(now.spent - mark.spent),
            Goal::Energy => per_progress(now.energy_wh - mark.energy_wh),
            // How far the rate of completion is from the one that ends 5 % before the deadline.
            Goal::Deadline { within_s } => {
                let left_s = sizing.deadline_in_s.unwrap_or(0.0) - 0.05 * within_s;
                let ideal = sizing.remaining.value() / left_s.max(1.0);
                Some((done / sizing.evaluation_interval_s.max(1.0) - ideal).abs())
            }
        };
        let size = fuzzy.next(score, sizing.current, pool(&sizing), self.step, self.start);
        with_tasks(&sizing, size)
    }
}

/// Relative change of the efficiency below which FUZZY does nothing. Chosen: the paper says only "a threshold".
const LEAST_CHANGE: f64 = 0.02;

/// FUZZY(p): hill climbing over the last two intervals by the rules of Liu et al. (IWQoS 2003), as RHIC §5.3 adapts
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Fuzzy {
    /// Score of the interval before, smaller is better.
    last: Option<f64>,
    /// Change that led into the present interval.
    change: i32,
}

impl Fuzzy {
    /// The next size. `score` is what the last interval cost per unit of progress, or how far its rate of
    /// completion was from the ideal one; `None` when it made no progress. The first call, after the profile, goes
    /// to the start point.
    fn next(&mut self, score: Option<f64>, current: u32, pool: u32, step: u32, start: Fraction) -> u32 {
        let Some(score) = score else { return current };
        let Some(last) = self.last.replace(score) else {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a u32")]
            let size = (f64::from(pool) * start.value().min(1.0)).round() as u32;
            self.change = i32::try_from(i64::from(size) - i64::from(current)).unwrap_or(0);
            return size;
        };
        if (score - last).abs() <= LEAST_CHANGE * last.abs() {
            return current;
        }
        let step = i32::try_from(step.max(1)).unwrap_or(i32::MAX);
        let grew = self.change >= 0;
        // Rules 1 and 3: it helped, so on by p. Rules 2 and 4: it did not, so back by one.
        let change = match (score < last, grew) {
            (true, true) => step,
            (true, false) => -step,
            (false, true) => -1,
            (false, false) => 1,
        };
        self.change = change;
        current.saturating_add_signed(change).min(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_rules() {
        let start = Fraction::clamped(0.5);
        let mut fuzzy = Fuzzy::default();
        assert_eq!(fuzzy.next(None, 0, 36, 4, start), 0);
        assert_eq!(fuzzy.next(Some(10.0), 0, 36, 4, start), 18, "the start point");
        assert_eq!(fuzzy.next(Some(8.0), 18, 36, 4, start), 22, "rule 1: growing helped");
        assert_eq!(fuzzy.next(Some(9.0), 22, 36, 4, start), 21, "rule 2: growing hurt");
        assert_eq!(fuzzy.next(Some(8.0), 21, 36, 4, start), 17, "rule 3: shrinking helped");
        assert_eq!(fuzzy.next(Some(9.0), 17, 36, 4, start), 18, "rule 4: shrinking hurt");
        assert_eq!(fuzzy.next(Some(9.05), 18, 36, 4, start), 18, "next to no change");
        assert_eq!(fuzzy.next(Some(7.0), 35, 36, 4, start), 36, "no more than there are");
    }

    #[test]
    fn a_scenario_names_its_baseline_and_mistakes_in_it_are_named() {
        let scenario: Scenario = serde_json::from_str(r#"{"sizing": {"fixed": {"volunteers": 3}}}"#).unwrap();
        assert_eq!(scenario.sizing, Sizing::Fixed { volunteers: 3 });
        assert_eq!(serde_json::from_str::<Scenario>("{}").unwrap().sizing, Sizing::Adaptive);
        let wrong: Scenario = serde_json::from_str(r#"{"sizing": {"threshold": {"residual": 1.5}}}"#).unwrap();
        assert_eq!(wrong.problems(), ["sizing.threshold.residual: 1.5; 0 to 1"]);
        assert!(serde_json::from_str::<Scenario>(r#"{"sizing": "psychic"}"#).is_err());
    }
}
