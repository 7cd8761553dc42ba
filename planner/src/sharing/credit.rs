//! The account of credit (§5.3.2): what each job has had beyond, or less than, its fair share. In: a schedule under DRF and
//! one under another policy. Out: credit of each job, and what must be given back.
//!
//! A share is the dominant share that a job holds; its integral over time is its dominant product. Credit is the product
//! under the policy less the one under DRF (Eq. 5.6), as in Table 5.6: DRF with whole tasks on the same cluster.

use super::engine::{Run, Schedule};
use super::fair::FairTimes;
use super::input::Workload;

/// Dominant products of the jobs of a schedule, as time goes on. Tasks that were lost do not count.
#[derive(Debug, Clone)]
pub struct Products {
    /// Time, job, change of its share; sorted.
    changes: Vec<(f64, usize, f64)>,
    next: usize,
    now_s: f64,
    shares: Vec<f64>,
    products: Vec<f64>,
}

impl Products {
    /// At time 0.
    #[must_use]
    pub fn new(workload: &Workload, schedule: &Schedule) -> Self {
        let share = |run: &Run| workload.task_share(&workload.jobs()[run.job].stages[run.stage]);
        let both = |run: &Run| [(run.start_s, run.job, share(run)), (run.end_s, run.job, -share(run))];
        let counted = schedule.runs.iter().filter(|run| !run.lost);
        let mut changes: Vec<(f64, usize, f64)> = counted.flat_map(both).collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let jobs = workload.jobs().len();
        Self { changes, next: 0, now_s: 0.0, shares: vec![0.0; jobs], products: vec![0.0; jobs] }
    }

    /// Goes on to a later time.
    pub fn advance(&mut self, to_s: f64) {
        while let Some(&(at_s, job, change)) = self.changes.get(self.next).filter(|(at_s, ..)| *at_s <= to_s) {
            self.pass(at_s);
            self.shares[job] += change;
            self.next += 1;
        }
        self.pass(to_s);
    }

    fn pass(&mut self, to_s: f64) {
        let passed_s = (to_s - self.now_s).max(0.0);
        if passed_s > 0.0 {
            for (product, share) in self.products.iter_mut().zip(&self.shares) {
                *product += share * passed_s;
            }
            self.now_s = to_s;
        }
    }

    /// The products now, in share seconds.
    #[must_use]
    pub fn now(&self) -> &[f64] {
        &self.products
    }
}

/// Credit c of each job at one time, in share seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct CreditRow {
    /// When.
    pub at_s: f64,
    /// Of each job: positive was borrowed, negative was lent.
    pub credits: Vec<f64>,
}

/// The credit of every job at the end of every epoch, until both schedules have ended: all is paid back then. At most
/// `most` rows; longer ones have an equal number of epochs between their rows.
#[must_use]
pub fn table(workload: &Workload, fair: &Schedule, actual: &Schedule, epoch_s: f64, most: u32) -> Vec<CreditRow> {
    let last_s = fair.makespan_s().max(actual.makespan_s());
    let epochs = (last_s / epoch_s - 1e-9).ceil().max(1.0);
    let step = (epochs / f64::from(most)).ceil();
    let (mut fair, mut actual) = (Products::new(workload, fair), Products::new(workload, actual));
    let mut rows = Vec::new();
    for row in 1..=most {
        let at_s = f64::from(row) * step * epoch_s;
        fair.advance(at_s);
        actual.advance(at_s);
        rows.push(CreditRow {
            at_s,
            credits: actual.now().iter().zip(fair.now()).map(|(own, fair)| own - fair).collect(),
        });
        if f64::from(row) * step >= epochs {
            break;
        }
    }
    rows
}

/// What a check at the end of an epoch needs.
#[derive(Debug)]
pub(super) struct Check<'a> {
    pub(super) workload: &'a Workload,
    pub(super) now_s: f64,
    /// Jobs in the order of their fair completions.
    pub(super) ranks: &'a [usize],
    /// Credit of each job.
    pub(super) credits: &'a [f64],
    /// Stage and unfinished tasks of each job; `None` of one that has ended.
    pub(super) unfinished: &'a [Option<(usize, u32)>],
    /// When each stage of each job ends if shared fairly.
    pub(super) ends_s: &'a [Vec<f64>],
    /// Divisible DRF.
    pub(super) divisible: &'a FairTimes,
}

impl Check<'_> {
    /// G of each job: the product to compensate in the next epoch, the largest of three gaps (§5.3.4).
    pub(super) fn gaps(&self) -> Vec<f64> {
        let mut gaps = vec![0.0; self.credits.len()];
        let mut cumulative = 0.0_f64;
        for &job in self.ranks {
            let credit = self.credits[job];
            cumulative += credit;
            let Some(unfinished) = self.unfinished[job].filter(|_| credit < 0.0) else { continue };
            let lent = -credit;
            // Eq. 5.2. The jobs behind are checked as if this one were compensated already.
            let prerequisite = (-cumulative).max(0.0).min(lent);
            cumulative += prerequisite;
            // Eq. 5.8.
            let lendable = self.divisible.lendable(self.workload, job, self.now_s);
            let network = lendable.map_or(0.0, |lendable| lent - lendable);
            gaps[job] = prerequisite.max(network).max(self.unused(job, unfinished, lent));
        }
        gaps
    }

    /// The part of what a job has lent that it cannot use before its fair completion, if it is given back evenly and what
    /// one stage has too few tasks for goes to the others: credit beyond the room of all stages. The room of a stage is what
    /// its unfinished tasks could hold beyond its fair share, over the fair time that is left of it.
    fn unused(&self, job: usize, (current, tasks): (usize, u32), lent: f64) -> f64 {
        let stages = &self.workload.jobs()[job].stages;
        let ends_s = &self.ends_s[job];
        let room = (current..stages.len()).map(|index| {
            let stage = &stages[index];
            let task = self.workload.task_share(stage);
            let begins_s = index.checked_sub(1).map_or(self.workload.jobs()[job].release_s, |before| ends_s[before]);
            let left_s = (ends_s[index] - begins_s.max(self.now_s)).max(0.0);
            let fair_s = (ends_s[index] - begins_s).max(f64::MIN_POSITIVE);
            let fair = f64::from(stage.tasks) * task * stage.duration_s / fair_s;
            let unfinished = if index == current { tasks } else { stage.tasks };
            (f64::from(unfinished) * task - fair).max(0.0) * left_s
        });
        (lent - room.sum::<f64>()).max(0.0)
    }
}
