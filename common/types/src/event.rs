//! Events: what Gleaner did and why, for operators. In: agents and the controller make them. Out: the aggregator's
//! event log writes them, and `gleaner events` shows them.
//!
//! On disk and in `gleaner events --json` an event is one JSON object on a line, with the fields of [`EventRecord`] and
//! of its [`Event`] side by side and the event's name in `event`. `docs/events.md` describes every one; names and
//! fields are stable.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::application::{BalanceDecision, ResponseTime};
use crate::command::{Refusal, Target, Version};
use crate::format::UnknownFormat;
use crate::id::{ApplicationId, HostId, JobId, UserName, WorkloadId};
use crate::job::{Decision, EngineProgress, Goal};
use crate::report::{Absence, WorkloadKind};
use crate::text::harmless_json;
use crate::time::Timestamp;
use crate::units::{CoreShare, Dollars};

/// The source of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// The aggregator.
    Aggregator,
    /// The agent of a host. Its incarnation and sequence number make the event unique.
    Agent {
        /// The host.
        host: HostId,
        /// When the agent started, in milliseconds since the Unix epoch.
        incarnation: u64,
        /// Counts the agent's events from 1.
        sequence: u64,
    },
}

/// One line of the event log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// When it happened, by the clock of its source.
    pub at: Timestamp,
    /// Its source.
    pub source: EventSource,
    /// What happened.
    pub event: Event,
}

/// Format of the log's lines. A line without one is of the first. It is raised when a field that every line has changes
/// its meaning or has values that it had not; events and fields are added without.
pub const LINE_FORMAT: u64 = 1;

