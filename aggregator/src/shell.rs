//! The core loop, and the only owner of the controller. In: arrivals, in order. Out: each is journalled and given to
//! the controller, whose outputs are carried out. It has a thread of its own, because it blocks on the disk. Started by
//! the daemon.
//!
//! It is public for one reason: the whole-system simulation drives it, on a manual clock, as the daemon does.

mod enrolment;
mod holding;
mod operators;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_daemon::clock::Clock;
use gleaner_daemon::metrics::Page;
use gleaner_daemon::service::Watchdog;
use gleaner_planner::controller::{Controller, Input, Output, Settings};
use gleaner_types::application::ResponseTime;
use gleaner_types::error::chain;
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{EngineAction, EngineEnd, JobStatus};
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAggregator, GuestNames};
use tokio::sync::{mpsc, oneshot};
use tracing::Span;

use crate::applications::Sources;
use crate::engine::{EngineReport, Engines};
use crate::enrolment::Enrolment;
use crate::event_log::{EventLog, EventLogSettings};
use crate::histories::Histories;
use crate::journal::{Journal, JournalSettings};
use crate::metrics::{self, Counters, Outgoing, Pulse, Records};
use crate::standby::{LeaderLease, Leading};
use crate::store::{Store, StoreError};
use gleaner_api::Response;

pub use crate::arrival::{Arrival, Declined, Joined, Joining};
pub use crate::audit::Audit;
pub(crate) use operators::may_not_read;

/// Events of agents that may wait for the log.
pub const MAX_UNLOGGED: usize = 10_000;

/// Least time between two syncs of the event log while nothing else waits, so that an agent that ends need not wait for the
/// tick. Chosen: also a slow disk then takes a small part of the loop's time.
const BETWEEN_SYNCS: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Connection {
    id: u64,
    incarnation: u64,
    sender: mpsc::Sender<FromAggregator>,
    closer: oneshot::Sender<String>,
    /// It was given its next certificate.
    renewed: bool,
}

/// What the log lines of an arrival have in common. What a thousand hosts send every second has a span only where lines
/// of level debug are wanted.
fn span_of(arrival: &Arrival) -> Span {
    match arrival {
        Arrival::Joined(Joined { host, connection, .. })
        | Arrival::Lost { host, connection, .. }
        | Arrival::CertificateRequest { host, connection, .. } => tracing::info_span!("host", %host, connection),
        Arrival::Report(report) => tracing::debug_span!("host", host = %report.host),
        Arrival::Acked { host, ack } => {
            tracing::debug_span!("command", %host, target = ?ack.target, version = ?ack.version)
        }
        Arrival::Events { host, connection, .. } => tracing::debug_span!("host", %host, connection),
        Arrival::Engine(EngineReport::Progress { job, .. }) => tracing::debug_span!("job", %job),
        Arrival::Engine(EngineReport::Ended { job, .. }) => tracing::info_span!("job", %job),
        Arrival::Responded { application, .. } => tracing::debug_span!("control_interval", %application),
        _ => Span::none(),
    }
}

/// The same of a decision: one evaluation of a job, or one control interval of an application.
fn span_of_decision(event: &Event) -> Span {
    match event {
        Event::JobSized { decision } => {
            let span = tracing::info_span!("evaluation", job = %decision.job, number = decision.number);
            span.in_scope(|| tracing::debug!(size = decision.size, reason = decision.reason, "a size is decided"));
            span
        }
        Event::SharesMoved { decision } => {
            let (application, number) = (&decision.application, decision.number);
            let span = tracing::info_span!("control_interval", %application, number);
            span.in_scope(|| tracing::debug!(reason = decision.reason, "shares are decided"));
            span
        }
        _ => Span::none(),
    }
}

