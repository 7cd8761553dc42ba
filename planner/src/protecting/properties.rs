//! Properties that hold for any sequence of trials, checked without the estimates of the code under test.
//! In: drawn sequences of trials. Out: the first that breaks a rule. Called by `cargo test`.

use proptest::prelude::*;

use super::tests::{budgets, runs, slower};
use super::*;
use crate::harm::LEAST_TRIALS;

/// How long a posture that went over the budget is not tried, at least: what the docs say.
const BARRED_FOR: Duration = Duration::from_secs(600);

/// A machine fed with trials, at most `gap_s` apart.
struct Fed {
    machine: Protecting,
    now: Duration,
    gap: Duration,
    /// Trials under the posture in force.
    trials: u32,
}

impl Fed {
    fn new(ladder: Ladder, gap_s: u64) -> Self {
        let machine = Protecting::new(ladder, Duration::ZERO);
        Self { machine, now: Duration::ZERO, gap: Duration::from_secs(gap_s), trials: 0 }
    }

    /// One trial, or where the volunteer is held the time of one.
    fn feed(&mut self, shown: Option<f64>) -> Option<Change> {
        self.now += self.gap;
        let change = if self.machine.posture() == Posture::Hold {
            self.machine.tick(self.now)
        } else {
            let compared: Vec<Compared> = shown.iter().map(|percent| slower("a", *percent)).collect();
            self.trials += u32::from(shown.is_some());
            self.machine.trial(self.now, &compared, 1.0, &budgets())
        };
        if change.is_some() {
            self.trials = 0;
        }
        change
    }
}

fn is_tighter(ladder: &Ladder, change: &Change) -> bool {
    change.to == Posture::Hold || ladder.after(change.from).contains(&change.to)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever came before: once every trial shows at least twice the budget, something is tightened as soon as the last
    /// five minutes hold nothing else and there were enough trials, and from then on nothing is loosened until the volunteer
    /// is held. Within a bounded time it is.
    #[test]
    fn harm_that_stays_tightens_everything_until_the_volunteer_is_held(
        cpus in 1_u32..130,
        spare: bool,
        points: bool,
        before in runs(),
        harm in 2.0_f64..50.0,
        noise in prop::collection::vec(0.8_f64..1.2, 1..50),
        gap_s in 1_u64..30,
    ) {
        let ladder = Ladder::new(cpus, Means { spare, points });
        let mut fed = Fed::new(ladder.clone(), gap_s);
        for shown in before {
            fed.feed(shown);
        }
        let began = fed.now;
        let mut noise = noise.into_iter().cycle().map(|noise| Some(harm * noise));
        let one_step = Duration::from_secs(gap_s) * (LEAST_TRIALS + 1) + OVER_FOR;
        let first = RECENT + one_step;
        let mut tightened = false;
        // Each rung takes one step at most; a loosening before the first may add one rung.
        let rungs = u32::try_from(ladder.running().len()).unwrap() + 1;
        while fed.machine.posture() != Posture::Hold {
            let change = fed.feed(noise.next().unwrap());
            if let Some(change) = &change {
                let tighter = is_tighter(&ladder, change);
                prop_assert!(tighter || !tightened, "{change}");
                tightened |= tighter;
            }
            let lasted = fed.now - began;
            prop_assert!(tightened || lasted <= first, "nothing tightened in {lasted:?}");
            prop_assert!(lasted <= first + one_step * rungs, "not held after {lasted:?}");
        }
    }

    /// In any sequence: it begins with caution; nothing changes on little evidence or in haste; a posture that went over the
    /// budget is not tried again before its time but from hold; and every choice says why.
    #[test]
    fn choices_are_careful_slow_and_explained(
        cpus in 1_u32..130,
        spare: bool,
        points: bool,
        shown in runs(),
        gap_s in 1_u64..30,
    ) {
        let ladder = Ladder::new(cpus, Means { spare, points });
        let mut fed = Fed::new(ladder.clone(), gap_s);
        let begins = fed.machine.posture();
        prop_assert!(begins == Posture::Points || ladder.room(begins) <= f64::from(cpus.max(1)) * 0.75);
        let mut went_over: Vec<(Posture, Duration)> = Vec::new();
        let mut since = Duration::ZERO;
        for shown in shown {
            let trials = fed.trials + u32::from(shown.is_some());
            let Some(change) = fed.feed(shown) else { continue };
            let lasted = fed.now - since;
            since = fed.now;
            let said = change.to_string();
            let begins = format!("the volunteer has {} (before: {}), because ", change.to, change.from);
            prop_assert!(said.starts_with(&begins), "{said}");
            prop_assert_eq!(&fed.machine.chosen().cause, &change.cause);
            prop_assert_ne!(change.from, change.to);
            match &change.cause {
                Cause::Over { harm, budget_percent, .. } => {
                    prop_assert!(is_tighter(&ladder, &change) && harm.low_percent > *budget_percent, "{}", said);
                    prop_assert!(trials >= LEAST_TRIALS && lasted >= OVER_FOR, "{said} after {lasted:?}");
                    went_over.push((change.from, fed.now));
                }
                Cause::Within { harm, budget_percent } => {
                    prop_assert!(ladder.room(change.to) > ladder.room(change.from) && harm.high_percent < *budget_percent);
                    prop_assert!(trials >= LEAST_TRIALS && lasted >= WITHIN_FOR, "{said} after {lasted:?}");
                }
                Cause::NoForeground => prop_assert!(trials >= LEAST_TRIALS && lasted >= WITHIN_FOR, "{said} after {lasted:?}"),
                Cause::HeldLongEnough { .. } => prop_assert!(lasted >= HELD_FOR.0, "{said} after {lasted:?}"),
                Cause::Begins | Cause::Resumed { .. } | Cause::HostChanged => prop_assert!(false, "{said}"),
            }
            if change.from != Posture::Hold && change.to != Posture::Hold {
                let last = went_over.iter().rev().find(|(posture, _)| *posture == change.to);
                if let Some((_, at)) = last {
                    prop_assert!(fed.now - *at >= BARRED_FOR, "{said} {:?} after it went over", fed.now - *at);
                }
            }
            // What it did when it was tried last is what counts.
            went_over.retain(|(posture, _)| *posture != change.to);
        }
    }
}
