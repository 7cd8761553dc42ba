//! How much a volunteer may have on a file system that keeps a quota of it. In: what it has there, and what is free, now.
//! Out: the most that it may have until the next reading. The agent sets that as the hard limit of the volunteer's project.
//!
//! A limit of what it has and what is free above the floor is one that the volunteer cannot write past to below the floor,
//! however fast it writes. What the foreground takes lowers the limit at the next reading. What the foreground gives back
//! raises it in parts, and only once it is an eighth of the floor. A part of the floor more stays free for what the file
//! system itself writes and no quota counts, such as its lists of quotas.

use gleaner_types::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::disk_floor::{DiskFloorSettings, DiskSample};

/// Kept free above the floor, as a part of it. (Chosen.)
const MARGIN: u64 = 32;
/// Limits are multiples of this part of the floor, so that small changes set none. (Chosen.)
const STEP: u64 = 64;
/// A limit is raised once it could be by this part of the floor. (Chosen.)
const RAISED_BY: u64 = 8;

/// What the volunteer has on a file system, and the file system, at one moment. Where both cannot be read at once, what the volunteer
/// has is read first: what it writes in between then lowers the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskQuotaSample {
    /// Space that the volunteer has.
    pub used: Bytes,
    /// Its inodes.
    pub inodes_used: u64,
    /// The file system.
    pub disk: DiskSample,
}

/// The most that the volunteer may have; `None` is no limit, and a limit is never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskQuotaLimit {
    /// Space.
    pub space: Option<Bytes>,
    /// Inodes.
    pub inodes: Option<u64>,
}

/// The limit's state on one file system.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiskQuota {
    settings: DiskFloorSettings,
    limit: DiskQuotaLimit,
}

impl DiskQuota {
    /// Of a file system that was not read yet.
    #[must_use]
    pub const fn new(settings: DiskFloorSettings) -> Self {
        Self { settings, limit: DiskQuotaLimit { space: None, inodes: None } }
    }

    /// Takes the file system now.
    pub fn step(&mut self, sample: DiskQuotaSample) -> DiskQuotaLimit {
        let DiskQuotaSample { used, inodes_used, disk } = sample;
        let (floor, inodes_floor) = self.settings.floors(disk);
        let space = next(self.limit.space.map(|limit| limit.0), used.0, disk.available.0, floor.0);
        let inodes = next(self.limit.inodes, inodes_used, disk.inodes_available, inodes_floor);
        self.limit = DiskQuotaLimit { space: space.map(Bytes), inodes };
        self.limit
    }
}

