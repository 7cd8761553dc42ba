//! One job, as far as both kinds are alike: where it stands, what it cost, what was decided about it. In: progress, its
//! end, a choice. Out: its record, engine orders and events. Called by the owner of the jobs; what differs is in
//! `slots.rs` (engine `local`) and `cluster/`.

use std::collections::BTreeMap;

use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::job::{
    Bound, Candidate, ClusterSpec, Decision, EngineAction, EngineProgress, Goal, JobPhase, JobSpec, JobStatus,
    SlotSpec, Workers,
};
use gleaner_types::report::HostReport;
use gleaner_types::stages::StageOpinion;
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Dollars};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, RETURN_S};
use crate::controller::interface::seconds;
use crate::controller::outputs::Outputs;
use crate::io_model::IoCurve;
use crate::productivity::Yield;
use crate::progress::{ProcessingRate, deviation_of_begun};
use crate::sizing::input::JobFacts;
use crate::sizing::{Choice, Response, Sizing};

/// A job and what was learned about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) status: JobStatus,
    pub(super) rate: ProcessingRate,
    pub(super) workers: WorkerState,
    pub(super) profiled_until: Option<Timestamp>,
    pub(super) next_evaluation: Timestamp,
    /// Not tried again before this.
    pub(super) retry_at: Timestamp,
    /// Until when its cost is counted.
    pub(super) costed: Timestamp,
    at_risk: bool,
    decision: Option<Decision>,
}

/// What a job's workers are, and what was learned of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum WorkerState {
    /// Slots of one machine.
    Slots(Slots),
    /// Hosts.
    Hosts(Box<Cluster>),
}

/// What was learned of one machine's slots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Slots {
    pub(super) yields: Yield,
    /// Potential of the slots in use, as of the last report.
    pub(super) potential: CoreShare,
    /// Volunteer slots it would have taken at the last decision if nobody else had wanted any.
    #[serde(default)]
    pub(super) wanted: u32,
    /// Its number in the account of its machine, since it was first at work beside others.
    #[serde(default)]
    pub(super) number: Option<u64>,
    /// While it is at work beside others: slots it may have now, dedicated ones among them.
    #[serde(default)]
    pub(super) granted: Option<u32>,
    /// The most slots it has been given since its engine last reported.
    #[serde(default)]
    pub(super) unheard: u32,
    /// When it was first given a slot.
    #[serde(default)]
    pub(super) begun: Option<Timestamp>,
    /// Until then its host may come back after a restart, with tasks that run on.
    #[serde(default)]
    awaited_until: Timestamp,
}

impl Slots {
    /// Goes on after a restart.
    pub(super) fn resume(&mut self, now: Timestamp) {
        self.granted = None;
        self.awaited_until = now.after(seconds(RETURN_S));
    }
}

/// CPU time of an interval that the foreground left free, in core-seconds; none where that is not known.
pub(super) fn idle_core_s(report: &HostReport) -> f64 {
    let foreground = report.machine.cpu_foreground.value();
    foreground.map_or(0.0, |used| report.machine.cpu_capacity.saturating_sub(*used).cores() * report.interval_s)
}

