//! One look at a partition after the other. In: the hosts that the controller wants, the time, and what Slurm's tools say.
//! Out: progress; nodes resumed and drained; arrays bound by credit. Called by the runner.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::make_folders;
use gleaner_planner::queue::{
    Array, Constraint, FeaturedNode, QueueAccount, Starts, Stuck, Turn, left_cpu_s, most_at_once, task_s, unusable,
};
use gleaner_planner::reservations::partition::WaitingTasks;
use gleaner_types::id::{HostId, JobId, UserName};
use gleaner_types::job::{EngineProgress, WorkerProgress};
use gleaner_types::text::duration;
use gleaner_types::units::Fraction;

use super::gaps::{Gaps, Reserved, run_again};
use super::leases;
use super::nodes::{self, Change, Node, Whose};
use super::options::{Order, SlurmOptions};
use super::queue::{self, How, Queue, QueuedArray};
use super::record::{Ended, Gone, KnownArray, Record, RecordError};
use super::running;
use super::tools::{SlurmError, Tools};

/// Time between two records of what only changes figures, in seconds.
const RECORD_EVERY_S: f64 = 10.0;
/// Arrays that are changed in one look; the others have their turn in the next.
const MOST_CHANGES: usize = 20;
/// Arrays and jobs of a queue that are shared. Of more, the account would take seconds. Chosen.
const MOST_SHARED: usize = 1_000;
/// What is added to the nice value of an array that should have nothing now: Slurm's least bound is one task. It is more than
/// what ages and sizes of jobs usually come to. Chosen.
const LAST: i64 = 1_000_000;
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
    /// The record's.
    file: PathBuf,
    tools: Tools,
    record: Record,
    /// No look was made yet: what is shown as ended is not this job's.
    is_first: bool,
    recorded_s: f64,
    empty_since_s: Option<f64>,
    stuck: Stuck,
    gaps: Option<Gaps>,
}

