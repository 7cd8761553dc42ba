//! How far a job is: which of its tasks wait, run and have ended, by stage. In: what happens to its tasks. Out: the stage whose tasks
//! start next. Called by [`engine`](super::engine).
//!
//! Tasks of a stage read what those of the stage before wrote on their nodes, when they start. So a job goes back to a stage when
//! outputs of it are lost that tasks which have not started need; those that run by then go on. What the last stage wrote
//! is safe.

use super::input::Workload;
use super::tasks::Queue;

/// The integral over time of what changes by steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Integral {
    pub(super) sum: f64,
    pub(super) value: f64,
    since_s: f64,
}

impl Integral {
    pub(super) fn at(&self, now_s: f64) -> f64 {
        self.sum + self.value * (now_s - self.since_s)
    }

    pub(super) fn set(&mut self, now_s: f64, value: f64) {
        *self = Self { sum: self.at(now_s), value, since_s: now_s };
    }
}

/// A stage of a job.
#[derive(Debug, Clone, Default)]
struct Part {
    /// `None` before it has begun.
    queue: Option<Queue>,
    running: u32,
}

impl Part {
    fn waiting(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.waiting)
    }
}

/// How far a job is.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) released: bool,
    /// The stage whose tasks start; the number of stages when the job has ended.
    pub(super) stage: usize,
    parts: Vec<Part>,
    /// ∫ of its dominant share.
    pub(super) product: Integral,
    /// ∫ of its node share.
    pub(super) node_product: Integral,
    /// True durations of a stage over what the policy was told, for stages of which a task has ended.
    pub(super) learned: Vec<Option<f64>>,
}

impl Progress {
    pub(super) fn new(stages: usize) -> Self {
        Self {
            released: false,
            stage: 0,
            parts: vec![Part::default(); stages],
            product: Integral::default(),
            node_product: Integral::default(),
            learned: vec![None; stages],
        }
    }

    /// The tasks that may start, of the stage that is due.
    pub(super) fn queue(&self) -> Option<&Queue> {
        self.parts.get(self.stage)?.queue.as_ref()
    }

    pub(super) fn queue_mut(&mut self) -> Option<&mut Queue> {
        self.parts.get_mut(self.stage)?.queue.as_mut()
    }

    /// Tasks of the stage that is due which have not started.
    pub(super) fn waiting(&self) -> u32 {
        self.parts.get(self.stage).map_or(0, Part::waiting)
    }

    /// Tasks of a stage that have begun to wait, or run; `None` of a stage that has not begun.
    pub(super) fn unfinished(&self, stage: usize) -> Option<u32> {
        let part = self.parts.get(stage)?;
        part.queue.as_ref().map(|queue| queue.waiting + part.running)
    }

    /// Running tasks of each stage.
    pub(super) fn running(&self) -> impl Iterator<Item = u32> + '_ {
        self.parts.iter().map(|part| part.running)
    }

    pub(super) fn started(&mut self) {
        self.parts[self.stage].running += 1;
    }

    /// A task of a stage has ended, or was lost.
    pub(super) fn stopped(&mut self, stage: usize) {
        self.parts[stage].running -= 1;
    }

    /// A task that was lost, or whose output was, waits again.
    pub(super) fn put_back(&mut self, workload: &Workload, job: usize, stage: usize, task: usize) {
        if let Some(queue) = &mut self.parts[stage].queue {
            queue.put_back(workload.holders(job, stage), task);
        }
    }

    /// The stage that is due begins, if it has not.
    pub(super) fn enter(&mut self, begin: impl FnOnce(usize) -> Queue) {
        if let Some(part) = self.parts.get_mut(self.stage) {
            part.queue.get_or_insert_with(|| begin(self.stage));
        }
    }

    /// The first stage with something left to do; the number of stages where there is none.
    pub(super) fn due(&self) -> usize {
        let done = |part: &Part| part.queue.is_some() && part.waiting() + part.running == 0;
        self.parts.iter().position(|part| !done(part)).unwrap_or(self.parts.len())
    }

    /// Whether tasks that have not started will read what this stage wrote.
    pub(super) fn is_read(&self, stage: usize) -> bool {
        self.parts.get(stage + 1).is_some_and(|next| next.queue.is_none() || next.waiting() > 0)
    }
}
