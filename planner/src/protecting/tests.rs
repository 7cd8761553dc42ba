//! The machine in worlds of which the harm of each posture is known, and in any sequence of trials.

use std::collections::BTreeMap;

use gleaner_types::absence::{Absence, Reason};
use gleaner_types::id::WorkloadId;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::harm::{Comparison, LEAST_TRIALS, RunTime};

const OPEN: Posture = Posture::Open;
const POINTS: Posture = Posture::Points;
const THREE_QUARTERS: Posture = Posture::Share { percent: 75 };
const HALF: Posture = Posture::Share { percent: 50 };
const QUARTER: Posture = Posture::Share { percent: 25 };
const SPARE: Posture = Posture::Spare { cpus: 1 };
const SPARES: Means = Means { spare: true, points: false };

pub(super) fn budgets() -> Budgets {
    Budgets { all_percent: 1.0, own_percent: BTreeMap::new() }
}

fn workload(name: &str) -> WorkloadId {
    WorkloadId::new(name).unwrap()
}

/// A trial in which a workload was slower by so many percent; it never waits without the volunteer.
pub(super) fn slower(name: &str, percent: f64) -> Compared {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and not negative")]
    let with = RunTime { cpu_ns: 50_000_000, wait_ns: (500_000.0 * percent) as u64 };
    let without = RunTime { cpu_ns: 50_000_000, wait_ns: 0 };
    (workload(name), Ok(Comparison::counted(with, without)))
}

/// A machine, a clock that moves 12 s a trial, and what changed.
struct Bench {
    machine: Protecting,
    now: Duration,
    budgets: Budgets,
    changes: Vec<(Duration, Change)>,
}

impl Bench {
    fn new(cpus: u32) -> Self {
        Self::of(cpus, SPARES)
    }

    fn of(cpus: u32, means: Means) -> Self {
        let machine = Protecting::new(Ladder::new(cpus, means), Duration::ZERO);
        Self { machine, now: Duration::ZERO, budgets: budgets(), changes: Vec::new() }
    }

    fn trial(&mut self, compared: &[Compared]) {
        self.now += Duration::from_secs(12);
        let harvest = self.machine.ladder().room(self.machine.posture());
        // A volunteer that does not run gives no trial.
        let change = match self.machine.posture() {
            Posture::Hold => self.machine.tick(self.now),
            _ => self.machine.trial(self.now, compared, harvest, &self.budgets),
        };
        self.changes.extend(change.map(|change| (self.now, change)));
    }

    /// So long in a world where each posture does its harm.
    fn live(&mut self, hours: u64, harm: impl Fn(Posture) -> f64) {
        let until = self.now + Duration::from_secs(hours * 3_600);
        while self.now < until {
            let percent = harm(self.machine.posture());
            self.trial(&[slower("a", percent)]);
        }
    }

    fn postures(&self) -> Vec<Posture> {
        self.changes.iter().map(|(_, change)| change.to).collect()
    }
}

#[test]
fn where_nothing_harms_it_loosens_once_that_is_known_and_says_why() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.machine.posture(), THREE_QUARTERS);
    assert_eq!(
        bench.machine.chosen().to_string(),
        "the volunteer has at most 75 % of the machine, because a volunteer begins so, before anything is measured"
    );
    bench.live(2, |_| 0.2);
    assert_eq!(
        bench.machine.chosen().to_string(),
        "the volunteer has all that the guard's law allows, because the foreground was 0.2 % ± 0.0 % slower by 13 trials, \
         below the budget of 1 %"
    );
    assert_eq!(bench.postures(), [OPEN]);
    // Eight trials, and a minute from the first that is an interval.
    assert_eq!(bench.changes[0].0, Duration::from_secs(8 * 12 + 60));
    assert_eq!(
        bench.changes[0].1.to_string(),
        "the volunteer has all that the guard's law allows (before: at most 75 % of the machine), because the foreground was \
         0.2 % ± 0.0 % slower by 13 trials, below the budget of 1 %"
    );
}

#[test]
fn it_finds_the_kind_of_protection_that_this_kernel_takes() {
    // CPUs kept free harm more than none; a share of a half does not harm.
    let packs = |posture| match posture {
        OPEN => 6.0,
        SPARE => 9.0,
        THREE_QUARTERS => 3.0,
        _ => 0.3,
    };
    let mut bench = Bench::new(2);
    bench.live(1, packs);
    assert_eq!(bench.machine.posture(), HALF);
    // Another kernel: only a CPU kept free helps.
    let spreads = |posture| if posture == SPARE { 0.2 } else { 3.0 };
    let mut bench = Bench::new(2);
    bench.live(1, spreads);
    assert_eq!(bench.machine.posture(), SPARE, "{:?}", bench.changes);
}

