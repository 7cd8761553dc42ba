//! A MapReduce cluster task by task on a virtual clock: what the models are judged on. It shares no equation with them. In:
//! workloads, nodes, what happens to them, a seed. Out: what a controller sees at any time, and when jobs end.
//!
//! Modelled after Hadoop 1: a slot asks for a task with its node's heartbeat; tasks of a core share it; reduce tasks start
//! early (slow start), copy map outputs while maps run, and merge, sort and write when the last is copied. A node that leaves takes finished map output
//! of jobs with reduce tasks with it, and those tasks run again, copied or not (Gandhi et al., §V-B). Jobs share slots by
//! weight without preemption (CapacityScheduler). Every task's time has its own noise, every node its own speed.

use gleaner_simulator::random::Random;

/// Time between two heartbeats of a node: Hadoop 1's least.
const HEARTBEAT_S: f64 = 3.0;
/// Part of the map tasks after which reduce tasks start: Hadoop's default of `mapred.reduce.slowstart.completed.maps`.
const SLOW_START: f64 = 0.05;
/// Streams of random numbers: node speeds, heartbeats, map tasks, reduce tasks.
const STREAMS: [u64; 4] = [1, 2, 3, 4];
/// Events after which a run is given up: far more than any has.
const MOST_EVENTS: usize = 2_000_000;

/// How tasks of a workload behave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// From a job's submission to its first task, in seconds: Hadoop's setup task.
    pub set_up_s: f64,
    /// A task's start, commit and end, without the wait for a heartbeat, in CPU seconds.
    pub start_s: f64,
    /// CPU seconds of a map task for a MB.
    pub map_s_per_mb: f64,
    /// MB of a map task that are sorted in memory; the rest costs `spill_s_per_mb` more.
    pub sort_mb: f64,
    /// CPU seconds for a MB beyond `sort_mb`.
    pub spill_s_per_mb: f64,
    /// Map output over map input.
    pub output_ratio: f64,
    /// Copying speed of a reduce task in MB/s.
    pub copy_mb_per_s: f64,
    /// Seconds to merge a MB of copied output.
    pub merge_s_per_mb: f64,
    /// Seconds to open a copied segment.
    pub segment_s: f64,
    /// Seconds to reduce and write a MB.
    pub reduce_s_per_mb: f64,
    /// Coefficient of variation of the time of a task of at most `part_s`.
    pub variation: f64,
    /// A longer task is the sum of independent parts of this length, in CPU seconds: spills and passes of a merge. Infinite for tasks whose
    /// variation does not depend on their length.
    pub part_s: f64,
}

impl Workload {
    /// Coefficient of variation of a task of so many seconds: of n independent parts it is that of one over √n.
    #[must_use]
    pub fn variation_of(&self, seconds: f64) -> f64 {
        self.variation * (self.part_s / seconds).sqrt().min(1.0)
    }
}

/// A job of the plant.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// When it is submitted.
    pub submitted_s: f64,
    /// Its input.
    pub input_mb: f64,
    /// Its map tasks, of nearly equal input.
    pub maps: u32,
    /// Its reduce tasks.
    pub reduces: u32,
    /// Its weight.
    pub weight: f64,
    /// It waits for the end of this job.
    pub after: Option<usize>,
    /// What it does.
    pub workload: Workload,
}

impl Job {
    /// What a reduce task copies, in MB.
    fn reduce_mb(&self) -> f64 {
        self.input_mb * self.workload.output_ratio / f64::from(self.reduces)
    }

    /// CPU seconds of a reduce task after copying, without noise.
    fn reduce_s(&self) -> f64 {
        let own = &self.workload;
        let per_mb = own.merge_s_per_mb + own.reduce_s_per_mb;
        own.start_s + self.reduce_mb() * per_mb + f64::from(self.maps) * own.segment_s
    }
}

