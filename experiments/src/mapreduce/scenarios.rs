//! The scenarios of Gandhi et al., §V, on the plant. In: trained coefficients, a seed, a lead time. Out: what the planner decided from
//! what a controller sees, and how the same plant went on with and without it. Called by [`super`].
//!
//! GB are 1024 MB, but for TeraSort's, whose generator counts in powers of ten: 298 map tasks of 64 MB are 20·10⁹ bytes. The paper
//! gives no coefficients for its second private cloud; WordCount's are those of Table II there too. It says when it decides with two
//! jobs known at the start (360 s), not when the second arrives: 360 s too.

use gleaner_planner::mapreduce::decide::{Decision, Wanted, decide};
use gleaner_planner::mapreduce::equations::Coefficients;
use gleaner_planner::mapreduce::estimate::When;
use gleaner_planner::mapreduce::situation::{self, Following, JobState, LostOutput, NewNode, OtherJob, Situation};
use gleaner_types::id::{HostId, InvalidId, JobId};
use gleaner_types::job::Goal;
use gleaner_types::units::{Dollars, DollarsPerHour};

use super::error::BedError;
use super::plant::{Job, Node, Plant};
use super::workloads::{CLASSIFICATION, EC2_SLOWER, ITERATION, NODE_VARIATION, TERA_SORT, Trained, WORD_COUNT, slow};

/// Time from a node's failure until the cluster notices: ten heartbeats. Chosen; the paper's controller decides at once.
const NOTICED_S: f64 = 30.0;
/// Most nodes that may be added. Chosen: more than any scenario needs.
const MOST_ADDED: u32 = 8;
/// Iterations of K-means. Chosen; the paper does not say how many it ran.
const ITERATIONS: usize = 3;

/// How much slower than in training tasks are on the first private cloud. With four map nodes 60 % of 190 tasks are done at 1000 s (§V-B):
/// 35.1 s of a slot for each, where Table II has 31.9 s.
pub const HAVANA_SLOWER: f64 = 1.1;

/// What a scenario varies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// Seed of the plant.
    pub seed: u64,
    /// Time from an order until a new node takes tasks. The paper's models have none.
    pub lead_s: f64,
    /// The controller knows of it.
    pub lead_known: bool,
    /// Whether lost map output counts.
    pub lost_output: LostOutput,
    /// Tasks take so many times what they took in training; `None` for what the paper says of the scenario.
    pub slower: Option<f64>,
    /// Part of the remaining time kept in reserve by the decision.
    pub reserve: f64,
    /// The controller corrects its model by finished tasks.
    pub refit: bool,
}

impl Case {
    /// As in the paper.
    #[must_use]
    pub const fn paper(seed: u64) -> Self {
        Self {
            seed,
            lead_s: 0.0,
            lead_known: true,
            lost_output: LostOutput::Counted,
            slower: None,
            reserve: 0.0,
            refit: false,
        }
    }
}

/// What came of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Nodes added, or removed as a negative number.
    pub nodes: i32,
    /// When the planner expected the end.
    pub expected_s: f64,
    /// The end with the decision.
    pub with_s: f64,
    /// The end without it.
    pub without_s: f64,
    /// Finished map tasks that ran again because of the decision.
    pub again: u32,
    /// Part of the map tasks done over time, with the decision and without.
    pub progress: [Vec<(f64, f64)>; 2],
}

/// The plant and what is known of its nodes.
struct Bed {
    plant: Plant,
    nodes: Vec<Node>,
    case: Case,
}

const fn node(cores: u32, map_slots: u32, reduce_slots: u32) -> Node {
    Node { cores, map_slots, reduce_slots, from_s: 0.0, only_for: None }
}

fn name(index: usize) -> Result<HostId, InvalidId> {
    HostId::new(format!("node-{}", index + 1))
}

fn job_name(index: usize) -> Result<JobId, InvalidId> {
    JobId::new(format!("job-{}", index + 1))
}

