//! The paper's scenarios by its own coefficients (Gandhi et al., §V), and what must hold for any situation.

use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::Goal;
use gleaner_types::units::{Dollars, DollarsPerHour};
use proptest::prelude::*;

use super::decide::{DecideError, Decision, Wanted, decide};
use super::equations::{Coefficients, Layout, Polynomial, TERA_SORT, WORD_COUNT, Work};
use super::estimate::{Change, Estimator, When};
use super::situation::{Following, JobState, LostOutput, NewNode, Node, OtherJob, Situation};

const SLA: Wanted = Wanted { goal: Goal::Deadline { within_s: 3_000.0 }, reserve: 0.0, spent: Dollars::ZERO };

fn within(within_s: f64) -> Wanted {
    Wanted { goal: Goal::Deadline { within_s }, ..SLA }
}

fn node(name: &str, map_slots_per_core: u32, reduce_slots_per_core: u32) -> Node {
    Node {
        name: HostId::new(name).unwrap(),
        cores: 1,
        map_slots_per_core,
        reduce_slots_per_core,
        speed: 1.0,
        price: DollarsPerHour::clamped(1.0),
        only_for: None,
        removable: reduce_slots_per_core == 0,
        maps_done: 0,
        map_pace_s: None,
        maps_running: Vec::new(),
        reduces_running: Vec::new(),
    }
}

fn new_node(map_slots_per_core: u32, reduce_slots_per_core: u32) -> NewNode {
    NewNode {
        most: 8,
        lead_s: 0.0,
        cores: 1,
        map_slots_per_core,
        reduce_slots_per_core,
        speed: 1.0,
        price: DollarsPerHour::clamped(1.0),
    }
}

/// WordCount of 12 GB in 190 map tasks at 1000 s: so many map nodes of one slot have `done` tasks each and a running one.
pub(crate) fn word_count(map_nodes: u32, done: u32, running: f64) -> Situation {
    let map =
        |index: u32| Node { maps_done: done, maps_running: vec![running], ..node(&format!("map-{}", index + 1), 1, 0) };
    let mut nodes: Vec<Node> = (0..map_nodes).map(map).collect();
    nodes.push(node("reduce-1", 0, 1));
    Situation {
        elapsed_s: 1_000.0,
        job: JobState {
            name: JobId::new("wordcount").unwrap(),
            input_mb: 12_288.0,
            maps: 190,
            reduces: 1,
            weight: 1.0,
            maps_safe: 0,
            reduces_done: 0,
            workload: WORD_COUNT,
        },
        nodes,
        others: Vec::new(),
        following: Vec::new(),
        map_node: Some(new_node(1, 0)),
        reduce_node: None,
        lost_output: LostOutput::Counted,
    }
}

fn decided(situation: &Situation, wanted: Wanted) -> Decision {
    situation.check().unwrap();
    decide(situation, wanted).unwrap()
}

/// §V-A, Fig. 5(a): 31 of 190 tasks are done on one map node after 1000 s.
#[test]
fn two_map_nodes_are_added_for_the_sla() {
    let found = decided(&word_count(1, 31, 0.4), SLA);
    assert_eq!((found.chosen.add_map, found.chosen.remove_map, found.chosen.meets_goal), (2, 0, true));
    // 158 tasks on three slots: 53 waves of 31.87 s; 0.6 of one of them is less, as it runs. One reduce task of 30 s.
    let f = 0.4 * 12_288.0 / 190.0 + 6.0;
    assert!((found.chosen.completion_s - (1_000.0 + 53.0 * f + 30.044)).abs() < f, "{found:?}");
    assert!(found.unchanged.unwrap().completion_s > 6_000.0);
    assert!(found.reason.starts_with("add 2 map nodes: all ends after 45 min 19 s"), "{}", found.reason);
    // With the lead time that the answer gives it still holds, with more not.
    let latest = found.latest_lead_s.unwrap();
    let mut later = word_count(1, 31, 0.4);
    later.map_node.as_mut().unwrap().lead_s = latest - 1.0;
    assert_eq!(decided(&later, SLA).chosen.add_map, 2);
    later.map_node.as_mut().unwrap().lead_s = latest + 1.0;
    assert_eq!(decided(&later, SLA).chosen.add_map, 3);
}

