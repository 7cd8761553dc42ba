//! The controller: the one state machine that decides. Production, replay and simulation all drive
//! [`Controller::handle`]; equal inputs at equal times give equal outputs, byte for byte.
//!
//! A job waits until its host can run it, is profiled on its dedicated capacity alone, and is then sized every
//! evaluation interval (RHIC §4.1). What happens between two evaluations is deferred to the next one, but for a
//! host that is lost: then the job waits again.

mod applications;
mod cluster;
mod hosts;
mod interface;
mod jobs;

pub use interface::{HostGlance, HostView, Input, Output, Settings};

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_types::application::ApplicationStatus;
use gleaner_types::command::Version;
use gleaner_types::event::Event;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{Decision, JobStatus};
use gleaner_types::report::HostFacts;
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::advice::{self, Advice, Candidate, History, Question};
use crate::check;
use applications::{Managed, Reserved};
use hosts::Host;
use jobs::Job;

/// Everything the aggregator knows and decides by. Serialisable, so that a restart continues from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    settings: Settings,
    version: Version,
    hosts: BTreeMap<HostId, Host>,
    /// Hosts an operator wants left alone, until when. A host may be held before it joins.
    holds: BTreeMap<HostId, Timestamp>,
    /// In order of submission.
    jobs: Vec<Job>,
    /// Foreground applications with response-time targets.
    applications: BTreeMap<ApplicationId, Managed>,
    /// What applications have of each host.
    reserved: BTreeMap<HostId, Reserved>,
    /// When shares are moved next, and whether response times were asked for.
    next_control: Timestamp,
    asked: bool,
    /// The latest time it was told.
    latest: Timestamp,
}

impl Controller {
    /// A controller that knows nothing. `epoch` distinguishes its commands from those of other states.
    #[must_use]
    pub fn new(settings: Settings, epoch: Timestamp) -> Self {
        let version = Version { epoch: epoch.0, number: 0 };
        Self {
            settings,
            version,
            hosts: BTreeMap::new(),
            holds: BTreeMap::new(),
            jobs: Vec::new(),
            applications: BTreeMap::new(),
            reserved: BTreeMap::new(),
            next_control: Timestamp(0),
            asked: false,
            latest: epoch,
        }
    }

