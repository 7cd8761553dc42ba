//! Background jobs. In: submissions, and progress reports of engines. Out: the record of every sizing decision. The API
//! and the engines fill them in; the controller decides; `gleaner explain` shows the records.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::engine::EngineSpec;
use crate::harm::HarmInterval;
use crate::id::{HostId, JobId, ReservationId, UserName};
use crate::stages::{StageOpinion, Stages};
use crate::time::Timestamp;
use crate::units::{Bytes, CoreShare, Dollars, DollarsPerHour, Fraction};

/// What a job should achieve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Finish within this many seconds of submission, with as little as that takes.
    Deadline {
        /// Seconds from submission.
        within_s: f64,
    },
    /// Finish as cheaply as possible or, with a budget, as early as the budget allows.
    Cost {
        /// The most the whole job may cost.
        budget: Option<Dollars>,
    },
    /// Finish with as little energy as possible; dedicated hosts count whole, volunteers only what they add to
    /// their hosts (RHIC §4.4). Needs [`JobSpec::power`].
    Energy,
}

/// Power of a host: idle + u·(per_load + per_load_squared·u + per_load_ghz·(f − base_ghz)) watts, with u the
/// utilisation in 0..=1 and f the clock in GHz (RHIC §4.4, "multiple regression").
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerModel {
    /// Watts when idle.
    pub idle_w: f64,
    /// Watts that full load adds at the base clock, its linear part.
    pub per_load_w: f64,
    /// Its quadratic part.
    #[serde(default)]
    pub per_load_squared_w: f64,
    /// What a GHz above the base clock adds at full load.
    #[serde(default)]
    pub per_load_ghz_w: f64,
    /// Base clock, in GHz.
    #[serde(default)]
    pub base_ghz: f64,
}

impl PowerModel {
    /// Power at a utilisation, at the base clock.
    #[must_use]
    pub fn watts(self, utilisation: f64) -> f64 {
        let u = utilisation.clamp(0.0, 1.0);
        (self.idle_w + u * (self.per_load_w + self.per_load_squared_w * u)).max(0.0)
    }

    /// Power at a utilisation and a clock in GHz.
    #[must_use]
    pub fn watts_at(self, utilisation: f64, ghz: f64) -> f64 {
        let u = utilisation.clamp(0.0, 1.0);
        (self.watts(u) + u * self.per_load_ghz_w * (ghz - self.base_ghz)).max(0.0)
    }
}

/// Power models of the two roles of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerModels {
    /// Of a dedicated host.
    pub dedicated: PowerModel,
    /// Of an interactive host.
    pub interactive: PowerModel,
}

/// What a worker costs. A worker is a host, or a slot of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// A dedicated worker.
    pub dedicated: DollarsPerHour,
    /// A volunteer.
    pub volunteer: DollarsPerHour,
}

impl Default for Prices {
    /// RHIC §5.1: $1.00 and $0.42 an hour.
    fn default() -> Self {
        Self { dedicated: DollarsPerHour::clamped(1.0), volunteer: DollarsPerHour::clamped(0.42) }
    }
}

/// A job as submitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its name; unique among the jobs an aggregator knows.
    pub id: JobId,
    /// Which engine runs it.
    pub engine: EngineSpec,
    /// What its workers are.
    pub workers: Workers,
    /// What it should achieve.
    pub goal: Goal,
    /// What workers cost.
    pub prices: Prices,
    /// Memory one slot needs; hosts offer only as many slots as their residual memory holds.
    pub memory_per_slot: Bytes,
    /// Time from a decision to add a worker until it works, in seconds (RHIC §4.4, "profiled set-up time").
    pub set_up_s: f64,
    /// Power of its hosts, where known.
    pub power: Option<PowerModels>,
    /// Who submitted it; `None` where that is not known. All jobs of a user together have the user's fair share.
    #[serde(default)]
    pub user: Option<UserName>,
}

/// What the workers of a job are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workers {
    /// Slots in one machine's volunteer.
    Slots(SlotSpec),
    /// Hosts.
    Hosts(ClusterSpec),
}

impl Workers {
    /// Slots of one machine.
    #[must_use]
    pub const fn slots(&self) -> Option<&SlotSpec> {
        match self {
            Self::Slots(slots) => Some(slots),
            Self::Hosts(_) => None,
        }
    }

    /// Hosts.
    #[must_use]
    pub const fn hosts(&self) -> Option<&ClusterSpec> {
        match self {
            Self::Slots(_) => None,
            Self::Hosts(hosts) => Some(hosts),
        }
    }
}