/// §V-B, Fig. 6(a): with four map nodes one can go; who forgets what is lost lets two go.
#[test]
fn lost_map_output_keeps_a_node() {
    let mut situation = word_count(4, 31, 0.4);
    let found = decided(&situation, SLA);
    assert_eq!((found.chosen.remove_map, found.chosen.lost_maps, found.chosen.meets_goal), (1, 31, true));
    assert_eq!(found.remove.len(), 1);
    situation.lost_output = LostOutput::Forgotten;
    let naive = decided(&situation, SLA);
    assert_eq!((naive.chosen.remove_map, naive.chosen.lost_maps), (2, 0));
    // What the naive one chose ends late if what is lost counts.
    situation.lost_output = LostOutput::Counted;
    let change = Change { remove: &[0, 1], ..Change::NONE };
    let truth = Estimator::new(&situation).unwrap().remaining(&change).unwrap();
    assert!(1_000.0 + truth.total_s() > 3_000.0 && truth.lost_maps == 62);
}

/// §V-C, Fig. 7: one of two map nodes has failed, so its tasks are not among those done.
#[test]
fn a_failed_node_is_replaced_by_two() {
    let found = decided(&word_count(1, 31, 0.4), SLA);
    assert_eq!(found.chosen.add_map, 2);
    let mut gone = word_count(1, 31, 0.4);
    gone.nodes.remove(0);
    let found = decided(&gone, SLA);
    assert_eq!((found.unchanged, found.chosen.add_map), (None, 4), "without a map node it never ends");
    gone.map_node.as_mut().unwrap().most = 0;
    assert_eq!(decide(&gone, SLA), Err(DecideError::NeverEnds));
}

/// §V-D: 2 GB in 32 map tasks, at 360 s. (a) two cores shared with another job throughout; (b) the other came at 120 s.
#[test]
fn jobs_that_share_nodes() {
    let mut situation = word_count(0, 0, 0.0);
    let cores = |cores| Node { cores, map_slots_per_core: 1, removable: false, ..node("both", 1, 1) };
    situation.job.input_mb = 2_048.0;
    situation.job.maps = 32;
    situation.elapsed_s = 360.0;
    situation.others = vec![OtherJob { name: JobId::new("other").unwrap(), weight: 1.0, arrives_s: 0.0, core_s: None }];
    situation.nodes = vec![Node { maps_done: 11, maps_running: vec![0.39], ..cores(2) }];
    situation.map_node = Some(NewNode { cores: 2, ..new_node(1, 1) });
    let found = decided(&situation, within(600.0));
    assert_eq!((found.chosen.add_map, found.chosen.meets_goal), (1, true), "{found:?}");
    assert!(found.unchanged.unwrap().completion_s > 900.0);
    situation.nodes[0].maps_done = 15;
    situation.map_node = Some(new_node(1, 1));
    let found = decided(&situation, within(600.0));
    assert_eq!((found.chosen.add_map, found.chosen.meets_goal), (2, true), "{found:?}");
    // The other job is over in a moment: no node is missing.
    situation.others[0].core_s = Some(5.0);
    assert_eq!(decided(&situation, within(700.0)).chosen.add_map, 0);
    // It will come when ours has ended.
    situation.others[0] = OtherJob { arrives_s: 1e4, core_s: None, ..situation.others[0].clone() };
    assert_eq!(decided(&situation, within(700.0)).chosen.add_map, 0);
}

