//! Source `push`. In: values that operators' tools send. Out: their mean.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_types::application::ResponseTime;

use super::answer::missing;
use super::error::{MOST_VALUES, PushError};

/// Takes values in for a [`super::ResponseReader`]. Copies share what they hold.
#[derive(Debug, Clone)]
pub struct Pushed {
    interval: Duration,
    values: Arc<Mutex<VecDeque<(ResponseTime, Instant)>>>,
}

impl Pushed {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, values: Arc::default() }
    }

    /// Takes a mean response time of `value_ms` milliseconds, measured until `at`.
    ///
    /// # Errors
    /// [`PushError`].
    pub fn push(&self, value_ms: f64, at: Instant) -> Result<(), PushError> {
        let time = ResponseTime::from_ms(value_ms);
        let refused = match &time {
            ResponseTime::Mean { .. } => Ok(()),
            _ => Err(PushError::Absurd(value_ms)),
        };
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if values.len() >= MOST_VALUES {
            return Err(PushError::TooMany);
        }
        values.push_back((time, at));
        refused
    }

    /// What came since the last reading.
    pub(super) fn take(&self) -> ResponseTime {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> ResponseTime {
        let values = std::mem::take(&mut *self.values.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(newest) = values.iter().map(|(_, at)| *at).max() else {
            return missing("no value came since the last reading");
        };
        let (mut sum, mut count) = (0.0, 0_u32);
        for (time, at) in values {
            if now.saturating_duration_since(at) > self.interval {
                continue;
            }
            match time {
                ResponseTime::Mean { mean_ms } => (sum, count) = (sum + mean_ms, count + 1),
                absurd => return absurd,
            }
        }
        match count {
            0 => ResponseTime::Late { age_s: now.saturating_duration_since(newest).as_secs_f64() },
            _ => ResponseTime::from_ms(sum / f64::from(count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    /// What a reading at second 1,000 makes of values in milliseconds with their ages in seconds.
    fn taken(values: &[(f64, u64)]) -> ResponseTime {
        let pushed = Pushed::new(INTERVAL);
        let now = Instant::now() + Duration::from_secs(1_000);
        for (value, age_s) in values {
            _ = pushed.push(*value, now - Duration::from_secs(*age_s));
        }
        let time = pushed.take_at(now);
        assert!(matches!(pushed.take_at(now), ResponseTime::Missing { .. }), "a value is taken once");
        time
    }

    #[test]
    fn values_of_an_interval_are_averaged() {
        assert_eq!(taken(&[(8.0, 5)]), ResponseTime::Mean { mean_ms: 8.0 });
        assert_eq!(taken(&[(8.0, 30), (2.0, 20), (2.0, 0)]), ResponseTime::Mean { mean_ms: 4.0 });
        assert_eq!(
            taken(&[(8.0, 31), (2.0, 20)]),
            ResponseTime::Mean { mean_ms: 2.0 },
            "the older one is not of this interval"
        );
    }

    #[test]
    fn old_missing_and_absurd_values_are_reported() {
        assert_eq!(taken(&[(8.0, 90), (2.0, 45)]), ResponseTime::Late { age_s: 45.0 });
        assert_eq!(taken(&[]), missing("no value came since the last reading"));
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 3_600_001.0] {
            let error = Pushed::new(INTERVAL).push(value, Instant::now()).unwrap_err().to_string();
            assert!(error.starts_with("milliseconds: is ") && error.len() < 100, "{error}");
            let ResponseTime::Absurd { value } = taken(&[(2.0, 1), (value, 1), (2.0, 1)]) else { panic!("{value}") };
            assert!(value.len() < 30, "{value}");
        }
    }

    #[test]
    fn values_from_the_future_are_of_now() {
        let (pushed, now) = (Pushed::new(INTERVAL), Instant::now());
        pushed.push(2.0, now + INTERVAL * 5).unwrap();
        assert_eq!(pushed.take_at(now), ResponseTime::Mean { mean_ms: 2.0 });
    }

    #[test]
    fn more_than_a_reader_holds_is_refused() {
        let (pushed, now) = (Pushed::new(INTERVAL), Instant::now());
        for _ in 0..MOST_VALUES {
            pushed.push(2.0, now).unwrap();
        }
        assert!(pushed.push(9.0, now).unwrap_err().to_string().contains("10000"));
        assert_eq!(pushed.take_at(now), ResponseTime::Mean { mean_ms: 2.0 });
    }
}
