//! Progress of a job: its processing rate and its completion time (RHIC §4.4, Eq. 5 and 6). In: the fraction done and the
//! CPU used. Out: estimates for [`crate::sizing`].

use gleaner_types::job::Goal;
use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

/// The processing rate R_proc of a job, learned from what it completed and what CPU that took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessingRate {
    completed: f64,
    /// ∫ AP_actual dt: percent of one core × seconds, dedicated workers included.
    cpu_percent_s: f64,
}

impl ProcessingRate {
    /// Takes the workers' aggregate actual productivity over an interval.
    pub fn used(&mut self, actual: CoreShare, interval_s: f64) {
        if interval_s > 0.0 {
            self.cpu_percent_s += actual.percent() * interval_s;
        }
    }

    /// Takes the workers' productivity so far, in percent of one core × seconds, as it counts by what is known now.
    pub fn used_in_all(&mut self, percent_s: f64) {
        if percent_s >= 0.0 {
            self.cpu_percent_s = percent_s;
        }
    }

    /// Takes the fraction of the job that is complete. Progress never decreases.
    pub fn completed(&mut self, fraction: Fraction) {
        self.completed = self.completed.max(fraction.value().min(1.0));
    }

    /// R_proc of Eq. 5, J_completed / (T_elapsed × AP_actual), where T_elapsed × AP_actual is summed over
    /// the intervals: work per second and percent of one core. `None` before there is progress.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        (self.completed > 0.0 && self.cpu_percent_s > 0.0).then(|| self.completed / self.cpu_percent_s)
    }

    /// J_completed, in 0..=1.
    #[must_use]
    pub const fn done(self) -> f64 {
        self.completed
    }

    /// J_remaining.
    #[must_use]
    pub fn remaining(self) -> Fraction {
        Fraction::clamped(1.0 - self.completed)
    }

    /// CPU used so far, in core-seconds.
    #[must_use]
    pub fn core_seconds(self) -> f64 {
        self.cpu_percent_s / 100.0
    }
}

/// T_remaining of Eq. 6, J_remaining / (AP_predicted × R_proc), in seconds. Infinite without productivity.
#[must_use]
pub fn time_remaining(remaining: Fraction, predicted: CoreShare, rate: f64) -> f64 {
    if remaining.value() <= 0.0 {
        return 0.0;
    }
    let speed = predicted.percent() * rate;
    if speed > 0.0 { remaining.value() / speed } else { f64::INFINITY }
}

/// What a change of size costs in time (RHIC §4.4, "transition time"). Until added workers are set up, only the present ones
/// work; removed ones drain for about a task, in which they are counted as doing nothing.
///
/// Seconds until `remaining` is done, at `rate` of Eq. 5, when the productivity is `before` for `set_up_s` and `after`
/// from then on.
#[must_use]
pub fn time_with_set_up(remaining: Fraction, rate: f64, before: CoreShare, after: CoreShare, set_up_s: f64) -> f64 {
    let done_before = before.percent() * rate * set_up_s;
    if done_before >= remaining.value() {
        return time_remaining(remaining, before, rate);
    }
    set_up_s + time_remaining(Fraction::clamped(remaining.value() - done_before), after, rate)
}

/// Probability with which the last tasks of a job are to be done within the padding of a deadline's estimate. Chosen.
const SURE: f64 = 0.99;
/// The same for other goals, where a later end is not worse than an earlier one is good: the median.
const TYPICAL: f64 = 0.5;
/// Factor on the probability of a loss, because a missed deadline is worse than an early completion. Chosen.
const LOSS_WEIGHT: f64 = 2.0;

/// Padding of completion estimates against stragglers: how much later the last task ends than all work would be done if it could
/// be cut at will. RHIC pads with the mean length of a task (§4.4). That is too little where lengths differ much or many tasks run:
/// here it is what the longest of them takes beyond that, by the mean and the spread of lengths (`longest_left_s`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tail {
    /// Mean length of a task, in seconds.
    pub mean_s: f64,
    /// Standard deviation of lengths over their mean.
    pub variation: f64,
    /// Probability with which the padding is enough.
    pub sure: f64,
    /// Padding for tasks that are run again, in seconds.
    pub lost_s: f64,
}

impl Tail {
    /// Of a job with this goal. For a deadline the tasks that a lost volunteer leaves to be run again are added: `loss` is the
    /// probability that one is lost while a task runs.
    #[must_use]
    pub fn of(goal: Goal, mean_s: f64, deviation_s: Option<f64>, loss: f64) -> Self {
        let deviation_s = deviation_s.filter(|deviation| deviation.is_finite()).unwrap_or(0.0).max(0.0);
        let variation = if mean_s > 0.0 { deviation_s / mean_s } else { 0.0 };
        let (sure, lost_s) = match goal {
            Goal::Deadline { .. } => (SURE, mean_s * (LOSS_WEIGHT * loss).clamp(0.0, 1.0)),
            Goal::Cost { .. } | Goal::Energy => (TYPICAL, 0.0),
        };
        Self { mean_s, variation, sure, lost_s }
    }

