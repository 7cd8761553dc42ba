//! Searches over sizes when trying every one is too much: simulated annealing over volunteers, and over volunteers
//! and dedicated hosts together (RHIC §4.1 mentions the former; the latter is ours).
//! In: the sizes that are allowed and what each costs. Out: the cheapest that was found. Called by [`crate::snapshot`] alone,
//! to compare with the controller's own search.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::goal::Score;

/// Moves of a search. Chosen: enough that both dimensions of a thousand are found in the tests.
const MOVES: u32 = 600;

/// The best of all points of a grid of `0..=largest` volunteers times the given numbers of dedicated hosts, by
/// trying all. `None` when there is no number of dedicated hosts to choose from.
pub fn exhaustive(
    dedicated: impl Iterator<Item = u32>,
    largest: u32,
    mut score: impl FnMut(u32, u32) -> Score,
) -> Option<(u32, u32)> {
    let mut best: Option<((u32, u32), Score)> = None;
    for hosts in dedicated {
        for volunteers in 0..=largest {
            let found = score(hosts, volunteers);
            if best.as_ref().is_none_or(|(_, known)| found.beats(*known)) {
                best = Some(((hosts, volunteers), found));
            }
        }
    }
    best.map(|(point, _)| point)
}

/// A good point of `least..=most` dedicated hosts times `0..=largest` volunteers, by simulated annealing: moves
/// shrink from half the range to one, worse points are taken ever less often. Equal seeds give equal answers. The
/// best point met is returned, so it is never worse than where it began.
pub fn annealing(
    seed: u64,
    (least, most): (u32, u32),
    largest: u32,
    begin: (u32, u32),
    mut score: impl FnMut(u32, u32) -> Score,
) -> (u32, u32) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut unit = || f64::from(random.next_u32()) / (f64::from(u32::MAX) + 1.0);
    let clamp = |(hosts, volunteers): (u32, u32)| (hosts.clamp(least, most.max(least)), volunteers.min(largest));
    let mut here = clamp(begin);
    let mut value = score(here.0, here.1);
    let (mut best, mut best_value) = (here, value);
    for step in 0..MOVES {
        let heat = 1.0 - f64::from(step) / f64::from(MOVES);
        let reach = |range: u32| 1.0 + f64::from(range) / 2.0 * heat * heat;
        let shifted = |from: u32, by: f64| {
            let to = (f64::from(from) + by).round().max(0.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
            {
                to as u32
            }
        };
        let by = |range: u32, unit: f64| (2.0 * unit - 1.0) * reach(range);
        let next =
            clamp((shifted(here.0, by(most.saturating_sub(least), unit())), shifted(here.1, by(largest, unit()))));
        let found = score(next.0, next.1);
        // A worse one is taken with a probability that falls with heat and with how much worse it is.
        let worse = (found.value - value.value) / value.value.abs().max(f64::MIN_POSITIVE);
        let equal_kind = found.meets_goal == value.meets_goal;
        if found.beats(value) || (equal_kind && unit() < (-worse / (0.2 * heat * heat).max(1e-9)).exp()) {
            (here, value) = (next, found);
        }
        if found.beats(best_value) {
            (best, best_value) = (next, found);
        }
    }
    // The last steps downhill are certain, not random.
    loop {
        let around = [(0, 1), (0, -1), (1, 0), (-1, 0)].map(|(hosts, volunteers): (i32, i32)| {
            clamp((best.0.saturating_add_signed(hosts), best.1.saturating_add_signed(volunteers)))
        });
        let Some((point, found)) =
            around.into_iter().map(|point| (point, score(point.0, point.1))).find(|(_, found)| found.beats(best_value))
        else {
            return best;
        };
        (best, best_value) = (point, found);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A valley with its floor at (5, 700), and a cliff: fewer than 3 dedicated hosts miss the goal.
    fn valley(hosts: u32, volunteers: u32) -> Score {
        let (dx, dy) = (f64::from(hosts) - 5.0, f64::from(volunteers) - 700.0);
        Score { meets_goal: hosts >= 3, value: 10.0 + dx * dx + dy * dy / 1e3 }
    }

    #[test]
    fn both_searches_find_the_floor() {
        assert_eq!(exhaustive(1..=20, 1_000, valley), Some((5, 700)));
        assert_eq!(exhaustive(std::iter::empty(), 10, valley), None);
        for seed in 0..20 {
            assert_eq!(annealing(seed, (1, 20), 1_000, (1, 0), valley), (5, 700), "seed {seed}");
        }
    }

    proptest! {
        #[test]
        fn annealing_is_never_worse_than_its_beginning(seed: u64, hosts in 1..20u32, volunteers in 0..1_000u32) {
            let found = annealing(seed, (1, 20), 1_000, (hosts, volunteers), valley);
            prop_assert!(!valley(hosts, volunteers).beats(valley(found.0, found.1)));
            prop_assert_eq!(found, annealing(seed, (1, 20), 1_000, (hosts, volunteers), valley));
        }
    }
}
