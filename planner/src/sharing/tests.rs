//! The paper's worked example (§5.2.1), equations by hand, and properties of schedules.

mod fair_times;
mod inputs;
mod losses;

use gleaner_types::id::{HostId, JobId};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::baselines::{Delay, Fifo, Srjf};
use super::canal::{Awareness, Canal};
use super::credit::table;
use super::drf::Drf;
use super::engine::{Policy, Run, Schedule, play};
use super::fair::{self, Claim, FairTimes};
use super::input::{Cluster, Job, Node, Stage, Workload};
use super::multifactor::Multifactor;
use super::resources::Resources;
use super::tetris::Tetris;
use super::weights::{Group, Member, Shares};

/// The length of a task of the example.
const T: f64 = 60.0;

fn demand(cpu: f64, memory: f64, network: f64) -> Resources {
    Resources { cpu, memory, disk: 0.0, network }
}

fn stage(tasks: u32, demand: Resources, duration_s: f64) -> Stage {
    Stage { tasks, demand, duration_s, input: None }
}

fn cluster(nodes: u32, capacity: Resources, switch: f64) -> Cluster {
    let node = |index| Node { name: HostId::new(format!("n{index}")).unwrap(), capacity, rack: index % 2 };
    Cluster { nodes: (1..=nodes).map(node).collect(), switch }
}

fn job(name: &str, stages: &[Stage]) -> Job {
    Job { name: JobId::new(name).unwrap(), release_s: 0.0, stages: stages.to_vec() }
}

fn example() -> Workload {
    example_of(T)
}

fn example_of(length_s: f64) -> Workload {
    let reduce = stage(2, demand(0.0, 0.0, 1.0), length_s);
    let jobs = vec![
        job("A", &[stage(3, demand(4.0, 12.0, 0.0), length_s)]),
        job("B", &[stage(4, demand(8.0, 4.0, 0.0), length_s), reduce.clone()]),
        job("C", &[stage(6, demand(5.0, 3.0, 0.0), length_s), reduce]),
        job("D", &[stage(3, demand(10.0, 6.0, 0.0), length_s)]),
    ];
    Workload::new(cluster(2, demand(20.0, 20.0, 2.0), 2.0), jobs).unwrap()
}

fn canal(workload: &Workload) -> Schedule {
    play(workload, &mut Canal::new(workload.mean_task_s(), Awareness::BOTH, 1), f64::INFINITY)
}

fn drf(workload: &Workload) -> Schedule {
    play(workload, &mut Drf, f64::INFINITY)
}

fn close(own: &[f64], expected: &[f64]) {
    let equal = own.len() == expected.len() && own.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(equal, "{own:?} is not {expected:?}");
}

/// Table 5.5, for task lengths that do not add up without rounding too.
#[test]
fn completions_of_the_example() {
    for length_s in [T, 0.1, 7_000.3] {
        let workload = example_of(length_s);
        let ends = |schedule: Schedule| (0..4).map(|job| schedule.completion_s(job) / length_s).collect::<Vec<_>>();
        close(&ends(play(&workload, &mut Tetris, f64::INFINITY)), &[2.0, 4.0, 5.0, 2.0]);
        close(&ends(canal(&workload)), &[2.0, 2.0, 3.0, 3.0]);
        close(&ends(drf(&workload)), &[3.0, 5.0, 4.0, 3.0]);
    }
}

/// Table 5.6, and that all credit is paid back in the end.
#[test]
fn credit_of_the_example() {
    let workload = example();
    let rows = table(&workload, &drf(&workload), &canal(&workload), T, 1_000);
    let of = |job: usize| rows.iter().map(|row| row.credits[job] / T).collect::<Vec<_>>();
    close(&of(1), &[0.6, 1.4, 1.2, 1.0, 0.0]);
    close(&rows.iter().map(|row| row.at_s / T).collect::<Vec<_>>(), &[1.0, 2.0, 3.0, 4.0, 5.0]);
    close(&rows[4].credits, &[0.0; 4]);
    let coarse = table(&workload, &drf(&workload), &canal(&workload), T, 2);
    close(&coarse.iter().map(|row| row.at_s / T).collect::<Vec<_>>(), &[3.0, 6.0]);
}

