//! One look at a partition after the other. In: the hosts that the controller wants, the time, and what Slurm's tools say.
//! Out: progress; nodes resumed and drained; arrays bound by credit. Called by the runner.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gleaner_planner::queue::{Array, Turn};
use gleaner_types::id::HostId;
use gleaner_types::job::{EngineProgress, WorkerProgress};
use gleaner_types::units::Fraction;

use super::nodes::{self, Node};
use super::options::{Order, SlurmOptions};
use super::queue::{self, How, Queue, QueuedArray};
use super::record::{Gone, KnownArray, Record, RecordError};
use super::tools::{SlurmError, Tools};

/// Time between two records of what only changes figures, in seconds.
const RECORD_EVERY_S: f64 = 10.0;
/// Arrays that are changed in one look; the others have their turn in the next.
const MOST_CHANGES: usize = 20;
/// What is added to the nice value of an array that should have nothing now: Slurm's least bound is one task. It is more than
/// what ages and sizes of jobs usually come to. Chosen.
const LAST: i64 = 1_000_000;
/// Looks in a row at which CPUs may be free that an array's bound keeps from it. Then some of those that were given to others are
/// of no use to them: a constraint, or memory, keeps them away. Chosen: Slurm starts tasks within that time.
const MOST_IDLE_LOOKS: u32 = 4;
/// The most of a running task that counts as done.
const MOST_RUNNING: f64 = 0.95;
/// The most that is done while anything is left.
const MOST_UNFINISHED: f64 = 0.99;

/// What a look showed.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) progress: EngineProgress,
    /// Nothing is left, for as long as the options say.
    pub(super) is_over: bool,
    /// What could not be done, for operators.
    pub(super) trouble: Option<String>,
}

/// All that is known of one job.
#[derive(Debug)]
pub(super) struct Session {
    options: SlurmOptions,
    dedicated: BTreeSet<HostId>,
    folder: PathBuf,
    tools: Tools,
    record: Record,
    /// What Slurm shows as ended at the first look ended before this job began.
    is_first: bool,
    recorded_s: f64,
    empty_since_s: Option<f64>,
    idle_looks: u32,
}

