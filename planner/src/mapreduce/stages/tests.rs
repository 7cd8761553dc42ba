//! Situations by hand, and what must hold whatever an engine tells.

use gleaner_types::units::{Bytes, Fraction};
use proptest::prelude::*;

use super::super::estimate::{Change, Estimator, Remaining};
use super::*;

fn id(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

pub(crate) fn worker(name: &str, percent: f64, is_volunteer: bool) -> Worker {
    let (potential, price) = (CoreShare::clamped(percent), DollarsPerHour::clamped(1.0));
    Worker { host: id(name), slots: 1, potential, is_volunteer, price }
}

pub(crate) fn on(done: u32, task_s: f64, running: u32) -> StageOnHost {
    StageOnHost { done, ended: done, task_s: f64::from(done) * task_s, running, running_done: Fraction::clamped(0.5) }
}

/// Of so many tasks these are done on hosts; every one read a MB and wrote half of one.
pub(crate) fn stage(number: u32, tasks: u32, hosts: &[(&str, StageOnHost)]) -> Stage {
    let done: u32 = hosts.iter().map(|(_, own)| own.done).sum();
    let bytes = Bytes::from_mib(done.into());
    let (input, shuffle_read) = if number == 0 { (bytes, Bytes::ZERO) } else { (Bytes::ZERO, bytes) };
    let hosts = hosts.iter().map(|(name, own)| (id(name), *own)).collect();
    Stage { id: number, tasks, done, runs: done, input, shuffle_read, shuffle_written: Bytes(bytes.0 / 2), hosts }
}

pub(crate) fn seen(stages: Vec<Stage>, hands_over: Option<bool>) -> StagesSeen {
    StagesSeen { stages, hands_over }
}

fn told(stages: &StagesSeen, working: &[Worker]) -> Result<Told, Unknown> {
    let left: u32 = stages.stages.iter().map(|own| own.tasks.saturating_sub(own.done)).sum();
    let job = JobId::new("j").unwrap();
    situation(Seen { job: &job, stages, tasks_left: left, mean_task_s: None, working })
}

fn rest(told: &Told, remove: &[usize]) -> Remaining {
    let estimator = Estimator::new(&told.situation).unwrap();
    estimator.remaining(&Change { remove, ..Change::NONE }).unwrap()
}

fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-6, "{value} and not {expected}");
}

fn two() -> [Worker; 2] {
    [worker("d", 100.0, false), worker("v", 100.0, true)]
}

#[test]
fn in_the_map_stage_by_hand() {
    let now = seen(vec![stage(0, 100, &[("d", on(20, 4.0, 1)), ("v", on(20, 2.0, 1))]), stage(1, 4, &[])], None);
    let told = told(&now, &two()).unwrap();
    let Situation { job, nodes, following, lost_output, .. } = &told.situation;
    assert_eq!((job.maps, job.reduces, job.maps_safe, following.len()), (100, 4, 0, 0));
    near(job.workload.map.at(1.0), 3.0);
    // 0.5 MB of each map task make 12.5 MB of each reduce task, at a tenth of the 3 s of a MB.
    near(job.workload.reduce_later.at(1.0), 0.1 * 3.0 * 12.5);
    assert_eq!((nodes[0].maps_done, nodes[1].maps_done, nodes[1].maps_running.as_slice()), (20, 20, &[0.5][..]));
    assert_eq!((nodes[0].removable, nodes[1].removable, *lost_output), (false, true, LostOutput::Counted));
    // 20 tasks of 4/3 and of 2/3 of the mean. What a core promises, by the volunteer, counts for one task more.
    near(1.0 / nodes[0].speed, (20.0 * 4.0 / 3.0 + 2.0 / 3.0) / 21.0);
    near(1.0 / nodes[1].speed, 2.0 / 3.0);
    // Without the volunteer its 20 finished tasks run again, and the one that runs: 79 wait, one runs.
    assert_eq!(rest(&told, &[1]).lost_maps, 20);
    let slow_s = 3.0 / nodes[0].speed;
    near(rest(&told, &[1]).map_s, (0.5 + 79.0) * slow_s);
    // One more is as fast as the volunteer; half a core takes twice as long.
    near(told.added(&[worker("w", 100.0, true)], 9.0).unwrap().speed, 1.5);
    near(told.added(&[worker("w", 50.0, true)], 9.0).unwrap().speed, 0.75);
    assert_eq!(told.added(&[], 9.0), None);
}

