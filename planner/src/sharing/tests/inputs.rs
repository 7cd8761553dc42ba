//! Tasks with inputs, nodes that are lost, and durations that were told wrong: schedules are checked by their runs alone.

use proptest::prelude::*;

use super::*;
use crate::sharing::engine::{Play, Truth, play_in};
use crate::sharing::input::Input;
use crate::sharing::tasks::Locality;

/// Policies by number.
fn policy(number: usize, epoch_s: f64) -> Box<dyn Policy> {
    let canal = |locality, network| Box::new(Canal::new(epoch_s, Awareness { locality, network }, 7));
    match number {
        0 => canal(true, true),
        1 => canal(true, false),
        2 => canal(false, true),
        3 => Box::new(Delay::default()),
        4 => Box::new(Tetris),
        5 => Box::new(Srjf),
        6 => Box::new(Multifactor::default()),
        _ => Box::new(Drf),
    }
}

/// One to four jobs of a map stage with inputs on two of the two to five nodes in two racks, and a reduce stage.
fn workloads_with_inputs() -> impl Strategy<Value = Workload> {
    let job = (0..40_u32, 1..10_u32, 1..=8_u32, 0..=2_u32, 1..4_u32, 0..100_usize);
    (2..6_u32, proptest::collection::vec(job, 1..5)).prop_map(|(nodes, jobs)| {
        let cluster = cluster(nodes, demand(16.0, 16.0, 4.0), f64::from(nodes));
        let named =
            |(index, (release_s, tasks, size, network, length, first)): (usize, (u32, u32, u32, u32, u32, usize))| {
                let holder = |task: usize, copy: usize| {
                    cluster.nodes[(first + task * 3 + copy) % cluster.nodes.len()].name.clone()
                };
                let input = Input {
                    nodes: (0..tasks as usize).map(|task| vec![holder(task, 0), holder(task, 1)]).collect(),
                    network: 1.0,
                    rack_extra_s: 1.0,
                    off_rack_extra_s: 3.0,
                };
                let mut map = stage(tasks, demand(size.into(), 2.0, 0.0), 5.0 * f64::from(length));
                map.input = Some(input);
                let reduce = stage(tasks.div_ceil(2), demand(1.0, 1.0, network.into()), 7.0);
                // Some have a third stage, which reads what the second wrote.
                let last = (length == 3).then(|| stage(2, demand(1.0, 1.0, 0.0), 3.0));
                Job {
                    name: JobId::new(format!("j{index}")).unwrap(),
                    release_s: release_s.into(),
                    stages: [map, reduce].into_iter().chain(last).collect(),
                }
            };
        let jobs = jobs.into_iter().enumerate().map(named).collect();
        Workload::new(cluster, jobs).unwrap()
    })
}

/// Where a node is, seen from a task's input, by the names.
fn place(workload: &Workload, run: &Run) -> Locality {
    let nodes = &workload.cluster().nodes;
    let Some(input) = &workload.jobs()[run.job].stages[run.stage].input else { return Locality::Node };
    let holders = &input.nodes[run.task];
    let rack = |name: &HostId| nodes.iter().find(|node| node.name == *name).unwrap().rack;
    if holders.contains(&nodes[run.node].name) {
        Locality::Node
    } else if holders.iter().any(|name| rack(name) == nodes[run.node].rack) {
        Locality::Rack
    } else {
        Locality::OffRack
    }
}

