//! The life of a job: waiting, profiling, sized every evaluation interval, ended.

use std::collections::BTreeMap;

use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{
    Candidate, Decision, EngineAction, EngineEnd, EngineProgress, Goal, JobPhase, JobSpec, JobStatus, SlotSpec, Workers,
};
use gleaner_types::report::HostReport;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Dollars};
use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::{Controller, Output, seconds};
use crate::goal::Margins;
use crate::io_model::IoCurve;
use crate::productivity::{Yield, potential, slots_in_memory};
use crate::progress::{ProcessingRate, straggler_tail_s};
use crate::selection::{Offer, slots_by_host, slots_of};
use crate::sizing::{Choice, Response, Sizing};

/// After a host refused a job's commands the job waits this long before it tries again.
const RETRY_AFTER_S: f64 = 30.0;

/// Longest report interval that counts as productivity; a longer one means the agent did not run.
pub(super) const LONGEST_INTERVAL_S: f64 = 120.0;

/// A job and what was learned about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) status: JobStatus,
    pub(super) rate: ProcessingRate,
    yields: Yield,
    /// What only a job on a cluster has.
    pub(super) cluster: Option<Box<Cluster>>,
    /// Potential of the workers in use, as of the last report.
    potential: CoreShare,
    pub(super) profiled_until: Option<Timestamp>,
    pub(super) next_evaluation: Timestamp,
    /// Not tried again before this.
    retry_at: Timestamp,
    pub(super) costed: Timestamp,
    at_risk: bool,
    pub(super) decision: Option<Decision>,
}

impl Job {
    fn new(spec: JobSpec, now: Timestamp) -> Self {
        let deadline = match spec.goal {
            Goal::Deadline { within_s } => Some(now.after(seconds(within_s))),
            Goal::Cost { .. } | Goal::Energy => None,
        };
        let cluster = matches!(spec.workers, Workers::Hosts(_)).then(Box::default);
        let energy_wh = spec.power.filter(|_| cluster.is_some()).map(|_| 0.0);
        let status = JobStatus {
            spec,
            phase: JobPhase::Waiting { reason: String::new() },
            submitted: now,
            started: None,
            ended: None,
            progress: None,
            volunteers: 0,
            completion_estimate: None,
            deadline,
            cost: Dollars::ZERO,
            harvested_core_s: 0.0,
            energy_wh,
            decisions: 0,
        };
        Self {
            status,
            rate: ProcessingRate::default(),
            yields: Yield::default(),
            cluster,
            potential: CoreShare::ZERO,
            profiled_until: None,
            next_evaluation: now,
            retry_at: now,
            costed: now,
            at_risk: false,
            decision: None,
        }
    }

    pub(super) fn local(&self) -> Option<&SlotSpec> {
        self.status.spec.workers.slots()
    }

    /// It works, or will work, in the volunteer of this host.
    pub(super) fn uses(&self, host: &HostId) -> bool {
        match (self.local(), &self.cluster) {
            (Some(local), _) => local.host == *host,
            (None, Some(cluster)) => cluster.uses(host),
            (None, None) => false,
        }
    }

    /// Dedicated workers it has.
    pub(super) fn dedicated(&self) -> u32 {
        match &self.status.spec.workers {
            Workers::Slots(local) => local.dedicated_slots,
            Workers::Hosts(cluster) => u32::try_from(cluster.dedicated.len()).unwrap_or(u32::MAX),
        }
    }

    /// Workers it should have now: slots for engine `local`, hosts otherwise.
    pub(super) fn slots(&self) -> u32 {
        self.dedicated() + self.status.volunteers
    }

    pub(super) fn is_active(&self) -> bool {
        matches!(self.status.phase, JobPhase::Profiling | JobPhase::Running)
    }

    fn set_slots(&self, slots: u32) -> Output {
        let slots = self.local().map(|local| (local.host.clone(), slots)).into_iter().collect();
        Output::Engine { job: self.status.spec.id.clone(), action: EngineAction::SetSlots(slots) }
    }

