//! The law of the volunteer's disk ceiling: how much it may read and write on one device per second now. In: what the
//! device carried in the last interval, how much of that was the volunteer's, and how long the foreground waited for disks.
//! Out: ceilings on bytes and operations, or none. The agent's disk bound calls it five times a second.
//!
//! Beside a foreground that uses the device the ceiling is a floor: a foreground that waits for each write suffers from every
//! one in front of its own. Where nobody else uses it the ceiling rises, by a share of the device's capacity per second, until there is none, so
//! that the device shows what it can carry: the capacity is the most that was seen, and no less than a slow disk's.
//!
//! A volunteer that writes much hides a small foreground, because the kernel charges what a file system's journal writes to no cgroup.
//! So from time to time the law makes a quiet interval: it lowers the ceiling to the floor for two intervals, and measures in the second.

use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

/// Reads and writes of one device, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskRates {
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub write_bytes: f64,
    /// Reads.
    pub read_operations: f64,
    /// Writes.
    pub write_operations: f64,
}

impl DiskRates {
    /// Each of these with the same of another.
    #[must_use]
    pub fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            read_bytes: f(self.read_bytes, other.read_bytes),
            write_bytes: f(self.write_bytes, other.write_bytes),
            read_operations: f(self.read_operations, other.read_operations),
            write_operations: f(self.write_operations, other.write_operations),
        }
    }

    fn any(self) -> bool {
        [self.read_bytes, self.write_bytes, self.read_operations, self.write_operations].iter().any(|rate| *rate > 0.0)
    }
}

/// Constants of the law. Shares are of the device's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiskBoundSettings {
    /// The least that a device is taken to carry.
    pub slow_disk: DiskRates,
    /// A foreground that uses more than this of one of the rates is active.
    pub active_above: Fraction,
    /// What a journal may write for each of the volunteer's own writes.
    pub journal: f64,
    /// The least that the volunteer may use.
    pub floor: Fraction,
    /// A foreground that waits for disks for more than this part of the time is active.
    pub waiting_above: Fraction,
    /// Growth of the ceiling per second.
    pub growth_per_s: Fraction,
    /// Longest interval that earns growth, in seconds.
    pub growth_interval_longest_s: f64,
    /// Growth begins this long after the foreground was last active, in seconds.
    pub inactive_s: f64,
    /// Time between two quiet intervals, in seconds.
    pub quiet_period_s: f64,
}

impl Default for DiskBoundSettings {
    /// Chosen. The slow disk is one that turns: 100 MB/s and 1,000 operations, which its cache takes. A journal writes two
    /// blocks for each synced write. A quiet interval takes 0.4 s of 10 s.
    fn default() -> Self {
        Self {
            slow_disk: DiskRates {
                read_bytes: 100e6,
                write_bytes: 100e6,
                read_operations: 1_000.0,
                write_operations: 1_000.0,
            },
            active_above: Fraction::clamped(0.01),
            journal: 3.0,
            floor: Fraction::clamped(0.02),
            waiting_above: Fraction::clamped(0.1),
            growth_per_s: Fraction::clamped(0.1),
            growth_interval_longest_s: 1.0,
            inactive_s: 1.0,
            quiet_period_s: 10.0,
        }
    }
}

/// One device over one interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiskUse {
    /// All that it carried.
    pub device: DiskRates,
    /// The volunteer's part of it.
    pub volunteer: DiskRates,
    /// Part of the time in which the foreground waited for disks and the volunteer did not; `None` where that is not known.
    pub waiting: Option<Fraction>,
}

/// Where the law is between two quiet intervals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Quiet {
    /// None; the last one ended so many seconds ago.
    Since(f64),
    /// The ceiling was lowered in the last step: what was on its way before may still be counted.
    Lowered,
    /// The next sample is the one that counts.
    Measuring,
}

/// The law's state, of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskBound {
    settings: DiskBoundSettings,
    capacity: DiskRates,
    /// The ceiling between quiet intervals, as a share of the capacity; 1 is none.
    share: f64,
    inactive_s: f64,
    quiet: Quiet,
}

impl DiskBound {
    /// The law at its start: at the floor.
    #[must_use]
    pub fn new(settings: DiskBoundSettings) -> Self {
        let share = settings.floor.value();
        Self { settings, capacity: settings.slow_disk, share, inactive_s: 0.0, quiet: Quiet::Since(0.0) }
    }