impl Job {
    pub(super) fn new(spec: JobSpec, now: Timestamp) -> Self {
        let deadline = match spec.goal {
            Goal::Deadline { within_s } => Some(now.after(seconds(within_s))),
            Goal::Cost { .. } | Goal::Energy => None,
        };
        let workers = match spec.workers {
            Workers::Slots(_) => WorkerState::Slots(Slots::default()),
            Workers::Hosts(_) => WorkerState::Hosts(Box::default()),
        };
        let energy_wh = spec.power.filter(|_| matches!(workers, WorkerState::Hosts(_))).map(|_| 0.0);
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
            idle_core_s: 0.0,
            harm: None,
            energy_wh,
            decisions: 0,
            share: None,
        };
        Self {
            status,
            rate: ProcessingRate::default(),
            workers,
            profiled_until: None,
            next_evaluation: now,
            retry_at: now,
            costed: now,
            at_risk: false,
            decision: None,
        }
    }

    pub(super) const fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    pub(super) fn local(&self) -> Option<&SlotSpec> {
        self.status.spec.workers.slots()
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        match &self.workers {
            WorkerState::Slots(_) => None,
            WorkerState::Hosts(cluster) => Some(cluster),
        }
    }

    pub(super) fn cluster_mut(&mut self) -> Option<&mut Cluster> {
        match &mut self.workers {
            WorkerState::Slots(_) => None,
            WorkerState::Hosts(cluster) => Some(cluster),
        }
    }

    pub(super) fn cluster_spec(&self) -> Option<&ClusterSpec> {
        self.status.spec.workers.hosts()
    }

    pub(super) const fn is_on_cluster(&self) -> bool {
        matches!(self.workers, WorkerState::Hosts(_))
    }

    /// Its workers are slots of this host.
    pub(super) fn is_on(&self, host: &HostId) -> bool {
        self.local().is_some_and(|local| local.host == *host)
    }

    /// This host may come back to it after a restart.
    pub(super) fn awaits(&self, host: &HostId, now: Timestamp) -> bool {
        match &self.workers {
            WorkerState::Slots(slots) => now < slots.awaited_until && self.is_on(host),
            WorkerState::Hosts(cluster) => cluster.awaits(host, now),
        }
    }

    /// It works, or will work, in the volunteer of this host.
    pub(super) fn uses(&self, host: &HostId) -> bool {
        match &self.workers {
            WorkerState::Slots(_) => self.is_on(host),
            WorkerState::Hosts(cluster) => cluster.uses(host),
        }
    }

    /// Hosts that its spec names.
    pub(super) fn named(&self) -> impl Iterator<Item = &HostId> {
        let dedicated = self.cluster_spec().into_iter().flat_map(|spec| &spec.dedicated);
        self.local().map(|local| &local.host).into_iter().chain(dedicated.map(|dedicated| &dedicated.host))
    }

    /// It is on a cluster, and the host is part of its dedicated capacity.
    pub(super) fn has_dedicated(&self, host: &HostId) -> bool {
        self.cluster_spec().is_some_and(|spec| spec.dedicated.iter().any(|own| own.host == *host))
    }

    /// Hosts whose volunteers work for it or drain.
    pub(super) fn volunteers(&self) -> impl Iterator<Item = &HostId> {
        self.cluster().into_iter().flat_map(Cluster::taken)
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
        match &self.workers {
            WorkerState::Slots(Slots { granted: Some(granted), .. }) => *granted,
            _ => self.dedicated() + self.status.volunteers,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        matches!(self.status.phase, JobPhase::Profiling | JobPhase::Running)
    }

    /// It has ended.
    pub(super) fn is_over(&self) -> bool {
        self.status.phase.is_final()
    }

    /// Slots its volunteer on a host has or is to have; none while it does not work, or does not use the host.
    pub(super) fn slots_on(&self, host: &HostId) -> Option<u32> {
        if !self.is_active() {
            return None;
        }
        match &self.workers {
            WorkerState::Hosts(cluster) => cluster.slots_on(host),
            WorkerState::Slots(_) => {
                let in_use = self.status.progress.as_ref().map_or(0, |progress| progress.slots_in_use);
                Some(self.slots().max(in_use))
            }
        }
    }

    pub(super) fn set_slots(&self, slots: u32, outputs: &mut Outputs) {
        let slots = self.local().map(|local| (local.host.clone(), slots)).into_iter().collect();
        outputs.engine(self.status.spec.id.clone(), EngineAction::SetSlots(slots));
    }

    /// Dedicated workers that are at work for it: where others share its machine it may have fewer slots.
    fn dedicated_at_work(&self) -> u32 {
        match &self.workers {
            WorkerState::Slots(Slots { granted: Some(granted), .. }) => self.dedicated().min(*granted),
            _ => self.dedicated(),
        }
    }

    /// Lets the cost run up to `now`.
    pub(super) fn accrue(&mut self, now: Timestamp) {
        if self.is_active() {
            let (prices, elapsed_s) = (self.status.spec.prices, now.seconds_since(self.costed));
            let draining = self.cluster().map_or(0, Cluster::draining);
            self.status.cost += prices.dedicated.over(elapsed_s, f64::from(self.dedicated_at_work()));
            self.status.cost += prices.volunteer.over(elapsed_s, f64::from(self.status.volunteers) + draining as f64);
        }
        self.costed = now;
    }

    /// It has run before and learned its rate: it need not be profiled again.
    pub(super) fn is_profiled(&self, now: Timestamp) -> bool {
        self.rate.value().is_some() && self.profiled_until.is_some_and(|until| until <= now)
    }

    /// Begins with dedicated capacity alone: for the period, or a tenth of the time to the deadline where that is less.
    pub(super) fn begin_profile(&mut self, period_s: f64, now: Timestamp, outputs: &mut Outputs) {
        let period_s = match self.status.deadline {
            Some(deadline) => period_s.min(deadline.seconds_since(now) / 10.0),
            None => period_s,
        };
        self.status.phase = JobPhase::Profiling;
        self.profiled_until = Some(now.after(seconds(period_s)));
        outputs.event(Event::JobProfiling { job: self.status.spec.id.clone(), period_s });
    }

    /// Its profile is over. One that saw no progress teaches nothing: it goes on until there is some.
    pub(super) fn profile_is_over(&self, now: Timestamp) -> bool {
        self.profiled_until.is_none_or(|until| now >= until) && self.rate.value().is_some()
    }

    pub(super) fn end(&mut self, phase: JobPhase, now: Timestamp, outputs: &mut Outputs) {
        self.accrue(now);
        let (outcome, reason) = match &phase {
            JobPhase::Failed { reason } => ("failed", Some(reason.clone())),
            other => (other.word(), None),
        };
        outputs.event(Event::JobEnded {
            job: self.status.spec.id.clone(),
            outcome: outcome.to_owned(),
            reason,
            elapsed_s: now.seconds_since(self.status.submitted),
            deadline_met: self.status.deadline.map(|deadline| phase == JobPhase::Completed && now <= deadline),
            cost: self.status.cost,
            harvested_core_s: self.status.harvested_core_s,
            progress: self.status.progress.clone(),
        });
        self.status.phase = phase;
        self.status.ended = Some(now);
        self.status.volunteers = 0;
        self.status.completion_estimate = None;
        self.status.share = None;
    }

    pub(super) fn wait(&mut self, reason: String, now: Timestamp, outputs: &mut Outputs) {
        if self.is_active() {
            self.accrue(now);
            match &mut self.workers {
                WorkerState::Hosts(cluster) => cluster.stop(),
                WorkerState::Slots(slots) => slots.granted = None,
            }
            self.set_slots(0, outputs);
        }
        let phase = JobPhase::Waiting { reason: reason.clone() };
        if self.status.phase != phase {
            outputs.event(Event::JobWaiting { job: self.status.spec.id.clone(), reason });
            self.status.phase = phase;
        }
        self.status.volunteers = 0;
        self.status.completion_estimate = None;
        self.status.share = None;
    }

    /// What a decision about its size goes by.
    pub(super) fn facts(&self, rate: f64, evaluation_interval_s: f64, now: Timestamp) -> JobFacts {
        let progress = self.status.progress.as_ref();
        let finished_s = progress.and_then(|progress| progress.mean_task_s).unwrap_or(0.0);
        let (mean_task_s, task_deviation_s) = self.lengths(finished_s, rate);
        JobFacts {
            goal: self.status.spec.goal,
            prices: self.status.spec.prices,
            spent: self.status.cost,
            deadline_in_s: self.deadline_in_s(now),
            evaluation_interval_s,
            remaining: self.rate.remaining(),
            rate,
            mean_task_s,
            task_deviation_s,
            unfinished: progress.map(|p| p.tasks_total.saturating_sub(p.tasks_done.saturating_add(p.tasks_failed))),
            loss: self.cluster().map_or(0.0, |cluster| cluster.loss_within(mean_task_s)),
            set_up_s: self.status.spec.set_up_s,
            current: self.status.volunteers,
        }
    }

    /// Mean length of its tasks and their standard deviation, in seconds. Those that have finished first are the short ones: on a
    /// cluster all that have begun count. For a deadline those that run count by the CPU that a task takes by its rate, and not in
    /// the deviation: with both more deadlines were missed in simulation (docs/simulator.md).
    fn lengths(&self, finished_s: f64, rate: f64) -> (f64, Option<f64>) {
        let deviation_s = |progress: &EngineProgress| progress.task_deviation_s;
        let Some((progress, cluster)) = self.status.progress.as_ref().zip(self.cluster()) else {
            return (finished_s, self.status.progress.as_ref().and_then(deviation_s));
        };
        let tasks = f64::from(progress.tasks_total);
        if matches!(self.status.spec.goal, Goal::Deadline { .. }) {
            let by_rate_s = 1.0 / (100.0 * rate * tasks);
            let mean_s = if by_rate_s.is_finite() { finished_s.max(by_rate_s) } else { finished_s };
            return (mean_s, deviation_s(progress));
        }
        let mean_s = finished_s.max(cluster.task_s(self.rate.done() * tasks));
        let (done, running) = (progress.tasks_done, progress.tasks_running);
        (mean_s, deviation_s(progress).map(|own| deviation_of_begun((finished_s, own), done, running, mean_s)))
    }

    /// Seconds to the deadline. One that has passed is negative, so that every candidate is late by how much it is.
    fn deadline_in_s(&self, now: Timestamp) -> Option<f64> {
        self.status.deadline.map(|deadline| deadline.seconds_since(now) - now.seconds_since(deadline))
    }

    /// Makes a choice the job's size, and records it.
    pub(super) fn adopt(
        &mut self,
        sizing: &Sizing<'_>,
        choice: Choice,
        selection: BTreeMap<HostId, u32>,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        self.status.decisions += 1;
        self.status.volunteers = choice.size;
        let predicted = match &choice.stages {
            Some(StageOpinion::Predicted(found)) => Some(found),
            _ => None,
        };
        let late_by_stages = predicted.filter(|found| !found.meets_goal);
        let by_stages = choice.by_stages().or_else(|| late_by_stages?.of(choice.size));
        let by_stages_s = by_stages.map(|own| own.completion_s);
        let estimate = now.after(seconds(by_stages_s.unwrap_or(choice.chosen.completion_s)));
        // What it lends comes back in time for it to be done as under fair sharing.
        let lent = self.status.share.as_ref().filter(|_| choice.bound == Bound::Share);
        // The account goes by the rate, so it does not know of what the stages say.
        let fairly = lent.and_then(|share| share.fair_completion).filter(|_| late_by_stages.is_none());
        // The estimate is with all dedicated workers, which may be lent too.
        let lends_all = self.dedicated_at_work() < self.dedicated();
        let estimate = fairly.map_or(estimate, |fairly| if lends_all { fairly } else { fairly.min(estimate) });
        let in_time = fairly.zip(self.status.deadline).is_some_and(|(fairly, deadline)| fairly <= deadline);
        let meets_goal = choice.chosen.meets_goal && late_by_stages.is_none() || in_time;
        let by_stages_alone = late_by_stages.and(by_stages_s).filter(|_| choice.bound != Bound::Stages);
        self.status.completion_estimate = Some(estimate);
        let samples = self.cluster_mut().map(Cluster::samples).unwrap_or_default();
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
                Response::Yield(_) => match &self.workers {
                    WorkerState::Slots(slots) => slots.yields.ratio(),
                    WorkerState::Hosts(_) => None,
                },
                Response::Assumed { .. } => None,
                Response::Curve(_) | Response::Stretched(..) => {
                    let Candidate { potential, predicted, .. } = choice.chosen;
                    (potential > CoreShare::ZERO).then(|| predicted.percent() / potential.percent())
                }
            },
            io_curve: sizing.response.curve().map(IoCurve::record).unwrap_or_default(),
            samples,
            assumed: matches!(sizing.response, Response::Assumed { .. }),
            size_before: sizing.current,
            size: choice.size,
            selection,
            reason: sizing.reason(&choice),
            candidates: choice.candidates,
            considered: choice.considered,
            bound: choice.bound,
            stages: choice.stages,
        };
        let news = self.decision.as_ref().is_none_or(|last| last.size != decision.size || last.bound != decision.bound);
        if news {
            outputs.event(Event::JobSized { decision: decision.clone() });
        }
        let stages = by_stages_alone.map_or_else(String::new, |at_s| {
            format!("; by the model of its stages in {}, which is too late", duration(at_s))
        });
        self.report_risk(meets_goal, &format!("{}{stages}", decision.reason), outputs);
        self.decision = Some(decision);
    }

    fn report_risk(&mut self, meets_goal: bool, reason: &str, outputs: &mut Outputs) {
        let job = self.status.spec.id.clone();
        if self.at_risk == meets_goal {
            self.at_risk = !meets_goal;
            outputs.event(if meets_goal {
                Event::GoalBackInReach { job }
            } else {
                Event::GoalAtRisk { job, expectation: reason.to_owned() }
            });
        }
    }
}