impl Session {
    /// Goes on with what is on record, or begins.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn open(options: SlurmOptions, dedicated: &[HostId], folder: PathBuf) -> Result<Self, RecordError> {
        let record = Record::read(&folder)?;
        Ok(Self {
            tools: Tools::new(&options),
            options,
            dedicated: dedicated.iter().cloned().collect(),
            folder,
            is_first: record.is_none(),
            record: record.unwrap_or_default(),
            recorded_s: f64::NEG_INFINITY,
            empty_since_s: None,
            idle_looks: 0,
        })
    }

    /// Looks at nodes and queue, and puts right what is not as it should be. `now_s` is in seconds since 1970.
    ///
    /// # Errors
    /// Slurm cannot be asked; everything stays as it is.
    pub(super) async fn look(&mut self, wanted: &BTreeMap<HostId, u32>, now_s: f64) -> Result<Look, SlurmError> {
        let partition = self.options.partition.clone();
        let arguments = ["-h", "-N", "-p", &partition, "-o", nodes::FORMAT];
        let nodes = nodes::parse(&self.tools.run("sinfo", &arguments).await?)?;
        let arguments = ["-h", "-a", "-p", &partition, "-t", "all", "-o", queue::FORMAT];
        let queue = queue::parse(&self.tools.run("squeue", &arguments).await?)?;
        self.count(&queue);
        let hosts = self.record.hosts.len();
        self.record.hosts.extend(wanted.keys().cloned());
        if hosts < self.record.hosts.len() || now_s - self.recorded_s >= RECORD_EVERY_S {
            self.write().await;
            self.recorded_s = now_s;
        }
        let mut trouble = self.set_nodes(wanted, &nodes).await;
        if self.options.order == Order::Credit {
            let turns = self.turns(&queue, &nodes, now_s);
            // Without a node there is nothing to share.
            if nodes.values().any(|node| node.is_up) {
                let bound = self.set_bounds(&queue, &turns).await;
                trouble = trouble.or(bound);
            }
        }
        let is_empty = queue.arrays.is_empty();
        let since_s = if is_empty { *self.empty_since_s.get_or_insert(now_s) } else { now_s };
        if !is_empty {
            self.empty_since_s = None;
        }
        let is_over = is_empty && now_s - since_s >= self.options.empty_s;
        let progress = self.progress(&queue, &nodes, now_s, is_over);
        Ok(Look { progress, is_over, trouble })
    }

    /// Takes what the queue shows into the record.
    fn count(&mut self, queue: &Queue) {
        for (number, seen) in &queue.arrays {
            let known = self.record.arrays.get(number);
            if known.is_none_or(|known| known.user != seen.user) {
                self.record.arrays.insert(*number, KnownArray::of(seen));
            }
            if let Some(known) = self.record.arrays.get_mut(number) {
                known.follow(seen);
            }
        }
        let shown: BTreeSet<(u64, u32)> = queue.ended.iter().map(|ended| (ended.array, ended.task)).collect();
        for ended in queue.ended.iter().filter(|_| !self.is_first) {
            if self.record.counted.contains(&(ended.array, ended.task)) {
                continue;
            }
            let seconds = ended.seconds as f64;
            let sums = match self.record.arrays.get_mut(&ended.array) {
                Some(known) => &mut known.ended,
                // It came and went between two looks.
                None => {
                    self.record.gone.tasks += 1;
                    self.record.gone.work += seconds * f64::from(ended.cpus);
                    &mut self.record.gone.ended
                }
            };
            sums.add(ended);
            if ended.how == How::Good {
                *self.record.by_node.entry(ended.node.clone()).or_default() += seconds * f64::from(ended.cpus);
            }
        }
        self.record.counted = shown;
        self.is_first = false;
        let mean_s = self.mean_s();
        for (number, known) in &mut self.record.arrays {
            if !queue.arrays.contains_key(number) {
                known.left = 0;
            }
            known.tasks = known.tasks.max(known.left.saturating_add(known.ended.good + known.ended.bad));
        }
        let gone = self.record.arrays.extract_if(.., |number, _| !queue.arrays.contains_key(number));
        for (_, known) in gone {
            self.record.gone.add(&known, mean_s);
        }
    }

    /// Mean wall time of all good tasks, in seconds.
    fn mean_s(&self) -> f64 {
        let all = self.record.arrays.values().map(|known| known.ended).chain([self.record.gone.ended]);
        let (good, seconds) = all.fold((0, 0.0), |(good, sum), own| (good + own.good, sum + own.seconds));
        if good > 0 { seconds / f64::from(good) } else { 1.0 }
    }

    /// Resumes nodes of hosts that are wanted, and drains those of hosts that no longer are. What was drained for another
    /// reason stays so.
    async fn set_nodes(&mut self, wanted: &BTreeMap<HostId, u32>, nodes: &BTreeMap<String, Node>) -> Option<String> {
        let mut trouble = None;
        for host in &self.record.hosts {
            let name = self.options.node_of(host);
            let is_wanted = wanted.contains_key(host);
            let Some(node) = nodes.get(name) else {
                if is_wanted {
                    trouble.get_or_insert(format!("partition {} has no node {name}", self.options.partition));
                }
                continue;
            };
            let change = match (is_wanted, node.drains) {
                (true, true) if node.is_ours => "State=RESUME",
                (true, true) => {
                    trouble.get_or_insert(format!("node {name} was drained by somebody else"));
                    continue;
                }
                (false, false) if !self.dedicated.contains(host) => "State=DRAIN",
                _ => continue,
            };
            tracing::info!(node = name, state = node.state, change, "a node of Slurm is changed");
            let (node, reason) = (format!("NodeName={name}"), format!("Reason={}", nodes::REASON));
            let mut arguments = vec!["update", &node, change];
            if change == "State=DRAIN" {
                arguments.push(&reason);
            }
            if let Err(error) = self.tools.run("scontrol", &arguments).await {
                trouble.get_or_insert(error.to_string());
            }
        }
        trouble
    }

    /// How many tasks of each array may run at once.
    fn turns(&mut self, queue: &Queue, nodes: &BTreeMap<String, Node>, now_s: f64) -> BTreeMap<u64, Turn> {
        let mut of_user: BTreeMap<&str, f64> = BTreeMap::new();
        for array in queue.arrays.values() {
            *of_user.entry(&array.user).or_default() += 1.0;
        }
        let array = |(number, seen): (&u64, &QueuedArray)| {
            let known = self.record.arrays.get(number)?;
            let mean_task_s = known.ended.mean_s();
            let array = Array {
                weight: self.options.weight_of(&seen.user) / of_user.get(seen.user.as_str()).copied().unwrap_or(1.0),
                cpus: seen.cpus,
                waiting: seen.startable,
                running: u32::try_from(seen.running.len()).unwrap_or(u32::MAX),
                done: known.done(seen, mean_task_s.unwrap_or(f64::INFINITY), now_s),
                own_bound: known.own_bound,
                mean_task_s: mean_task_s.unwrap_or(0.0),
            };
            Some((*number, array))
        };
        let arrays = queue.arrays.iter().filter_map(array).collect();
        // Tasks on nodes that drain are still somebody's.
        let cpus = |node: &Node| if node.is_up && !node.drains { node.cpus } else { node.allocated };
        let cpus = nodes.values().map(cpus).fold(0_u32, u32::saturating_add);
        let idle = nodes.values().map(|node| node.idle).fold(0_u32, u32::saturating_add);
        let is_kept_back = |(number, seen): (&u64, &QueuedArray)| {
            let bound = self.record.arrays.get(number).and_then(|known| known.set).map_or(0, |set| set.0);
            seen.startable > 0 && seen.cpus <= idle && bound > 0 && seen.running.len() >= bound as usize
        };
        self.idle_looks = if queue.arrays.iter().any(is_kept_back) { self.idle_looks.saturating_add(1) } else { 0 };
        let more = if self.idle_looks >= MOST_IDLE_LOOKS { idle } else { 0 };
        self.record.account.turns(&arrays, cpus.saturating_add(more), now_s)
    }

    /// Bounds arrays, as far as that is news.
    async fn set_bounds(&mut self, queue: &Queue, turns: &BTreeMap<u64, Turn>) -> Option<String> {
        let mut changes = Vec::new();
        for (number, turn) in turns {
            let (Some(seen), Some(known)) = (queue.arrays.get(number), self.record.arrays.get_mut(number)) else {
                continue;
            };
            let shown = (seen.bound.unwrap_or(0), seen.nice);
            let set = known.wanted(turn);
            // Where no task waits, nothing is left to hold back.
            if seen.waiting > 0 && set != shown && changes.len() < MOST_CHANGES {
                (known.set_before, known.set) = (Some(shown), Some(set));
                changes.push((*number, set, in_words(turn)));
            }
        }
        if !changes.is_empty() {
            // Before it is so: otherwise a restart would take it for what the user wants.
            self.write().await;
        }
        let mut trouble = None;
        for (number, set, comment) in changes {
            let is_array = self.record.arrays.get(&number).is_some_and(|known| known.is_array);
            // An array that has ended meanwhile is gone at the next look.
            if let Err(error) = set_array(&self.tools, number, is_array, set, &comment).await {
                tracing::debug!(array = number, %error, "an array could not be bound");
                trouble = trouble.or(Some(error.to_string()));
            }
        }
        trouble
    }

    fn progress(&self, queue: &Queue, nodes: &BTreeMap<String, Node>, now_s: f64, is_over: bool) -> EngineProgress {
        let mean_s = self.mean_s();
        let (mut all, mut done) = (self.record.gone.work, self.record.gone.work);
        let (mut tasks, mut left, mut running) = (self.record.gone.tasks, 0_u32, 0_usize);
        let mut ended = self.record.gone.ended;
        for (number, known) in &self.record.arrays {
            let Some(seen) = queue.arrays.get(number) else { continue };
            let work = known.work(mean_s);
            all += work;
            done += work * known.done(seen, known.ended.mean_s().unwrap_or(f64::INFINITY), now_s);
            tasks = tasks.saturating_add(known.tasks);
            left = left.saturating_add(known.left);
            running += seen.running.len();
            ended.merge(known.ended);
        }
        let so_far = if all > 0.0 { (done / all).min(MOST_UNFINISHED) } else { 0.0 };
        let fraction = if is_over { 1.0 } else { so_far.max(self.record.fraction) };
        let worker = |host: &HostId| {
            let name = self.options.node_of(host);
            let part = self.record.by_node.get(name).map_or(0.0, |work| work / all.max(f64::MIN_POSITIVE));
            let tasks_running = nodes.get(name).map_or(0, |node| node.allocated);
            (host.clone(), WorkerProgress { tasks_running, done: Fraction::clamped(part) })
        };
        let workers: BTreeMap<HostId, WorkerProgress> =
            self.record.hosts.iter().chain(&self.dedicated).map(worker).collect();
        EngineProgress {
            fraction_done: Fraction::clamped(fraction),
            tasks_total: tasks,
            tasks_done: tasks.saturating_sub(left).saturating_sub(ended.bad),
            tasks_failed: ended.bad,
            tasks_retried: 0,
            tasks_running: u32::try_from(running).unwrap_or(u32::MAX),
            mean_task_s: ended.mean_s(),
            task_deviation_s: ended.deviation_s(),
            slots_in_use: workers.values().fold(0, |sum, worker| sum.saturating_add(worker.tasks_running)),
            workers,
        }
    }

    /// Keeps what was said to be done: it never becomes less.
    pub(super) fn said(&mut self, progress: &EngineProgress) {
        self.record.fraction = self.record.fraction.max(progress.fraction_done.value());
    }

    /// Writes the record. The disk may hang.
    async fn write(&self) {
        let (record, folder) = (self.record.clone(), self.folder.clone());
        let written = tokio::task::spawn_blocking(move || record.write(&folder)).await;
        if let Err(error) = written.map_err(std::io::Error::other).and_then(|written| written) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "what users' arrays had is not on record: a restart may not give it back");
        }
    }

    /// Gives arrays back what their users had set.
    ///
    /// # Errors
    /// Slurm cannot be asked. Arrays that it refuses to change are left.
    pub(super) async fn give_back(&mut self) -> Result<(), SlurmError> {
        for (number, known) in &mut self.record.arrays {
            if known.set.is_none() {
                continue;
            }
            let own = known.own();
            match set_array(&self.tools, *number, known.is_array, own, "").await {
                Err(error) if !error.is_refusal() => return Err(error),
                Err(error) => tracing::debug!(array = number, %error, "an array could not be given back its bound"),
                Ok(()) => {}
            }
            (known.set_before, known.set) = (known.set, None);
        }
        self.write().await;
        Ok(())
    }

    /// The job is over: arrays are given back what they had, and the nodes of interactive hosts drain.
    ///
    /// # Errors
    /// Slurm cannot be asked.
    pub(super) async fn leave(&mut self) -> Result<(), SlurmError> {
        self.give_back().await?;
        let arguments = ["-h", "-N", "-p", &self.options.partition.clone(), "-o", nodes::FORMAT];
        let nodes = nodes::parse(&self.tools.run("sinfo", &arguments).await?)?;
        if let Some(trouble) = self.set_nodes(&BTreeMap::new(), &nodes).await {
            tracing::warn!(trouble, "a node was not drained");
        }
        Ok(())
    }
}