impl Session {
    /// Goes on with what is on record, or begins. `folder` is the job's own: it is there once the job has begun, and goes with the
    /// job. The partition's record is beside it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn open(
        job: &JobId,
        options: SlurmOptions,
        dedicated: &[HostId],
        folder: &Path,
    ) -> Result<Self, RecordError> {
        // No job's folder begins with a dot.
        let conf = options.conf.as_ref().map_or(0, |conf| crc32fast::hash(conf.as_os_str().as_encoded_bytes()));
        let file = folder.with_file_name(format!(".slurm-{}-{conf:08x}.json", options.partition));
        let record = Record::read(&file)?.unwrap_or_default();
        let is_first = !folder.is_dir() || record.job.as_ref() != Some(job);
        make_folders(folder, 0o777).map_err(|source| RecordError::Folder { folder: folder.to_owned(), source })?;
        Ok(Self {
            tools: Tools::new(options.tools.clone(), options.conf.clone()),
            gaps: Gaps::of(&options),
            options,
            dedicated: dedicated.iter().cloned().collect(),
            file,
            is_first,
            record: if is_first { record.for_new_job(job) } else { record },
            recorded_s: f64::NEG_INFINITY,
            empty_since_s: None,
            stuck: Stuck::default(),
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
        let mut reserved = self.reserved(&queue, &nodes, now_s).await?;
        let hosts = self.record.hosts.len();
        self.record.hosts.extend(wanted.keys().cloned());
        if hosts < self.record.hosts.len() || now_s - self.recorded_s >= RECORD_EVERY_S {
            self.write().await;
            self.recorded_s = now_s;
        }
        // First no more may start there.
        let set = self.set_nodes(wanted, &nodes, &reserved).await;
        let again = self.run_again(&reserved).await;
        let mut trouble = set.or(again).or(reserved.trouble.take());
        let departed = self.give_back_departed().await;
        trouble = trouble.or(departed);
        let bound = match self.options.order {
            Order::Credit => self.bind(&queue, &nodes, now_s).await,
            // A job before this one may have left some.
            Order::Slurm => self.give_back().await.err().map(|error| error.to_string()),
        };
        trouble = trouble.or(bound);
        let is_empty = queue.arrays.is_empty();
        let since_s = if is_empty { *self.empty_since_s.get_or_insert(now_s) } else { now_s };
        if !is_empty {
            self.empty_since_s = None;
        }
        // While a lease closes nodes somebody must be there to open them after it, and not before.
        let is_over = is_empty && now_s - since_s >= self.options.empty_s && reserved.closed.is_empty();
        let progress = self.progress(&queue, &nodes, reserved, now_s, is_over);
        Ok(Look { progress, is_over, trouble })
    }

    /// Takes what the queue shows into the record.
    fn count(&mut self, queue: &Queue) {
        for (number, seen) in &queue.arrays {
            let known = self.record.arrays.get(number);
            if known.is_none_or(|known| known.user != seen.user) {
                // One that comes back is still bound as it was.
                let back = self.record.departed.remove(number).filter(|known| known.user == seen.user);
                self.record.arrays.insert(*number, back.unwrap_or_else(|| KnownArray::of(seen)));
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
        for (number, known) in gone {
            self.record.gone.add(&known, mean_s);
            // It may have gone elsewhere, with its bound.
            if known.set.is_some() {
                let known = KnownArray { tasks: 0, left: 0, ended: Ended::default(), ..known };
                self.record.departed.insert(number, known);
            }
        }
    }

    /// Gives back what arrays had that were bound and are no longer in the queue. Most have ended, and Slurm says so.
    async fn give_back_departed(&mut self) -> Option<String> {
        let some: Vec<u64> = self.record.departed.keys().take(MOST_CHANGES).copied().collect();
        for number in some {
            let Some(known) = self.record.departed.get(&number) else { continue };
            match set_array(&self.tools, number, known.is_array, known.own()).await {
                Err(error) if !error.is_of_nothing() => return Some(error.to_string()),
                _ => drop(self.record.departed.remove(&number)),
            }
        }
        None
    }

    /// Mean wall time of all good tasks, in seconds; a second before there are any.
    fn mean_s(&self) -> f64 {
        self.record.all_ended().mean_s().unwrap_or(1.0)
    }

    /// What users' leases mean now.
    ///
    /// # Errors
    /// Slurm cannot be asked which tasks run where. Leases that cannot be read are no error but trouble.
    async fn reserved(
        &mut self,
        queue: &Queue,
        nodes: &BTreeMap<String, Node>,
        now_s: f64,
    ) -> Result<Reserved, SlurmError> {
        let Some(gaps) = &mut self.gaps else { return Ok(Reserved::default()) };
        let cpus = nodes.iter().map(|(name, node)| (name.as_str(), node.cpus)).collect();
        let nodes = leases::Nodes { cpus, names: &self.options.nodes };
        let unknown = gaps.read(&self.tools, &nodes, now_s).await;
        let arguments = ["-h", "-a", "-p", &self.options.partition, "-t", running::STATES, "-o", running::FORMAT];
        let tasks = running::parse(&self.tools.run("squeue", &arguments).await?)?;
        for task in &tasks {
            if let (Some(known), Some(began_s)) = (self.record.arrays.get_mut(&task.array), task.began_s) {
                known.longest_s = known.longest_s.max(now_s - began_s as f64);
            }
        }
        let usual = self.record.all_ended().times();
        let waiting = queue.arrays.iter().filter(|(_, seen)| seen.startable > 0).filter_map(|(number, seen)| {
            let times = self.record.arrays.get(number)?.times(usual);
            Some(WaitingTasks { tasks: seen.startable, cpus: seen.cpus, times })
        });
        let waiting: Vec<WaitingTasks> = waiting.collect();
        let times = |number| self.record.arrays.get(&number)?.ended.times();
        let reserved = gaps.look(&nodes, &tasks, times, &waiting, now_s);
        Ok(Reserved { trouble: unknown.or(reserved.trouble), ..reserved })
    }

    /// Runs tasks again that a lease takes the node of.
    async fn run_again(&mut self, reserved: &Reserved) -> Option<String> {
        if reserved.again.is_empty() {
            return None;
        }
        if let Err(error) = run_again(&self.tools, &reserved.again).await {
            return Some(error.to_string());
        }
        let tasks = u32::try_from(reserved.again.len()).unwrap_or(u32::MAX);
        self.record.run_again.tasks = self.record.run_again.tasks.saturating_add(tasks);
        self.record.run_again.lost_cpu_s += reserved.again.iter().map(|again| again.lost_cpu_s).sum::<f64>();
        None
    }

    /// Resumes nodes of hosts that are wanted, and drains those of hosts that no longer are, and nodes for leases. What was drained
    /// for another reason stays so.
    async fn set_nodes(
        &self,
        wanted: &BTreeMap<HostId, u32>,
        nodes: &BTreeMap<String, Node>,
        reserved: &Reserved,
    ) -> Option<String> {
        let mut trouble = None;
        let mut hosts = BTreeMap::new();
        for host in &self.record.hosts {
            let name = self.options.node_of(host);
            if !nodes.contains_key(name) && wanted.contains_key(host) {
                trouble.get_or_insert(format!("partition {} has no node {name}", self.options.partition));
            }
            hosts.insert(name, host);
        }
        for (name, node) in nodes {
            let host = hosts.get(name.as_str()).copied();
            let whose = match host {
                Some(host) if wanted.contains_key(host) => Whose::Wanted,
                Some(host) if !self.dedicated.contains(host) => Whose::Unwanted,
                _ => Whose::Slurms,
            };
            let (state, reason) = match nodes::change(node, whose, reserved.closed.get(name), reserved.is_unknown) {
                Change::None => continue,
                Change::Foreign => {
                    trouble.get_or_insert(format!("node {name} was drained by somebody else"));
                    continue;
                }
                Change::Resume => ("State=RESUME", None),
                Change::Drain(reason) => ("State=DRAIN", Some(format!("Reason={reason}"))),
            };
            tracing::info!(node = name, was = node.state, state, reason, "a node of Slurm is changed");
            let node = format!("NodeName={name}");
            let mut arguments = vec!["update", &node, state];
            arguments.extend(reason.as_deref());
            if let Err(error) = self.tools.run("scontrol", &arguments).await {
                trouble.get_or_insert(error.to_string());
                if !error.is_answer() {
                    break;
                }
            }
        }
        trouble
    }

    /// Bounds arrays by credit, where there are nodes to share and the queue can be taken in.
    async fn bind(&mut self, queue: &Queue, nodes: &BTreeMap<String, Node>, now_s: f64) -> Option<String> {
        if !nodes.values().any(|node| node.is_up) {
            return None;
        }
        if queue.arrays.len() > MOST_SHARED {
            self.record.account = QueueAccount::default();
            let arrays = queue.arrays.len();
            return Some(format!(
                "{arrays} arrays and jobs are in the queue: of more than {MOST_SHARED} none is bound anew"
            ));
        }
        let arrays = self.arrays(queue, nodes, now_s);
        // Tasks on nodes that drain are still somebody's.
        let cpus = |node: &Node| if node.is_up && !node.drains { node.cpus } else { node.allocated };
        let cpus = nodes.values().map(cpus).fold(0_u32, u32::saturating_add);
        let mut account = std::mem::take(&mut self.record.account);
        let users = self.options.users();
        // It takes its time where arrays are many.
        let turns = tokio::task::spawn_blocking(move || {
            let turns = account.turns(&arrays, cpus, &users, now_s);
            (account, turns)
        });
        let Ok((account, turns)) = turns.await else { return Some("the account of shares broke off".to_owned()) };
        self.record.account = account;
        self.set_bounds(queue, &turns).await
    }

    /// The arrays as they are to be shared.
    fn arrays(&mut self, queue: &Queue, nodes: &BTreeMap<String, Node>, now_s: f64) -> BTreeMap<u64, Array> {
        let idle = nodes.values().map(|node| node.idle).fold(0_u32, u32::saturating_add);
        let idle_for = |seen: &QueuedArray| match &seen.constraint {
            Constraint::Any => idle,
            asked => {
                let good = nodes.values().filter(|node| asked.accepts(&node.features));
                good.map(|node| node.idle).fold(0_u32, u32::saturating_add)
            }
        };
        let featured = featured(nodes);
        let starts = |(number, seen): (&u64, &QueuedArray)| {
            let bound = self.record.arrays.get(number).and_then(|known| known.set).map_or(0, |set| set.0);
            let running = count(&seen.running);
            let may = bound == 0 || running < bound;
            (*number, Starts { running, could_more: seen.startable > 0 && may && seen.cpus <= idle_for(seen) })
        };
        self.stuck.look(queue.arrays.iter().map(starts));
        let usual_s = self.mean_s();
        let array = |(number, seen): (&u64, &QueuedArray)| {
            let known = self.record.arrays.get(number)?;
            let task_s = task_s(known.ended.mean_s(), usual_s, running_s(seen, now_s));
            let array = Array {
                user: UserName::new(&seen.user).ok(),
                cpus: seen.cpus,
                waiting: if self.stuck.is_stuck(*number) { seen.startable.min(1) } else { seen.startable },
                running: count(&seen.running),
                left_cpu_s: left_cpu_s(known.left, seen.cpus, task_s, running_s(seen, now_s)),
                task_s,
                // No more are of use than its nodes have room for.
                own_bound: [known.own_bound, most_at_once(&seen.constraint, seen.cpus, &featured)]
                    .into_iter()
                    .flatten()
                    .min(),
            };
            Some((*number, array))
        };
        queue.arrays.iter().filter_map(array).collect()
    }

    /// Bounds arrays, as far as that is news.
    async fn set_bounds(&mut self, queue: &Queue, turns: &BTreeMap<u64, Turn>) -> Option<String> {
        let mut changes = Vec::new();
        let mut in_order: Vec<(&u64, &Turn)> = turns.iter().collect();
        in_order.sort_by_key(|(_, turn)| turn.place);
        for (number, turn) in in_order {
            let (Some(seen), Some(known)) = (queue.arrays.get(number), self.record.arrays.get_mut(number)) else {
                continue;
            };
            let shown = (seen.bound.unwrap_or_else(|| known.last().0), seen.nice);
            let set = known.wanted(turn);
            // Where no task waits, nothing is left to hold back.
            if seen.waiting > 0 && set != shown && changes.len() < MOST_CHANGES {
                changes.push((*number, shown, set, in_words(turn)));
            }
        }
        if changes.is_empty() {
            return None;
        }
        for (number, shown, set, _) in &changes {
            if let Some(known) = self.record.arrays.get_mut(number) {
                (known.shown_before, known.set) = (Some(*shown), Some(*set));
            }
        }
        // Before it is so: otherwise a restart would take it for what the user wants.
        if !self.write().await {
            return Some(format!("{} cannot be written, and no array is bound anew without it", self.file.display()));
        }
        let mut trouble = None;
        for (number, _, set, why) in changes {
            let Some(known) = self.record.arrays.get(&number) else { continue };
            tracing::info!(array = number, user = known.user, bound = set.0, nice = set.1, why, "an array is bound");
            match set_array(&self.tools, number, known.is_array, set).await {
                Err(error) if !error.is_of_nothing() => {
                    let silent = !error.is_answer();
                    trouble = trouble.or(Some(error.to_string()));
                    if silent {
                        break;
                    }
                }
                // An array that has ended meanwhile is gone at the next look.
                _ => {}
            }
        }
        trouble
    }

    fn progress(
        &self,
        queue: &Queue,
        nodes: &BTreeMap<String, Node>,
        reserved: Reserved,
        now_s: f64,
        is_over: bool,
    ) -> EngineProgress {
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
            // Its CPUs, of all partitions: none is free of tasks before that.
            let tasks_running = nodes.get(name).map_or(0, |node| node.allocated);
            (host.clone(), WorkerProgress { tasks_running, done: Fraction::clamped(part) })
        };
        let workers: BTreeMap<HostId, WorkerProgress> =
            self.record.hosts.iter().chain(&self.dedicated).map(worker).collect();
        EngineProgress {
            fraction_done: Fraction::clamped(fraction),
            tasks_total: tasks,
            tasks_done: ended.good,
            tasks_failed: ended.bad,
            tasks_retried: self.record.run_again.tasks,
            tasks_running: u32::try_from(running).unwrap_or(u32::MAX),
            mean_task_s: ended.mean_s(),
            task_deviation_s: ended.deviation_s(),
            slots_in_use: workers.values().fold(0, |sum, worker| sum.saturating_add(worker.tasks_running)),
            workers,
            unusable: self.unusable(queue, nodes, &reserved.away),
            leases: reserved.shown,
            stages: gleaner_types::stages::Stages::NotTold,
        }
    }

    /// Interactive hosts whose nodes nothing in the queue can use: somebody has them, or arrays ask for other features.
    fn unusable(&self, queue: &Queue, nodes: &BTreeMap<String, Node>, away: &BTreeSet<String>) -> BTreeSet<HostId> {
        let interactive = |host: &HostId| !self.dedicated.contains(host);
        let away = away.iter().filter_map(|node| self.options.host_of(node)).filter(interactive);
        let mut asked: Vec<&Constraint> = Vec::new();
        for seen in queue.arrays.values().filter(|seen| seen.startable > 0) {
            if !asked.contains(&&seen.constraint) {
                asked.push(&seen.constraint);
            }
        }
        if asked.contains(&&Constraint::Any) {
            return away.collect();
        }
        let featured = featured(nodes);
        let hosts = unusable(&featured, &asked).into_iter().filter_map(|node| self.options.host_of(node));
        away.chain(hosts.filter(interactive)).collect()
    }

    /// Keeps what was said to be done: it never becomes less.
    pub(super) fn said(&mut self, progress: &EngineProgress) {
        self.record.fraction = self.record.fraction.max(progress.fraction_done.value());
    }

    /// Writes the record. The disk may hang.
    async fn write(&self) -> bool {
        let (record, file) = (self.record.clone(), self.file.clone());
        let written = tokio::task::spawn_blocking(move || record.write(&file)).await;
        match written.map_err(std::io::Error::other).and_then(|written| written) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(file = %self.file.display(), %error, "a record cannot be written");
                false
            }
        }
    }

    /// Gives arrays back what their users had set.
    ///
    /// # Errors
    /// The last array that could not be changed; call it again.
    pub(super) async fn give_back(&mut self) -> Result<(), SlurmError> {
        if !self.record.arrays.values().chain(self.record.departed.values()).any(|known| known.set.is_some()) {
            return Ok(());
        }
        let mut failure = None;
        for (number, known) in self.record.arrays.iter_mut().chain(&mut self.record.departed) {
            if known.set.is_none() {
                continue;
            }
            match set_array(&self.tools, *number, known.is_array, known.own()).await {
                Err(error) if !error.is_of_nothing() => {
                    let stop = !error.is_answer();
                    failure = Some(error);
                    if stop {
                        break;
                    }
                }
                _ => (known.shown_before, known.set) = (known.set, None),
            }
        }
        self.record.departed.retain(|_, known| known.set.is_some());
        self.write().await;
        failure.map_or(Ok(()), Err)
    }

    /// The job is over: arrays are given back what they had, the nodes of interactive hosts drain, and others are resumed that were drained
    /// for leases.
    ///
    /// # Errors
    /// Slurm cannot be asked, or an array could not be changed; call it again.
    pub(super) async fn leave(&mut self) -> Result<(), SlurmError> {
        let given_back = self.give_back().await;
        let arguments = ["-h", "-N", "-p", &self.options.partition.clone(), "-o", nodes::FORMAT];
        let nodes = nodes::parse(&self.tools.run("sinfo", &arguments).await?)?;
        if let Some(trouble) = self.set_nodes(&BTreeMap::new(), &nodes, &Reserved::default()).await {
            tracing::warn!(trouble, "a node was not changed");
        }
        given_back
    }
}