/// A node of the plant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// Cores.
    pub cores: u32,
    /// Map slots per core.
    pub map_slots: u32,
    /// Reduce slots per core.
    pub reduce_slots: u32,
    /// When it takes its first task.
    pub from_s: f64,
    /// The job that alone may use it.
    pub only_for: Option<usize>,
}

/// Where a map task of a job is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum MapState {
    Waiting,
    Running,
    Done { node: usize },
}

/// What a running task is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// A map task computes.
    Map,
    /// A reduce task copies, starting with the outputs that are there; it waits while there are none.
    Copy,
    /// It merges, sorts and writes.
    Reduce,
}

#[derive(Debug, Clone, PartialEq)]
struct Running {
    job: usize,
    task: usize,
    node: usize,
    core: u32,
    step: Step,
    /// Work left in this step, in seconds of a core of speed 1 (of time, for copying).
    left: f64,
    /// Work of the whole step.
    whole: f64,
    /// Map outputs copied.
    copied: u32,
    noise: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Core {
    /// When the node's next heartbeat may give it a task.
    next_s: f64,
    /// Since when it has none.
    idle_s: f64,
}

#[derive(Debug, Clone)]
struct LiveNode {
    node: Node,
    speed: f64,
    left: bool,
    /// A failed node still holds its slots until that is noticed, but its tasks stand still.
    dead: bool,
    map_free: Vec<Core>,
    reduce_free: Vec<Core>,
}

#[derive(Debug, Clone)]
struct LiveJob {
    job: Job,
    maps: Vec<MapState>,
    sizes_mb: Vec<f64>,
    /// Times that map tasks were started, for the noise of each attempt.
    attempts: u64,
    /// Seconds that map slots of each node had for the job: its tasks, and what they waited for.
    slot_s: Vec<f64>,
    reduces_waiting: Vec<usize>,
    reduces_done: u32,
    first_map_s: Option<f64>,
    maps_end_s: Option<f64>,
    end_s: Option<f64>,
    again: u32,
}

/// What a controller sees of a node for one job.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenNode {
    /// Number of the node.
    pub node: usize,
    /// Finished map tasks whose output is there.
    pub maps_done: u32,
    /// Time that its map slots had for the job, over finished tasks and parts of running ones.
    pub map_pace_s: Option<f64>,
    /// Progress of running map tasks.
    pub maps_running: Vec<f64>,
    /// Progress of running reduce tasks after copying.
    pub reduces_running: Vec<f64>,
}

/// When the stages of a job were over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stages {
    /// Before the first map task.
    pub set_up_s: f64,
    /// From there to the end of the last.
    pub map_s: f64,
    /// From there to the end of the last reduce task.
    pub reduce_s: f64,
    /// The end.
    pub end_s: f64,
}

/// The cluster.
#[derive(Debug, Clone)]
pub struct Plant {
    /// Now.
    pub now_s: f64,
    nodes: Vec<LiveNode>,
    jobs: Vec<LiveJob>,
    running: Vec<Running>,
    heartbeats: Random,
    reduce_noise: Random,
    seed: u64,
    /// How much nodes differ in speed.
    node_variation: f64,
}

impl Plant {
    /// An empty cluster, whose nodes differ in speed by this coefficient of variation.
    #[must_use]
    pub fn new(seed: u64, node_variation: f64) -> Self {
        Self {
            now_s: 0.0,
            nodes: Vec::new(),
            jobs: Vec::new(),
            running: Vec::new(),
            heartbeats: Random::part(seed, STREAMS[1]),
            reduce_noise: Random::part(seed, STREAMS[3]),
            seed,
            node_variation,
        }
    }