/// The next limit of one of both; without a floor there is none.
fn next(limit: Option<u64>, used: u64, available: u64, floor: u64) -> Option<u64> {
    if floor == 0 {
        return None;
    }
    let step = (floor / STEP).max(1);
    let above = available.saturating_sub(floor.saturating_add(floor / MARGIN));
    let most = (used.saturating_add(above) / step * step).max(1);
    let Some(limit) = limit.filter(|limit| *limit < most) else { return Some(most) };
    let more = most - limit;
    // By half of it, in whole steps: the first reading after the foreground has deleted something may be one of many.
    let raised = if more < floor / RAISED_BY { 0 } else { (more / 2 / step * step).max(step).min(more) };
    Some(limit + raised)
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Fraction;
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Of 2,000 MiB and 10,000 inodes, of which a twentieth stays free.
    fn sample(used_mib: u64, available_mib: u64, inodes_used: u64, inodes_available: u64) -> DiskQuotaSample {
        let disk = DiskSample {
            total: Bytes(2_000 * MIB),
            available: Bytes(available_mib * MIB),
            inodes_total: 10_000,
            inodes_available,
        };
        DiskQuotaSample { used: Bytes(used_mib * MIB), inodes_used, disk }
    }

    fn limit(quota: &mut DiskQuota, sample: DiskQuotaSample) -> (f64, u64) {
        let DiskQuotaLimit { space: Some(space), inodes: Some(inodes) } = quota.step(sample) else {
            panic!("no limit")
        };
        (space.0 as f64 / MIB as f64, inodes)
    }

    #[test]
    fn it_may_have_what_it_has_and_what_is_free_above_the_floor() {
        let mut quota = DiskQuota::new(DiskFloorSettings::default());
        // The floor is 100 MiB and 500 inodes, the margin 3.125 MiB and 15, a step 1.5625 MiB and 7.
        assert_eq!(limit(&mut quota, sample(50, 600, 100, 5_000)), (546.875, 4_585));
        // It writes: nothing changes, however much.
        assert_eq!(limit(&mut quota, sample(450, 200, 4_000, 1_100)), (546.875, 4_585));
        // The foreground takes 100 MiB and 1,000 inodes.
        assert_eq!(limit(&mut quota, sample(450, 100, 4_000, 100)), (450.0, 3_997));
    }

    #[test]
    fn it_is_raised_in_halves_and_not_for_little() {
        let mut quota = DiskQuota::new(DiskFloorSettings::default());
        let mut is_near = |available_mib, space_mib: f64| {
            (limit(&mut quota, sample(0, available_mib, 0, 9_000)).0 - space_mib).abs() < 1e-9
        };
        assert!(is_near(600, 496.875));
        assert!(is_near(610, 496.875), "less than 12.5 MiB");
        assert!(is_near(700, 546.875), "half of 100 MiB");
        let last = (0..20).map(|_| limit(&mut quota, sample(0, 700, 0, 9_000)).0).last().unwrap();
        assert!((584.0..=596.875).contains(&last), "{last}");
    }

    #[test]
    fn a_limit_is_never_zero_and_without_a_floor_there_is_none() {
        let mut quota = DiskQuota::new(DiskFloorSettings::default());
        let full = DiskQuotaLimit { space: Some(Bytes(1)), inodes: Some(1) };
        assert_eq!(quota.step(sample(0, 10, 0, 0)), full, "zero would be no limit");
        let none = DiskFloorSettings { share: Fraction::ZERO, inodes: Fraction::ZERO, ..DiskFloorSettings::default() };
        assert_eq!(DiskQuota::new(none).step(sample(0, 10, 0, 0)), DiskQuotaLimit::default());
        // A file system that makes inodes as they are needed.
        let mut made = sample(0, 600, 5, 0);
        made.disk.inodes_total = 0;
        assert_eq!(quota.step(made).inodes, None);
    }

    proptest! {
        /// A volunteer that takes all it may between any two readings, beside a foreground that takes and gives back: of what the
        /// volunteer takes nothing is below the floor.
        #[test]
        fn what_the_volunteer_takes_is_above_the_floor(
            share in 1_u32..=50,
            steps in prop::collection::vec((any::<bool>(), 0_u64..400, prop::bool::weighted(0.8)), 1..60),
        ) {
            let share = Fraction::clamped(f64::from(share) / 100.0);
            let settings = DiskFloorSettings { share, most: Bytes(u64::MAX), inodes: share };
            let total = 2_000 * MIB;
            let mut quota = DiskQuota::new(settings);
            let (mut volunteer, mut foreground, mut last) = (0_u64, 0_u64, None);
            for (takes, mib, fills) in steps {
                let most = total - volunteer;
                foreground = match takes {
                    true => (foreground + mib * MIB).min(most),
                    false => foreground.saturating_sub(mib * MIB),
                };
                let mut sample = sample(0, 0, 0, 0);
                sample.used = Bytes(volunteer);
                sample.disk.available = Bytes(total - volunteer - foreground);
                let (floor, _) = settings.floors(sample.disk);
                let limit = quota.step(sample).space.unwrap().0;
                // The smallest limit there is is no zero.
                let may = limit.max(volunteer).max(1) - 1;
                let used = if fills { may } else { may.min(volunteer) };
                let free = (total - foreground).saturating_sub(used);
                prop_assert!(used <= volunteer || free >= floor.0, "{used} of {limit} leave {free} of {floor:?}");
                // It rises by no more than half of what it could.
                if let Some(last) = last.filter(|last| limit > *last) {
                    let could = volunteer + sample.disk.available.0.saturating_sub(floor.0);
                    prop_assert!(limit - last <= (could - last) / 2 + floor.0 / STEP + 1);
                }
                last = Some(limit);
                volunteer = used;
            }
        }
    }
}
