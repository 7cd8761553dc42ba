//! Sizing of jobs that nothing was tuned on: twenty drawn from a seed, short tasks, slow starts, skewed tasks, several
//! hardware classes. In: a seed. Out: for each job the cost above that of the best fixed size, which is found by search in the
//! same simulator, and how late it was for deadlines. No paper's. Called by `gleaner reproduce rhic --jobs any`.

use std::collections::BTreeMap;

use super::drawn::{CLASSES, LIMIT_S, drawn, hosts_of};
use super::values::{mean, percent_over, worst};
use crate::baselines::sizing::{Scenario, Sizing};
use crate::jobs::PaperJob;
use crate::pool::run_all;
use crate::{Detail, Figure, ReproduceError, Reproduction};
use gleaner_simulator::cluster::{ClusterRun, ScenarioError};
use gleaner_simulator::foreground::Session;
use gleaner_simulator::scenario::HostClass;
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
/// Sizes that the first round of the search tries, evenly apart; the second tries those around the best.
const TRIED: u32 = 12;
/// Least lateness that counts, in percent of the deadline.
const LATE: f64 = 1.0;
/// A lateness counts as said in advance when it was said before this part of the time to the deadline.
const IN_ADVANCE: f64 = 0.5;

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

/// Fixed sizes that were tried.
type Search = BTreeMap<u32, Measured>;

