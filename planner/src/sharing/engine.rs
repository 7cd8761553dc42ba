//! Plays a schedule out on a cluster: events in the order of their times, no randomness. In: a workload, a policy, and where
//! the truth differs from what the policy is told ([`Truth`]). Out: when and where each task ran.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::input::{Need, Stage, Workload};
use super::progress::{Integral, Progress};
use super::resources::{ROUNDING, Resources};
use super::tasks::{Locality, Near, Queue};
use super::weights::Weights;

/// Part of a time by which sums of durations may be off.
pub(super) const TIME_ROUNDING: f64 = 1e-12;

/// The least part of its network with which a task may start that cannot wait. Chosen: at most four times as long.
const LEAST_NETWORK: f64 = 0.25;

/// Chooses what starts.
pub trait Policy {
    /// When it wants to be asked again though no task ends and no job arrives.
    fn wake_s(&self) -> Option<f64> {
        None
    }

    /// Starts tasks. It is asked at every event, after all that happens at that time.
    fn schedule(&mut self, state: &mut State<'_>);
}

/// A task that ran. Jobs, stages, tasks and nodes are positions in the workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Its job.
    pub job: usize,
    /// Its stage.
    pub stage: usize,
    /// Which task of the stage.
    pub task: usize,
    /// Its node.
    pub node: usize,
    /// Where that is, seen from its input.
    pub locality: Locality,
    /// When it began.
    pub start_s: f64,
    /// When it ended.
    pub end_s: f64,
    /// Network of its node's link that it held.
    pub network: f64,
    /// Network of the cluster switch that it held.
    pub switch: f64,
    /// Its node was lost before it ended, or before tasks that needed its output had read it; the task ran again.
    pub lost: bool,
}

/// A schedule that was played out.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Every task, in the order of their starts.
    pub runs: Vec<Run>,
    /// When each stage of each job ended; infinite for jobs that were left out.
    pub ends_s: Vec<Vec<f64>>,
}

impl Schedule {
    /// When a job ended.
    #[must_use]
    pub fn completion_s(&self, job: usize) -> f64 {
        self.ends_s[job].last().copied().unwrap_or(f64::INFINITY)
    }

    /// When the last job ended.
    #[must_use]
    pub fn makespan_s(&self) -> f64 {
        (0..self.ends_s.len()).map(|job| self.completion_s(job)).fold(0.0, f64::max)
    }
}

/// Where the truth differs from what a policy is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Truth {
    /// By what the durations of a job's stages have to be multiplied: (job, stage, factor); 1 where none is given.
    pub factors: Vec<(usize, usize, f64)>,
    /// Nodes that are lost for ever, and when.
    pub losses: Vec<(f64, usize)>,
}

/// What is free of a node.
#[derive(Debug, Clone, Copy)]
struct Place {
    free: Resources,
    running: u32,
    lost: bool,
}

/// A moment of the play.
#[derive(Debug, Clone)]
pub struct State<'a> {
    /// What is played.
    pub workload: &'a Workload,
    /// The time.
    pub now_s: f64,
    places: Vec<Place>,
    switch_free: f64,
    switch_running: u32,
    switch_used: Integral,
    jobs: Vec<Progress>,
    /// Jobs that have arrived and not ended, in their order.
    present: Vec<usize>,
    /// Jobs by their release, and how many have been released.
    arrivals: Vec<usize>,
    arrived: usize,
    known_until_s: f64,
    ends: BTreeMap<(u64, usize), Run>,
    schedule: Schedule,
    /// Nodes on which something may fit that did not before.
    fresh: Vec<bool>,
    all_fresh: bool,
    switch_freed: bool,
    factors: BTreeMap<(usize, usize), f64>,
    losses: Vec<(f64, usize)>,
    lost: usize,
    near: Near,
}

impl<'a> State<'a> {
    /// The job's stage that has tasks to start now, and how many.
    #[must_use]
    pub fn ready(&self, job: usize) -> Option<(&'a Stage, u32)> {
        let progress = &self.jobs[job];
        let stage = self.workload.jobs()[job].stages.get(progress.stage)?;
        (progress.released && progress.waiting() > 0).then_some((stage, progress.waiting()))
    }