/// The first stage ran on a slow host alone, which is gone, and on a fast one; the second has run on the fast one.
#[test]
fn a_stage_s_time_and_a_host_s_speed_are_told_apart() {
    let first = stage(0, 80, &[("d", on(40, 2.0, 0)), ("gone", StageOnHost { done: 0, ..on(40, 6.0, 0) })]);
    let second = stage(1, 60, &[("d", on(20, 3.0, 1))]);
    let now = seen(vec![Stage { done: 80, ..first }, second], Some(true));
    let told = told(&now, &[worker("d", 100.0, false)]).unwrap();
    // 40 tasks are left, of which one is half done: 3 s each, whatever the mean host is.
    let total_s = rest(&told, &[]).total_s();
    assert!((total_s - 39.5 * 3.0).abs() < 0.001, "{total_s}");
    let factors = Factors::fit(&now.stages);
    let [d, gone] = ["d", "gone"].map(|name| factors.hosts[&id(name)].1);
    // Three times as fast as the other; 60 tasks on it and 40 on that one.
    assert!((gone / d - 3.0).abs() < 1e-4, "{gone} and {d}");
    near(0.6 * d + 0.4 * gone, 1.0);
    assert!((factors.stage_s[&1] * d - 3.0).abs() < 1e-4, "{factors:?}");
}

/// The stages have one task of a host in common, by which the hosts of the first are known to be three times as slow.
#[test]
fn stages_with_few_hosts_in_common_are_told_apart_too() {
    let first = stage(0, 101, &[("slow", on(100, 6.0, 0)), ("fast", on(1, 2.0, 0))]);
    let second = stage(1, 200, &[("fast", on(100, 3.0, 1))]);
    let factors = Factors::fit(&[first, second]);
    let [slow, fast] = ["slow", "fast"].map(|name| factors.hosts[&id(name)].1);
    assert!((slow / fast - 3.0).abs() < 0.01, "{slow} and {fast}");
    assert!((factors.stage_s[&0] * fast - 2.0).abs() < 0.01, "{factors:?}");
}

#[test]
fn tasks_of_milliseconds_that_were_seen_take_no_longer() {
    let told = told(&seen(vec![stage(0, 1_000, &[("d", on(500, 0.01, 1))])], None), &two()[..1]).unwrap();
    near(rest(&told, &[]).total_s(), 499.5 * 0.01);
}

#[test]
fn in_the_last_stage_output_is_lost_unless_it_is_handed_over() {
    let hosts = [("d", on(60, 2.0, 0)), ("v", on(40, 2.0, 0))];
    let last = || stage(1, 10, &[("d", on(1, 5.0, 1)), ("v", on(1, 5.0, 1))]);
    for (hands_over, again) in [(None, 40), (Some(false), 40), (Some(true), 0)] {
        let told = told(&seen(vec![stage(0, 100, &hosts), last()], hands_over), &two()).unwrap();
        let job = &told.situation.job;
        assert_eq!((job.maps, job.reduces, job.reduces_done), (100, 10, 2));
        near(job.workload.map.at(1.0), 2.0);
        near(job.workload.reduce_first.at(1.0), 5.0);
        near(rest(&told, &[]).total_s(), 2.5 + 3.0 * 5.0);
        let without = rest(&told, &[1]);
        assert_eq!(without.lost_maps, again, "{hands_over:?}");
        assert!(without.total_s() > rest(&told, &[]).total_s());
    }
}

/// Ten finished tasks went with a worker: the first stage has them to do again, and the second goes on with what it has.
#[test]
fn lost_output_that_is_made_again() {
    let again = Stage { done: 90, ..stage(0, 100, &[("d", on(60, 2.0, 1)), ("v", on(30, 2.0, 0))]) };
    let told =
        told(&seen(vec![again, stage(1, 10, &[("d", on(2, 5.0, 0)), ("v", on(0, 5.0, 1))])], None), &two()).unwrap();
    let job = &told.situation.job;
    assert_eq!((job.maps, job.maps_safe, job.reduces, job.reduces_done), (100, 0, 10, 2));
    // Ten map tasks, of which one is half done, on two slots.
    let map_s = rest(&told, &[]).map_s;
    assert!((9.0..=11.0).contains(&map_s), "{map_s}");
}

