//! What counts of two models, by hand and for any choice.

use std::collections::BTreeMap;

use gleaner_types::id::JobId;
use gleaner_types::job::Prices;
use gleaner_types::stages::{Stage, StageOnHost, StagesSeen};
use gleaner_types::units::{Bytes, CoreShare, Dollars, Fraction};
use proptest::prelude::*;

use super::*;
use crate::goal::Margins;
use crate::progress::Tail;
use crate::sizing::Response;

fn id(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

fn offers(names: &[&str]) -> Vec<Offer> {
    names.iter().map(|name| Offer { host: id(name), slots: 1, potential: CoreShare::from_cores(1) }).collect()
}

/// Half of the job is left. By its rate one core takes 200 s for that, beside one dedicated host.
fn sizing(within_s: f64, offers: &[Offer], current: u32) -> Sizing<'_> {
    Sizing {
        goal: Goal::Deadline { within_s },
        deadline_in_s: Some(within_s),
        evaluation_interval_s: 0.0,
        margins: Margins::CLUSTER,
        prices: Prices::default(),
        spent: Dollars::ZERO,
        remaining: Fraction::clamped(0.5),
        rate: 2.5e-5,
        response: Response::Yield(1.0),
        energy: None,
        mean_task_s: 4.0,
        tail: Tail { mean_s: 0.0, variation: 0.0, sure: 0.5, lost_s: 0.0 },
        unfinished: u32::MAX,
        dedicated_slots: 1,
        set_up_s: 10.0,
        dedicated: 1,
        dedicated_potential: CoreShare::from_cores(1),
        offers,
        current,
        useful: u32::MAX,
    }
}

fn worker(name: &str, is_volunteer: bool) -> Worker {
    let price = DollarsPerHour::clamped(1.0);
    Worker { host: id(name), slots: 1, potential: CoreShare::from_cores(1), is_volunteer, price }
}

fn stage(number: u32, tasks: u32, task_s: f64, done: &[(&str, u32)]) -> Stage {
    let own = |(name, done): &(&str, u32)| {
        let time_s = task_s * f64::from(*done);
        (id(name), StageOnHost { done: *done, ended: *done, task_s: time_s, ..StageOnHost::default() })
    };
    let sum: u32 = done.iter().map(|(_, done)| done).sum();
    let written = Bytes::from_mib(sum.into());
    let hosts: BTreeMap<HostId, StageOnHost> = done.iter().map(own).collect();
    Stage { id: number, tasks, done: sum, runs: sum, shuffle_written: written, hosts, ..Stage::default() }
}

fn consulted(sizing: &Sizing<'_>, stages: Vec<Stage>, working: &[Worker]) -> Choice {
    let (job, stages) = (JobId::new("j").unwrap(), StagesSeen { stages, hands_over: Some(false) });
    let tasks_left = stages.stages.iter().map(|own| own.tasks - own.done).sum();
    let seen = Seen { job: &job, stages: &stages, tasks_left, mean_task_s: Some(4.0), working };
    consult(sizing, sizing.decide(), Asked { seen, waiting_s: 0.0 })
}

fn predicted(choice: &Choice) -> &StagePrediction {
    let Some(StageOpinion::Predicted(found)) = &choice.stages else { panic!("{:?}", choice.stages) };
    found
}

#[test]
fn models_that_agree_leave_the_choice_to_the_rate() {
    let offers = offers(&["a", "b"]);
    // 50 tasks of 4 s on one core, as the rate says: 200 s.
    let sizing = sizing(215.0, &offers, 0);
    let choice = consulted(&sizing, vec![stage(0, 100, 4.0, &[("d", 50)])], &[worker("d", false)]);
    assert_eq!(Choice { stages: None, ..choice.clone() }, sizing.decide());
    let found = predicted(&choice);
    assert_eq!((found.decided_by, found.rate_size, found.stages_size), (DecidedBy::Rate, 0, Some(0)));
    assert!((found.of(0).unwrap().completion_s - 200.0).abs() < 1e-6 && found.meets_goal, "{found:?}");
    // Two cores from 10 s on: 26 and 24 tasks.
    assert!((found.of(1).unwrap().completion_s - 106.0).abs() < 2.0, "{found:?}");
}

