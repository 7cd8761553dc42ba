//! Sizing of jobs that nothing was tuned on: twenty drawn from a seed, short tasks, slow starts, skewed tasks, several
//! hardware classes. In: a seed. Out: for each job the cost above that of the best fixed size, which is found by search in the
//! same simulator, and how late it was for deadlines. No paper's. Called by `gleaner reproduce rhic --jobs any`.
//!
//! The best fixed size is one that somebody could have chosen before the run. Every size runs on several orders of the job: the
//! same job and hosts, with lengths and places of tasks and users drawn anew. For each order the size is taken that is cheapest in
//! the mean over the *others*, and what it costs on this one is compared with what ours costs on it; both are summed over the
//! orders. The figures are of this. The cheapest of all sizes on one and the same order is another reading: it knows how its
//! draw will end, so no size can be chosen by it. It is reported beside, as the luckiest.

use std::collections::BTreeMap;

use super::drawn::{CLASSES, LIMIT_S, drawn, hosts_of};
use super::values::{mean, percent_over, worst};
use crate::baselines::sizing::{Scenario, Sizing};
use crate::jobs::PaperJob;
use crate::pool::run_all;
use crate::{Detail, Figure, ReproduceError, Reproduction};
use gleaner_simulator::cluster::{ClusterRun, ScenarioError};
use gleaner_simulator::foreground::Session;
use gleaner_types::job::Goal;

/// Where in the range of completion times that the search found the deadlines lie.
const DEADLINES: [f64; 2] = [0.25, 0.6];
/// Mean CPU time of a task in the rows of short tasks, in seconds.
const SHORT_TASKS_S: [f64; 3] = [5.0, 10.0, 15.0];
/// Set-up times in the rows of slow starts, in seconds.
const SLOW_STARTS_S: [f64; 2] = [60.0, 90.0];
/// Coefficients of variation in the rows of skewed tasks.
const SKEWS: [f64; 4] = [0.4, 0.6, 0.8, 1.0];
/// Hosts of each class in the rows of classes, and how many of them the search tries.
const OF_A_CLASS: u32 = 12;
const TRIED_OF_A_CLASS: [u32; 4] = [0, 4, 8, 12];
/// Orders of each job. Deadlines are of the first.
const ORDERS: u64 = 3;
/// What seeds of two orders of a job differ by: more than those of two jobs.
const ORDERS_APART: u64 = 1_000_003;
/// Parts of the range between which the first round of the search tries sizes; the others halve them around the best.
const PARTS: u32 = 4;
/// Rounds of the search.
const ROUNDS: u32 = 3;
/// Least lateness that counts, in percent of the deadline.
const LATE: f64 = 1.0;
/// A lateness counts as said in advance when it was said before this part of the time to the deadline.
const IN_ADVANCE: f64 = 0.5;
/// Most deadlines, of the drawn jobs' forty, that may be said to be missed and are met: a tenth. Chosen.
const FALSE_ALARMS: f64 = 4.0;

const CHEAPEST: Goal = Goal::Cost { budget: None };

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Seed of the drawn jobs and of the foregrounds.
    pub seed: u64,
    /// Drawn jobs.
    pub drawn: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1_001, drawn: 20 }
    }
}

/// What a job is there to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Drawn,
    ShortTasks,
    SlowStart,
    Skewed,
    Classes,
}

impl Group {
    const fn name(self) -> &'static str {
        match self {
            Self::Drawn => "drawn",
            Self::ShortTasks => "short tasks",
            Self::SlowStart => "slow start",
            Self::Skewed => "skewed tasks",
            Self::Classes => "classes",
        }
    }

    /// Deadlines are asked of these.
    const fn has_deadlines(self) -> bool {
        matches!(self, Self::Drawn | Self::Skewed)
    }
}

/// A job on its hosts.
struct Case {
    group: Group,
    name: String,
    scenario: Scenario,
}

impl Case {
    fn pool(&self) -> u32 {
        self.scenario.interactive.iter().map(|class| class.count).sum()
    }

