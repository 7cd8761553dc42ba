//! The decision by hand, its properties, and a partition played out under both ways to drain.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;

const SURVIVING: Filling = Filling { draining: Draining::Surviving, vacate_s: 10.0, look_s: 2.0 };
const AT_BEGIN: Filling = Filling { draining: Draining::AtBegin, vacate_s: 10.0, look_s: 2.0 };

fn lease(name: &str, nodes: &[&str], start_s: f64, end_s: f64) -> NodeLease {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    NodeLease { lease: ReservationId::new(name).unwrap(), nodes, start_s, end_s }
}

fn known(leases: Vec<NodeLease>, read_s: f64) -> Leases {
    Leases { leases, read_s, is_stale: false }
}

fn times(mean_s: f64, deviation_s: f64) -> Option<TaskTimes> {
    Some(TaskTimes { ended: 9, mean_s, deviation_s })
}

fn waits(tasks: u32, times: Option<TaskTimes>) -> WaitingTasks {
    WaitingTasks { tasks, cpus: 1, times }
}

fn runs(node: &str, began_s: f64, times: Option<TaskTimes>) -> RunningTask {
    RunningTask { nodes: vec![node.to_owned()], began_s, times }
}

fn stage_of(filling: Filling, waiting: &[WaitingTasks], now_s: f64) -> Stage {
    let leases = known(vec![lease("a", &["n1"], 1_000.0, 2_000.0)], now_s);
    filling.look(&leases, &[], waiting, now_s).nodes["n1"].stage
}

#[test]
fn a_node_is_open_while_more_is_done_than_lost() {
    // The gap ends at 990, ten seconds before the lease; what starts before the next look has two seconds less.
    let minute = [waits(5, times(60.0, 10.0))];
    assert_eq!(stage_of(SURVIVING, &minute, 918.0), Stage::Open, "70 s are left after the next look and 70 s likely");
    assert_eq!(stage_of(SURVIVING, &minute, 919.0), Stage::Draining);
    assert_eq!(stage_of(AT_BEGIN, &minute, 989.0), Stage::Open);
    for filling in [SURVIVING, AT_BEGIN] {
        assert_eq!(stage_of(filling, &minute, 990.0), Stage::Vacating);
        assert_eq!(stage_of(filling, &minute, 1_000.0), Stage::Leased);
    }
    // Of two arrays: at 688, with 300 s left, each of 2 long tasks loses 300; each of 5 short ones does 60.
    let long = |tasks| waits(tasks, times(900.0, 0.0));
    assert_eq!(stage_of(SURVIVING, &[minute[0], long(2)], 688.0), Stage::Draining);
    assert_eq!(stage_of(SURVIVING, &[minute[0], long(1)], 688.0), Stage::Open, "300 are not more than 300");
    // What is not known, and an empty queue, close nothing.
    assert_eq!(stage_of(SURVIVING, &[waits(5, None)], 980.0), Stage::Open);
    assert_eq!(stage_of(SURVIVING, &[], 980.0), Stage::Open);
}

#[test]
fn what_cannot_end_in_time_is_run_again_on_a_node_that_drains() {
    let leases = known(vec![lease("a", &["n1"], 1_000.0, 2_000.0)], 900.0);
    let running = [
        runs("n1", 800.0, times(400.0, 50.0)), // 1,100 at the soonest
        runs("n1", 500.0, times(500.0, 10.0)), // 980
        runs("n1", 800.0, None),
        runs("n1", 800.0, Some(TaskTimes { ended: 2, mean_s: 400.0, deviation_s: 0.0 })),
        runs("n2", 800.0, times(400.0, 50.0)),
    ];
    let long = [waits(5, times(400.0, 50.0))];
    assert_eq!(SURVIVING.look(&leases, &running, &long, 900.0).again, [(0, Why::CannotEnd)]);
    assert!(AT_BEGIN.look(&leases, &running, &long, 900.0).again.is_empty());
    // Where the node is open it might start there at once.
    let short = [waits(5, times(10.0, 0.0))];
    assert!(SURVIVING.look(&leases, &running, &short, 900.0).again.is_empty());
    let all: Vec<(usize, Why)> = (0..4).map(|place| (place, Why::LeaseBegins)).collect();
    assert_eq!(SURVIVING.look(&leases, &running, &long, 990.0).again, all);
    assert_eq!(AT_BEGIN.look(&leases, &running, &long, 1_500.0).again, all);
}

#[test]
fn the_lease_that_has_a_node_counts_and_then_the_next() {
    let leases = known(
        vec![
            lease("later", &["n1", "n2"], 3_000.0, 3_500.0),
            lease("now", &["n1"], 100.0, 1_000.0),
            lease("longer", &["n1"], 200.0, 1_500.0),
            lease("next", &["n1"], 2_000.0, 2_500.0),
        ],
        0.0,
    );
    let counts = |node: &str, now_s| {
        let gaps = SURVIVING.look(&leases, &[], &[], now_s);
        gaps.nodes.get(node).map(|gap| (gap.lease.lease.as_str(), gap.stage))
    };
    assert_eq!(counts("n1", 150.0), Some(("now", Stage::Leased)));
    assert_eq!(counts("n1", 300.0), Some(("longer", Stage::Leased)));
    assert_eq!(counts("n1", 1_600.0), Some(("next", Stage::Open)));
    assert_eq!(counts("n2", 1_600.0), Some(("later", Stage::Open)));
    assert_eq!(counts("n1", 3_500.0), None);
}

