use gleaner_types::id::HostId;
use gleaner_types::job::PowerModel;
use proptest::prelude::*;

use super::*;
use crate::io_model::{IoModel, IoPoint};

fn offers(percents: &[f64]) -> Vec<Offer> {
    let host = HostId::new("h").unwrap();
    percents.iter().map(|p| Offer { host: host.clone(), slots: 1, potential: CoreShare::new(*p).unwrap() }).collect()
}

/// Half the job is left; R_proc makes 100 % take 1,000 s for the whole of it.
fn sizing(goal: Goal, offers: &[Offer]) -> Sizing<'_> {
    let deadline_in_s = match goal {
        Goal::Deadline { within_s } => Some(within_s),
        Goal::Cost { .. } | Goal::Energy => None,
    };
    Sizing {
        goal,
        deadline_in_s,
        evaluation_interval_s: 0.0,
        margins: Margins::ONE_HOST,
        prices: Prices::default(),
        spent: Dollars::ZERO,
        remaining: Fraction::new(0.5).unwrap(),
        rate: 1e-5,
        response: Response::Yield(1.0),
        energy: None,
        mean_task_s: 0.0,
        tail: Tail { mean_s: 0.0, variation: 0.0, sure: 0.5, lost_s: 0.0 },
        unfinished: u32::MAX,
        dedicated_slots: 1,
        set_up_s: 0.0,
        dedicated: 1,
        dedicated_potential: CoreShare::new(100.0).unwrap(),
        offers,
        current: 0,
        useful: u32::MAX,
    }
}

#[test]
fn a_deadline_takes_the_fewest_that_meet_it() {
    // 100 %: 500 s; 200 %: 250 s; 300 %: 166.7 s; 400 %: 125 s.
    let offers = offers(&[100.0, 100.0, 100.0]);
    let choice = sizing(Goal::Deadline { within_s: 260.0 }, &offers).decide();
    assert_eq!((choice.size, choice.bound), (1, Bound::Deadline));
    assert!((choice.chosen.completion_s - 250.0).abs() < 1e-9);
    let choice = sizing(Goal::Deadline { within_s: 600.0 }, &offers).decide();
    assert_eq!((choice.size, choice.bound), (0, Bound::DeadlineWithDedicatedAlone));
    let choice = sizing(Goal::Deadline { within_s: 100.0 }, &offers).decide();
    assert_eq!((choice.size, choice.bound), (3, Bound::DeadlineOutOfReach));
}

#[test]
fn a_deadline_that_is_met_without_its_margin_is_not_called_missed() {
    let offers = offers(&[100.0, 100.0, 100.0]);
    let mut problem = sizing(Goal::Deadline { within_s: 130.0 }, &offers);
    problem.evaluation_interval_s = 60.0;
    let choice = problem.decide();
    assert_eq!((choice.size, choice.bound), (3, Bound::DeadlineOutOfReach));
    let reason = problem.reason(&choice);
    assert_eq!(
        reason,
        "closest with 3 volunteers: done in 2 min 05 s, deadline in 2 min 10 s, which leaves less than the margin of 30 s"
    );
    problem.deadline_in_s = Some(170.0);
    let reason = problem.reason(&problem.decide());
    // Two would be done in 167 s.
    assert_eq!(
        reason,
        "3 volunteers: done in 2 min 05 s, deadline in 2 min 50 s; fewer would leave less than the margin of 30 s"
    );
    problem.deadline_in_s = Some(100.0);
    let reason = problem.reason(&problem.decide());
    assert_eq!(reason, "closest with 3 volunteers: done in 2 min 05 s, but the deadline is in 1 min 40 s");
}

#[test]
fn padding_and_set_up_count() {
    let offers = offers(&[100.0, 100.0]);
    let mut problem = sizing(Goal::Deadline { within_s: 260.0 }, &offers);
    (problem.mean_task_s, problem.tail.lost_s) = (5.0, 5.0);
    problem.set_up_s = 10.0;
    // One works after 10 s, which is 255 s, and 5 s of padding: late. Two are done after 10 + 163.3 + 5 s.
    assert_eq!(problem.decide().size, 2);
}