    /// The same job on the same hosts, with other lengths and places of tasks and other users; the first is as it is.
    fn order(&self, order: u64) -> Scenario {
        let mut scenario = self.scenario.clone();
        scenario.seed = scenario.seed.wrapping_add(order * ORDERS_APART);
        scenario.foreground_seed = scenario.foreground_seed.wrapping_add(order * ORDERS_APART);
        scenario
    }

    /// What the search tries under a number: so many volunteers. Where hosts differ, that says too little: there it is a number of
    /// each class, and all that are there work.
    fn tried(&self, number: u32, order: u64) -> Scenario {
        let mut scenario = self.order(order);
        let mut volunteers = number;
        if self.group == Group::Classes {
            let counts = composition(number);
            scenario.interactive = (0..).zip(counts).map(|(class, count)| hosts_of(class, count)).collect();
            volunteers = counts.iter().sum();
        }
        Scenario { sizing: Sizing::Fixed { volunteers }, ..scenario }
    }

    /// What the search tries in a round, after what it has found: of compositions all at once.
    fn round(&self, round: u32, search: &Search) -> Vec<u32> {
        if self.group == Group::Classes {
            return (0..COMPOSITIONS).filter(|number| !search.contains_key(number)).collect();
        }
        let most = self.pool();
        let step = most.div_ceil(PARTS).max(1);
        let Some(best) = best(search, |_| true) else {
            return (0..most).step_by(step as usize).chain([most]).collect();
        };
        let step = (step >> round).max(1);
        let around = [best.saturating_sub(step), (best + step).min(most)];
        around.into_iter().filter(|size| !search.contains_key(size)).collect()
    }
}

/// Compositions of three classes that the search tries: each number of each.
const COMPOSITIONS: u32 = 64;

/// Hosts of each class.
fn composition(number: u32) -> [u32; 3] {
    let (number, counts) = (number as usize, TRIED_OF_A_CLASS.len());
    [number / (counts * counts), number / counts, number].map(|place| TRIED_OF_A_CLASS[place % counts])
}

/// Cost and time of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    cost: f64,
    elapsed_s: f64,
    mean_volunteers: f64,
    /// Since when it was said that the goal is out of reach, if it was to the end.
    warned_s: Option<f64>,
}

impl Measured {
    /// A job that is not done within the limit is as bad as can be.
    fn of(run: &ClusterRun) -> Self {
        let or_never = |value: f64| if run.completed { value } else { f64::INFINITY };
        let (cost, elapsed_s) = (or_never(run.cost), or_never(run.elapsed_s));
        Self { cost, elapsed_s, mean_volunteers: run.mean_volunteers, warned_s: run.warned_s }
    }
}

/// Fixed sizes that were tried, each on every order.
type Search = BTreeMap<u32, Vec<Measured>>;

/// The size that is cheapest in the mean over some orders.
fn best(search: &Search, counts: impl Fn(usize) -> bool) -> Option<u32> {
    let cost = |runs: &[Measured]| {
        let counted = runs.iter().enumerate().filter(|(order, _)| counts(*order));
        counted.map(|(_, run)| run.cost).sum::<f64>()
    };
    let costs = search.iter().map(|(size, runs)| (*size, cost(runs)));
    costs.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(size, _)| size)
}

/// Deadlines between the fastest and the slowest of the tried sizes.
fn deadlines(search: &Search) -> [f64; 2] {
    let first = || search.values().filter_map(|runs| runs.first());
    let times = || first().map(|measured| measured.elapsed_s).filter(|time| time.is_finite());
    let (fastest, slowest) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    DEADLINES.map(|part| (fastest + part * (slowest - fastest)).round())
}

/// What our sizing did.
#[derive(Debug, Clone, Default)]
struct Ours {
    /// By order.
    cost: Vec<Measured>,
    /// Deadline in seconds, and the run.
    deadlines: Vec<(f64, Measured)>,
}