    /// The job's stage, and how many of its tasks have not ended; `None` when the job has ended or not arrived.
    #[must_use]
    pub fn unfinished(&self, job: usize) -> Option<(usize, u32)> {
        let progress = &self.jobs[job];
        let unfinished = progress.unfinished(progress.stage).filter(|_| progress.released)?;
        Some((progress.stage, unfinished))
    }

    /// The number of what tasks of the job's stage need ([`Workload::kind`]); `None` when the job has ended.
    pub(super) fn kind(&self, job: usize) -> Option<usize> {
        self.workload.kind(job, self.jobs[job].stage)
    }

    /// How many tasks of a stage have not ended; after a loss a job can be at a stage while a later one is partly done.
    #[must_use]
    pub fn left(&self, job: usize, stage: usize) -> u32 {
        self.jobs[job].unfinished(stage).unwrap_or(self.workload.jobs()[job].stages[stage].tasks)
    }

    /// Whether the job has arrived.
    #[must_use]
    pub fn released(&self, job: usize) -> bool {
        self.jobs[job].released
    }

    /// Jobs that have arrived and not ended, in their order.
    #[must_use]
    pub fn present(&self) -> &[usize] {
        &self.present
    }

    /// The weights of the jobs that have arrived and not ended.
    pub(super) fn weights(&self) -> Weights {
        Weights::new(self.workload.tree(), &self.present)
    }

    /// What has run until now.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// How many jobs have arrived.
    #[must_use]
    pub const fn arrived(&self) -> usize {
        self.arrived
    }

    /// The jobs that have arrived, in the order of their releases.
    #[must_use]
    pub fn arrivals(&self) -> &[usize] {
        &self.arrivals[..self.arrived]
    }

    /// The nodes that have been lost, and when.
    #[must_use]
    pub fn lost(&self) -> &[(f64, usize)] {
        &self.losses[..self.lost]
    }

    /// By what the told durations of a stage have to be multiplied, once one of its tasks has ended.
    #[must_use]
    pub fn learned(&self, job: usize, stage: usize) -> Option<f64> {
        self.jobs[job].learned[stage]
    }

    /// The dominant share that the job holds.
    #[must_use]
    pub fn share(&self, job: usize) -> f64 {
        self.jobs[job].product.value
    }

    /// ∫ of the dominant share that the job held until now, without that of tasks that run again.
    #[must_use]
    pub fn product(&self, job: usize) -> f64 {
        self.jobs[job].product.at(self.now_s)
    }

    /// ∫ of the largest share but that of the network that the job held until now (§5.4.2).
    #[must_use]
    pub fn node_product(&self, job: usize) -> f64 {
        self.jobs[job].node_product.at(self.now_s)
    }

    /// ∫ of the network that was used of the cluster switch.
    #[must_use]
    pub fn switch_product(&self) -> f64 {
        self.switch_used.at(self.now_s)
    }

    /// The largest part that running tasks hold of all nodes' CPU, memory or disk, without nodes that were lost.
    #[must_use]
    pub fn node_utilisation(&self) -> f64 {
        let nodes = || self.places.iter().zip(&self.workload.cluster().nodes).filter(|(place, _)| !place.lost);
        let whole = nodes().fold(Resources::default(), |sum, (_, node)| sum.plus(node.capacity));
        let free = nodes().fold(Resources::default(), |sum, (place, _)| sum.plus(place.free));
        Resources { network: 0.0, ..whole.minus(free).over(whole) }.largest()
    }

    /// What the tasks of a stage take by all that is known: as told, until one has ended.
    #[must_use]
    pub fn duration_s(&self, job: usize, stage: usize) -> f64 {
        self.workload.jobs()[job].stages[stage].duration_s * self.jobs[job].learned[stage].unwrap_or(1.0)
    }

    /// What a task could have of a node: its free resources, and no more network than the cluster switch has free.
    #[must_use]
    pub fn free(&self, node: usize) -> Resources {
        let free = self.places[node].free;
        Resources { network: free.network.min(self.switch_free), ..free }
    }

