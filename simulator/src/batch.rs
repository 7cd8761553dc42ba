//! A simulated batch engine like Hadoop's map phase. In: slots per host, second by second. Out: tasks done. Called by
//! [`crate::cluster`].
//!
//! Tasks wait in a queue, run in slots, read their data from the dedicated hosts' disks, and are lost with their host.
//! At the end idle slots run copies of the slowest tasks (LATE, which RHIC §4.4 relies on).

use std::collections::VecDeque;

use crate::random::Random;
use crate::scenario::JobProfile;

/// Copies of a block (the default of HDFS).
const REPLICAS: usize = 3;
/// A copy is started only for a slow task with at least this remaining time, in seconds.
const LEAST_GAIN_S: f64 = 10.0;

/// A task that runs somewhere.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    task: u32,
    /// Work done, in seconds of a core of speed 1.
    done: f64,
    /// Seconds since it started.
    age_s: f64,
    /// Dedicated host it reads from.
    disk: usize,
}

/// Slots of one host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    /// Slots that take new tasks.
    pub(crate) slots: u32,
    /// Work per second of CPU time.
    pub(crate) speed: f64,
    /// Its place among the dedicated hosts, if it is one.
    pub(crate) dedicated: Option<usize>,
    /// Dedicated host it is assigned to (its logical rack).
    pub(crate) rack: usize,
    running: Vec<Attempt>,
    /// Work finished here, in seconds of a core of speed 1.
    pub(crate) done: f64,
}

impl Worker {
    pub(crate) fn new(speed: f64, dedicated: Option<usize>, rack: usize) -> Self {
        Self { speed, dedicated, rack, ..Self::default() }
    }

    pub(crate) fn running(&self) -> u32 {
        u32::try_from(self.running.len()).unwrap_or(u32::MAX)
    }
}

/// A job on its way.
#[derive(Debug)]
pub(crate) struct Batch {
    profile: JobProfile,
    speculation: bool,
    /// Work of each task.
    work: Vec<f64>,
    /// Dedicated hosts that have each task's data.
    replicas: Vec<[usize; REPLICAS]>,
    waiting: VecDeque<u32>,
    finished: Vec<bool>,
    /// Tasks that run twice.
    copied: Vec<bool>,
    tasks_done: u32,
    work_done: f64,
    work_in_all: f64,
    task_seconds: f64,
    task_squares: f64,
    /// Bandwidth of each dedicated host's disk, in MB/s.
    disks: Vec<f64>,
    /// Demand on each in the present second.
    demand: Vec<f64>,
    /// Utilisation of each in the last second.
    pub(crate) utilisation: Vec<f64>,
}

impl Batch {
    /// Jobs of one scenario have numbers from 0.
    pub(crate) fn new(profile: &JobProfile, disks: Vec<f64>, speculation: bool, seed: u64, number: u64) -> Self {
        let mut random = Random::part(seed, 1 + (number << 33));
        let tasks = profile.tasks as usize;
        let grown = |task: usize| match profile.task_growth {
            0.0 => 1.0,
            growth => 1.0 + growth * ((task as f64 + 0.5) / tasks as f64 - 0.5),
        };
        let work: Vec<f64> = (0..tasks)
            .map(|task| profile.task_cpu_s * random.around_one(profile.task_variation) * grown(task))
            .collect();
        let replicas = (0..tasks).map(|_| std::array::from_fn(|_| random.below(disks.len()))).collect();
        Self {
            profile: profile.clone(),
            speculation,
            work_in_all: work.iter().sum(),
            work,
            replicas,
            waiting: (0..profile.tasks).collect(),
            finished: vec![false; tasks],
            copied: vec![false; tasks],
            tasks_done: 0,
            work_done: 0.0,
            task_seconds: 0.0,
            task_squares: 0.0,
            demand: vec![0.0; disks.len()],
            utilisation: vec![0.0; disks.len()],
            disks,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.tasks_done == self.profile.tasks
    }

    pub(crate) fn tasks_done(&self) -> u32 {
        self.tasks_done
    }

    /// All of its work, in seconds of a core of speed 1.
    pub(crate) const fn work_in_all(&self) -> f64 {
        self.work_in_all
    }

    /// Part of the job done as its engine knows it, running tasks counted in part: of its work or, where tasks grow, of its
    /// tasks, all alike.
    pub(crate) fn fraction<'w>(&self, workers: impl Iterator<Item = &'w Worker>) -> f64 {
        let by_tasks = self.profile.task_growth != 0.0;
        let done = |attempt: &Attempt| match by_tasks {
            true => (attempt.done / self.work[attempt.task as usize]).min(1.0),
            false => attempt.done,
        };
        let running: f64 = workers
            .flat_map(|worker| &worker.running)
            .filter(|attempt| !self.finished[attempt.task as usize])
            .map(done)
            .sum();
        let (done, all) = match by_tasks {
            true => (f64::from(self.tasks_done), f64::from(self.profile.tasks)),
            false => (self.work_done, self.work_in_all),
        };
        if self.is_done() { 1.0 } else { ((done + running) / all).min(1.0) }
    }