    /// The padding where so many tasks run at the end, in seconds.
    #[must_use]
    pub fn seconds(&self, running: u32) -> f64 {
        // What is left of the tasks that run at the end is work as well, and counted there.
        let counted_s = self.mean_s / 2.0 * (1.0 + self.variation * self.variation);
        let longest_s = longest_left_s(self.mean_s, self.variation, running, self.sure);
        (longest_s - counted_s).max(0.0) + self.lost_s
    }
}

/// Standard deviation of the lengths of all tasks that have begun, in seconds. `finished` is the mean and the deviation of those that
/// have finished, which early in a job are the short ones; `mean_s` is the mean of all. Finished and running ones then differ by what
/// makes up that mean. How much the running ones differ among themselves is not known, and counted as nothing.
#[must_use]
pub fn deviation_of_begun(finished: (f64, f64), done: u32, running: u32, mean_s: f64) -> f64 {
    let (finished_s, deviation_s) = finished;
    if running == 0 {
        return deviation_s;
    }
    deviation_s.hypot((f64::from(done) / f64::from(running)).sqrt() * (mean_s - finished_s).max(0.0))
}

/// How long the longest of so many running tasks runs on, with the probability `sure`, in seconds. Tasks began one after
/// another, so what is left of one is a stationary excess: the part `E[(X - t)+] / E[X]` of them runs on for more than `t`, of
/// which among `n` none is left with the probability `exp(-n E[(X - t)+] / E[X])`. Lengths are taken to be log-normal with the
/// mean and the variation of the finished ones, because engines tell no more of them.
fn longest_left_s(mean_s: f64, variation: f64, running: u32, sure: f64) -> f64 {
    let few = -sure.ln() / f64::from(running.max(1));
    // Newton's method: what is beyond is convex in the time and falls from 1, so it comes near from below, in a few steps.
    let mut times = 0.0;
    for _ in 0..STEPS {
        let (excess, beyond) = excess(times, variation);
        let step = (excess - few) / beyond;
        if !(step > times * 1e-12 && times < LONGEST) {
            break;
        }
        times = (times + step).min(LONGEST);
    }
    mean_s * times
}

/// Most steps to the longest task. Chosen: some ten are needed.
const STEPS: u32 = 60;
/// No task is so many times as long as the mean one.
const LONGEST: f64 = 1_000.0;

/// `E[(X - t)+]` and the part of `X` above `t`, of a log-normal `X` of mean 1.
fn excess(t: f64, variation: f64) -> (f64, f64) {
    let variance = (1.0 + variation * variation).ln();
    let deviation = variance.sqrt();
    if deviation < 1e-6 {
        return ((1.0 - t).max(0.0), if t < 1.0 { 1.0 } else { 0.0 });
    }
    let (half, logarithm) = (variance / 2.0, t.ln());
    let beyond = below((-half - logarithm) / deviation);
    (below((half - logarithm) / deviation) - t * beyond, beyond)
}