    /// The latest time it was told. Whoever goes on with this state must not tell it an earlier one, or what it waits
    /// for would be as far away as the clock went back.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        self.latest
    }

    /// The epoch of its commands.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.version.epoch
    }

    /// Commands in this epoch from now on. It must be later than any before.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.version = Version { epoch, number: 0 };
    }

    /// What another aggregator needs to go on in its place: everything but what hosts say again when they join it.
    #[must_use]
    pub fn for_standby(&self) -> Self {
        Self {
            settings: self.settings,
            version: self.version,
            hosts: self.hosts.iter().map(|(id, host)| (id.clone(), host.disconnected())).collect(),
            holds: self.holds.clone(),
            jobs: self.jobs.clone(),
            applications: self.applications.clone(),
            reserved: self.reserved.clone(),
            next_control: self.next_control,
            asked: self.asked,
            latest: self.latest,
        }
    }

    /// The times it works by.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Works by other times from now on: a restart with a changed config.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// All jobs it remembers, oldest first.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &JobStatus> {
        self.jobs.iter().map(|job| &job.status)
    }

    /// A job.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<&JobStatus> {
        self.jobs.iter().map(|job| &job.status).find(|status| status.spec.id == *id)
    }

    /// The last decision about a job.
    #[must_use]
    pub fn last_decision(&self, id: &JobId) -> Option<&Decision> {
        self.jobs.iter().find(|job| job.status.spec.id == *id)?.decision.as_ref()
    }

    /// All applications, by name.
    pub fn applications(&self) -> impl Iterator<Item = &ApplicationStatus> {
        self.applications.values().map(|managed| &managed.status)
    }

    /// An application.
    #[must_use]
    pub fn application(&self, name: &ApplicationId) -> Option<&ApplicationStatus> {
        self.applications.get(name).map(|managed| &managed.status)
    }

    /// Static facts of a host and whether its agent is connected.
    #[must_use]
    pub fn host_facts(&self, id: &HostId) -> Option<(&HostFacts, bool)> {
        self.hosts.get(id).map(|host| (&host.facts, host.connected))
    }

    /// Until when a host is held, if it is.
    #[must_use]
    pub fn held_until(&self, id: &HostId) -> Option<Timestamp> {
        self.holds.get(id).copied()
    }

    /// All hosts it remembers, by name.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostView> {
        self.hosts
            .iter()
            .map(|(id, host)| HostView {
                host: id.clone(),
                connected: host.connected,
                incarnation: host.incarnation,
                facts: host.facts.clone(),
                reported: host.reported,
                report: host.report.clone(),
                targets: host
                    .told
                    .iter()
                    .map(|told| (told.command.target.clone(), told.command.clone(), told.outcome.clone()))
                    .collect(),
                job: self.holder(id).map(|job| job.status.spec.id.clone()),
                held_until: self.held_until(id),
            })
            .collect()
    }

    /// The same at a glance, without copying a thousand reports.
    pub fn glances(&self) -> impl Iterator<Item = HostGlance<'_>> {
        self.hosts.iter().map(|(id, host)| HostGlance {
            host: id,
            connected: host.connected,
            silent: host.connected && host.silent,
            facts: &host.facts,
            report: host.report.as_ref(),
            leases: host.leases(),
            held_until: self.held_until(id),
        })
    }

    /// How many cores the hosts could give, by their forecasts as they stand and by how those did so far.
    #[must_use]
    pub fn advise(&self, question: Question, histories: &BTreeMap<HostId, History>) -> Advice {
        let about = |(id, host): (&HostId, &Host)| {
            let left = self.left_by_applications(id);
            let candidate = Candidate {
                host: id,
                facts: &host.facts,
                report: host.report.as_ref().filter(|_| host.connected && !host.silent),
                history: histories.get(id),
                left: left.as_ref().copied().map_err(String::as_str),
                held_until: self.held_until(id),
                job: self.holder(id).map(|job| &job.status.spec.id),
            };
            advice::about(&question, &candidate)
        };
        advice::total(question, self.hosts.iter().map(about).collect())
    }

    /// Takes what happened and says what to do. Never fails: what makes no sense changes nothing.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.latest = self.latest.max(now);
        // A thousand hosts report and acknowledge every second; what follows from that is for the tick.
        let settles = !matches!(input, Input::Report(_) | Input::Acked { .. });
        match input {
            Input::HostJoined { host, incarnation, facts } => {
                self.host_joined(host, incarnation, *facts, now, &mut outputs);
            }
            Input::HostLost { host, reason } => self.host_lost(&host, reason, &mut outputs),
            Input::Report(report) => self.report(*report, now, &mut outputs),
            Input::Acked { host, ack } => self.acked(&host, ack, now, &mut outputs),
            Input::JobSubmitted(spec) => self.job_submitted(*spec, now, &mut outputs),
            Input::JobCancelled { job } => self.job_cancelled(&job, now, &mut outputs),
            Input::Progress { job, progress } => self.progress(&job, progress, now),
            Input::EngineEnded { job, end, progress } => self.engine_ended(&job, end, progress, now, &mut outputs),
            Input::HostHeld { host, until } => self.hold(host, until, now, &mut outputs),
            Input::HostReleased { host } => self.release(&host, "an operator released it", &mut outputs),
            Input::ApplicationApplied(spec) => self.application_applied(*spec, &mut outputs),
            Input::ApplicationRemoved { application } => self.application_removed(&application, &mut outputs),
            Input::Responded { application, response } => self.responded(&application, response, now, &mut outputs),
            Input::Resumed => self.resumed(now),
            Input::Tick => {
                self.control_applications(now, &mut outputs);
                self.find_silent_hosts(now, &mut outputs);
                self.end_holds(now, &mut outputs);
                self.observe_clusters(now);
            }
        }
        if settles {
            self.advance_jobs(now, &mut outputs);
            self.settle_hosts(now, &mut outputs);
        }
        self.verified(outputs)
    }

    /// The last gate: what the independent checker objects to is not done.
    fn verified(&self, outputs: Vec<Output>) -> Vec<Output> {
        let mut verified = Vec::with_capacity(outputs.len());
        for output in outputs {
            match check::output(self, &output) {
                Ok(()) => verified.push(output),
                Err(violation) => verified.push(Output::Event(Event::PlanRejected { violation })),
            }
        }
        verified
    }

    /// The job whose turn it is on a host: the oldest that has not ended.
    fn holder(&self, host: &HostId) -> Option<&Job> {
        self.jobs.iter().find(|job| !job.status.phase.is_final() && job.uses(host))
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