/// What every line of the event log says, whatever its event. A newer version logs events that this one does not know;
/// their lines are read by this and shown as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventStamp {
    /// When it happened, by the clock of its source.
    pub at: Timestamp,
    /// When it was logged, by the aggregator's clock. `None` where it is not known: a line of an agent that an
    /// older version wrote.
    pub logged: Option<Timestamp>,
    /// Its source.
    pub source: EventSource,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The aggregator started.
    AggregatorStarted {
        /// Its version.
        version: String,
        /// Unfinished jobs in its store.
        jobs_resumed: u32,
    },
    /// The aggregator stops in an orderly way.
    AggregatorStopped {},
    /// The event log could not be written for a while; events were kept in memory meanwhile.
    EventLogRecovered {
        /// Events that waited.
        delayed: u64,
        /// Events of the aggregator that were dropped for lack of room. Agents keep their own.
        lost: u64,
        /// The error.
        error: String,
    },
    /// A connection was refused.
    PeerRefused {
        /// Its address.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A message of a connected agent was refused.
    MessageRefused {
        /// The host of the certificate.
        host: HostId,
        /// Why.
        reason: String,
    },
    /// An agent connected or reports again.
    HostJoined {
        /// Its host.
        host: HostId,
        /// CPUs.
        cores: u32,
        /// It may act.
        acting: bool,
        /// Protections that are missing there.
        weaknesses: Vec<String>,
    },
    /// An agent is disconnected or silent.
    HostLost {
        /// Its host.
        host: HostId,
        /// Why.
        reason: String,
    },
    /// An operator holds a host: its volunteer stops, and no workload on it is limited.
    HostHeld {
        /// The host.
        host: HostId,
        /// Until when; `None` is until it is released.
        until: Option<Timestamp>,
    },
    /// The hold of a host ended.
    HostReleased {
        /// The host.
        host: HostId,
        /// Why.
        reason: String,
    },
    /// A job was accepted.
    JobSubmitted {
        /// The job.
        job: JobId,
        /// Its goal.
        goal: Goal,
        /// Its tasks, where the engine knows.
        tasks: u32,
        /// Who submitted it, where that is known.
        #[serde(default)]
        user: Option<UserName>,
    },
    /// A job waits.
    JobWaiting {
        /// The job.
        job: JobId,
        /// For what.
        reason: String,
    },
    /// A job runs on its dedicated capacity alone, to learn its rate.
    JobProfiling {
        /// The job.
        job: JobId,
        /// For how long, in seconds.
        period_s: f64,
    },
    /// A size was decided. The record holds candidates, scores and the limit that bound.
    JobSized {
        /// The decision.
        decision: Decision,
    },
    /// By the last estimate a job will miss its deadline or its budget.
    GoalAtRisk {
        /// The job.
        job: JobId,
        /// What is expected, in a sentence.
        expectation: String,
    },
    /// A job that was at risk is expected to meet its goal again.
    GoalBackInReach {
        /// The job.
        job: JobId,
    },
    /// A job ended.
    JobEnded {
        /// The job.
        job: JobId,
        /// How: `completed`, `failed` or `cancelled`.
        outcome: String,
        /// Details of a failure.
        reason: Option<String>,
        /// Seconds from submission.
        elapsed_s: f64,
        /// Deadline met, where there was one.
        deadline_met: Option<bool>,
        /// Cost.
        cost: Dollars,
        /// CPU time used, in core-seconds.
        harvested_core_s: f64,
        /// The engine's last report.
        progress: Option<EngineProgress>,
    },
    /// An application's description was applied, new or changed.
    ApplicationApplied {
        /// The application.
        application: ApplicationId,
        /// Mean response time it should have, in milliseconds.
        target_ms: f64,
    },
    /// An application was removed; its limits are released.
    ApplicationRemoved {
        /// The application.
        application: ApplicationId,
    },
    /// The kind of a source's answer changed: it has a mean again, or says why not.
    ResponseTimeChanged {
        /// The application.
        application: ApplicationId,
        /// The source's answer.
        response: ResponseTime,
    },
    /// Shares of an application were moved.
    SharesMoved {
        /// The decision with its inputs.
        decision: BalanceDecision,
    },
    /// An application was slower than its target by a tenth or more, three control intervals in a row.
    TargetMissed {
        /// The application.
        application: ApplicationId,
        /// Its mean response time, in milliseconds.
        mean_ms: f64,
        /// Its target.
        target_ms: f64,
    },
    /// An application that missed its target meets it again.
    TargetMet {
        /// The application.
        application: ApplicationId,
    },
    /// An attempt of a task failed or lost its slot.
    TaskFailed {
        /// The job.
        job: JobId,
        /// Its number in the list, from 1.
        task: u32,
        /// Which attempt, from 1.
        attempt: u32,
        /// How it ended.
        how: String,
        /// It will be tried again.
        retried: bool,
    },
    /// A plan broke a rule of the independent checker and was not dispatched. This is a bug in Gleaner.
    PlanRejected {
        /// The rule and the numbers.
        violation: String,
    },
    /// An agent refused a command.
    CommandRefused {
        /// The host.
        host: HostId,
        /// The target.
        target: Target,
        /// The command's version.
        version: Version,
        /// Why.
        reason: Refusal,
        /// In words.
        detail: String,
    },
    /// An agent applied a command only in part.
    CommandShortfall {
        /// The host.
        host: HostId,
        /// The target.
        target: Target,
        /// What could not be set.
        shortfalls: Vec<String>,
    },
    /// An agent started.
    AgentStarted {
        /// Its version.
        version: String,
        /// It may act.
        acting: bool,
        /// Knobs restored because an earlier run had not.
        knobs_restored: u32,
    },
    /// An agent stops in an orderly way.
    AgentStopped {
        /// Knobs restored.
        knobs_restored: u32,
    },
    /// A foreground workload was found.
    WorkloadAppeared {
        /// The workload.
        workload: WorkloadId,
        /// What it is.
        kind: WorkloadKind,
    },
    /// A foreground workload no longer exists.
    WorkloadVanished {
        /// The workload.
        workload: WorkloadId,
    },
    /// A foreground workload has another name.
    WorkloadRenamed {
        /// Before.
        from: WorkloadId,
        /// Now.
        to: WorkloadId,
    },
    /// A sensor has no value, or has values again.
    SensorChanged {
        /// Which.
        sensor: String,
        /// Why it is absent; `None` when it is back.
        absent: Option<Absence>,
    },
    /// The guard shrank or froze the volunteer because the foreground wanted the CPU. At most one event a
    /// second; `shrinks` and `freezes` count all since the last.
    GuardActed {
        /// CPU of the foreground that made it act.
        foreground: CoreShare,
        /// What the volunteer may use now.
        allowance: CoreShare,
        /// Shrinks since the last event.
        shrinks: u64,
        /// Freezes since the last event.
        freezes: u64,
        /// From the sample that showed the demand to the limit in force, in milliseconds: the slowest.
        reaction_ms: f64,
    },
    /// The command that is this host's volunteer ended although the volunteer runs, or could not be started.
    VolunteerCommandEnded {
        /// How, or why not.
        how: String,
        /// Until it is started again, in seconds.
        again_in_s: f64,
    },
    /// Another program wrote a knob that Gleaner manages. Gleaner does not overwrite it.
    ForeignWrite {
        /// The knob's file.
        knob: String,
        /// What Gleaner had set.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Two workloads claim one knob or cgroup. Neither is limited by it.
    KnobContested {
        /// The knob or the cgroup.
        knob: String,
        /// A workload that claims it.
        first: WorkloadId,
        /// Another one.
        second: WorkloadId,
    },
    /// The agent's record of what it must restore cannot be used, so it only observes.
    LedgerRefused {
        /// The file.
        file: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A command's lease ran out and the target was restored.
    LeaseExpired {
        /// The target.
        target: Target,
        /// The command's version.
        version: Version,
    },
    /// A knob could not be restored. An operator must check it.
    RestoreFailed {
        /// The knob's file.
        knob: String,
        /// What it should be.
        wanted: String,
        /// Why not.
        error: String,
    },
    /// Reports were dropped because the aggregator could not be reached.
    ReportsDropped {
        /// How many since the last such event.
        count: u64,
    },
    /// An operator invited a host.
    HostInvited {
        /// The host.
        host: HostId,
        /// When the invitation expires.
        expires: Timestamp,
        /// It replaces an older one.
        replaced: bool,
    },
    /// An operator withdrew an invitation.
    InvitationWithdrawn {
        /// The host.
        host: HostId,
    },
    /// A host got its first certificate, by an invitation.
    HostEnrolled {
        /// The host.
        host: HostId,
        /// Address it came from.
        peer: String,
        /// Until when the certificate holds.
        expires: Timestamp,
    },
    /// An attempt to join was refused.
    JoinRefused {
        /// Address it came from.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A connected agent got its next certificate.
    CertificateRenewed {
        /// The host.
        host: HostId,
        /// Until when the certificate holds.
        expires: Timestamp,
    },
    /// An agent could not renew its certificate; it tries again.
    CertificateNotRenewed {
        /// Why.
        reason: String,
        /// Until when the certificate it has holds.
        expires: Timestamp,
    },
    /// An operator revoked a host.
    HostRevoked {
        /// The host.
        host: HostId,
        /// Its certificates issued until then are not accepted any more.
        through: Timestamp,
    },
    /// The aggregator read its certificates and keys again.
    CertificatesReloaded {
        /// Until when its own certificate holds.
        expires: Timestamp,
        /// Why the old ones stay, if they do.
        error: Option<String>,
    },
    /// An operator gave an order. Questions are not logged.
    OperatorRequest {
        /// The user's number.
        uid: u32,
        /// The user's name.
        user: String,
        /// What, in the words of the command line.
        request: String,
        /// `done`, or `refused: ` with the reason.
        outcome: String,
    },
    /// The aggregator's own certificate expires soon.
    CertificateExpiring {
        /// When.
        expires: Timestamp,
    },
    /// An aggregator of a newer epoch commands the host from now on; those of older ones are refused.
    EpochRaised {
        /// The highest epoch before.
        from: u64,
        /// Now.
        to: u64,
    },
    /// A deposed aggregator still sends commands; they are refused. Logged once per epoch.
    OldEpochRefused {
        /// Its epoch.
        epoch: u64,
        /// The highest that has commanded the host.
        highest: u64,
    },
    /// This aggregator leads from now on, where several are configured.
    LeadershipGained {
        /// The aggregator, by the name in its config.
        name: HostId,
        /// Its epoch, which every command of it carries.
        epoch: u64,
        /// Where its state comes from: `etcd`, `own store` or `nowhere`.
        state_from: String,
    },
    /// This aggregator lost leadership: it stops commanding and exits, to stand by when it is started again.
    LeadershipLost {
        /// The aggregator.
        name: HostId,
        /// The epoch it led in.
        epoch: u64,
        /// Why.
        reason: String,
    },
    /// A foreground workload is slower beside the volunteer than the budget allows: the whole interval is above it.
    HarmOverBudget {
        /// The workload.
        workload: WorkloadId,
        /// Estimate of the harm, in percent.
        mean_percent: f64,
        /// Lower bound.
        low_percent: f64,
        /// Upper bound.
        high_percent: f64,
        /// The budget.
        budget_percent: f64,
    },
    /// The harm of a workload that was over its budget is within it again: the whole interval is below it.
    HarmWithinBudget {
        /// The workload.
        workload: WorkloadId,
        /// Estimate of the harm, in percent.
        mean_percent: f64,
        /// Lower bound.
        low_percent: f64,
        /// Upper bound.
        high_percent: f64,
        /// The budget.
        budget_percent: f64,
    },
    /// How the volunteer is held for the harm it does has changed.
    ProtectionChanged {
        /// CPUs that are kept free of the volunteer.
        spare_cpus: u32,
        /// The part of the machine that the volunteer may have at most, in percent; 0 is that it does not run.
        share_percent: f64,
        /// Why, in a sentence.
        reason: String,
    },
    /// Somebody has more events than a day's share of the log: until the day ends, the rest is kept beside, where the oldest
    /// of all such go first.
    EventShareExceeded {
        /// Whose share: a host's name, `user` and a number, `strangers` or `decisions`.
        of: String,
        /// The host, where it is one.
        host: Option<HostId>,
    },
    /// An agent of a newer release sent an event that this release does not know. Nothing else of it is known.
    UnknownEvent {
        /// Its number on the wire.
        code: u16,
    },
    /// An operator holds all hosts, also those that join later: their volunteers stop, and no workload is limited.
    AllHostsHeld {
        /// Who: a user's name.
        by: String,
        /// Until when; `None` is until they are released.
        until: Option<Timestamp>,
    },
    /// The hold of all hosts ended. Hosts that are held by name stay held.
    AllHostsReleased {
        /// Why.
        reason: String,
    },
    /// An operator removed a host that was not connected: nothing is known of it any more.
    HostRemoved {
        /// The host.
        host: HostId,
        /// Who: a user's name.
        by: String,
    },
    /// An agent was stopped: it has put its host back and closed its connection.
    HostLeft {
        /// Its host.
        host: HostId,
        /// Why.
        reason: String,
    },
    /// Of a host's promises of free CPU more broke in the last day than their risk allows, and not by chance.
    PromisesBroken {
        /// The host.
        host: HostId,
        /// The part that may break, in percent (`forecast.risk`).
        risk_percent: f64,
        /// Windows of the last day that are over, none of which overlap.
        windows: u32,
        /// Those in which the promise was broken.
        broken: u32,
    },
    /// After [`Event::PromisesBroken`]: in the last day no more broke than may.
    PromisesKept {
        /// The host.
        host: HostId,
        /// The part that may break, in percent.
        risk_percent: f64,
        /// Windows of the last day that are over.
        windows: u32,
        /// Those in which the promise was broken.
        broken: u32,
    },
    /// An application's source had no answer for too long: its limits are released until that is over. Or the host of one of its
    /// tiers could not be acted on for as long: its limits there are.
    ApplicationReleased {
        /// The application.
        application: ApplicationId,
        /// The host that could not be acted on, where that is why; `None` where it is the source.
        host: Option<HostId>,
        /// Seconds of that.
        silent_s: f64,
    },
    /// An application was far too slow with its CPU used up; it got what was free on its hosts before its control interval
    /// ended.
    SurgeRelieved {
        /// The application.
        application: ApplicationId,
        /// What its source said.
        response: ResponseTime,
    },
    /// More of an application's CPU and disk changed nothing of its response time: its bottleneck is elsewhere. They are given
    /// back step by step.
    BottleneckElsewhere {
        /// The application.
        application: ApplicationId,
        /// Mean response time, in milliseconds.
        mean_ms: f64,
        /// The target.
        target_ms: f64,
    },
}

/// A line of an event log cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum EventLineError {
    /// It is not JSON, or a field has the wrong type.
    #[error("not a valid event")]
    Json(#[from] serde_json::Error),
    /// It is JSON, but not an event.
    #[error("not an event: {0}")]
    Shape(&'static str),
    /// A newer version wrote it: what it says here may mean something else there.
    #[error(transparent)]
    Newer(#[from] UnknownFormat),
}

impl Event {
    /// The name the log uses.
    #[must_use]
    pub fn name(&self) -> String {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields.keys().next().cloned().unwrap_or_default(),
            _ => String::new(),
        }
    }
}

/// The longest event, as [`EventRecord::to_json_line`] has it, and the longest answer to a command, as JSON, that an
/// aggregator takes of an agent, in bytes.
pub const LONGEST: usize = 16 << 10;

impl EventRecord {
    /// The record as one line of JSON, without the line's end, and without characters that act on a terminal.
    ///
    /// # Errors
    /// Never for records made by Gleaner; serde's error if a field cannot be expressed.
    pub fn to_json_line(&self) -> Result<String, serde_json::Error> {
        self.to_line(None)
    }

    /// The same line for the log, with the time when it was logged where that is not the event's own.
    ///
    /// # Errors
    /// As of [`EventRecord::to_json_line`].
    pub fn to_logged_line(&self, logged: Timestamp) -> Result<String, serde_json::Error> {
        self.to_line(Some(logged).filter(|logged| self.source != EventSource::Aggregator || *logged != self.at))
    }

    fn to_line(&self, logged: Option<Timestamp>) -> Result<String, serde_json::Error> {
        let mut line = Map::new();
        line.insert("time".into(), Value::String(self.at.to_string()));
        line.insert("at_ms".into(), self.at.0.into());
        if let Some(logged) = logged {
            line.insert("logged_ms".into(), logged.0.into());
        }
        line.insert("format".into(), LINE_FORMAT.into());
        match &self.source {
            EventSource::Aggregator => {
                line.insert("source".into(), "aggregator".into());
            }
            EventSource::Agent { host, incarnation, sequence } => {
                line.insert("source".into(), "agent".into());
                line.insert("agent".into(), host.as_str().into());
                line.insert("incarnation".into(), (*incarnation).into());
                line.insert("sequence".into(), (*sequence).into());
            }
        }
        if let Value::Object(event) = serde_json::to_value(&self.event)? {
            for (name, fields) in event {
                line.insert("event".into(), name.into());
                if let Value::Object(fields) = fields {
                    line.extend(fields);
                }
            }
        }
        Ok(harmless_json(&serde_json::to_string(&Value::Object(line))?))
    }

    /// The record of a line written by [`EventRecord::to_json_line`].
    ///
    /// # Errors
    /// [`EventLineError`] when the line is not JSON, not an event, or of a newer format.
    pub fn from_json_line(text: &str) -> Result<Self, EventLineError> {
        let Value::Object(mut line) = serde_json::from_str(text)? else {
            return Err(EventLineError::Shape("not an object"));
        };
        let (EventStamp { at, source, .. }, name) = EventStamp::take(&mut line)?;
        let event = serde_json::from_value(Value::Object(Map::from_iter([(name, Value::Object(line))])))?;
        Ok(Self { at, source, event })
    }
}

impl EventStamp {
    /// The stamp of a line, which may be of an event that is not known here.
    ///
    /// # Errors
    /// [`EventLineError`] when the line is not JSON, not an event, or of a newer format.
    pub fn from_json_line(text: &str) -> Result<Self, EventLineError> {
        match serde_json::from_str(text)? {
            Value::Object(mut line) => Ok(Self::take(&mut line)?.0),
            _ => Err(EventLineError::Shape("not an object")),
        }
    }

    /// Takes the stamp and the event's name out of a line. What is left are the event's fields.
    fn take(line: &mut Map<String, Value>) -> Result<(Self, String), EventLineError> {
        let format = line.remove("format").map_or(Some(1), |v| v.as_u64());
        let format = format.ok_or(EventLineError::Shape("no known `format`"))?;
        UnknownFormat::unless_within("line", 1..=LINE_FORMAT, format, None)?;
        let at = line.remove("at_ms").and_then(|v| v.as_u64()).ok_or(EventLineError::Shape("no `at_ms`"))?;
        line.remove("time");
        let logged = line.remove("logged_ms").and_then(|v| v.as_u64());
        let source = match line.remove("source").as_ref().and_then(Value::as_str) {
            Some("aggregator") => EventSource::Aggregator,
            Some("agent") => EventSource::Agent {
                host: serde_json::from_value(line.remove("agent").unwrap_or_default())?,
                incarnation: serde_json::from_value(line.remove("incarnation").unwrap_or_default())?,
                sequence: serde_json::from_value(line.remove("sequence").unwrap_or_default())?,
            },
            _ => return Err(EventLineError::Shape("no known `source`")),
        };
        match line.remove("event") {
            Some(Value::String(name)) => {
                let logged = logged.or((source == EventSource::Aggregator).then_some(at)).map(Timestamp);
                Ok((Self { at: Timestamp(at), logged, source }, name))
            }
            _ => Err(EventLineError::Shape("no `event`")),
        }
    }
}

#[cfg(test)]
mod tests;