    /// Adds a node; its number.
    pub fn add(&mut self, node: Node) -> usize {
        let index = self.nodes.len();
        let mut random = Random::part(self.seed, (STREAMS[0] << 32) + index as u64);
        let speed = random.around_one(self.node_variation);
        let mut slots = |per_core: u32| {
            let mut core =
                |_| Core { next_s: node.from_s + self.heartbeats.uniform() * HEARTBEAT_S, idle_s: node.from_s };
            (0..node.cores * per_core).map(&mut core).collect()
        };
        let (map_free, reduce_free) = (slots(node.map_slots), slots(node.reduce_slots));
        self.nodes.push(LiveNode { node, speed, left: false, dead: false, map_free, reduce_free });
        index
    }

    /// Submits a job; its number.
    pub fn submit(&mut self, job: Job) -> usize {
        let index = self.jobs.len();
        // Blocks are full but for the ends of files: sizes vary by a few percent around D/M.
        let mut random = Random::part(self.seed, (STREAMS[2] << 32) + (index as u64) * 1_000_000);
        let mut sizes_mb: Vec<f64> = (0..job.maps).map(|_| random.around_one(0.02)).collect();
        let sum: f64 = sizes_mb.iter().sum();
        sizes_mb.iter_mut().for_each(|size| *size *= job.input_mb / sum);
        self.jobs.push(LiveJob {
            maps: vec![MapState::Waiting; job.maps as usize],
            sizes_mb,
            attempts: 0,
            slot_s: Vec::new(),
            reduces_waiting: (0..job.reduces as usize).rev().collect(),
            reduces_done: 0,
            first_map_s: None,
            maps_end_s: None,
            end_s: None,
            again: 0,
            job,
        });
        index
    }

    /// A node leaves now: what runs there starts again elsewhere, and finished map tasks of jobs that still need their output.
    pub fn remove(&mut self, node: usize) {
        self.nodes[node].left = true;
        let (lost, kept): (Vec<Running>, Vec<Running>) =
            std::mem::take(&mut self.running).into_iter().partition(|own| own.node == node);
        self.running = kept;
        for own in lost {
            let job = &mut self.jobs[own.job];
            match own.step {
                Step::Map => job.maps[own.task] = MapState::Waiting,
                Step::Copy | Step::Reduce => job.reduces_waiting.push(own.task),
            }
        }
        for job in self.jobs.iter_mut().filter(|job| job.end_s.is_none() && job.job.reduces > 0) {
            for state in &mut job.maps {
                if matches!(state, MapState::Done { node: own } if *own == node) {
                    *state = MapState::Waiting;
                    job.again += 1;
                    job.maps_end_s = None;
                }
            }
        }
    }

    /// A node stops working now; nobody has noticed yet.
    pub fn fail(&mut self, node: usize) {
        self.nodes[node].dead = true;
    }

    /// Finished map tasks of a job that had to run again.
    #[must_use]
    pub fn again(&self, job: usize) -> u32 {
        self.jobs[job].again
    }

    /// When a job ended.
    #[must_use]
    pub fn end_s(&self, job: usize) -> Option<f64> {
        self.jobs[job].end_s
    }

    /// When all map tasks of a job had ended.
    #[must_use]
    pub fn maps_end_s(&self, job: usize) -> Option<f64> {
        self.jobs[job].maps_end_s
    }

    /// Stages of a job that has ended.
    #[must_use]
    pub fn stages(&self, job: usize) -> Option<Stages> {
        let own = &self.jobs[job];
        let (end_s, first_s, maps_s) = (own.end_s?, own.first_map_s?, own.maps_end_s?);
        let begin_s = self.begins_s(job)?;
        Some(Stages { set_up_s: first_s - begin_s, map_s: maps_s - first_s, reduce_s: end_s - maps_s, end_s })
    }