/// §V-A, Fig. 5(b): TeraSort after its map stage; a second reduce node.
#[test]
fn a_reduce_node_is_added_after_the_map_stage() {
    let mut situation = word_count(1, 149, 0.4);
    let job = &mut situation.job;
    (job.input_mb, job.maps, job.reduces, job.workload) = (10e9 / f64::from(1 << 20), 149, 12, TERA_SORT);
    situation.nodes[0].maps_running.clear();
    situation.nodes[0].removable = false;
    situation.nodes[1].reduces_running = vec![0.0];
    situation.elapsed_s = 1_401.0;
    situation.reduce_node = Some(new_node(0, 1));
    let found = decided(&situation, within(2_000.0));
    assert_eq!((found.chosen.add_map, found.chosen.add_reduce, found.chosen.meets_goal), (0, 1, true), "{found:?}");
    let unchanged = found.unchanged.unwrap();
    let per_task = situation.job.input_mb / 12.0;
    let later = 6.2e-2 * per_task + 5e-6 * per_task * per_task;
    let first = 16.3 + 3.9e-4 * per_task + 3.5 * 149.0 / 12.0;
    assert!((unchanged.completion_s - (1_401.0 + first + 11.0 * later)).abs() < 0.01, "{unchanged:?}");
}

/// §V-B, Fig. 6(b): a job that others follow gives nodes back where nothing is lost.
#[test]
fn nodes_go_between_jobs_where_nothing_is_lost() {
    let mut situation = word_count(4, 10, 0.5);
    situation.job.maps = 60;
    situation.job.input_mb = 60.0 * 64.0;
    let last = Following { input_mb: 1_536.0, maps: 100, reduces: 0, times: 1, workload: WORD_COUNT };
    situation.following = vec![last];
    let found = decided(&situation, within(2_000.0));
    assert_eq!((found.chosen.when, found.chosen.lost_maps), (When::SafePoint, 0), "{found:?}");
    assert!(found.chosen.remove_map > 0 && found.chosen.meets_goal);
    // The node is paid for until then.
    let now = found.candidates.iter().find(|own| own.when == When::Now && own.remove_map == found.chosen.remove_map);
    assert!(now.unwrap().lost_maps > 0 && now.unwrap().completion_s > found.chosen.completion_s);
}

#[test]
fn a_deadline_that_cannot_be_met_is_said_and_a_budget_kept() {
    let found = decided(&word_count(1, 31, 0.4), within(1_100.0));
    assert!(!found.chosen.meets_goal && found.chosen.add_map == 8 && found.latest_lead_s.is_none());
    assert!(found.reason.contains("cannot be met"), "{}", found.reason);
    let cost = |budget: Option<f64>| Wanted { goal: Goal::Cost { budget: budget.map(Dollars::clamped) }, ..SLA };
    let cheapest = decided(&word_count(1, 31, 0.4), cost(None)).chosen.cost.amount();
    let within = decided(&word_count(1, 31, 0.4), cost(Some(cheapest * 1.1))).chosen;
    assert!(within.meets_goal && within.cost.amount() <= cheapest * 1.1);
    let none = decided(&word_count(1, 31, 0.4), cost(Some(cheapest * 0.5))).chosen;
    assert!(!none.meets_goal && (none.cost.amount() - cheapest).abs() < 1e-12);
    let energy = decide(&word_count(1, 31, 0.4), Wanted { goal: Goal::Energy, ..SLA });
    assert_eq!(energy, Err(DecideError::Energy));
}

#[test]
fn a_slow_workload_is_seen_in_its_finished_tasks() {
    let mut situation = word_count(1, 31, 0.4);
    situation.nodes[0].map_pace_s = Some(2.0 * (0.4 * 12_288.0 / 190.0 + 6.0));
    let found = decided(&situation, SLA);
    assert!(found.factor > 1.7 && found.chosen.add_map > 3, "{found:?}");
}