    /// Whether what a task needs is free on the node.
    #[must_use]
    pub fn fits(&self, need: &Need, node: usize) -> bool {
        let place = &self.places[node];
        need.switch <= self.switch_free + ROUNDING * self.workload.cluster().switch
            && need.demand.fits(place.free, self.workload.cluster().nodes[node].capacity)
            && !place.lost
    }

    /// How many waiting tasks of the job have their input on the node; all of a stage without input.
    #[must_use]
    pub fn local(&self, job: usize, node: usize) -> u32 {
        self.jobs[job].queue().map_or(0, |queue| queue.local(node))
    }

    /// Whether the job has a waiting task whose input is on the node: [`Self::local`] is more than 0.
    pub(super) fn is_near(&self, job: usize, node: usize) -> bool {
        self.near.has(job, node)
    }

    /// The same of the node's rack, the node's own among them.
    #[must_use]
    pub fn in_rack(&self, job: usize, node: usize) -> u32 {
        self.jobs[job].queue().map_or(0, |queue| queue.in_rack(self.workload.rack(node)))
    }

    /// Where the job's next task would run on this node, seen from its input, and what it needs there; `None` where it has
    /// none to start or no room. A task that does not fit near its input does not fit elsewhere on the node either.
    #[must_use]
    pub fn option(&self, job: usize, node: usize) -> Option<(Locality, Need)> {
        let (stage, _) = self.ready(job)?;
        let locality = self.jobs[job].queue()?.locality(node, self.workload.rack(node));
        let need = stage.need(locality);
        self.fits(&need, node).then_some((locality, need))
    }

    /// Starts the job's nearest task on the node. False, and nothing is done, where it has none to start or no room.
    pub fn start(&mut self, job: usize, node: usize) -> bool {
        self.option(job, node).is_some_and(|(locality, need)| self.begin(job, node, locality, need))
    }

    /// The same for a task that cannot wait: where only the network is short, with what there is of it, and as much longer;
    /// but not where it ends earlier if it waits for the next task that gives network back, at `freed_s`.
    pub fn start_short(&mut self, job: usize, node: usize, freed_s: f64) -> bool {
        if self.start(job, node) {
            return true;
        }
        let Some(((stage, _), queue)) = self.ready(job).zip(self.jobs[job].queue()) else { return false };
        let locality = queue.locality(node, self.workload.rack(node));
        let need = stage.need(locality);
        let part = part(self.places[node].free.network, need.demand.network).min(part(self.switch_free, need.switch));
        if part < LEAST_NETWORK || self.now_s + need.duration_s / part > freed_s + need.duration_s {
            return false;
        }
        let demand = Resources { network: need.demand.network * part, ..need.demand };
        let short = Need { demand, switch: need.switch * part, duration_s: need.duration_s / part };
        self.fits(&short, node) && self.begin(job, node, locality, short)
    }

    /// Whether the cluster switch has enough for the least with which a task of the job may start.
    #[must_use]
    pub fn may_start_short(&self, job: usize) -> bool {
        let wanted = self.ready(job).map_or(f64::INFINITY, |(stage, _)| stage.demand.network);
        part(self.switch_free, wanted) >= LEAST_NETWORK
    }

    /// When the next task that uses the network ends by what was told; those that should have ended do not count.
    #[must_use]
    pub fn network_freed_s(&self) -> f64 {
        let declared_end_s = |run: &Run| {
            let factor = self.factors.get(&(run.job, run.stage)).copied().unwrap_or(1.0);
            run.start_s + (run.end_s - run.start_s) / factor
        };
        let running = self.ends.values().filter(|run| run.network > 0.0).map(declared_end_s);
        running.filter(|&at_s| at_s > self.now_s * (1.0 + TIME_ROUNDING)).fold(f64::INFINITY, f64::min)
    }