#[test]
fn what_was_read_before_holds_while_leases_are_unknown() {
    let stale = Leases {
        leases: vec![lease("over", &["n1"], 0.0, 90.0), lease("a", &["n2"], 50.0, 120.0)],
        read_s: 100.0,
        is_stale: true,
    };
    let gaps = SURVIVING.look(&stale, &[runs("n2", 0.0, None)], &[], 500.0);
    assert!(!gaps.nodes.contains_key("n1"), "it was over when it was read");
    assert_eq!(gaps.nodes["n2"].stage, Stage::Leased, "it may have been made longer");
    assert!(gaps.again.is_empty());
}

fn any_times() -> impl Strategy<Value = Option<TaskTimes>> {
    prop::option::of((0_u32..6, 1_u32..200, 0_u32..50).prop_map(|(ended, mean, deviation)| TaskTimes {
        ended,
        mean_s: mean.into(),
        deviation_s: deviation.into(),
    }))
}

fn any_lease() -> impl Strategy<Value = NodeLease> {
    (prop::collection::btree_set(0_u32..4, 1..4), 0_u32..400, 1_u32..300).prop_map(|(nodes, start, length)| NodeLease {
        lease: ReservationId::new("a").unwrap(),
        nodes: nodes.into_iter().map(|node| format!("n{node}")).collect(),
        start_s: start.into(),
        end_s: (start + length).into(),
    })
}

fn any_running() -> impl Strategy<Value = RunningTask> {
    (prop::collection::vec(0_u32..6, 1..3), 0_u32..300, any_times()).prop_map(|(nodes, began, times)| RunningTask {
        nodes: nodes.into_iter().map(|node| format!("n{node}")).collect(),
        began_s: began.into(),
        times,
    })
}

proptest! {
    #[test]
    fn no_task_stays_where_a_lease_has_begun_and_none_ends_without_a_lease(
        leases in prop::collection::vec(any_lease(), 0..6),
        running in prop::collection::vec(any_running(), 0..10),
        waiting in prop::collection::vec((1_u32..9, any_times()), 0..4),
        now in 0_u32..700,
        at_begin in any::<bool>(),
    ) {
        let filling = if at_begin { AT_BEGIN } else { SURVIVING };
        let waiting: Vec<WaitingTasks> = waiting.into_iter().map(|(tasks, times)| waits(tasks, times)).collect();
        let now_s = f64::from(now);
        let leases = known(leases, now_s);
        let gaps = filling.look(&leases, &running, &waiting, now_s);
        let of = |node: &str| leases.leases.iter().filter(move |lease| lease.nodes.contains(node) && lease.end_s > now_s).collect::<Vec<_>>();
        for (place, task) in running.iter().enumerate() {
            let why = gaps.again.iter().find(|(again, _)| *again == place).map(|(_, why)| *why);
            let begun = task.nodes.iter().any(|node| of(node).iter().any(|lease| lease.start_s <= now_s + filling.vacate_s));
            prop_assert_eq!(begun, why == Some(Why::LeaseBegins));
            if task.nodes.iter().all(|node| of(node).is_empty()) || at_begin && !begun {
                prop_assert_eq!(why, None);
            }
        }
        // Work conserving: open where no lease is to come, and where the gap is long enough for every task that waits.
        let longest_s = waiting.iter().filter_map(|array| Some(array.times?.likely_s())).fold(0.0, f64::max);
        for node in (0..6).map(|node| format!("n{node}")) {
            let starts_s = of(&node).iter().map(|lease| lease.start_s).fold(f64::INFINITY, f64::min);
            let gap_s = starts_s - filling.vacate_s - now_s;
            let stage = gaps.nodes.get(node.as_str()).map(|gap| gap.stage);
            prop_assert_eq!(stage.is_none(), starts_s.is_infinite());
            if gap_s > 0.0 && longest_s <= gap_s - filling.look_s {
                prop_assert!(matches!(stage, None | Some(Stage::Open)), "{node}: {stage:?}");
            }
            if gap_s <= 0.0 {
                prop_assert!(stage >= Some(Stage::Vacating), "{node}: {stage:?}");
            }
        }
        // Not known: nothing is run again, and no node that was kept is opened.
        let stale = Leases { is_stale: true, ..leases.clone() };
        let later = filling.look(&stale, &running, &waiting, now_s + 1_000.0);
        prop_assert!(later.again.is_empty());
        prop_assert_eq!(later.nodes.keys().collect::<Vec<_>>(), gaps.nodes.keys().collect::<Vec<_>>());
        prop_assert!(later.nodes.values().all(|gap| gap.stage == Stage::Leased));
    }
}

