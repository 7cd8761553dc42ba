//! What the trials under one posture say. In: trials. Out: the harm is over the budget, within it, or it is not known yet.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_types::harm::HarmInterval;
use gleaner_types::id::WorkloadId;

use crate::harm::{Budgets, Compared, Comparison, Estimate, HISTORY, Trials};

/// Trials of this long are also looked at by themselves: a foreground that has just begun to be harmed must not be hidden by
/// half an hour in which it was not. Chosen: about 25 trials at the default share of pauses.
pub const RECENT: Duration = Duration::from_secs(300);

/// What the evidence says.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    /// Fewer trials than an interval takes.
    TooFew,
    /// There were enough trials, and the foreground used no CPU in them worth the name.
    NoForeground,
    /// The interval holds the budget.
    Undecided(HarmInterval),
    /// The whole interval is below the budget.
    Within {
        /// The harm of all workloads together.
        harm: HarmInterval,
        /// Their budget.
        budget_percent: f64,
    },
    /// The whole interval is above the budget.
    Over {
        /// The harm.
        harm: HarmInterval,
        /// The budget.
        budget_percent: f64,
        /// The workload whose own budget that is; `None` is all of them together.
        workload: Option<WorkloadId>,
    },
}

/// The trials under one posture.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    all: Trials,
    recent: Trials,
    /// Of workloads with a budget of their own.
    own: BTreeMap<WorkloadId, Trials>,
    harvests: f64,
    count: u32,
}

impl Evidence {
    /// Adds a trial.
    pub fn add(&mut self, now: Duration, compared: &[Compared], harvest_cores: f64, budgets: &Budgets) {
        let mut sum = Comparison::default();
        let mut measured = false;
        for (workload, result) in compared {
            let Ok(one) = result else { continue };
            sum = sum.plus(*one);
            measured = true;
            if budgets.own_percent.contains_key(workload) {
                self.own.entry(workload.clone()).or_default().add(now, *one);
            }
        }
        if !measured {
            return;
        }
        self.all.add(now, sum);
        self.recent.add(now, sum);
        self.recent.forget_before(now.saturating_sub(RECENT));
        for trials in self.own.values_mut().chain([&mut self.all]) {
            trials.forget_before(now.saturating_sub(HISTORY));
        }
        self.own.retain(|workload, _| budgets.own_percent.contains_key(workload));
        // One that is not finite counts as nothing harvested.
        self.harvests += if harvest_cores.is_finite() { harvest_cores.max(0.0) } else { 0.0 };
        self.count = self.count.saturating_add(1);
    }

    /// Trials so far, however old.
    #[must_use]
    pub fn trials(&self) -> u32 {
        self.count
    }

    /// CPUs that the volunteer used on average.
    #[must_use]
    pub fn harvest_cores(&self) -> f64 {
        self.harvests / f64::from(self.count.max(1))
    }

    /// What it says. It is over the budget if any part of it is; within if all of it is.
    #[must_use]
    pub fn weigh(&self, budgets: &Budgets) -> Conclusion {
        let budget_percent = budgets.all_percent;
        let over = |harm: HarmInterval, budget: f64| harm.low_percent > budget;
        for trials in [&self.recent, &self.all] {
            if let Estimate::Known(harm) = trials.estimate()
                && over(harm, budget_percent)
            {
                return Conclusion::Over { harm, budget_percent, workload: None };
            }
        }
        let own =
            self.own.iter().filter_map(|(id, trials)| Some((id, trials.estimate(), *budgets.own_percent.get(id)?)));
        let mut undecided = None;
        for (workload, estimate, budget_percent) in own {
            match estimate {
                Estimate::Known(harm) if over(harm, budget_percent) => {
                    return Conclusion::Over { harm, budget_percent, workload: Some(workload.clone()) };
                }
                Estimate::Known(harm) if harm.high_percent >= budget_percent => undecided = Some(harm),
                _ => {}
            }
        }
        match (self.all.estimate(), undecided) {
            (Estimate::TooFewTrials(_), _) => Conclusion::TooFew,
            (Estimate::TooLittleActivity, _) => Conclusion::NoForeground,
            (Estimate::Known(_), Some(harm)) => Conclusion::Undecided(harm),
            (Estimate::Known(harm), None) if harm.high_percent < budget_percent => {
                Conclusion::Within { harm, budget_percent }
            }
            (Estimate::Known(harm), None) => Conclusion::Undecided(harm),
        }
    }
}