    fn begin(&mut self, job: usize, node: usize, locality: Locality, need: Need) -> bool {
        let (holders, rack) = (self.workload.holders(job, self.jobs[job].stage), self.workload.rack(node));
        let Some(queue) = self.jobs[job].queue_mut() else { return false };
        let Some(task) = queue.take(holders, node, rack) else { return false };
        self.near.update(job, queue, holders.map(|holders| holders.nodes.of(task)));
        let place = &mut self.places[node];
        place.free = place.free.minus(need.demand);
        place.running += 1;
        if need.switch > 0.0 {
            self.switch_running += 1;
            self.use_switch(need.switch);
        }
        let stage = self.jobs[job].stage;
        self.jobs[job].started();
        self.hold(job);
        let factor = self.factors.get(&(job, stage)).copied().unwrap_or(1.0);
        let run = Run {
            job,
            stage,
            task,
            node,
            locality,
            start_s: self.now_s,
            end_s: self.now_s + need.duration_s * factor,
            network: need.demand.network,
            switch: need.switch,
            lost: false,
        };
        self.ends.insert((run.end_s.to_bits(), self.schedule.runs.len()), run);
        self.schedule.runs.push(run);
        true
    }

    /// The share that a job holds has changed.
    fn hold(&mut self, job: usize) {
        let (workload, progress) = (self.workload, &mut self.jobs[job]);
        let (mut share, mut node_share) = (0.0, 0.0);
        for (stage, running) in workload.jobs()[job].stages.iter().zip(progress.running()) {
            share += f64::from(running) * workload.task_share(stage);
            node_share += f64::from(running) * workload.node_share(stage);
        }
        progress.product.set(self.now_s, share);
        progress.node_product.set(self.now_s, node_share);
    }

    fn use_switch(&mut self, more: f64) {
        let whole = self.workload.cluster().switch;
        // No rounding is left in an idle switch.
        self.switch_free = if self.switch_running == 0 { whole } else { self.switch_free - more };
        self.switch_used.set(self.now_s, whole - self.switch_free);
    }

    /// The nodes on which something may fit that did not when they were last asked for, in their order. A policy that
    /// leaves a task waiting that fits says so with [`Self::ask_again`].
    pub fn take_fresh(&mut self) -> Vec<usize> {
        let network = || {
            let mut ready = self.present.iter().filter_map(|&job| self.ready(job));
            ready.any(|(stage, _)| stage.need(Locality::OffRack).switch > 0.0)
        };
        let all = self.all_fresh || (self.switch_freed && network());
        let nodes =
            (0..self.places.len()).filter(|&node| (all || self.fresh[node]) && !self.places[node].lost).collect();
        self.all_fresh = false;
        self.switch_freed = false;
        self.fresh.fill(false);
        nodes
    }

    /// A node is among the fresh ones again.
    pub fn ask_again(&mut self, node: usize) {
        self.fresh[node] = true;
    }

    /// All nodes are.
    pub fn ask_all_again(&mut self) {
        self.all_fresh = true;
    }

    fn release(&mut self) {
        while let Some(&job) = self.arrivals.get(self.arrived) {
            let at = self.workload.jobs()[job].release_s;
            if at > self.now_s || at > self.known_until_s {
                return;
            }
            self.arrived += 1;
            self.jobs[job].released = true;
            self.go_to(job, 0);
            let place = self.present.partition_point(|&other| other < job);
            self.present.insert(place, job);
        }
    }

    /// Tasks of this stage of a job are due.
    fn go_to(&mut self, job: usize, stage: usize) {
        self.mark(job, false);
        self.jobs[job].stage = stage;
        let (workload, nodes) = (self.workload, self.places.len());
        self.jobs[job].enter(|stage| {
            let tasks = workload.jobs()[job].stages[stage].tasks;
            Queue::new(tasks, workload.holders(job, stage), nodes, workload.racks())
        });
        self.mark(job, true);
        self.all_fresh |= self.jobs[job].waiting() > 0;
    }

    /// Notes for all nodes whether they hold inputs of the job's waiting tasks; of none, where the stage is no longer due.
    fn mark(&mut self, job: usize, due: bool) {
        let progress = &self.jobs[job];
        let none = Queue::default();
        let Some(queue) = progress.queue() else { return };
        let queue = if due { queue } else { &none };
        let Some(holders) = self.workload.holders(job, progress.stage) else {
            return self.near.update(job, queue, None);
        };
        for task in 0..self.workload.jobs()[job].stages[progress.stage].tasks as usize {
            self.near.update(job, queue, Some(holders.nodes.of(task)));
        }
    }

