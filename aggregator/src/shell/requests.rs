//! The requests of operators' tools. In: a request. Out: inputs for the controller, and the answer. Called by the core
//! loop.

use std::time::Duration;

use gleaner_planner::controller::{HostView, Input};
use gleaner_types::application::ApplicationSpec;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{JobSpec, JobStatus};
use gleaner_types::task::TaskUser;

use super::Shell;
use crate::applications::{no_such as no_such_application, shown};
use crate::operators::Operator;
use crate::standby::Leading;
use gleaner_api::{ApiError, ErrorCode, JobDetail, Overview, Request, Response, SubmitCluster, SubmitJob};

/// Longest hold, in seconds. Chosen: who wants a host left alone for a year takes it out of the fleet.
const LONGEST_HOLD_S: f64 = 366.0 * 86_400.0;

impl Shell {
    pub(super) fn answer(&mut self, operator: &Operator, request: Request) -> Result<Response, ApiError> {
        Ok(match request {
            Request::Overview => Response::Overview(self.overview()),
            Request::Hosts => Response::Hosts(self.hosts()),
            Request::Jobs => Response::Jobs(self.controller.jobs().rev().cloned().collect()),
            Request::Job { job } => {
                let status = self.controller.job(&job).cloned().ok_or_else(|| no_such(&job))?;
                let decision = self.controller.last_decision(&job).cloned();
                Response::Job(Box::new(JobDetail { status, decision }))
            }
            Request::Submit(submit) => self.submit(operator, *submit)?,
            Request::SubmitCluster(submit) => self.submit_cluster(operator, &submit)?,
            Request::Cancel { job } => self.cancel(job)?,
            Request::Hold { host, for_s } => self.hold(host, for_s)?,
            Request::Release { host } => self.release(host)?,
            Request::Apply(spec) => self.apply(*spec)?,
            Request::Remove { application } => self.remove(application)?,
            Request::Applications => Response::Applications(self.controller.applications().map(shown).collect()),
            Request::Application { application } => {
                let status = self.controller.application(&application).map(shown);
                Response::Application(Box::new(status.ok_or_else(|| no_such_application(&application))?))
            }
            Request::Respond { application, mean_ms } => {
                self.sources.push(&application, mean_ms)?;
                Response::Responded
            }
            Request::Invite { host, for_s, addresses } => self.invite(&host, for_s, addresses)?,
            Request::Uninvite { host } => self.uninvite(&host)?,
            Request::Revoke { host } => self.revoke(&host)?,
            Request::Invitations => self.invitations(),
            // The API server reads these itself.
            Request::Events { .. } | Request::Audit { .. } => return Err(invalid("that is a stream".into())),
            Request::Advise(question) => {
                question.check().map_err(|error| invalid(error.to_string()))?;
                Response::Advice(Box::new(self.controller.advise(question, &self.histories)))
            }
        })
    }

    /// All hosts. What one said whose certificates are revoked is shown no more.
    pub(super) fn hosts(&self) -> Vec<HostView> {
        let mut hosts = self.controller.hosts();
        let is_shut_out = |host: &HostView| !host.connected && self.enrolment.admissions.is_revoked(&host.host);
        for host in hosts.iter_mut().filter(|host| is_shut_out(host)) {
            host.report = None;
        }
        hosts
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
            leadership: self.leading.as_ref().map(Leading::view),
            event_log_error: self.events.error().map(str::to_owned),
            state_error: self.store_error.clone().or_else(|| self.journal.error().map(str::to_owned)),
        }
    }

    pub(super) fn submit(&mut self, operator: &Operator, submit: SubmitJob) -> Result<Response, ApiError> {
        let job = self.name(submit.job.as_ref())?;
        let busy = |status: &&JobStatus| {
            let output_dir = status.spec.engine.options.text("output_dir");
            !status.phase.is_final() && output_dir.is_some() && output_dir == submit.output_dir
        };
        if let Some(other) = self.controller.jobs().find(busy) {
            let message = format!("output_dir: job {} writes to it now; choose another", other.spec.id);
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        let user = TaskUser { uid: operator.uid, gid: operator.gid };
        let spec = self.engines.prepare(self.local_host.clone(), &job, submit, user)?;
        let output_dir = spec.engine.options.text("output_dir").unwrap_or_default();
        self.accept(JobSpec { user: operator.name(), ..spec })?;
        Ok(Response::Submitted { job, output_dir })
    }

    pub(super) fn submit_cluster(&mut self, operator: &Operator, submit: &SubmitCluster) -> Result<Response, ApiError> {
        let job = self.name(submit.name.as_ref())?;
        // What an older job of this name left behind, which nobody remembers any more, is not the new one's.
        self.engines.forget(&job);
        let spec = self.engines.prepare_cluster(&job, submit)?;
        let output_dir = spec.engine.options.text("working_dir").unwrap_or_default();
        self.accept(JobSpec { user: operator.name(), ..spec })?;
        Ok(Response::Submitted { job, output_dir })
    }

    /// Gives a job to the controller, once it is stored.
    ///
    /// # Errors
    /// [`ApiError`] if it cannot be stored; then it is not taken. In etcd it may be stored nevertheless: a leader that
    /// follows before the next state is stored there takes it.
    pub fn accept(&mut self, spec: JobSpec) -> Result<(), ApiError> {
        let job = spec.id.clone();
        self.decide(Input::JobSubmitted(Box::new(spec)));
        self.dirty = true;
        self.save(true);
        if let Some(error) = self.store_error.clone() {
            self.decide(Input::JobCancelled { job: job.clone() });
            self.engines.forget(&job);
            let message = match &self.leading {
                None => format!("the job is not taken: {error}"),
                Some(_) => format!(
                    "it is not known whether the job is taken: {error}; look for {job} with `gleaner job list` before \
                     you submit it again"
                ),
            };
            return Err(ApiError { code: ErrorCode::Unavailable, message });
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

    pub(super) fn cancel(&mut self, job: JobId) -> Result<Response, ApiError> {
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

    pub(super) fn control_interval(&self) -> Duration {
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
        self.save(true);
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

pub(super) fn invalid(message: String) -> ApiError {
    ApiError { code: ErrorCode::Invalid, message }
}
