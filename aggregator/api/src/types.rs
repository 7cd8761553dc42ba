//! Requests and responses of the local API, as JSON. Data only. The client writes requests and reads responses; the
//! aggregator's `api` does the reverse, and its shell answers. [`Request::order`] separates orders from questions.

mod rows;
mod task_list;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use gleaner_planner::advice::{Advice, Question};
use gleaner_planner::controller::{FleetHold, HeldUntil, HostView};
use gleaner_types::application::{ApplicationSpec, ApplicationStatus};
use gleaner_types::guest::GuestName;
use gleaner_types::id::{ApplicationId, GuestText, HostId, JobId, UserName};
use gleaner_types::job::{Decision, DedicatedHost, Goal, JobStatus, PowerModels, Prices};
use gleaner_types::text::counted;
use gleaner_types::time::Timestamp;
use gleaner_types::units::Bytes;

pub use task_list::MAX_TASKS;

/// A question or an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Is anybody there? Answered by [`Response::Overview`].
    Overview,
    /// All hosts.
    Hosts,
    /// What the workloads of all hosts are called.
    Guests,
    /// All jobs, newest first.
    Jobs,
    /// One job with its last decision.
    Job {
        /// Which.
        job: JobId,
    },
    /// Runs a job of engine `local` on the aggregator's own machine.
    Submit(Box<SubmitJob>),
    /// Runs a job of a batch system over many hosts.
    SubmitCluster(Box<SubmitCluster>),
    /// Stops a job. Its running tasks are ended.
    Cancel {
        /// Which. Of a name it is the run that has not ended: there is at most one.
        job: JobId,
    },
    /// Leaves a host alone: its volunteer stops, no workload on it is limited.
    Hold {
        /// Which.
        host: HostId,
        /// For how long, in seconds; `None` is until it is released.
        #[serde(default)]
        for_s: Option<f64>,
        /// It may be one that the aggregator does not know.
        #[serde(default)]
        unknown: bool,
    },
    /// Gives a held host back.
    Release {
        /// Which.
        host: HostId,
    },
    /// Leaves all hosts alone, also those that join later.
    HoldAll {
        /// For how long, in seconds; `None` is until they are released.
        #[serde(default)]
        for_s: Option<f64>,
    },
    /// Ends that. Hosts that are held by name stay held.
    ReleaseAll,
    /// Forgets a host that is not connected.
    RemoveHost {
        /// Which.
        host: HostId,
    },
    /// Lets a host join: answered by a token that serves once.
    Invite {
        /// The host.
        host: HostId,
        /// For how long, in seconds.
        for_s: f64,
        /// Where it reaches the aggregator; empty is where the config says.
        #[serde(default)]
        addresses: Vec<String>,
    },
    /// Withdraws an invitation.
    Uninvite {
        /// The host.
        host: HostId,
    },
    /// Open invitations, and the hosts whose certificates are revoked.
    Invitations,
    /// Shuts a host out: no certificate that it has now counts any more.
    Revoke {
        /// The host.
        host: HostId,
        /// It may be one that the aggregator does not know.
        #[serde(default)]
        unknown: bool,
    },
    /// Describes an application with a response-time target, or describes one anew.
    Apply(Box<ApplicationSpec>),
    /// Takes an application away and gives its limits back.
    Remove {
        /// Which.
        application: ApplicationId,
    },
    /// All applications.
    Applications,
    /// One application with its last decision.
    Application {
        /// Which.
        application: ApplicationId,
    },
    /// Hands in a mean response time of an application whose source is `push`.
    Respond {
        /// Which.
        application: ApplicationId,
        /// The mean since the last one, in milliseconds.
        mean_ms: f64,
    },
    /// Lines of the audit log.
    Audit {
        /// Only records at or after this time.
        since: Option<Timestamp>,
    },
    /// How many cores hosts could give.
    Advise(Question),
    /// Lines of the event log.
    Events {
        /// Only events at or after this time.
        since: Option<Timestamp>,
        /// Go on with events as they happen.
        follow: bool,
    },
}