    fn leave(&mut self, run: &Run) {
        let demand = self.workload.jobs()[run.job].stages[run.stage].demand;
        let place = &mut self.places[run.node];
        place.running -= 1;
        place.free = place.free.plus(Resources { network: run.network, ..demand });
        if place.running == 0 {
            // No rounding is left in an empty node.
            place.free = self.workload.cluster().nodes[run.node].capacity;
        }
        self.fresh[run.node] = true;
        if run.switch > 0.0 {
            self.switch_running -= 1;
            self.use_switch(-run.switch);
            self.switch_freed = true;
        }
        self.jobs[run.job].stopped(run.stage);
    }

    /// Ends the tasks whose time has come. Times that differ only by rounding are one.
    fn end(&mut self) {
        let until = self.now_s * (1.0 + TIME_ROUNDING);
        while let Some(entry) = self.ends.first_entry() {
            if entry.get().end_s > until {
                return;
            }
            let run = entry.remove();
            self.leave(&run);
            let factor = self.factors.get(&(run.job, run.stage)).copied();
            let progress = &mut self.jobs[run.job];
            progress.learned[run.stage] = Some(factor.unwrap_or(1.0));
            let (due, stages) = (progress.due(), progress.learned.len());
            self.hold(run.job);
            if due <= run.stage {
                continue;
            }
            self.schedule.ends_s[run.job][run.stage] = run.end_s;
            self.go_to(run.job, due);
            if due == stages {
                self.present.retain(|&job| job != run.job);
            }
        }
    }

    /// Loses the nodes whose time has come: their tasks wait again, and those whose outputs lay there and are needed.
    fn lose(&mut self) {
        while let Some(&(_, node)) = self.losses.get(self.lost).filter(|(at_s, _)| *at_s <= self.now_s) {
            self.lost += 1;
            let on_node = self.ends.iter().filter(|(_, run)| run.node == node).map(|(key, _)| *key);
            for key in on_node.collect::<Vec<_>>() {
                let Some(run) = self.ends.remove(&key) else { continue };
                self.leave(&run);
                self.schedule.runs[key.1].end_s = self.now_s;
                self.hold(run.job);
                self.run_again(key.1);
            }
            self.places[node].lost = true;
            self.places[node].free = Resources::default();
            self.lose_outputs();
            for job in self.present.clone() {
                self.go_to(job, self.jobs[job].due());
            }
            self.all_fresh = true;
        }
    }

    /// A task waits again, and what it had is not counted as had.
    fn run_again(&mut self, index: usize) {
        let run = &mut self.schedule.runs[index];
        run.lost = true;
        let (held_s, stage) = (run.end_s - run.start_s, &self.workload.jobs()[run.job].stages[run.stage]);
        let progress = &mut self.jobs[run.job];
        progress.put_back(self.workload, run.job, run.stage, run.task);
        progress.product.sum -= self.workload.task_share(stage) * held_s;
        progress.node_product.sum -= self.workload.node_share(stage) * held_s;
    }

    /// Tasks that ended on lost nodes run again where tasks that have not started need what they wrote. From the last stage to
    /// the first: a task that runs again needs its own inputs.
    fn lose_outputs(&mut self) {
        let mut written: BTreeMap<(usize, Reverse<usize>), Vec<usize>> = BTreeMap::new();
        for (index, run) in self.schedule.runs.iter().enumerate() {
            let running = || self.ends.contains_key(&(run.end_s.to_bits(), index));
            let on_lost = !run.lost && self.places[run.node].lost && self.present.binary_search(&run.job).is_ok();
            if on_lost && !running() {
                written.entry((run.job, Reverse(run.stage))).or_default().push(index);
            }
        }
        for ((job, Reverse(stage)), runs) in written {
            if self.jobs[job].is_read(stage) {
                runs.into_iter().for_each(|index| self.run_again(index));
            }
        }
    }

