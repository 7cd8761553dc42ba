//! Lowers a workload's memory limit in small steps, and backs off when the workload waits for memory. In: what the
//! workload holds and its memory pressure, once a second. Out: the limit to set now. The agent's limits call it. A limit
//! that is set at once makes the kernel (or a balloon) reclaim everything at once, and the foreground stutters.
//!
//! Backing off gives back what was taken, and a quarter more than the goal. It ends there: what is beyond the goal may be granted to
//! others, and a workload whose goal is too small waits for ever, so its limit would grow without end.

use gleaner_types::units::{Bytes, Fraction};

/// Part of the goal up to which a limit backs off, also where less was in use before. Chosen: a few steps of
/// the balancer, which raises a goal that is too small.
const MOST_ABOVE_GOAL: f64 = 1.25;

/// Sizes of the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReclaimSettings {
    /// No limit goes below this.
    pub floor: Bytes,
    /// Most that one step takes, as a share of what the workload uses.
    pub step: Fraction,
    /// Share of time waiting for memory from which on the limit backs off.
    pub most_pressure: Fraction,
    /// Steps without taking anything after backing off.
    pub rest: u32,
}

impl Default for ReclaimSettings {
    /// Chosen: 2 % of what is used per second takes half of it in 35 s; 5 % of the time waiting is where a user
    /// begins to feel it; half a minute is three times the span the kernel averages pressure over.
    fn default() -> Self {
        Self {
            floor: Bytes::from_mib(256),
            step: Fraction::clamped(0.02),
            most_pressure: Fraction::clamped(0.05),
            rest: 30,
        }
    }
}

/// Memory of a workload at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryState {
    /// What it holds.
    pub used: Bytes,
    /// Share of time it waited for memory lately; `None` where it is not measured; then the steps ignore it.
    pub pressure: Option<Fraction>,
}

/// The state of a limit that is being lowered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaim {
    resting: u32,
    last: Option<Bytes>,
    /// What the limit may back off to because that was in use when it began to fall; `None` once it has come to its goal.
    began: Option<Bytes>,
}

impl Reclaim {
    /// The limit to set now, one step on the way to `goal`. Called once a second. Under pressure it is more, up to what was in use
    /// when it began to fall and some more than the goal; yet no more than a step is taken at once.
    pub fn next(&mut self, settings: &ReclaimSettings, goal: Bytes, state: MemoryState) -> Bytes {
        let goal = goal.max(settings.floor);
        let part = |share: f64| Bytes(share_of(state.used, share));
        let (eased, lowered) = (part(1.0 + 2.0 * settings.step.value()), part(1.0 - settings.step.value()));
        let began = *self.began.get_or_insert(eased);
        let limit = if state.pressure.is_some_and(|pressure| pressure >= settings.most_pressure) {
            self.resting = settings.rest;
            let most = began.max(Bytes(share_of(goal, MOST_ABOVE_GOAL)));
            eased.max(self.last.unwrap_or_default()).min(most).max(lowered).max(goal)
        } else if self.resting > 0 {
            self.resting -= 1;
            self.last.unwrap_or(goal).max(lowered).max(goal)
        } else {
            lowered.max(goal)
        };
        // Unused memory above the goal is limited at once: that takes nothing from the workload.
        let limit = if self.resting == 0 && state.used <= goal { goal } else { limit };
        if limit == goal {
            self.began = None;
        }
        self.last = Some(limit);
        limit
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of at least 0 of an amount of memory; `as` saturates"
)]
fn share_of(used: Bytes, share: f64) -> u64 {
    (used.0 as f64 * share) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn state(mib: u64, pressure: f64) -> MemoryState {
        MemoryState { used: Bytes::from_mib(mib), pressure: Some(Fraction::clamped(pressure)) }
    }

    #[test]
    fn takes_two_percent_a_step_down_to_the_goal() {
        let settings = ReclaimSettings::default();
        let mut reclaim = Reclaim::default();
        let goal = Bytes::from_mib(500);
        let mut used = 1_000;
        let mut steps = 0;
        while used > 500 {
            let limit = reclaim.next(&settings, goal, state(used, 0.0));
            assert!(limit.0 >= used * MIB / 100 * 98 - MIB, "{limit} of {used} MiB");
            used = limit.0 / MIB;
            steps += 1;
        }
        assert!((30..40).contains(&steps), "{steps}");
        assert_eq!(reclaim.next(&settings, goal, state(400, 0.0)), goal);
    }

    #[test]
    fn backs_off_under_pressure_and_rests() {
        let settings = ReclaimSettings { rest: 2, ..ReclaimSettings::default() };
        let mut reclaim = Reclaim::default();
        let goal = Bytes::from_mib(500);
        reclaim.next(&settings, goal, state(1_000, 0.0));
        let eased = reclaim.next(&settings, goal, state(980, 0.3));
        assert!(eased >= Bytes::from_mib(1_019), "{eased}");
        assert_eq!(reclaim.next(&settings, goal, state(1_000, 0.0)), eased, "rests");
        assert_eq!(reclaim.next(&settings, goal, state(1_000, 0.0)), eased, "rests");
        assert!(reclaim.next(&settings, goal, state(1_000, 0.0)) < Bytes::from_mib(1_000), "takes again");
    }

    /// Its limit grew by 4 % a second, far beyond what it was granted.
    #[test]
    fn what_waits_for_ever_is_given_back_what_was_taken_or_a_quarter_more_than_its_goal() {
        let settings = ReclaimSettings::default();
        for (goal, most) in [(500, 1_040), (900, 1_125)] {
            let mut reclaim = Reclaim::default();
            // An earlier goal, which it has come to, is forgotten.
            assert_eq!(reclaim.next(&settings, Bytes::from_mib(8_000), state(1_000, 0.0)), Bytes::from_mib(8_000));
            let mut used = Bytes::from_mib(1_000);
            for _ in 0..1_000 {
                let state = MemoryState { used, pressure: Some(Fraction::clamped(0.5)) };
                used = reclaim.next(&settings, Bytes::from_mib(goal), state);
            }
            assert!((Bytes::from_mib(most - 1)..=Bytes::from_mib(most)).contains(&used), "{used} for {goal} MiB");
        }
    }

    proptest! {
        /// Never below the goal or the floor, never more than a step below what is used.
        #[test]
        fn gentle_whatever_happens(
            goal in 0..4_000u64,
            steps in prop::collection::vec((0..8_000u64, prop::option::of(0.0..1.0f64)), 1..100),
        ) {
            let settings = ReclaimSettings::default();
            let mut reclaim = Reclaim::default();
            for (used, pressure) in steps {
                let state = MemoryState { used: Bytes::from_mib(used), pressure: pressure.map(Fraction::clamped) };
                let limit = reclaim.next(&settings, Bytes::from_mib(goal), state);
                prop_assert!(limit >= Bytes::from_mib(goal).max(settings.floor));
                if limit < Bytes::from_mib(used) {
                    prop_assert!(limit.0 as f64 >= used as f64 * MIB as f64 * 0.979);
                }
            }
        }
    }
}