    /// Lets the cost run up to `now`.
    pub(super) fn accrue(&mut self, now: Timestamp) {
        if self.is_active() {
            let (prices, elapsed_s) = (self.status.spec.prices, now.seconds_since(self.costed));
            let draining = self.cluster.as_ref().map_or(0, |cluster| cluster.draining.len());
            self.status.cost += prices.dedicated.over(elapsed_s, f64::from(self.dedicated()));
            self.status.cost += prices.volunteer.over(elapsed_s, f64::from(self.status.volunteers) + draining as f64);
        }
        self.costed = now;
    }

    /// How long to profile: the period, or a tenth of the time to the deadline where that is less.
    pub(super) fn profile_s(&self, period_s: f64, now: Timestamp) -> f64 {
        match self.status.deadline {
            Some(deadline) => period_s.min(deadline.seconds_since(now) / 10.0),
            None => period_s,
        }
    }

    fn end(&mut self, phase: JobPhase, now: Timestamp, outputs: &mut Vec<Output>) {
        self.accrue(now);
        let (outcome, reason) = match &phase {
            JobPhase::Failed { reason } => ("failed", Some(reason.clone())),
            other => (other.word(), None),
        };
        outputs.push(Output::Event(Event::JobEnded {
            job: self.status.spec.id.clone(),
            outcome: outcome.to_owned(),
            reason,
            elapsed_s: now.seconds_since(self.status.submitted),
            deadline_met: self.status.deadline.map(|deadline| phase == JobPhase::Completed && now <= deadline),
            cost: self.status.cost,
            harvested_core_s: self.status.harvested_core_s,
            progress: self.status.progress.clone(),
        }));
        self.status.phase = phase;
        self.status.ended = Some(now);
        self.status.volunteers = 0;
        self.status.completion_estimate = None;
    }

    pub(super) fn wait(&mut self, reason: String, now: Timestamp, outputs: &mut Vec<Output>) {
        if self.is_active() {
            self.accrue(now);
            if let Some(cluster) = &mut self.cluster {
                cluster.stop();
            }
            outputs.push(self.set_slots(0));
        }
        let phase = JobPhase::Waiting { reason: reason.clone() };
        if self.status.phase != phase {
            outputs.push(Output::Event(Event::JobWaiting { job: self.status.spec.id.clone(), reason }));
            self.status.phase = phase;
        }
        self.status.volunteers = 0;
        self.status.completion_estimate = None;
    }
}

impl Controller {
    pub(super) fn job_submitted(&mut self, spec: JobSpec, now: Timestamp, outputs: &mut Vec<Output>) {
        if self.job(&spec.id).is_some() {
            return;
        }
        let tasks = match &spec.workers {
            Workers::Slots(local) => local.tasks,
            // The engine tells with its first progress.
            Workers::Hosts(_) => 0,
        };
        let event = Event::JobSubmitted { job: spec.id.clone(), goal: spec.goal, tasks };
        outputs.push(Output::Event(event));
        self.jobs.push(Job::new(spec, now));
        self.forget_old_jobs();
    }

    fn forget_old_jobs(&mut self) {
        let ended = self.jobs.iter().filter(|job| job.status.phase.is_final()).count();
        let mut excess = ended.saturating_sub(self.settings.ended_jobs_kept as usize);
        self.jobs.retain(|job| {
            let forget = excess > 0 && job.status.phase.is_final();
            excess -= usize::from(forget);
            !forget
        });
    }

