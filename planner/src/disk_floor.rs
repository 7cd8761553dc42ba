//! How much space must stay free on a file system that a volunteer can write. In: space and inodes there now. Out: whether
//! either is short, and how soon to measure again. The agent asks while the volunteer runs, and holds it while any is short.
//!
//! A task that fills a disk takes it from databases, logs and mail beside it, and no weight or class helps them. So a share
//! of every such file system stays free. It counts as short below the floor, and until a quarter more than the floor is
//! free again. The next step comes before the fastest writer could use up what is above the floor, within bounds.

use gleaner_types::units::{Bytes, Fraction};
use serde::{Deserialize, Serialize};

/// Bytes that a task can write per second at most, into a file system in memory. (Chosen.)
const FASTEST_BYTES_PER_S: f64 = 2e9;
/// Files that tasks can make per second at most. (Chosen.)
const FASTEST_INODES_PER_S: f64 = 500_000.0;
/// Least and most time between two steps, in seconds. (Chosen: the most is what the foreground waits for any resource.)
const STEP_S: (f64, f64) = (0.02, 0.2);

/// Constants of the floor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiskFloorSettings {
    /// Space kept free, as a share of the file system; 0 keeps none.
    pub share: Fraction,
    /// The most that this share comes to.
    pub most: Bytes,
    /// Inodes kept free, as a share of the file system's; 0 keeps none.
    pub inodes: Fraction,
}

impl Default for DiskFloorSettings {
    /// A twentieth of the space, and no more than 4 GiB of a large disk, and of the inodes. (Chosen.)
    fn default() -> Self {
        let twentieth = Fraction::clamped(0.05);
        Self { share: twentieth, most: Bytes::from_mib(4_096), inodes: twentieth }
    }
}

/// A file system at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSample {
    /// Its size.
    pub total: Bytes,
    /// Free to whoever is not root.
    pub available: Bytes,
    /// Its inodes; 0 where it makes them as they are needed.
    pub inodes_total: u64,
    /// Free ones.
    pub inodes_available: u64,
}

/// What is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskShortage {
    /// Space.
    Space {
        /// Free.
        available: Bytes,
        /// What stays free.
        floor: Bytes,
    },
    /// Inodes.
    Inodes {
        /// Free.
        available: u64,
        /// What stays free.
        floor: u64,
    },
}

/// What a step says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskVerdict {
    /// What is short; of both, the space.
    pub shortage: Option<DiskShortage>,
    /// Until the next step, in seconds.
    pub next_step_s: f64,
}

/// The floor's state on one file system.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiskFloor {
    settings: DiskFloorSettings,
    short_of_space: bool,
    short_of_inodes: bool,
}

impl DiskFloor {
    /// The floor of a file system that was not measured yet.
    #[must_use]
    pub const fn new(settings: DiskFloorSettings) -> Self {
        Self { settings, short_of_space: false, short_of_inodes: false }
    }

    /// Takes the file system now.
    pub fn step(&mut self, sample: DiskSample) -> DiskVerdict {
        let DiskSample { total, available, inodes_total, inodes_available } = sample;
        let floor = Bytes(part(total.0, self.settings.share)).min(self.settings.most);
        let inodes_floor = part(inodes_total, self.settings.inodes);
        self.short_of_space = is_short(available.0, total.0, floor.0, self.short_of_space);
        self.short_of_inodes = is_short(inodes_available, inodes_total, inodes_floor, self.short_of_inodes);
        let shortage = if self.short_of_space {
            Some(DiskShortage::Space { available, floor })
        } else {
            let short = DiskShortage::Inodes { available: inodes_available, floor: inodes_floor };
            self.short_of_inodes.then_some(short)
        };
        let (least, most) = STEP_S;
        let until = |above: u64, floor: u64, fastest: f64| if floor == 0 { most } else { above as f64 / fastest };
        let space_s = until(available.0.saturating_sub(floor.0), floor.0, FASTEST_BYTES_PER_S);
        let inodes_s = until(inodes_available.saturating_sub(inodes_floor), inodes_floor, FASTEST_INODES_PER_S);
        // Of a held volunteer nothing writes.
        let next_step_s = if shortage.is_some() { most } else { space_s.min(inodes_s).clamp(least, most) };
        DiskVerdict { shortage, next_step_s }
    }
}