/// A stage that is still to come, of tasks like those before, is no news to the rate; one whose tasks take three times as long is.
#[test]
fn the_stages_object_where_the_tasks_that_are_left_take_longer() {
    let offers = offers(&["a", "b", "c"]);
    let sizing = sizing(215.0, &offers, 0);
    let left = |task_s| vec![stage(0, 50, 4.0, &[("d", 50)]), stage(1, 60, task_s, &[("d", 10)])];
    let same = consulted(&sizing, left(4.0), &[worker("d", false)]);
    assert_eq!((same.size, predicted(&same).decided_by), (0, DecidedBy::Rate));
    // 50 tasks of 12 s: 600 s alone, three volunteers from 10 s on would do.
    let longer = consulted(&sizing, left(12.0), &[worker("d", false)]);
    let found = predicted(&longer);
    assert_eq!((longer.size, longer.bound, found.decided_by), (3, Bound::Stages, DecidedBy::Stages));
    assert_eq!((found.rate_size, found.stages_size, found.meets_goal), (0, Some(3), true));
    let reason = sizing.reason(&longer);
    assert!(
        reason.starts_with("3 volunteers: by the model of its stages done in 1") && reason.contains("rate"),
        "{reason}"
    );
}

#[test]
fn a_host_whose_output_would_be_made_again_too_late_is_kept() {
    let offers = offers(&["a"]);
    // The rate alone gives the volunteer back, as 200 s are left for 200 s of work. But it has 40 finished tasks of those before.
    let sizing = sizing(215.0, &offers, 1);
    assert_eq!(sizing.decide().size, 0);
    let working = [worker("d", false), worker("a", true)];
    let stages = vec![stage(0, 80, 4.0, &[("d", 40), ("a", 40)]), stage(1, 60, 4.0, &[("d", 5), ("a", 5)])];
    let choice = consulted(&sizing, stages, &working);
    let found = predicted(&choice);
    assert_eq!((choice.size, choice.bound, found.rate_size), (1, Bound::Stages, 0), "{found:?}");
    assert_eq!((found.of(0).unwrap().again, found.of(1).unwrap().again), (40, 0));
    // What a size of none costs: 40 map tasks, then 50 reduce tasks, all alone.
    assert!((found.of(0).unwrap().completion_s - 4.0 * 90.0).abs() < 1e-6, "{found:?}");
    // With time for both it is given back.
    let mut patient = sizing.clone();
    (patient.goal, patient.deadline_in_s) = (Goal::Deadline { within_s: 500.0 }, Some(500.0));
    let stages = vec![stage(0, 80, 4.0, &[("d", 40), ("a", 40)]), stage(1, 60, 4.0, &[("d", 5), ("a", 5)])];
    assert_eq!(consulted(&patient, stages, &working).size, 0);
}

/// Both models see 200 s of work for the dedicated host alone; the volunteer has nothing that would be lost.
#[test]
fn a_host_is_given_back_only_with_a_reserve() {
    let offers = offers(&["a"]);
    let kept = |within_s: f64, useful: u32| {
        let sizing = Sizing { useful, ..sizing(within_s, &offers, 1) };
        let by_rate = sizing.decide().size;
        let stages = vec![stage(0, 100, 4.0, &[("d", 50)])];
        let choice = consulted(&sizing, stages, &[worker("d", false), worker("a", true)]);
        (by_rate, choice.size, predicted(&choice).decided_by)
    };
    assert_eq!(kept(215.0, u32::MAX), (0, 1, DecidedBy::Stages));
    assert_eq!(kept(240.0, u32::MAX), (0, 0, DecidedBy::Rate));
    // It has no task.
    assert_eq!(kept(215.0, 0), (0, 0, DecidedBy::Rate));
}