    fn active_job(&mut self, id: &JobId) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|job| job.status.spec.id == *id && !job.status.phase.is_final())
    }

    pub(super) fn job_cancelled(&mut self, id: &JobId, now: Timestamp, outputs: &mut Vec<Output>) {
        let Some(job) = self.active_job(id) else { return };
        outputs.push(Output::Engine { job: id.clone(), action: EngineAction::Cancel });
        job.end(JobPhase::Cancelled, now, outputs);
    }

    pub(super) fn progress(&mut self, id: &JobId, progress: EngineProgress, now: Timestamp) {
        let Some(job) = self.active_job(id) else { return };
        job.accrue(now);
        job.rate.completed(progress.fraction_done);
        job.status.progress = Some(progress);
        self.cluster_progress(id);
    }

    pub(super) fn engine_ended(
        &mut self,
        id: &JobId,
        end: EngineEnd,
        progress: Option<EngineProgress>,
        now: Timestamp,
        outputs: &mut Vec<Output>,
    ) {
        let Some(job) = self.active_job(id) else { return };
        if progress.is_some() {
            job.status.progress = progress;
        }
        let phase = match end {
            EngineEnd::Completed => JobPhase::Completed,
            EngineEnd::CompletedWithFailures { failed } => {
                JobPhase::Failed { reason: format!("{failed} tasks were given up after their last attempt") }
            }
            EngineEnd::Broken { reason } => JobPhase::Failed { reason },
        };
        job.end(phase, now, outputs);
    }

    /// After a restart nothing is connected and engines hold nothing; what was learned stays, and so do the volunteers
    /// of clusters, which may not have noticed.
    pub(super) fn resumed(&mut self, now: Timestamp) {
        for host in self.hosts.values_mut() {
            host.connected = false;
            host.told.clear();
        }
        for job in self.jobs.iter_mut().filter(|job| !job.status.phase.is_final()) {
            job.status.phase = JobPhase::Waiting { reason: "the aggregator was restarted".into() };
            job.status.volunteers = 0;
            if let Some(cluster) = &mut job.cluster {
                cluster.resume(now);
            }
        }
    }

    /// Books what a host's volunteer used to the job that has it.
    pub(super) fn account(&mut self, report: &HostReport) {
        let local = |job: &&mut Job| job.local().is_some_and(|local| local.host == report.host);
        let Some(job) = self.jobs.iter_mut().filter(|job| !job.status.phase.is_final()).find(local) else { return };
        let Some(used) = report.volunteer.cpu.value().copied() else { return };
        if !job.is_active() || !(0.0..=LONGEST_INTERVAL_S).contains(&report.interval_s) {
            return;
        }
        job.rate.used(used, report.interval_s);
        job.status.harvested_core_s += used.cores() * report.interval_s;
        // Only while every slot has a task does falling short of the potential say anything.
        let full = job.status.progress.as_ref().is_some_and(|p| p.tasks_running >= job.slots());
        if full {
            job.yields.observe(used, job.potential, report.interval_s);
        }
        if let Some(cpu) = report.residual.cpu.value() {
            job.potential = potential(cpu.expected, job.slots());
        }
    }

    pub(super) fn refused(&mut self, host: &HostId, detail: &str, now: Timestamp, outputs: &mut Vec<Output>) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.is_active() && job.uses(host)) else { return };
        if let Some(cluster) = &mut job.cluster {
            cluster.refuses(host, now.after(seconds(RETRY_AFTER_S)));
            return;
        }
        job.retry_at = now.after(seconds(RETRY_AFTER_S));
        job.wait(format!("host {host} refuses: {detail}"), now, outputs);
    }

    /// Moves every job on as far as it can go now.
    pub(super) fn advance_jobs(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        for index in 0..self.jobs.len() {
            let job = &self.jobs[index];
            if job.status.phase.is_final() || (!job.is_active() && now < job.retry_at) {
                continue;
            }
            if job.cluster.is_some() {
                self.advance_cluster(index, now, outputs);
                continue;
            }
            match self.may_run(index) {
                Err(reason) => self.jobs[index].wait(reason, now, outputs),
                Ok(pool) => self.advance(index, &pool, now, outputs),
            }
        }
    }

    /// The volunteers a job could have now, or why it cannot run.
    fn may_run(&self, index: usize) -> Result<Pool, String> {
        let job = &self.jobs[index];
        let local = job.local().ok_or("its workers are no slots of one machine")?;
        let id = &local.host;
        let uses = |other: &&Job| !other.status.phase.is_final() && other.uses(id);
        // A job on a cluster that has the host lets its tasks there end first.
        let mut others =
            self.jobs[..index].iter().chain(self.jobs[index + 1..].iter().filter(|job| job.cluster.is_some()));
        if let Some(other) = others.find(uses) {
            return Err(format!("job {} has the volunteer of host {id}", other.status.spec.id));
        }
        let host = self.hosts.get(id).ok_or_else(|| format!("host {id} is not known yet"))?;
        let (cpu, memory) = self.residual(id).map_err(|why| format!("host {id} cannot run it: {why}"))?;
        // Its tasks are started as processes in there.
        if !host.facts.levers.volunteer.takes_processes() {
            return Err(format!(
                "host {id} cannot run it: its volunteer is a guest or a unit, in which engine `{}` cannot start tasks",
                job.status.spec.engine.name
            ));
        }
        // Memory the volunteer holds already is counted as residual by the agent.
        let in_memory = slots_in_memory(memory, job.status.spec.memory_per_slot);
        if in_memory == 0 {
            let need = job.status.spec.memory_per_slot;
            return Err(format!("host {id} cannot run it: {memory} of memory are left, a slot needs {need}"));
        }
        let most = local.max_slots.unwrap_or(host.facts.cores).max(local.dedicated_slots).min(in_memory);
        let dedicated = local.dedicated_slots.min(most);
        Ok(Pool { dedicated_potential: potential(cpu, dedicated), offers: slots_of(id, cpu, dedicated, most) })
    }

    fn advance(&mut self, index: usize, pool: &Pool, now: Timestamp, outputs: &mut Vec<Output>) {
        let period_s = self.settings.profile_period_s;
        let interval_s = self.settings.evaluation_interval_s;
        let job = &mut self.jobs[index];
        if !job.is_active() {
            job.costed = now;
            job.status.started.get_or_insert(now);
            job.potential = pool.dedicated_potential;
            outputs.push(job.set_slots(job.slots()));
            // A job that has run before, and learned its rate, need not be profiled again.
            if job.rate.value().is_some() && job.profiled_until.is_some_and(|until| until <= now) {
                job.status.phase = JobPhase::Running;
                job.next_evaluation = now.after(seconds(1.0));
            } else {
                let period_s = job.profile_s(period_s, now);
                job.status.phase = JobPhase::Profiling;
                job.profiled_until = Some(now.after(seconds(period_s)));
                let event = Event::JobProfiling { job: job.status.spec.id.clone(), period_s };
                outputs.push(Output::Event(event));
            }
        }
        if job.status.phase == JobPhase::Profiling {
            // A profile that saw no progress teaches nothing: it goes on until there is some.
            let over = job.profiled_until.is_none_or(|until| now >= until);
            if !over || job.rate.value().is_none() {
                return;
            }
            job.status.phase = JobPhase::Running;
            job.next_evaluation = now;
        }
        if now >= job.next_evaluation {
            job.next_evaluation = now.after(seconds(interval_s));
            job.evaluate(pool, interval_s, now, outputs);
        }
    }
}