#[test]
fn where_scheduling_points_help_they_are_forced_and_where_they_harm_something_else_is_found() {
    let all = Means { spare: true, points: true };
    // Without them the volunteer harms: it is tried without, and they are forced again.
    let mut bench = Bench::of(2, all);
    assert_eq!(bench.machine.posture(), POINTS, "caution comes first");
    bench.live(11, |posture| if posture == POINTS { 0.3 } else { 5.0 });
    // They cost next to nothing, so it is tried without them once in four hours.
    assert_eq!(bench.postures(), [OPEN, POINTS].repeat(3), "{:?}", bench.changes);
    let said = bench.changes[1].1.to_string();
    assert!(
        said.starts_with("the volunteer has all that the guard's law allows, with forced scheduling points (before:")
    );
    // They harm, and so does every share: a CPU is kept free.
    let mut bench = Bench::of(2, all);
    bench.live(1, |posture| if posture == SPARE { 0.2 } else { 8.0 });
    assert_eq!(bench.machine.posture(), SPARE, "{:?}", bench.changes);
    // They alone harm: no CPU is kept free for it.
    let mut bench = Bench::of(2, all);
    bench.live(1, |posture| if posture == POINTS { 8.0 } else { 0.2 });
    assert_eq!(bench.machine.posture(), OPEN, "{:?}", bench.changes);
}

#[test]
fn a_looser_posture_that_cannot_be_had_leaves_the_one_before() {
    let mut bench = Bench::new(2);
    bench.live(1, |posture| if posture == SPARE { 0.2 } else { 3.0 });
    let last = bench.changes.last().unwrap().1.clone();
    assert_eq!(bench.machine.posture(), SPARE);
    // Tightened to it: without it the next that leaves no more room is in force.
    let mut tightened = Bench::new(2);
    while tightened.machine.posture() != SPARE {
        tightened.trial(&[slower("a", 3.0)]);
    }
    let change = tightened.machine.cannot(Ladder::new(2, Means::default()), tightened.now).unwrap();
    assert_eq!(change.to, HALF, "after {last}");
    // Loosened to points from there: back.
    let all = Ladder::new(2, Means { spare: true, points: true });
    assert_eq!(bench.machine.set_ladder(all, bench.now), None);
    while bench.machine.posture() != POINTS {
        bench.trial(&[slower("a", 0.2)]);
    }
    let from = bench.changes.last().unwrap().1.from;
    let change = bench.machine.cannot(Ladder::new(2, SPARES), bench.now).unwrap();
    assert_eq!((change.from, change.to), (POINTS, from), "not to a share that is over the budget");
}

#[test]
fn after_hold_the_mildest_is_tried_first() {
    // Beside a foreground that suffers from everything for a while, the points do least.
    let mut bench = Bench::of(2, Means { spare: true, points: true });
    bench.live(1, |posture| if posture == POINTS { 2.0 } else { 20.0 });
    let hold = bench.changes.iter().position(|(_, change)| change.to == Posture::Hold).unwrap();
    let after: Vec<Posture> =
        bench.postures()[hold + 1..].iter().copied().filter(|one| *one != Posture::Hold).collect();
    assert!(after.contains(&POINTS) && after.iter().filter(|one| **one != POINTS).count() <= 2, "{:?}", bench.changes);
    // That foreground goes, and with it the reason to hold.
    bench.live(4, |posture| if posture == POINTS { 0.3 } else { 20.0 });
    assert_eq!(bench.machine.posture(), POINTS, "{:?}", bench.changes);
}

#[test]
fn it_learns_fast_under_a_new_posture_and_no_longer_than_that_takes() {
    let mut bench = Bench::new(2);
    assert!(bench.machine.pace(bench.now) > 1.0);
    for _ in 0..FAST_TRIALS {
        bench.trial(&[slower("a", 1.0)]);
    }
    assert_eq!(bench.changes, []);
    assert!((bench.machine.pace(bench.now) - 1.0).abs() < f64::EPSILON, "enough is known of it");
    let mut blind = Bench::new(2);
    blind.trial(&[]);
    assert!(blind.machine.pace(blind.now) > 1.0);
    assert!((blind.machine.pace(FAST_FOR) - 1.0).abs() < f64::EPSILON, "nothing can be known");
}

