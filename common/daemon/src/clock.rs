//! The process's clock. In: the wall clock once, the monotonic clock from then on. Out: the [`Timestamp`]s that
//! decisions, reports, journals and events carry. Both daemons make one at their start and pass it on; commands of
//! `gleaner` make their own.
//!
//! A clock is anchored to the wall clock once, when its process starts, and then runs on the monotonic clock. So
//! within a process time never jumps or goes back, whatever happens to the wall clock, and the times of successive
//! processes still follow each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use gleaner_types::time::Timestamp;

/// The process's one source of [`Timestamp`]s. Cheap to copy; make one at start and pass it on.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    source: Source,
    /// How far it is ahead of its source, in milliseconds.
    ahead_ms: u64,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Wall { anchor_wall_ms: u64, anchor: Instant },
    Hand(&'static AtomicU64),
}

impl Clock {
    /// A clock anchored to the wall clock now.
    #[must_use]
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let anchor_wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Self { source: Source::Wall { anchor_wall_ms, anchor: Instant::now() }, ahead_ms: 0 }
    }

    /// The clock of a process that continues from a state of time `last`. If the wall clock was set back since, this
    /// clock runs ahead of it, so that times still follow each other.
    #[must_use]
    pub fn going_on_from(self, last: Timestamp) -> Self {
        Self { ahead_ms: self.ahead_ms + last.0.saturating_sub(self.now().0), ..self }
    }

    /// The time now. Never less than an earlier answer of the same clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let source = match self.source {
            Source::Wall { anchor_wall_ms, anchor } => Timestamp(anchor_wall_ms).after(anchor.elapsed()),
            Source::Hand(ms) => Timestamp(ms.load(Ordering::Relaxed)),
        };
        Timestamp(source.0.saturating_add(self.ahead_ms))
    }
}

/// Moves a [`Clock`] by hand, for simulations of whole daemons.
#[derive(Debug)]
pub struct ManualClock(&'static AtomicU64);

impl ManualClock {
    /// A clock that stands at `start`. Its eight bytes are never freed, so that clocks stay cheap to copy.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Box::leak(Box::new(AtomicU64::new(start.0))))
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        Clock { source: Source::Hand(self.0), ahead_ms: 0 }
    }

    /// Moves it on; never back.
    pub fn set(&self, now: Timestamp) {
        self.0.fetch_max(now.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_where_the_last_process_ended() {
        let hand = ManualClock::new(Timestamp(5_000));
        assert_eq!(hand.clock().going_on_from(Timestamp(4_000)).now(), Timestamp(5_000));
        let clock = hand.clock().going_on_from(Timestamp(9_000));
        assert_eq!(clock.now(), Timestamp(9_000));
        hand.set(Timestamp(5_100));
        assert_eq!(clock.now(), Timestamp(9_100));
        assert_eq!(clock.going_on_from(Timestamp(9_200)).now(), Timestamp(9_200));
    }

    #[test]
    fn never_goes_back() {
        let clock = Clock::start();
        let mut last = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
