//! The core loop: the one owner of the controller. It takes what arrives, has the controller decide, journals,
//! and carries the outputs out. A thread of its own, so that the disk may block it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gleaner_common::application::{ApplicationSpec, ResponseTime};
use gleaner_common::clock::{Clock, Timestamp};
use gleaner_common::command::Ack;
use gleaner_common::event::{Event, EventRecord};
use gleaner_common::id::{ApplicationId, HostId, JobId};
use gleaner_common::job::{EngineAction, JobSpec, JobStatus};
use gleaner_common::report::{HostFacts, HostReport, VolunteerKind};
use gleaner_common::wire::FromAggregator;
use gleaner_planner::controller::{Controller, Input, Output};
use tokio::sync::{mpsc, oneshot};

use crate::api::{ApiError, ErrorCode, JobDetail, Overview, Request, Response, SubmitCluster, SubmitJob};
use crate::applications::{Sources, no_such as no_such_application};
use crate::engine::{EngineReport, Engines};
use crate::event_log::EventLog;
use crate::journal::Journal;
use crate::store::Store;

/// Events of agents that may wait for the log.
const MAX_UNLOGGED: usize = 10_000;

/// Something that arrived.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// An agent said hello.
    Joined(Joined),
    /// A connection ended.
    Lost { host: HostId, connection: u64, reason: String },
    /// A report.
    Report(Box<HostReport>),
    /// An answer to a command.
    Acked { host: HostId, ack: Ack },
    /// Events of an agent; once they are in the log, it is told so on its connection.
    Events { host: HostId, records: Vec<EventRecord> },
    /// Something the server noticed.
    Noticed(Event),
    /// An engine's report.
    Engine(EngineReport),
    /// What a source said of an application.
    Responded { application: ApplicationId, response: ResponseTime },
    /// A request of an operator's tool.
    Api { request: Request, answer: oneshot::Sender<Response> },
    /// A second passed.
    Tick,
    /// End in an orderly way.
    Stop,
}

/// A new connection of an agent.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) host: HostId,
    pub(crate) incarnation: u64,
    pub(crate) facts: Box<HostFacts>,
    /// Unique among connections.
    pub(crate) connection: u64,
    pub(crate) sender: mpsc::Sender<FromAggregator>,
    /// Receives the number through which the agent's events are in the log.
    pub(crate) events_through: oneshot::Sender<u64>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    sender: mpsc::Sender<FromAggregator>,
}

/// Everything the core loop owns.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) clock: Clock,
    pub(crate) started: Timestamp,
    pub(crate) local_host: HostId,
    pub(crate) controller: Controller,
    pub(crate) journal: Journal,
    pub(crate) events: EventLog,
    pub(crate) store: Store,
    pub(crate) engines: Engines,
    pub(crate) sources: Sources,
    connections: BTreeMap<HostId, Connection>,
    /// Events of agents that could not be logged yet.
    unlogged: VecDeque<(HostId, Vec<EventRecord>)>,
    /// The state changed since it was stored.
    dirty: bool,
    store_error: Option<String>,
    /// Makes default job names unique.
    jobs_named: u32,
}

/// What the core loop is made of.
pub(crate) struct Parts {
    pub(crate) clock: Clock,
    pub(crate) local_host: HostId,
    pub(crate) controller: Controller,
    pub(crate) journal: Journal,
    pub(crate) events: EventLog,
    pub(crate) store: Store,
    pub(crate) engines: Engines,
    pub(crate) sources: Sources,
}