#[test]
fn it_returns_to_what_kept_to_the_budget_and_tries_what_did_not_ever_less_often() {
    let mut bench = Bench::new(2);
    bench.live(24, |posture| if posture == OPEN { 4.0 } else { 0.2 });
    assert!(bench.postures().starts_with(&[OPEN, THREE_QUARTERS, OPEN, THREE_QUARTERS]), "{:?}", bench.changes);
    let said = bench.changes[1].1.to_string();
    assert!(
        said.contains("4.0 % ± 0.0 % slower by 9 trials, above the budget of 1 %; this kept to it before"),
        "{said}"
    );
    let tries = bench.postures().iter().filter(|posture| **posture == OPEN).count();
    assert!((5..=12).contains(&tries), "{tries} times in a day");
    let tried: Vec<Duration> =
        bench.changes.iter().filter(|(_, change)| change.to == OPEN).map(|(at, _)| *at).collect();
    assert!(tried.windows(3).take(3).all(|three| three[2] - three[1] > three[1] - three[0]), "{tried:?}");
}

#[test]
fn when_nothing_suffices_the_volunteer_is_held_and_tried_again_ever_later() {
    let mut bench = Bench::new(2);
    bench.live(8, |_| 50.0);
    assert_eq!(bench.postures()[..4], [HALF, SPARE, QUARTER, Posture::Hold]);
    let held: Vec<Duration> =
        bench.changes.windows(2).filter(|two| two[0].1.to == Posture::Hold).map(|two| two[1].0 - two[0].0).collect();
    assert!(held.len() > 3 && held.is_sorted() && held[0] < held[2], "{held:?}");
    assert!(held.iter().all(|held| held.as_secs() <= 3_612), "{held:?}");
    let again = bench.changes.iter().find(|(_, change)| change.from == Posture::Hold).unwrap();
    assert!(again.1.to_string().contains("it was held for 5 min 00 s and is tried again"), "{}", again.1);
}

#[test]
fn a_workload_with_a_budget_of_its_own_is_judged_by_that() {
    let both = |a, b| [slower("a", a), slower("b", b)];
    let mut bench = Bench::new(2);
    bench.budgets.all_percent = 5.0;
    bench.budgets.own_percent.insert(workload("b"), 0.5);
    for _ in 0..9 {
        bench.trial(&both(0.0, 2.0));
    }
    let (_, change) = bench.changes.last().unwrap();
    assert_eq!(change.to, HALF);
    assert!(change.to_string().contains("because b was 2.0 % ± 0.0 % slower"), "{change}");
}

#[test]
fn harm_that_begins_after_half_an_hour_without_is_seen() {
    let mut bench = Bench::new(2);
    bench.live(2, |_| 0.2);
    let calm = bench.now;
    bench.live(1, |posture| if posture == OPEN { 20.0 } else { 0.2 });
    let (at, change) = bench.changes.iter().find(|(at, _)| *at > calm).unwrap();
    assert_eq!(change.to, THREE_QUARTERS);
    assert!(*at - calm <= RECENT, "{:?}", *at - calm);
}

#[test]
fn an_idle_foreground_needs_no_protection_and_one_that_cannot_be_read_changes_nothing() {
    let mut bench = Bench::new(2);
    let unreadable: Compared = (workload("a"), Err(Absence::because(Reason::NoVolunteer)));
    for _ in 0..100 {
        bench.trial(std::slice::from_ref(&unreadable));
        bench.trial(&[]);
    }
    assert!(bench.changes.is_empty());
    let asleep: Compared = (workload("a"), Ok(Comparison::default()));
    for _ in 0..30 {
        bench.trial(std::slice::from_ref(&asleep));
    }
    assert_eq!(bench.postures(), [OPEN]);
    assert!(bench.changes[0].1.to_string().ends_with("because no foreground used CPU"));
}

#[test]
fn levers_that_are_lost_leave_the_next_tighter_posture() {
    let mut bench = Bench::new(2);
    bench.live(1, |posture| if posture == SPARE { 0.2 } else { 3.0 });
    assert_eq!(bench.machine.posture(), SPARE);
    let now = bench.now;
    let change = bench.machine.set_ladder(Ladder::new(2, Means::default()), now).unwrap();
    assert_eq!((change.to, change.cause), (HALF, Cause::HostChanged));
    assert_eq!(bench.machine.set_ladder(Ladder::new(2, Means::default()), now), None);
}