#[test]
fn cost_by_hand() {
    // Dedicated $1/h, volunteers $0.42/h at 100 % each: cost(n) = 500/(1+n) s × (1 + 0.42 n) / 3600 falls with n.
    let offers = offers(&[100.0, 100.0, 100.0]);
    let choice = sizing(Goal::Cost { budget: None }, &offers).decide();
    assert_eq!((choice.size, choice.bound), (3, Bound::PoolExhausted));
    let expected = 125.0 * (1.0 + 3.0 * 0.42) / 3600.0;
    assert!((choice.chosen.cost.amount() - expected).abs() < 1e-12);
    // Volunteers that give a tenth of a core each are not worth their price.
    let poor = self::offers(&[10.0, 10.0]);
    let choice = sizing(Goal::Cost { budget: None }, &poor).decide();
    assert_eq!((choice.size, choice.bound), (0, Bound::Cost));
}

#[test]
fn a_budget_buys_the_earliest_completion_it_can() {
    // cost(n) with 30 % volunteers: 0: 0.1389, 1: 0.1517 (384.6 s), 2: 0.1597 (312.5 s) dollars.
    let offers = offers(&[30.0, 30.0]);
    let budget = |amount: f64| Goal::Cost { budget: Some(Dollars::clamped(amount)) };
    let choice = sizing(budget(0.155), &offers).decide();
    assert_eq!((choice.size, choice.bound), (1, Bound::Budget));
    let choice = sizing(budget(0.1), &offers).decide();
    assert_eq!((choice.size, choice.bound), (0, Bound::BudgetOutOfReach));
    assert!(!choice.chosen.meets_goal);
}

#[test]
fn energy_by_hand() {
    let offers = offers(&[100.0, 100.0, 100.0]);
    let mut problem = sizing(Goal::Energy, &offers);
    assert!(!problem.decide().chosen.meets_goal, "without a power model nothing is known");
    let model = |idle_w, per_load_w| PowerModel {
        idle_w,
        per_load_w,
        per_load_squared_w: 0.0,
        per_load_ghz_w: 0.0,
        base_ghz: 0.0,
    };
    let power = PowerModels { dedicated: model(60.0, 40.0), interactive: model(60.0, 80.0) };
    let (host, foreground) = (CoreShare::new(200.0).unwrap(), 0.1);
    problem.energy = Some(Energy {
        power,
        spent_wh: 5.0,
        interactive: (host, foreground),
        dedicated_cpu: CoreShare::new(100.0).unwrap(),
    });
    // Dedicated 100 W, each volunteer half of its host: 40 W. n volunteers: 500/(1+n) s × (100 + 40 n) W.
    let choice = problem.decide();
    assert_eq!((choice.size, choice.bound), (3, Bound::PoolExhausted));
    assert!((choice.chosen.energy_wh.unwrap() - (5.0 + 125.0 * 220.0 / 3_600.0)).abs() < 1e-9);
}

#[test]
fn a_saturated_cluster_grows_no_more() {
    // 100 % gives 80 %, 200 % gives 140 % with the disks full: a second volunteer costs and brings nothing.
    let point = |potential, actual, disk| IoPoint {
        at_s: 0.0,
        potential: CoreShare::clamped(potential),
        actual: CoreShare::clamped(actual),
        disk: Some(Fraction::clamped(disk)),
    };
    let mut model = IoModel::default();
    model.observe(point(100.0, 80.0, 0.55));
    model.observe(point(200.0, 140.0, 1.0));
    let (offers, curve) = (offers(&[100.0; 5]), model.curve(0.0).unwrap());
    let mut problem = sizing(Goal::Cost { budget: None }, &offers);
    problem.response = Response::Curve(&curve);
    let choice = problem.decide();
    assert_eq!((choice.size, choice.bound), (1, Bound::Cost));
    assert_eq!(choice.candidates[5].predicted, CoreShare::clamped(140.0));
}

#[test]
fn a_change_that_saves_next_to_nothing_is_not_made() {
    let offers = offers(&[42.3, 42.3]);
    let mut problem = sizing(Goal::Cost { budget: None }, &offers);
    // Each brings 42.3 % for 42 % of the price: both sizes cost within a thousandth of each other.
    problem.current = 1;
    let choice = problem.decide();
    assert_eq!((choice.size, choice.bound), (1, Bound::Transition));
}