#[test]
fn divisible_shares_by_hand() {
    let shares = |claims: &[Claim]| {
        let mut own = Vec::new();
        fair::shares(claims, Resources::from_parts([1.0; 4]), &mut own);
        own
    };
    let claim = |cpu, memory, most| Claim { direction: demand(cpu, memory, 0.0), most, weight: 1.0 };
    // A of DRF's own paper in parts: one wants CPU by memory 1:1/3, the other 1/3:1. Equal until a resource is used up.
    close(&shares(&[claim(1.0, 1.0 / 3.0, 9.0), claim(1.0 / 3.0, 1.0, 9.0)]), &[0.75, 0.75]);
    // The first cannot use more than a tenth; the others get what it leaves.
    close(&shares(&[claim(1.0, 0.0, 0.1), claim(1.0, 0.0, 9.0), claim(1.0, 0.0, 9.0)]), &[0.1, 0.45, 0.45]);
    // What uses no CPU grows when the CPU is used up.
    close(&shares(&[claim(1.0, 0.0, 9.0), claim(1.0, 0.0, 9.0), claim(0.0, 1.0, 9.0)]), &[0.5, 0.5, 1.0]);
    // 4 + 2/10 on the CPU: all have 1/4.2. What is left of the network goes to those that use little else, evenly.
    let sorter = |cpu, most| Claim { direction: demand(cpu, 0.0, 1.0), most, weight: 1.0 };
    let busy = [claim(1.0, 0.0, 9.0); 4];
    let both = |first: Claim, second: Claim| shares(&[&[first, second], &busy[..]].concat());
    close(&both(sorter(0.1, 0.9), sorter(0.1, 0.9))[..3], &[0.5, 0.5, 1.0 / 4.2]);
    // Twice the weight is twice the share; what one cannot use goes to the others by weight.
    let weighed = |weight, most| Claim { weight, ..claim(1.0, 0.0, most) };
    close(&shares(&[weighed(1.0, 9.0), weighed(2.0, 18.0), weighed(1.0, 9.0)]), &[0.25, 0.5, 0.25]);
    close(&shares(&[weighed(2.0, 0.2), weighed(1.0, 9.0), weighed(3.0, 27.0)]), &[0.2, 0.2, 0.6]);
    // No more than all its tasks, and no more of the CPU than its dominant share was.
    close(&both(sorter(0.1, 0.4), sorter(0.1, 0.9))[..2], &[0.4, 0.6]);
    close(&shares(&[&[sorter(0.5, 0.9)], &busy[..]].concat())[..1], &[2.0 / 4.5]);
}

/// 10/3 × f of the CPU is used, so f = 0.3. C and D end their CPU stages at 2.5 T. On what they leave A and B have 2/3 each,
/// by the memory, so B's ends at 2.575 T; the last 0.1 T of A runs at 0.9, all its tasks. C has the network alone for 0.075 T, and shares it with B until 4.425 T.
#[test]
fn divisible_times_of_the_example() {
    let workload = example();
    let times = FairTimes::new(&workload, f64::INFINITY);
    let ends: Vec<f64> = times.ends_s.iter().flatten().map(|end| end / T).collect();
    close(&ends, &[2.575 + 0.1 / 0.9, 2.575, 4.5, 2.5, 4.425, 2.5]);
    // B may lend what C holds of the full network; C, which ends first, nothing; A and D are not network-intensive.
    let lendable = |job, now_s| times.lendable(&workload, job, now_s).map(|lent| lent / T);
    close(
        &[lendable(1, 0.0).unwrap(), lendable(1, 4.0 * T).unwrap(), lendable(2, 0.0).unwrap()],
        &[0.925, 0.2125, 0.0],
    );
    assert_eq!((lendable(0, 0.0), lendable(3, 0.0)), (None, None));
}

