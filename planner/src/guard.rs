//! The guard's law: how much CPU the volunteer of a host may use now. In: the CPU that the foreground used in the last
//! interval. Out: the volunteer's allowance. The agent's guard calls it every 50 ms, the simulator likewise. The
//! foreground gets what it wants at once; the volunteer gets back slowly what the foreground leaves.
//!
//! There are three laws. Where the volunteer may compete with the foreground ([`Yields::ByWeight`]), the allowance drops in
//! one step to what the foreground leaves, less a headroom, and rises by at most a share of the host per second. Under a
//! floor the volunteer is frozen, because a quota that small only lets it hold locks and caches. That law begins at zero,
//! so a volunteer that starts also grows slowly.
//!
//! Where the kernel itself makes the volunteer yield ([`Yields::Outright`]), a low quota only costs harvest. The law is
//! then open, without a quota, as long as the foreground leaves half of the host. When it leaves less the first law
//! tightens: the idle class still yields, but a volunteer on every CPU is in the way of wake-ups.
//!
//! Domains of a hypervisor ([`Yields::LeastWeight`]) have its scheduler's least weight. Where that suffices (Xen's credit2)
//! they have no quota at any time: one that moved cost the foreground more than the weight alone does. Where it does not
//! (Xen's credit) the sample tells how long the foreground waited for a CPU: while it waits for more than a tenth of the time
//! that it wants, averaged over a second, the allowance is halved at each step, down to a floor; it rises slowly again. All of it
//! is in parts of what the domains' virtual CPUs can use, which may be little of a large host (docs/performance.md).

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
    /// Where the volunteer yields outright: no quota is in force while the foreground leaves at least this share of the
    /// host. With 1 there always is one.
    pub open_above: Fraction,
}

impl Default for GuardSettings {
    /// A tenth of the host per second; the other values are chosen. 5 % of a core is the least a kernel
    /// quota of 1 ms can express in the 20 ms period the agent uses. Open down to a half: of two thresholds that were
    /// measured with a sudden demand for every CPU, a quarter was too late (docs/performance.md).
    fn default() -> Self {
        Self {
            growth_per_s: Fraction::clamped(0.1),
            headroom: Fraction::clamped(0.05),
            freeze_below: CoreShare::clamped(5.0),
            growth_interval_longest_s: 0.2,
            open_above: Fraction::clamped(0.5),
        }
    }
}

/// Waits are averaged over so many seconds. (Chosen: some twenty looks at virtual CPUs.)
const WAITS_OVER_S: f64 = 1.0;
/// What was seen of waits counts for so many seconds. (Chosen: longer than twenty looks may take.)
const WAITS_KEPT_S: f64 = 3.0;
/// The foreground is hurt when it waits for more than this share of the time that it wants a CPU. (Chosen: beside a paused
/// volunteer it was less in every run, and under credit beside one of the least weight more, a seventh to two fifths.)
const WAITS_LEAST: f64 = 0.1;
/// Averaged waits of less than so much of one CPU are chance. (Chosen: a look that meets one waiting virtual CPU makes 5 % of it, so
/// that three of them within a second count, and two do not.)
const WAITS_NONE_PERCENT: f64 = 12.0;
/// What is left to a volunteer for which the foreground waits, as a share of what it can use. (Chosen: less than the tenth at which
/// a volunteer counts as having given way.)
const WAITS_FLOOR: f64 = 0.05;

/// What the host did over one interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GuardSample {
    /// CPU capacity of the host.
    pub capacity: CoreShare,
    /// CPU used by everything that is not the volunteer.
    pub foreground: CoreShare,
    /// What the foreground wanted beside that and waited for, where the volunteer's weight is not enough against it and
    /// somebody looked in this interval.
    pub waits: Option<CoreShare>,
    /// The most that the volunteer can use, where that is known: its domains' virtual CPUs.
    pub volunteer_most: Option<CoreShare>,
}

/// How a volunteer gives way by itself, before any quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Yields {
    /// It may compete with the foreground, if only with the least weight; or nobody knows.
    ByWeight,
    /// It is in the kernel's idle class, and so is everything by which it competes with the foreground: the kernel runs
    /// it only where nothing else wants the CPU.
    Outright,
    /// It is domains of a hypervisor, which weighs each against the others itself, and they have the least weight there is.
    LeastWeight,
}

/// Kinds of restriction, mildest first. Each includes the milder ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Weight or idle class suffices: the law is open, or the foreground is idle and the quota keeps the headroom.
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
    yields: Yields,
    open: bool,
    pain: Pain,
}

/// What the foreground had and what it waited for, each averaged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Pain {
    used: CoreShare,
    waits: CoreShare,
    /// Time since waits were last seen, in seconds.
    unseen_s: f64,
}

impl Pain {
    const NONE: Self = Self { used: CoreShare::ZERO, waits: CoreShare::ZERO, unseen_s: 0.0 };