    /// Part of the job that a worker has done.
    pub(crate) fn part(&self, worker: &Worker) -> f64 {
        let running: f64 = worker.running.iter().map(|attempt| attempt.done).sum();
        ((worker.done + running) / self.work_in_all).min(1.0)
    }

    pub(crate) fn mean_task_s(&self) -> Option<f64> {
        (self.tasks_done > 0).then(|| self.task_seconds / f64::from(self.tasks_done))
    }

    pub(crate) fn task_deviation_s(&self) -> Option<f64> {
        let mean = self.mean_task_s()?;
        Some((self.task_squares / f64::from(self.tasks_done) - mean * mean).max(0.0).sqrt())
    }

    /// A host is lost: its tasks run again.
    pub(crate) fn lose(&mut self, worker: &mut Worker) {
        for attempt in worker.running.drain(..) {
            let task = attempt.task as usize;
            if !self.finished[task] && !std::mem::take(&mut self.copied[task]) {
                self.waiting.push_front(attempt.task);
            }
        }
        worker.slots = 0;
    }

    /// Gives waiting tasks to free slots, evenly; at the end copies of the slowest.
    pub(crate) fn assign(&mut self, workers: &mut [Worker]) {
        loop {
            let mut gave = false;
            for worker in workers.iter_mut().filter(|worker| worker.running() < worker.slots) {
                let Some(task) = self.waiting.pop_front() else { return self.speculate(workers) };
                let disk = self.nearest(task, worker);
                worker.running.push(Attempt { task, done: 0.0, age_s: 0.0, disk });
                gave = true;
            }
            if !gave {
                return;
            }
        }
    }

    /// Where a worker reads a task's data: from itself, from its rack, or from any replica.
    fn nearest(&self, task: u32, worker: &Worker) -> usize {
        let replicas = &self.replicas[task as usize];
        let own = worker.dedicated.unwrap_or(worker.rack);
        if replicas.contains(&own) { own } else { replicas[0] }
    }

    /// Idle slots of dedicated hosts run copies of the tasks that would end last.
    fn speculate(&mut self, workers: &mut [Worker]) {
        if !self.speculation {
            return;
        }
        let idle = |worker: &Worker| worker.slots.saturating_sub(worker.running());
        if workers.iter().all(|worker| idle(worker) == 0) {
            return;
        }
        let mut slow: Vec<(f64, u32)> = Vec::new();
        for worker in workers.iter() {
            for attempt in worker.running.iter().filter(|attempt| attempt.age_s >= LEAST_GAIN_S) {
                let task = attempt.task as usize;
                let left = (self.work[task] - attempt.done) * attempt.age_s / attempt.done.max(1e-9);
                // A copy starts from the beginning; it helps only if the rest takes longer than the whole task elsewhere.
                if !self.copied[task] && left > self.work[task] * 1.1 + LEAST_GAIN_S {
                    slow.push((left, attempt.task));
                }
            }
        }
        slow.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut slow = slow.into_iter();
        for worker in workers.iter_mut().filter(|worker| worker.dedicated.is_some()) {
            for _ in 0..idle(worker) {
                let Some((_, task)) = slow.next() else { return };
                self.copied[task as usize] = true;
                let disk = self.nearest(task, worker);
                worker.running.push(Attempt { task, done: 0.0, age_s: 0.0, disk });
            }
        }
    }

    /// One second, in which each worker may use so much CPU (in cores). Gives the CPU each used.
    pub(crate) fn second(&mut self, workers: &mut [Worker], cpu: &[f64]) -> Vec<f64> {
        let read = self.profile.read_mb_per_cpu_s;
        let ready = 1.0 - self.profile.wait;
        self.demand.fill(0.0);
        let pace = |worker: &Worker, cpu: f64| {
            let tasks = worker.running.len() as f64;
            if tasks > 0.0 { (cpu / tasks).min(1.0) * ready } else { 0.0 }
        };
        if read > 0.0 {
            for (worker, cpu) in workers.iter().zip(cpu) {
                let demand = pace(worker, *cpu) * worker.speed * read;
                for attempt in &worker.running {
                    self.demand[attempt.disk] += demand;
                }
            }
        }
        // What a disk serves of its demand. Queues make it fall short a little before it is full: at a demand equal
        // to the bandwidth by a twelfth.
        let served: Vec<f64> = self
            .demand
            .iter()
            .zip(&self.disks)
            .map(|(demand, disk)| (1.0 + (demand / disk).powi(8)).powf(-0.125))
            .collect();
        for (disk, used) in self.utilisation.iter_mut().enumerate() {
            *used = (self.demand[disk] * served[disk] / self.disks[disk]).min(1.0);
        }
        let mut used = Vec::with_capacity(workers.len());
        for (worker, cpu) in workers.iter_mut().zip(cpu) {
            let pace = pace(worker, *cpu);
            let mut own = 0.0;
            for attempt in &mut worker.running {
                let cpu_s = pace * served[attempt.disk];
                own += cpu_s;
                attempt.done += cpu_s * worker.speed;
                attempt.age_s += 1.0;
            }
            used.push(own);
        }
        self.finish(workers);
        used
    }

