//! Plays a schedule out on a cluster: tasks of known length, events in the order of their times, no randomness. In: a
//! workload and a policy. Out: when and where each task ran.

use std::collections::BTreeMap;

use super::input::{Stage, Workload};
use super::resources::Resources;

/// Part of a time by which sums of durations may be off.
pub(super) const TIME_ROUNDING: f64 = 1e-12;

/// Chooses what starts.
pub trait Policy {
    /// When it wants to be asked again though no task ends and no job arrives.
    fn wake_s(&self) -> Option<f64> {
        None
    }

    /// Starts tasks. It is asked at every event, after all that happens at that time.
    fn schedule(&mut self, state: &mut State<'_>);
}

/// A task that ran. Jobs, stages and nodes are positions in the workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Its job.
    pub job: usize,
    /// Its stage.
    pub stage: usize,
    /// Its node.
    pub node: usize,
    /// When it began.
    pub start_s: f64,
    /// When it ended.
    pub end_s: f64,
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

/// What is free of a node.
#[derive(Debug, Clone, Copy)]
struct Place {
    free: Resources,
    running: u32,
}

/// How far a job is.
#[derive(Debug, Clone, Copy)]
struct Progress {
    released: bool,
    stage: usize,
    waiting: u32,
    running: u32,
    /// ∫ of its dominant share.
    product: f64,
}

/// A moment of the play.
#[derive(Debug)]
pub struct State<'a> {
    /// What is played.
    pub workload: &'a Workload,
    /// The time.
    pub now_s: f64,
    places: Vec<Place>,
    switch_free: f64,
    switch_running: u32,
    jobs: Vec<Progress>,
    ends: BTreeMap<(u64, usize), Run>,
    schedule: Schedule,
}