/// Workers that are hosts: dedicated ones, and volunteers on interactive ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Hosts that hold its data and run workers from the first second to the last.
    pub dedicated: Vec<DedicatedHost>,
    /// Most volunteers at once; `None` is all there are.
    pub max_volunteers: Option<u32>,
    /// Most slots on a host; `None` is the number of its CPUs.
    pub max_slots_per_host: Option<u32>,
    /// How much of its user's fair share of the hosts that several jobs want is its own, relative to the user's other jobs;
    /// more than 0, usually 1.
    #[serde(default = "one")]
    pub weight: f64,
}

/// A dedicated host of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedicatedHost {
    /// The host.
    pub host: HostId,
    /// Bandwidth of its disks relative to the base class: B_K of RHIC §4.6, from a measurement beforehand.
    #[serde(default = "one")]
    pub disk: f64,
}

fn one() -> f64 {
    1.0
}

/// Workers that are slots of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotSpec {
    /// The machine.
    pub host: HostId,
    /// How many tasks the job has; 0 if that is not known beforehand.
    pub tasks: u32,
    /// Slots that run from the first second to the last, unless other jobs on the machine come before it: the dedicated
    /// capacity of the job.
    pub dedicated_slots: u32,
    /// Most slots at once, dedicated ones included; `None` is the number of CPUs.
    pub max_slots: Option<u32>,
}

/// What an engine reports about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineProgress {
    /// Work done, running tasks counted in part: J_completed of RHIC Eq. 5.
    pub fraction_done: Fraction,
    /// All tasks.
    pub tasks_total: u32,
    /// Tasks that succeeded.
    pub tasks_done: u32,
    /// Tasks given up after their last attempt.
    pub tasks_failed: u32,
    /// Attempts that lost their slot or failed and were or will be tried again.
    pub tasks_retried: u32,
    /// Tasks running now.
    pub tasks_running: u32,
    /// Mean wall time of the finished tasks, in seconds.
    pub mean_task_s: Option<f64>,
    /// Standard deviation of the same, in seconds, where the engine can tell.
    pub task_deviation_s: Option<f64>,
    /// Slots the engine works with now, draining ones included.
    pub slots_in_use: u32,
    /// What each host contributes, where the engine can tell; empty for slots of one machine.
    pub workers: BTreeMap<HostId, WorkerProgress>,
    /// Hosts that no task of the job can use now, by what its tasks ask for, where the engine can tell. They are given back, and none
    /// of them is taken.
    #[serde(default)]
    pub unusable: BTreeSet<HostId>,
    /// Nodes that users' leases have or will have, the first to begin first, where the engine fills the gaps between them.
    #[serde(default)]
    pub leases: Vec<ReservedNode>,
    /// The stages of a job whose tasks exchange data, where the engine knows such.
    #[serde(default)]
    pub stages: Stages,
}

impl EngineProgress {
    /// Tasks that wait for a slot and could begin.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        let finished = self.tasks_done.saturating_add(self.tasks_failed);
        let idle = self.tasks_total.saturating_sub(finished).saturating_sub(self.tasks_running);
        self.stages.waiting().map_or(idle, |waiting| waiting.min(idle))
    }
}

/// A node of a batch system, with the lease that a user has or will have of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedNode {
    /// What the batch system calls it.
    pub node: HostId,
    /// The lease.
    pub lease: ReservationId,
    /// When it begins.
    pub begins: Timestamp,
    /// When it ends.
    pub ends: Timestamp,
    /// What the job's tasks may do there.
    pub stage: ReservedStage,
    /// Tasks that run there now.
    pub tasks: u32,
}

/// What tasks may do on a node that a lease has or will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservedStage {
    /// They start.
    Open,
    /// None starts; those that run may end.
    Draining,
    /// The lease begins so soon that those that run are ended.
    Vacating,
    /// The lease has begun.
    Leased,
}

/// What one host contributes to a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerProgress {
    /// Tasks running there now.
    pub tasks_running: u32,
    /// Part of the job done there so far, in 0..=1: J_completed of RHIC Eq. 7.
    pub done: Fraction,
}

/// What the controller asks of an engine. Desired state: repeating it changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineAction {
    /// Work with these slots per host; a smaller number drains.
    SetSlots(BTreeMap<HostId, u32>),
    /// Stop every task and forget the job.
    Cancel,
}

/// How a job ended, by its engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineEnd {
    /// Every task finished well.
    Completed,
    /// Some tasks were given up.
    CompletedWithFailures {
        /// How many.
        failed: u32,
    },
    /// The engine cannot run the job.
    Broken {
        /// Why.
        reason: String,
    },
}