    fn take(&mut self, used: CoreShare, waits: CoreShare, interval_s: f64) {
        let part = (interval_s / WAITS_OVER_S).clamp(0.0, 1.0);
        let toward = |from: CoreShare, to: CoreShare| from * (1.0 - part) + to * part;
        *self = Self { used: toward(self.used, used), waits: toward(self.waits, waits), unseen_s: 0.0 };
    }

    /// Nobody looked. What was seen long ago says nothing.
    fn age(&mut self, interval_s: f64) {
        self.unseen_s += interval_s;
        if self.unseen_s > WAITS_KEPT_S {
            *self = Self::NONE;
        }
    }

    fn hurts(self) -> bool {
        self.waits.percent() > WAITS_NONE_PERCENT && self.waits > (self.used + self.waits) * WAITS_LEAST
    }
}

impl Guard {
    /// The law at its start: nothing allowed, for a volunteer that may compete.
    #[must_use]
    pub fn new(settings: GuardSettings) -> Self {
        Self {
            settings,
            allowance: CoreShare::ZERO,
            frozen: true,
            yields: Yields::ByWeight,
            open: false,
            pain: Pain::NONE,
        }
    }

    /// How the volunteer yields from the next step on.
    pub fn set_yields(&mut self, yields: Yields) {
        self.yields = yields;
    }

    /// How the volunteer yields.
    #[must_use]
    pub fn yields(&self) -> Yields {
        self.yields
    }

    /// Continues with other constants.
    pub fn set_settings(&mut self, settings: GuardSettings) {
        self.settings = settings;
    }

    /// Back to the start, for a volunteer that is stopped.
    pub fn reset(&mut self) {
        *self = Self { yields: self.yields, ..Self::new(self.settings) };
    }

    /// No quota is needed now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
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

    /// Takes what the host did over the last `interval_s` seconds. Open: `allowance' = capacity`. Otherwise
    /// `allowance' = min(capacity - foreground - headroom, allowance + growth * interval)`.
    pub fn step(&mut self, sample: GuardSample, interval_s: f64) -> GuardVerdict {
        let capacity = sample.capacity;
        let ceiling = capacity.saturating_sub(capacity * self.settings.headroom.value());
        let room = ceiling.saturating_sub(sample.foreground);
        let earning_s = interval_s.clamp(0.0, self.settings.growth_interval_longest_s);
        let grown = self.allowance + capacity * (self.settings.growth_per_s.value() * earning_s);

        let (open, less) = match self.yields {
            Yields::ByWeight => (false, room.min(grown)),
            Yields::Outright => (self.may_be_open(sample), room.min(grown)),
            Yields::LeastWeight => self.by_waits(sample, earning_s, interval_s),
        };
        self.open = open;
        let allowance = if open { capacity } else { less };
        let shrank = allowance < self.allowance;
        self.allowance = allowance;

        let was_frozen = self.frozen;
        let floor = self.settings.freeze_below;
        let least = if was_frozen { floor * 2.0 } else { floor };
        self.frozen = !self.open && self.allowance < least;

        let rung = if self.frozen {
            Rung::Freeze
        } else if self.allowance < ceiling {
            Rung::Quota
        } else {
            Rung::Weight
        };
        GuardVerdict { allowance: self.allowance, rung, shrank, froze: self.frozen && !was_frozen }
    }

    /// Open, unless the foreground waits or did so lately; and the allowance where it is not. The foreground's waits count together,
    /// so one domain that waits among many that are busy is not noticed.
    fn by_waits(&mut self, sample: GuardSample, earning_s: f64, interval_s: f64) -> (bool, CoreShare) {
        let most = sample.volunteer_most.map_or(sample.capacity, |most| most.min(sample.capacity));
        match sample.waits {
            Some(waits) => self.pain.take(sample.foreground, waits, interval_s),
            None => self.pain.age(interval_s),
        }
        if self.pain.hurts() {
            return (
                false,
                (self.allowance.min(most) * 0.5).max(most * WAITS_FLOOR).max(self.settings.freeze_below * 2.0),
            );
        }
        let grown = self.allowance + most * (self.settings.growth_per_s.value() * earning_s);
        // Nothing is known against it at the start, when it is frozen.
        (self.frozen || self.open || grown >= most, grown)
    }

