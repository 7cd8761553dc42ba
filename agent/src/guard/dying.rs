//! Moments in which what was killed may die although the volunteer is held for a disk. Frozen, a process of version 1 keeps
//! its files, and with them the space. In: kills, and the time. Out: whether a moment begins, and whether one is on.

use std::time::{Duration, Instant};

/// How long the volunteer is thawed, at the least ceiling. A process that has begun to exit is not frozen again.
pub(super) const MOMENT: Duration = Duration::from_millis(100);
/// From the end of one moment to the next.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Moments after a kill: a process of the idle class may get no CPU in one. (All chosen.)
pub(super) const MOMENTS: u32 = 10;

/// The moments there are yet to be.
#[derive(Debug, Default)]
pub(super) struct Dying {
    /// The end of the last one.
    until: Option<Instant>,
    /// So many more.
    left: u32,
}

impl Dying {
    /// Something was killed.
    pub(super) fn was_killed(&mut self) {
        self.left = MOMENTS;
    }

    /// Nothing is held any more: what was killed dies anyway.
    pub(super) fn forget(&mut self) {
        self.left = 0;
    }

    /// Whether a moment begins now.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let is_too_soon = |until: Instant| now.saturating_duration_since(until) < PAUSE;
        if self.left == 0 || self.until.is_some_and(is_too_soon) {
            return false;
        }
        self.left -= 1;
        self.until = Some(now + MOMENT);
        true
    }

    /// A moment is on.
    pub(super) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_begin_after_a_kill_with_pauses_and_so_many() {
        let (mut dying, start) = (Dying::default(), Instant::now());
        assert!(!dying.begin(start) && !dying.is_on(start), "nothing was killed");
        dying.was_killed();
        let mut now = start;
        for _ in 0..MOMENTS {
            assert!(dying.begin(now) && dying.is_on(now) && !dying.is_on(now + MOMENT));
            assert!(!dying.begin(now + MOMENT) && !dying.begin(now + MOMENT + PAUSE / 2), "not all the time");
            now += MOMENT + PAUSE;
        }
        assert!(!dying.begin(now), "so many");
    }

    #[test]
    fn a_kill_within_a_moment_counts_and_what_is_forgotten_does_not() {
        let (mut dying, start) = (Dying::default(), Instant::now());
        dying.was_killed();
        assert!(dying.begin(start));
        dying.was_killed();
        let mut now = start;
        for _ in 0..MOMENTS {
            now += MOMENT + PAUSE;
            assert!(dying.begin(now));
        }
        dying.was_killed();
        dying.forget();
        assert!(!dying.begin(now + MOMENT + PAUSE));
    }
}