/// The phase of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// Waiting for hosts that can run it.
    Waiting {
        /// What it waits for.
        reason: String,
    },
    /// Dedicated capacity alone, to learn its rate (RHIC §4.1).
    Profiling,
    /// Sized every evaluation interval.
    Running,
    /// Every task finished well.
    Completed,
    /// Ended with tasks given up, or its engine broke.
    Failed {
        /// Why.
        reason: String,
    },
    /// Stopped by an operator.
    Cancelled,
}

impl JobPhase {
    /// The job has ended.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed { .. } | Self::Cancelled)
    }

    /// One word for tables.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Waiting { .. } => "waiting",
            Self::Profiling => "profiling",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A job as its controller knows it: for `gleaner job show` and progress bars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// As submitted.
    pub spec: JobSpec,
    /// Its phase.
    pub phase: JobPhase,
    /// When it was submitted.
    pub submitted: Timestamp,
    /// When it first ran.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The engine's last report.
    pub progress: Option<EngineProgress>,
    /// Volunteers in use.
    pub volunteers: u32,
    /// When it will be complete, by the last decision.
    pub completion_estimate: Option<Timestamp>,
    /// Deadline, if that is its goal.
    pub deadline: Option<Timestamp>,
    /// Cost so far.
    pub cost: Dollars,
    /// CPU time its volunteers and dedicated slots used, in core-seconds.
    pub harvested_core_s: f64,
    /// CPU time that the foreground of its volunteers' hosts left free meanwhile, in core-seconds: what it could
    /// harvest.
    #[serde(default)]
    pub idle_core_s: f64,
    /// How much slower the foreground was beside it, as last known; `None` of a job on several hosts, each of which has its
    /// own.
    #[serde(default)]
    pub harm: Option<HarmInterval>,
    /// Energy so far by the power models, in watt-hours; `None` without them.
    pub energy_wh: Option<f64>,
    /// Decisions taken.
    pub decisions: u32,
    /// What it has of the interactive hosts, or of the slots of its machine, that several jobs want, as last counted; `None`
    /// while it is the only one on a cluster or on its machine.
    #[serde(default)]
    pub share: Option<PoolShare>,
}

/// What a job may have of the interactive hosts that jobs on clusters share by credit (Wei §5.3): at a decision, or when another
/// job wants more or less, or has ended. Of jobs on one machine it is about the machine's slots, dedicated ones among them, every
/// second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolShare {
    /// Interactive hosts (slots) it would take if nobody else wanted any.
    pub wanted: u32,
    /// Interactive hosts it may have until its next decision (slots, as soon as tasks of others in them have ended).
    pub allotted: u32,
    /// Interactive hosts (slots) it would have now under fair sharing; a part of one counts.
    pub fair: f64,
    /// Interactive hosts that all jobs of its user would have together under fair sharing, itself among them.
    #[serde(default)]
    pub user_fair: f64,
    /// How many jobs these are.
    #[serde(default)]
    pub user_jobs: u32,
    /// Host-seconds (slot-seconds) it has had beyond its fair share so far, its dedicated hosts among them (Eq. 5.6); what it has lent is
    /// less than 0.
    pub credit_s: f64,
    /// The same in seconds of its fair share now: how far it is ahead of fair sharing.
    pub ahead_s: f64,
    /// When it would be done under fair sharing alone, if nobody came; `None` while that cannot be told.
    pub fair_completion: Option<Timestamp>,
}

/// One candidate size in a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Volunteers.
    pub size: u32,
    /// Aggregate potential productivity, dedicated workers included (RHIC Eq. 1 summed).
    pub potential: CoreShare,
    /// Aggregate actual productivity predicted from it.
    pub predicted: CoreShare,
    /// Seconds until completion (RHIC Eq. 6, with padding and transition).
    pub completion_s: f64,
    /// Cost of the whole job if this size is kept to the end.
    pub cost: Dollars,
    /// Energy of the whole job if this size is kept to the end, in watt-hours; `None` without power models.
    pub energy_wh: Option<f64>,
    /// The goal can be met with it.
    pub meets_goal: bool,
    /// Smaller is better; comparable only within one decision and one value of `meets_goal`.
    pub score: f64,
}

