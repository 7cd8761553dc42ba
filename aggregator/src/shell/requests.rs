//! The requests of operators' tools. In: a request. Out: inputs for the controller, and the answer. Called by the core
//! loop.

use std::time::Duration;

use gleaner_planner::advice::{Advice, Question, total};
use gleaner_planner::controller::{HostView, Input};
use gleaner_types::application::ApplicationSpec;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{JobSpec, JobStatus};
use gleaner_types::task::TaskUser;
use gleaner_wire::GuestNames;

use super::Shell;
use crate::applications::shown;
use crate::operators::Operator;
use crate::standby::Leading;
use gleaner_api::{ApiError, ErrorCode, HostGuests, JobDetail, Overview, Request, Response, SubmitCluster, SubmitJob};

impl Shell {
    pub(super) fn answer(&mut self, operator: &Operator, request: Request) -> Result<Response, ApiError> {
        Ok(match request {
            Request::Overview => Response::Overview(Box::new(self.overview())),
            Request::Hosts => Response::Hosts(self.hosts()),
            Request::Guests => Response::Guests(self.guests()),
            Request::Jobs => Response::Jobs(self.controller.jobs().rev().cloned().collect()),
            Request::Job { job } => {
                let status = self.job_called(&job).cloned().ok_or_else(|| self.no_such_job(&job))?;
                let decision = self.controller.last_decision(&status.spec.id).cloned();
                Response::Job(Box::new(JobDetail { status, decision }))
            }
            Request::Submit(submit) => self.submit(operator, *submit)?,
            Request::SubmitCluster(submit) => self.submit_cluster(operator, &submit)?,
            Request::Cancel { job } => self.cancel(&job)?,
            Request::Hold { host, for_s, unknown } => self.hold(host, for_s, unknown)?,
            Request::Release { host } => self.release(host)?,
            Request::HoldAll { for_s } => self.hold_all(operator, for_s)?,
            Request::ReleaseAll => self.release_all(operator)?,
            Request::RemoveHost { host } => self.remove_host(operator, host)?,
            Request::Apply(spec) => self.apply(*spec)?,
            Request::Remove { application } => self.remove(application)?,
            Request::Applications => Response::Applications(self.controller.applications().map(shown).collect()),
            Request::Application { application } => {
                let status = self.controller.application(&application).map(shown);
                Response::Application(Box::new(status.ok_or_else(|| self.no_such_application(&application))?))
            }
            Request::Respond { application, mean_ms } => {
                if self.controller.application(&application).is_none() {
                    return Err(self.no_such_application(&application));
                }
                self.sources.push(&application, mean_ms)?;
                Response::Responded
            }
            Request::Invite { host, for_s, addresses } => self.invite(&host, for_s, addresses)?,
            Request::Uninvite { host } => self.uninvite(&host)?,
            Request::Revoke { host, unknown } => self.revoke(&host, unknown)?,
            Request::Invitations => self.invitations(),
            // The API server reads these itself.
            Request::Events { .. } | Request::Audit { .. } => return Err(invalid("that is a stream".into())),
            Request::Advise(question) => {
                question.check().map_err(|error| invalid(error.to_string()))?;
                Response::Advice(Box::new(self.advice(question)))
            }
        })
    }

    /// Advice. A host that is shut out can give nothing, and is left out.
    pub(super) fn advice(&self, question: Question) -> Advice {
        let mut hosts = self.controller.advise(question, self.histories.of_hosts()).hosts;
        let is_connected = |host: &HostId| self.connections.contains_key(host);
        hosts.retain(|own| is_connected(&own.host) || !self.enrolment.admissions.is_revoked(&own.host));
        total(question, hosts)
    }

    /// All hosts. What one said whose certificates are revoked is shown no more.
    pub(super) fn hosts(&self) -> Vec<HostView> {
        let mut hosts = self.controller.hosts();
        let is_shut_out = |host: &HostView| !host.connected && self.enrolment.admissions.is_revoked(&host.host);
        for host in hosts.iter_mut().filter(|host| is_shut_out(host)) {
            (host.report, host.revoked) = (None, true);
        }
        hosts
    }

