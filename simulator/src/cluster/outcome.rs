//! What came of a scenario: of the cluster, of each job, of each class of hosts. Data only.

use std::collections::BTreeMap;

use gleaner_planner::productivity::Efficiency;
use gleaner_types::job::{Decision, JobStatus};
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

/// A size and since when.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SizeAt {
    /// Seconds since the start.
    pub at_s: u32,
    /// Volunteers at work for any job, draining ones included.
    pub volunteers: u32,
}

/// The result of a scenario. Costs and energies are measured by the simulation, not taken from the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterRun {
    /// All jobs succeeded within the time limit.
    pub completed: bool,
    /// From the start, with which the first job is submitted, to the end of the last job, in seconds.
    pub elapsed_s: f64,
    /// Cost of all jobs, in dollars.
    pub cost: f64,
    /// Energy counted for all jobs, in watt-hours.
    pub energy_wh: f64,
    /// Seconds of volunteers, from which the cost at any other price follows.
    pub volunteer_s: f64,
    /// Mean number of volunteers over the run.
    pub mean_volunteers: f64,
    /// Sizes over time, where they changed.
    pub sizes: Vec<SizeAt>,
    /// Most decisions about one job in one evaluation interval.
    pub decisions_per_interval: u32,
    /// Largest CPU of foreground and volunteer together, relative to the host's.
    pub busiest: f64,
    /// What each class of hosts did, for all jobs.
    pub by_class: ByClass,
    /// Each job, in the order of the scenario.
    pub jobs: Vec<JobRun>,
    /// Violations that the independent checker found.
    pub rejected: Vec<String>,
    /// Every decision.
    #[serde(skip)]
    pub decisions: Vec<Decision>,
    /// Since when the goal of the first job is said to be out of reach, in seconds after the start; `None` where it is not, or
    /// not any more.
    #[serde(skip)]
    pub warned_s: Option<f64>,
    /// The first job as the controller knows it.
    #[serde(skip)]
    pub job: Option<JobStatus>,
}

impl ClusterRun {
    /// Cost if volunteers had this price, in dollars.
    #[must_use]
    pub fn cost_at(&self, dedicated: u32, dedicated_hour: f64, volunteer_hour: f64) -> f64 {
        (self.elapsed_s * f64::from(dedicated) * dedicated_hour + self.volunteer_s * volunteer_hour) / 3_600.0
    }
}

/// The result of one job. Of one that is not done: as far as it has come at the time limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRun {
    /// Its name.
    pub name: String,
    /// When it was submitted, in seconds since the start.
    pub arrives_s: u32,
    /// It succeeded within the time limit.
    pub completed: bool,
    /// From its submission to its end, in seconds.
    pub elapsed_s: f64,
    /// It was done before its deadline, if it has one.
    pub deadline_met: Option<bool>,
    /// Cost, in dollars.
    pub cost: f64,
    /// Energy counted for it, in watt-hours.
    pub energy_wh: f64,
    /// Seconds of volunteers it had.
    pub volunteer_s: f64,
    /// Mean number of volunteers from its submission to its end.
    pub mean_volunteers: f64,
    /// How often it gave up a volunteer that was still there: its tasks there end, and the next job sets up anew.
    pub given_up: u32,
    /// Volunteers it would have had in the mean under fair sharing, by the controller's account, over the time in which there
    /// was one; `None` of a job that was always alone.
    pub mean_fair_volunteers: Option<f64>,
    /// Host-seconds it had beyond its fair share when it was last counted, by the controller's account; negative when it has
    /// lent. `None` of a job that was always alone.
    pub credit_host_s: Option<f64>,
    /// From its submission until it would be done if work and hosts could be cut at will and hosts were shared fairly, in
    /// seconds, by the true work. `None` in a scenario of one job.
    pub fair_elapsed_s: Option<f64>,
    /// How much later than that it was done, in seconds; negative when earlier. `None` also of a job that is not done.
    pub late_s: Option<f64>,
}

/// Work and productivity after the profile, while every worker worked: of the whole cluster and per class of hosts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ByClass {
    /// Seconds counted.
    pub seconds: f64,
    /// Part of the job done in them.
    pub done: f64,
    /// Productivity it took, in percent of one core × seconds.
    pub cpu_percent_s: f64,
    /// The same per class: part done, percent of one core × seconds.
    pub classes: BTreeMap<String, (f64, f64)>,
}

impl ByClass {
    /// E_K of RHIC Eq. 7, by the production code.
    #[must_use]
    pub fn efficiency(&self, class: &str, base: &str) -> f64 {
        let mut efficiency = Efficiency::relative_to(std::iter::once(base));
        for (name, (done, cpu_percent_s)) in &self.classes {
            efficiency.observe(name, *done, CoreShare::clamped(*cpu_percent_s), 1.0);
        }
        efficiency.of(class)
    }
}