#[test]
fn what_is_wrong_is_named() {
    let good = example();
    let wrong = |change: &dyn Fn(&mut Vec<Job>, &mut Cluster), part: &str| {
        let (mut jobs, mut cluster) = (good.jobs().to_vec(), good.cluster().clone());
        change(&mut jobs, &mut cluster);
        let said: Vec<String> = Workload::new(cluster, jobs).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|line| line.contains(part)), "{part} not in {said:?}");
    };
    wrong(&|jobs, _| jobs[1].stages.clear(), "jobs[1] (B).stages: their number: is 0");
    wrong(&|jobs, _| jobs[1].stages[1].tasks = 0, "jobs[1] (B).stages[1].tasks: is 0");
    wrong(&|jobs, _| jobs[1].stages[1].tasks = 1_000_000, "jobs[1] (B).stages[1].tasks: is 1000000");
    wrong(&|jobs, _| jobs[0].stages[0].demand.cpu = -1.0, "jobs[0] (A).stages[0].demand.cpu: is -1");
    wrong(&|jobs, _| jobs[0].stages[0].demand.memory = f64::NAN, "jobs[0] (A).stages[0].demand.memory: is NaN");
    wrong(
        &|jobs, _| jobs[0].stages[0].demand = Resources::default(),
        "jobs[0] (A).stages[0].demand: is Resources { cpu: 0.0",
    );
    wrong(
        &|jobs, _| jobs[0].stages[0].demand = demand(1e-300, 0.0, 0.0),
        "it must be more than 0.000000000001 of the cluster's",
    );
    wrong(&|jobs, _| jobs[0].stages[0].demand.cpu = 21.0, "at most what one node has");
    wrong(&|_, cluster| cluster.switch = 0.5, "jobs[2] (C).stages[1].demand.network: is 1; it must be at most");
    wrong(&|jobs, _| jobs[3].stages[0].duration_s = 0.0, "jobs[3] (D).stages[0].duration_s: is 0");
    wrong(&|jobs, _| jobs[3].release_s = f64::INFINITY, "jobs[3] (D).release_s: is inf");
    wrong(&|jobs, _| jobs[3].name = jobs[0].name.clone(), "jobs[3].name: is A; it must be the only one");
    wrong(&|jobs, _| jobs.clear(), "jobs: their number: is 0");
    wrong(&|_, cluster| cluster.nodes.clear(), "cluster.nodes: their number: is 0");
    wrong(&|_, cluster| cluster.nodes[1].capacity.disk = f64::INFINITY, "cluster.nodes[1] (n2).capacity.disk: is inf");
}

/// One to five jobs of one or two stages that arrive within a minute, on one to four nodes of 16 cores, 16 GB and a link of
/// 4. Tasks need up to `largest` cores and GB, and up to 2 of the switch, which has `switch` for each node.
fn workloads(largest: u32, switch: f64) -> impl Strategy<Value = Workload> {
    let amount = 1..=largest;
    let stage =
        (1..12_u32, amount.clone(), amount, 0..=2_u32, 1..6_u32).prop_map(|(tasks, cpu, memory, network, length)| {
            stage(tasks, demand(cpu.into(), memory.into(), network.into()), 5.0 * f64::from(length))
        });
    let job = (0..60_u32, proptest::collection::vec(stage, 1..3));
    (1..5_u32, proptest::collection::vec(job, 1..6)).prop_map(move |(nodes, jobs)| {
        let named = |(index, (release_s, stages)): (usize, (u32, Vec<Stage>))| Job {
            name: JobId::new(format!("j{index}")).unwrap(),
            release_s: release_s.into(),
            stages,
        };
        let jobs = jobs.into_iter().enumerate().map(named).collect();
        Workload::new(cluster(nodes, demand(16.0, 16.0, 4.0), switch * f64::from(nodes)), jobs).unwrap()
    })
}