/// A new node as the planner knows it.
fn new_node(of: Node, lead_s: f64) -> NewNode {
    NewNode {
        most: MOST_ADDED,
        lead_s,
        cores: of.cores,
        map_slots_per_core: of.map_slots,
        reduce_slots_per_core: of.reduce_slots,
        speed: 1.0,
        price: DollarsPerHour::clamped(1.0),
    }
}

fn word_count_job(input_mb: f64, maps: u32, submitted_s: f64, slower: f64) -> Job {
    Job { submitted_s, input_mb, maps, reduces: 1, weight: 1.0, after: None, workload: slow(WORD_COUNT, slower) }
}

impl Bed {
    fn new(case: Case, nodes: &[Node]) -> Self {
        let mut bed = Self { plant: Plant::new(case.seed, NODE_VARIATION), nodes: Vec::new(), case };
        nodes.iter().for_each(|own| _ = bed.add(*own));
        bed
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.plant.add(node)
    }

    /// What a controller sees of a job now.
    fn situation(
        &self,
        job: usize,
        of: &Job,
        workload: Coefficients,
        new: [Option<Node>; 2],
    ) -> Result<Situation, BedError> {
        let lead_s = if self.case.lead_known { self.case.lead_s } else { 0.0 };
        let mut nodes = Vec::new();
        let shared = self.nodes.iter().any(|own| own.map_slots > 0 && own.reduce_slots > 0);
        for seen in self.plant.seen(job) {
            let own = self.nodes[seen.node];
            nodes.push(situation::Node {
                name: name(seen.node)?,
                cores: own.cores,
                map_slots_per_core: own.map_slots,
                reduce_slots_per_core: own.reduce_slots,
                speed: 1.0,
                price: DollarsPerHour::clamped(1.0),
                only_for: own.only_for.map(job_name).transpose()?,
                removable: own.reduce_slots == 0 && !shared,
                maps_done: seen.maps_done,
                map_pace_s: seen.map_pace_s.filter(|_| self.case.refit),
                maps_running: seen.maps_running,
                reduces_running: seen.reduces_running,
            });
        }
        let new = new.map(|own| own.map(|own| new_node(own, lead_s)));
        Ok(Situation {
            elapsed_s: self.plant.now_s,
            job: JobState {
                name: job_name(job)?,
                input_mb: of.input_mb,
                maps: of.maps,
                reduces: of.reduces,
                weight: of.weight,
                maps_safe: 0,
                reduces_done: self.plant.reduces_done(job),
                workload,
            },
            nodes,
            others: Vec::new(),
            following: Vec::new(),
            map_node: new[0],
            reduce_node: new[1],
            lost_output: self.case.lost_output,
        })
    }

    /// Carries a decision out on a copy, runs both to the end, and compares.
    fn both(&self, decision: &Decision, new: Node, only_for: Option<usize>, job: usize) -> Result<Run, BedError> {
        let chosen = &decision.chosen;
        let (mut with, mut without) = (self.plant.clone(), self.plant.clone());
        let again = with.again(job);
        if chosen.when == When::Now {
            for gone in &decision.remove {
                for index in 0..self.nodes.len() {
                    if *gone == name(index)? {
                        with.remove(index);
                    }
                }
            }
        }
        let from_s = self.plant.now_s + self.case.lead_s;
        for _ in 0..chosen.add_map + chosen.add_reduce {
            with.add(Node { from_s, only_for, ..new });
        }
        let progress = [trace(&mut with, job), trace(&mut without, job)];
        let end_s = |plant: &Plant| plant.end_s(job).ok_or(BedError::NeverEnds(self.case.seed));
        let signed = |many: u32| i32::try_from(many).unwrap_or(i32::MAX);
        Ok(Run {
            nodes: signed(chosen.add_map + chosen.add_reduce) - signed(chosen.remove_map + chosen.remove_reduce),
            expected_s: chosen.completion_s,
            with_s: end_s(&with)?,
            without_s: end_s(&without)?,
            again: with.again(job) - again,
            progress,
        })
    }
}