fn cheapest(search: &Search) -> Option<(u32, f64)> {
    let costs = search.iter().map(|(size, measured)| (*size, measured.cost));
    costs.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Deadlines between the fastest and the slowest of the tried sizes.
fn deadlines(search: &Search) -> [f64; 2] {
    let times = || search.values().map(|measured| measured.elapsed_s).filter(|time| time.is_finite());
    let (fastest, slowest) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    DEADLINES.map(|part| (fastest + part * (slowest - fastest)).round())
}

/// What our sizing did.
#[derive(Debug, Clone, Default)]
struct Ours {
    cost: Option<Measured>,
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
    fixed(&cases, &mut searches, first_round, "fixed sizes", progress)?;
    fixed(&cases, &mut searches, second_round, "around the best", progress)?;
    compositions(&cases, &mut searches, progress)?;
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

fn first_round(case: &Case, _: &Search) -> Vec<u32> {
    let pool = case.pool();
    (0..pool).step_by((pool / TRIED).max(1) as usize).chain([pool]).collect()
}

/// The sizes around the cheapest so far.
fn second_round(case: &Case, search: &Search) -> Vec<u32> {
    let Some((best, _)) = cheapest(search) else { return Vec::new() };
    let step = (case.pool() / TRIED).max(1);
    let around = best.saturating_sub(step)..=(best + step).min(case.pool());
    around.filter(|size| !search.contains_key(size)).collect()
}

fn fixed(
    cases: &[Case],
    searches: &mut [Search],
    sizes: impl Fn(&Case, &Search) -> Vec<u32>,
    stage: &str,
    progress: Progress<'_>,
) -> Result<(), ScenarioError> {
    let mut places = Vec::new();
    let mut scenarios = Vec::new();
    for (place, (case, search)) in cases.iter().zip(&*searches).enumerate() {
        if case.group == Group::Classes {
            continue;
        }
        for volunteers in sizes(case, search) {
            places.push((place, volunteers));
            scenarios.push(Scenario { sizing: Sizing::Fixed { volunteers }, ..case.scenario.clone() });
        }
    }
    let runs = run_all(&scenarios, &|done, all| progress(stage, done, all))?;
    for ((place, volunteers), run) in places.into_iter().zip(runs) {
        searches[place].insert(volunteers, Measured::of(&run));
    }
    Ok(())
}

/// Where hosts differ, a size says too little: the search tries how many of each class there are, and all that are there work.
fn compositions(cases: &[Case], searches: &mut [Search], progress: Progress<'_>) -> Result<(), ScenarioError> {
    let tried = || TRIED_OF_A_CLASS.into_iter();
    let all = || tried().flat_map(|a| tried().flat_map(move |b| tried().map(move |c| [a, b, c])));
    let mut places = Vec::new();
    let mut scenarios = Vec::new();
    for (place, case) in cases.iter().enumerate().filter(|(_, case)| case.group == Group::Classes) {
        for (number, counts) in (0..).zip(all()) {
            let interactive: Vec<HostClass> =
                counts.iter().enumerate().map(|(class, count)| hosts_of(class, *count)).collect();
            let sizing = Sizing::Fixed { volunteers: counts.iter().sum() };
            places.push((place, number));
            scenarios.push(Scenario { interactive, sizing, ..case.scenario.clone() });
        }
    }
    let runs = run_all(&scenarios, &|done, all| progress("classes of hosts", done, all))?;
    for ((place, number), run) in places.into_iter().zip(runs) {
        searches[place].insert(number, Measured::of(&run));
    }
    Ok(())
}

fn adaptive(cases: &[Case], searches: &[Search], progress: Progress<'_>) -> Result<Vec<Ours>, ScenarioError> {
    let mut places = Vec::new();
    let mut scenarios = Vec::new();
    for (place, (case, search)) in cases.iter().zip(searches).enumerate() {
        let mut add = |goal| {
            places.push((place, goal));
            scenarios.push(Scenario { goal, sizing: Sizing::Adaptive, ..case.scenario.clone() });
        };
        add(CHEAPEST);
        if case.group.has_deadlines() {
            deadlines(search).into_iter().for_each(|within_s| add(Goal::Deadline { within_s }));
        }
    }
    let runs = run_all(&scenarios, &|done, all| progress("adaptive sizing", done, all))?;
    let mut ours = vec![Ours::default(); cases.len()];
    for ((place, goal), run) in places.into_iter().zip(runs) {
        let measured = Measured::of(&run);
        match goal {
            Goal::Deadline { within_s } => ours[place].deadlines.push((within_s, measured)),
            Goal::Cost { .. } | Goal::Energy => ours[place].cost = Some(measured),
        }
    }
    Ok(ours)
}

/// Cost above the best of the search, in percent.
fn cost_error(search: &Search, ours: &Ours) -> Option<f64> {
    Some(percent_over(ours.cost?.cost, cheapest(search)?.1))
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
        if let Some((size, _)) = cheapest(search).filter(|_| case.group != Group::Classes) {
            row("best fixed size", f64::from(size), "volunteers");
        }
        if let Some(run) = ours.cost {
            row("ours in the mean", run.mean_volunteers, "volunteers");
        }
        if let Some(error) = cost_error(search, ours) {
            row("cost above the best of the search", error, "%");
        }
        for (late, said) in lateness(ours) {
            row(if said { "later than the deadline, which it said" } else { "later than the deadline" }, late, "%");
        }
    }
}

fn figures(cases: &[Case], searches: &[Search], ours: &[Ours], out: &mut Reproduction) {
    let of = |group: Group| {
        let all = cases.iter().zip(searches).zip(ours);
        all.filter(move |((case, _), _)| case.group == group).map(|((_, search), ours)| (search, ours))
    };
    let errors = |group| of(group).filter_map(|(search, ours)| cost_error(search, ours)).collect::<Vec<f64>>();
    let late = |group| of(group).flat_map(|(_, ours)| lateness(ours)).collect::<Vec<(f64, bool)>>();
    let mut at_most = |id, ours: f64, unit, most: f64, note: String| {
        let value = ours.is_finite().then_some(ours);
        let holds = value.is_some_and(|value| value <= most);
        out.figures.push(Figure { id, paper: None, ours: value, unit, target: format!("at most {most}"), holds, note });
    };
    let drawn = errors(Group::Drawn);
    let count = drawn.len();
    let note = format!("{count} jobs drawn from the seed; cost above the best fixed size found by search");
    at_most("rhic.any_job_cost_error_mean", mean(&drawn), "%", 2.0, note);
    let note = "the job among these whose cost is most above its best".into();
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
    let note = "Grep in tasks of 5, 10 and 15 s: the cost most above the best fixed size".into();
    at_most("rhic.short_task_error", worst(errors(Group::ShortTasks)), "%", 3.0, note);
    let note = "Grep with volunteers that take 60 and 90 s to set up: the cost most above the best fixed size".into();
    at_most("rhic.slow_start_error", worst(errors(Group::SlowStart)), "%", 3.0, note);
    let note = "the latest of Cooccurrence's deadlines with tasks that vary by 0.4 to 1.0 of their mean".into();
    at_most("rhic.skew_late_worst", worst(late(Group::Skewed).iter().map(|(late, _)| *late)), "%", 1.0, note);
    let note =
        "12 hosts each of 16 CPUs, 8 twice as fast and 16 half as fast: the cost most above the best composition"
            .into();
    at_most("rhic.hetero_cost_error", worst(errors(Group::Classes)), "%", 2.0, note);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_goes_on_around_the_best() {
        let scenario = Scenario { interactive: vec![hosts_of(0, 36)], ..Scenario::default() };
        let case = Case { group: Group::Drawn, name: "a".into(), scenario };
        let first = first_round(&case, &Search::new());
        assert_eq!((first.len(), first[1], first[12]), (13, 3, 36));
        let measured = |cost| Measured { cost, elapsed_s: cost, mean_volunteers: 0.0, warned_s: None };
        let search: Search = first.iter().map(|size| (*size, measured(10.0 + f64::from(size.abs_diff(9))))).collect();
        assert_eq!(second_round(&case, &search), [7, 8, 10, 11]);
        assert_eq!(cheapest(&search), Some((9, 10.0)));
        // From 10 to 37 s: a quarter and three fifths of the way.
        assert_eq!(deadlines(&search).map(f64::to_bits), [17.0, 26.0].map(f64::to_bits));
    }

    #[test]
    fn a_job_that_never_ends_is_as_bad_as_can_be_and_no_figure() {
        let measured = |cost| Measured { cost, elapsed_s: cost, mean_volunteers: 0.0, warned_s: None };
        let search = Search::from([(0, measured(2.0))]);
        let ours = |cost| Ours { cost: Some(measured(cost)), deadlines: vec![(1.0, measured(cost))] };
        assert_eq!(cost_error(&search, &ours(3.0)).map(f64::round), Some(50.0));
        assert_eq!(cost_error(&search, &ours(f64::INFINITY)), Some(f64::INFINITY));
        let said = Measured { warned_s: Some(0.5), ..measured(1.5) };
        let ours = Ours { cost: None, deadlines: vec![(1.0, said), (1.0, measured(0.5))] };
        let late: Vec<(f64, bool)> = lateness(&ours).map(|(late, said)| (late.round(), said)).collect();
        assert_eq!(late, [(50.0, true), (-50.0, false)]);
    }
}