async fn set_array(
    tools: &Tools,
    number: u64,
    is_array: bool,
    (bound, nice): (u32, i64),
    comment: &str,
) -> Result<(), SlurmError> {
    let (job, bound, nice) = (format!("JobId={number}"), format!("ArrayTaskThrottle={bound}"), format!("Nice={nice}"));
    let comment = format!("AdminComment={comment}");
    let mut arguments = vec!["update", &job, &nice, &comment];
    if is_array {
        arguments.push(&bound);
    }
    match tools.run("scontrol", &arguments).await {
        Err(error) if !error.is_of_ended_tasks_alone() => Err(error),
        _ => Ok(()),
    }
}

/// What a user reads of a bound.
fn in_words(turn: &Turn) -> String {
    let standing = &turn.standing;
    let tasks = match turn.at_once {
        Some(tasks) => format!("{tasks} tasks at once"),
        None => "no bound".to_owned(),
    };
    let ahead = if standing.credit < 0.0 { "behind" } else { "ahead" };
    let end = match standing.fair_completion_in_s {
        Some(end_s) => format!(", which would be done in {end_s:.0} s"),
        None => String::new(),
    };
    format!(
        "Gleaner, by credit: {tasks}; {:.0} CPU seconds {ahead} of its fair share of {:.1} CPUs{end}",
        standing.credit.abs(),
        standing.fair
    )
}