type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// Runs everything. `progress` is told the stage, and how many of its runs are done, from any thread.
///
/// # Errors
/// [`ReproduceError`].
pub fn reproduce(options: &Options, progress: Progress<'_>) -> Result<Reproduction, ReproduceError> {
    let cases = cases(options);
    let mut searches = vec![Search::new(); cases.len()];
    for round in 0..ROUNDS {
        search(&cases, &mut searches, round, progress)?;
    }
    let ours = adaptive(&cases, &searches, progress)?;
    let mut out = Reproduction::default();
    rows(&cases, &searches, &ours, &mut out);
    figures(&cases, &searches, &ours, &mut out);
    Ok(out)
}

fn cases(options: &Options) -> Vec<Case> {
    let mut cases = Vec::new();
    for number in 0..options.drawn {
        let scenario = drawn(options.seed, number);
        let job = &scenario.job;
        let name = format!(
            "{number}: {} tasks of {:.1} s ± {:.0} %, {:.1} MB/s, {} + {} hosts, classes: {}",
            job.tasks,
            job.task_cpu_s,
            job.task_variation * 100.0,
            job.read_mb_per_cpu_s,
            scenario.dedicated.iter().map(|class| class.count).sum::<u32>(),
            scenario.interactive.iter().map(|class| class.count).sum::<u32>(),
            scenario.interactive.len(),
        );
        cases.push(Case { group: Group::Drawn, name, scenario });
    }
    let paper = |job: PaperJob, mix: u64| Scenario {
        seed: options.seed + mix,
        foreground_seed: options.seed + mix,
        job: job.profile(),
        limit_s: LIMIT_S,
        ..Scenario::default()
    };
    for mix in 0..2 {
        for task_cpu_s in SHORT_TASKS_S {
            let mut scenario = paper(PaperJob::Grep, mix);
            let work = f64::from(scenario.job.tasks) * scenario.job.task_cpu_s;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some ten thousand")]
            let tasks = (work / task_cpu_s).round() as u32;
            (scenario.job.tasks, scenario.job.task_cpu_s) = (tasks, task_cpu_s);
            cases.push(Case { group: Group::ShortTasks, name: format!("grep, {task_cpu_s} s, mix {mix}"), scenario });
        }
        for set_up_s in SLOW_STARTS_S {
            let scenario = Scenario { set_up_s, ..paper(PaperJob::Grep, mix) };
            cases.push(Case { group: Group::SlowStart, name: format!("grep, {set_up_s} s, mix {mix}"), scenario });
        }
        for variation in SKEWS {
            let mut scenario = paper(PaperJob::Cooccurrence, mix);
            scenario.job.task_variation = variation;
            let name = format!("cooccurrence, {variation:.1}, mix {mix}");
            cases.push(Case { group: Group::Skewed, name, scenario });
        }
    }
    for job in [PaperJob::Wordcount, PaperJob::Pi] {
        let mut scenario = paper(job, 0);
        scenario.interactive = (0..CLASSES.len()).map(|class| hosts_of(class, OF_A_CLASS)).collect();
        // Alike on all hosts, which stay: so the best choice is of classes alone.
        scenario.sessions = vec![Session::Photoshop];
        scenario.churn = 0.0;
        cases.push(Case { group: Group::Classes, name: job.name().to_owned(), scenario });
    }
    cases
}

fn search(cases: &[Case], searches: &mut [Search], round: u32, progress: Progress<'_>) -> Result<(), ScenarioError> {
    let mut places = Vec::new();
    let mut scenarios = Vec::new();
    for (place, (case, search)) in cases.iter().zip(&*searches).enumerate() {
        for number in case.round(round, search) {
            for order in 0..ORDERS {
                places.push((place, number));
                scenarios.push(case.tried(number, order));
            }
        }
    }
    let stage = format!("fixed sizes, round {} of {ROUNDS}", round + 1);
    let runs = run_all(&scenarios, &|done, all| progress(&stage, done, all))?;
    for ((place, number), run) in places.into_iter().zip(runs) {
        searches[place].entry(number).or_default().push(Measured::of(&run));
    }
    Ok(())
}