    /// The foreground leaves enough. To open again it must leave the headroom more than to stay open, so that a demand
    /// just at the threshold does not switch the quota on and off at every step.
    fn may_be_open(&self, sample: GuardSample) -> bool {
        let GuardSettings { open_above, headroom, .. } = self.settings;
        let least = open_above.value() + if self.open { 0.0 } else { headroom.value() };
        open_above.value() < 1.0 && sample.capacity.saturating_sub(sample.foreground) >= sample.capacity * least
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(cores: u32, foreground: f64) -> GuardSample {
        GuardSample {
            capacity: CoreShare::from_cores(cores),
            foreground: CoreShare::clamped(foreground),
            waits: None,
            volunteer_most: None,
        }
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

    fn outright(cores: u32) -> Guard {
        let mut guard = Guard::new(GuardSettings::default());
        guard.set_yields(Yields::Outright);
        guard.step(sample(cores, 0.0), 0.05);
        guard
    }

    #[test]
    fn one_that_yields_outright_has_no_quota_while_half_of_the_host_is_left() {
        // 4 cores, half is 200.
        let mut guard = Guard::new(GuardSettings::default());
        guard.set_yields(Yields::Outright);
        assert!(!guard.is_open() && guard.frozen(), "nothing is known before the first step");
        let first = guard.step(sample(4, 0.0), 0.05);
        assert_eq!((first.allowance, first.rung), (CoreShare::from_cores(4), Rung::Weight));
        assert_eq!(guard.step(sample(4, 200.0), 0.05).rung, Rung::Weight);
        assert!(guard.is_open());
        // 210 leave 190: the quota is what is left less the headroom of 20.
        let tight = guard.step(sample(4, 210.0), 0.05);
        assert!((tight.allowance.percent() - 170.0).abs() < 1e-9 && tight.shrank, "{tight:?}");
        assert_eq!(tight.rung, Rung::Quota);
        // It opens again at 220 left, not at 205.
        assert_eq!(guard.step(sample(4, 195.0), 0.05).rung, Rung::Quota);
        assert_eq!(guard.step(sample(4, 179.0), 0.05).rung, Rung::Weight);
        let full = guard.step(sample(4, 400.0), 0.05);
        assert!(full.froze && full.shrank && full.rung == Rung::Freeze, "{full:?}");
        assert_eq!(guard.step(sample(4, 0.0), 0.05).rung, Rung::Weight, "the kernel yields, so nothing has to grow");
    }

    #[test]
    fn one_that_no_longer_yields_outright_has_a_quota_at_once() {
        let mut guard = outright(2);
        guard.set_yields(Yields::ByWeight);
        let verdict = guard.step(sample(2, 40.0), 0.05);
        assert!((verdict.allowance.percent() - 150.0).abs() < 1e-9 && !guard.is_open(), "{verdict:?}");
    }

    fn waiting(foreground: f64, waits: f64) -> GuardSample {
        GuardSample { waits: Some(CoreShare::clamped(waits)), ..sample(2, foreground) }
    }

    fn least_weight() -> Guard {
        let mut guard = Guard::new(GuardSettings::default());
        guard.set_yields(Yields::LeastWeight);
        guard
    }

    #[test]
    fn domains_for_which_the_foreground_waits_have_a_twentieth_of_the_host_within_200_ms() {
        let mut guard = least_weight();
        for _ in 0..20 {
            assert_eq!(guard.step(waiting(60.0, 1.0), 0.05).rung, Rung::Weight, "some wait anyway");
        }
        // A look that meets a virtual CPU which waits takes it for all of the time since the last.
        for step in 0..1_000 {
            let waits = if step % 50 == 0 { 100.0 } else { 0.0 };
            assert_eq!(
                guard.step(waiting(60.0, waits), 0.05).rung,
                Rung::Weight,
                "2 % of the time is chance: step {step}"
            );
        }
        // A domain that wants one more CPU and has a third of it, as credit gives it.
        let verdicts: Vec<GuardVerdict> = (0..8).map(|_| guard.step(waiting(95.0, 65.0), 0.05)).collect();
        let limited = verdicts.iter().position(|verdict| verdict.rung == Rung::Quota).unwrap();
        assert!(limited < 4, "{verdicts:?}");
        assert!((verdicts[7].allowance.percent() - 10.0).abs() < 1e-9 && verdicts[limited].shrank, "{verdicts:?}");
        assert!(verdicts.iter().all(|verdict| !verdict.froze), "{verdicts:?}");
    }

    #[test]
    fn it_grows_again_when_nobody_waits_any_more_and_is_open_in_the_end() {
        let mut guard = least_weight();
        for _ in 0..20 {
            guard.step(waiting(95.0, 65.0), 0.05);
        }
        // The waits have to be forgotten first, then a tenth of the host a second.
        let steps =
            (1..2_000).find(|_| guard.step(waiting(60.0, 0.0), 0.05).rung < Rung::Quota && guard.is_open()).unwrap();
        assert!((200..240).contains(&steps), "{steps}");
    }

    #[test]
    fn on_a_large_host_what_the_volunteer_can_use_counts() {
        let mut guard = least_weight();
        let large = |waits| GuardSample {
            capacity: CoreShare::from_cores(128),
            volunteer_most: Some(CoreShare::from_cores(2)),
            ..waiting(300.0, waits)
        };
        guard.step(large(0.0), 0.05);
        let last = (0..20).map(|_| guard.step(large(90.0), 0.05)).last().unwrap();
        assert!((last.allowance.percent() - 10.0).abs() < 1e-9, "{last:?}");
        let steps = (1..2_000).find(|_| guard.step(large(0.0), 0.05).allowance >= CoreShare::from_cores(1)).unwrap();
        assert!((90..150).contains(&steps), "a tenth of two CPUs a second: {steps}");
    }

    #[test]
    fn waits_that_nobody_looked_at_count_for_some_seconds() {
        let mut guard = least_weight();
        for _ in 0..20 {
            guard.step(waiting(95.0, 65.0), 0.05);
        }
        for _ in 0..20 {
            let verdict = guard.step(sample(2, 95.0), 0.05);
            assert!((verdict.allowance.percent() - 10.0).abs() < 1e-9, "{verdict:?}");
        }
        // Its domains may be of another scheduler now.
        assert!((0..1_000).any(|_| guard.step(sample(2, 95.0), 0.05).rung == Rung::Weight));
    }

    #[test]
    fn domains_with_the_least_weight_never_have_a_quota_where_that_suffices() {
        let mut guard = Guard::new(GuardSettings::default());
        guard.set_yields(Yields::LeastWeight);
        assert!(guard.frozen(), "nothing is known before the first step");
        for foreground in [0.0, 150.0, 200.0] {
            let verdict = guard.step(sample(2, foreground), 0.05);
            assert_eq!((verdict.allowance, verdict.rung), (CoreShare::from_cores(2), Rung::Weight));
            assert!(guard.is_open() && !verdict.shrank);
        }
    }

    #[test]
    fn a_threshold_of_the_whole_host_always_keeps_the_quota() {
        let mut guard = outright(2);
        guard.set_settings(GuardSettings { open_above: Fraction::clamped(1.0), ..GuardSettings::default() });
        guard.step(sample(2, 0.0), 0.05);
        assert!(!guard.is_open() && guard.allowance() == CoreShare::clamped(190.0), "{guard:?}");
    }

    /// A settled demand with what a workload adds to it now and then.
    fn demands() -> impl Strategy<Value = Vec<(f64, f64)>> {
        prop::collection::vec((0.0_f64..1.3, 0.0_f64..0.5), 1..200)
    }

    proptest! {
        #[test]
        fn open_only_while_half_is_left_and_never_allows_less_than_the_other_law(
            cores in 1_u32..256,
            demands in demands(),
        ) {
            let settings = GuardSettings::default();
            let (mut outright, mut by_weight) = (Guard::new(settings), Guard::new(settings));
            outright.set_yields(Yields::Outright);
            let host = f64::from(cores) * 100.0;
            for (demand, interval_s) in demands {
                let foreground = host * demand;
                let verdict = outright.step(sample(cores, foreground), interval_s);
                let other = by_weight.step(sample(cores, foreground), interval_s);
                let left = (host - foreground).max(0.0);
                prop_assert!(left < host * 0.55 || outright.is_open(), "{left} of {host}");
                if outright.is_open() {
                    prop_assert!(left >= host * 0.5 - 1e-6);
                    prop_assert_eq!((verdict.rung, verdict.allowance), (Rung::Weight, CoreShare::from_cores(cores)));
                } else {
                    prop_assert!(verdict.allowance.percent() <= (left - host * 0.05).max(0.0) + 1e-6);
                }
                prop_assert!(verdict.allowance >= other.allowance && verdict.rung <= other.rung);
            }
        }

        #[test]
        fn by_weight_the_threshold_changes_nothing(cores in 1_u32..256, demands in demands(), open_above in 0.0_f64..1.0) {
            let settings = GuardSettings { open_above: Fraction::clamped(open_above), ..GuardSettings::default() };
            let (mut guard, mut plain) = (Guard::new(settings), Guard::new(GuardSettings::default()));
            for (demand, interval_s) in demands {
                let sample = sample(cores, f64::from(cores) * 100.0 * demand);
                prop_assert_eq!(guard.step(sample, interval_s), plain.step(sample, interval_s));
            }
        }

        #[test]
        fn outright_settles_without_swinging_on_constant_demand(cores in 1_u32..64, load in 0.0_f64..1.2) {
            let mut guard = outright(cores);
            let host = f64::from(cores) * 100.0;
            let mut last = guard.step(sample(cores, host * load), 0.05);
            for _ in 0..300 {
                let next = guard.step(sample(cores, host * load), 0.05);
                prop_assert!(next.allowance >= last.allowance && !next.froze);
                last = next;
            }
            let rung = last.rung;
            let last = guard.step(sample(cores, host * load), 0.05);
            prop_assert_eq!(last.rung, rung, "settled after 15 s");
        }

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