/// The standard normal distribution function (Abramowitz and Stegun 26.2.17, off by at most 7.5e-8).
fn below(x: f64) -> f64 {
    let k = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let series = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530];
    let sum = series.iter().fold(0.0, |sum, part| (sum + part) * k);
    let above = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum;
    if x < 0.0 { above } else { 1.0 - above }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eq_5_and_6_by_hand() {
        let mut rate = ProcessingRate::default();
        assert_eq!(rate.value(), None);
        // A tenth of the job in 60 s at 200 %: 0.1 / 12000.
        rate.used(CoreShare::new(200.0).unwrap(), 60.0);
        rate.completed(Fraction::new(0.1).unwrap());
        let r = rate.value().unwrap();
        assert!((r - 0.1 / 12_000.0).abs() < 1e-18);
        // The rest at 600 %: 0.9 / (600 × 0.1/12000) = 180 s.
        assert!((time_remaining(rate.remaining(), CoreShare::new(600.0).unwrap(), r) - 180.0).abs() < 1e-9);
        assert!((rate.core_seconds() - 120.0).abs() < 1e-12);
    }

    #[test]
    fn progress_never_goes_back_and_nothing_takes_forever() {
        let mut rate = ProcessingRate::default();
        rate.completed(Fraction::new(0.5).unwrap());
        rate.completed(Fraction::new(0.2).unwrap());
        assert_eq!(rate.remaining(), Fraction::new(0.5).unwrap());
        assert!(time_remaining(rate.remaining(), CoreShare::ZERO, 1.0).is_infinite());
        rate.completed(Fraction::new(7.0).unwrap());
        assert!(time_remaining(rate.remaining(), CoreShare::ZERO, 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn deadlines_count_on_stragglers() {
        let deadline = Goal::Deadline { within_s: 1.0 };
        let tail_s = |goal, deviation_s, loss, running| Tail::of(goal, 100.0, deviation_s, loss).seconds(running);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-3 * want, "{got} and {want}");
        // Tasks of one length: of 100 one has run for less than 0.01 % of it with a probability of a hundredth. Half of it is work.
        near(tail_s(deadline, None, 0.0, 100), 100.0 * (1.0 + 0.99_f64.ln() / 100.0) - 50.0);
        // A tenth of a chance of a loss counts twice.
        let without = tail_s(deadline, Some(40.0), 0.0, 100);
        near(tail_s(deadline, Some(40.0), 0.1, 100), without + 20.0);
        near(tail_s(deadline, Some(40.0), 0.9, 100), without + 100.0);
        // Other goals: as early as late, and whatever is lost.
        let left_s = |sure| longest_left_s(100.0, 0.4, 600, sure) - 100.0 / 2.0 * 1.16;
        near(tail_s(Goal::Energy, Some(40.0), 0.9, 600), left_s(0.5));
        near(tail_s(deadline, Some(40.0), 0.0, 600), left_s(SURE));
        assert!(Tail::of(deadline, 0.0, Some(1.0), 0.0).seconds(0).abs() < 1e-9);
    }

    #[test]
    fn tasks_that_finish_first_are_the_short_ones() {
        // Of four that have begun three took 10 s each; a mean of 40 s makes the fourth 130 s: deviation 30 × √3.
        let deviation_s = deviation_of_begun((10.0, 0.0), 3, 1, 40.0);
        assert!((deviation_s - 30.0 * 3.0_f64.sqrt()).abs() < 1e-9, "{deviation_s}");
        assert!((deviation_of_begun((10.0, 4.0), 3, 1, 10.0) - 4.0).abs() < 1e-9);
        assert!((deviation_of_begun((10.0, 4.0), 3, 1, 5.0) - 4.0).abs() < 1e-9, "a mean that is less says nothing");
        assert!((deviation_of_begun((10.0, 4.0), 3, 0, 40.0) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn the_normal_distribution_and_the_excess_by_hand() {
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-6, "{got} and {want}");
        near(below(0.0), 0.5);
        near(below(1.959_964), 0.975);
        near(below(-1.0), 0.158_655_3);
        // Of mean 1 nothing is lost at 0, and more variation leaves more beyond.
        near(excess(0.0, 0.7).0, 1.0);
        near(excess(0.0, 0.7).1, 1.0);
        near(excess(0.25, 0.0).0, 0.75);
        // At the mean: 2 below(deviation / 2) - 1.
        let deviation = (1.0_f64 + 0.49).ln().sqrt();
        near(excess(1.0, 0.7).0, 2.0 * below(deviation / 2.0) - 1.0);
    }

    proptest::proptest! {
        /// More tasks, longer ones, or ones of lengths that differ more end later.
        #[test]
        fn the_tail_grows(mean in 1.0..600.0_f64, variation in 0.0..1.5_f64, running in 1..2_000_u32) {
            let longest_left_s = |mean, variation, running| longest_left_s(mean, variation, running, SURE);
            let longest = longest_left_s(mean, variation, running);
            // It is the root, which no step may have passed.
            let few = -SURE.ln() / f64::from(running);
            let left = excess(longest / mean, variation).0;
            proptest::prop_assert!((left - few).abs() < 1e-6, "{left} and {few}");
            proptest::prop_assert!(longest_left_s(mean, variation, running * 2) >= longest - 1e-6);
            proptest::prop_assert!(longest_left_s(mean * 1.5, variation, running) >= longest - 1e-6);
            // Of few tasks the typical one counts, and that is shorter where lengths differ more.
            proptest::prop_assert!(running < 20 || longest_left_s(mean, variation + 0.3, running) >= longest);
        }
    }

    #[test]
    fn set_up_delays_what_is_added() {
        let (half, share) = (Fraction::new(0.5).unwrap(), |percent| CoreShare::new(percent).unwrap());
        // 100 % does 0.01 in the first 10 s; 0.49 are left for 200 % at 0.002 a second.
        let time = time_with_set_up(half, 1e-5, share(100.0), share(200.0), 10.0);
        assert!((time - 255.0).abs() < 1e-9);
        assert!((time_with_set_up(half, 1e-5, share(100.0), share(200.0), 0.0) - 250.0).abs() < 1e-9);
        assert!((time_with_set_up(half, 1e-5, share(100.0), share(200.0), 900.0) - 500.0).abs() < 1e-9);
        assert!(time_with_set_up(half, 0.0, share(1.0), share(1.0), 1.0).is_infinite());
    }
}