fn adaptive(cases: &[Case], searches: &[Search], progress: Progress<'_>) -> Result<Vec<Ours>, ScenarioError> {
    let mut places = Vec::new();
    let mut scenarios = Vec::new();
    for (place, (case, search)) in cases.iter().zip(searches).enumerate() {
        let mut add = |goal, order| {
            places.push((place, goal));
            scenarios.push(Scenario { goal, sizing: Sizing::Adaptive, ..case.order(order) });
        };
        (0..ORDERS).for_each(|order| add(CHEAPEST, order));
        if case.group.has_deadlines() {
            deadlines(search).into_iter().for_each(|within_s| add(Goal::Deadline { within_s }, 0));
        }
    }
    let runs = run_all(&scenarios, &|done, all| progress("adaptive sizing", done, all))?;
    let mut ours = vec![Ours::default(); cases.len()];
    for ((place, goal), run) in places.into_iter().zip(runs) {
        let measured = Measured::of(&run);
        match goal {
            Goal::Deadline { within_s } => ours[place].deadlines.push((within_s, measured)),
            Goal::Cost { .. } | Goal::Energy => ours[place].cost.push(measured),
        }
    }
    Ok(ours)
}

/// Cost above the best fixed size, in percent: over all orders, on each against the size that is best on the others.
fn cost_error(search: &Search, ours: &Ours) -> Option<f64> {
    let (mut own, mut fixed) = (0.0, 0.0);
    for (order, run) in ours.cost.iter().enumerate() {
        own += run.cost;
        fixed += search.get(&best(search, |other| other != order)?)?.get(order)?.cost;
    }
    (fixed > 0.0).then(|| percent_over(own, fixed))
}

/// Cost above the luckiest fixed size, the cheapest on the very same order, in percent: mean over the orders.
fn cost_over_luckiest(search: &Search, ours: &Ours) -> Option<f64> {
    let mut over = Vec::new();
    for (order, run) in ours.cost.iter().enumerate() {
        let luckiest = search.get(&best(search, |other| other == order)?)?.get(order)?;
        over.push(percent_over(run.cost, luckiest.cost));
    }
    (!over.is_empty()).then(|| mean(&over))
}

/// How much later than each deadline, in percent of it, and whether that was said in advance.
fn lateness(ours: &Ours) -> impl Iterator<Item = (f64, bool)> {
    ours.deadlines.iter().map(|(within_s, run)| {
        let said = run.warned_s.is_some_and(|at_s| at_s <= IN_ADVANCE * within_s);
        (percent_over(run.elapsed_s, *within_s), said)
    })
}

fn rows(cases: &[Case], searches: &[Search], ours: &[Ours], out: &mut Reproduction) {
    for ((case, search), ours) in cases.iter().zip(searches).zip(ours) {
        let mut row = |quantity, value, unit| {
            let (experiment, case) = (case.group.name().to_owned(), case.name.clone());
            out.details.push(Detail { experiment, case, quantity, value, unit });
        };
        if let Some(size) = best(search, |_| true).filter(|_| case.group != Group::Classes) {
            row("fixed size that is best in the mean", f64::from(size), "volunteers");
        }
        if !ours.cost.is_empty() {
            let volunteers: Vec<f64> = ours.cost.iter().map(|run| run.mean_volunteers).collect();
            row("ours in the mean", mean(&volunteers), "volunteers");
        }
        if let Some(error) = cost_error(search, ours) {
            row("cost above the best fixed size", error, "%");
        }
        if let Some(error) = cost_over_luckiest(search, ours) {
            row("cost above the luckiest fixed size", error, "%");
        }
        for (late, said) in lateness(ours) {
            row(if said { "later than the deadline, and said to be" } else { "later than the deadline" }, late, "%");
        }
    }
}

