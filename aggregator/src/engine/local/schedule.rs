//! The order of a job's tasks: pure bookkeeping. In: starts and ends of tasks. Out: the next task, and whether a failed
//! one is tried again. Called by the runner.

use std::collections::VecDeque;

use gleaner_types::job::EngineProgress;
use gleaner_types::units::Fraction;

use super::records::Outcome;

/// Times a task may lose its slot before it is given up. Chosen: a task that is killed this often is being
/// killed for a reason of its own, such as its memory.
const MOST_LOSSES: u32 = 20;

/// Most a running task counts as done, however overdue.
const MOST_PARTIAL: f64 = 0.95;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttemptEnd {
    /// The command exited with 0.
    Success,
    /// The command exited with something else, or ran out of time.
    Failure,
    /// It was killed from outside, or never got to run.
    Lost,
}

/// What becomes of a task after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    Retry,
    GivenUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pending,
    Running,
    Done,
    Failed,
}

#[derive(Debug, Clone, Copy)]
struct Task {
    state: State,
    /// Number of the last attempt.
    attempts: u32,
    failures: u32,
    losses: u32,
}

/// All tasks of a job, numbered from 0.
#[derive(Debug)]
pub(super) struct Schedule {
    max_attempts: u32,
    tasks: Vec<Task>,
    pending: VecDeque<u32>,
    running: u32,
    done: u32,
    failed: u32,
    retried: u32,
    /// Wall time of the finished tasks.
    finished_s: f64,
    finished_squares: f64,
    /// Progress reported so far; it never goes back.
    reported: f64,
}

impl Schedule {
    pub(super) fn new(tasks: u32, max_attempts: u32) -> Self {
        let fresh = Task { state: State::Pending, attempts: 0, failures: 0, losses: 0 };
        Self {
            max_attempts,
            tasks: vec![fresh; tasks as usize],
            pending: (0..tasks).collect(),
            running: 0,
            done: 0,
            failed: 0,
            retried: 0,
            finished_s: 0.0,
            finished_squares: 0.0,
            reported: 0.0,
        }
    }

    /// Takes over a result of an earlier run of the aggregator.
    fn recall(&mut self, task: u32, outcome: Outcome) {
        let Some(entry) = self.tasks.get_mut(task as usize).filter(|entry| entry.state == State::Pending) else {
            return;
        };
        match outcome {
            Outcome::Done { wall_s } => {
                entry.state = State::Done;
                self.done += 1;
                self.finished_s += wall_s;
                self.finished_squares += wall_s * wall_s;
            }
            Outcome::Failed => {
                entry.state = State::Failed;
                self.failed += 1;
            }
            Outcome::Tried { attempt } => {
                entry.attempts = entry.attempts.max(attempt);
                entry.failures += 1;
                self.retried += 1;
            }
        }
    }

    /// Takes over the results of an earlier run of the aggregator.
    pub(super) fn recall_all(&mut self, results: impl Iterator<Item = (u32, Outcome)>) {
        for (task, outcome) in results {
            self.recall(task, outcome);
        }
        let pending = std::mem::take(&mut self.pending);
        self.pending = pending.into_iter().filter(|task| self.is(*task, State::Pending)).collect();
    }

    /// Takes over a task that an earlier run started; `false` if what became of that attempt is known already.
    pub(super) fn adopt(&mut self, task: u32, attempt: u32) -> bool {
        let Some(entry) = self.tasks.get_mut(task as usize) else { return false };
        let adopted = entry.state == State::Pending && attempt > entry.attempts;
        if adopted {
            (entry.state, entry.attempts) = (State::Running, attempt);
            self.running += 1;
            self.pending.retain(|pending| *pending != task);
        }
        adopted
    }

    fn is(&self, task: u32, state: State) -> bool {
        self.tasks.get(task as usize).is_some_and(|entry| entry.state == state)
    }

    /// The next task to start, if a slot is free, and which attempt it is, from 1.
    pub(super) fn start_next(&mut self, slots: u32) -> Option<(u32, u32)> {
        if self.running >= slots {
            return None;
        }
        let task = self.pending.pop_front()?;
        let entry = self.tasks.get_mut(task as usize)?;
        (entry.state, entry.attempts) = (State::Running, entry.attempts.saturating_add(1));
        self.running += 1;
        Some((task, entry.attempts))
    }