impl Request {
    /// What is ordered, in the words of the command line; `None` for a question. Who may only ask gets answers to
    /// questions alone.
    #[must_use]
    pub fn order(&self) -> Option<String> {
        let named = |name: &Option<JobId>| name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        let time = |for_s: &Option<f64>| for_s.map_or_else(String::new, |for_s| format!(" --for {for_s}s"));
        Some(match self {
            Self::Overview
            | Self::Hosts
            | Self::Guests
            | Self::Jobs
            | Self::Job { .. }
            | Self::Invitations
            | Self::Applications
            | Self::Application { .. }
            | Self::Advise(_)
            | Self::Audit { .. }
            | Self::Events { .. } => return None,
            Self::Submit(job) => format!("job submit{} ({})", named(&job.job), counted(job.tasks.len(), "task")),
            Self::SubmitCluster(job) => format!("job submit-cluster{}", named(&job.name)),
            Self::Cancel { job } => format!("job cancel {job}"),
            Self::Hold { host, for_s, .. } => format!("host hold {host}{}", time(for_s)),
            Self::HoldAll { for_s } => format!("host hold --all{}", time(for_s)),
            Self::ReleaseAll => "host release --all".to_owned(),
            Self::RemoveHost { host } => format!("host remove {host}"),
            Self::Release { host } => format!("host release {host}"),
            Self::Invite { host, for_s, .. } => format!("host invite {host} --for {for_s}s"),
            Self::Uninvite { host } => format!("host uninvite {host}"),
            Self::Revoke { host, .. } => format!("host revoke {host}"),
            Self::Apply(application) => format!("app apply {}", application.name),
            Self::Remove { application } => format!("app remove {application}"),
            Self::Respond { application, .. } => format!("app respond {application}"),
        })
    }
}

/// A job of engine `local`, with its tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitJob {
    /// Name; `None` lets the aggregator choose one.
    pub job: Option<JobId>,
    /// Goal.
    pub goal: Goal,
    /// Prices per slot.
    pub prices: Prices,
    /// One shell command per task.
    #[serde(deserialize_with = "task_list::read")]
    pub tasks: Vec<String>,
    /// Environment of the tasks.
    pub environment: BTreeMap<String, String>,
    /// Folder the tasks run in; absolute.
    pub working_dir: String,
    /// Folder for the tasks' output; absolute. `None` is a folder under the aggregator's state.
    pub output_dir: Option<String>,
    /// Slots it has from its first second on, unless other jobs on the machine come before it.
    pub dedicated_slots: u32,
    /// Most slots; `None` is the number of CPUs.
    pub max_slots: Option<u32>,
    /// Memory a slot needs.
    pub memory_per_slot: Bytes,
    /// Attempts per task.
    pub max_attempts: u32,
    /// Longest a task may run, in seconds.
    pub task_timeout_s: Option<f64>,
}

/// How the volunteers of a job on a cluster are chosen. The baselines that it is compared with run only in
/// `gleaner simulate` and `gleaner reproduce rhic`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizingMethod {
    /// By the model, for the goal (RHIC §4).
    #[default]
    Adaptive,
}

