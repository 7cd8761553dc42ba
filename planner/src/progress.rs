//! How fast a job gets on, and when it will be complete (RHIC §4.4, Eq. 5 and 6).

use gleaner_common::units::{CoreShare, Fraction};
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

    /// Takes the fraction of the job that is complete. Progress never goes back.
    pub fn completed(&mut self, fraction: Fraction) {
        self.completed = self.completed.max(fraction.value().min(1.0));
    }

    /// R_proc of Eq. 5, J_completed / (T_elapsed × AP_actual), where T_elapsed × AP_actual is summed over
    /// the intervals: work per second and percent of one core. `None` before there is progress.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        (self.completed > 0.0 && self.cpu_percent_s > 0.0).then(|| self.completed / self.cpu_percent_s)
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

/// What a change of size costs in time (RHIC §4.4, "transition time"): additions take a set-up, removals drain
/// for about one task.
#[must_use]
pub fn transition_s(from: u32, to: u32, set_up_s: f64, mean_task_s: f64) -> f64 {
    match to.cmp(&from) {
        std::cmp::Ordering::Greater => set_up_s,
        std::cmp::Ordering::Less => mean_task_s,
        std::cmp::Ordering::Equal => 0.0,
    }
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
    fn transitions() {
        assert!((transition_s(1, 3, 5.0, 9.0) - 5.0).abs() < f64::EPSILON);
        assert!((transition_s(3, 1, 5.0, 9.0) - 9.0).abs() < f64::EPSILON);
        assert!(transition_s(3, 3, 5.0, 9.0).abs() < f64::EPSILON);
    }
}