    /// A task that was to be started could not be: it is next again, as if nothing had been tried.
    pub(super) fn put_back(&mut self, task: u32) {
        if let Some(entry) = self.tasks.get_mut(task as usize).filter(|entry| entry.state == State::Running) {
            (entry.state, entry.attempts) = (State::Pending, entry.attempts.saturating_sub(1));
            self.running -= 1;
            self.pending.push_front(task);
        }
    }

    /// An attempt ended after `wall_s` seconds.
    pub(super) fn ended(&mut self, task: u32, end: AttemptEnd, wall_s: f64) -> Verdict {
        let Some(entry) = self.tasks.get_mut(task as usize).filter(|entry| entry.state == State::Running) else {
            return Verdict::Done;
        };
        self.running -= 1;
        match end {
            AttemptEnd::Success => {
                entry.state = State::Done;
                self.done += 1;
                self.finished_s += wall_s;
                self.finished_squares += wall_s * wall_s;
                return Verdict::Done;
            }
            AttemptEnd::Failure => entry.failures += 1,
            AttemptEnd::Lost => entry.losses += 1,
        }
        if entry.failures >= self.max_attempts || entry.losses > MOST_LOSSES {
            entry.state = State::Failed;
            self.failed += 1;
            Verdict::GivenUp
        } else {
            entry.state = State::Pending;
            self.retried += 1;
            // A task that lost its slot goes first, one that failed last: others should not wait for it.
            match end {
                AttemptEnd::Lost => self.pending.push_front(task),
                _ => self.pending.push_back(task),
            }
            Verdict::Retry
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.running == 0 && self.pending.is_empty()
    }

    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    /// How far the job is, given how long each running task has been running.
    pub(super) fn progress(&mut self, running_s: impl Iterator<Item = f64>, slots: u32) -> EngineProgress {
        let mean_task_s = (self.done > 0).then(|| self.finished_s / f64::from(self.done));
        let variance = |mean: f64| (self.finished_squares / f64::from(self.done) - mean * mean).max(0.0);
        let task_deviation_s = mean_task_s.map(|mean| variance(mean).sqrt());
        let partial: f64 = match mean_task_s {
            Some(mean) if mean > 0.0 => running_s.map(|elapsed| (elapsed / mean).min(MOST_PARTIAL)).sum(),
            _ => 0.0,
        };
        let total = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
        let done = (f64::from(self.done + self.failed) + partial) / f64::from(total.max(1));
        self.reported = self.reported.max(done.min(1.0));
        EngineProgress {
            fraction_done: Fraction::clamped(self.reported),
            tasks_total: total,
            tasks_done: self.done,
            tasks_failed: self.failed,
            tasks_retried: self.retried,
            tasks_running: self.running,
            mean_task_s,
            task_deviation_s,
            slots_in_use: slots.max(self.running),
            workers: std::collections::BTreeMap::new(),
            unusable: std::collections::BTreeSet::new(),
            leases: Vec::new(),
            stages: gleaner_types::stages::Stages::NotTold,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn starts_in_order_as_slots_allow_and_drains() {
        let mut schedule = Schedule::new(4, 1);
        assert_eq!(schedule.start_next(2), Some((0, 1)));
        assert_eq!(schedule.start_next(2), Some((1, 1)));
        assert_eq!(schedule.start_next(2), None);
        schedule.ended(0, AttemptEnd::Success, 2.0);
        assert_eq!(schedule.start_next(1), None, "draining: one slot, one task still runs");
        schedule.ended(1, AttemptEnd::Success, 4.0);
        assert_eq!(schedule.start_next(1), Some((2, 1)));
        // Two of four done, one running for 1.5 s of a mean of 3 s.
        let progress = schedule.progress([1.5].into_iter(), 1);
        assert_eq!(progress.fraction_done, Fraction::new(0.625).unwrap());
        assert_eq!((progress.mean_task_s, progress.task_deviation_s), (Some(3.0), Some(1.0)));
    }

    #[test]
    fn failures_are_tried_again_last_and_losses_first() {
        let mut schedule = Schedule::new(3, 2);
        for _ in 0..2 {
            schedule.start_next(2);
        }
        assert_eq!(schedule.ended(0, AttemptEnd::Failure, 1.0), Verdict::Retry);
        assert_eq!(schedule.ended(1, AttemptEnd::Lost, 1.0), Verdict::Retry);
        assert_eq!(schedule.start_next(9), Some((1, 2)));
        assert_eq!(schedule.start_next(9), Some((2, 1)));
        assert_eq!(schedule.start_next(9), Some((0, 2)));
        assert_eq!(schedule.ended(0, AttemptEnd::Failure, 1.0), Verdict::GivenUp);
        assert_eq!(schedule.failed(), 1);
    }

    #[test]
    fn a_task_that_is_always_killed_is_given_up_in_the_end() {
        let mut schedule = Schedule::new(1, 1);
        let mut verdicts = Vec::new();
        while schedule.start_next(1).is_some() {
            verdicts.push(schedule.ended(0, AttemptEnd::Lost, 0.1));
        }
        assert_eq!(verdicts.len(), 21);
        assert_eq!(verdicts.last(), Some(&Verdict::GivenUp));
    }

    #[test]
    fn results_of_an_earlier_run_are_not_run_again() {
        let mut schedule = Schedule::new(4, 1);
        let done = Outcome::Done { wall_s: 2.0 };
        schedule.recall_all([(1, done), (3, Outcome::Failed), (9, done), (1, done)].into_iter());
        assert!(schedule.adopt(2, 1));
        assert!(!schedule.adopt(1, 1), "a finished task is not adopted");
        assert!(!schedule.adopt(9, 1), "there is no such task");
        assert_eq!(schedule.start_next(9), Some((0, 1)));
        assert_eq!(schedule.start_next(9), None);
        let progress = schedule.progress([].into_iter(), 0);
        assert_eq!((progress.tasks_done, progress.tasks_failed, progress.tasks_running), (1, 1, 2));
    }

    #[test]
    fn failed_attempts_of_an_earlier_run_count() {
        let mut schedule = Schedule::new(2, 2);
        schedule.recall_all([(0, Outcome::Tried { attempt: 3 })].into_iter());
        assert!(!schedule.adopt(0, 3), "what became of that attempt is known");
        assert!(schedule.adopt(0, 4));
        assert_eq!(schedule.ended(0, AttemptEnd::Failure, 1.0), Verdict::GivenUp);
        assert_eq!(schedule.start_next(9), Some((1, 1)));
        schedule.put_back(1);
        assert_eq!(schedule.start_next(9), Some((1, 1)), "not started is not attempted");
    }

    proptest! {
        /// Against the obvious model: every task ends exactly once, none runs after it ended, and no more run
        /// than there were slots when they started.
        #[test]
        fn every_task_ends_once(
            tasks in 1..30u32,
            attempts in 1..4u32,
            steps in prop::collection::vec((0..6u32, 0..3u8, any::<prop::sample::Index>()), 0..2_000),
        ) {
            let mut schedule = Schedule::new(tasks, attempts);
            let mut running: Vec<u32> = Vec::new();
            let mut ended = std::collections::BTreeSet::new();
            let mut last = 0.0;
            for (slots, how, pick) in steps {
                while let Some((task, _)) = schedule.start_next(slots) {
                    prop_assert!(!ended.contains(&task) && !running.contains(&task));
                    running.push(task);
                    prop_assert!(running.len() <= slots as usize);
                }
                if !running.is_empty() {
                    let task = running.swap_remove(pick.index(running.len()));
                    let end = [AttemptEnd::Success, AttemptEnd::Failure, AttemptEnd::Lost][how as usize];
                    if schedule.ended(task, end, 1.0) != Verdict::Retry {
                        prop_assert!(ended.insert(task));
                    }
                }
                let progress = schedule.progress(running.iter().map(|_| 0.5), slots);
                prop_assert!(progress.fraction_done.value() >= last);
                last = progress.fraction_done.value();
                prop_assert_eq!(schedule.is_over(), ended.len() == tasks as usize);
            }
        }
    }
}
