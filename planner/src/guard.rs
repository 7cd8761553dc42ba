//! The guard's law: how much CPU the volunteer of a host may use now. In: the CPU that the foreground used in the last
//! interval. Out: the volunteer's allowance. The agent's guard calls it every 50 ms, the simulator likewise. The
//! foreground gets what it wants at once; the volunteer gets back slowly what the foreground leaves.
//!
//! The allowance drops in one step to what the foreground leaves, less a headroom, and rises by at most a
//! share of the host per second. Under a floor the volunteer is frozen, because a quota that small only
//! lets it hold locks and caches. The law begins at zero, so a volunteer that starts also grows slowly.

use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

/// Constants of the law.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GuardSettings {
    /// Growth of the allowance per second, as a share of the host's CPU capacity.
    pub growth_per_s: Fraction,
    /// CPU always left free for the foreground's next increase, as a share of the host's CPU capacity.
    pub headroom: Fraction,
    /// Below this allowance the volunteer is frozen; it thaws at twice as much.
    pub freeze_below: CoreShare,
    /// Longest interval that earns growth, in seconds. A longer sample says too little
    /// about the present to allow more.
    pub growth_interval_longest_s: f64,
}

impl Default for GuardSettings {
    /// A tenth of the host per second; the other values are chosen. 5 % of a core is the least a kernel
    /// quota of 1 ms can express in the 20 ms period the agent uses.
    fn default() -> Self {
        Self {
            growth_per_s: Fraction::clamped(0.1),
            headroom: Fraction::clamped(0.05),
            freeze_below: CoreShare::clamped(5.0),
            growth_interval_longest_s: 0.2,
        }
    }
}

/// What the host did over one interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GuardSample {
    /// CPU capacity of the host.
    pub capacity: CoreShare,
    /// CPU used by everything that is not the volunteer.
    pub foreground: CoreShare,
}

/// Kinds of restriction, mildest first. Each includes the milder ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// The foreground is idle: the least weight suffices, the quota keeps the headroom.
    Weight,
    /// The quota limits the volunteer to its allowance.
    Quota,
    /// The volunteer does not run.
    Freeze,
}

/// What the volunteer may do until the next step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GuardVerdict {
    /// The most it may use.
    pub allowance: CoreShare,
    /// The restriction that enforces it.
    pub rung: Rung,
    /// The foreground took something back in this step.
    pub shrank: bool,
    /// The volunteer was running before this step and is not now.
    pub froze: bool,
}

/// The law's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    settings: GuardSettings,
    allowance: CoreShare,
    frozen: bool,
}

impl Guard {
    /// The law at its start: nothing allowed.
    #[must_use]
    pub fn new(settings: GuardSettings) -> Self {
        Self { settings, allowance: CoreShare::ZERO, frozen: true }
    }

    /// Continues with other constants.
    pub fn set_settings(&mut self, settings: GuardSettings) {
        self.settings = settings;
    }

    /// Back to the start, for a volunteer that is stopped.
    pub fn reset(&mut self) {
        *self = Self::new(self.settings);
    }

    /// The allowance now.
    #[must_use]
    pub fn allowance(&self) -> CoreShare {
        self.allowance
    }

    /// The volunteer must not run now.
    #[must_use]
    pub fn frozen(&self) -> bool {
        self.frozen
    }