/// The rate sees no task for a volunteer any more; but without it the last ones wait for its output.
#[test]
fn a_host_without_a_task_is_kept_for_its_output() {
    let offers = offers(&["a"]);
    let sizing = Sizing { remaining: Fraction::clamped(0.05), useful: 0, ..sizing(60.0, &offers, 1) };
    let by_rate = sizing.decide();
    assert_eq!((by_rate.size, by_rate.candidates.len()), (0, 1));
    let stages = vec![stage(0, 80, 4.0, &[("d", 40), ("a", 40)]), stage(1, 60, 4.0, &[("d", 29), ("a", 29)])];
    let choice = consulted(&sizing, stages, &[worker("d", false), worker("a", true)]);
    let found = predicted(&choice);
    assert_eq!(
        (choice.size, choice.bound, found.rate_size, found.stages_size),
        (1, Bound::Stages, 0, Some(1)),
        "{found:?}"
    );
    assert_eq!(choice.candidates.iter().map(|own| own.size).collect::<Vec<_>>(), [0, 1]);
    // 40 map tasks and two reduce tasks.
    assert!((found.of(0).unwrap().completion_s - 4.0 * 42.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn where_no_size_is_in_time_the_earliest_is_taken_and_said() {
    let offers = offers(&["a", "b"]);
    let sizing = sizing(215.0, &offers, 0);
    let stages = vec![stage(0, 50, 4.0, &[("d", 50)]), stage(1, 60, 40.0, &[("d", 10)])];
    let choice = consulted(&sizing, stages, &[worker("d", false)]);
    let found = predicted(&choice);
    assert_eq!((choice.size, found.stages_size, found.meets_goal), (2, None, false), "{found:?}");
}

#[test]
fn what_is_unknown_leaves_the_choice_alone_and_other_goals_are_not_decided() {
    let offers = offers(&["a"]);
    let mut sizing = sizing(215.0, &offers, 0);
    let choice = consulted(&sizing, vec![], &[worker("d", false)]);
    assert_eq!(Choice { stages: None, ..choice.clone() }, sizing.decide());
    assert_eq!(choice.stages, Some(StageOpinion::Unknown { reason: "no stage runs or waits".into() }));
    (sizing.goal, sizing.deadline_in_s) = (Goal::Cost { budget: None }, None);
    let long = vec![stage(0, 60, 400.0, &[("d", 10)])];
    let choice = consulted(&sizing, long, &[worker("d", false)]);
    assert_eq!(Choice { stages: None, ..choice.clone() }, sizing.decide());
    assert_eq!((predicted(&choice).decided_by, predicted(&choice).stages_size), (DecidedBy::Rate, None));
}

#[test]
fn of_many_sizes_the_rate_s_and_some_larger_ones_are_asked_about() {
    let names: Vec<String> = (0..3_000).map(|host| format!("h{host}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let offers = offers(&names);
    let sizing = sizing(30.0, &offers, 2_000);
    let working: Vec<Worker> = names[..2_000].iter().map(|name| worker(name, true)).collect();
    let done: Vec<(&str, u32)> = names[..2_000].iter().map(|name| (*name, 1)).collect();
    let choice = consulted(&sizing, vec![stage(0, 100_000, 4.0, &done)], &working);
    let found = predicted(&choice);
    assert!((2..48).contains(&found.sizes.len()) && found.of(found.rate_size).is_some(), "{}", found.sizes.len());
    assert!(choice.size >= found.rate_size);
}

proptest! {
    #[test]
    fn never_fewer_than_the_rate_and_a_predicted_miss_is_not_left_while_a_size_would_do(
        within_s in 1.0_f64..2_000.0, hosts in 0_usize..6, current in 0_u32..6,
        maps in (1_u32..200, 0.1_f64..60.0), reduces in (0_u32..100, 0.1_f64..60.0), done in prop::collection::vec(0_u32..60, 7),
    ) {
        let names = ["a", "b", "c", "e", "f", "g"];
        let offers = offers(&names[..hosts]);
        let current = current.min(u32::try_from(hosts).unwrap());
        let sizing = sizing(within_s, &offers, current);
        let working: Vec<Worker> = std::iter::once(worker("d", false))
            .chain(names[..current as usize].iter().map(|name| worker(name, true))).collect();
        let mut left = maps.0;
        let mut on_hosts = Vec::new();
        for (name, done) in std::iter::once("d").chain(names).zip(done).take(working.len()) {
            on_hosts.push((name, done.min(left)));
            left -= done.min(left);
        }
        let mut stages = vec![stage(0, maps.0, maps.1, &on_hosts)];
        if reduces.0 > 0 {
            stages.push(stage(1, reduces.0, reduces.1, &[]));
        }
        let by_rate = sizing.decide();
        let choice = consulted(&sizing, stages, &working);
        prop_assert!(choice.size >= by_rate.size);
        prop_assert!(choice.candidates.iter().any(|own| own.size == choice.size));
        if let Some(StageOpinion::Predicted(found)) = &choice.stages {
            prop_assert_eq!(found.rate_size, by_rate.size);
            prop_assert_eq!(found.decided_by == DecidedBy::Stages, choice.size > by_rate.size);
            let plan_s = sizing.plan_deadline();
            let own = found.of(choice.size).unwrap();
            let by_rate_s = found.of(by_rate.size).unwrap().completion_s;
            let misses = by_rate_s > plan_s && by_rate_s > found.rate_s * (1.0 + MUCH);
            let would_do = found.sizes.iter().any(|own| own.size >= current.max(by_rate.size) && own.completion_s <= plan_s);
            if misses && would_do {
                prop_assert!(own.completion_s <= plan_s, "{:?}", found);
            }
        } else {
            prop_assert_eq!(choice.size, by_rate.size);
        }
    }
}