/// Nodes as arrays ask for them.
fn featured(nodes: &BTreeMap<String, Node>) -> BTreeMap<String, FeaturedNode> {
    let of = |(name, node): (&String, &Node)| {
        let cpus = if node.is_up && !node.drains { node.cpus } else { node.allocated };
        (name.clone(), FeaturedNode { features: node.features.clone(), cpus, is_busy: node.allocated > 0 })
    };
    nodes.iter().map(of).collect()
}

async fn set_array(tools: &Tools, number: u64, is_array: bool, (bound, nice): (u32, i64)) -> Result<(), SlurmError> {
    let (job, bound, nice) = (format!("JobId={number}"), format!("ArrayTaskThrottle={bound}"), format!("Nice={nice}"));
    let mut arguments = vec!["update", &job, &nice];
    if is_array {
        arguments.push(&bound);
    }
    match tools.run("scontrol", &arguments).await {
        Err(error) if !error.is_of_ended_tasks_alone() => Err(error),
        _ => Ok(()),
    }
}

/// Why an array is bound as it is.
fn in_words(turn: &Turn) -> String {
    let standing = &turn.standing;
    let ahead = if standing.credit < 0.0 { "behind" } else { "ahead of" };
    let end = standing
        .fair_completion_in_s
        .map_or(String::new(), |end_s| format!(", by which it would be done in {}", duration(end_s)));
    let (place, credit, fair) = (turn.place + 1, standing.credit.abs(), standing.fair);
    format!(
        "number {place} by fair completion; {credit:.0} CPU seconds {ahead} its fair share, now {fair:.1} CPUs{end}"
    )
}

