//! The high-throughput jobs that fill gaps. In: a seed. Out: a queue that never ends. The simulated cloud takes from it.
//!
//! The recorded jobs are not among the traces that we have: 10,317 jobs of the Open Science Grid that ran on gaps of Chameleon in June and July
//! 2021, in CHISim's published inputs (`osg_jobs-bk.csv`). Run times here are drawn from their distribution, read from seven parts of that
//! file, evenly spread, with 600 jobs. Almost all of them used one core; short ones at times two.

use std::collections::VecDeque;

use gleaner_planner::reservations::surviving::Waiting;
use gleaner_simulator::random::Random;

/// Run times by the part of jobs that run for less. Two equal parts are a jump: no job seen was in between.
const RUN_TIMES: [(f64, f64); 18] = [
    (0.0, 20.0),
    (0.06, 30.0),
    (0.08, 100.0),
    (0.115, 1_000.0),
    (0.175, 3_000.0),
    (0.265, 4_700.0),
    (0.265, 4_900.0),
    (0.54, 5_900.0),
    (0.54, 6_800.0),
    (0.63, 7_800.0),
    (0.63, 9_200.0),
    (0.79, 10_000.0),
    (0.945, 11_500.0),
    (0.965, 15_200.0),
    (0.965, 18_400.0),
    (0.99, 25_700.0),
    (0.99, 96_000.0),
    (1.0, 105_000.0),
];
/// Run times below which a job may use two cores, and the part of these that does. All that were seen ran for less.
const TWO_CORES: (f64, f64) = (1_600.0, 0.2);
/// Jobs at the head of the queue among which a strategy may choose. Chosen.
pub(super) const LOOK_AHEAD: usize = 64;

/// A job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Job {
    pub(super) cores: u32,
    pub(super) run_s: f64,
    pub(super) estimate_s: f64,
    pub(super) resubmissions: u32,
    pub(super) wasted_core_s: f64,
}

/// The waiting jobs.
pub(super) struct Queue {
    random: Random,
    /// Coefficient of variation of estimates over what jobs really take; 0 is a perfect estimate.
    error: f64,
    jobs: VecDeque<Job>,
    heads: Vec<Waiting>,
}

impl Queue {
    pub(super) fn new(seed: u64, error: f64) -> Self {
        let mut queue = Self { random: Random::part(seed, 11), error, jobs: VecDeque::new(), heads: Vec::new() };
        queue.fill();
        queue
    }

    /// The jobs among which a strategy may choose, the first first.
    pub(super) fn heads(&self) -> &[Waiting] {
        &self.heads
    }

    pub(super) fn take(&mut self, index: usize) -> Option<Job> {
        let job = self.jobs.remove(index)?;
        self.heads.remove(index);
        self.fill();
        Some(job)
    }

    /// A preempted job waits at the head of the queue (section 2).
    pub(super) fn again(&mut self, job: Job) {
        self.jobs.push_front(job);
        self.heads.insert(0, waiting(&job));
        self.heads.truncate(LOOK_AHEAD);
    }

    fn fill(&mut self) {
        while self.jobs.len() < LOOK_AHEAD {
            let job = self.draw();
            self.jobs.push_back(job);
        }
        while self.heads.len() < LOOK_AHEAD {
            self.heads.push(waiting(&self.jobs[self.heads.len()]));
        }
    }

    fn draw(&mut self) -> Job {
        let run_s = quantile(self.random.uniform());
        let (below_s, part) = TWO_CORES;
        let cores = if self.random.uniform() <= part && run_s < below_s { 2 } else { 1 };
        let estimate_s = if self.error > 0.0 { run_s * self.random.around_one(self.error) } else { run_s };
        Job { cores, run_s, estimate_s, resubmissions: 0, wasted_core_s: 0.0 }
    }
}

fn waiting(job: &Job) -> Waiting {
    Waiting { cores: job.cores, estimate_s: Some(job.estimate_s), checkpoint_s: None }
}

/// The run time that a part of the jobs stays below.
fn quantile(part: f64) -> f64 {
    let between = RUN_TIMES.windows(2).find(|pair| part <= pair[1].0).unwrap_or(&RUN_TIMES[RUN_TIMES.len() - 2..]);
    let ((low, from_s), (high, to_s)) = (between[0], between[1]);
    let within = if high > low { (part - low) / (high - low) } else { 0.0 };
    from_s + within * (to_s - from_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_are_those_of_the_table() {
        assert!(RUN_TIMES.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
        assert!((quantile(0.06) - 30.0).abs() < 1e-9 && (quantile(1.0) - 105_000.0).abs() < 1e-9);
        assert!((quantile(0.4025) - 5_400.0).abs() < 1e-9, "half way from 4,900 to 5,900");
    }

    #[test]
    fn the_queue_never_ends_and_preempted_jobs_are_first() {
        let mut queue = Queue::new(1, 0.0);
        let mean_s: f64 = (0..20_000).filter_map(|_| queue.take(3)).map(|job| job.run_s / 20_000.0).sum();
        assert!((6_000.0..9_000.0).contains(&mean_s), "{mean_s}");
        let again = Job { cores: 2, run_s: 1.0, estimate_s: 7.0, resubmissions: 3, wasted_core_s: 9.0 };
        queue.again(again);
        assert_eq!((queue.heads().len(), queue.heads()[0].estimate_s), (LOOK_AHEAD, Some(7.0)));
        assert_eq!(queue.take(0), Some(again));
        let same = (Queue::new(5, 0.3).take(9), Queue::new(5, 0.3).take(9));
        assert_eq!(same.0, same.1);
    }
}
