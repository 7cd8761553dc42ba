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

/// Standard deviations of task lengths by which the last tasks of a job are expected to outlast the mean. Chosen on the
/// calibration mixes of the simulator.
const TAIL_DEVIATIONS: f64 = 1.5;
/// Factor on the probability of a loss, because a missed deadline is worse than an early completion. Chosen.
const LOSS_WEIGHT: f64 = 2.0;

/// Padding of completion estimates against stragglers, in seconds. RHIC pads with the mean length of a task (§4.4); for a
/// deadline that is too little where lengths differ much, so there their spread counts too, and the tasks that a lost
/// volunteer leaves to be run again: `loss` is the probability that one is lost while a task runs.
#[must_use]
pub fn straggler_tail_s(goal: Goal, mean_task_s: f64, deviation_s: Option<f64>, loss: f64) -> f64 {
    let Goal::Deadline { .. } = goal else { return mean_task_s };
    let deviation_s = deviation_s.filter(|deviation| deviation.is_finite()).unwrap_or(0.0).max(0.0);
    mean_task_s * (1.0 + (LOSS_WEIGHT * loss).clamp(0.0, 1.0)) + TAIL_DEVIATIONS * deviation_s
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
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got}");
        near(straggler_tail_s(deadline, 100.0, Some(40.0), 0.0), 160.0);
        near(straggler_tail_s(deadline, 100.0, None, 0.1), 120.0);
        near(straggler_tail_s(deadline, 100.0, None, 0.9), 200.0);
        near(straggler_tail_s(Goal::Energy, 100.0, Some(40.0), 0.9), 100.0);
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