/// Every run is where it says, takes what it needs there as long as it must, and none is on a lost node.
fn check_run(workload: &Workload, truth: &Truth, run: &Run) {
    let stage = &workload.jobs()[run.job].stages[run.stage];
    let place = place(workload, run);
    assert_eq!(run.locality, place, "{run:?}");
    let (network, extra_s) = stage.input.as_ref().map_or((0.0, 0.0), |input| match place {
        Locality::Node => (0.0, 0.0),
        Locality::Rack => (input.network, input.rack_extra_s),
        Locality::OffRack => (input.network, input.off_rack_extra_s),
    });
    let wanted = stage.demand.network + network;
    let part = if wanted > 0.0 { run.network / wanted } else { 1.0 };
    assert!((0.25 - 1e-9..=1.0 + 1e-9).contains(&part), "{run:?}");
    let switch = stage.demand.network + if place == Locality::OffRack { network } else { 0.0 };
    assert!((run.switch - switch * part).abs() < 1e-9, "{run:?}");
    let factor = truth.factors.iter().find(|own| (own.0, own.1) == (run.job, run.stage)).map_or(1.0, |own| own.2);
    let length_s = (stage.duration_s + extra_s) / part * factor;
    let loss_s = truth.losses.iter().find(|(_, node)| *node == run.node).map_or(f64::INFINITY, |(at_s, _)| *at_s);
    if run.lost {
        // It ran when the node was lost, or had ended, and its output was lost.
        let short_s = run.start_s + length_s - run.end_s;
        assert!(run.end_s <= loss_s + 1e-9 && short_s > -1e-6, "{run:?}");
        assert!((run.end_s - loss_s).abs() < 1e-9 || short_s < 1e-6, "{run:?}");
    } else {
        assert!((run.end_s - run.start_s - length_s).abs() < 1e-6 && run.end_s <= loss_s + 1e-9, "{run:?}");
    }
}

/// No node and no switch is used beyond what it has.
fn check_capacity(workload: &Workload, runs: &[Run]) {
    for moment in runs {
        let running = || runs.iter().filter(|run| run.start_s <= moment.start_s && moment.start_s < run.end_s - 1e-9);
        assert!(running().map(|run| run.switch).sum::<f64>() <= workload.cluster().switch + 1e-6);
        for (node, machine) in workload.cluster().nodes.iter().enumerate() {
            let mut used = [0.0; 4];
            for run in running().filter(|run| run.node == node) {
                let demand = workload.jobs()[run.job].stages[run.stage].demand.parts();
                let own = [demand[0], demand[1], demand[2], run.network];
                (0..4).for_each(|index| used[index] += own[index]);
            }
            let free = machine.capacity.parts();
            assert!(
                (0..4).all(|index| used[index] <= free[index] + 1e-6),
                "{used:?} of {free:?} at {}",
                moment.start_s
            );
        }
    }
}

/// Every task ends once, and starts when there is the output of each of the stage before; and the engine's account of a job is that of its tasks that ended.
fn check_jobs(workload: &Workload, play: &Play<'_>, schedule: &Schedule) {
    for (job, own) in workload.jobs().iter().enumerate() {
        let ended = |stage: usize| {
            schedule.runs.iter().filter(move |run| (run.job, run.stage, run.lost) == (job, stage, false))
        };
        let mut product = 0.0;
        for (index, stage) in own.stages.iter().enumerate() {
            let mut tasks: Vec<usize> = ended(index).map(|run| run.task).collect();
            tasks.sort_unstable();
            assert_eq!(tasks, (0..stage.tasks as usize).collect::<Vec<_>>(), "stage {index} of {job}");
            assert!(ended(index).all(|run| run.start_s >= own.release_s - 1e-9));
            let here = |stage: usize| schedule.runs.iter().filter(move |run| (run.job, run.stage) == (job, stage));
            let lost_s = |node: usize| {
                let found = play.state.lost().iter().find(|(_, other)| *other == node);
                found.map_or(f64::INFINITY, |(at_s, _)| *at_s)
            };
            // When it starts there is an output of each task of the stage before.
            for run in here(index).filter(|_| index > 0) {
                let there = |task: usize| {
                    here(index - 1).any(|before| {
                        let from_s = before.end_s - 1e-9 * before.end_s;
                        before.task == task && from_s <= run.start_s && run.start_s < lost_s(before.node)
                    })
                };
                assert!((0..own.stages[index - 1].tasks as usize).all(there), "{run:?}");
            }
            let total = workload.cluster().nodes.iter().fold(Resources::default(), |sum, node| sum.plus(node.capacity));
            let total = Resources { network: workload.cluster().switch, ..total };
            let share =
                (0..4).map(|r| if total.parts()[r] > 0.0 { stage.demand.parts()[r] / total.parts()[r] } else { 0.0 });
            let share = share.fold(0.0, f64::max);
            product += ended(index).map(|run| share * (run.end_s - run.start_s)).sum::<f64>();
        }
        assert!((play.state.product(job) - product).abs() < 1e-6 * product.max(1.0), "{job}");
    }
}