/// What a job may choose from.
struct Pool {
    dedicated_potential: CoreShare,
    offers: Vec<Offer>,
}

impl Job {
    fn evaluate(&mut self, pool: &Pool, evaluation_interval_s: f64, now: Timestamp, outputs: &mut Vec<Output>) {
        let Some(rate) = self.rate.value() else { return };
        self.accrue(now);
        let (mean_task_s, unfinished) = self.tasks_left();
        let deadline_in_s = self.deadline_in_s(now);
        let sizing = Sizing {
            goal: self.status.spec.goal,
            deadline_in_s,
            evaluation_interval_s,
            margins: Margins::ONE_HOST,
            prices: self.status.spec.prices,
            spent: self.status.cost,
            remaining: self.rate.remaining(),
            rate,
            response: Response::Yield(self.yields.ratio().unwrap_or(1.0)),
            energy: None,
            mean_task_s,
            tail_s: self.tail_s(mean_task_s),
            set_up_s: self.status.spec.set_up_s,
            dedicated: self.dedicated(),
            dedicated_potential: pool.dedicated_potential,
            offers: &pool.offers,
            current: self.status.volunteers,
            useful: unfinished.saturating_sub(self.dedicated()),
        };
        let choice = sizing.decide();
        let mut selection = slots_by_host(sizing.offers.get(..choice.size as usize).unwrap_or_default());
        if let Some(local) = self.local() {
            *selection.entry(local.host.clone()).or_insert(0) += sizing.dedicated;
        }
        if choice.size != self.status.volunteers {
            let job = self.status.spec.id.clone();
            outputs.push(Output::Engine { job, action: EngineAction::SetSlots(selection.clone()) });
        }
        self.adopt(&sizing, choice, selection, now, outputs);
    }

