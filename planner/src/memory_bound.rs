//! How much memory the volunteer of a host may hold now. In: what is available on the host and what the volunteer uses.
//! Out: its bound, and whether it must end. The agent asks five times a second, more often when memory is short.
//!
//! A task that leaks must never bring the host to the point where the kernel's global OOM killer chooses a victim, because
//! it chooses the largest process, which is the foreground. So the volunteer's bound is the safe residual: what is
//! available, with what the volunteer itself uses, less a floor that is always kept free. The bound falls at once when the
//! foreground grows, and rises slowly. When less than the floor is available although the bound is in force, the
//! foreground has grown faster than the bound could follow, or memory is lost where no bound counts it: the volunteer ends.

use gleaner_types::units::{Bytes, Fraction};
use serde::{Deserialize, Serialize};

/// Constants of the bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryBoundSettings {
    /// Kept free for the foreground; `None` is the larger of [`FLOOR_SHARE`] of the host's memory and [`FLOOR_LEAST`].
    pub floor: Option<Bytes>,
    /// Growth of the bound per second, as a share of the host's memory.
    pub growth_per_s: Fraction,
}

/// The floor as a share of the host's memory, unless the settings name one. (Chosen.)
pub const FLOOR_SHARE: f64 = 0.05;
/// The least floor, unless the settings name one: what a small host needs to start a service. (Chosen.)
pub const FLOOR_LEAST: Bytes = Bytes::from_mib(256);
/// Memory is short when less than this many floors are available: the next look then comes sooner. (Chosen.)
const SHORT_FLOORS: u64 = 2;
/// After it was ended the volunteer may hold memory again when this much of the floor, in quarters, is available.
const RESUME_QUARTERS: u64 = 5;
/// `memory.high` lies this part of the bound below it, and no further than [`HIGH_FURTHEST`]: the kernel begins to reclaim the
/// volunteer's caches there, and slows tasks that go on, so a leak should not have to cross much of it. (Both chosen.)
const HIGH_PART: u64 = 16;
const HIGH_FURTHEST: Bytes = Bytes::from_mib(8);

impl Default for MemoryBoundSettings {
    /// A fiftieth of the host per second: chosen, slow enough that a foreground that comes and goes finds memory again.
    fn default() -> Self {
        Self { floor: None, growth_per_s: Fraction::clamped(0.02) }
    }
}

impl MemoryBoundSettings {
    /// The floor on a host with so much memory.
    #[must_use]
    pub fn floor_of(&self, total: Bytes) -> Bytes {
        self.floor.unwrap_or_else(|| FLOOR_LEAST.max(share_of(total, FLOOR_SHARE)))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates; a share is never negative"
)]
fn share_of(total: Bytes, share: f64) -> Bytes {
    Bytes((total.0 as f64 * share.max(0.0)) as u64)
}

/// The host's memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Installed.
    pub total: Bytes,
    /// Available without swapping (`MemAvailable`).
    pub available: Bytes,
    /// Used by the volunteer.
    pub used: Bytes,
}

/// What the volunteer may hold until the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryVerdict {
    /// The most it may use.
    pub most: Bytes,
    /// From here on the kernel reclaims of it and slows it down.
    pub high: Bytes,
    /// The floor that is kept free.
    pub floor: Bytes,
    /// Memory is short: look again soon.
    pub is_short: bool,
    /// It must end now. Said once, until enough is available again.
    pub end: bool,
    /// It was ended and must not run yet.
    pub held: bool,
}

/// The bound's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryBound {
    settings: MemoryBoundSettings,
    most: Option<Bytes>,
    held: bool,
}

impl MemoryBound {
    /// A bound that was not set yet.
    #[must_use]
    pub fn new(settings: MemoryBoundSettings) -> Self {
        Self { settings, most: None, held: false }
    }

    /// Takes the host's memory now, `interval_s` seconds after the last time:
    /// `most' = min(available + used - floor, most + growth * interval)`.
    pub fn step(&mut self, sample: MemorySample, interval_s: f64) -> MemoryVerdict {
        let MemorySample { total, available, used } = sample;
        let floor = self.settings.floor_of(total);
        let safe = Bytes(available.0.saturating_add(used.0).saturating_sub(floor.0));
        let growth = share_of(total, self.settings.growth_per_s.value() * interval_s.clamp(0.0, 1.0));
        let was_bound = self.most.is_some();
        let most = self.most.map_or(safe, |most| safe.min(Bytes(most.0.saturating_add(growth.0))));
        self.most = Some(most);

        // At the first step no bound was in force yet.
        let end = was_bound && !self.held && available < floor;
        self.held = if self.held || end { available.0 < floor.0 / 4 * RESUME_QUARTERS } else { false };
        let high = Bytes(most.0 - (most.0 / HIGH_PART).min(HIGH_FURTHEST.0));
        let is_short = available.0 < floor.0.saturating_mul(SHORT_FLOORS);
        MemoryVerdict { most, high, floor, is_short, end, held: self.held }
    }
}

/// The least and the most that one of several parts may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Never less.
    pub least: Bytes,
    /// Never more, unless that is less than the least.
    pub most: Bytes,
}

