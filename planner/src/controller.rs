//! The controller: the one state machine that decides. Production, replay and simulation all drive
//! [`Controller::handle`]; equal inputs at equal times give equal outputs, byte for byte.
//!
//! In: one [`Input`] and the time. Out: [`Output`]s, each passed by the independent checker (`gleaner-plan-check`). Called
//! by the aggregator's shell, by `gleaner replay`, and by the simulator.
//!
//! State has three owners: `hosts`, `jobs` and `applications`. The controller hands each input to the owner of what it
//! is about, lets jobs move on, and then reconciles every host with what is wanted of it. What happens between two
//! evaluations of a job is deferred to the next one, but for a host that is lost: then the job waits again.

mod applications;
mod capacity;
mod gate;
mod held;
mod hosts;
mod interface;
mod jobs;
mod outputs;
mod unusable;

pub use held::HeldUntil;
pub use interface::{DiskCapacities, FleetHold, HostGlance, HostView, Input, Output, Settings};

use std::collections::BTreeMap;

use gleaner_plan_check::{KnownHost, View};
use gleaner_types::application::{ApplicationStatus, TierSpec};
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{Decision, JobSpec, JobStatus};
use gleaner_types::report::{HostFacts, HostReport};
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

use crate::advice::{self, Advice, Candidate, History, Question};
use crate::sizing::policy::{Adaptive, SizingPolicy};
use applications::Applications;
use capacity::Capacity;
use hosts::{Host, Hosts, VolunteerWanted, Wanted};
use interface::seconds;
use jobs::Jobs;
use outputs::Outputs;

/// Everything the aggregator knows and decides by. Serialisable, so that a restart continues from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    settings: Settings,
    hosts: Hosts,
    jobs: Jobs,
    applications: Applications,
    /// The latest time of an input.
    latest: Timestamp,
}

impl Controller {
    /// A controller that knows nothing. `epoch` distinguishes its commands from those of other states.
    #[must_use]
    pub fn new(settings: Settings, epoch: Timestamp) -> Self {
        Self {
            settings,
            hosts: Hosts::new(epoch.0),
            jobs: Jobs::default(),
            applications: Applications::default(),
            latest: epoch,
        }
    }