impl State<'_> {
    /// The job's stage that has tasks to start now, and how many.
    #[must_use]
    pub fn ready(&self, job: usize) -> Option<(&Stage, u32)> {
        let progress = &self.jobs[job];
        let stage = self.workload.jobs()[job].stages.get(progress.stage)?;
        (progress.released && progress.waiting > 0).then_some((stage, progress.waiting))
    }

    /// The job's stage, and how many of its tasks have not ended; `None` when the job has ended or not arrived.
    #[must_use]
    pub fn unfinished(&self, job: usize) -> Option<(usize, u32)> {
        let progress = &self.jobs[job];
        let present = progress.released && progress.stage < self.workload.jobs()[job].stages.len();
        present.then_some((progress.stage, progress.waiting + progress.running))
    }

    /// Whether the job has arrived.
    #[must_use]
    pub fn released(&self, job: usize) -> bool {
        self.jobs[job].released
    }

    /// The dominant share that the job holds.
    #[must_use]
    pub fn share(&self, job: usize) -> f64 {
        let progress = &self.jobs[job];
        let stage = self.workload.jobs()[job].stages.get(progress.stage);
        stage.map_or(0.0, |stage| f64::from(progress.running) * self.workload.task_share(stage))
    }

    /// ∫ of the dominant share that the job held until now.
    #[must_use]
    pub fn product(&self, job: usize) -> f64 {
        self.jobs[job].product
    }

    /// What a task could have of a node: its free resources, and no more network than the cluster switch has free.
    #[must_use]
    pub fn free(&self, node: usize) -> Resources {
        let free = self.places[node].free;
        Resources { network: free.network.min(self.switch_free), ..free }
    }

    /// Whether a task of this demand could start on the node.
    #[must_use]
    pub fn fits(&self, demand: Resources, node: usize) -> bool {
        demand.fits(self.free(node), self.workload.cluster().nodes[node].capacity)
    }

    /// Starts a task of the job on the node. False, and nothing is done, where it has none to start or no room.
    pub fn start(&mut self, job: usize, node: usize) -> bool {
        let Some((&stage, _)) = self.ready(job).filter(|(stage, _)| self.fits(stage.demand, node)) else {
            return false;
        };
        let place = &mut self.places[node];
        place.free = place.free.minus(stage.demand);
        place.running += 1;
        if stage.demand.network > 0.0 {
            self.switch_free -= stage.demand.network;
            self.switch_running += 1;
        }
        let progress = &mut self.jobs[job];
        progress.waiting -= 1;
        progress.running += 1;
        let end_s = self.now_s + stage.duration_s;
        let run = Run { job, stage: progress.stage, node, start_s: self.now_s, end_s };
        self.ends.insert((end_s.to_bits(), self.schedule.runs.len()), run);
        self.schedule.runs.push(run);
        true
    }

    fn pass(&mut self, to_s: f64) {
        for job in 0..self.jobs.len() {
            self.jobs[job].product += self.share(job) * (to_s - self.now_s);
        }
        self.now_s = to_s;
    }

    fn release(&mut self, known_until_s: f64) {
        for (job, progress) in self.workload.jobs().iter().zip(&mut self.jobs) {
            progress.released |= job.release_s <= self.now_s && job.release_s <= known_until_s;
        }
    }

    /// Ends the tasks whose time has come. Times that differ only by rounding are one.
    fn end(&mut self) {
        let until = self.now_s * (1.0 + TIME_ROUNDING);
        while let Some(entry) = self.ends.first_entry() {
            if entry.get().end_s > until {
                return;
            }
            let run = entry.remove();
            let stages = &self.workload.jobs()[run.job].stages;
            let demand = stages[run.stage].demand;
            let place = &mut self.places[run.node];
            place.running -= 1;
            place.free = place.free.plus(demand);
            if place.running == 0 {
                // No rounding is left in an empty node.
                place.free = self.workload.cluster().nodes[run.node].capacity;
            }
            if demand.network > 0.0 {
                self.switch_running -= 1;
                self.switch_free += demand.network;
                if self.switch_running == 0 {
                    self.switch_free = self.workload.cluster().switch;
                }
            }
            let progress = &mut self.jobs[run.job];
            progress.running -= 1;
            if progress.running + progress.waiting == 0 {
                self.schedule.ends_s[run.job][run.stage] = run.end_s;
                progress.stage += 1;
                progress.waiting = stages.get(progress.stage).map_or(0, |next| next.tasks);
            }
        }
    }

    /// The next time at which something happens; `None` when nothing ever does.
    fn next_s(&self, known_until_s: f64, wake_s: Option<f64>) -> Option<f64> {
        let coming = self.workload.jobs().iter().map(|job| job.release_s);
        let arrival = coming.filter(|&at| at > self.now_s && at <= known_until_s).min_by(f64::total_cmp);
        let end = self.ends.first_key_value().map(|(_, run)| run.end_s);
        let event = [arrival, end].into_iter().flatten().min_by(f64::total_cmp)?;
        // Between two jobs nothing needs a decision. A wish that differs from an event only by rounding is that event.
        let wake = wake_s.filter(|&at| at > self.now_s && at < event * (1.0 - TIME_ROUNDING) && end.is_some());
        Some(wake.unwrap_or(event))
    }
}

/// Plays a policy out, until all jobs that arrive by `known_until_s` have ended. The later ones are left out.
pub fn play(workload: &Workload, policy: &mut dyn Policy, known_until_s: f64) -> Schedule {
    let jobs = workload.jobs();
    let place = |capacity: Resources| Place { free: capacity, running: 0 };
    let first = |stages: &[Stage]| stages.first().map_or(0, |stage| stage.tasks);
    let mut state = State {
        workload,
        now_s: 0.0,
        places: workload.cluster().nodes.iter().map(|node| place(node.capacity)).collect(),
        switch_free: workload.cluster().switch,
        switch_running: 0,
        jobs: jobs
            .iter()
            .map(|job| Progress { released: false, stage: 0, waiting: first(&job.stages), running: 0, product: 0.0 })
            .collect(),
        ends: BTreeMap::new(),
        schedule: Schedule {
            runs: Vec::new(),
            ends_s: jobs.iter().map(|job| vec![f64::INFINITY; job.stages.len()]).collect(),
        },
    };
    loop {
        state.end();
        state.release(known_until_s);
        policy.schedule(&mut state);
        match state.next_s(known_until_s, policy.wake_s()) {
            Some(next_s) => state.pass(next_s),
            None => return state.schedule,
        }
    }
}