    /// What is seen of a job on each node that has not left.
    #[must_use]
    pub fn seen(&self, job: usize) -> Vec<SeenNode> {
        let own = &self.jobs[job];
        let alive = (0..self.nodes.len()).filter(|node| !self.nodes[*node].left);
        let seen = |node: usize| {
            let done = own.maps.iter().filter(|state| **state == MapState::Done { node }).count();
            let here = || self.running.iter().filter(|task| task.job == job && task.node == node);
            let part = |task: &Running| (1.0 - task.left / task.whole).clamp(0.0, 1.0);
            let after_copy = |task: &Running| if task.step == Step::Reduce { part(task) } else { 0.0 };
            let maps_running: Vec<f64> = here().filter(|task| task.step == Step::Map).map(part).collect();
            let slot_s = own.slot_s.get(node).copied().unwrap_or(0.0);
            SeenNode {
                node,
                maps_done: u32::try_from(done).unwrap_or(u32::MAX),
                map_pace_s: (done > 0).then(|| slot_s / (done as f64 + maps_running.iter().sum::<f64>())),
                maps_running,
                reduces_running: here().filter(|task| task.step != Step::Map).map(after_copy).collect(),
            }
        };
        alive.map(seen).collect()
    }

    /// Finished reduce tasks of a job.
    #[must_use]
    pub fn reduces_done(&self, job: usize) -> u32 {
        self.jobs[job].reduces_done
    }

    /// Part of a job's map tasks that is finished.
    #[must_use]
    pub fn part_done(&self, job: usize) -> f64 {
        let maps = &self.jobs[job].maps;
        maps.iter().filter(|state| matches!(state, MapState::Done { .. })).count() as f64 / maps.len() as f64
    }

    /// When a job begins: at its submission or after the job that it waits for.
    fn begins_s(&self, job: usize) -> Option<f64> {
        let own = &self.jobs[job].job;
        let before_s = match own.after {
            Some(before) => self.jobs[before].end_s?,
            None => 0.0,
        };
        Some(own.submitted_s.max(before_s))
    }

    fn can_start(&self, job: usize) -> bool {
        let set_up_s = self.jobs[job].job.workload.set_up_s;
        self.jobs[job].end_s.is_none() && self.begins_s(job).is_some_and(|at| at + set_up_s <= self.now_s + 1e-9)
    }

    /// Runs until a time, or until the job has ended.
    pub fn run(&mut self, until_s: f64, job: usize) {
        for _ in 0..MOST_EVENTS {
            if self.jobs[job].end_s.is_some() || self.now_s >= until_s {
                return;
            }
            self.assign();
            let next_s = self.next_event_s().min(until_s);
            if !next_s.is_finite() {
                return;
            }
            self.advance(next_s);
        }
    }

    /// Runs until the map stage of a job is over.
    pub fn run_map_stage(&mut self, job: usize) {
        for _ in 0..MOST_EVENTS {
            if self.jobs[job].maps_end_s.is_some() {
                return;
            }
            self.assign();
            let next_s = self.next_event_s();
            if !next_s.is_finite() {
                return;
            }
            self.advance(next_s);
        }
    }

    /// CPU that a task of this core gets: it is shared by those that compute. Copying takes none.
    fn rate(&self, own: &Running) -> f64 {
        let node = &self.nodes[own.node];
        if node.dead {
            return 0.0;
        }
        if own.step == Step::Copy {
            return 1.0;
        }
        let same = |task: &&Running| task.node == own.node && task.core == own.core && task.step != Step::Copy;
        node.speed / self.running.iter().filter(same).count().max(1) as f64
    }

    fn next_event_s(&self) -> f64 {
        let mut next_s = f64::INFINITY;
        for own in &self.running {
            let rate = self.rate(own);
            if rate > 0.0 && own.left.is_finite() {
                next_s = next_s.min(self.now_s + own.left / rate);
            }
        }
        for node in self.nodes.iter().filter(|node| !node.left && !node.dead) {
            let later = node.map_free.iter().chain(&node.reduce_free).map(|core| core.next_s);
            next_s = later.filter(|at| *at > self.now_s + 1e-9).fold(next_s, f64::min);
        }
        for job in 0..self.jobs.len() {
            let starts = self.begins_s(job).map(|at| at + self.jobs[job].job.workload.set_up_s);
            next_s = starts.filter(|at| *at > self.now_s + 1e-9).map_or(next_s, |at| next_s.min(at));
        }
        next_s
    }