fn count(running: &[u64]) -> u32 {
    u32::try_from(running.len()).unwrap_or(u32::MAX)
}

/// For how long each task of an array runs, in seconds.
fn running_s(seen: &QueuedArray, now_s: f64) -> impl Iterator<Item = f64> {
    seen.running.iter().map(move |began_s| now_s - *began_s as f64)
}

impl KnownArray {
    fn of(seen: &QueuedArray) -> Self {
        Self {
            user: seen.user.clone(),
            own_bound: seen.bound.filter(|bound| *bound > 0),
            own_nice: seen.nice,
            cpus: seen.cpus,
            is_array: seen.is_array,
            ..Self::default()
        }
    }

    /// Takes what is left of it, and what its user has changed.
    fn follow(&mut self, seen: &QueuedArray) {
        let running = count(&seen.running);
        self.left = seen.waiting.saturating_add(running);
        self.tasks = self.tasks.max(self.left);
        self.is_array |= seen.is_array;
        // Only waiting tasks show them.
        if seen.waiting == 0 {
            return;
        }
        let ours = [self.set, self.shown_before, Some(self.own())];
        if let Some(bound) = seen.bound
            && !ours.iter().flatten().any(|ours| ours.0 == bound)
        {
            self.own_bound = Some(bound).filter(|bound| *bound > 0);
        }
        if !ours.iter().flatten().any(|ours| ours.1 == seen.nice) {
            self.own_nice = seen.nice;
        }
    }

    /// What it should show: what was set last, or its user's own.
    fn last(&self) -> (u32, i64) {
        self.set.unwrap_or_else(|| self.own())
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
        let task_s = task_s(self.ended.mean_s(), mean_s, std::iter::empty());
        left_cpu_s(self.tasks, self.cpus.max(1), task_s, std::iter::empty())
    }
}

impl Gone {
    fn add(&mut self, known: &KnownArray, mean_s: f64) {
        self.tasks = self.tasks.saturating_add(known.tasks);
        self.work += known.work(mean_s);
        self.ended.merge(known.ended);
    }
}