/// Below the floor, or not yet enough above it: a quarter of the floor, or of all the rest where that is less.
fn is_short(available: u64, total: u64, floor: u64, was_short: bool) -> bool {
    let above = if was_short { (floor / 4).min(total.saturating_sub(floor) / 4) } else { 0 };
    available < floor.saturating_add(above)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates; a share is never negative"
)]
fn part(total: u64, share: Fraction) -> u64 {
    (total as f64 * share.value().max(0.0)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn sample(total_mib: u64, available_mib: u64, inodes_available: u64) -> DiskSample {
        DiskSample {
            total: Bytes(total_mib * MIB),
            available: Bytes(available_mib * MIB),
            inodes_total: 1_000,
            inodes_available,
        }
    }

    #[test]
    fn a_twentieth_stays_free_and_of_a_large_disk_four_gibibytes() {
        let short = |total, available| {
            DiskFloor::new(DiskFloorSettings::default()).step(sample(total, available, 1_000)).shortage.is_some()
        };
        // 1,000 MiB: 50 MiB.
        assert!(short(1_000, 49) && !short(1_000, 50));
        // 1 TiB: not 51 GiB.
        assert!(short(1 << 20, 4_095) && !short(1 << 20, 4_096));
    }

    #[test]
    fn it_is_short_until_a_quarter_more_than_the_floor_is_free() {
        let mut floor = DiskFloor::new(DiskFloorSettings::default());
        let mut short = |available, inodes| floor.step(sample(2_000, available, inodes)).shortage;
        assert_eq!(short(100, 1_000), None);
        let floor = Bytes(100 * MIB);
        assert_eq!(short(99, 1_000), Some(DiskShortage::Space { available: Bytes(99 * MIB), floor }));
        assert!(short(124, 1_000).is_some());
        assert_eq!(short(125, 1_000), None);
        assert_eq!(short(1_000, 49), Some(DiskShortage::Inodes { available: 49, floor: 50 }));
        assert!(short(1_000, 61).is_some());
        assert_eq!(short(1_000, 62), None, "50 + 50 / 4, in whole inodes");
    }

    #[test]
    fn a_floor_of_nearly_everything_is_left_again() {
        let nine_tenths = Fraction::clamped(0.9);
        let settings = DiskFloorSettings { share: nine_tenths, most: Bytes(u64::MAX), inodes: nine_tenths };
        let mut floor = DiskFloor::new(settings);
        let mut short = |available, inodes| floor.step(sample(1_000, available, inodes)).shortage;
        assert!(short(899, 899).is_some() && short(924, 924).is_some());
        assert_eq!(short(925, 925), None, "a quarter of what is above it");
    }

    #[test]
    fn the_less_is_left_the_sooner_is_the_next_step_and_no_floor_needs_none() {
        let pause =
            |settings, available| DiskFloor::new(settings).step(sample(2_000, available, 1_000_000)).next_step_s;
        let settings = DiskFloorSettings::default();
        assert_eq!((pause(settings, 1_999), pause(settings, 101)), (0.2, 0.02));
        // 200 MiB above the floor at 2 GB a second.
        assert!((pause(settings, 300) - 0.104_857_6).abs() < 1e-9);
        assert!((pause(settings, 99) - 0.2).abs() < 1e-9, "held");
        let none = DiskFloorSettings { share: Fraction::ZERO, inodes: Fraction::ZERO, ..settings };
        let mut floor = DiskFloor::new(none);
        assert_eq!(floor.step(sample(2_000, 0, 0)), DiskVerdict { shortage: None, next_step_s: 0.2 });
        // A file system that makes inodes as they are needed has none to be short of.
        let mut floor = DiskFloor::new(settings);
        let made = DiskSample { inodes_total: 0, inodes_available: 0, ..sample(2_000, 1_000, 0) };
        assert_eq!(floor.step(made), DiskVerdict { shortage: None, next_step_s: 0.2 });
    }

    proptest! {
        #[test]
        fn below_the_floor_is_always_short_and_far_above_never(
            steps in prop::collection::vec((1_u64..100_000, 0_u64..100_000, 0_u64..2_000), 1..50),
        ) {
            let mut floor = DiskFloor::new(DiskFloorSettings::default());
            for (total, available, inodes) in steps {
                let verdict = floor.step(sample(total, available, inodes));
                let kept = (total * MIB / 20).min(4_096 * MIB);
                if available * MIB < kept || inodes < 50 {
                    prop_assert!(verdict.shortage.is_some());
                }
                if available * MIB >= kept / 4 * 5 && inodes >= 62 {
                    prop_assert!(verdict.shortage.is_none());
                }
                prop_assert!((STEP_S.0..=STEP_S.1).contains(&verdict.next_step_s));
            }
        }
    }
}