    /// Back to the floor, for a volunteer that is stopped or not measured. What the device can carry is still known.
    pub fn reset(&mut self) {
        *self = Self { capacity: self.capacity, ..Self::new(self.settings) };
    }

    /// The ceiling now; `None` is none.
    #[must_use]
    pub fn ceiling(&self) -> Option<DiskRates> {
        let is_quiet = !matches!(self.quiet, Quiet::Since(_));
        let share = if is_quiet { self.settings.floor.value() } else { self.share };
        (share < 1.0).then(|| self.capacity.zip(self.capacity, |capacity, _| capacity * share))
    }

    /// Takes what the device carried over the last `interval_s` seconds; answers the ceiling. The foreground is active when, for
    /// one of the rates, `device - volunteer > capacity * active_above + volunteer * journal` (reads have no journal), or
    /// when it waits; then `share' = floor`. When it has been inactive, `share' = min(1, share + growth * interval)`.
    pub fn step(&mut self, sample: DiskUse, interval_s: f64) -> Option<DiskRates> {
        self.capacity =
            self.capacity.zip(sample.device, |capacity, seen| if seen > capacity { seen } else { capacity });
        let interval_s = interval_s.max(0.0);
        if self.quiet == Quiet::Lowered {
            self.quiet = Quiet::Measuring;
            return self.ceiling();
        }
        if self.is_active(&sample) {
            // What the volunteer had sent until now is still on its way.
            self.quiet = if self.share > self.settings.floor.value() { Quiet::Lowered } else { Quiet::Since(0.0) };
            self.share = self.settings.floor.value();
            self.inactive_s = 0.0;
            return self.ceiling();
        }
        self.inactive_s += interval_s;
        self.quiet = match self.quiet {
            Quiet::Since(ago_s)
                if ago_s >= self.settings.quiet_period_s && self.share > self.settings.floor.value() =>
            {
                Quiet::Lowered
            }
            Quiet::Since(ago_s) => Quiet::Since(ago_s + interval_s),
            Quiet::Lowered | Quiet::Measuring => Quiet::Since(0.0),
        };
        if matches!(self.quiet, Quiet::Since(_)) && self.inactive_s >= self.settings.inactive_s {
            let earning_s = interval_s.min(self.settings.growth_interval_longest_s);
            self.share = (self.share + self.settings.growth_per_s.value() * earning_s).min(1.0);
        }
        self.ceiling()
    }