impl Shell {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { clock, local_host, controller, journal, events, store, engines, sources } = parts;
        Self {
            started: clock.now(),
            clock,
            local_host,
            controller,
            journal,
            events,
            store,
            engines,
            sources,
            connections: BTreeMap::new(),
            unlogged: VecDeque::new(),
            dirty: true,
            store_error: None,
            jobs_named: 0,
        }
    }

    /// Runs until told to stop. Call it on a thread that may block.
    pub(crate) fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>, runtime: &tokio::runtime::Handle) {
        // Engines start tasks of the runtime.
        let _entered = runtime.enter();
        let jobs_resumed = self.controller.jobs().filter(|job| !job.phase.is_final()).count();
        self.log(Event::AggregatorStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            jobs_resumed: u32::try_from(jobs_resumed).unwrap_or(u32::MAX),
        });
        self.decide(Input::Resumed);
        let interval = self.control_interval();
        for application in self.controller.applications() {
            self.sources.set(&application.spec, interval);
        }
        while let Some(arrival) = arrivals.blocking_recv() {
            if matches!(arrival, Arrival::Stop) {
                break;
            }
            self.take(arrival);
        }
        runtime.block_on(self.engines.shutdown());
        self.log(Event::AggregatorStopped {});
        self.dirty = true;
        self.save();
        self.events.sync();
    }

    fn take(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Joined(joined) => self.joined(joined),
            Arrival::Lost { host, connection, reason } => {
                // The end of a connection that was replaced is no loss.
                if self.connections.get(&host).is_some_and(|current| current.id == connection) {
                    self.connections.remove(&host);
                    self.decide(Input::HostLost { host, reason });
                }
            }
            Arrival::Report(report) => self.decide(Input::Report(report)),
            Arrival::Acked { host, ack } => self.decide(Input::Acked { host, ack }),
            Arrival::Events { host, records } => self.agent_events(host, records),
            Arrival::Noticed(event) => self.log(event),
            Arrival::Engine(EngineReport::Progress { job, progress }) => self.decide(Input::Progress { job, progress }),
            Arrival::Engine(EngineReport::Ended { job, end, progress }) => {
                self.decide(Input::EngineEnded { job: job.clone(), end, progress });
                // Stored before its records go: a crash between the two must not run the job again.
                self.save();
                if self.store_error.is_none() {
                    self.engines.forget(&job);
                }
            }
            Arrival::Engine(EngineReport::Event(event)) => self.log(event),
            Arrival::Responded { application, response } => self.decide(Input::Responded { application, response }),
            Arrival::Api { request, answer } => {
                let response = self.answer(request).unwrap_or_else(Response::Error);
                // A client that has gone away needs no answer.
                _ = answer.send(response);
            }
            Arrival::Tick => {
                self.decide(Input::Tick);
                self.save();
                self.events.sync();
                for (host, records) in std::mem::take(&mut self.unlogged) {
                    self.agent_events(host, records);
                }
            }
            Arrival::Stop => {}
        }
    }

    fn log(&mut self, event: Event) {
        self.events.append(self.clock.now(), event);
    }

    fn joined(&mut self, joined: Joined) {
        let Joined { host, incarnation, facts, connection, sender, events_through } = joined;
        _ = events_through.send(self.events.through(&host, incarnation));
        // Dropping the older connection's sender ends that connection.
        self.connections.insert(host.clone(), Connection { id: connection, sender });
        self.decide(Input::HostJoined { host, incarnation, facts });
    }

    /// Logs an agent's events and acknowledges them. While the log cannot be written they wait, unacknowledged;
    /// when too many do, the agent is disconnected and keeps its own.
    fn agent_events(&mut self, host: HostId, records: Vec<EventRecord>) {
        match self.events.append_agents(self.clock.now(), &records) {
            Ok(through) => self.send(&host, FromAggregator::EventsThrough(through)),
            Err(error) => {
                tracing::debug!(%host, %error, "events of an agent wait");
                let waiting: usize = self.unlogged.iter().map(|(_, records)| records.len()).sum();
                if waiting + records.len() <= MAX_UNLOGGED {
                    self.unlogged.push_back((host, records));
                } else if self.connections.remove(&host).is_some() {
                    let reason = "its events cannot be logged now".to_owned();
                    self.decide(Input::HostLost { host, reason });
                }
            }
        }
    }

    /// A message that finds no room is dropped: commands are renewed, events are sent again.
    fn send(&self, host: &HostId, message: FromAggregator) {
        if let Some(connection) = self.connections.get(host)
            && let Err(error) = connection.sender.try_send(message)
        {
            tracing::debug!(%host, %error, "a message to an agent is dropped");
        }
    }

    fn decide(&mut self, input: Input) {
        let now = self.clock.now();
        self.journal.prepare(&self.controller, now);
        let outputs = self.controller.handle(input.clone(), now);
        self.dirty |= !outputs.is_empty() || !matches!(input, Input::Tick | Input::Report(_));
        self.journal.step(now, input, &outputs);
        for output in outputs {
            match output {
                Output::Command { host, command } => self.send(&host, FromAggregator::Command(command)),
                Output::Engine { job, action } => self.act(&job, action),
                Output::AskResponseTime { application } => self.sources.ask(&application),
                Output::Event(event) => self.log(event),
            }
        }
    }

    fn act(&mut self, job: &JobId, action: EngineAction) {
        let Some(spec) = self.controller.job(job).map(|status| status.spec.clone()) else { return };
        let volunteer = self
            .controller
            .host_facts(&self.local_host)
            .map_or(VolunteerKind::None, |(facts, _)| facts.levers.volunteer.clone());
        self.engines.act(&spec, action, &volunteer);
    }

    /// Stores the state if it changed. A failure is said once and tried again with the next change.
    fn save(&mut self) {
        if !self.dirty {
            return;
        }
        match self.store.save(&self.controller) {
            Ok(()) => (self.dirty, self.store_error) = (false, None),
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                if self.store_error.as_ref() != Some(&error) {
                    tracing::error!("{error}");
                }
                self.store_error = Some(error);
            }
        }
    }

    fn answer(&mut self, request: Request) -> Result<Response, ApiError> {
        Ok(match request {
            Request::Overview => Response::Overview(self.overview()),
            Request::Hosts => Response::Hosts(self.controller.hosts()),
            Request::Jobs => Response::Jobs(self.controller.jobs().rev().cloned().collect()),
            Request::Job { job } => {
                let status = self.controller.job(&job).cloned().ok_or_else(|| no_such(&job))?;
                let decision = self.controller.last_decision(&job).cloned();
                Response::Job(Box::new(JobDetail { status, decision }))
            }
            Request::Submit(submit) => self.submit(&submit)?,
            Request::SubmitCluster(submit) => self.submit_cluster(&submit)?,
            Request::Cancel { job } => self.cancel(job)?,
            Request::Hold { host, for_s } => self.hold(host, for_s)?,
            Request::Release { host } => self.release(host)?,
            Request::Apply(spec) => self.apply(*spec)?,
            Request::Remove { application } => self.remove(application)?,
            Request::Applications => Response::Applications(self.controller.applications().cloned().collect()),
            Request::Application { application } => {
                let status = self.controller.application(&application).cloned();
                Response::Application(Box::new(status.ok_or_else(|| no_such_application(&application))?))
            }
            Request::Respond { application, mean_ms } => {
                self.sources.push(&application, mean_ms)?;
                Response::Responded
            }
            // The API server reads the log itself.
            Request::Events { .. } => return Err(invalid("events are a stream".into())),
        })
    }

    fn overview(&self) -> Overview {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Overview {
            software: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started,
            now: self.clock.now(),
            local_host: self.local_host.clone(),
            hosts_connected: count(self.connections.len()),
            jobs_active: count(self.controller.jobs().filter(|job| !job.phase.is_final()).count()),
            event_log_error: self.events.error().map(str::to_owned),
            state_error: self.store_error.clone().or_else(|| self.journal.error().map(str::to_owned)),
        }
    }

    fn submit(&mut self, submit: &SubmitJob) -> Result<Response, ApiError> {
        let job = self.name(submit.job.as_ref())?;
        let busy = |status: &&JobStatus| {
            let output_dir = status.spec.engine.local().map(|local| &local.output_dir);
            !status.phase.is_final() && output_dir.is_some() && output_dir == submit.output_dir.as_ref()
        };
        if let Some(other) = self.controller.jobs().find(busy) {
            let message = format!("output_dir: job {} writes to it now; choose another", other.spec.id);
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        let spec = self.engines.prepare(&job, submit)?;
        let output_dir = spec.engine.local().map(|local| local.output_dir.clone()).unwrap_or_default();
        self.accept(spec)?;
        Ok(Response::Submitted { job, output_dir })
    }

    fn submit_cluster(&mut self, submit: &SubmitCluster) -> Result<Response, ApiError> {
        let job = self.name(submit.name.as_ref())?;
        let spec = crate::engine::prepare_cluster(&job, submit)?;
        self.accept(spec)?;
        let working_dir = submit.spark.as_ref().map_or(&submit.working_dir, |spark| &spark.working_dir);
        Ok(Response::Submitted { job, output_dir: working_dir.clone() })
    }

    /// Gives a job to the controller, once it is stored.
    fn accept(&mut self, spec: JobSpec) -> Result<(), ApiError> {
        let job = spec.id.clone();
        self.decide(Input::JobSubmitted(Box::new(spec)));
        self.dirty = true;
        self.save();
        if let Some(error) = self.store_error.clone() {
            self.decide(Input::JobCancelled { job: job.clone() });
            self.engines.forget(&job);
            return Err(ApiError { code: ErrorCode::Unavailable, message: format!("the job is not taken: {error}") });
        }
        Ok(())
    }

    /// The name a job asks for, if no other has it, or a free one.
    fn name(&mut self, wanted: Option<&JobId>) -> Result<JobId, ApiError> {
        let Some(job) = wanted else { return self.free_name() };
        if self.controller.job(job).is_some() {
            let message = format!("there is a job {job} already; choose another name");
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        Ok(job.clone())
    }

    fn free_name(&mut self) -> Result<JobId, ApiError> {
        loop {
            self.jobs_named += 1;
            let name = format!("job-{}-{}", self.started.0 / 1_000 % 1_000_000, self.jobs_named);
            let job = JobId::new(name).map_err(|e| invalid(e.to_string()))?;
            if self.controller.job(&job).is_none() {
                return Ok(job);
            }
        }
    }

    fn cancel(&mut self, job: JobId) -> Result<Response, ApiError> {
        let status = self.controller.job(&job).ok_or_else(|| no_such(&job))?;
        if status.phase.is_final() {
            let message = format!("job {job} has ended: {}", status.phase.word());
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        self.decide(Input::JobCancelled { job: job.clone() });
        self.stored("the job is cancelled")?;
        // Only now: a crash before would otherwise leave a job without its records.
        self.engines.forget(&job);
        Ok(Response::Cancelled)
    }
}

/// Longest hold, in seconds. Chosen: who wants a host left alone for a year takes it out of the fleet.
const LONGEST_HOLD_S: f64 = 366.0 * 86_400.0;

impl Shell {
    fn hold(&mut self, host: HostId, for_s: f64) -> Result<Response, ApiError> {
        let duration = Duration::try_from_secs_f64(for_s).ok().filter(|_| (1.0..=LONGEST_HOLD_S).contains(&for_s));
        let duration = duration.ok_or_else(|| invalid(format!("for_s: is {for_s}; it must be 1 s to 366 days")))?;
        let until = self.clock.now().after(duration);
        self.decide(Input::HostHeld { host: host.clone(), until });
        if self.controller.held_until(&host) != Some(until) {
            return Err(ApiError { code: ErrorCode::Unavailable, message: "too many hosts are held already".into() });
        }
        self.stored(&format!("host {host} is held"))?;
        Ok(Response::Held { until })
    }

    fn release(&mut self, host: HostId) -> Result<Response, ApiError> {
        if self.controller.held_until(&host).is_none() {
            let message = format!("host {host} is not held; `gleaner hosts` shows which are");
            return Err(ApiError { code: ErrorCode::NotFound, message });
        }
        self.decide(Input::HostReleased { host: host.clone() });
        self.stored(&format!("host {host} is released"))?;
        Ok(Response::Released)
    }

    fn control_interval(&self) -> Duration {
        Duration::from_secs_f64(self.controller.settings().control_interval_s)
    }

    fn apply(&mut self, spec: ApplicationSpec) -> Result<Response, ApiError> {
        crate::applications::check(&spec, self.controller.applications())?;
        self.sources.set(&spec, self.control_interval());
        let name = spec.name.clone();
        self.decide(Input::ApplicationApplied(Box::new(spec)));
        self.stored(&format!("application {name} is applied"))?;
        Ok(Response::Applied)
    }

    fn remove(&mut self, application: ApplicationId) -> Result<Response, ApiError> {
        if self.controller.application(&application).is_none() {
            return Err(no_such_application(&application));
        }
        self.sources.remove(&application);
        self.decide(Input::ApplicationRemoved { application: application.clone() });
        self.stored(&format!("application {application} is removed"))?;
        Ok(Response::Removed)
    }

    /// Stores the state after an order, or says that a restart would not know of it.
    fn stored(&mut self, done: &str) -> Result<(), ApiError> {
        self.dirty = true;
        self.save();
        match self.store_error.clone() {
            None => Ok(()),
            Some(error) => Err(ApiError {
                code: ErrorCode::Unavailable,
                message: format!("{done}, but a restart would not know: {error}"),
            }),
        }
    }
}

fn no_such(job: &JobId) -> ApiError {
    ApiError { code: ErrorCode::NotFound, message: format!("there is no job {job}; `gleaner job list` shows them") }
}

fn invalid(message: String) -> ApiError {
    ApiError { code: ErrorCode::Invalid, message }
}
