//! What one machine leaves and the next takes up.

use gleaner_types::harm::HarmInterval;
use proptest::prelude::*;

use super::tests::{budgets, slower};
use super::*;

const CPUS: u32 = 2;
const NOW: Duration = Duration::from_secs(100_000);
const POINTS: Posture = Posture::Points;
const THREE_QUARTERS: Posture = Posture::Share { percent: 75 };
const HALF: Posture = Posture::Share { percent: 50 };
const QUARTER: Posture = Posture::Share { percent: 25 };
const SPARE: Posture = Posture::Spare { cpus: 1 };

fn ladder() -> Ladder {
    Ladder::new(CPUS, Means { spare: true, points: true })
}

fn ago(minutes: u64) -> Duration {
    NOW - Duration::from_secs(minutes * 60)
}

fn known(standing: Standing, harvest_cores: f64, at: Duration) -> Known {
    let harm = match standing {
        Standing::Within => HarmInterval::new(0.2, 0.1, 0.3, 20),
        Standing::Over => HarmInterval::new(5.0, 4.0, 6.0, 20),
    };
    Known { standing, harm: harm.unwrap(), harvest_cores, at, overs: u32::from(standing == Standing::Over) }
}

/// What a machine leaves that was in a posture until so many minutes ago.
fn left(posture: Posture, minutes: u64, learnt: &[(Posture, Known)]) -> Remembered {
    Remembered { posture, since: ago(minutes), at: ago(minutes), holds: 0, learnt: learnt.to_vec() }
}

fn resumed(remembered: &Remembered) -> Posture {
    remembered.check(CPUS, NOW).unwrap();
    Protecting::resume(ladder(), remembered, NOW).posture()
}

#[test]
fn a_machine_goes_on_no_looser_than_it_ended_and_than_a_new_one_begins() {
    let within = |posture, cores| (posture, known(Standing::Within, cores, ago(10)));
    let over = |posture, minutes| (posture, known(Standing::Over, 1.0, ago(minutes)));
    assert_eq!(Protecting::new(ladder(), NOW).posture(), POINTS);
    // Tighter than the start.
    assert_eq!(resumed(&left(SPARE, 5, &[within(SPARE, 0.9)])), SPARE);
    assert_eq!(resumed(&left(HALF, 5, &[])), HALF, "nothing is known against it");
    // Looser than the start, and known to be good: it has to be proven again.
    assert_eq!(resumed(&left(Posture::Open, 5, &[within(Posture::Open, 1.9)])), POINTS);
    // The start itself is known to harm, be its bar over or not.
    for minutes in [5, 30] {
        let learnt = [within(Posture::Open, 1.9), over(POINTS, minutes)];
        assert_eq!(resumed(&left(Posture::Open, 5, &learnt)), THREE_QUARTERS);
    }
    // It had just loosened, and nothing is known of that yet.
    assert_eq!(resumed(&left(THREE_QUARTERS, 5, &[within(HALF, 0.9)])), HALF);
    // Nothing that is tight enough is good.
    let all = [POINTS, THREE_QUARTERS, HALF, SPARE, QUARTER].map(|posture| over(posture, 5));
    assert_eq!(resumed(&left(QUARTER, 5, &all)), Posture::Hold);
    assert_eq!(
        Protecting::resume(ladder(), &left(HALF, 5, &[]), NOW).chosen().to_string(),
        "the volunteer has at most 50 % of the machine, because the agent before this one learnt so much of this host (it \
         ended with at most 50 % of the machine)"
    );
}

#[test]
fn what_is_too_old_does_not_count_and_then_it_is_as_new() {
    let machine = Protecting::resume(ladder(), &left(QUARTER, 240, &[]), NOW);
    assert_eq!((machine.posture(), &machine.cause), (POINTS, &Cause::Begins));
    assert_eq!(resumed(&left(QUARTER, 239, &[])), QUARTER);
    // A good standing of that age is none; the length of a bar is remembered for longer.
    let learnt = [(HALF, known(Standing::Within, 0.9, ago(240))), (POINTS, known(Standing::Over, 1.9, ago(245)))];
    let machine = Protecting::resume(ladder(), &left(HALF, 240, &learnt), NOW);
    assert_eq!(machine.posture(), POINTS);
    assert_eq!(machine.learnt.of(POINTS).unwrap().overs, 1);
    let older = [(POINTS, known(Standing::Over, 1.9, ago(250)))];
    assert!(Protecting::resume(ladder(), &left(HALF, 240, &older), NOW).learnt.is_empty());
}

