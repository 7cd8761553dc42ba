//! Short windows in which a volunteer that is frozen for a full disk runs, so that killed processes can exit. On cgroup
//! version 1 a frozen process keeps its files, and with them the space. In: kills, and the time. Out: whether a window
//! opens, and whether one is open. Called by `held`.

use std::time::{Duration, Instant};

/// How long the volunteer is thawed, at the least ceiling. A process that has begun to exit is not frozen again.
pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// From the end of one window to the next.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Windows after a kill: a process of the idle class may get no CPU in one. (All chosen.)
pub(super) const WINDOWS: u32 = 10;

/// The windows that are still to come.
#[derive(Debug, Default)]
pub(super) struct ExitWindow {
    /// The end of the last one.
    until: Option<Instant>,
    /// Windows still to come.
    left: u32,
}

impl ExitWindow {
    /// Something was killed.
    pub(super) fn was_killed(&mut self) {
        self.left = WINDOWS;
    }

    /// Nothing is held any more: what was killed dies anyway.
    pub(super) fn forget(&mut self) {
        self.left = 0;
    }

    /// Whether a window opens now.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let is_too_soon = |until: Instant| now.saturating_duration_since(until) < PAUSE;
        if self.left == 0 || self.until.is_some_and(is_too_soon) {
            return false;
        }
        self.left -= 1;
        self.until = Some(now + WINDOW);
        true
    }

    /// A window is open.
    pub(super) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_after_a_kill_with_pauses_and_so_many() {
        let (mut exit_window, start) = (ExitWindow::default(), Instant::now());
        assert!(!exit_window.begin(start) && !exit_window.is_on(start), "nothing was killed");
        exit_window.was_killed();
        let mut now = start;
        for _ in 0..WINDOWS {
            assert!(exit_window.begin(now) && exit_window.is_on(now) && !exit_window.is_on(now + WINDOW));
            assert!(
                !exit_window.begin(now + WINDOW) && !exit_window.begin(now + WINDOW + PAUSE / 2),
                "not all the time"
            );
            now += WINDOW + PAUSE;
        }
        assert!(!exit_window.begin(now), "so many");
    }

    #[test]
    fn a_kill_within_a_moment_counts_and_what_is_forgotten_does_not() {
        let (mut exit_window, start) = (ExitWindow::default(), Instant::now());
        exit_window.was_killed();
        assert!(exit_window.begin(start));
        exit_window.was_killed();
        let mut now = start;
        for _ in 0..WINDOWS {
            now += WINDOW + PAUSE;
            assert!(exit_window.begin(now));
        }
        exit_window.was_killed();
        exit_window.forget();
        assert!(!exit_window.begin(now + WINDOW + PAUSE));
    }
}
