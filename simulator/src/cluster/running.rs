//! A job in the cluster: its tasks, its slots on hosts, what it had. In: orders to its engine, hosts second by second. Out:
//! the CPU that its tasks used, and its engine's progress. Called by the cluster.

use std::collections::BTreeMap;

use gleaner_planner::power::marginal_watts;
use gleaner_planner::productivity::slots_in_memory;
use gleaner_types::engine::EngineSpec;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{
    ClusterSpec, DedicatedHost, EngineProgress, Goal, JobPhase, JobSpec, JobStatus, WorkerProgress, Workers,
};
use gleaner_types::units::{Bytes, Fraction};

use super::error::ScenarioError;
use super::fair::{FairJob, HostWorth, Part};
use super::host::SimulatedHost;
use super::outcome::{ByClass, JobRun};
use crate::batch::{Batch, Worker};
use crate::scenario::{ClusterScenario, JobProfile};

/// A job and its workers.
pub(super) struct Running {
    pub(super) id: JobId,
    profile: JobProfile,
    goal: Goal,
    /// Places of the hosts that it can use: its dedicated ones, then the interactive ones.
    hosts: Vec<usize>,
    /// Of these hosts: its worker there.
    workers: Vec<Worker>,
    /// Slots that its engine has there.
    slots: Vec<u32>,
    /// When slots that were added begin to work.
    ready_at: Vec<u32>,
    pub(super) batch: Batch,
    pub(super) run: JobRun,
    /// Seconds in which the controller's account had a share for it.
    shared_s: f64,
}

impl Running {
    /// `hosts` are the places of its dedicated hosts, then those of the interactive ones.
    pub(super) fn new<S>(
        scenario: &ClusterScenario<S>,
        number: usize,
        profile: &JobProfile,
        hosts: Vec<usize>,
        all: &[SimulatedHost],
    ) -> Result<Self, ScenarioError> {
        let own = || hosts.iter().map(|&place| &all[place]);
        let disks: Vec<f64> = own().filter(|host| host.is_dedicated()).map(|host| host.class.disk_mb_s).collect();
        let racks = gleaner_planner::io_model::assign(hosts.len(), &disks);
        let worker = |(index, host): (usize, &SimulatedHost)| {
            Worker::new(host.class.speed, host.is_dedicated().then_some(index), racks.get(index).copied().unwrap_or(0))
        };
        Ok(Self {
            id: JobId::new(profile.name.clone())?,
            goal: profile.goal.unwrap_or(scenario.goal),
            workers: own().enumerate().map(worker).collect(),
            slots: vec![0; hosts.len()],
            ready_at: vec![0; hosts.len()],
            hosts,
            batch: Batch::new(profile, disks, scenario.speculation, scenario.seed, number as u64),
            run: JobRun { name: profile.name.clone(), arrives_s: profile.arrives_s, ..JobRun::default() },
            shared_s: 0.0,
            profile: profile.clone(),
        })
    }

    /// It has been submitted and is not done.
    pub(super) fn is_here(&self, second: u32) -> bool {
        self.profile.arrives_s <= second && !self.batch.is_done()
    }