/// Finished tasks that took just what the models say, on a node of another speed where two share a core, correct nothing.
#[test]
fn tasks_as_foreseen_correct_nothing_whatever_shares_their_core() {
    let f = 0.4 * 12_288.0 / 190.0 + 6.0;
    for (speed, slowness) in [(2.0, 1.0), (0.5, 1.0), (1.0, 2.0)] {
        let mut situation = word_count(1, 31, 0.4);
        situation.job.workload.map_wait_s = 6.6;
        situation.nodes[0].speed = speed;
        situation.nodes[0].map_slots_per_core = 2;
        situation.nodes[0].map_pace_s = Some(slowness * (2.0 * (f - 6.6)) / speed);
        let found = decided(&situation, SLA);
        // The correction is weighed against what was known before, so that of twice as slow tasks is not quite 2.
        let near = if slowness > 1.0 { found.factor > 1.7 } else { (found.factor - 1.0).abs() < 1e-9 };
        assert!(near, "speed {speed}: {}", found.factor);
    }
}

/// Tasks that take so many seconds on a core, whatever their input; λ is such that shuffling takes `shuffle_s` of a job of ten map tasks and one
/// reduce task.
fn constant(map_s: f64, first_s: f64, later_s: f64, shuffle_s: f64) -> Coefficients {
    let polynomial = |own| Polynomial([own, 0.0, 0.0]);
    Coefficients {
        map: polynomial(map_s),
        reduce_first: polynomial(first_s),
        reduce_later: polynomial(later_s),
        shuffle: shuffle_s / 10.0,
        ..Coefficients::default()
    }
}

/// At 1000 s, a job with so many tasks on nodes that cannot be added to.
fn small(workload: Coefficients, (maps, reduces, reduces_done): (u32, u32, u32), nodes: Vec<Node>) -> Situation {
    let base = word_count(0, 0, 0.0);
    let job = JobState { input_mb: 1_000.0, maps, reduces, reduces_done, workload, ..base.job };
    let situation = Situation { job, nodes, map_node: None, ..base };
    situation.check().unwrap();
    situation
}

fn end_s(situation: &Situation, remove: &[usize]) -> f64 {
    let change = Change { remove, ..Change::NONE };
    situation.elapsed_s + Estimator::new(situation).unwrap().remaining(&change).unwrap().total_s()
}

/// Nodes by price and speed, and a reduce node of one dollar; nothing is done yet.
fn priced(nodes: &[(f64, f64)]) -> Situation {
    let mut situation = word_count(u32::try_from(nodes.len()).unwrap(), 0, 0.0);
    situation.elapsed_s = 0.0;
    for (node, (price, speed)) in situation.nodes.iter_mut().zip(nodes) {
        *node =
            Node { price: DollarsPerHour::clamped(*price), speed: *speed, maps_running: Vec::new(), ..node.clone() };
    }
    situation
}

#[test]
fn dear_and_slow_nodes_go_first() {
    let names = |found: &Decision| found.remove.iter().map(ToString::to_string).collect::<Vec<_>>();
    let found = decided(&priced(&[(0.01, 1.0), (1.0, 1.0), (50.0, 1.0), (100.0, 1.0)]), within(6_500.0));
    assert_eq!(names(&found), ["map-2", "map-3", "map-4"]);
    assert!((found.chosen.price.per_hour() - 1.01).abs() < 1e-9 && found.chosen.meets_goal && found.all_sets_tried);
    let found = decided(&priced(&[(1.0, 4.0), (1.0, 0.1), (1.0, 0.1), (1.0, 0.1)]), within(2_000.0));
    assert_eq!(names(&found), ["map-2", "map-3", "map-4"]);
    // A large, a dear and a small node: the large one alone is just in time, and where there is time the small one is enough.
    let mut sizes = priced(&[(8.0, 1.0), (5.0, 1.0), (1.0, 1.0)]);
    (sizes.nodes[0].cores, sizes.job.maps, sizes.job.reduces) = (8, 100, 0);
    sizes.job.workload = constant(10.0, 1.0, 1.0, 0.0);
    assert_eq!(names(&decided(&sizes, within(130.0))), ["map-2", "map-3"]);
    assert_eq!(names(&decided(&sizes, within(1_000.0))), ["map-1", "map-2"]);
}

