//! When each of several jobs would be done if hosts and work could be cut at will and the interactive hosts were always shared
//! fairly (max-min by weight, dedicated hosts counted; Wei §5.3.3). In: second by second, the hosts that are really there and
//! what one is worth to each job. Out: fair completions. Called by the cluster, of which it changes nothing; the account that
//! the controller keeps knows neither true work nor true lengths of tasks.

use gleaner_planner::pool::{Claim, water_fill};

/// Part of the work that is rounding.
const ROUNDING: f64 = 1e-9;

/// What a job is.
#[derive(Debug, Clone, Copy)]
pub(super) struct FairJob {
    /// How much of the hosts it has beside the others.
    pub(super) weight: f64,
    /// Its dedicated hosts.
    pub(super) dedicated: f64,
    /// Slots that these have.
    pub(super) dedicated_slots: f64,
    /// Work that these do per second while each slot has a task.
    pub(super) dedicated_pace: f64,
    /// Tasks, which it has no more slots for than that.
    pub(super) tasks: f64,
    /// Most work per second that its disks let through.
    pub(super) disk_pace: f64,
    /// All of its work.
    pub(super) work: f64,
}

/// What an interactive host is worth to a job in this second, in the mean.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HostWorth {
    /// Slots.
    pub(super) slots: f64,
    /// Work per second while each slot has a task.
    pub(super) pace: f64,
}

/// A job's part of a second: none before it arrives; its dedicated hosts alone while it is profiled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    NotHere,
    DedicatedAlone,
    Shares(HostWorth),
}

/// The fair schedule as far as it has come.
#[derive(Debug, Clone, Default)]
pub(super) struct FairSchedule {
    jobs: Vec<FairJob>,
    left: Vec<f64>,
    ends_s: Vec<Option<f64>>,
    now_s: f64,
}

impl FairSchedule {
    pub(super) fn new(jobs: Vec<FairJob>) -> Self {
        let left = jobs.iter().map(|job| job.work).collect();
        Self { ends_s: vec![None; jobs.len()], left, jobs, now_s: 0.0 }
    }

    /// When a job is done, in seconds since the start.
    pub(super) fn end_s(&self, job: usize) -> Option<f64> {
        self.ends_s.get(job).copied().flatten()
    }

    pub(super) fn is_over(&self) -> bool {
        self.ends_s.iter().all(Option::is_some)
    }

    /// One second, in which so many interactive hosts are there.
    pub(super) fn second(&mut self, hosts: f64, parts: &[Part]) {
        let here: Vec<usize> = (0..self.jobs.len())
            .filter(|&job| self.ends_s[job].is_none() && !matches!(parts[job], Part::NotHere))
            .collect();
        let claims: Vec<Claim> = here.iter().map(|&job| claim(&self.jobs[job], parts[job])).collect();
        let capacity = hosts + claims.iter().map(|claim| claim.least).sum::<f64>();
        for ((&index, claim), share) in here.iter().zip(&claims).zip(water_fill(capacity, &claims)) {
            let job = &self.jobs[index];
            let more = match parts[index] {
                Part::Shares(worth) => (share - claim.least).max(0.0) * worth.pace,
                Part::NotHere | Part::DedicatedAlone => 0.0,
            };
            let pace = (own_pace(job) + more).min(job.disk_pace);
            let left = self.left[index];
            if left <= pace * (1.0 + ROUNDING) {
                self.ends_s[index] = Some(self.now_s + if pace > 0.0 { left / pace } else { 0.0 });
            }
            self.left[index] = (left - pace).max(0.0);
        }
        self.now_s += 1.0;
    }
}

/// Work per second on its dedicated hosts.
fn own_pace(job: &FairJob) -> f64 {
    job.dedicated_pace * (job.tasks / job.dedicated_slots.max(1.0)).min(1.0)
}

fn claim(job: &FairJob, part: Part) -> Claim {
    let more = match part {
        Part::Shares(worth) if worth.slots > 0.0 && worth.pace > 0.0 => {
            let by_tasks = (job.tasks - job.dedicated_slots) / worth.slots;
            let by_disks = (job.disk_pace - own_pace(job)) / worth.pace;
            by_tasks.min(by_disks).max(0.0)
        }
        _ => 0.0,
    };
    Claim { weight: job.weight, least: job.dedicated, most: job.dedicated + more, change_s: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(work: f64, weight: f64) -> FairJob {
        FairJob {
            weight,
            dedicated: 1.0,
            dedicated_slots: 4.0,
            dedicated_pace: 4.0,
            tasks: 1_000.0,
            disk_pace: f64::INFINITY,
            work,
        }
    }

    fn ends_s(jobs: Vec<FairJob>, hosts: f64, parts: impl Fn(f64) -> Vec<Part>) -> Vec<f64> {
        let mut fair = FairSchedule::new(jobs);
        while !fair.is_over() {
            let parts = parts(fair.now_s);
            fair.second(hosts, &parts);
        }
        (0..fair.jobs.len()).filter_map(|job| fair.end_s(job)).collect()
    }

    const WORTH: Part = Part::Shares(HostWorth { slots: 4.0, pace: 4.0 });

    /// Two dedicated hosts and six others: four for each. 160 of work at 16 a second are done after 10 s; then the other has
    /// seven hosts, and does what is left of 440 at 28 a second in 10 s.
    #[test]
    fn two_jobs_have_half_each_until_the_first_is_done() {
        let ends_s = ends_s(vec![job(160.0, 1.0), job(440.0, 1.0)], 6.0, |_| vec![WORTH; 2]);
        assert!((ends_s[0] - 10.0).abs() < 1e-9 && (ends_s[1] - 20.0).abs() < 1e-9, "{ends_s:?}");
    }

    /// Of eight hosts the one of thrice the weight has six, its own counted.
    #[test]
    fn dedicated_hosts_count_toward_a_weight() {
        let ends_s = ends_s(vec![job(80.0, 1.0), job(240.0, 3.0)], 6.0, |_| vec![WORTH; 2]);
        assert!(ends_s.iter().all(|end_s| (end_s - 10.0).abs() < 1e-9), "{ends_s:?}");
    }

    /// A job of eight tasks can use two hosts; disks that let 12 through, three; and one that is profiled has its own alone.
    #[test]
    fn no_job_has_more_than_it_can_use() {
        let few = FairJob { tasks: 8.0, ..job(80.0, 1.0) };
        let read = FairJob { disk_pace: 12.0, ..job(120.0, 1.0) };
        let ends_s = ends_s(vec![few, read, job(200.0, 1.0)], 9.0, |now_s| {
            vec![WORTH, WORTH, if now_s < 5.0 { Part::DedicatedAlone } else { WORTH }]
        });
        // The third: 20 in 5 s, then 12 hosts less the 5 that the others use, 28 a second.
        let third_s = 5.0 + 140.0 / 28.0 + 40.0 / 40.0;
        assert!((ends_s[0] - 10.0).abs() < 1e-9 && (ends_s[1] - 10.0).abs() < 1e-9, "{ends_s:?}");
        assert!((ends_s[2] - third_s).abs() < 1e-9, "{ends_s:?} {third_s}");
    }
}