/// Everything the core loop owns.
#[derive(Debug)]
pub struct Shell {
    clock: Clock,
    started: Timestamp,
    local_host: HostId,
    controller: Controller,
    journal: Journal,
    events: EventLog,
    store: Store,
    engines: Engines,
    sources: Sources,
    /// Until when this aggregator may command.
    leader_lease: LeaderLease,
    /// What it has where it is one of several.
    leading: Option<Leading>,
    enrolment: Enrolment,
    audit: Audit,
    pulse: Arc<Pulse>,
    counters: Counters,
    connections: BTreeMap<HostId, Connection>,
    /// How the forecasts of each host did, for advice.
    histories: Histories,
    /// What each host's workloads are called. Not stored: each connection begins with it.
    guests: BTreeMap<HostId, GuestNames>,
    /// Events of agents that could not be logged yet.
    unlogged: VecDeque<(HostId, Vec<EventRecord>)>,
    /// Hosts of which events were logged since the last sync.
    unacknowledged: BTreeSet<HostId>,
    /// The state changed since it was stored.
    dirty: bool,
    /// Who may join may be stored here otherwise than it is: as another leader left it, or after a failure.
    admissions_dirty: bool,
    store_error: Option<String>,
    /// Makes default job names unique.
    jobs_named: u32,
}

/// What the core loop is made of.
pub struct Parts {
    /// The process's clock.
    pub clock: Clock,
    /// The machine the aggregator runs on, by its agent's name.
    pub local_host: HostId,
    /// The state it goes on from.
    pub controller: Controller,
    /// Records every input with its outputs.
    pub journal: Journal,
    /// What operators follow.
    pub events: EventLog,
    /// What survives a restart.
    pub store: Store,
    /// What runs jobs.
    pub engines: Engines,
    /// Takes what applications' sources answer; it comes back as [`Arrival::Responded`].
    pub responses: mpsc::Sender<(ApplicationId, ResponseTime)>,
    /// Who may join and who is shut out.
    pub enrolment: Enrolment,
    /// Records what operators order.
    pub audit: Audit,
}