proptest! {
    #[test]
    fn schedules_are_true(
        workload in workloads_with_inputs(),
        number in 0..8_usize,
        factor in prop_oneof![Just(1.0), 0.3..3.0_f64],
        losses_s in proptest::collection::vec(1.0..60.0_f64, 0..4),
    ) {
        // One node is left at least.
        let most = workload.cluster().nodes.len() - 1;
        let losses = losses_s.into_iter().take(most).enumerate().map(|(node, at_s)| (at_s, node)).collect();
        let truth = Truth { factors: vec![(0, 0, factor)], losses };
        let mut policy = policy(number, workload.mean_task_s());
        let mut play = Play::new(&workload, &truth, f64::INFINITY);
        while play.step(policy.as_mut()) {}
        let schedule = play.state.schedule().clone();
        schedule.runs.iter().for_each(|run| check_run(&workload, &truth, run));
        check_capacity(&workload, &schedule.runs);
        check_jobs(&workload, &play, &schedule);
    }
}

proptest! {
    /// Shortcuts of a round change no choice: the same schedule comes of asking every job on every node, with inputs, without
    /// awareness of them, after losses and with wrong estimates.
    #[test]
    fn shortcuts_choose_what_asking_everything_chooses(
        workload in prop_oneof![workloads_with_inputs(), workloads(8, 2.0)],
        locality in any::<bool>(),
        factor in prop_oneof![Just(1.0), 0.3..3.0_f64],
        loss_s in proptest::option::of(1.0..60.0_f64),
    ) {
        let truth = Truth { factors: vec![(0, 0, factor)], losses: loss_s.map(|at_s| (at_s, 0)).into_iter().collect() };
        let canal = || Canal::new(workload.mean_task_s(), Awareness { locality, network: true }, 7);
        let play = |mut policy: Canal| play_in(&workload, &mut policy, &truth, f64::INFINITY);
        prop_assert_eq!(play(canal()), play(canal().plain()));
    }
}

/// Four nodes in two racks with room for two tasks each, and a job whose eight inputs are on two nodes of one rack.
fn crowded() -> Workload {
    let cluster = cluster(4, demand(2.0, 2.0, 10.0), 10.0);
    let holders = |task: u32| vec![cluster.nodes[if task.is_multiple_of(2) { 0 } else { 2 }].name.clone()];
    let mut map = stage(8, demand(1.0, 1.0, 0.0), 20.0);
    map.input = Some(Input {
        nodes: (0..8_u32).map(holders).collect(),
        network: 9.0,
        rack_extra_s: 30.0,
        off_rack_extra_s: 60.0,
    });
    let mut other = stage(8, demand(1.0, 1.0, 0.0), 20.0);
    other.input = Some(Input {
        nodes: (0..8_u32)
            .map(|task| vec![cluster.nodes[if task.is_multiple_of(2) { 1 } else { 3 }].name.clone()])
            .collect(),
        network: 9.0,
        rack_extra_s: 30.0,
        off_rack_extra_s: 60.0,
    });
    Workload::new(cluster, vec![job("A", &[map]), job("B", &[other])]).unwrap()
}

/// Each node has inputs for all it can run, so nothing needs to be read from elsewhere; a policy that fills node after node
/// with the first job reads from elsewhere.
#[test]
fn awareness_of_inputs_reads_less_from_elsewhere() {
    let workload = crowded();
    let away = |number: usize| {
        let schedule = play(&workload, policy(number, 20.0).as_mut(), f64::INFINITY);
        (schedule.runs.iter().filter(|run| run.locality != Locality::Node).count(), schedule.makespan_s())
    };
    let (aware, oblivious, srjf) = (away(0), away(2), away(5));
    assert!(aware.0 == 0 && (aware.1 - 40.0).abs() < 1e-9, "{aware:?}");
    assert!(oblivious.0 > 0 && srjf.0 > 0, "{oblivious:?} {srjf:?}");
}