#[test]
fn a_worker_that_drains_takes_its_output_with_it_and_an_unknown_place_is_safe() {
    let hosts = [("d", on(50, 2.0, 1)), ("gone", on(30, 2.0, 0))];
    let now = Stage { done: 90, ..stage(0, 100, &hosts) };
    let only = [worker("d", 100.0, false)];
    for (hands_over, safe, left) in [(None, 10, 40), (Some(true), 40, 10)] {
        let told = told(&seen(vec![now.clone(), stage(1, 5, &[])], hands_over), &only).unwrap();
        assert_eq!((told.situation.job.maps_safe, told.situation.job.maps), (safe, 100));
        near(rest(&told, &[]).map_s, 2.0 * f64::from(left) - 1.0);
    }
}

#[test]
fn further_stages_and_tasks_that_are_not_listed_follow() {
    let stages = vec![
        stage(0, 10, &[("d", on(10, 2.0, 0))]),
        stage(1, 10, &[("d", on(5, 4.0, 1))]),
        stage(2, 6, &[]),
        stage(3, 7, &[]),
    ];
    let (now, job) = (seen(stages, None), JobId::new("j").unwrap());
    let working = [worker("d", 100.0, false)];
    let seen = Seen { job: &job, stages: &now, tasks_left: 5 + 6 + 7 + 20, mean_task_s: Some(3.0), working: &working };
    let told = situation(seen).unwrap();
    let job = &told.situation.job;
    // The output of the first stage counts in tasks of the second, which take twice as long.
    assert_eq!((told.situation.nodes[0].maps_done, job.maps, job.reduces), (5 + 5, 15, 6));
    let following: Vec<(u32, f64)> =
        told.situation.following.iter().map(|own| (own.maps, own.workload.map.at(1.0))).collect();
    assert_eq!((following[0].0, following[1]), (7, (20, 3.0)));
}

#[test]
fn what_is_not_known_is_said() {
    let working = two();
    let unknown = |stages, working: &[Worker]| told(&seen(stages, None), working).unwrap_err();
    assert_eq!(unknown(vec![], &working), Unknown::NoStage);
    assert_eq!(unknown(vec![stage(0, 10, &[("d", on(10, 1.0, 0))])], &working), Unknown::NoStage, "all is done");
    assert_eq!(unknown(vec![stage(3, 10, &[])], &working), Unknown::NoTask(3));
    assert_eq!(unknown(vec![stage(0, 10, &[("d", on(1, 1.0, 1))])], &[]), Unknown::NoWorker);
    let many = vec![stage(0, u32::MAX, &[("d", on(1, 1.0, 1))])];
    assert!(matches!(unknown(many, &working), Unknown::Odd(why) if why.contains("job.maps")));
}

prop_compose! {
    fn any_stage()(
        number in 0_u32..6, counts in prop::array::uniform3(prop_oneof![0_u32..200, any::<u32>()]),
        bytes in any::<[u64; 3]>(),
        hosts in prop::collection::btree_map(0_u8..4, (any::<[u32; 2]>(), 0_u32..300, prop_oneof![0.0..1e4, any::<f64>()], 0.0..1.0), 0..4),
    ) -> Stage {
        let own = |(host, ([done, ended], running, task_s, part)): (u8, ([u32; 2], u32, f64, f64))| {
            let running_done = Fraction::clamped(part);
            (id(&format!("h{host}")), StageOnHost { done: done % 300, ended: ended % 300, task_s, running, running_done })
        };
        Stage {
            id: number, tasks: counts[0], done: counts[1], runs: counts[2], input: Bytes(bytes[0]), shuffle_read: Bytes(bytes[1]),
            shuffle_written: Bytes(bytes[2]), hosts: hosts.into_iter().map(own).collect(),
        }
    }
}

proptest! {
    #[test]
    fn whatever_an_engine_tells_gives_a_situation_or_a_reason(
        stages in prop::collection::vec(any_stage(), 0..5), hands_over in any::<Option<bool>>(), slots in 1_u32..4,
        tasks_left in any::<u32>(), mean_task_s in any::<Option<f64>>(), percent in 0.0_f64..400.0,
    ) {
        let (now, job) = (seen(stages, hands_over), JobId::new("j").unwrap());
        let working: Vec<Worker> =
            (0..4).map(|host| Worker { slots, ..worker(&format!("h{host}"), percent, host > 0) }).collect();
        if let Ok(told) = situation(Seen { job: &job, stages: &now, tasks_left, mean_task_s, working: &working }) {
            prop_assert_eq!(told.situation.check(), Ok(()));
            let all = rest(&told, &[]);
            prop_assert!(all.total_s() >= 0.0, "{:?}", all);
        }
    }
}