/// Forty nodes of as many prices have 10¹² sets; orders are tried, also that by price.
#[test]
fn of_many_nodes_that_differ_the_first_of_some_orders_go() {
    let prices: Vec<(f64, f64)> = (0..40).map(|index| (f64::from(1 + index * 17 % 41), 1.0)).collect();
    let found = decided(&priced(&prices), within(1_000.0));
    assert!(!found.all_sets_tried && found.chosen.meets_goal);
    // 190 tasks of 31.9 s and 30 s of reduce tasks leave time for 30 waves: seven nodes, of 1 to 7 dollars, and the reduce node.
    assert!((found.chosen.price.per_hour() - 29.0).abs() < 1e-9, "{}", found.reason);
    assert_eq!(found.candidates.len(), 40 + 8);
}

/// The output of the node that goes is lost: one map task runs again, and the reduce task, of which a quarter is done, goes on.
#[test]
fn a_running_reduce_task_keeps_what_it_has_done() {
    let nodes = || {
        let a = Node { maps_done: 4, reduces_running: vec![0.25], ..node("a", 1, 1) };
        let b = Node { maps_done: 5, speed: 4.0, ..node("b", 1, 1) };
        vec![a, b, Node { maps_done: 1, ..node("c", 1, 0) }]
    };
    let copied = small(constant(10.0, 400.0, 400.0, 0.0), (10, 1, 0), nodes());
    assert!((end_s(&copied, &[]) - 1_300.0).abs() < 1e-3, "{}", end_s(&copied, &[]));
    assert!((end_s(&copied, &[2]) - 1_300.0).abs() < 1e-3, "it has copied all: {}", end_s(&copied, &[2]));
    // Of 560 s, 160 are copying, and it has done 140: it waits for the map task, which takes 2.5 s, or 10 s on the slower node.
    let copies = small(constant(10.0, 400.0, 400.0, 160.0), (10, 1, 0), nodes());
    assert!((end_s(&copies, &[]) - 1_420.0).abs() < 1e-3, "{}", end_s(&copies, &[]));
    assert!((end_s(&copies, &[2]) - 1_430.0).abs() < 1e-3, "{}", end_s(&copies, &[2]));
    // Without its node four map tasks run again, one of them on the slower node, and it begins anew on the faster one.
    assert!((end_s(&copies, &[0]) - 1_270.0).abs() < 1e-3, "{}", end_s(&copies, &[0]));
}

#[test]
fn reduce_tasks_are_of_the_first_wave_while_the_slots_hold_all_that_began() {
    let of = |reduces, done, parts: &[f64]| {
        let a = Node { maps_done: 10, speed: 2.0, ..node("a", 1, 1) };
        let b = Node { maps_done: 10, reduces_running: parts.to_vec(), ..node("b", 1, 1) };
        end_s(&small(constant(10.0, 400.0, 100.0, 0.0), (20, reduces, done), vec![a, b]), &[])
    };
    // One of two is done, and the other has half of 400 s before it.
    assert!((of(2, 1, &[0.5]) - 1_200.0).abs() < 1e-3, "{}", of(2, 1, &[0.5]));
    // A third starts beside it on the faster node, in a later wave: 50 s.
    assert!((of(3, 1, &[0.5]) - 1_200.0).abs() < 1e-3, "{}", of(3, 1, &[0.5]));
    // Two were done before it: it has half of 100 s before it.
    assert!((of(3, 2, &[0.5]) - 1_050.0).abs() < 1e-3, "{}", of(3, 2, &[0.5]));
}

/// At 0 both nodes take a task of three, at 100 s the fast one takes the third, and all wait for the slow one.
#[test]
fn a_slow_node_takes_a_task_too() {
    let nodes = vec![node("fast", 1, 0), Node { speed: 0.25, ..node("slow", 1, 0) }];
    let situation = small(constant(100.0, 1.0, 1.0, 0.0), (3, 0, 0), nodes);
    assert!((end_s(&situation, &[]) - 1_400.0).abs() < 1e-3, "{}", end_s(&situation, &[]));
}