    /// Mean length of a task, and how many are not finished.
    pub(super) fn tasks_left(&self) -> (f64, u32) {
        self.status.progress.as_ref().map_or((0.0, u32::MAX), |p| {
            (p.mean_task_s.unwrap_or(0.0), p.tasks_total.saturating_sub(p.tasks_done + p.tasks_failed))
        })
    }

    /// How long its last tasks will run on.
    pub(super) fn tail_s(&self, mean_task_s: f64) -> f64 {
        let deviation_s = self.status.progress.as_ref().and_then(|progress| progress.task_deviation_s);
        let loss = self.cluster.as_ref().map_or(0.0, |cluster| cluster.loss_within(mean_task_s));
        straggler_tail_s(self.status.spec.goal, mean_task_s, deviation_s, loss)
    }

    /// Seconds to the deadline. One that has passed is negative, so that every candidate is late by how much it is.
    pub(super) fn deadline_in_s(&self, now: Timestamp) -> Option<f64> {
        self.status.deadline.map(|deadline| deadline.seconds_since(now) - now.seconds_since(deadline))
    }

    /// Makes a choice the job's size, and records it.
    pub(super) fn adopt(
        &mut self,
        sizing: &Sizing<'_>,
        choice: Choice,
        selection: BTreeMap<HostId, u32>,
        now: Timestamp,
        outputs: &mut Vec<Output>,
    ) {
        let before = self.status.volunteers;
        self.status.decisions += 1;
        self.status.volunteers = choice.size;
        self.status.completion_estimate = Some(now.after(seconds(choice.chosen.completion_s)));
        let decision = Decision {
            job: self.status.spec.id.clone(),
            number: self.status.decisions,
            at: now,
            goal: sizing.goal,
            deadline_in_s: sizing.deadline_in_s,
            spent: sizing.spent,
            remaining: sizing.remaining,
            processing_rate: Some(sizing.rate),
            yield_ratio: match sizing.response {
                Response::Yield(_) => self.yields.ratio(),
                Response::Curve(_) | Response::Stretched(..) => {
                    let Candidate { potential, predicted, .. } = choice.chosen;
                    (potential > CoreShare::ZERO).then(|| predicted.percent() / potential.percent())
                }
            },
            io_curve: sizing.response.curve().map(IoCurve::record).unwrap_or_default(),
            size_before: before,
            size: choice.size,
            selection,
            reason: sizing.reason(&choice),
            candidates: choice.candidates,
            considered: choice.considered,
            bound: choice.bound,
        };
        let news = self.decision.as_ref().is_none_or(|last| last.size != decision.size || last.bound != decision.bound);
        if news {
            outputs.push(Output::Event(Event::JobSized { decision: decision.clone() }));
        }
        self.tell_risk(choice.chosen.meets_goal, &decision.reason, outputs);
        self.decision = Some(decision);
    }

    fn tell_risk(&mut self, meets_goal: bool, reason: &str, outputs: &mut Vec<Output>) {
        let job = self.status.spec.id.clone();
        if self.at_risk == meets_goal {
            self.at_risk = !meets_goal;
            outputs.push(Output::Event(if meets_goal {
                Event::GoalBackInReach { job }
            } else {
                Event::GoalAtRisk { job, expectation: reason.to_owned() }
            }));
        }
    }
}