impl Shell {
    /// A core loop that has not started.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { clock, local_host, controller, journal, events, store, mut engines, responses, enrolment, audit } =
            parts;
        engines.set_epoch(controller.epoch());
        Self {
            started: clock.now(),
            clock,
            local_host,
            controller,
            journal,
            events,
            store,
            engines,
            sources: Sources::new(responses),
            leader_lease: LeaderLease::alone(),
            leading: None,
            enrolment,
            audit,
            pulse: Arc::new(Pulse::new()),
            counters: Counters::default(),
            connections: BTreeMap::new(),
            histories: Histories::default(),
            guests: BTreeMap::new(),
            unlogged: VecDeque::new(),
            unacknowledged: BTreeSet::new(),
            dirty: true,
            admissions_dirty: true,
            store_error: None,
            jobs_named: 0,
        }
    }

    /// The same for one of several aggregators, which may command while the leader lease holds.
    #[must_use]
    pub(crate) fn leading(mut self, leading: Leading, leader_lease: LeaderLease) -> Self {
        let lease = leader_lease.clone();
        self.engines.tasks().only_while(move || lease.holds());
        (self.leading, self.leader_lease) = (Some(leading), leader_lease);
        self
    }

    /// The same with what was seen of hosts' forecasts before.
    #[must_use]
    pub(crate) fn with_histories(mut self, histories: Histories) -> Self {
        self.histories = histories;
        self
    }

    /// The same, telling how it is where that is asked already.
    #[must_use]
    pub(crate) fn with_pulse(mut self, pulse: Arc<Pulse>) -> Self {
        self.pulse = pulse;
        self
    }

    /// Runs until [`Arrival::Stop`] or [`Arrival::Deposed`]. Call it on a thread that may block.
    pub(crate) fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>, runtime: &tokio::runtime::Handle) {
        // Engines start tasks of the runtime.
        let _entered = runtime.enter();
        self.start();
        let mut watchdog = Watchdog::of_this_process();
        let mut synced = Instant::now();
        // Something arrives at least with every tick, once a second; a loop that hangs is for systemd to end.
        while let Some(arrival) = arrivals.blocking_recv() {
            watchdog.works();
            self.pulse.works();
            match arrival {
                Arrival::Stop => break,
                Arrival::Deposed(reason) => {
                    self.deposed(reason);
                    break;
                }
                // `Arrival::Deposed` follows. Until then nothing is decided; an answer channel that is dropped tells its
                // client that there will be no answer.
                _ if !self.leader_lease.holds() => {}
                arrival => self.take(arrival),
            }
            if arrivals.is_empty() && !self.unacknowledged.is_empty() && synced.elapsed() >= BETWEEN_SYNCS {
                self.acknowledge_events();
                synced = Instant::now();
            }
        }
        runtime.block_on(self.engines.shutdown());
        self.stop();
    }

    /// Goes on from the stored state. Call it where tasks of a runtime can be started, as [`Shell::take`].
    pub fn start(&mut self) {
        let jobs_resumed = self.controller.jobs().filter(|job| !job.phase.is_final()).count();
        self.log(Event::AggregatorStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            jobs_resumed: u32::try_from(jobs_resumed).unwrap_or(u32::MAX),
        });
        if let Some(Leading { name, epoch, state_from, .. }) = &self.leading {
            let (name, epoch, state_from) = (name.clone(), *epoch, (*state_from).to_owned());
            self.log(Event::LeadershipGained { name, epoch, state_from });
        }
        self.decide(Input::Resumed);
        self.give_up_jobs_of_others();
        // The epoch, before anything is commanded in it. One that was won is in etcd already.
        self.dirty = true;
        self.save(false);
        let interval = self.control_interval();
        for application in self.controller.applications() {
            self.sources.set(&application.spec, interval);
        }
    }

    /// Leaves everything on the disk.
    pub fn stop(mut self) {
        self.log(Event::AggregatorStopped {});
        self.dirty = true;
        self.save(true);
        self.events.sync();
        self.histories.stop(self.clock.now());
    }

    /// What is known and decided.
    #[must_use]
    pub const fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Events of agents that could not be logged yet.
    #[must_use]
    pub fn unlogged(&self) -> usize {
        self.unlogged.iter().map(|(_, records)| records.len()).sum()
    }

    /// Deals with one arrival, to the end.
    pub fn take(&mut self, arrival: Arrival) {
        let span = span_of(&arrival);
        let _entered = span.enter();
        match arrival {
            Arrival::Joined(joined) => self.joined(joined),
            Arrival::Lost { host, connection, reason, left } => {
                // The end of a connection that was replaced is no loss.
                if self.connections.get(&host).is_some_and(|current| current.id == connection) {
                    self.connections.remove(&host);
                    self.task_link_lost(&host, connection);
                    self.decide(match left {
                        true => Input::HostLeft { host, reason: "stopped".to_owned() },
                        false => Input::HostLost { host, reason },
                    });
                }
            }
            Arrival::Report(mut report) => {
                let cores = self.controller.host_facts(&report.host).map_or(0, |(facts, _)| facts.cores);
                self.counters.reported(&mut report, cores, self.clock.now());
                // What was on its way when the host was removed is not kept.
                if self.controller.host_facts(&report.host).is_some() {
                    self.histories.observe(&report);
                }
                self.decide(Input::Report(report));
            }
            Arrival::Guests { host, connection, names } => {
                if self.connections.get(&host).is_some_and(|current| current.id == connection) {
                    self.guests.insert(host, names);
                }
            }
            Arrival::Acked { host, ack } => self.decide(Input::Acked { host, ack }),
            Arrival::Events { host, connection, records } => self.agent_events(host, connection, records),
            Arrival::CertificateRequest { host, connection, request } => self.renew(&host, connection, &request),
            Arrival::Joining(joining) => self.joining(joining),
            Arrival::JoinFailed { peer, reason } => self.join_failed(peer, reason),
            Arrival::Reloaded(credentials) => self.reloaded(credentials),
            Arrival::Noticed(event) => self.log(event),
            Arrival::NotUnderstood(unknown) => self.counters.not_understood(unknown),
            Arrival::Engine(EngineReport::Progress { job, progress }) => self.decide(Input::Progress { job, progress }),
            Arrival::Engine(EngineReport::Ended { job, end, progress }) => {
                self.decide(Input::EngineEnded { job: job.clone(), end, progress });
                // Stored before its records go: a crash between the two must not run the job again.
                self.save(true);
                if self.store_error.is_none() {
                    self.engines.forget(&job);
                }
            }
            Arrival::Engine(EngineReport::Event(event)) => self.log(event),
            Arrival::Responded { application, response } => self.decide(Input::Responded { application, response }),
            Arrival::Api { operator, request, answer } => {
                let response = self.api(&operator, request).unwrap_or_else(Response::Error);
                // A client that has gone away needs no answer.
                _ = answer.send(response);
            }
            Arrival::Scraped { answer } => {
                // A client that has gone away needs no answer.
                _ = answer.send(self.page());
            }
            Arrival::Configured { settings, event_log, journal } => self.reload(settings, &event_log, &journal),
            Arrival::Tick => {
                self.decide(Input::Tick);
                self.save(false);
                self.engines.tasks().renew(self.clock.now());
                self.log_expiry();
                self.events.retry(self.clock.now());
                self.log_waiting();
                self.acknowledge_events();
                self.histories.keep(self.clock.now());
                self.pulse.beat(&self.records());
            }
            Arrival::Stop | Arrival::Deposed(_) => {}
        }
    }

    fn reload(&mut self, settings: Settings, event_log: &EventLogSettings, journal: &JournalSettings) {
        let interval = self.control_interval();
        self.controller.set_settings(settings);
        self.journal.begin_anew(journal.max_bytes, journal.files);
        self.events.set_size(event_log.max_bytes, event_log.files);
        if self.control_interval() != interval {
            let interval = self.control_interval();
            for application in self.controller.applications() {
                // A source that runs keeps the interval it was started with.
                self.sources.remove(&application.spec.name);
                self.sources.set(&application.spec, interval);
            }
        }
    }

    /// This aggregator lost leadership. It sends nothing more to agents and engines.
    fn deposed(&mut self, reason: String) {
        // What it stores after this goes to its own disk only.
        let Some(Leading { name, epoch, .. }) = self.leading.take() else { return };
        self.log(Event::LeadershipLost { name, epoch, reason });
        self.connections.clear();
    }

    /// The tasks and results of a job on one machine are there, with the aggregator that took it. Another one
    /// cannot go on with it, and lets it fail at once rather than wait for a machine that may be gone for good.
    fn give_up_jobs_of_others(&mut self) {
        if self.leading.is_none() {
            return;
        }
        let machine = |job: &JobStatus| job.spec.workers.slots().map(|slots| slots.host.clone());
        let unfinished = self.controller.jobs().filter(|job| !job.phase.is_final());
        let others = unfinished.filter_map(|job| Some((job.spec.id.clone(), machine(job)?)));
        let others: Vec<(JobId, HostId)> = others.filter(|(_, host)| *host != self.local_host).collect();
        for (job, host) in others {
            let reason = format!(
                "its tasks are on host {host}, whose aggregator lost leadership; submit it again, there or here, or as a job \
                 of an engine for clusters"
            );
            self.decide(Input::EngineEnded { job, end: EngineEnd::Broken { reason }, progress: None });
        }
    }

    fn log(&mut self, event: Event) {
        self.counters.noticed(&event);
        self.events.append(self.clock.now(), event);
    }

    fn joined(&mut self, joined: Joined) {
        let Joined {
            host,
            incarnation,
            facts,
            tasks_of_root,
            connection,
            version,
            certificate,
            sender,
            closer,
            events_through,
        } = joined;
        if let Some(reason) = self.enrolment.admissions.revoked(&host, certificate) {
            // The connection's task refuses the peer and says so in the log.
            _ = events_through.send(Err(Declined::Refused(reason)));
            return;
        }
        self.enrolment.known(&host, certificate);
        // An agent of an older release says none.
        self.guests.remove(&host);
        _ = events_through.send(Ok(self.events.through(&host, incarnation)));
        if host == self.local_host {
            self.engines.tasks().connected(connection, version, tasks_of_root, &sender);
        }
        let newer = Connection { id: connection, incarnation, sender, closer, renewed: false };
        if let Some(older) = self.connections.insert(host.clone(), newer) {
            // One that has ended by itself needs no closing.
            _ = older.closer.send("replaced by a newer connection".to_owned());
        }
        self.decide(Input::HostJoined { host, incarnation, facts });
    }

    /// A connection is gone: no tasks go out on it.
    fn task_link_lost(&self, host: &HostId, connection: u64) {
        if *host == self.local_host {
            self.engines.tasks().disconnected(connection);
        }
    }

    /// Logs an agent's events, which the next tick acknowledges. While the log cannot be written they wait;
    /// when too many do, the agent is disconnected and keeps its own.
    fn agent_events(&mut self, host: HostId, connection: u64, records: Vec<EventRecord>) {
        let is_current = self.connections.get(&host).is_some_and(|current| current.id == connection);
        // What the agent sent on a connection it has no more it sends again on the next. To log it now could leave a
        // gap before it that its number acknowledges. An agent that another one followed sends nothing again.
        if !is_current && (!self.connections.contains_key(&host) || self.is_of_connection(&host, &records)) {
            return;
        }
        // Behind those that wait: the log takes what is newer than all it has.
        self.unlogged.push_back((host, records));
        self.log_waiting();
        // The last that waits is the one that has just come: others leave only from the front.
        if self.unlogged() > MAX_UNLOGGED
            && let Some((host, _)) = self.unlogged.pop_back()
            && is_current
        {
            self.disconnect(&host, "its events cannot be logged now".to_owned());
        }
    }

    /// Ends a host's connection; false where there is none.
    fn disconnect(&mut self, host: &HostId, reason: String) -> bool {
        let Some(connection) = self.connections.remove(host) else { return false };
        self.task_link_lost(host, connection.id);
        // A connection that ends by itself at this moment needs no closing.
        _ = connection.closer.send(reason.clone());
        self.decide(Input::HostLost { host: host.clone(), reason });
        true
    }

    fn log_waiting(&mut self) {
        while let Some((host, records)) = self.unlogged.pop_front() {
            if let Err(error) = self.events.append_agents(self.clock.now(), &records) {
                tracing::debug!(%host, %error, "events of an agent wait");
                self.unlogged.push_front((host, records));
                return;
            }
            self.unacknowledged.insert(host);
        }
    }

    /// Puts the event log on the disk, with one sync for all that was logged since the last, and only then tells the agents
    /// what of theirs is in it.
    fn acknowledge_events(&mut self) {
        self.events.sync();
        if self.events.error().is_some() {
            return;
        }
        for host in std::mem::take(&mut self.unacknowledged) {
            let Some(incarnation) = self.connections.get(&host).map(|current| current.incarnation) else { continue };
            // Those of an earlier incarnation may come after a new one has joined, which counts its own.
            let through = self.events.through(&host, incarnation);
            if through > 0 && !self.send(&host, FromAggregator::EventsThrough(through)) {
                // The agent keeps its events until it hears of them.
                self.unacknowledged.insert(host);
            }
        }
    }

    fn is_of_connection(&self, host: &HostId, records: &[EventRecord]) -> bool {
        let of = |record: &EventRecord| match record.source {
            EventSource::Agent { incarnation, .. } => Some(incarnation),
            EventSource::Aggregator => None,
        };
        records.last().and_then(of) == self.connections.get(host).map(|connection| connection.incarnation)
    }

    /// A message that finds no room is dropped: commands are renewed, events are sent again.
    /// Returns `false` for a message that found no room on its connection.
    fn send(&mut self, host: &HostId, message: FromAggregator) -> bool {
        if matches!(message, FromAggregator::Command(_)) && !self.leader_lease.holds() {
            return true;
        }
        if let Some(connection) = self.connections.get(host)
            && let Err(error) = connection.sender.try_send(message)
        {
            tracing::debug!(%host, %error, "a message to an agent is dropped");
            self.counters.messages_dropped += 1;
            return false;
        }
        true
    }

    fn decide(&mut self, input: Input) {
        let now = self.clock.now();
        self.journal.prepare(&self.controller, now);
        let began = Instant::now();
        let outputs = self.controller.handle(input.clone(), now);
        self.counters.decided(metrics::kind(&input), &outputs, began.elapsed());
        self.dirty |= !outputs.is_empty() || !matches!(input, Input::Tick | Input::Report(_));
        self.journal.step(now, input, &outputs);
        for output in outputs {
            match output {
                Output::Command { host, command } => {
                    let (target, version) = (&command.target, command.version);
                    let _entered = tracing::debug_span!("command", %host, ?target, ?version).entered();
                    tracing::debug!("command goes out");
                    self.send(&host, FromAggregator::Command(command));
                }
                Output::Engine { job, action } => self.act(&job, action),
                Output::AskResponseTime { application } => self.sources.ask(&application),
                Output::Event(event) => {
                    let span = span_of_decision(&event);
                    span.in_scope(|| self.log(event));
                }
            }
        }
    }

    fn act(&mut self, job: &JobId, action: EngineAction) {
        let _entered = tracing::info_span!("job", %job).entered();
        if !self.leader_lease.holds() {
            return;
        }
        let Some(status) = self.controller.job(job) else { return };
        // To tell a batch system of the end of a job that it never had would begin it first.
        if action == EngineAction::Cancel && status.started.is_none() && status.spec.workers.hosts().is_some() {
            return;
        }
        let spec = status.spec.clone();
        self.engines.act(&spec, action);
    }

    /// Stores the state if it changed, and in etcd too where another aggregator may take over; with `wait` it is there
    /// when this returns. A failure is said once and tried again with the next change.
    fn save(&mut self, wait: bool) {
        let behind = self.leading.as_ref().and_then(|leading| leading.replica.error());
        if !self.dirty && behind.is_none() {
            self.store_error = None;
            return;
        }
        // Each whatever becomes of the other: with a full disk here, another aggregator can still go on from etcd.
        let here = self.save_here().map_err(|error| chain(&error));
        let replicated = match &self.leading {
            Some(leading) => leading.replica.save(&self.controller, &self.enrolment.admissions, wait),
            None => Ok(()),
        };
        let replicated = replicated.map_err(|error| chain(&error));
        let failures: Vec<String> = [here, replicated].into_iter().filter_map(Result::err).collect();
        if failures.is_empty() {
            (self.dirty, self.store_error) = (false, behind.filter(|_| !wait));
            return;
        }
        let error = failures.join("; ");
        if self.store_error.as_ref() != Some(&error) {
            tracing::error!("{error}");
        }
        self.store_error = Some(error);
        self.counters.store_failures += 1;
    }

    /// Stores what survives a restart on this machine.
    fn save_here(&mut self) -> Result<(), StoreError> {
        if self.admissions_dirty {
            self.store.save_admissions(&self.enrolment.admissions)?;
            self.admissions_dirty = false;
        }
        self.store.save(&self.controller)
    }

    fn records(&self) -> Records {
        Records {
            store_error: self.store_error.clone(),
            journal_error: self.journal.error().map(str::to_owned),
            event_log_error: self.events.error().map(str::to_owned),
            events: *self.events.appended().borrow(),
            events_waiting: self.events.waiting() + self.unlogged(),
            events_lost: self.events.lost(),
        }
    }

    fn page(&self) -> Page {
        let queues = || {
            self.connections.values().map(|connection| connection.sender.max_capacity() - connection.sender.capacity())
        };
        let outgoing = Outgoing {
            connections: self.connections.len(),
            waiting: queues().sum(),
            most_waiting: queues().max().unwrap_or(0),
        };
        let now = self.clock.now();
        metrics::page(&self.controller, &self.counters, &self.records(), &outgoing, self.started, now)
    }
}

#[cfg(test)]
pub(crate) mod tests;