    fn finish(&mut self, workers: &mut [Worker]) {
        let mut doubled = false;
        for worker in workers.iter_mut() {
            let (work, finished) = (&self.work, &mut self.finished);
            let (tasks_done, work_done, seconds) = (&mut self.tasks_done, &mut self.work_done, &mut self.task_seconds);
            let (copied, done, squares) = (&self.copied, &mut worker.done, &mut self.task_squares);
            worker.running.retain(|attempt| {
                let task = attempt.task as usize;
                if attempt.done < work[task] {
                    return true;
                }
                if !finished[task] {
                    finished[task] = true;
                    *tasks_done += 1;
                    *work_done += work[task];
                    *seconds += attempt.age_s;
                    *squares += attempt.age_s * attempt.age_s;
                    *done += work[task];
                    doubled |= copied[task];
                }
                false
            });
        }
        // The other copy of a finished task is ended.
        if doubled {
            for worker in workers.iter_mut() {
                worker.running.retain(|attempt| !self.finished[attempt.task as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(tasks: u32, read: f64) -> JobProfile {
        JobProfile {
            name: "t".into(),
            tasks,
            task_cpu_s: 10.0,
            task_variation: 0.0,
            read_mb_per_cpu_s: read,
            ..JobProfile::default()
        }
    }

    fn dedicated(slots: u32) -> Worker {
        Worker { slots, speed: 1.0, dedicated: Some(0), ..Worker::default() }
    }

    fn run(batch: &mut Batch, workers: &mut [Worker], cpu: &[f64]) -> u32 {
        for second in 1..100_000 {
            batch.assign(workers);
            batch.second(workers, cpu);
            if batch.is_done() {
                return second;
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn four_tasks_in_two_slots_take_two_rounds() {
        let mut batch = Batch::new(&profile(4, 0.0), vec![100.0], true, 1, 0);
        assert_eq!(run(&mut batch, &mut [dedicated(2)], &[2.0]), 20);
        assert_eq!(batch.mean_task_s(), Some(10.0));
    }

    #[test]
    fn a_disk_serves_no_more_than_its_bandwidth() {
        // Ten slots want 20 MB/s each of a disk of 100: the work takes at least twice as long.
        let mut batch = Batch::new(&profile(100, 20.0), vec![100.0], true, 1, 0);
        let mut workers = [dedicated(10)];
        let seconds = run(&mut batch, &mut workers, &[10.0]);
        assert!((200..=215).contains(&seconds), "{seconds}");
        assert!(batch.utilisation[0] > 0.9);
    }

    #[test]
    fn lost_tasks_run_again_and_nothing_runs_twice() {
        let mut batch = Batch::new(&profile(40, 0.0), vec![100.0], true, 1, 0);
        let mut workers = [dedicated(2), Worker { slots: 4, speed: 1.0, ..Worker::default() }];
        for _ in 0..15 {
            batch.assign(&mut workers);
            batch.second(&mut workers, &[2.0, 4.0]);
        }
        assert_eq!(batch.tasks_done(), 6);
        batch.lose(&mut workers[1]);
        assert_eq!(workers[1].running(), 0);
        run(&mut batch, &mut workers, &[2.0, 0.0]);
        assert_eq!(batch.tasks_done(), 40);
        assert!((batch.fraction(workers.iter()) - 1.0).abs() < f64::EPSILON);
    }

    /// The first half of its tasks is a quarter of the work: of two tasks as long as 5 and 15 s each counts as a half.
    #[test]
    fn tasks_that_grow_are_counted_alike() {
        let growing = JobProfile { task_growth: 2.0, ..profile(2, 0.0) };
        let mut batch = Batch::new(&growing, vec![100.0], true, 1, 0);
        let mut workers = [dedicated(1)];
        let mut at = [0.0; 20];
        for seen in &mut at {
            batch.assign(&mut workers);
            batch.second(&mut workers, &[1.0]);
            *seen = batch.fraction(workers.iter());
        }
        assert!((at[4] - 0.5).abs() < 1e-9 && (at[9] - 0.5 - 5.0 / 30.0).abs() < 1e-9 && at[19] >= 1.0, "{at:?}");
    }

    #[test]
    fn stragglers_are_taken_over() {
        // One task is on a host that gives it almost no CPU.
        let mut batch = Batch::new(&profile(2, 0.0), vec![100.0], true, 1, 0);
        let mut workers = [dedicated(1), Worker { slots: 1, speed: 1.0, ..Worker::default() }];
        let seconds = run(&mut batch, &mut workers, &[1.0, 0.01]);
        assert!((20..=35).contains(&seconds), "{seconds}");
        let mut alone = Batch::new(&profile(2, 0.0), vec![100.0], false, 1, 0);
        let mut workers = [dedicated(1), Worker { slots: 1, speed: 1.0, ..Worker::default() }];
        assert!(run(&mut alone, &mut workers, &[1.0, 0.01]) >= 999);
    }
}