    fn is_active(&self, sample: &DiskUse) -> bool {
        let DiskBoundSettings { active_above, journal, waiting_above, .. } = self.settings;
        let foreground = sample.device.zip(sample.volunteer, |device, own| (device - own).max(0.0));
        let least = self.capacity.zip(self.capacity, |capacity, _| capacity * active_above.value());
        let hidden = DiskRates {
            write_bytes: sample.volunteer.write_bytes * journal,
            write_operations: sample.volunteer.write_operations * journal,
            ..DiskRates::default()
        };
        let uses =
            foreground.zip(least, |foreground, least| foreground - least).zip(hidden, |over, hidden| over - hidden);
        let waits = sample.waiting.is_some_and(|waiting| waiting > waiting_above);
        uses.any() || (waits && foreground.any())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP_S: f64 = 0.2;

    /// Megabytes written per second, in operations of 16 kB.
    fn writes(mb: f64) -> DiskRates {
        DiskRates { write_bytes: mb * 1e6, write_operations: mb * 62.5, ..DiskRates::default() }
    }

    fn sample(foreground: f64, volunteer: f64) -> DiskUse {
        DiskUse { device: writes(foreground + volunteer), volunteer: writes(volunteer), waiting: None }
    }

    fn mb(ceiling: Option<DiskRates>) -> f64 {
        ceiling.map_or(f64::INFINITY, |rates| rates.write_bytes / 1e6)
    }

    /// Wide open, just after a quiet interval.
    fn open() -> DiskBound {
        let mut bound = DiskBound::new(DiskBoundSettings::default());
        bound.share = 1.0;
        bound.inactive_s = 10.0;
        bound
    }

    #[test]
    fn rises_a_tenth_per_second_after_a_second_of_quiet_until_there_is_none() {
        let mut bound = DiskBound::new(DiskBoundSettings::default());
        assert!((mb(bound.ceiling()) - 2.0).abs() < 1e-9, "2 % of 100 MB/s");
        for _ in 0..4 {
            assert!((mb(bound.step(sample(0.0, 1.0), STEP_S)) - 2.0).abs() < 1e-9);
        }
        assert!((mb(bound.step(sample(0.0, 1.0), STEP_S)) - 4.0).abs() < 1e-9);
        assert!((mb(bound.step(sample(0.0, 1.0), STEP_S)) - 6.0).abs() < 1e-9);
        // A quiet interval at 10 s, and then on from where it was.
        let mut quiet_intervals = 0;
        for _ in 0..60 {
            quiet_intervals += u32::from(mb(bound.step(sample(0.0, 1.0), STEP_S)) < 3.0);
        }
        assert_eq!(quiet_intervals, 2);
        assert_eq!(bound.ceiling(), None);
    }

    #[test]
    fn an_active_foreground_leaves_the_floor_at_once() {
        // 8 KiB synced 200 times a second: 1.6 MB/s, beside little.
        let foreground = DiskRates { write_bytes: 1.6e6, write_operations: 200.0, ..DiskRates::default() };
        let mut bound = open();
        let quiet = DiskRates::default();
        let ceiling = bound.step(DiskUse { device: foreground, volunteer: quiet, waiting: None }, STEP_S);
        assert!((mb(ceiling) - 2.0).abs() < 1e-9, "{ceiling:?}");
        assert!((ceiling.unwrap().write_operations - 20.0).abs() < 1e-9);
    }

    #[test]
    fn a_volunteers_journal_is_no_foreground_and_a_look_finds_what_it_hides() {
        let mut bound = open();
        assert_eq!(bound.step(sample(40.0, 20.0), STEP_S), None, "two for each of its own");
        let mut steps = 0;
        // 3 MB/s of foreground, hidden by 20 MB/s of the volunteer's until it is held to 0.5.
        let mut ceiling = bound.step(sample(3.0, 20.0), STEP_S);
        while ceiling.is_none() {
            steps += 1;
            assert!(steps < 60);
            ceiling = bound.step(sample(3.0, 20.0), STEP_S);
        }
        bound.step(sample(3.0, 20.0), STEP_S);
        bound.step(sample(3.0, 0.5), STEP_S);
        for _ in 0..100 {
            assert!((mb(bound.step(sample(3.0, 0.5), STEP_S)) - 2.0).abs() < 1e-9, "it stays at the floor");
        }
    }

    #[test]
    fn a_foreground_that_waits_is_active_and_one_that_uses_nothing_does_not_wait() {
        let waiting = Some(Fraction::clamped(0.5));
        let small = DiskUse { waiting, ..sample(0.1, 1.0) };
        assert!((mb(open().step(small, STEP_S)) - 2.0).abs() < 1e-9);
        assert_eq!(open().step(DiskUse { waiting, ..sample(0.0, 1.0) }, STEP_S), None);
    }

    #[test]
    fn the_capacity_is_the_most_that_was_seen() {
        let mut bound = open();
        bound.step(sample(0.0, 500.0), STEP_S);
        let ceiling = bound.step(sample(50.0, 0.0), STEP_S);
        assert!((mb(ceiling) - 10.0).abs() < 1e-9, "2 % of 500 MB/s");
        bound.reset();
        assert!((mb(bound.ceiling()) - 10.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn never_below_the_floor_nor_faster_than_the_rate(
            steps in prop::collection::vec((0.0_f64..300.0, 0.0_f64..300.0, 0.0_f64..3.0, 0.0_f64..1.0), 1..150),
        ) {
            let settings = DiskBoundSettings::default();
            let mut bound = DiskBound::new(settings);
            for (foreground, volunteer, interval_s, waiting) in steps {
                let before = bound.share;
                let waiting = Some(Fraction::clamped(waiting));
                let ceiling = bound.step(DiskUse { waiting, ..sample(foreground, volunteer) }, interval_s);
                prop_assert!(bound.share >= settings.floor.value() - 1e-9 && bound.share <= 1.0);
                prop_assert!(bound.share <= before + 0.1 * interval_s.min(1.0) + 1e-9);
                prop_assert!(ceiling.is_none_or(|rates| rates.write_bytes >= 2e6 - 1e-3));
                prop_assert_eq!(ceiling.is_none(), bound.share >= 1.0 && matches!(bound.quiet, Quiet::Since(_)));
            }
        }
    }
}
