//! What goes into the controller and what comes out.
//! Data only: the aggregator's shell and the simulator make [`Input`]s and carry [`Output`]s out; `status`, `top` and the
//! metrics read the views.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use gleaner_types::application::{ApplicationSpec, ResponseTime};
use gleaner_types::command::{Ack, Command, Outcome, Target};
use gleaner_types::event::Event;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{EngineAction, EngineEnd, EngineProgress, JobSpec};
use gleaner_types::report::{HostFacts, HostReport};
use gleaner_types::time::Timestamp;
use gleaner_types::units::BytesPerSec;

use super::held::HeldUntil;
use crate::pool::UserShares;

/// Times and weights the controller works by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Time between sizing decisions of a job, in seconds (RHIC §4.1: 60).
    pub evaluation_interval_s: f64,
    /// Time a job first runs on dedicated capacity alone, in seconds (RHIC §4.1: 60). Shortened to a
    /// tenth of the time to the deadline where that is less.
    pub profile_period_s: f64,
    /// Time between two decisions about the shares of applications, in seconds (BConf §4.6.3: 30).
    pub control_interval_s: f64,
    /// The shares of an application whose source has had no answer for so long are at their ceilings until that is over; so are
    /// those on a host that could not be acted on for so long, in seconds.
    #[serde(default = "response_outage_s")]
    pub response_outage_s: f64,
    /// How long a command holds without renewal, in seconds; renewed every third of it.
    pub command_lease_s: f64,
    /// A host without a report for this long is not offered to jobs, in seconds.
    pub report_stale_after_s: f64,
    /// Ended jobs remembered.
    pub ended_jobs_kept: u32,
    /// Weights of users among those whose jobs want the same hosts.
    #[serde(default)]
    pub users: UserShares,
    /// What the disks of hosts can do.
    #[serde(default)]
    pub disks: DiskCapacities,
}

/// Bandwidth of hosts' disks, reads and writes each, as far as an operator says it. Without it the shares that applications
/// may have of a disk are not divided between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DiskCapacities(BTreeMap<HostId, BytesPerSec>);

/// A disk's capacity that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not such as `h1=450`: a host's name and MB/s from 0.1 to 1000000, each host once")]
pub struct InvalidCapacity(String);

impl DiskCapacities {
    /// Nobody says anything.
    pub const NONE: Self = Self(BTreeMap::new());

    /// From entries `HOST=MB_S`.
    ///
    /// # Errors
    /// The first entry that is wrong.
    pub fn from_entries(entries: &[String]) -> Result<Self, InvalidCapacity> {
        let mut capacities = BTreeMap::new();
        for entry in entries {
            let invalid = || InvalidCapacity(entry.chars().take(60).collect());
            let (host, rate) = entry.rsplit_once('=').ok_or_else(invalid)?;
            let host = HostId::new(host.trim()).map_err(|_| invalid())?;
            let rate = rate.trim().parse::<f64>().ok().filter(|rate| (0.1..=1e6).contains(rate)).ok_or_else(invalid)?;
            if capacities.insert(host, BytesPerSec::clamped(rate * 1e6)).is_some() {
                return Err(invalid());
            }
        }
        Ok(Self(capacities))
    }

    /// That of a host.
    #[must_use]
    pub fn of(&self, host: &HostId) -> Option<BytesPerSec> {
        self.0.get(host).copied()
    }
}