    /// Takes what the host did over the last `interval_s` seconds:
    /// `allowance' = min(capacity - foreground - headroom, allowance + growth * interval)`.
    pub fn step(&mut self, sample: GuardSample, interval_s: f64) -> GuardVerdict {
        let capacity = sample.capacity;
        let ceiling = capacity.saturating_sub(capacity * self.settings.headroom.value());
        let room = ceiling.saturating_sub(sample.foreground);
        let earning_s = interval_s.clamp(0.0, self.settings.growth_interval_longest_s);
        let grown = self.allowance + capacity * (self.settings.growth_per_s.value() * earning_s);

        let shrank = room < self.allowance;
        self.allowance = room.min(grown);

        let was_frozen = self.frozen;
        let floor = self.settings.freeze_below;
        self.frozen = if was_frozen { self.allowance < floor * 2.0 } else { self.allowance < floor };

        let rung = if self.frozen {
            Rung::Freeze
        } else if self.allowance < ceiling {
            Rung::Quota
        } else {
            Rung::Weight
        };
        GuardVerdict { allowance: self.allowance, rung, shrank, froze: self.frozen && !was_frozen }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(cores: u32, foreground: f64) -> GuardSample {
        GuardSample { capacity: CoreShare::from_cores(cores), foreground: CoreShare::clamped(foreground) }
    }

    fn grown(cores: u32) -> Guard {
        let mut guard = Guard::new(GuardSettings::default());
        for _ in 0..400 {
            guard.step(sample(cores, 0.0), 0.05);
        }
        guard
    }

    #[test]
    fn a_changed_headroom_counts_from_the_next_step() {
        let mut guard = grown(4);
        guard.set_settings(GuardSettings { headroom: Fraction::clamped(0.5), ..GuardSettings::default() });
        assert!((guard.allowance().percent() - 380.0).abs() < 1e-9);
        let verdict = guard.step(sample(4, 0.0), 0.05);
        assert!((verdict.allowance.percent() - 200.0).abs() < 1e-9 && verdict.shrank, "{verdict:?}");
    }

    #[test]
    fn grows_a_tenth_of_the_host_per_second_from_zero() {
        // 4 cores: 40 % of a core per second, 2 % per step of 50 ms; ceiling 400 - 20 = 380.
        let mut guard = Guard::new(GuardSettings::default());
        let first = guard.step(sample(4, 0.0), 0.05);
        assert!((first.allowance.percent() - 2.0).abs() < 1e-9);
        assert_eq!((first.rung, first.froze), (Rung::Freeze, false), "it was frozen from the start");
        let mut verdict = first;
        for _ in 1..20 {
            verdict = guard.step(sample(4, 0.0), 0.05);
        }
        assert!((verdict.allowance.percent() - 40.0).abs() < 1e-9);
        assert_eq!(verdict.rung, Rung::Quota);
        assert!((grown(4).allowance().percent() - 380.0).abs() < 1e-9);
    }

    #[test]
    fn gives_way_in_one_step() {
        // 2 cores, ceiling 190. The foreground jumps to 150 %: 40 % are left.
        let mut guard = grown(2);
        let verdict = guard.step(sample(2, 150.0), 0.05);
        assert!((verdict.allowance.percent() - 40.0).abs() < 1e-9);
        assert_eq!((verdict.rung, verdict.shrank, verdict.froze), (Rung::Quota, true, false));
        let verdict = guard.step(sample(2, 200.0), 0.05);
        assert_eq!((verdict.allowance, verdict.rung), (CoreShare::ZERO, Rung::Freeze));
        assert!(verdict.shrank && verdict.froze);
    }

    #[test]
    fn thaws_at_twice_the_floor() {
        // 1 core grows 0.5 % per step of 50 ms: 10 % after 20 steps.
        let mut guard = Guard::new(GuardSettings::default());
        let mut steps = 0;
        while guard.step(sample(1, 0.0), 0.05).rung == Rung::Freeze {
            steps += 1;
            assert!(steps < 100);
        }
        assert!((19..=20).contains(&steps), "{steps}");
        // 1 core, ceiling 95: a foreground of 88 % leaves 7 %, above the floor of 5 %: it keeps running.
        assert_eq!(guard.step(sample(1, 88.0), 0.05).rung, Rung::Quota);
        assert_eq!(guard.step(sample(1, 91.0), 0.05).rung, Rung::Freeze);
        assert_eq!(guard.step(sample(1, 88.0), 0.05).rung, Rung::Freeze, "7 % is too little to thaw at");
    }

    #[test]
    fn an_idle_host_is_left_to_the_weight() {
        let mut guard = grown(2);
        assert_eq!(guard.step(sample(2, 0.0), 0.05).rung, Rung::Weight);
    }

    #[test]
    fn a_long_interval_earns_no_more_than_the_longest() {
        let mut guard = Guard::new(GuardSettings::default());
        // 10 cores, 100 % per second, at most 0.2 s of it.
        let verdict = guard.step(sample(10, 0.0), 60.0);
        assert!((verdict.allowance.percent() - 20.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn bounded_never_faster_than_the_rate_and_room_kept(
            cores in 1_u32..256,
            steps in prop::collection::vec((0.0_f64..40_000.0, 0.0_f64..2.0), 1..200),
        ) {
            let settings = GuardSettings::default();
            let mut guard = Guard::new(settings);
            let capacity = CoreShare::from_cores(cores);
            for (foreground, interval_s) in steps {
                let before = guard.allowance();
                let verdict = guard.step(sample(cores, foreground), interval_s);
                let rate = capacity.percent() * settings.growth_per_s.value();
                prop_assert!(verdict.allowance - before <= rate * interval_s + 1e-6);
                let ceiling = capacity.percent() * (1.0 - settings.headroom.value());
                prop_assert!(verdict.allowance.percent() <= (ceiling - foreground).max(0.0) + 1e-6);
                prop_assert_eq!(verdict.shrank, verdict.allowance < before);
                prop_assert!(verdict.rung == Rung::Freeze || verdict.allowance >= settings.freeze_below);
            }
        }

        #[test]
        fn settles_without_swinging_on_constant_demand(cores in 1_u32..64, load in 0.0_f64..1.2, start in 0.0_f64..1.2) {
            let mut guard = grown(cores);
            let host = f64::from(cores) * 100.0;
            guard.step(sample(cores, host * start), 0.05);
            let mut thaws = 0;
            let mut last = guard.step(sample(cores, host * load), 0.05);
            for _ in 0..300 {
                let next = guard.step(sample(cores, host * load), 0.05);
                prop_assert!(next.allowance >= last.allowance, "constant demand never shrinks it again");
                prop_assert!(!next.froze);
                thaws += u32::from(last.rung == Rung::Freeze && next.rung != Rung::Freeze);
                last = next;
            }
            prop_assert!(thaws <= 1);
            let next = guard.step(sample(cores, host * load), 0.05);
            prop_assert_eq!(next.allowance, last.allowance, "settled after 15 s");
        }
    }
}