/// Shares `all` out: each has its least, and what is left is shared equally between those that may have more.
#[must_use]
pub fn share_out(all: Bytes, parts: &[Part]) -> Vec<Bytes> {
    let mut shares: Vec<u64> = parts.iter().map(|part| part.least.0).collect();
    let mut left = all.0.saturating_sub(shares.iter().copied().fold(0, u64::saturating_add));
    // Whoever may have the least more comes first, so that what it cannot take is left for the others.
    let mut by_room: Vec<(u64, usize)> =
        parts.iter().enumerate().map(|(index, part)| (part.most.0.saturating_sub(part.least.0), index)).collect();
    by_room.sort_unstable();
    let mut waiting = parts.len() as u64;
    for (room, index) in by_room {
        let more = room.min(left / waiting.max(1));
        if let Some(share) = shares.get_mut(index) {
            *share = share.saturating_add(more);
        }
        left -= more;
        waiting -= 1;
    }
    shares.into_iter().map(Bytes).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOTAL: u64 = 8_192;

    fn sample(available: u64, used: u64) -> MemorySample {
        MemorySample {
            total: Bytes::from_mib(TOTAL),
            available: Bytes::from_mib(available),
            used: Bytes::from_mib(used),
        }
    }

    #[test]
    fn the_floor_is_a_share_of_the_host_or_the_least_or_the_configs() {
        let of =
            |floor, mib| MemoryBoundSettings { floor, ..MemoryBoundSettings::default() }.floor_of(Bytes::from_mib(mib));
        assert_eq!(of(None, 20_480), Bytes::from_mib(1_024));
        assert_eq!(of(None, 1_024), FLOOR_LEAST);
        assert_eq!(of(Some(Bytes(7)), 20_480), Bytes(7));
    }

    #[test]
    fn the_bound_is_the_safe_residual_falls_at_once_and_rises_slowly() {
        // 8 GiB: the floor is 409 MiB (5 %), growth 163.84 MiB a second.
        let mut bound = MemoryBound::new(MemoryBoundSettings::default());
        let floor = 8_589_934_592 / 20;
        let first = bound.step(sample(4_000, 100), 0.2);
        assert_eq!(first.most.0, Bytes::from_mib(4_100).0 - floor);
        assert_eq!(first.high.0, first.most.0 - (8 << 20));
        assert!(!first.end && !first.is_short);
        let fallen = bound.step(sample(1_000, 100), 0.2);
        assert_eq!(fallen.most.0, Bytes::from_mib(1_100).0 - floor);
        let risen = bound.step(sample(4_000, 100), 0.5);
        assert!(risen.most.0.abs_diff(fallen.most.0 + Bytes::from_mib(TOTAL).0 / 100) <= 1, "{risen:?}");
        assert!(bound.step(sample(700, 100), 0.2).is_short);
    }

    #[test]
    fn each_has_its_least_and_what_is_left_is_shared_equally_by_those_with_room() {
        let part = |least, most| Part { least: Bytes(least), most: Bytes(most) };
        let of = |all| share_out(Bytes(all), &[part(100, 1_000), part(100, 150), part(50, 20)]);
        assert_eq!(of(0), [100, 100, 50].map(Bytes), "never less than the least");
        // 250 are the leasts. Of 50 more the third may have none, so the other two have 25 each.
        assert_eq!(of(300), [125, 125, 50].map(Bytes));
        assert_eq!(of(500), [300, 150, 50].map(Bytes));
        assert_eq!(of(9_000), [1_000, 150, 50].map(Bytes));
        assert!(share_out(Bytes(5), &[]).is_empty());
    }

    #[test]
    fn it_ends_once_and_comes_back_when_a_quarter_more_than_the_floor_is_there() {
        let mut bound =
            MemoryBound::new(MemoryBoundSettings { floor: Some(Bytes::from_mib(400)), ..Default::default() });
        assert!(!bound.step(sample(300, 50), 0.2).end, "no bound was in force");
        let ended = bound.step(sample(390, 50), 0.05);
        assert!(ended.end && ended.held);
        let waits = bound.step(sample(450, 0), 0.05);
        assert!(!waits.end && waits.held, "said once");
        assert!(!bound.step(sample(500, 0), 0.05).held);
        assert!(bound.step(sample(399, 0), 0.05).end);
    }

    proptest! {
        #[test]
        fn never_more_than_is_safe_nor_faster_than_the_rate(
            steps in prop::collection::vec((0_u64..9_000, 0_u64..9_000, 0.0_f64..3.0), 1..100),
        ) {
            let settings = MemoryBoundSettings::default();
            let mut bound = MemoryBound::new(settings);
            let mut before: Option<Bytes> = None;
            for (available, used, interval_s) in steps {
                let sample = sample(available, used);
                let verdict = bound.step(sample, interval_s);
                let safe = (sample.available.0 + sample.used.0).saturating_sub(verdict.floor.0);
                prop_assert!(verdict.most.0 <= safe && verdict.high <= verdict.most);
                if let Some(before) = before {
                    let growth = Bytes::from_mib(TOTAL).0 as f64 * 0.02 * interval_s.min(1.0);
                    prop_assert!(verdict.most.0 as f64 <= before.0 as f64 + growth + 1.0);
                }
                prop_assert!(!verdict.end || verdict.held);
                before = Some(verdict.most);
            }
        }
    }
}