/// The limit that bound a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The profile with dedicated capacity alone is not complete.
    Profiling,
    /// No progress or no CPU has been seen yet, so there is no rate to extrapolate.
    NoRateYet,
    /// A smaller size would miss the deadline.
    Deadline,
    /// The smallest size already meets the deadline.
    DeadlineWithDedicatedAlone,
    /// No size meets the deadline; the one that comes closest was taken.
    DeadlineOutOfReach,
    /// A larger size would cost more.
    Cost,
    /// A larger size would take more energy.
    Energy,
    /// A larger size would exceed the budget.
    Budget,
    /// No size keeps within the budget; the cheapest was taken.
    BudgetOutOfReach,
    /// Every available volunteer was taken.
    PoolExhausted,
    /// There is no volunteer to take.
    PoolEmpty,
    /// The tasks left do not fill more slots.
    TasksLeft,
    /// What a change would gain is less than its transition costs.
    Transition,
    /// The size grows in steps until the dedicated hosts' disks are saturated (RHIC Algorithm 1).
    Exploring,
    /// The job's sizing policy leaves no choice.
    Policy,
    /// Other jobs want the same hosts: its share of them is less, or they have not given them back yet.
    Share,
    /// By the model of the job's stages fewer would miss the deadline, and its rate does not tell.
    Stages,
}

/// A point of an I/O model's curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IoKnot {
    /// Aggregate potential productivity.
    pub potential: CoreShare,
    /// Aggregate actual productivity seen at it.
    pub actual: CoreShare,
    /// Utilisation of the dedicated hosts' disks there, where known.
    pub disk: Option<Fraction>,
}

/// Why a second says nothing of what a cluster can do (RHIC §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsampled {
    /// Its workers have just changed.
    Changed,
    /// Added volunteers are being set up.
    SettingUp,
    /// Slots are empty and no task waits for them.
    NoTaskWaits,
    /// What a worker used is not known.
    NoReading,
    /// Most slots are empty, and the engine does not tell whether the tasks that are left could begin.
    SlotsEmpty,
}

impl Unsampled {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Changed => "just after a change",
            Self::SettingUp => "while volunteers were set up",
            Self::NoTaskWaits => "in which no task waited for an empty slot",
            Self::NoReading => "in which what a worker used was not known",
            Self::SlotsEmpty => "in which most slots were empty though tasks were left",
        }
    }
}

/// Seconds of one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsampledFor {
    /// Why.
    pub reason: Unsampled,
    /// How many.
    pub seconds: u32,
}

/// Seconds that went into the I/O model and those that did not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// Seconds that did.
    pub taken: u32,
    /// Those that did not, once per reason.
    pub rejected: Vec<UnsampledFor>,
}

/// A sizing decision with its inputs and candidates: for `gleaner explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Its job.
    pub job: JobId,
    /// Number of the decision within the job, from 1.
    pub number: u32,
    /// When it was taken.
    pub at: Timestamp,
    /// The goal it served.
    pub goal: Goal,
    /// Seconds left to the deadline, if that is the goal; negative when it has passed.
    pub deadline_in_s: Option<f64>,
    /// Cost so far.
    pub spent: Dollars,
    /// Work left (J_remaining of RHIC Eq. 6).
    pub remaining: Fraction,
    /// Work per second and percent of one core (R_proc of RHIC Eq. 5).
    pub processing_rate: Option<f64>,
    /// Share of the potential that the job's workers have really used so far.
    pub yield_ratio: Option<f64>,
    /// The I/O model it went by: actual over potential productivity of the whole cluster, as straight lines between
    /// these points (RHIC §4.3). Empty where a constant share was taken.
    #[serde(default)]
    pub io_curve: Vec<IoKnot>,
    /// Seconds since the decision before that say what the cluster can do, and those that do not. All zero of a job on one
    /// machine.
    #[serde(default)]
    pub samples: Samples,
    /// Nothing was seen of what the cluster can do: how much volunteers bring is a cautious assumption.
    #[serde(default)]
    pub assumed: bool,
    /// Volunteers before.
    pub size_before: u32,
    /// Volunteers from now on.
    pub size: u32,
    /// Which: slots per host.
    pub selection: BTreeMap<HostId, u32>,
    /// Candidates, the chosen one among them, by size; at most [`Decision::MAX_CANDIDATES`].
    pub candidates: Vec<Candidate>,
    /// How many candidates were considered in all.
    pub considered: u32,
    /// What bound the choice.
    pub bound: Bound,
    /// The choice in a sentence.
    pub reason: String,
    /// What the model of the job's stages says beside its rate; `None` where it has no stages.
    #[serde(default)]
    pub stages: Option<StageOpinion>,
}

impl Decision {
    /// Most candidates a decision record keeps; of more, those around the chosen one and an even spread.
    pub const MAX_CANDIDATES: usize = 48;
}
