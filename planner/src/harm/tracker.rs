//! The harm of a host: trials of each workload and of all together, why there is none, and when the budget is crossed.
//! In: what each trial compared, or why it was skipped. Out: readings for the report, and [`Crossing`]s for the event log.
//! Called by the agent's harm meter.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_types::absence::{Absence, Reason};
use gleaner_types::harm::HarmInterval;
use gleaner_types::id::WorkloadId;
use gleaner_types::report::{CpiHarm, WorkloadHarm};
use gleaner_types::report::{MAX_WORKLOADS, Reading};

use super::budgets::Budgets;
use super::estimate::{Comparison, Estimate, Trials};

/// Older trials say nothing of now. Chosen.
pub const HISTORY: Duration = Duration::from_secs(1_800);

/// Why a moment that was drawn gave no trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skipped {
    /// No volunteer was active, or it used no CPU.
    NotRunning,
    /// The guard froze it before or during the trial.
    HeldByGuard,
    /// It went on running while it was held.
    NotHeld,
}

impl Skipped {
    const fn reason(self) -> Reason {
        match self {
            Self::NotRunning => Reason::VolunteerNeverRan,
            Self::HeldByGuard => Reason::VolunteerHeldByGuard,
            Self::NotHeld => Reason::VolunteerNotHeld,
        }
    }
}

/// One workload in one trial: what it did, or why that cannot be read.
pub type Compared = (WorkloadId, Result<Comparison, Absence>);

/// Which way the budget was crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The whole interval is above it, and was not before.
    Over,
    /// The whole interval is below it, after it was above.
    Within,
}

/// A workload's harm crossed the budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    /// The workload.
    pub workload: WorkloadId,
    /// Its harm.
    pub harm: HarmInterval,
    /// Which way.
    pub edge: Edge,
}

#[derive(Debug, Default)]
struct Followed {
    trials: Trials,
    /// Why it could not be read in its last trial.
    absent: Option<Absence>,
    over: bool,
}

impl Followed {
    fn harm(&self) -> Reading<HarmInterval> {
        match &self.absent {
            Some(absent) if self.trials.is_empty() => Reading::Absent(absent.clone()),
            _ => self.trials.estimate().known().into(),
        }
    }
}

/// Keeps the trials of a host. Times are from any clock that does not go back.
#[derive(Debug, Default)]
pub struct HarmTracker {
    workloads: BTreeMap<WorkloadId, Followed>,
    all: Trials,
    /// Why the last moment gave none.
    skipped: Option<Skipped>,
    /// Why the last trial has nothing of any workload, and when it was.
    absent: Option<(Duration, Absence)>,
    /// Why the CPU's counters said nothing of some workload in the last trial.
    uncounted: Option<Absence>,
}

impl HarmTracker {
    /// A trial: each workload that was compared, at most [`MAX_WORKLOADS`] of them in the last [`HISTORY`].
    pub fn record(&mut self, now: Duration, compared: impl IntoIterator<Item = Compared>) {
        (self.skipped, self.uncounted) = (None, None);
        let mut compared = compared.into_iter().peekable();
        self.absent = compared.peek().is_none().then(|| (now, Absence::because(Reason::NoForegroundWorkload)));
        let mut all = Comparison::default();
        let mut measured = false;
        for (workload, result) in compared {
            if self.workloads.len() >= MAX_WORKLOADS && !self.workloads.contains_key(&workload) {
                continue;
            }
            let followed = self.workloads.entry(workload).or_default();
            match result {
                Ok(comparison) => {
                    followed.trials.add(now, comparison);
                    followed.absent = None;
                    all = all.plus(comparison);
                    measured = true;
                }
                Err(absence) => {
                    self.absent = Some((now, absence.clone()));
                    followed.absent = Some(absence);
                }
            }
        }
        if measured {
            self.all.add(now, all);
        }
    }

    /// Why the CPU's counters said nothing of some workload in the trial that was recorded last.
    pub fn uncounted(&mut self, why: Absence) {
        self.uncounted = Some(why);
    }

    /// A moment that gave no trial.
    pub fn skip(&mut self, why: Skipped) {
        self.skipped = Some(why);
    }

    /// Drops what is too old.
    pub fn forget(&mut self, now: Duration) {
        let earliest = now.saturating_sub(HISTORY);
        self.all.forget_before(earliest);
        self.absent.take_if(|(at, _)| *at < earliest);
        for followed in self.workloads.values_mut() {
            followed.trials.forget_before(earliest);
        }
        // One that cannot be read is kept as long as any trial is: its reason is worth showing.
        let any = !self.all.is_empty();
        self.workloads.retain(|_, followed| !followed.trials.is_empty() || (any && followed.absent.is_some()));
    }

    /// Harm of all workloads together.
    #[must_use]
    pub fn foreground(&self) -> Reading<HarmInterval> {
        if self.all.is_empty() {
            match (&self.absent, self.skipped) {
                // That the volunteer rests between two tasks says less than what the last trial found.
                (Some((_, absent)), None | Some(Skipped::NotRunning)) => return Reading::Absent(absent.clone()),
                (_, Some(skipped)) => return Reading::because(skipped.reason()),
                (None, None) => {}
            }
        }
        self.all.estimate().known().into()
    }

    /// The part of the harm that is by cycles per instruction.
    #[must_use]
    pub fn cpi(&self) -> CpiHarm {
        let foreground = match (self.all.cpi(), &self.uncounted, self.foreground()) {
            (Estimate::Known(harm), ..) => Reading::Value(harm),
            (_, Some(why), _) => Reading::Absent(why.clone()),
            (_, None, Reading::Absent(why)) => Reading::Absent(why),
            (unknown, None, Reading::Value(_)) => unknown.known().into(),
        };
        let known = |(workload, followed): (&WorkloadId, &Followed)| match followed.trials.cpi() {
            Estimate::Known(harm) => Some(WorkloadHarm { workload: workload.clone(), harm: Reading::Value(harm) }),
            _ => None,
        };
        CpiHarm { foreground, workloads: self.workloads.iter().filter_map(known).collect() }
    }

    /// Harm of each workload, sorted by id.
    #[must_use]
    pub fn workloads(&self) -> Vec<WorkloadHarm> {
        let one = |(workload, followed): (&WorkloadId, &Followed)| WorkloadHarm {
            workload: workload.clone(),
            harm: followed.harm(),
        };
        self.workloads.iter().map(one).collect()
    }

    /// Workloads whose harm crossed their budget since the last call. An interval that holds the budget crosses nothing.
    pub fn crossings(&mut self, budgets: &Budgets) -> Vec<Crossing> {
        let mut crossings = Vec::new();
        for (workload, followed) in &mut self.workloads {
            let Reading::Value(harm) = followed.harm() else { continue };
            let budget_percent = budgets.of(workload);
            let edge = match followed.over {
                false if harm.low_percent > budget_percent => Edge::Over,
                true if harm.high_percent < budget_percent => Edge::Within,
                _ => continue,
            };
            followed.over = edge == Edge::Over;
            crossings.push(Crossing { workload: workload.clone(), harm, edge });
        }
        crossings
    }
}
