//! Time. A [`Timestamp`] is what decisions, reports, journals and events carry; a [`Clock`] makes them.
//!
//! A clock is anchored to the wall once, when its process starts, and runs on the monotonic clock from
//! there: within a process time never jumps or goes back whatever happens to the wall clock, and the times
//! of successive processes still follow each other.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A moment, in milliseconds since the Unix epoch as its process's [`Clock`] counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Seconds from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.since(earlier).as_secs_f64()
    }

    /// This moment moved later by `duration`.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    /// As RFC 3339 in UTC with milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms_of_day) = (self.0 / 86_400_000, self.0 % 86_400_000);
        // Civil date from days since the epoch, in 400-year eras that start on 1 March of year 0.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + u64::from(month <= 2);
        let (h, m, s, ms) = (ms_of_day / 3_600_000, ms_of_day / 60_000 % 60, ms_of_day / 1_000 % 60, ms_of_day % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
    }
}

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
    /// A clock anchored to the wall now.
    #[must_use]
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let anchor_wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Self { source: Source::Wall { anchor_wall_ms, anchor: Instant::now() }, ahead_ms: 0 }
    }

    /// The clock of a process that goes on from what another left at `last`: where the wall was set back since, it runs
    /// ahead of the wall, so that times still follow each other.
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
pub struct ClockHand(&'static AtomicU64);

impl ClockHand {
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
    fn displays_as_rfc_3339() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(951_782_400_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Timestamp(1_795_132_799_123).to_string(), "2026-11-19T23:59:59.123Z");
    }

    #[test]
    fn goes_on_where_the_last_process_ended() {
        let hand = ClockHand::new(Timestamp(5_000));
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
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