/// Chosen: ten control intervals. A restart of a source is shorter.
const fn response_outage_s() -> f64 {
    300.0
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            evaluation_interval_s: 60.0,
            profile_period_s: 60.0,
            control_interval_s: 30.0,
            response_outage_s: response_outage_s(),
            command_lease_s: 15.0,
            report_stale_after_s: 5.0,
            ended_jobs_kept: 200,
            users: UserShares::EQUAL,
            disks: DiskCapacities::NONE,
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// An agent was welcomed.
    HostJoined {
        /// Its host.
        host: HostId,
        /// When the agent started.
        incarnation: u64,
        /// Static facts, levers among them.
        facts: Box<HostFacts>,
    },
    /// The connection to an agent is gone.
    HostLost {
        /// Its host.
        host: HostId,
        /// Why.
        reason: String,
    },
    /// A report of a connected host. Its `host` is the one of the certificate.
    Report(Box<HostReport>),
    /// An answer to a command.
    Acked {
        /// The host.
        host: HostId,
        /// The answer.
        ack: Ack,
    },
    /// An operator submitted a job. The shell has checked that the id is free.
    JobSubmitted(Box<JobSpec>),
    /// An operator cancelled a job.
    JobCancelled {
        /// The job.
        job: JobId,
    },
    /// An engine's report, about once a second while a job is running.
    Progress {
        /// The job.
        job: JobId,
        /// The report.
        progress: EngineProgress,
    },
    /// An engine is through with a job.
    EngineEnded {
        /// The job.
        job: JobId,
        /// How.
        end: EngineEnd,
        /// Its last report.
        progress: Option<EngineProgress>,
    },
    /// An operator wants a host left alone until then: no volunteer runs on it and no workload is limited.
    HostHeld {
        /// The host; it need not have joined.
        host: HostId,
        /// Until when; `None` is until it is released.
        until: Option<Timestamp>,
    },
    /// An operator gives a held host back.
    HostReleased {
        /// The host.
        host: HostId,
    },
    /// An operator describes an application, or describes one anew.
    ApplicationApplied(Box<ApplicationSpec>),
    /// An operator takes an application away: its limits are given back.
    ApplicationRemoved {
        /// The application.
        application: ApplicationId,
    },
    /// What an application's source said.
    Responded {
        /// The application.
        application: ApplicationId,
        /// What.
        response: ResponseTime,
    },
    /// The aggregator was started on a stored state: engines hold nothing, no agent is connected.
    Resumed,
    /// Time passed. The shell sends one every second.
    Tick,
    /// An operator wants all hosts left alone, also those that join later.
    AllHostsHeld(FleetHold),
    /// An operator ends that. Hosts that are held by name stay held.
    AllHostsReleased {
        /// Who: a user's name.
        by: String,
    },
    /// An operator removes a host that is not connected and that no job has.
    HostRemoved {
        /// The host.
        host: HostId,
        /// Who: a user's name.
        by: String,
    },
    /// The connection to an agent is gone, because the agent was stopped: its host is as it was found.
    HostLeft {
        /// Its host.
        host: HostId,
        /// Why.
        reason: String,
    },
}

/// An operator's hold of all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetHold {
    /// Who: a user's name.
    pub by: String,
    /// Since when.
    pub since: Timestamp,
    /// Until when; `None` is until it is released.
    pub until: Option<Timestamp>,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Send a command to an agent.
    Command {
        /// Its host.
        host: HostId,
        /// The command.
        command: Command,
    },
    /// Tell an engine.
    Engine {
        /// The job.
        job: JobId,
        /// What.
        action: EngineAction,
    },
    /// Ask an application's source; the answer is wanted within two seconds.
    AskResponseTime {
        /// The application.
        application: ApplicationId,
    },
    /// Write to the event log.
    Event(Event),
}

/// A host as the controller knows it: for `gleaner hosts` and `gleaner top`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// The host.
    pub host: HostId,
    /// An agent is connected.
    pub connected: bool,
    /// None is, because the agent was stopped.
    #[serde(default)]
    pub left: bool,
    /// One is, and has not reported for too long: it counts as lost.
    #[serde(default)]
    pub silent: bool,
    /// An operator revoked its certificates, and it is not connected.
    #[serde(default)]
    pub revoked: bool,
    /// When its agent started.
    pub incarnation: u64,
    /// Static facts.
    pub facts: HostFacts,
    /// When the last report arrived; before the first, when its agent was welcomed.
    pub reported: Option<Timestamp>,
    /// The last report.
    pub report: Option<HostReport>,
    /// What the host was told last, per target, and what it answered.
    pub targets: Vec<(Target, Command, Option<Outcome>)>,
    /// The job its volunteer works for.
    pub job: Option<JobId>,
    /// An operator wants it, or all hosts, left alone until then.
    pub held_until: Option<HeldUntil>,
    /// Why something of it is missing here, where what is known of it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// The little of a host that figures over the whole fleet need, borrowed: a fleet is looked at often.
#[derive(Debug, Clone, Copy)]
pub struct HostGlance<'a> {
    /// The host.
    pub host: &'a HostId,
    /// An agent is connected.
    pub connected: bool,
    /// None is, because the agent was stopped.
    pub left: bool,
    /// Its agent is connected and has not reported for too long.
    pub silent: bool,
    /// Static facts.
    pub facts: &'a HostFacts,
    /// The last report.
    pub report: Option<&'a HostReport>,
    /// More of its promises break than their risk allows.
    pub breaks_promises: bool,
    /// Commands under a lease in force.
    pub leases: usize,
    /// An operator wants it, or all hosts, left alone until then.
    pub held_until: Option<HeldUntil>,
}

/// A duration of so many seconds; what is no duration is endless.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