#[test]
fn tasks_that_run_too_long_are_seen_before_one_has_finished() {
    let mut situation = word_count(4, 0, 0.1);
    assert!((decided(&situation, SLA).factor - 1.0).abs() < 1e-9);
    situation.nodes.iter_mut().take(4).for_each(|node| node.map_pace_s = Some(1_500.0));
    let found = decided(&situation, SLA);
    assert!(found.factor > 2.0, "{}", found.factor);
}

/// Sizes that took seconds to minutes.
#[test]
fn large_questions_are_answered_or_refused() {
    let mut many = word_count(4, 31, 0.4);
    many.map_node = Some(NewNode { most: 100, cores: 10_000, ..new_node(1, 0) });
    assert!(decided(&many, SLA).chosen.meets_goal);
    many.map_node = Some(NewNode { most: 4_000, ..new_node(1, 0) });
    assert_eq!(decided(&many, SLA).candidates.len(), 4_004);
    let mut shared = word_count(4, 31, 0.4);
    let other = |index: u32| OtherJob {
        name: JobId::new(format!("other-{index}")).unwrap(),
        weight: 1.0,
        arrives_s: 10.5 * f64::from(index) + 1.0,
        core_s: Some(1e5),
    };
    shared.others = (0..1_000).map(other).collect();
    assert!(decided(&shared, SLA).unchanged.is_some());
    shared.map_node = Some(NewNode { most: 10_000, ..new_node(1, 0) });
    let said = decide(&shared, SLA).unwrap_err().to_string();
    assert!(
        said.starts_with("map_node.most, reduce_node.most, nodes, others and following: give 10005 changes"),
        "{said}"
    );
    many.reduce_node = Some(NewNode { most: 4_000, ..new_node(0, 1) });
    assert!(matches!(decide(&many, SLA), Err(DecideError::TooMany { changes, .. }) if changes == 4_005 * 4_001));
}

#[test]
fn nodes_for_both_kinds_of_tasks_are_just_nodes() {
    let mut situation = word_count(1, 31, 0.4);
    situation.map_node = Some(new_node(1, 1));
    let found = decided(&situation, SLA);
    assert!(found.reason.starts_with("add 2 nodes: all ends"), "{}", found.reason);
    let mut both = word_count(4, 31, 0.4);
    both.nodes.iter_mut().for_each(|node| (node.map_slots_per_core, node.reduce_slots_per_core) = (1, 1));
    let found = decided(&both, SLA);
    assert!(found.reason.starts_with("remove ") && !found.reason.contains("reduce node"), "{}", found.reason);
}