fn figures(cases: &[Case], searches: &[Search], ours: &[Ours], out: &mut Reproduction) {
    let of = |group: Group| {
        let all = cases.iter().zip(searches).zip(ours);
        all.filter(move |((case, _), _)| case.group == group).map(|((_, search), ours)| (search, ours))
    };
    let errors = |group| of(group).filter_map(|(search, ours)| cost_error(search, ours)).collect::<Vec<f64>>();
    let lucky = |group| of(group).filter_map(|(search, ours)| cost_over_luckiest(search, ours)).collect::<Vec<f64>>();
    let late = |group| of(group).flat_map(|(_, ours)| lateness(ours)).collect::<Vec<(f64, bool)>>();
    let mut at_most = |id, ours: f64, unit, most: f64, note: String| {
        out.figures.push(Figure::new(id, None, ours, unit, (format!("at most {most}"), ours <= most), note));
    };
    let drawn = errors(Group::Drawn);
    let (count, luckiest) = (drawn.len(), lucky(Group::Drawn));
    let note = format!(
        "{count} jobs drawn from the seed; cost above the fixed size that is best on other orders of the job; above the luckiest \
         on the same order: {:.2} %",
        mean(&luckiest)
    );
    at_most("rhic.any_job_cost_error_mean", mean(&drawn), "%", 2.0, note);
    let note = format!(
        "the job among these whose cost is most above its best; above its luckiest at most {:.2} %",
        worst(luckiest)
    );
    at_most("rhic.any_job_cost_error_worst", worst(drawn), "%", 5.0, note);
    let deadlines = late(Group::Drawn);
    let is_late = |(late, _): &&(f64, bool)| *late > LATE;
    let missed: Vec<&(f64, bool)> = deadlines.iter().filter(is_late).collect();
    let unsaid = missed.iter().filter(|(_, said)| !said).count();
    let note = format!(
        "the latest of {} deadlines of the drawn jobs; negative is early; {} were missed by more than {LATE} %",
        deadlines.len(),
        missed.len()
    );
    at_most("rhic.any_job_deadline_late_worst", worst(deadlines.iter().map(|(late, _)| *late)), "%", 1.0, note);
    let note = "of these, missed without a word before half of the time was over".into();
    at_most("rhic.any_job_late_unsaid", unsaid as f64, "runs", 0.0, note);
    let alarms = deadlines.iter().filter(|(late, said)| *late <= 0.0 && *said).count();
    let note = "of the deadlines, met although it was said before half of the time was over, and to the end, that they are not";
    at_most("rhic.any_job_false_alarms", alarms as f64, "runs", FALSE_ALARMS, note.into());
    let note = "Grep in tasks of 5, 10 and 15 s: the cost most above the best fixed size";
    let note = format!("{note}; above the luckiest at most {:.2} %", worst(lucky(Group::ShortTasks)));
    at_most("rhic.short_task_error", worst(errors(Group::ShortTasks)), "%", 3.0, note);
    let note = "Grep with volunteers that take 60 and 90 s to set up: the cost most above the best fixed size";
    let note = format!("{note}; above the luckiest at most {:.2} %", worst(lucky(Group::SlowStart)));
    at_most("rhic.slow_start_error", worst(errors(Group::SlowStart)), "%", 3.0, note);
    let note = "the latest of Cooccurrence's deadlines with tasks that vary by 0.4 to 1.0 of their mean".into();
    at_most("rhic.skew_late_worst", worst(late(Group::Skewed).iter().map(|(late, _)| *late)), "%", 1.0, note);
    let note =
        "12 hosts each of 16 CPUs, 8 twice as fast and 16 half as fast: the cost most above the best composition";
    let note = format!("{note}; above the luckiest at most {:.2} %", worst(lucky(Group::Classes)));
    at_most("rhic.hetero_cost_error", worst(errors(Group::Classes)), "%", 2.0, note);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cost: f64) -> Measured {
        Measured { cost, elapsed_s: cost, mean_volunteers: 0.0, warned_s: None }
    }

    fn case(group: Group) -> Case {
        let scenario = Scenario { interactive: vec![hosts_of(0, 36)], ..Scenario::default() };
        Case { group, name: "a".into(), scenario }
    }

    #[test]
    fn the_search_halves_its_steps_around_the_best() {
        let case = case(Group::Drawn);
        let run = |size: u32| vec![measured(10.0 + f64::from(size.abs_diff(12)))];
        let mut search = Search::new();
        for (round, tried) in [vec![0, 9, 18, 27, 36], vec![5, 13], vec![11, 15]].into_iter().enumerate() {
            assert_eq!(case.round(u32::try_from(round).unwrap(), &search), tried);
            search.extend(tried.into_iter().map(|size| (size, run(size))));
        }
        assert_eq!(best(&search, |_| true), Some(11));
        // From 11 to 34 s: a quarter and three fifths of the way.
        assert_eq!(deadlines(&search).map(f64::to_bits), [17.0, 25.0].map(f64::to_bits));
    }

    #[test]
    fn classes_are_tried_in_every_composition_once() {
        let all: std::collections::BTreeSet<[u32; 3]> = (0..COMPOSITIONS).map(composition).collect();
        assert_eq!((all.len(), composition(6)), (64, [0, 4, 8]));
        let search = (0..COMPOSITIONS).map(|number| (number, vec![measured(1.0)])).collect();
        let case = case(Group::Classes);
        assert_eq!((case.round(0, &Search::new()).len(), case.round(1, &search).len()), (64, 0));
    }

    #[test]
    fn orders_differ_in_seeds_alone_and_the_first_is_the_job_itself() {
        let case = case(Group::Drawn);
        assert_eq!(case.order(0), case.scenario);
        let other = case.order(1);
        assert_ne!((other.seed, other.foreground_seed), (case.scenario.seed, case.scenario.foreground_seed));
        let same = Scenario { seed: case.scenario.seed, foreground_seed: case.scenario.foreground_seed, ..other };
        assert_eq!(same, case.scenario);
    }

    #[test]
    fn a_size_is_chosen_on_other_orders_than_the_one_it_is_measured_on() {
        let runs = |costs: [f64; 3]| costs.map(measured).to_vec();
        // The size 1 is lucky on the first order, the size 2 on the last; 3 is good on all.
        let search = Search::from([(1, runs([1.0, 9.0, 9.0])), (2, runs([9.0, 9.0, 1.0])), (3, runs([4.0, 4.0, 4.0]))]);
        let ours = Ours { cost: runs([4.0, 4.0, 4.0]), deadlines: Vec::new() };
        // Without the first order 2 costs 10, 1 costs 18 and 3 costs 8, and so on: 3 everywhere.
        assert_eq!(cost_error(&search, &ours).map(f64::round), Some(0.0));
        // Over 1, 4 and 1 on the same orders: by 300, 0 and 300 %.
        assert_eq!(cost_over_luckiest(&search, &ours).map(f64::round), Some(200.0));
    }

    #[test]
    fn a_job_that_never_ends_is_as_bad_as_can_be_and_no_figure() {
        let search = Search::from([(0, vec![measured(2.0)])]);
        let ours = |cost| Ours { cost: vec![measured(cost)], deadlines: vec![(1.0, measured(cost))] };
        assert_eq!(cost_error(&search, &ours(3.0)).map(f64::round), Some(50.0));
        assert_eq!(cost_error(&search, &ours(f64::INFINITY)), Some(f64::INFINITY));
        let said = Measured { warned_s: Some(0.5), ..measured(1.5) };
        let ours = Ours { cost: Vec::new(), deadlines: vec![(1.0, said), (1.0, measured(0.5))] };
        let late: Vec<(f64, bool)> = lateness(&ours).map(|(late, said)| (late.round(), said)).collect();
        assert_eq!(late, [(50.0, true), (-50.0, false)]);
        assert_eq!((cost_error(&search, &ours), cost_over_luckiest(&search, &ours)), (None, None));
    }
}
