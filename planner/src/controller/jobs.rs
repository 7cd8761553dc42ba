//! The owner of jobs: waiting, profiling, sized every evaluation interval, ended. In: submissions, progress, ends, reports,
//! refusals, the time, and what hosts offer. Out: engine orders, events, and which job has the volunteer of which host.
//! Called by the controller.
//!
//! Jobs move on one after another, in order of submission. Each sees the others as they are then. Those on clusters share
//! interactive hosts by credit: `pool.rs` keeps the account; those on one machine share its slots (`machine.rs`).

mod cluster;
mod job;
mod machine;
mod others;
mod pool;
mod slots;

use std::collections::BTreeMap;

use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{Decision, EngineAction, EngineEnd, EngineProgress, JobPhase, JobSpec, JobStatus, Workers};
use gleaner_types::report::HostReport;
use gleaner_types::text::counted;
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::capacity::Capacity;
use super::hosts::Hosts;
use super::interface::{Settings, seconds};
use super::outputs::Outputs;
use crate::sizing::policy::SizingPolicy;
use cluster::Deciders;
use job::{Job, WorkerState};
use machine::Machine;
use others::Others;
use pool::Pool;

/// After a host refused a job's commands the job waits this long before it tries again.
const RETRY_AFTER_S: f64 = 30.0;
/// Longest report interval that counts as productivity; a longer one means the agent did not run.
const LONGEST_INTERVAL_S: f64 = 120.0;

/// All jobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Jobs {
    /// In order of submission.
    list: Vec<Job>,
    /// Of the interactive hosts that jobs on clusters share.
    #[serde(default)]
    pool: Pool,
    /// Of the machines whose slots several jobs share.
    #[serde(default)]
    machines: BTreeMap<HostId, Machine>,
}