    /// The next time at which something happens; `None` when nothing ever does.
    fn next_s(&self, wake_s: Option<f64>) -> Option<f64> {
        let coming = self.arrivals.get(self.arrived).map(|&job| self.workload.jobs()[job].release_s);
        let arrival = coming.filter(|&at| at <= self.known_until_s);
        let end = self.ends.first_key_value().map(|(_, run)| run.end_s);
        let waiting = !self.present.is_empty();
        let startable = || end.is_some() || arrival.is_some() || self.any_fits();
        let loss = self.losses.get(self.lost).map(|(at_s, _)| *at_s).filter(|_| waiting || arrival.is_some());
        let event = [arrival, end, loss].into_iter().flatten().min_by(f64::total_cmp);
        // Between two jobs nothing needs a decision. A wish that differs from an event only by rounding is that event.
        let latest = event.map_or(f64::INFINITY, |event| event * (1.0 - TIME_ROUNDING));
        wake_s.filter(|&at| at > self.now_s && at < latest && waiting && startable()).or(event)
    }

    /// Whether any task could start now, whatever a policy waits for.
    fn any_fits(&self) -> bool {
        self.present.iter().any(|&job| (0..self.places.len()).any(|node| self.option(job, node).is_some()))
    }
}

/// What is free of what is wanted, as a part.
fn part(free: f64, wanted: f64) -> f64 {
    if wanted > 0.0 { (free / wanted).clamp(0.0, 1.0) } else { 1.0 }
}

/// A play that can be watched.
#[derive(Debug, Clone)]
pub struct Play<'a> {
    /// Where it is.
    pub state: State<'a>,
}

impl<'a> Play<'a> {
    /// Begins. Jobs that arrive after `known_until_s` are left out.
    #[must_use]
    pub fn new(workload: &'a Workload, truth: &Truth, known_until_s: f64) -> Self {
        let jobs = workload.jobs();
        let nodes = &workload.cluster().nodes;
        let mut arrivals: Vec<usize> = (0..jobs.len()).collect();
        arrivals.sort_by(|&a, &b| jobs[a].release_s.total_cmp(&jobs[b].release_s));
        let mut losses = truth.losses.clone();
        losses.sort_by(|a, b| a.0.total_cmp(&b.0));
        let state = State {
            workload,
            now_s: 0.0,
            places: nodes.iter().map(|node| Place { free: node.capacity, running: 0, lost: false }).collect(),
            switch_free: workload.cluster().switch,
            switch_running: 0,
            switch_used: Integral::default(),
            jobs: jobs.iter().map(|job| Progress::new(job.stages.len())).collect(),
            present: Vec::new(),
            arrivals,
            arrived: 0,
            known_until_s,
            ends: BTreeMap::new(),
            schedule: Schedule {
                runs: Vec::new(),
                ends_s: jobs.iter().map(|job| vec![f64::INFINITY; job.stages.len()]).collect(),
            },
            fresh: vec![true; nodes.len()],
            all_fresh: true,
            switch_freed: false,
            factors: truth.factors.iter().map(|&(job, stage, factor)| ((job, stage), factor)).collect(),
            losses,
            lost: 0,
            near: Near::new(nodes.len(), jobs.len()),
        };
        Self { state }
    }

    /// Ends tasks, loses nodes, releases jobs, and asks the policy. False when nothing happens any more.
    pub fn step(&mut self, policy: &mut dyn Policy) -> bool {
        self.happen();
        policy.schedule(&mut self.state);
        let next_s = self.state.next_s(policy.wake_s());
        self.state.now_s = next_s.unwrap_or(self.state.now_s);
        next_s.is_some()
    }

    /// Goes on to a later time without asking a policy, as a scheduler does that runs at intervals: what ended since ends now.
    pub fn skip_to(&mut self, at_s: f64) {
        self.state.now_s = self.state.now_s.max(at_s);
        self.happen();
    }

    /// What happens at this time before the policy is asked.
    fn happen(&mut self) {
        self.state.end();
        self.state.lose();
        self.state.release();
    }
}

/// Plays a policy out, until all jobs that arrive by `known_until_s` have ended. The later ones are left out.
pub fn play(workload: &Workload, policy: &mut dyn Policy, known_until_s: f64) -> Schedule {
    play_in(workload, policy, &Truth::default(), known_until_s)
}

/// The same where the truth differs from what the policy is told. Jobs whose tasks fit no node that is left never end.
pub fn play_in(workload: &Workload, policy: &mut dyn Policy, truth: &Truth, known_until_s: f64) -> Schedule {
    let mut play = Play::new(workload, truth, known_until_s);
    while play.step(policy) {}
    play.state.schedule
}