    /// What the workloads of the hosts are called that say it. Of a host that is shut out or not known any more, none.
    fn guests(&self) -> Vec<HostGuests> {
        let is_shown = |host: &HostId| {
            let is_connected = self.connections.contains_key(host);
            let is_shut_out = !is_connected && self.enrolment.admissions.is_revoked(host);
            !is_shut_out && self.controller.host_facts(host).is_some()
        };
        let of = |(host, names): (&HostId, &GuestNames)| {
            let GuestNames { guests, unmatched } = names.clone();
            HostGuests { host: host.clone(), guests, unmatched }
        };
        self.guests.iter().filter(|(host, _)| is_shown(host)).map(of).collect()
    }

    fn overview(&self) -> Overview {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let held_ahead = self.controller.held_hosts().filter(|host| self.controller.host_facts(host).is_none());
        Overview {
            software: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started,
            now: self.clock.now(),
            local_host: self.local_host.clone(),
            hosts_connected: count(self.connections.len()),
            all_held: self.controller.all_held().cloned().map(Box::new),
            held_ahead: held_ahead.cloned().collect(),
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

    /// The identifier of a job that asks for a name: the name itself, or, where ended jobs had it, the name with the number
    /// of the run. A free one for a job that asks for none.
    fn name(&mut self, wanted: Option<&JobId>) -> Result<JobId, ApiError> {
        let Some(job) = wanted else { return self.free_name() };
        if job.is_of_a_run() {
            return Err(invalid(format!("name: {job} is the form of a later run of a job; choose another name")));
        }
        let runs = || self.controller.jobs().filter(|other| other.spec.id.name() == job.as_str());
        if let Some(other) = runs().find(|other| !other.phase.is_final()) {
            let (id, phase) = (&other.spec.id, other.phase.word());
            let message =
                format!("there is a job {id} already, and it is {phase}; choose another name, or wait for its end");
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        match runs().map(|other| other.spec.id.run()).max() {
            None => Ok(job.clone()),
            Some(last) => JobId::of_run(job.as_str(), last.saturating_add(1)).map_err(|_| {
                invalid(format!(
                    "name: {job} was used, and is too long for the number of another run; choose another name"
                ))
            }),
        }
    }

    /// The job that is meant: by its identifier, or by its name, which is the newest of that name. `NAME.run-1` is the first.
    fn job_called(&self, called: &JobId) -> Option<&JobStatus> {
        let is_meant = |job: &&JobStatus| {
            let id = &job.spec.id;
            id.name() == called.name() && (!called.is_of_a_run() || id.run() == called.run())
        };
        self.controller.jobs().rev().find(is_meant)
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

    /// Cancels the job that is meant: by its identifier, or by its name the run that has not ended, of which there is at most one.
    pub(super) fn cancel(&mut self, called: &JobId) -> Result<Response, ApiError> {
        let goes_on = |job: &&JobStatus| job.spec.id.name() == called.as_str() && !job.phase.is_final();
        let status = self.controller.jobs().rev().find(goes_on).or_else(|| self.job_called(called));
        let status = status.ok_or_else(|| self.no_such_job(called))?;
        let (job, user) = (status.spec.id.clone(), status.spec.user.clone());
        if status.phase.is_final() {
            let message = format!("job {job} has ended: {}", status.phase.word());
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        self.decide(Input::JobCancelled { job: job.clone() });
        self.stored("the job is cancelled")?;
        // Only now: a crash before would otherwise leave a job without its records.
        self.engines.forget(&job);
        Ok(Response::Cancelled { job, user })
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
            return Err(self.no_such_application(&application));
        }
        self.sources.remove(&application);
        self.decide(Input::ApplicationRemoved { application: application.clone() });
        self.stored(&format!("application {application} is removed"))?;
        Ok(Response::Removed)
    }

    /// Stores the state after an order, or says that a restart would not know of it.
    pub(super) fn stored(&mut self, done: &str) -> Result<(), ApiError> {
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

pub(super) fn invalid(message: String) -> ApiError {
    ApiError { code: ErrorCode::Invalid, message }
}