/// Checks a schedule without the engine's state: every task runs once and in its job's order, nothing is ever above
/// capacity, and no task that fits waits.
fn check(workload: &Workload, schedule: &Schedule) {
    let jobs = workload.jobs();
    let demand_of = |job: usize, stage: usize| jobs[job].stages[stage].demand.parts();
    let mut moments: Vec<f64> = schedule.runs.iter().flat_map(|run| [run.start_s, run.end_s]).collect();
    moments.extend(jobs.iter().map(|job| job.release_s));
    moments.sort_by(f64::total_cmp);
    for (job, own) in jobs.iter().enumerate() {
        for (index, stage) in own.stages.iter().enumerate() {
            let runs: Vec<_> = schedule.runs.iter().filter(|run| (run.job, run.stage) == (job, index)).collect();
            assert_eq!(runs.len(), stage.tasks as usize);
            let before_s = if index == 0 { own.release_s } else { schedule.ends_s[job][index - 1] };
            assert!(runs.iter().all(|run| run.start_s >= before_s));
            let length = |run: &&Run| {
                stage.duration_s * if run.network > 0.0 { stage.demand.network / run.network } else { 1.0 }
            };
            assert!(runs.iter().all(|run| (run.end_s - run.start_s - length(run)).abs() < 1e-9));
            let end_s = runs.iter().map(|run| run.end_s).fold(0.0, f64::max);
            assert!((end_s - schedule.ends_s[job][index]).abs() < 1e-9);
        }
    }
    for &now_s in &moments {
        let running = || schedule.runs.iter().filter(|run| run.start_s <= now_s && now_s < run.end_s);
        let used = |node: Option<usize>| {
            let here = running().filter(|run| node.is_none_or(|node| run.node == node));
            here.fold([0.0; 4], |sum: [f64; 4], run| {
                let own = Resources { network: run.network, ..jobs[run.job].stages[run.stage].demand }.parts();
                std::array::from_fn(|index| sum[index] + own[index])
            })
        };
        let switch_free = workload.cluster().switch - used(None)[3];
        assert!(switch_free >= -1e-9);
        for (node, machine) in workload.cluster().nodes.iter().enumerate() {
            let used = used(Some(node));
            let free: [f64; 4] = std::array::from_fn(|index| machine.capacity.parts()[index] - used[index]);
            assert!(free.iter().all(|free| *free >= -1e-9), "above capacity at {now_s}");
            for run in schedule.runs.iter().filter(|run| run.start_s > now_s) {
                let stages_s = &schedule.ends_s[run.job];
                let ready_s = if run.stage == 0 { jobs[run.job].release_s } else { stages_s[run.stage - 1] };
                let wanted = demand_of(run.job, run.stage);
                let room = (0..4).all(|index| wanted[index] <= free[index]) && wanted[3] <= switch_free;
                assert!(ready_s > now_s || !room, "{run:?} waits at {now_s} though node {node} has room");
            }
        }
    }
}

/// The most by which a job of a schedule ends after its fair completion, in parts of the longest task and so many epochs.
fn worst_delay(workload: &Workload, actual: &Schedule, epochs: f64) -> f64 {
    let fair = drf(workload);
    let stages = workload.jobs().iter().flat_map(|job| &job.stages);
    let allowed_s = stages.map(|stage| stage.duration_s).fold(0.0, f64::max) + epochs * workload.mean_task_s();
    let delays = (0..workload.jobs().len()).map(|job| actual.completion_s(job) - fair.completion_s(job));
    delays.fold(0.0, f64::max) / allowed_s
}

/// Jobs with these weights, each in a group of its own and half of the groups in another.
fn weighed(workload: Workload, weights: &[f64]) -> Workload {
    let group =
        |name: String, weight: f64, parent: Option<&str>| Group { name, weight, parent: parent.map(str::to_owned) };
    let named = workload.jobs().iter().zip(weights).enumerate();
    let own = named
        .map(|(index, (job, weight))| group(job.name.to_string(), *weight, index.is_multiple_of(2).then_some("half")));
    let groups = std::iter::once(group("half".to_owned(), 2.0, None)).chain(own).collect();
    let member = |job: &Job| Member { job: job.name.clone(), weight: 1.0, group: Some(job.name.to_string()) };
    let jobs = workload.jobs().iter().map(member).collect();
    workload.with_shares(&Shares { groups, jobs }).unwrap()
}