    /// The latest time of an input. Whoever goes on with this state must not give it an earlier one, or what it waits
    /// for would be as far away as the clock went back.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        self.latest
    }

    /// The epoch of its commands.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.hosts.epoch()
    }

    /// Commands in this epoch from now on. It must be later than any before.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.hosts.set_epoch(epoch);
    }

    /// What another aggregator needs to go on in its place: everything but what hosts say again when they join it.
    #[must_use]
    pub fn for_standby(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            hosts: self.hosts.for_standby(),
            jobs: self.jobs.clone(),
            applications: self.applications.clone(),
            latest: self.latest,
        }
    }

    /// The times and weights it works by.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Works by other ones from now on: a restart with a changed config.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// All jobs it remembers, oldest first.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &JobStatus> {
        self.jobs.iter()
    }

    /// A job.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<&JobStatus> {
        self.jobs.get(id)
    }

    /// The last decision about a job.
    #[must_use]
    pub fn last_decision(&self, id: &JobId) -> Option<&Decision> {
        self.jobs.last_decision(id)
    }

    /// All applications, by name.
    pub fn applications(&self) -> impl Iterator<Item = &ApplicationStatus> {
        self.applications.iter()
    }

    /// An application.
    #[must_use]
    pub fn application(&self, name: &ApplicationId) -> Option<&ApplicationStatus> {
        self.applications.get(name)
    }

    /// Static facts of a host and whether its agent is connected.
    #[must_use]
    pub fn host_facts(&self, id: &HostId) -> Option<(&HostFacts, bool)> {
        self.hosts.get(id).map(|host| (host.facts(), host.is_connected()))
    }

    /// Until when a host is held, by its name or with all others, if it is.
    #[must_use]
    pub fn held_until(&self, id: &HostId) -> Option<HeldUntil> {
        self.hosts.held_until(id)
    }

    /// Until when a host is held by its name, if it is.
    #[must_use]
    pub fn held_by_name(&self, id: &HostId) -> Option<HeldUntil> {
        self.hosts.own_hold(id)
    }

    /// Hosts that are held by name, also those that have not joined.
    pub fn held_hosts(&self) -> impl Iterator<Item = &HostId> {
        self.hosts.held_hosts()
    }

    /// The hold of all hosts, if there is one.
    #[must_use]
    pub fn all_held(&self) -> Option<&FleetHold> {
        self.hosts.all_held()
    }

    /// The oldest unfinished job that has a host, or that names it in its description.
    #[must_use]
    pub fn job_needing(&self, id: &HostId) -> Option<&JobId> {
        self.jobs.needing(id)
    }

    /// All hosts it remembers, by name.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostView> {
        let view = |(id, host): (&HostId, &Host)| HostView {
            host: id.clone(),
            connected: host.is_connected(),
            left: host.has_left(),
            silent: host.is_silent(),
            revoked: false,
            incarnation: host.incarnation(),
            facts: host.facts().clone(),
            reported: host.reported(),
            report: host.report().cloned(),
            targets: host
                .all_commanded()
                .iter()
                .map(|sent| (sent.command.target.clone(), sent.command.clone(), sent.outcome.clone()))
                .collect(),
            job: self.jobs.holder_id(id).cloned(),
            held_until: self.held_until(id),
            unreadable: None,
        };
        self.hosts.iter().map(view).collect()
    }

    /// The same at a glance, without copying a thousand reports.
    pub fn glances(&self) -> impl Iterator<Item = HostGlance<'_>> {
        self.hosts.iter().map(|(id, host)| HostGlance {
            host: id,
            connected: host.is_connected(),
            left: host.has_left(),
            silent: host.is_silent(),
            facts: host.facts(),
            report: host.report(),
            breaks_promises: host.breaks_promises(),
            leases: host.leases(),
            held_until: self.held_until(id),
        })
    }

    /// How many cores the hosts could give, by their forecasts as they stand and by how those did so far.
    #[must_use]
    pub fn advise(&self, question: Question, histories: &BTreeMap<HostId, History>) -> Advice {
        let about = |(id, host): (&HostId, &Host)| {
            let left = self.applications.left_on(id, &self.hosts);
            let contended = left.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let candidate = Candidate {
                host: id,
                facts: host.facts(),
                report: host.fresh_report(),
                history: histories.get(id),
                left: left.map_err(|_| contended.as_str()),
                held_until: self.held_until(id),
                job: self.jobs.holder_id(id),
            };
            advice::about(&question, &candidate)
        };
        advice::total(question, self.hosts.iter().map(about).collect())
    }

    /// Takes what happened and says what to do. Never fails: what makes no sense changes nothing.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Output> {
        self.handle_sizing_by(&mut Adaptive, input, now)
    }

    /// [`handle`](Self::handle) where jobs on clusters are sized by another policy than the one that ships: for experiments.
    /// What the policy keeps is no part of the controller's state.
    pub fn handle_sizing_by(&mut self, policy: &mut dyn SizingPolicy, input: Input, now: Timestamp) -> Vec<Output> {
        let mut outputs = Outputs::default();
        self.latest = self.latest.max(now);
        // A thousand hosts report and acknowledge every second; what follows from that is for the tick.
        let reconciles = !matches!(input, Input::Report(_) | Input::Acked { .. });
        self.take(input, now, &mut outputs);
        if reconciles {
            let capacity = Capacity::new(&self.hosts, &self.applications);
            self.jobs.advance(capacity, &self.settings, policy, now, &mut outputs);
            self.reconcile_hosts(now, &mut outputs);
        }
        gate::verified(self, outputs.into_vec())
    }

    /// Hands an input to the owner of what it is about.
    fn take(&mut self, input: Input, now: Timestamp, outputs: &mut Outputs) {
        let Self { settings, hosts, jobs, applications, .. } = self;
        match input {
            Input::HostJoined { host, incarnation, facts } => hosts.joined(host, incarnation, *facts, now, outputs),
            Input::HostLost { host, reason } => hosts.lost(&host, false, reason, outputs),
            Input::HostLeft { host, reason } => hosts.lost(&host, true, reason, outputs),
            Input::Report(report) => self.take_report(*report, now, outputs),
            Input::Acked { host, ack } => {
                if let Some(detail) = hosts.acked(&host, ack, outputs) {
                    jobs.refused(&host, &detail, now, outputs);
                }
            }
            Input::JobSubmitted(spec) => jobs.submitted(*spec, settings.ended_jobs_kept, now, outputs),
            Input::JobCancelled { job } => jobs.cancelled(&job, now, outputs),
            Input::Progress { job, progress } => jobs.progress(&job, progress, hosts, now),
            Input::EngineEnded { job, end, progress } => jobs.engine_ended(&job, end, progress, now, outputs),
            Input::HostHeld { host, until } => hosts.hold(host, until, now, outputs),
            Input::HostReleased { host } => hosts.release(&host, "an operator released it", outputs),
            Input::ApplicationApplied(spec) => applications.applied(*spec, hosts, outputs),
            Input::ApplicationRemoved { application } => applications.removed(&application, hosts, outputs),
            Input::Responded { application, response } => {
                applications.responded(&application, response, hosts, settings, now, outputs);
            }
            Input::AllHostsHeld(hold) => hosts.hold_all(hold, now, outputs),
            Input::AllHostsReleased { by } => hosts.release_all(format!("{by} released them"), outputs),
            Input::HostRemoved { host, by } => {
                if jobs.needing(&host).is_none() {
                    hosts.remove(host, by, outputs);
                }
            }
            Input::Resumed => {
                hosts.disconnect_all();
                jobs.resumed(now);
                applications.resumed(hosts);
            }
            Input::Tick => {
                applications.control(hosts, settings, now, outputs);
                hosts.find_silent(settings.report_stale_after_s, now, outputs);
                hosts.end_holds(now, outputs);
                jobs.observe(hosts, now);
            }
        }
    }

    /// Books a report to everybody who has part of its host.
    fn take_report(&mut self, report: HostReport, now: Timestamp, outputs: &mut Outputs) {
        if !self.hosts.accept(&report, now, outputs) {
            return;
        }
        if let Some(facts) = self.hosts.facts(&report.host) {
            self.jobs.account(&report, &facts.cpu_model);
        }
        self.applications.account(&report, &self.hosts);
        let dedicated = self.jobs.dedicates(&report.host);
        self.hosts.keep(report, dedicated, now, outputs);
    }

    /// Brings every host into the state that jobs, applications and operators want it in.
    fn reconcile_hosts(&mut self, now: Timestamp, outputs: &mut Outputs) {
        let lease = seconds(self.settings.command_lease_s);
        for id in self.hosts.connected() {
            let limits = self.applications.wanted_limits(&id, &self.hosts);
            let wanted = Wanted { limits, volunteer: self.wanted_volunteer(&id, now) };
            self.hosts.reconcile(&id, wanted, lease, now, outputs);
        }
    }

    /// What a host's volunteer should do: run with 100 % for every slot in use or wanted, as much as there is.
    fn wanted_volunteer(&self, id: &HostId, now: Timestamp) -> VolunteerWanted {
        if self.hosts.is_held(id) {
            return VolunteerWanted::Stop;
        }
        match self.jobs.slots_on(id) {
            Some(slots) => {
                // Where applications contend, what runs on loses its CPU at once, and its host with the next decision.
                let left = self.applications.left_on(id, &self.hosts).unwrap_or(CoreShare::ZERO);
                VolunteerWanted::Run(CoreShare::from_cores(slots).min(left))
            }
            None if self.jobs.awaits(id, now) => VolunteerWanted::GoOn,
            None => VolunteerWanted::Stop,
        }
    }
}

impl View for Controller {
    fn host(&self, id: &HostId) -> Option<KnownHost<'_>> {
        self.host_facts(id).map(|(facts, connected)| KnownHost { facts, connected })
    }

    fn is_held(&self, id: &HostId) -> bool {
        self.held_until(id).is_some()
    }

    fn job(&self, id: &JobId) -> Option<&JobSpec> {
        self.job(id).map(|status| &status.spec)
    }

    fn jobs_on(&self, host: &HostId) -> impl Iterator<Item = &JobId> {
        self.jobs.sharing(host)
    }

    fn tiers(&self, host: &HostId) -> impl Iterator<Item = &TierSpec> {
        let tiers = self.applications().flat_map(|application| &application.spec.tiers);
        tiers.filter(move |tier| tier.host == *host)
    }
}

#[cfg(test)]
mod tests;
