//! When the volunteer is held still, and for how long: at random moments, in total a given share of the time.
//! In: a seed and that share. Out: the next [`Trial`]. Called by the agent's harm meter and by the simulator.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Shortest window, in seconds: ten looks of a scheduler that switches every few milliseconds, and many of its ticks.
const SHORTEST_S: f64 = 0.2;
/// Longest window, in seconds: what a volunteer's tasks barely notice.
const LONGEST_S: f64 = 0.5;
/// From holding the volunteer until the window without it begins. A wait counts where it ends, so those that began beside
/// the volunteer end in this time and count for neither side; and a freezer takes some milliseconds. Chosen.
pub const SETTLING_TIME: Duration = Duration::from_millis(30);
/// Largest share of the time that the volunteer may be held. Above it a window with the volunteer would not fit between
/// two without it.
pub const LARGEST_PAUSE_SHARE: f64 = 0.2;

/// One trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// From now until the window with the volunteer begins.
    pub wait: Duration,
    /// Length of each of the two windows.
    pub window: Duration,
}

impl Trial {
    /// How long the volunteer is held in it.
    #[must_use]
    pub fn held(&self) -> Duration {
        SETTLING_TIME + self.window
    }
}

/// Draws trials.
#[derive(Debug, Clone)]
pub struct Schedule {
    random: ChaCha8Rng,
    pause_share: f64,
}

impl Schedule {
    /// A schedule that holds the volunteer for `pause_share` of the time, from 0 (never) to [`LARGEST_PAUSE_SHARE`]; what
    /// is outside counts as the nearer end. Equal seeds give equal schedules.
    #[must_use]
    pub fn new(seed: u64, pause_share: f64) -> Self {
        let mut schedule = Self { random: ChaCha8Rng::seed_from_u64(seed), pause_share: 0.0 };
        schedule.set_pause_share(pause_share);
        schedule
    }

    /// Goes on with another share.
    pub fn set_pause_share(&mut self, pause_share: f64) {
        self.pause_share = if pause_share.is_finite() { pause_share.clamp(0.0, LARGEST_PAUSE_SHARE) } else { 0.0 };
    }

    /// The next trial, to be asked for when the last one is over; `None` while the share is 0.
    ///
    /// A trial that holds the volunteer for `h` is one of a period of `h / share` on average: its begin is drawn so that
    /// the period is between half and one and a half times that.
    pub fn next_trial(&mut self) -> Option<Trial> {
        if self.pause_share <= 0.0 {
            return None;
        }
        let window_s = SHORTEST_S + (LONGEST_S - SHORTEST_S) * self.unit();
        let held_s = SETTLING_TIME.as_secs_f64() + window_s;
        // At the largest share half a period is 2.5 times what is held, and so never shorter than both windows.
        let period_s = held_s / self.pause_share * (0.5 + self.unit());
        let wait_s = (period_s - held_s - window_s).max(0.0);
        let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Some(Trial { wait: duration(wait_s), window: duration(window_s) })
    }

    /// Evenly between 0 and 1.
    fn unit(&mut self) -> f64 {
        f64::from(self.random.next_u32()) / (f64::from(u32::MAX) + 1.0)
    }
}