#[test]
fn a_held_volunteer_stays_held_for_the_rest_of_its_time() {
    let remembered = Remembered { holds: 2, ..left(Posture::Hold, 4, &[]) };
    let mut machine = Protecting::resume(ladder(), &remembered, NOW);
    assert_eq!(machine.posture(), Posture::Hold);
    // Held twice: ten minutes, of which four are over.
    assert_eq!(machine.tick(NOW + Duration::from_secs(359)), None);
    assert_eq!(machine.tick(NOW + Duration::from_secs(360)).unwrap().to, QUARTER);
    // What is tried then counts as held until it has kept to the budget.
    let left = machine.to_remember();
    assert_eq!((left.posture, left.holds), (Posture::Hold, 2));
    for trial in 0..9 {
        machine.trial(NOW + Duration::from_secs(400 + trial), &[slower("a", 0.1)], 0.5, &budgets());
    }
    let left = machine.to_remember();
    assert_eq!((left.posture, left.holds), (QUARTER, 0));
}

/// Its time in a posture that is not possible any more was no hold.
#[test]
fn a_volunteer_that_is_held_because_its_posture_is_gone_is_held_for_the_whole_time() {
    let without_spare = Ladder::new(8, Means { spare: false, points: false });
    let mut machine = Protecting::resume(without_spare, &left(Posture::Spare { cpus: 7 }, 60, &[]), NOW);
    assert_eq!(machine.posture(), Posture::Hold);
    assert_eq!(machine.tick(NOW + Duration::from_secs(299)), None);
    assert!(machine.tick(NOW + Duration::from_secs(300)).is_some());
}

#[test]
fn what_no_machine_of_this_host_can_have_left_is_refused() {
    let good = left(SPARE, 1, &[(SPARE, known(Standing::Within, 0.9, ago(1)))]);
    assert_eq!(good.check(CPUS, NOW), Ok(()));
    let with = |change: &dyn Fn(&mut Remembered)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad.check(CPUS, NOW).unwrap_err()
    };
    let later = NOW + Duration::from_secs(1);
    assert_eq!(good.check(1, NOW), Err(NotRemembered::Posture(SPARE)));
    assert_eq!(with(&|bad| bad.at = later), NotRemembered::Future);
    assert_eq!(with(&|bad| bad.since = later), NotRemembered::Future);
    assert_eq!(with(&|bad| bad.learnt[0].1.at = later), NotRemembered::Future);
    for percent in [0, 100, 255] {
        let posture = Posture::Share { percent };
        assert_eq!(with(&|bad| bad.posture = posture), NotRemembered::Posture(posture));
    }
    for cores in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(with(&|bad| bad.learnt[0].1.harvest_cores = cores), NotRemembered::Figure(SPARE));
    }
    assert_eq!(with(&|bad| bad.learnt[0].1.harm.low_percent = 9.0), NotRemembered::Figure(SPARE));
    assert_eq!(with(&|bad| bad.learnt.push(bad.learnt[0])), NotRemembered::Postures(2));
}

proptest! {
    /// Whatever an earlier machine went through, the next begins no looser than that one ended and than a new one, and never
    /// in a posture that went over the budget.
    #[test]
    fn nothing_that_was_learnt_loosens(
        harms in proptest::collection::vec(0.0_f64..8.0, 0..60),
        gap_s in 0_u64..20_000,
        spare in any::<bool>(),
        points in any::<bool>(),
    ) {
        let ladder = Ladder::new(4, Means { spare, points });
        let mut machine = Protecting::new(ladder.clone(), Duration::ZERO);
        let mut now = Duration::ZERO;
        for percent in harms.into_iter().flat_map(|percent| std::iter::repeat_n(percent, 10)) {
            now += Duration::from_secs(12);
            machine.tick(now);
            if machine.posture() != Posture::Hold {
                machine.trial(now, &[slower("a", percent)], 1.0, &budgets());
            }
        }
        let remembered = machine.to_remember();
        let now = now + Duration::from_secs(gap_s);
        prop_assert_eq!(remembered.check(4, now), Ok(()));
        let next = Protecting::resume(ladder.clone(), &remembered, now);
        let fresh = Protecting::new(ladder.clone(), now);
        prop_assert!(ladder.room(next.posture()) <= ladder.room(fresh.posture()));
        if !remembered.is_stale(now) {
            prop_assert!(ladder.room(next.posture()) <= ladder.room(machine.posture()));
        }
        prop_assert!(!next.learnt.went_over(next.posture(), now));
    }
}