impl KnownArray {
    fn of(seen: &QueuedArray) -> Self {
        Self {
            user: seen.user.clone(),
            own_bound: seen.bound,
            own_nice: seen.nice,
            cpus: seen.cpus,
            is_array: seen.is_array,
            ..Self::default()
        }
    }

    /// Takes what is left of it, and what its user has changed.
    fn follow(&mut self, seen: &QueuedArray) {
        let running = u32::try_from(seen.running.len()).unwrap_or(u32::MAX);
        self.left = seen.waiting.saturating_add(running);
        self.tasks = self.tasks.max(self.left);
        self.is_array |= seen.is_array;
        // Only waiting tasks show them.
        if seen.waiting == 0 {
            return;
        }
        let shown = (seen.bound.unwrap_or(0), seen.nice);
        let ours = [self.set, self.set_before, Some(self.own())];
        if !ours.iter().flatten().any(|ours| ours.0 == shown.0) {
            self.own_bound = seen.bound;
        }
        if !ours.iter().flatten().any(|ours| ours.1 == shown.1) {
            self.own_nice = seen.nice;
        }
    }

    /// The bound, 0 for none, and the nice value that its user wants.
    fn own(&self) -> (u32, i64) {
        (self.own_bound.unwrap_or(0), self.own_nice)
    }