    fn advance(&mut self, to_s: f64) {
        let rates: Vec<f64> = self.running.iter().map(|own| self.rate(own)).collect();
        let step_s = to_s - self.now_s;
        self.now_s = to_s;
        for (own, rate) in self.running.iter_mut().zip(rates) {
            own.left -= rate * step_s;
            if own.step == Step::Map {
                had(&mut self.jobs[own.job].slot_s, own.node, step_s);
            }
        }
        // A task that ends may give another reduce task something to copy; so once more while any ends.
        while let Some(at) = self.running.iter().position(|own| own.left <= 1e-7) {
            self.step_ends(at);
        }
    }

    fn step_ends(&mut self, at: usize) {
        let (job, node) = (self.running[at].job, self.running[at].node);
        match self.running[at].step {
            Step::Map => {
                let own = self.running.swap_remove(at);
                self.jobs[job].maps[own.task] = MapState::Done { node };
                self.free(node, true);
                self.map_ended(job);
            }
            Step::Copy => self.copy_more(at),
            Step::Reduce => {
                self.running.swap_remove(at);
                self.jobs[job].reduces_done += 1;
                self.free(node, false);
                if self.jobs[job].reduces_done == self.jobs[job].job.reduces {
                    self.jobs[job].end_s = Some(self.now_s);
                }
            }
        }
    }

    /// The slot asks with its node's next heartbeat.
    fn free(&mut self, node: usize, map: bool) {
        let core = Core { next_s: self.now_s + self.heartbeats.uniform() * HEARTBEAT_S, idle_s: self.now_s };
        let own = &mut self.nodes[node];
        if map { own.map_free.push(core) } else { own.reduce_free.push(core) }
    }

    fn map_ended(&mut self, job: usize) {
        let own = &mut self.jobs[job];
        if own.maps.iter().all(|state| matches!(state, MapState::Done { .. })) {
            own.maps_end_s = Some(self.now_s);
            if own.job.reduces == 0 {
                own.end_s = Some(self.now_s);
            }
        }
        // Reduce tasks that wait for output have some.
        for at in 0..self.running.len() {
            if self.running[at].job == job && self.running[at].step == Step::Copy && self.running[at].left.is_infinite()
            {
                self.copy_more(at);
            }
        }
    }

    /// What a reduce task does next after copying: copies what has come, waits, or merges and reduces.
    fn copy_more(&mut self, at: usize) {
        let (job, copied) = (self.running[at].job, self.running[at].copied);
        let own = &self.jobs[job];
        let there = own.maps.iter().filter(|state| matches!(state, MapState::Done { .. })).count();
        let there = u32::try_from(there).unwrap_or(u32::MAX);
        let workload = own.job.workload;
        let output_mb = own.job.reduce_mb();
        let core = self.idlest(self.running[at].node);
        let own = &self.jobs[job];
        let task = &mut self.running[at];
        let (step, left) = if there > copied {
            let segments = f64::from(there - copied);
            task.copied = there;
            (Step::Copy, segments * output_mb / f64::from(own.job.maps) / workload.copy_mb_per_s)
        } else if own.maps_end_s.is_some() {
            task.core = core;
            (Step::Reduce, own.job.reduce_s() * task.noise)
        } else {
            (Step::Copy, f64::INFINITY)
        };
        task.step = step;
        task.left = left.max(1e-6);
        task.whole = task.left;
    }

    /// The core with the fewest tasks that compute, as an operating system chooses: what copies needs none.
    fn idlest(&self, node: usize) -> u32 {
        let load = |core: u32| {
            let here = |own: &&Running| own.node == node && own.core == core && own.step != Step::Copy;
            self.running.iter().filter(here).count()
        };
        (0..self.nodes[node].node.cores).min_by_key(|core| load(*core)).unwrap_or(0)
    }