#[test]
fn tasks_left_bound_the_size() {
    let offers = offers(&[100.0, 100.0, 100.0]);
    let mut problem = sizing(Goal::Cost { budget: None }, &offers);
    problem.useful = 1;
    let choice = problem.decide();
    assert_eq!((choice.size, choice.bound, choice.considered), (1, Bound::TasksLeft, 2));
}

#[test]
fn slots_without_a_task_do_nothing() {
    let offers = offers(&[100.0; 3]);
    let mut problem = sizing(Goal::Cost { budget: None }, &offers);
    problem.unfinished = 2;
    let candidates = problem.decide().candidates;
    let predicted: Vec<CoreShare> = candidates.iter().map(|candidate| candidate.predicted).collect();
    assert_eq!(predicted, [100.0, 200.0, 200.0, 200.0].map(CoreShare::clamped));
    // An engine that tells of no tasks, or whose last one ends, has work left all the same.
    problem.unfinished = 0;
    assert!(problem.decide().candidates.iter().all(|candidate| candidate.completion_s < 1e6));
}

#[test]
fn a_worker_is_not_sent_away_to_be_called_back() {
    let offers = offers(&[100.0, 100.0]);
    // One volunteer needs 250 s and the plan aims at 251.2 s: too close to leave two for.
    let mut problem = sizing(Goal::Deadline { within_s: 259.0 }, &offers);
    problem.current = 2;
    let choice = problem.decide();
    assert_eq!((choice.size, choice.bound), (2, Bound::Transition));
    problem.deadline_in_s = Some(280.0);
    assert_eq!(problem.decide().size, 1);
}

#[test]
fn a_record_of_many_candidates_is_short_and_has_the_chosen_one() {
    let offers = offers(&[10.0; 2_000]);
    let choice = sizing(Goal::Deadline { within_s: 9.0 }, &offers).decide();
    assert_eq!(choice.considered, 2_001);
    assert!(choice.candidates.len() <= Decision::MAX_CANDIDATES);
    assert!(choice.candidates.contains(&choice.chosen));
    assert!(choice.candidates.is_sorted_by_key(|candidate| candidate.size));
}

proptest! {
    #[test]
    fn more_potential_never_finishes_later_and_late_never_wins(
        percents in prop::collection::vec(5.0..100.0f64, 0..60),
        within_s in -100.0..2000.0f64,
        current in 0..70u32,
        mean_task_s in 0.0..50.0f64,
        yield_ratio in 0.1..1.0f64,
    ) {
        let mut offers = offers(&percents);
        offers.sort_by(|a, b| b.potential.total_cmp(&a.potential));
        let mut problem = sizing(Goal::Deadline { within_s }, &offers);
        (problem.current, problem.mean_task_s, problem.tail.lost_s) = (current, mean_task_s, mean_task_s);
        problem.response = Response::Yield(yield_ratio);
        let choice = problem.decide();
        prop_assert!(choice.size as usize <= offers.len());
        let all: Vec<_> = choice.candidates.iter().filter(|c| c.size > current).collect();
        prop_assert!(all.windows(2).all(|pair| pair[1].completion_s <= pair[0].completion_s));
        if choice.candidates.iter().any(|c| c.meets_goal) {
            prop_assert!(choice.chosen.meets_goal);
        }
        // No thrash: deciding again at the size just chosen keeps it.
        problem.current = choice.size;
        let again = problem.decide();
        prop_assert!(again.size <= choice.size);
    }

    #[test]
    fn no_input_gives_a_number_that_is_not_one(
        remaining in 0.0..1.0f64, rate in 0.0..1.0f64, spent in 0.0..1e12f64, potential in 0.0..1e6f64,
    ) {
        let offers = offers(&[potential]);
        let mut problem = sizing(Goal::Cost { budget: None }, &offers);
        (problem.remaining, problem.rate) = (Fraction::clamped(remaining), rate);
        (problem.spent, problem.dedicated_potential) = (Dollars::clamped(spent), CoreShare::ZERO);
        let choice = problem.decide();
        prop_assert!(choice.candidates.iter().all(|c| c.score.is_finite() && c.completion_s.is_finite()));
    }
}