/// What one trial shows: nothing, or harm in percent.
fn shown() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![1 => Just(None), 3 => Just(Some(0.0)), 3 => (2.0_f64..40.0).prop_map(Some), 2 => (0.0_f64..2.0).prop_map(Some)]
}

/// Runs of alike trials, as a foreground has them.
pub(super) fn runs() -> impl Strategy<Value = Vec<Option<f64>>> {
    prop::collection::vec((shown(), 1_usize..25), 1..20)
        .prop_map(|runs| runs.into_iter().flat_map(|(shown, times)| vec![shown; times]).collect())
}

proptest! {
    /// The property of the whole: harm surely over the budget for more than 10 s always tightens something, until hold. And
    /// fewer trials than an interval takes never change anything.
    #[test]
    fn harm_over_the_budget_always_tightens_and_too_little_evidence_changes_nothing(
        cpus in 1_u32..130,
        spare: bool,
        points: bool,
        shown in runs(),
        gap_s in 1_u64..30,
    ) {
        let ladder = Ladder::new(cpus, Means { spare, points });
        let mut machine = Protecting::new(ladder.clone(), Duration::ZERO);
        let (mut evidence, mut over_since, mut trials) = (Evidence::default(), None, 0_u32);
        let mut now = Duration::ZERO;
        for shown in shown {
            now += Duration::from_secs(gap_s);
            let before = machine.posture();
            if before == Posture::Hold {
                let change = machine.tick(now);
                prop_assert!(change.as_ref().is_none_or(|change| change.to != Posture::Hold));
                if change.is_some() {
                    (evidence, over_since, trials) = (Evidence::default(), None, 0);
                }
                continue;
            }
            let compared: Vec<Compared> = shown.iter().map(|percent| slower("a", *percent)).collect();
            evidence.add(now, &compared, 1.0, &budgets());
            trials += u32::try_from(compared.len()).unwrap();
            let over = matches!(evidence.weigh(&budgets()), Conclusion::Over { .. });
            over_since = if over { over_since.or(Some(now)) } else { None };
            let must = over_since.is_some_and(|since: Duration| now - since >= OVER_FOR);
            match machine.trial(now, &compared, 1.0, &budgets()) {
                Some(change) => {
                    prop_assert!(trials >= LEAST_TRIALS, "{change} by {trials} trials");
                    let tighter = change.to == Posture::Hold || ladder.after(before).contains(&change.to);
                    prop_assert_eq!(tighter, must, "{}", change);
                    prop_assert!(!tighter || ladder.room(change.to) <= ladder.room(before));
                    prop_assert_eq!((change.from, change.to), (before, machine.posture()));
                    (evidence, over_since, trials) = (Evidence::default(), None, 0);
                }
                None => prop_assert!(!must, "{before} stayed at {now:?}"),
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// In a world that does not change, with the noise of real trials, it settles: ten hours have few changes, and little of
    /// them is over the budget.
    #[test]
    fn in_a_world_that_stays_it_settles(seed: u64, cpus in 1_u32..9, harms in prop::collection::vec(0.0_f64..8.0, 24)) {
        let ladder = Ladder::new(cpus, SPARES);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut unit = || (f64::from(random.next_u32()) + 1.0) / (f64::from(u32::MAX) + 2.0);
        let harm = |posture: Posture| {
            let place = ladder.running().iter().position(|one| *one == posture).unwrap_or(0);
            // Nobody can keep what is just at the budget off it, or on it.
            let harm = harms[place % harms.len()];
            if harm < 1.0 { harm / 4.0 } else { harm + 1.0 }
        };
        let mut bench = Bench::new(cpus);
        let mut over = 0;
        for _ in 0..3_000 {
            let posture = bench.machine.posture();
            let percent = harm(posture);
            over += u32::from(posture != Posture::Hold && percent > 1.0);
            let noisy = percent * (0.5 + unit());
            bench.trial(&[slower("a", noisy)]);
        }
        let rungs = ladder.running().len() + 1;
        prop_assert!(bench.changes.len() <= 12 * rungs, "{} changes: {:?}", bench.changes.len(), bench.postures());
        prop_assert!(over < 3_000 / 4, "{over} of 3000 trials over the budget: {:?}", bench.postures());
    }
}