    /// Gives every slot whose heartbeat has come a task.
    fn assign(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].left || self.nodes[node].dead {
                continue;
            }
            for map in [true, false] {
                while let Some(slot) = self.ready_slot(node, map) {
                    let Some(job) = self.next_job(node, map) else { break };
                    self.start(node, slot, job, map);
                }
            }
        }
    }

    fn ready_slot(&self, node: usize, map: bool) -> Option<usize> {
        let free = if map { &self.nodes[node].map_free } else { &self.nodes[node].reduce_free };
        free.iter().position(|core| core.next_s <= self.now_s + 1e-9)
    }

    fn has_task(&self, job: usize, map: bool) -> bool {
        let own = &self.jobs[job];
        if !self.can_start(job) {
            return false;
        }
        if map {
            return own.maps.contains(&MapState::Waiting);
        }
        !own.reduces_waiting.is_empty() && self.part_done(job) >= SLOW_START
    }

    /// The job with the fewest running tasks for its weight among those that may use the node.
    fn next_job(&self, node: usize, map: bool) -> Option<usize> {
        let only = self.nodes[node].node.only_for;
        let may = |job: &usize| only.is_none_or(|own| own == *job) && self.has_task(*job, map);
        let shared = |task: &&Running| self.nodes[task.node].node.only_for.is_none() && (task.step == Step::Map) == map;
        let load = |job: usize| {
            let tasks = self.running.iter().filter(shared).filter(|task| task.job == job).count();
            tasks as f64 / self.jobs[job].job.weight
        };
        (0..self.jobs.len()).filter(may).min_by(|a, b| load(*a).total_cmp(&load(*b)))
    }

    fn start(&mut self, node: usize, slot: usize, job: usize, map: bool) {
        let now_s = self.now_s;
        let heartbeat_s = self.heartbeats.uniform() * HEARTBEAT_S;
        let core = self.idlest(node);
        let free = if map { &mut self.nodes[node].map_free } else { &mut self.nodes[node].reduce_free };
        let idle_s = free.swap_remove(slot).idle_s;
        // Each heartbeat gives a node one task of a kind.
        free.iter_mut().filter(|core| core.next_s <= now_s + 1e-9).for_each(|core| core.next_s = now_s + heartbeat_s);
        let own = &mut self.jobs[job];
        let workload = own.job.workload;
        if !map {
            let task = own.reduces_waiting.pop().unwrap_or(0);
            let noise = self.reduce_noise.around_one(workload.variation_of(own.job.reduce_s()));
            self.running.push(Running {
                job,
                task,
                node,
                core,
                step: Step::Copy,
                left: f64::INFINITY,
                whole: 1.0,
                copied: 0,
                noise,
            });
            self.copy_more(self.running.len() - 1);
            return;
        }
        let task = own.maps.iter().position(|state| *state == MapState::Waiting).unwrap_or(0);
        own.maps[task] = MapState::Running;
        let first_s = *own.first_map_s.get_or_insert(now_s);
        had(&mut own.slot_s, node, now_s - idle_s.max(first_s));
        own.attempts += 1;
        let stream = (STREAMS[2] << 32) + (job as u64) * 1_000_000 + own.attempts;
        let size = own.sizes_mb[task];
        let spilled = (size - workload.sort_mb).max(0.0);
        let seconds = workload.start_s + workload.map_s_per_mb * size + workload.spill_s_per_mb * spilled;
        let noise = Random::part(self.seed, stream).around_one(workload.variation_of(seconds));
        let left = seconds * noise;
        self.running.push(Running { job, task, node, core, step: Step::Map, left, whole: left, copied: 0, noise });
    }
}

/// Adds seconds to a node's.
fn had(slot_s: &mut Vec<f64>, node: usize, seconds: f64) {
    if slot_s.len() <= node {
        slot_s.resize(node + 1, 0.0);
    }
    slot_s[node] += seconds;
}