    fn places<'a>(&'a self, all: &'a [SimulatedHost]) -> impl Iterator<Item = (&'a SimulatedHost, &'a Worker)> {
        self.hosts.iter().map(|&place| &all[place]).zip(&self.workers)
    }

    fn dedicated<'a>(&'a self, all: &'a [SimulatedHost]) -> impl Iterator<Item = &'a SimulatedHost> {
        self.places(all).map(|(host, _)| host).filter(|host| host.is_dedicated())
    }

    pub(super) fn spec<S>(&self, scenario: &ClusterScenario<S>, all: &[SimulatedHost]) -> JobSpec {
        let base = self.dedicated(all).next().map_or(1.0, |host| host.class.disk_mb_s);
        let dedicated = self
            .dedicated(all)
            .map(|host| DedicatedHost { host: host.id.clone(), disk: host.class.disk_mb_s / base })
            .collect();
        JobSpec {
            id: self.id.clone(),
            engine: EngineSpec::without_options("simulated"),
            workers: Workers::Hosts(ClusterSpec {
                dedicated,
                max_volunteers: None,
                max_slots_per_host: None,
                weight: self.profile.weight,
            }),
            goal: self.goal,
            prices: scenario.prices,
            memory_per_slot: Bytes::from_mib(scenario.slot_memory_mib),
            set_up_s: scenario.set_up_s,
            power: Some(scenario.power),
            user: None,
        }
    }

    /// What it is for the fair schedule.
    pub(super) fn fairly(&self, all: &[SimulatedHost]) -> FairJob {
        let ready = 1.0 - self.profile.wait;
        let slots = || self.dedicated(all).map(|host| f64::from(host.class.cores));
        let read = self.profile.read_mb_per_cpu_s;
        let disks: f64 = self.dedicated(all).map(|host| host.class.disk_mb_s).sum();
        FairJob {
            weight: self.profile.weight,
            dedicated: self.dedicated(all).count() as f64,
            dedicated_slots: slots().sum(),
            dedicated_pace: self
                .dedicated(all)
                .zip(slots())
                .map(|(host, slots)| slots * host.class.speed * ready)
                .sum(),
            tasks: f64::from(self.profile.tasks),
            disk_pace: if read > 0.0 { disks / read } else { f64::INFINITY },
            work: self.batch.work_in_all(),
        }
    }

    /// Its part of the present second in the fair schedule, after its arrival.
    pub(super) fn fair_part(&self, status: Option<&JobStatus>, memory_per_slot: Bytes, all: &[SimulatedHost]) -> Part {
        let alone = |status: &JobStatus| matches!(status.phase, JobPhase::Profiling | JobPhase::Waiting { .. });
        if status.is_some_and(alone) {
            return Part::DedicatedAlone;
        }
        let there = || self.places(all).map(|(host, _)| host).filter(|host| !host.is_dedicated() && host.present);
        let count = (there().count() as f64).max(1.0);
        let slots = |host: &SimulatedHost| host.class.cores.min(slots_in_memory(host.free_memory(), memory_per_slot));
        let pace = |host: &SimulatedHost| host.free_cores().min(f64::from(slots(host))) * host.class.speed;
        Part::Shares(HostWorth {
            slots: there().map(|host| f64::from(slots(host))).sum::<f64>() / count,
            pace: there().map(pace).sum::<f64>() * (1.0 - self.profile.wait) / count,
        })
    }

    /// Its engine has these slots from now on.
    pub(super) fn set_slots(
        &mut self,
        slots: &BTreeMap<HostId, u32>,
        all: &[SimulatedHost],
        second: u32,
        set_up_s: f64,
    ) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most an hour")]
        let set_up = set_up_s.ceil() as u32;
        for (index, &place) in self.hosts.iter().enumerate() {
            let wanted = slots.get(&all[place].id).copied().unwrap_or(0);
            if wanted > 0 && self.slots[index] == 0 && !all[place].is_dedicated() {
                self.ready_at[index] = second + set_up;
            }
            self.run.given_up += u32::from(wanted == 0 && self.slots[index] > 0);
            self.slots[index] = wanted;
        }
    }

    /// A host is gone, with what ran on it.
    pub(super) fn lose(&mut self, place: usize) {
        if let Some(index) = self.hosts.iter().position(|&own| own == place) {
            self.slots[index] = 0;
            self.batch.lose(&mut self.workers[index]);
        }
    }

    /// Starts tasks in the slots that work.
    pub(super) fn start_tasks(&mut self, all: &[SimulatedHost], second: u32) {
        for (index, &place) in self.hosts.iter().enumerate() {
            let ready = all[place].present && second >= self.ready_at[index];
            self.workers[index].slots = if ready { self.slots[index] } else { 0 };
        }
        self.batch.assign(&mut self.workers);
    }

    /// Tasks that run, by the place of their host.
    pub(super) fn running(&self) -> impl Iterator<Item = (usize, u32)> {
        self.hosts.iter().copied().zip(self.workers.iter().map(Worker::running))
    }

    /// One second, in which the tasks of all jobs together may use so many cores of each host. Adds what its own used.
    pub(super) fn second(
        &mut self,
        all: &[SimulatedHost],
        allowed: &[f64],
        running: &[u32],
        used: &mut [f64],
        classes: Option<&mut ByClass>,
    ) {
        let share = |(place, own): (usize, u32)| match running[place] {
            0 => 0.0,
            in_all if in_all == own => allowed[place],
            in_all => allowed[place] * f64::from(own) / f64::from(in_all),
        };
        let cpu: Vec<f64> = self.running().map(share).collect();
        let before: Vec<f64> = self.workers.iter().map(|worker| self.batch.part(worker)).collect();
        let own = self.batch.second(&mut self.workers, &cpu);
        for (&place, own) in self.hosts.iter().zip(&own) {
            used[place] += own;
        }
        if let Some(seen) = classes {
            self.count_classes(seen, all, &before, &own);
        }
    }

    fn count_classes(&self, seen: &mut ByClass, all: &[SimulatedHost], before: &[f64], used: &[f64]) {
        seen.seconds += 1.0;
        for (index, (host, worker)) in self.places(all).enumerate() {
            let (done, cpu) = (self.batch.part(worker) - before[index], used[index] * 100.0);
            if done > 0.0 || cpu > 0.0 {
                seen.done += done;
                seen.cpu_percent_s += cpu;
                let class = seen.classes.entry(host.facts.cpu_model.clone()).or_default();
                class.0 += done;
                class.1 += cpu;
            }
        }
    }

    /// Books what the second cost it in hosts and energy. Gives its volunteers.
    pub(super) fn measure<S>(&mut self, scenario: &ClusterScenario<S>, all: &[SimulatedHost]) -> u32 {
        let mut volunteers = 0;
        let mut watts = 0.0;
        for (index, (host, worker)) in self.places(all).enumerate() {
            if host.is_dedicated() {
                watts += scenario.power.dedicated.watts(host.part(host.used));
            } else if host.present && (self.slots[index] > 0 || worker.running() > 0) {
                volunteers += 1;
                let (foreground, used) = (host.part(host.foreground), host.part(host.used));
                watts += marginal_watts(scenario.power.interactive, foreground, used);
            }
        }
        self.run.energy_wh += watts / 3_600.0;
        self.run.volunteer_s += f64::from(volunteers);
        volunteers
    }

    /// Books how the controller's account has it.
    pub(super) fn count_share(&mut self, status: Option<&JobStatus>) {
        let Some(share) = status.and_then(|status| status.share.as_ref()) else { return };
        self.shared_s += 1.0;
        *self.run.mean_fair_volunteers.get_or_insert(0.0) += share.fair;
        self.run.credit_host_s = Some(share.credit_s);
    }

    /// Utilisation of the disk of one of its dedicated hosts, by the host's place.
    pub(super) fn disk(&self, place: usize) -> Option<f64> {
        let index = self.hosts.iter().position(|&own| own == place)?;
        self.batch.utilisation.get(index).copied()
    }

    pub(super) fn progress(&self, all: &[SimulatedHost]) -> EngineProgress {
        let mut slots_in_use = 0;
        let mut tasks_running = 0;
        let mut workers = BTreeMap::new();
        for (host, worker) in self.places(all) {
            slots_in_use += worker.slots.max(worker.running());
            tasks_running += worker.running();
            if worker.running() > 0 || worker.done > 0.0 {
                let done = Fraction::clamped(self.batch.part(worker));
                workers.insert(host.id.clone(), WorkerProgress { tasks_running: worker.running(), done });
            }
        }
        EngineProgress {
            fraction_done: Fraction::clamped(self.batch.fraction(self.workers.iter())),
            tasks_total: self.profile.tasks,
            tasks_done: self.batch.tasks_done(),
            tasks_failed: 0,
            tasks_retried: 0,
            tasks_running,
            task_deviation_s: self.batch.task_deviation_s(),
            mean_task_s: self.batch.mean_task_s(),
            slots_in_use,
            workers,
            unusable: std::collections::BTreeSet::new(),
            leases: Vec::new(),
            stages: gleaner_types::stages::Stages::NotTold,
        }
    }

    /// It has ended, or the time limit is reached: after so many seconds of the run.
    pub(super) fn end<S>(&mut self, scenario: &ClusterScenario<S>, all: &[SimulatedHost], second: u32) {
        let elapsed_s = f64::from(second.saturating_sub(self.profile.arrives_s));
        let (prices, dedicated) = (scenario.prices, self.dedicated(all).count() as f64);
        let run = &mut self.run;
        run.completed = self.batch.is_done();
        run.elapsed_s = elapsed_s;
        let cost = prices.dedicated.over(elapsed_s, dedicated) + prices.volunteer.over(run.volunteer_s, 1.0);
        run.cost = cost.amount();
        run.mean_volunteers = if elapsed_s > 0.0 { run.volunteer_s / elapsed_s } else { 0.0 };
        run.mean_fair_volunteers = run.mean_fair_volunteers.map(|sum| sum / self.shared_s.max(1.0));
        run.deadline_met = match self.goal {
            Goal::Deadline { within_s } => Some(run.completed && elapsed_s <= within_s),
            Goal::Cost { .. } | Goal::Energy => None,
        };
        self.slots.fill(0);
    }

    /// When it would have been done fairly, in seconds since the start.
    pub(super) fn compare(&mut self, fair_end_s: Option<f64>) {
        let run = &mut self.run;
        run.fair_elapsed_s = fair_end_s.map(|end_s| end_s - f64::from(run.arrives_s));
        run.late_s = run.fair_elapsed_s.filter(|_| run.completed).map(|fair_s| run.elapsed_s - fair_s);
    }
}