#[test]
fn the_size_of_a_non_local_fragment_by_hand() {
    let workload = crowded();
    let stage = &workload.jobs()[0].stages[0];
    // Half of two resources; network 0.9 × 20 s and 30 s × 0.5 over that and 20 s × 0.5.
    let fragment = stage.non_local_fragment(Locality::Rack, workload.cluster().nodes[0].capacity);
    assert!((fragment - 33.0 / 43.0).abs() < 1e-12, "{fragment}");
    assert!(stage.non_local_fragment(Locality::Node, workload.cluster().nodes[0].capacity).abs() < 1e-12);
}

/// Only the network is short, and the task that has it takes longer than was told: a job whose fair completion is in danger
/// starts with what there is; with another policy it waits.
#[test]
fn a_job_that_can_wait_no_longer_starts_with_less_network() {
    let holder = job("holder", &[stage(1, demand(1.0, 1.0, 2.0), 10.0)]);
    let late = job("late", &[stage(1, demand(1.0, 1.0, 3.0), 10.0)]);
    let workload = Workload::new(cluster(2, demand(10.0, 10.0, 4.0), 4.0), vec![holder, late]).unwrap();
    let truth = Truth { factors: vec![(0, 0, 50.0)], losses: Vec::new() };
    let end_s = |number: usize| play_in(&workload, policy(number, 10.0).as_mut(), &truth, f64::INFINITY);
    let own = end_s(0);
    let run = own.runs.iter().find(|run| run.job == 1).unwrap();
    assert!((run.network - 2.0).abs() < 1e-9 && own.completion_s(1) < 50.0, "{run:?}");
    assert!(end_s(5).completion_s(1) > 500.0);
}

#[test]
fn what_is_wrong_with_inputs_is_named() {
    let wrong = |change: &dyn Fn(&mut Input), part: &str| {
        let good = crowded();
        let mut jobs = good.jobs().to_vec();
        change(jobs[0].stages[0].input.as_mut().unwrap());
        let said: Vec<String> =
            Workload::new(good.cluster().clone(), jobs).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|line| line.contains(part)), "{part} not in {said:?}");
    };
    wrong(&|input| input.network = f64::NAN, "jobs[0] (A).stages[0].input.network: is NaN");
    wrong(&|input| input.network = 11.0, "jobs[0] (A).stages[0].input.network: is 11; it must be at most");
    wrong(&|input| input.rack_extra_s = -1.0, "jobs[0] (A).stages[0].input.rack_extra_s: is -1");
    wrong(&|input| input.off_rack_extra_s = 1.0, "jobs[0] (A).stages[0].input.off_rack_extra_s: is 1");
    wrong(&|input| input.off_rack_extra_s = 1e7, "in mean durations: is "); // a policy would wake for hours
    wrong(&|input| input.nodes.truncate(3), "jobs[0] (A).stages[0].input.nodes: their number: is 3");
    wrong(
        &|input| input.nodes[2] = vec![HostId::new("none").unwrap()],
        "jobs[0] (A).stages[0].input.nodes[2]: is none",
    );
}

/// Where its input is does not make a job's fair completion later, so it does not wait for the node that has it.
#[test]
fn a_job_whose_input_is_on_a_busy_node_starts_away_from_it_when_it_would_be_late() {
    let mut cluster = cluster(2, demand(1.0, 0.0, 10.0), 10.0);
    cluster.nodes[1].capacity.memory = 1.0;
    let long = stage(1, demand(1.0, 1.0, 0.0), 1_000.0);
    let mut short = stage(1, demand(1.0, 0.0, 0.0), 10.0);
    let nodes = vec![vec![cluster.nodes[1].name.clone()]];
    short.input = Some(Input { nodes, network: 0.0, rack_extra_s: 0.0, off_rack_extra_s: 90.0 });
    let mut jobs = vec![job("long", &[long]), job("short", &[short])];
    jobs[1].release_s = 1.0;
    let workload = Workload::new(cluster, jobs).unwrap();
    let schedule = play(&workload, policy(0, workload.mean_task_s()).as_mut(), f64::INFINITY);
    assert!((schedule.completion_s(1) - 101.0).abs() < 1e-6, "{schedule:?}");
}