    /// The same that it should have now.
    fn wanted(&self, turn: &Turn) -> (u32, i64) {
        let last = if turn.at_once == Some(0) { LAST } else { 0 };
        let bound = turn.at_once.map_or(self.own().0, |tasks| tasks.max(1));
        (if self.is_array { bound } else { 0 }, self.own_nice.saturating_add(last))
    }

    /// The part that is done, running tasks in part. `mean_s` is endless while it is not known.
    fn done(&self, seen: &QueuedArray, mean_s: f64, now_s: f64) -> f64 {
        let part = |began_s: &u64| ((now_s - *began_s as f64) / mean_s).clamp(0.0, MOST_RUNNING);
        let running: f64 = seen.running.iter().map(part).sum();
        let done = f64::from(self.tasks.saturating_sub(self.left)) + if mean_s > 0.0 { running } else { 0.0 };
        (done / f64::from(self.tasks.max(1))).clamp(0.0, 1.0)
    }

    /// CPU seconds of all its tasks.
    fn work(&self, mean_s: f64) -> f64 {
        f64::from(self.tasks) * f64::from(self.cpus.max(1)) * self.ended.mean_s().unwrap_or(mean_s).max(0.5)
    }
}

impl Gone {
    fn add(&mut self, known: &KnownArray, mean_s: f64) {
        self.tasks = self.tasks.saturating_add(known.tasks);
        self.work += known.work(mean_s);
        self.ended.merge(known.ended);
    }
}