fn clusters() -> impl Strategy<Value = (Situation, Layout)> {
    let sizes = (1_u32..300, 1_u32..20, 8.0..128.0_f64, 1_u32..9, 1_u32..4, 1_u32..5, 1_u32..4);
    sizes.prop_map(|(maps, reduces, task_mb, map_cores, map_slots, reduce_cores, reduce_slots)| {
        let mut situation = word_count(0, 0, 0.0);
        situation.elapsed_s = 0.0;
        situation.job.maps = maps;
        situation.job.reduces = reduces;
        situation.job.input_mb = task_mb * f64::from(maps);
        let map = Node { cores: map_cores, ..node("map-1", map_slots, 0) };
        let reduce = Node { cores: reduce_cores, ..node("reduce-1", 0, reduce_slots) };
        situation.nodes = vec![map, reduce];
        let layout = Layout {
            map_cores: map_cores.into(),
            map_slots_per_core: map_slots,
            reduce_cores: reduce_cores.into(),
            reduce_slots_per_core: reduce_slots,
        };
        (situation, layout)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A job that has not begun, on equal nodes that are there: Eq. 10 to the letter.
    #[test]
    fn from_the_start_on_equal_nodes_it_is_equation_10((situation, layout) in clusters()) {
        situation.check().unwrap();
        let work = Work { input_mb: situation.job.input_mb, maps: situation.job.maps, reduces: situation.job.reduces };
        let rest = Estimator::new(&situation).unwrap().remaining(&Change::NONE).unwrap();
        let (map_s, reduce_s) =
            (WORD_COUNT.map_stage_s(work, layout).unwrap(), WORD_COUNT.reduce_stage_s(work, layout).unwrap());
        prop_assert!((rest.map_s - map_s).abs() < 1e-4 * map_s, "{} and {map_s}", rest.map_s);
        prop_assert!((rest.reduce_s - reduce_s).abs() < 1e-4 * (map_s + reduce_s), "{} and {reduce_s}", rest.reduce_s);
    }

    /// More nodes are not later and a longer lead time is not earlier, but for a task on a shared core: the last factor of Eq. 3 changes in
    /// whole tasks. The decision is one of the candidates, of which none that meets the deadline has a lower price.
    #[test]
    fn decisions_are_consistent(
        (mut situation, _) in clusters(),
        done in 0.0..1.0_f64,
        lead_s in 0.0..200.0_f64,
        within_s in 10.0..20_000.0_f64,
    ) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of 300")]
        let done = (done * f64::from(situation.job.maps)) as u32;
        situation.nodes[0].maps_done = done;
        situation.nodes.push(node("map-2", 1, 0));
        situation.map_node.as_mut().unwrap().lead_s = lead_s;
        situation.check().unwrap();
        let estimator = Estimator::new(&situation).unwrap();
        let end = |add_map, lead_s| {
            let change = Change { add_map, lead_s, ..Change::NONE };
            estimator.remaining(&change).unwrap().total_s()
        };
        let work = Work { input_mb: situation.job.input_mb, maps: situation.job.maps, reduces: situation.job.reduces };
        let task_s = f64::from(situation.nodes[0].map_slots_per_core) * WORD_COUNT.map_alone_s(work).unwrap();
        for many in 0..5 {
            prop_assert!(end(many + 1, None) <= end(many, None) + task_s + 1e-3);
            prop_assert!(end(many + 1, None) <= end(many + 1, Some(lead_s + 50.0)) + task_s + 1e-3);
        }
        let found = decide(&situation, within(within_s)).unwrap();
        prop_assert!(found.candidates.contains(&found.chosen));
        let cheaper = |own: &&super::decide::Candidate| own.meets_goal && own.price < found.chosen.price;
        prop_assert!(!found.chosen.meets_goal || found.candidates.iter().find(cheaper).is_none());
        prop_assert!(found.chosen.meets_goal || found.candidates.iter().all(|own| !own.meets_goal));
        prop_assert_eq!(found.remove.len(), (found.chosen.remove_map + found.chosen.remove_reduce) as usize);
    }

    /// Of nodes that differ no set that could go leaves a cheaper cluster that meets the deadline.
    #[test]
    fn no_cheaper_set_is_hidden(
        nodes in prop::collection::vec((1_u32..20, 1_u32..8, 0_u32..30), 2..6),
        within_s in 500.0..20_000.0_f64,
    ) {
        let own: Vec<(f64, f64)> = nodes.iter().map(|(price, speed, _)| ((*price).into(), f64::from(*speed) / 2.0)).collect();
        let mut situation = priced(&own);
        situation.nodes.iter_mut().zip(&nodes).for_each(|(node, (.., done))| node.maps_done = *done);
        situation.map_node = None;
        let found = decided(&situation, within(within_s));
        let estimator = Estimator::new(&situation).unwrap();
        let mut cheapest = f64::INFINITY;
        for set in 0..1_usize << nodes.len() {
            let remove: Vec<usize> = (0..nodes.len()).filter(|index| (set >> index) & 1 == 1).collect();
            let rest = estimator.remaining(&Change { remove: &remove, ..Change::NONE }).unwrap();
            if rest.total_s() <= within_s {
                let kept = situation.nodes.iter().enumerate().filter(|(index, _)| !remove.contains(index));
                cheapest = kept.map(|(_, node)| node.price.per_hour()).sum::<f64>().min(cheapest);
            }
        }
        prop_assert_eq!(found.chosen.meets_goal, cheapest.is_finite());
        if found.chosen.meets_goal {
            prop_assert!((found.chosen.price.per_hour() - cheapest).abs() < 1e-9, "{} and {cheapest}", found.reason);
        }
    }
}