/// Runs a job to its end; the part of its map tasks done every 25 s.
fn trace(plant: &mut Plant, job: usize) -> Vec<(f64, f64)> {
    let mut points = vec![(plant.now_s, 100.0 * plant.part_done(job))];
    // A scenario's longest run is some 6,000 s.
    for _ in 0..2_000 {
        if plant.end_s(job).is_some() {
            break;
        }
        plant.run(plant.now_s + 25.0, job);
        points.push((plant.now_s, 100.0 * plant.part_done(job)));
    }
    points
}

fn decided(case: Case, situation: &Situation, within_s: f64) -> Result<Decision, BedError> {
    situation
        .check()
        .map_err(|wrong| BedError::Invalid(wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
    let wanted = Wanted { goal: Goal::Deadline { within_s }, reserve: case.reserve, spent: Dollars::ZERO };
    Ok(decide(situation, wanted)?)
}

/// WordCount of 12 GB in 190 map tasks on so many map nodes, up to 1000 s.
fn word_count_at_1000(case: Case, map_nodes: usize) -> (Bed, usize, Job) {
    let mut nodes = vec![node(1, 1, 0); map_nodes];
    nodes.push(node(1, 0, 1));
    let mut bed = Bed::new(case, &nodes);
    let of = word_count_job(12.0 * 1_024.0, 190, 0.0, case.slower.unwrap_or(HAVANA_SLOWER));
    let job = bed.plant.submit(of.clone());
    bed.plant.run(1_000.0, job);
    (bed, job, of)
}

/// §V-A and §V-B: WordCount on one map node that needs more, or on four that needs fewer; the SLA is 3000 s.
///
/// # Errors
/// [`BedError`].
pub fn word_count(case: Case, trained: &Trained, map_nodes: usize) -> Result<Run, BedError> {
    let (bed, job, of) = word_count_at_1000(case, map_nodes);
    let new = node(1, 1, 0);
    let situation = bed.situation(job, &of, trained.word_count.coefficients, [Some(new), None])?;
    bed.both(&decided(case, &situation, 3_000.0)?, new, None, job)
}

/// §V-C: one of two map nodes fails at 1000 s.
///
/// # Errors
/// [`BedError`].
pub fn failure(case: Case, trained: &Trained) -> Result<Run, BedError> {
    let (mut bed, job, of) = word_count_at_1000(case, 2);
    bed.plant.fail(0);
    bed.plant.run(1_000.0 + NOTICED_S, job);
    bed.plant.remove(0);
    let new = node(1, 1, 0);
    let situation = bed.situation(job, &of, trained.word_count.coefficients, [Some(new), None])?;
    bed.both(&decided(case, &situation, 3_000.0)?, new, None, job)
}

/// §V-D: WordCount of 2 GB beside another of the same size; the SLA is 600 s. The other is there from the start, on one node of two cores
/// (EC2), or comes at 120 s, on two nodes of one core.
///
/// # Errors
/// [`BedError`].
pub fn two_jobs(case: Case, trained: &Trained, arrives_s: f64) -> Result<Run, BedError> {
    let known = arrives_s <= 0.0;
    let new = if known { node(2, 1, 1) } else { node(1, 1, 1) };
    let mut bed = Bed::new(case, &vec![new; if known { 1 } else { 2 }]);
    let slower = case.slower.unwrap_or(if known { EC2_SLOWER } else { 1.0 });
    let of = word_count_job(2.0 * 1_024.0, 32, 0.0, slower);
    let job = bed.plant.submit(of.clone());
    let other = bed.plant.submit(word_count_job(2.0 * 1_024.0, 32, arrives_s, slower));
    bed.plant.run(360.0, job);
    let coefficients = if known { trained.on_ec2 } else { trained.word_count }.coefficients;
    let mut situation = bed.situation(job, &of, coefficients, [Some(new), None])?;
    let left = f64::from(of.maps) * (1.0 - bed.plant.part_done(other));
    let task_s = coefficients.map.at(of.input_mb / f64::from(of.maps));
    situation.others =
        vec![OtherJob { name: job_name(other)?, weight: 1.0, arrives_s: 0.0, core_s: Some(left * task_s) }];
    bed.both(&decided(case, &situation, 600.0)?, new, Some(job), job)
}

/// §V-A: TeraSort of 10 GB with 12 reduce tasks on one map and one reduce node, after its map stage; the SLA is 2000 s.
///
/// # Errors
/// [`BedError`].
pub fn tera_sort(case: Case, trained: &Trained) -> Result<Run, BedError> {
    let mut bed = Bed::new(case, &[node(1, 1, 0), node(1, 0, 1)]);
    let input_mb = 10e9 / f64::from(1 << 20);
    let workload = slow(TERA_SORT, case.slower.unwrap_or(1.0));
    let of = Job { submitted_s: 0.0, input_mb, maps: 149, reduces: 12, weight: 1.0, after: None, workload };
    let job = bed.plant.submit(of.clone());
    bed.plant.run_map_stage(job);
    let new = node(1, 0, 1);
    let mut situation = bed.situation(job, &of, trained.tera_sort.coefficients, [None, Some(new)])?;
    situation.nodes.iter_mut().for_each(|own| own.removable = false);
    bed.both(&decided(case, &situation, 2_000.0)?, new, None, job)
}

/// §V-B: K-means of 1.5 GB in 100 map tasks on four map nodes; asked at 800 s, in the last iteration. The SLA is 1500 s. The run has what
/// happens if the nodes leave where the planner says; and how many finished tasks are lost if they leave at once.
///
/// # Errors
/// [`BedError`].
pub fn k_means(case: Case, trained: &Trained) -> Result<(Run, u32), BedError> {
    let mut nodes = vec![node(1, 1, 0); 4];
    nodes.push(node(1, 0, 1));
    let mut bed = Bed::new(case, &nodes);
    let iteration = |after: Option<usize>| Job {
        after,
        ..Job { workload: slow(ITERATION, case.slower.unwrap_or(1.0)), ..word_count_job(1_536.0, 100, 0.0, 1.0) }
    };
    for index in 0..ITERATIONS {
        bed.plant.submit(iteration(index.checked_sub(1)));
    }
    let last = ITERATIONS - 1;
    let classification = Job {
        after: Some(last),
        reduces: 0,
        workload: slow(CLASSIFICATION, case.slower.unwrap_or(1.0)),
        ..iteration(None)
    };
    let end = bed.plant.submit(classification);
    bed.plant.run(800.0, end);
    let running = (0..=last).find(|job| bed.plant.end_s(*job).is_none()).unwrap_or(last);
    let mut situation = bed.situation(running, &iteration(None), trained.iteration.coefficients, [None, None])?;
    let follows = |reduces, times, workload| Following { input_mb: 1_536.0, maps: 100, reduces, times, workload };
    let iterations = u32::try_from(last - running).unwrap_or(0);
    if iterations > 0 {
        situation.following.push(follows(1, iterations, trained.iteration.coefficients));
    }
    situation.following.push(follows(0, 1, trained.classification.coefficients));
    let decision = decided(case, &situation, 1_500.0)?;
    let leave = |plant: &mut Plant| -> Result<(), BedError> {
        for gone in &decision.remove {
            for index in 0..bed.nodes.len() {
                if *gone == name(index)? {
                    plant.remove(index);
                }
            }
        }
        Ok(())
    };
    let (mut with, mut without, mut at_once) = (bed.plant.clone(), bed.plant.clone(), bed.plant.clone());
    leave(&mut at_once)?;
    if decision.chosen.when == When::SafePoint {
        with.run(f64::INFINITY, running);
    }
    leave(&mut with)?;
    let progress = [trace(&mut with, end), trace(&mut without, end)];
    let again = |plant: &Plant| (0..=end).map(|job| plant.again(job)).sum();
    let end_s = |plant: &Plant| plant.end_s(end).ok_or(BedError::NeverEnds(case.seed));
    let run = Run {
        nodes: -i32::try_from(decision.remove.len()).unwrap_or(i32::MAX),
        expected_s: decision.chosen.completion_s,
        with_s: end_s(&with)?,
        without_s: end_s(&without)?,
        again: again(&with),
        progress,
    };
    Ok((run, again(&at_once)))
}
