//! When a helper may be started again. In: one that could not be started, or that failed while it ran. Out: whether another
//! may be started now, or why not. Called by sensing's way to its helper ([`super::sample`]) and by the guard's
//! (`guarding`).
//!
//! On a busy control domain one late answer is nothing unusual, so the first helper that fails is replaced at the next
//! question. One that fails soon after another is not: whoever asks would wait for a deadline anew each time.

use std::io;
use std::time::{Duration, Instant};

/// What has failed lately.
#[derive(Debug)]
pub(super) struct Restarts {
    /// How long no helper is started after one that could not be, or that failed soon after another.
    rest: Duration,
    /// Within this time after another a failure is no longer the first.
    relapse: Duration,
    /// When the rest began, and why.
    resting: Option<(Instant, String)>,
    /// When one last failed that had been started.
    broken: Option<Instant>,
}

impl Restarts {
    pub(super) const fn new(rest: Duration, relapse: Duration) -> Self {
        Self { rest, relapse, resting: None, broken: None }
    }

    /// Whether a helper may be started now.
    ///
    /// # Errors
    /// What failed, during the rest after it.
    pub(super) fn may_start(&self, now: Instant) -> io::Result<()> {
        match &self.resting {
            Some((at, why)) if now.duration_since(*at) < self.rest => Err(io::Error::other(why.clone())),
            _ => Ok(()),
        }
    }

    /// A helper was started, or could not be. One whose first answer is late was, and has failed as any other may.
    pub(super) fn started<T>(&mut self, now: Instant, started: &io::Result<T>) {
        match started {
            Ok(_) => self.resting = None,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => self.broke(now, error.to_string()),
            Err(error) => self.resting = Some((now, error.to_string())),
        }
    }

    /// A helper that had been started failed.
    pub(super) fn broke(&mut self, now: Instant, why: String) {
        if self.broken.is_some_and(|before| now.duration_since(before) < self.relapse) {
            self.resting = Some((now, why));
        }
        self.broken = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(10);
    const RELAPSE: Duration = Duration::from_secs(20);

    #[test]
    fn the_first_that_fails_is_replaced_at_once_and_one_that_fails_again_is_not() {
        let mut restarts = Restarts::new(REST, RELAPSE);
        let start = Instant::now();
        restarts.broke(start, "late".to_owned());
        restarts.may_start(start).unwrap();
        let again = start + RELAPSE / 2;
        restarts.broke(again, "late again".to_owned());
        assert_eq!(restarts.may_start(again).unwrap_err().to_string(), "late again");
        restarts.may_start(again + REST).unwrap();
        // One that fails each time is not a first one each time.
        restarts.broke(again + REST, "late as ever".to_owned());
        assert!(restarts.may_start(again + REST).is_err());
        restarts.started(again + REST, &Ok(()));
        restarts.broke(again + REST + RELAPSE, "late".to_owned());
        restarts.may_start(again + REST + RELAPSE).unwrap();
    }

    #[test]
    fn one_whose_first_answer_is_late_is_replaced_at_once_but_not_again_and_again() {
        let mut restarts = Restarts::new(REST, RELAPSE);
        let (start, late) = (Instant::now(), io::Result::<()>::Err(io::ErrorKind::TimedOut.into()));
        restarts.started(start, &late);
        restarts.may_start(start).unwrap();
        let again = start + RELAPSE / 2;
        restarts.started(again, &late);
        assert!(restarts.may_start(again).is_err());
        restarts.may_start(again + REST).unwrap();
    }

    #[test]
    fn one_that_cannot_be_started_is_tried_again_after_a_rest() {
        let mut restarts = Restarts::new(REST, RELAPSE);
        let start = Instant::now();
        restarts.started(start, &io::Result::<()>::Err(io::Error::other("not installed")));
        assert_eq!(restarts.may_start(start).unwrap_err().to_string(), "not installed");
        restarts.may_start(start + REST).unwrap();
    }
}