impl Jobs {
    /// All that are remembered, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &JobStatus> {
        self.list.iter().map(|job| &job.status)
    }

    pub(super) fn get(&self, id: &JobId) -> Option<&JobStatus> {
        self.iter().find(|status| status.spec.id == *id)
    }

    /// The last decision about a job.
    pub(super) fn last_decision(&self, id: &JobId) -> Option<&Decision> {
        self.list.iter().find(|job| job.status.spec.id == *id)?.decision()
    }

    /// The job that a host is for: the oldest that has not ended. Younger ones may share the slots of its machine.
    fn holder(&self, host: &HostId) -> Option<&Job> {
        self.list.iter().find(|job| !job.is_over() && job.uses(host))
    }

    /// The name of the job that a host is for.
    pub(super) fn holder_id(&self, host: &HostId) -> Option<&JobId> {
        self.holder(host).map(|job| &job.status.spec.id)
    }

    /// The oldest unfinished job that has a host, or whose description names it.
    pub(super) fn needing(&self, host: &HostId) -> Option<&JobId> {
        let needs = |job: &&Job| !job.is_over() && (job.uses(host) || job.named().any(|named| named == host));
        self.list.iter().find(needs).map(|job| &job.status.spec.id)
    }

    /// A job that has not ended runs its workers on a host outside of the volunteer.
    pub(super) fn dedicates(&self, host: &HostId) -> bool {
        self.list.iter().any(|job| !job.is_over() && job.has_dedicated(host))
    }

    /// The jobs on clusters for which a host works or drains.
    pub(super) fn sharing(&self, host: &HostId) -> impl Iterator<Item = &JobId> {
        let has = move |job: &&Job| !job.is_over() && job.cluster().is_some_and(|cluster| cluster.uses(host));
        self.list.iter().filter(has).map(|job| &job.status.spec.id)
    }

    /// Slots in use or wanted in the volunteer of a host, by all that share it.
    pub(super) fn slots_on(&self, host: &HostId) -> Option<u32> {
        let holder = self.holder(host)?;
        if holder.is_on_cluster() {
            return holder.slots_on(host);
        }
        let sharing = self.list.iter().filter(|job| job.is_on(host));
        sharing.filter_map(|job| job.slots_on(host)).reduce(u32::saturating_add)
    }

    /// A host's volunteer may go on with what it does: the job it works for waits for others after a restart.
    pub(super) fn awaits(&self, host: &HostId, now: Timestamp) -> bool {
        let waiting = |job: &&Job| matches!(job.status.phase, JobPhase::Waiting { .. });
        self.holder(host).filter(waiting).is_some_and(|job| job.awaits(host, now))
    }

    pub(super) fn submitted(&mut self, spec: JobSpec, kept: u32, now: Timestamp, outputs: &mut Outputs) {
        if self.get(&spec.id).is_some() {
            return;
        }
        let tasks = match &spec.workers {
            Workers::Slots(local) => local.tasks,
            // The engine tells with its first progress.
            Workers::Hosts(_) => 0,
        };
        outputs.event(Event::JobSubmitted { job: spec.id.clone(), goal: spec.goal, tasks, user: spec.user.clone() });
        self.list.push(Job::new(spec, now));
        self.forget_ended(kept as usize);
    }

    /// Remembers so many that have ended, the newest.
    fn forget_ended(&mut self, kept: usize) {
        let ended = self.list.iter().filter(|job| job.is_over()).count();
        let mut excess = ended.saturating_sub(kept);
        self.list.retain(|job| {
            let forget = excess > 0 && job.is_over();
            excess -= usize::from(forget);
            !forget
        });
    }

    fn unfinished(&mut self) -> impl Iterator<Item = &mut Job> {
        self.list.iter_mut().filter(|job| !job.is_over())
    }

    fn unfinished_job(&mut self, id: &JobId) -> Option<&mut Job> {
        self.unfinished().find(|job| job.status.spec.id == *id)
    }

    pub(super) fn cancelled(&mut self, id: &JobId, now: Timestamp, outputs: &mut Outputs) {
        let Some(job) = self.unfinished_job(id) else { return };
        outputs.engine(id.clone(), EngineAction::Cancel);
        job.end(JobPhase::Cancelled, now, outputs);
    }

    pub(super) fn progress(&mut self, id: &JobId, progress: EngineProgress, hosts: &Hosts, now: Timestamp) {
        let Some(job) = self.unfinished_job(id) else { return };
        job.accrue(now);
        job.rate.completed(progress.fraction_done);
        if let Some(cluster) = job.cluster_mut() {
            cluster.progress(&progress, |id| hosts.get(id));
        }
        job.status.progress = Some(progress);
        job.heard();
        let (number, done) = (job.cluster().and_then(|cluster| cluster.number), job.rate.done());
        if let Some(number) = number {
            self.pool.progressed(number, done, now);
        }
    }

    pub(super) fn engine_ended(
        &mut self,
        id: &JobId,
        end: EngineEnd,
        progress: Option<EngineProgress>,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let Some(job) = self.unfinished_job(id) else { return };
        if progress.is_some() {
            job.status.progress = progress;
        }
        let phase = match end {
            EngineEnd::Completed => JobPhase::Completed,
            EngineEnd::CompletedWithFailures { failed } => {
                let (were, their) = if failed == 1 { ("was", "its") } else { ("were", "their") };
                let reason = format!("{} {were} given up after {their} last attempt", counted(failed, "task"));
                JobPhase::Failed { reason }
            }
            EngineEnd::Broken { reason } => JobPhase::Failed { reason },
        };
        job.end(phase, now, outputs);
    }

    /// After a restart engines hold nothing; what was learned stays, and so do the volunteers of clusters, which may not
    /// have noticed.
    pub(super) fn resumed(&mut self, now: Timestamp) {
        self.pool.skip(now);
        self.machines.values_mut().for_each(|machine| machine.resumed(now));
        for job in self.unfinished() {
            job.status.phase = JobPhase::Waiting { reason: "the aggregator was restarted".into() };
            job.status.volunteers = 0;
            match &mut job.workers {
                WorkerState::Hosts(cluster) => cluster.resume(now),
                WorkerState::Slots(slots) => slots.resume(now),
            }
        }
    }

    /// Books what a host used, of this class of hardware, to the jobs that have it.
    pub(super) fn account(&mut self, report: &HostReport, class: &str) {
        if !(0.0..=LONGEST_INTERVAL_S).contains(&report.interval_s) {
            return;
        }
        // By the tasks that run for each; alike where none does.
        let working = || self.list.iter().filter(|job| job.is_active() && job.is_on(&report.host));
        let running = |job: &Job| job.status.progress.as_ref().map_or(0, |progress| progress.tasks_running);
        let (count, in_all) = (working().count(), working().map(running).fold(0, u32::saturating_add));
        for job in self.list.iter_mut().filter(|job| job.is_active() && job.is_on(&report.host)) {
            let part = if in_all > 0 { f64::from(running(job)) / f64::from(in_all) } else { 1.0 / count as f64 };
            job.account_slots(report, part);
        }
        for job in self.list.iter_mut().filter(|job| job.is_active()) {
            if job.account_host(report, class) {
                return;
            }
        }
    }

    /// A host refuses to run its volunteer.
    pub(super) fn refused(&mut self, host: &HostId, detail: &str, now: Timestamp, outputs: &mut Outputs) {
        let retry_at = now.after(seconds(RETRY_AFTER_S));
        for job in self.list.iter_mut().filter(|job| job.is_active() && job.uses(host)) {
            if let Some(cluster) = job.cluster_mut() {
                cluster.refuses(host, retry_at);
                return;
            }
            job.retry_at = retry_at;
            job.wait(format!("host {host} refuses: {detail}"), now, outputs);
        }
    }

    /// Every second: what each cluster could do and did, and what ended on machines.
    pub(super) fn observe(&mut self, hosts: &Hosts, now: Timestamp) {
        for job in self.list.iter_mut().filter(|job| job.is_active()) {
            job.observe_cluster(hosts, now);
        }
        self.machines.values_mut().for_each(Machine::tick);
    }

    /// Moves every job on as far as it can go now; those on clusters are sized by a policy.
    pub(super) fn advance(
        &mut self,
        capacity: Capacity<'_>,
        settings: &Settings,
        policy: &mut dyn SizingPolicy,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let Self { list, pool, machines } = self;
        if pool.keep(list, &settings.users, now) && list.iter().any(|job| !job.is_over() && job.is_on_cluster()) {
            // What it had is for the others at once.
            let named = Others { before: list, after: &[] }.named();
            pool.count(capacity.usable_but(&named));
            let shares = pool.shares(settings.evaluation_interval_s, now);
            list.iter_mut().for_each(|job| job.may_have(&shares));
        }
        let mut evaluated = Vec::new();
        for index in 0..list.len() {
            let (before, rest) = list.split_at_mut(index);
            let Some((job, after)) = rest.split_first_mut() else { return };
            if job.is_over() || (!job.is_active() && now < job.retry_at) {
                continue;
            }
            let others = Others { before, after };
            if !job.is_on_cluster() {
                match job.advance_slots(others, capacity, settings, now, outputs) {
                    // It is known below what the others leave of that.
                    Some(own) if job.has_part_of_machine() => evaluated.push((index, own)),
                    Some(own) => job.take_slots(own, now, outputs),
                    None => {}
                }
                continue;
            }
            let mut shares = None;
            if job.advance_cluster(others, capacity, settings, now, outputs) {
                let deciders = Deciders { policy: &mut *policy, pool: &mut *pool };
                shares = job.evaluate_cluster(others, capacity, settings, deciders, now, outputs);
            }
            if job.is_active() {
                job.update_engine(capacity, outputs);
            }
            if let Some(shares) = shares {
                before.iter_mut().chain(after).for_each(|job| job.may_have(&shares));
            }
        }
        let mut locals: BTreeMap<HostId, Vec<&mut Job>> = BTreeMap::new();
        for job in list.iter_mut().filter(|job| !job.is_over()) {
            let Some(host) = job.local().map(|local| local.host.clone()) else { continue };
            locals.entry(host).or_default().push(job);
        }
        machines.retain(|host, _| locals.contains_key(host));
        for (host, jobs) in locals {
            machine::share(&host, jobs, machines, capacity, &settings.users, now, outputs);
        }
        for (index, own) in evaluated {
            list[index].take_slots(own, now, outputs);
        }
    }
}