/// A job of a batch system over many hosts, as an operator writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubmitCluster {
    /// Name; `None` lets the aggregator choose one.
    #[serde(default)]
    pub name: Option<JobId>,
    /// How its volunteers are chosen.
    #[serde(default)]
    pub sizing: SizingMethod,
    /// Most volunteers at once.
    #[serde(default)]
    pub max_volunteers: Option<u32>,
    /// Most slots on a host.
    #[serde(default)]
    pub max_slots_per_host: Option<u32>,
    /// How much of the hosts that several jobs want is its fair share, relative to the others; `None` is 1.
    #[serde(default)]
    pub weight: Option<f64>,
    /// Memory a slot needs, in MiB.
    #[serde(default)]
    pub memory_per_slot_mib: u64,
    /// Time from a decision to add a host until it works, in seconds.
    #[serde(default)]
    pub set_up_s: f64,
    /// Goal.
    pub goal: Goal,
    /// Prices per host.
    #[serde(default)]
    pub prices: Prices,
    /// Hosts that run workers from the first second to the last.
    pub dedicated: Vec<DedicatedHost>,
    /// Power of the hosts; needed for the goal `energy`.
    #[serde(default)]
    pub power: Option<PowerModels>,
    /// The rest is for the engine: its options under its name, or those of the default engine as they are.
    #[serde(flatten)]
    pub engine: Map<String, Value>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Overview`].
    Overview(Box<Overview>),
    /// To [`Request::Hosts`].
    Hosts(#[serde(deserialize_with = "rows::read")] Vec<HostView>),
    /// To [`Request::Guests`]: each host that says it.
    Guests(Vec<HostGuests>),
    /// To [`Request::Jobs`].
    Jobs(Vec<JobStatus>),
    /// To [`Request::Job`].
    Job(Box<JobDetail>),
    /// To [`Request::Submit`]: stored durably.
    Submitted {
        /// The job's name.
        job: JobId,
        /// Where its tasks' output goes.
        output_dir: String,
    },
    /// To [`Request::Cancel`]: stored durably.
    Cancelled {
        /// Which job it was.
        job: JobId,
        /// Who had submitted it; `None` where that is not known.
        user: Option<UserName>,
    },
    /// To [`Request::Hold`] and [`Request::HoldAll`]: stored durably.
    Held {
        /// Until when.
        until: HeldUntil,
    },
    /// To [`Request::Release`] and [`Request::ReleaseAll`]: stored durably.
    Released,
    /// To [`Request::RemoveHost`]: stored durably.
    HostRemoved,
    /// To [`Request::Invite`]: stored durably.
    Invited(Invited),
    /// To [`Request::Uninvite`]: stored durably.
    Uninvited,
    /// To [`Request::Invitations`].
    Invitations {
        /// Open invitations.
        invitations: Vec<InvitationView>,
        /// Revoked hosts.
        revocations: Vec<RevocationView>,
    },
    /// To [`Request::Revoke`]: stored durably.
    Revoked {
        /// Certificates issued until then do not count.
        through: Timestamp,
        /// It was connected, and is no more.
        was_connected: bool,
    },
    /// To [`Request::Apply`]: stored durably.
    Applied,
    /// To [`Request::Remove`]: stored durably.
    Removed,
    /// To [`Request::Applications`].
    Applications(Vec<ApplicationStatus>),
    /// To [`Request::Application`].
    Application(Box<ApplicationStatus>),
    /// To [`Request::Respond`].
    Responded,
    /// To [`Request::Advise`].
    Advice(Box<Advice>),
    /// Something is wrong.
    Error(ApiError),
}

/// What the workloads of one host are called. A host whose agent is of an older release has none of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostGuests {
    /// The host.
    pub host: HostId,
    /// Its workloads.
    pub guests: Vec<GuestName>,
    /// Globs of `foreground.cgroups` in its agent's config that match no cgroup now.
    #[serde(default)]
    pub unmatched: Vec<GuestText>,
}

/// An invitation that was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invited {
    /// The token, for `gleaner-agent join` on the host.
    pub token: TokenText,
    /// Until when it serves.
    pub expires: Timestamp,
    /// It takes the place of an older one, which serves no more.
    pub replaced: bool,
}

/// A join token as text. Its secret does not appear where a request or response is merely shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenText(String);

impl TokenText {
    /// The token.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for TokenText {
    fn from(token: String) -> Self {
        Self(token)
    }
}

impl std::fmt::Debug for TokenText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenText")
    }
}

/// An open invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationView {
    /// The host.
    pub host: HostId,
    /// When it was made.
    pub made: Timestamp,
    /// Until when it serves.
    pub expires: Timestamp,
}

/// A host that was shut out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationView {
    /// The host.
    pub host: HostId,
    /// Its certificates issued until then do not count.
    pub through: Timestamp,
}

/// The aggregator at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Version of its software.
    pub software: String,
    /// Process id.
    pub pid: u32,
    /// When it started.
    pub started: Timestamp,
    /// Its clock.
    pub now: Timestamp,
    /// The machine it runs on: where jobs of engine `local` go.
    pub local_host: HostId,
    /// Agents connected.
    pub hosts_connected: u32,
    /// Jobs not ended.
    pub jobs_active: u32,
    /// An operator holds all hosts.
    #[serde(default)]
    pub all_held: Option<Box<FleetHold>>,
    /// Hosts that are held by name and have not joined.
    #[serde(default)]
    pub held_ahead: Vec<HostId>,
    /// How it stands, where it is one of several.
    #[serde(default)]
    pub leadership: Option<Leadership>,
    /// The event log cannot be written; the error.
    pub event_log_error: Option<String>,
    /// The journal or the store cannot be written; the error.
    pub state_error: Option<String>,
}

/// How an aggregator stands that is one of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leadership {
    /// Its name.
    pub name: HostId,
    /// It leads; otherwise it stands by.
    pub leads: bool,
    /// Who leads, where that is known.
    pub leader: Option<HostId>,
    /// The leader's epoch.
    pub epoch: Option<u64>,
    /// Who leads cannot be asked in etcd, or the leader's state cannot be written there; the error.
    pub error: Option<String>,
}

/// One job with its last decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    /// The job.
    pub status: JobStatus,
    /// The last decision, if one was taken.
    pub decision: Option<Decision>,
}

/// An error of the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The kind, for programs.
    pub code: ErrorCode,
    /// What is wrong and what to do, for people.
    pub message: String,
}

/// Kinds of API errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request cannot be understood or a field is out of range.
    Invalid,
    /// No such job.
    NotFound,
    /// The name is taken, or the job has ended.
    Conflict,
    /// The aggregator cannot do it now.
    Unavailable,
    /// Whoever asks may not.
    Forbidden,
}