/// Two jobs of equal tasks on 16 cores, the second of three times the weight: it has 12 of them under DRF until it ends, at its
/// fair completion, and ends no later under CANAL.
#[test]
fn three_times_the_weight_is_three_times_the_share() {
    let one = stage(48, demand(1.0, 1.0, 0.0), 10.0);
    let workload = Workload::new(
        cluster(1, demand(16.0, 16.0, 4.0), 4.0),
        vec![job("a", std::slice::from_ref(&one)), job("b", std::slice::from_ref(&one))],
    );
    let shares =
        Shares { groups: Vec::new(), jobs: vec![Member { job: JobId::new("b").unwrap(), weight: 3.0, group: None }] };
    let workload = workload.unwrap().with_shares(&shares).unwrap();
    let fair = drf(&workload);
    close(&[fair.completion_s(0), fair.completion_s(1)], &[60.0, 40.0]);
    close(&[FairTimes::new(&workload, f64::INFINITY).completion_s(1)], &[40.0]);
    let own = canal(&workload);
    assert!(own.completion_s(0) < 60.0 + 1e-9 && own.completion_s(1) < 40.0 + 1e-9, "{own:?}");
}

/// Tasks of up to half a node and all of a node's part of the switch: jobs that end more than the longest task and an
/// epoch after their fair completion are rare, and much rarer than with Tetris.
#[test]
fn whole_tasks_seldom_make_a_job_late() {
    let mut runner = TestRunner::deterministic();
    let (mut late, mut late_with_tetris) = (0, 0);
    for _ in 0..400 {
        let workload = workloads(8, 2.0).new_tree(&mut runner).unwrap().current();
        late += u32::from(worst_delay(&workload, &canal(&workload), 1.0) > 1.0);
        let tetris = play(&workload, &mut Tetris, f64::INFINITY);
        late_with_tetris += u32::from(worst_delay(&workload, &tetris, 1.0) > 1.0);
    }
    assert!(late <= 8 && late_with_tetris >= 3 * late.max(4), "{late}, {late_with_tetris} of 400");
}

proptest! {
    #[test]
    fn schedules_keep_to_capacity_and_leave_nothing_idle(workload in workloads(8, 2.0)) {
        let canal = Canal::new(workload.mean_task_s(), Awareness::BOTH, 1);
        let policies: [Box<dyn Policy>; 6] = [
            Box::new(Drf),
            Box::new(Tetris),
            Box::new(canal),
            Box::new(Delay::default()),
            Box::new(Srjf),
            Box::new(Fifo),
        ];
        for mut policy in policies {
            check(&workload, &play(&workload, policy.as_mut(), f64::INFINITY));
        }
    }

    /// The same where jobs have weights: fair completions are those of DRF with these.
    #[test]
    fn no_job_with_a_weight_ends_much_after_its_fair_completion(
        workload in workloads(2, 8.0),
        weights in proptest::collection::vec(0.25..4.0_f64, 5),
    ) {
        let workload = weighed(workload, &weights);
        let delay = worst_delay(&workload, &canal(&workload), 2.0);
        // One workload of some 10,000 was half a percent above two epochs.
        prop_assert!(delay <= 1.05, "{delay}");
        for mut policy in [Box::new(Drf) as Box<dyn Policy>, Box::new(Tetris), Box::new(Multifactor::default())] {
            check(&workload, &play(&workload, policy.as_mut(), f64::INFINITY));
        }
        check(&workload, &canal(&workload));
    }

    /// Tasks of up to an eighth of a node are nearly divisible. "There is a delay of one epoch on average, and two epochs at
    /// worst" (§5.3.4). One epoch does not hold always: 2 of 4,000 workloads were 3 % above it.
    #[test]
    fn no_job_of_small_tasks_ends_much_after_its_fair_completion(workload in workloads(2, 8.0)) {
        let delay = worst_delay(&workload, &canal(&workload), 2.0);
        prop_assert!(delay <= 1.0, "{delay}");
    }
}