/// A task of an array that is played.
#[derive(Debug, Clone, Copy)]
struct Played {
    array: usize,
    length_s: f64,
    on: Option<(usize, f64)>,
    is_done: bool,
}

/// CPU seconds of tasks that ended, and of those that were lost.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    done: f64,
    lost: f64,
}

/// Three arrays on four nodes of two CPUs, with leases that come and go for three hours; a look each two seconds.
fn played(filling: Filling, seed: u64) -> Sums {
    const NODES: usize = 4;
    const CPUS: usize = 2;
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let mut shuffle = ChaCha8Rng::seed_from_u64(seed + 1_000_000);
    let mut part = || f64::from(chance.next_u32()) / f64::from(u32::MAX);
    let mut leases = Vec::new();
    for node in 0..NODES {
        let mut at_s = 0.0;
        while at_s < 10_800.0 {
            let start_s = at_s + 300.0 + 1_500.0 * part();
            let end_s = start_s + 200.0 + 800.0 * part();
            leases.push(lease("a", &[&format!("n{node}")], start_s, end_s));
            at_s = end_s;
        }
    }
    let mut tasks = Vec::new();
    for (array, mean_s) in [60.0, 200.0, 500.0].into_iter().enumerate() {
        for _ in 0..400 {
            tasks.push(Played { array, length_s: mean_s * (0.7 + 0.6 * part()), on: None, is_done: false });
        }
    }
    // Users' arrays come mixed.
    for place in (1..tasks.len()).rev() {
        tasks.swap(place, shuffle.next_u32() as usize % (place + 1));
    }
    let (mut sums, mut ended) = (Sums::default(), [const { Vec::<f64>::new() }; 3]);
    for step in 0..5_400 {
        let now_s = f64::from(step) * 2.0;
        for task in tasks.iter_mut().filter(|task| task.on.is_some_and(|(_, began_s)| now_s >= began_s + task.length_s))
        {
            (task.on, task.is_done) = (None, true);
            sums.done += task.length_s;
            ended[task.array].push(task.length_s);
        }
        tasks.retain(|task| !task.is_done);
        let learnt = ended.each_ref().map(|lengths| {
            let count = lengths.len() as f64;
            let mean_s = lengths.iter().sum::<f64>() / count;
            let deviation_s = (lengths.iter().map(|s| (s - mean_s).powi(2)).sum::<f64>() / count).sqrt();
            (count > 0.0).then_some(TaskTimes { ended: u32::try_from(lengths.len()).unwrap(), mean_s, deviation_s })
        });
        let indices: Vec<usize> = (0..tasks.len()).filter(|index| tasks[*index].on.is_some()).collect();
        let running: Vec<RunningTask> = indices
            .iter()
            .filter_map(|index| {
                let (node, began_s) = tasks[*index].on?;
                Some(runs(&format!("n{node}"), began_s, learnt[tasks[*index].array]))
            })
            .collect();
        let mut counts = [0; 3];
        tasks.iter().filter(|task| task.on.is_none()).for_each(|task| counts[task.array] += 1);
        let waiting: Vec<WaitingTasks> = (0..3).map(|array| waits(counts[array], learnt[array])).collect();
        let leases = known(leases.clone(), now_s);
        let gaps = filling.look(&leases, &running, &waiting, now_s);
        for (place, _) in &gaps.again {
            let task = &mut tasks[indices[*place]];
            if let Some((_, began_s)) = task.on.take() {
                sums.lost += now_s - began_s;
            }
        }
        let mut busy = [0; NODES];
        indices.iter().filter_map(|index| tasks[*index].on).for_each(|(node, _)| busy[node] += 1);
        for (node, busy) in busy.into_iter().enumerate() {
            let name = format!("n{node}");
            let stage = gaps.nodes.get(name.as_str()).map_or(Stage::Open, |gap| gap.stage);
            assert!(stage < Stage::Vacating || busy == 0, "a task is on a node that a lease has");
            let open = if stage == Stage::Open { CPUS - busy } else { 0 };
            for task in tasks.iter_mut().filter(|task| task.on.is_none()).take(open) {
                task.on = Some((node, now_s));
            }
        }
    }
    sums
}

/// Over partitions that no constant was chosen on. Both ways lose and do less or more: what the decision weighs is the one against the other.
#[test]
fn less_is_lost_than_by_draining_at_the_begin() {
    let all = |filling| {
        let runs = (2_001..2_009).map(|seed| played(filling, seed));
        runs.fold(Sums::default(), |sum, own| Sums { done: sum.done + own.done, lost: sum.lost + own.lost })
    };
    let (ours, simple) = (all(SURVIVING), all(AT_BEGIN));
    println!("done {:.0} and {:.0} CPU s, lost {:.0} and {:.0}", ours.done, simple.done, ours.lost, simple.lost);
    assert!(ours.lost < simple.lost, "{ours:?} {simple:?}");
    assert!(ours.done - ours.lost > simple.done - simple.lost, "{ours:?} {simple:?}");
}
