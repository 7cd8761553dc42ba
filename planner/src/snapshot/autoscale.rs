//! How many nodes a running MapReduce job should have, as a question and an answer, for `gleaner plan autoscale`. In: a
//! job and how far it is, its nodes, a goal, and coefficients or training runs. Out: the decision of [`crate::mapreduce`].

use gleaner_types::job::Goal;
use gleaner_types::text::counted;
use gleaner_types::units::Dollars;
use serde::{Deserialize, Serialize};

use super::problems::Problems;
use super::problems::VERSION;
use crate::mapreduce::decide::{Decision, Wanted, decide};
use crate::mapreduce::equations::{Coefficients, Work};
use crate::mapreduce::fit::{Fitted, TrainingRun, fit};
use crate::mapreduce::situation::Situation;
use crate::sharing::invalid::short;

/// Most training runs. Chosen.
const MOST_RUNS: usize = 1_000;
/// A fit that is off by more on its own runs is doubtful, in percent. Chosen: three times Δ of the paper's worst stage.
const DOUBTFUL_PERCENT: f64 = 25.0;

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoscaleQuestion {
    /// [`VERSION`].
    pub version: u32,
    /// A deadline, from submission, or a cost.
    pub goal: Goal,
    /// Part of the remaining time that is kept in reserve when a deadline is judged.
    #[serde(default)]
    pub reserve: f64,
    /// Dollars so far, for a budget.
    #[serde(default)]
    pub spent: f64,
    /// Training runs that give the coefficients of the job, instead of `situation.job.workload`, and of the following jobs that have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub training: Vec<TrainingRun>,
    /// The job, its nodes, and what could be added.
    pub situation: Situation,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AutoscaleAnswer {
    /// [`VERSION`].
    pub version: u32,
    /// The decision.
    #[serde(flatten)]
    pub decision: Decision,
    /// What the training runs gave.
    pub fitted: Option<Fitted>,
    /// What makes the answer less certain, in sentences.
    pub notes: Vec<String>,
}

/// Answers a question.
///
/// # Errors
/// Every field that is wrong.
pub fn autoscale(question: &AutoscaleQuestion) -> Result<AutoscaleAnswer, Problems> {
    let mut problems = Problems::default();
    problems.version(question.version);
    problems.clone().end()?;
    problems.within("reserve", question.reserve, 0.0, 1.0);
    problems.within("spent", question.spent, 0.0, 1e12);
    if let Goal::Deadline { within_s } = question.goal {
        problems.above_zero("goal.deadline.within_s", within_s, 1e12);
    }
    let (mut situation, mut fitted) = (question.situation.clone(), None);
    if !question.training.is_empty() {
        if situation.job.workload != Coefficients::default() {
            let runs = counted(question.training.len(), "run");
            problems.push(format!("training: has {runs} beside situation.job.workload; it must be one of the two"));
        }
        if question.training.len() > MOST_RUNS {
            let runs = question.training.len();
            problems.push(format!("training: has {runs} runs; it must have at most {MOST_RUNS}"));
            return Err(problems);
        }
        match fit(&question.training) {
            Ok(found) => {
                situation.job.workload = found.coefficients;
                let untold = situation.following.iter_mut().filter(|own| own.workload == Coefficients::default());
                untold.for_each(|own| own.workload = found.coefficients);
                fitted = Some(found);
            }
            Err(error) => {
                problems.push(format!("training{error}"));
                return Err(problems);
            }
        }
    }
    if let Err(invalid) = situation.check() {
        invalid.iter().for_each(|own| problems.push(format!("situation.{own}")));
    }
    if let Some(found) = &fitted
        && found.reduce.is_none()
        && let Some(reduces) = trained(&situation, found).map(|(_, work)| work.reduces).find(|reduces| *reduces > 0)
    {
        problems.push(format!("training: has no run with reduce tasks for a job of {reduces}; it must have two"));
    }
    problems.clone().end()?;
    let wanted = Wanted { goal: question.goal, reserve: question.reserve, spent: Dollars::clamped(question.spent) };
    let decision = decide(&situation, wanted).map_err(|error| {
        problems.push(error.to_string());
        problems
    })?;
    let mut notes = notes(&situation, fitted.as_ref());
    if !decision.all_sets_tried {
        notes.push(
            "there are too many nodes that differ to try every set of them; there may be a better set than this"
                .to_owned(),
        );
    }
    Ok(AutoscaleAnswer { version: VERSION, decision, fitted, notes })
}

/// The jobs whose coefficients are those of the training: what a note calls each, and its size.
fn trained(situation: &Situation, fitted: &Fitted) -> impl Iterator<Item = (String, Work)> {
    let coefficients = fitted.coefficients;
    let own = std::iter::once((String::new(), situation.work()));
    let following = situation.following.iter().enumerate().filter(move |(_, own)| own.workload == coefficients);
    own.chain(following.map(|(index, own)| {
        let work = Work { input_mb: own.input_mb, maps: own.maps, reduces: own.reduces };
        (format!(" of situation.following[{index}]"), work)
    }))
}

/// Tasks of sizes that the training did not have, and coefficients that it cannot tell.
fn notes(situation: &Situation, fitted: Option<&Fitted>) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(fitted) = fitted else { return notes };
    let reduces = trained(situation, fitted).any(|(_, work)| work.reduces > 0);
    for (kind, quality) in [("map", Some(fitted.map)), ("reduce", fitted.reduce.filter(|_| reduces))] {
        let Some(quality) = quality else { continue };
        if !quality.left_out_percent.is_finite() {
            notes.push(format!(
                "the training runs are too few or too alike to tell the coefficients of the {kind} stage apart, and that these fit them is no estimate of their error; add runs with other MB a task"
            ));
        }
        if quality.delta_percent > DOUBTFUL_PERCENT {
            let off = short(quality.delta_percent.round());
            notes.push(format!(
                "the coefficients of the {kind} stage are off by {off} % on the training runs themselves; look for a run with a wrong number"
            ));
        }
        let (least, most) = quality.task_mb;
        for (of, work) in trained(situation, fitted) {
            let tasks = if kind == "map" { work.maps } else { work.reduces };
            let own_mb = work.input_mb / f64::from(tasks);
            if tasks > 0 && !(least * 0.99..=most * 1.01).contains(&own_mb) {
                notes.push(format!(
                    "a {kind} task{of} has {own_mb:.1} MB; those of the training had {least:.1} to {most:.1}"
                ));
            }
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::{HostId, JobId};
    use gleaner_types::units::DollarsPerHour;

    use super::*;
    use crate::mapreduce::equations::{Layout, TERA_SORT, WORD_COUNT};
    use crate::mapreduce::situation::{Following, Node, OtherJob};
    use crate::mapreduce::tests::word_count;

    fn question() -> AutoscaleQuestion {
        AutoscaleQuestion {
            version: VERSION,
            goal: Goal::Deadline { within_s: 3_000.0 },
            reserve: 0.0,
            spent: 0.0,
            training: Vec::new(),
            situation: word_count(1, 31, 0.4),
        }
    }

    fn run(task_mb: f64, maps: u32) -> TrainingRun {
        let work = Work { input_mb: task_mb * f64::from(maps), maps, reduces: 1 };
        let layout = Layout { map_cores: 2.0, map_slots_per_core: 1, reduce_cores: 1.0, reduce_slots_per_core: 1 };
        TrainingRun {
            input_mb: work.input_mb,
            maps,
            reduces: 1,
            map_cores: 2.0,
            map_slots_per_core: 1,
            reduce_cores: 1.0,
            reduce_slots_per_core: 1,
            map_stage_s: WORD_COUNT.map_stage_s(work, layout).unwrap(),
            reduce_stage_s: WORD_COUNT.reduce_stage_s(work, layout).unwrap(),
            set_up_s: 0.0,
        }
    }

    #[test]
    fn coefficients_and_training_runs_give_the_same_answer() {
        let mut question = question();
        let by_table = autoscale(&question).unwrap();
        assert_eq!((by_table.decision.chosen.add_map, by_table.fitted), (2, None));
        question.training =
            [(32.0, 20), (64.0, 40), (64.0, 10), (96.0, 30), (80.0, 50)].map(|(mb, maps)| run(mb, maps)).to_vec();
        assert!(autoscale(&question).unwrap_err().to_string().starts_with("training: has 5 runs beside"));
        question.situation.job.workload = Coefficients::default();
        let trained = autoscale(&question).unwrap();
        assert_eq!(trained.decision.chosen.add_map, 2);
        assert!((trained.decision.chosen.completion_s - by_table.decision.chosen.completion_s).abs() < 1.0);
        assert_eq!(trained.notes.len(), 1, "the reduce task has more than any of the training: {:?}", trained.notes);
        question.training.truncate(1);
        let said = autoscale(&question).unwrap_err().to_string();
        assert_eq!(said, "training: there are 1 runs in all; there must be at least 2");
    }

    #[test]
    fn training_runs_are_for_the_following_jobs_too() {
        let mut question = question();
        let follows = |workload, reduces| Following { input_mb: 6_400.0, maps: 100, reduces, times: 2, workload };
        question.situation.following = vec![follows(WORD_COUNT, 1), follows(TERA_SORT, 1)];
        let by_table = autoscale(&question).unwrap().decision.unchanged.unwrap();
        question.training =
            [(32.0, 20), (64.0, 40), (64.0, 10), (96.0, 30), (80.0, 50)].map(|(mb, maps)| run(mb, maps)).to_vec();
        question.situation.job.workload = Coefficients::default();
        question.situation.following[0].workload = Coefficients::default();
        let trained = autoscale(&question).unwrap();
        let unchanged = trained.decision.unchanged.unwrap();
        assert!((unchanged.parts_s[2] - by_table.parts_s[2]).abs() < 5.0, "{unchanged:?} {by_table:?}");
        let noted = |part: &str| trained.notes.iter().any(|note| note.starts_with(part));
        assert!(noted("a reduce task of situation.following[0] has 6400.0 MB"), "{:?}", trained.notes);
        assert!(!noted("a reduce task of situation.following[1]"), "it has a workload of its own");
        question.situation.job.reduces = 0;
        question.training.iter_mut().for_each(|run| (run.reduces, run.reduce_stage_s) = (0, 0.0));
        let said = autoscale(&question).unwrap_err().to_string();
        assert!(said.contains("training: has no run with reduce tasks for a job of 1; it must have two"), "{said}");
    }

    #[test]
    fn every_field_that_is_wrong_is_named() {
        let name = |name: &str| HostId::new(name).unwrap();
        let mut wrong = question();
        wrong.reserve = f64::NAN;
        wrong.situation.job.input_mb = -1.0;
        wrong.situation.nodes[0].maps_done = 500;
        wrong.situation.nodes[0].maps_running = vec![0.5, 1.5];
        wrong.situation.nodes[0].only_for = Some(JobId::new("nobody").unwrap());
        wrong.situation.nodes[1].cores = 0;
        wrong.situation.nodes[1].speed = f64::NAN;
        wrong.situation.nodes[1].name = name("map-1");
        let said = autoscale(&wrong).unwrap_err().to_string();
        for part in [
            "reserve: is NaN",
            "situation.job.input_mb: is -1; it must be more than 0",
            "situation.nodes: map tasks done and running: is 502; it must be at most the job's 190",
            "situation.nodes[0] (map-1).maps_running: is 1.5",
            "situation.nodes[0] (map-1).maps_running: their number: is 2; it must be at most its 1 slots",
            "situation.nodes[0] (map-1).only_for: is nobody; it must be the job or one of others",
            "situation.nodes[1] (map-1).cores: is 0",
            "situation.nodes[1] (map-1).speed: is NaN",
            "situation.nodes[1].name: is map-1; it must be the only one of its name",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        for (change, part) in [
            ((|own| own.version = 3) as fn(&mut AutoscaleQuestion), "version: is 3; it must be 1"),
            (|own| own.goal = Goal::Energy, "goal: is energy; it must be deadline or cost"),
            (|own| own.goal = Goal::Deadline { within_s: -1.0 }, "goal.deadline.within_s: is -1"),
            (|own| own.situation.nodes.clear(), "situation.nodes: their number: is 0; it must be 1 to 10000"),
            (
                |own| own.situation.job.reduces_done = 2,
                "situation.job.reduces_done with those running: is 2; it must be at most the job's 1",
            ),
            (|own| own.situation.job.workload.map.0[0] = -40.0, "situation.job.workload: is a map task of 64.6"),
            (
                |own| own.situation.job.workload.shuffle = f64::INFINITY,
                "situation.job.workload: is inf; it must be finite coefficients",
            ),
            (
                |own| own.situation.job.workload.map.0[0] = 1e12,
                "situation.job.workload: is a map task of 64.67368421052632 MB in 1000000000025.",
            ),
            (
                |own| own.goal = Goal::Deadline { within_s: 1e308 },
                "is 1e308; it must be more than 0 and at most 1000000000000",
            ),
            (|own| own.reserve = 1e300, "reserve: is 1e300; it must be 0 to 1"),
            (
                |own| own.situation.others = others(["wordcount"].as_slice()),
                "situation.others[0].name: is wordcount; it must be neither",
            ),
            (
                |own| own.situation.others = others(["a", "b", "a"].as_slice()),
                "situation.others[2].name: is a; it must be neither",
            ),
            (|own| own.situation.job.maps = 0, "situation.job.maps: is 0"),
            (
                |own| own.situation.map_node.as_mut().unwrap().map_slots_per_core = 0,
                "situation.map_node.map_slots_per_core: is 0",
            ),
            (|own| own.situation.map_node.as_mut().unwrap().lead_s = f64::NAN, "situation.map_node.lead_s: is NaN"),
            (|own| own.situation.map_node.as_mut().unwrap().most = 20_000, "situation.map_node.most: is 20000"),
        ] {
            let mut wrong = question();
            change(&mut wrong);
            let said = autoscale(&wrong).unwrap_err().to_string();
            assert!(said.contains(part), "{part} in {said}");
            assert!(said.lines().all(|line| line.matches("it must be").count() == 1), "one rule for each: {said}");
            assert!(said.lines().all(|line| line.len() < 200), "{said}");
        }
    }

    fn others(names: &[&str]) -> Vec<OtherJob> {
        let other =
            |name: &&str| OtherJob { name: JobId::new(*name).unwrap(), weight: 1.0, arrives_s: 0.0, core_s: None };
        names.iter().map(other).collect()
    }

    #[test]
    fn a_workload_that_is_missing_is_named_with_what_to_write() {
        let mut asked = question();
        let workload = Coefficients::default();
        asked.situation.following = vec![Following { input_mb: 6_400.0, maps: 100, reduces: 1, times: 1, workload }];
        let said = autoscale(&asked).unwrap_err().to_string();
        let rule = "is missing; it must be its coefficients, such as {\"map\": [20, 0.1, 0]} for";
        assert!(said.starts_with(&format!("situation.following[0].workload: {rule}")), "{said}");
        asked.situation.job.workload = Coefficients::default();
        let said = autoscale(&asked).unwrap_err().to_string();
        assert!(said.starts_with(&format!("situation.job.workload: {rule}")), "{said}");
        assert!(said.lines().all(|line| line.ends_with("beside `training`, which gives them")), "{said}");
        // With training neither has to be there.
        asked.training = [(32.0, 20), (64.0, 40), (6_400.0, 2)].map(|(mb, maps)| run(mb, maps)).to_vec();
        assert!(autoscale(&asked).is_ok(), "{:?}", autoscale(&asked));
    }

    #[test]
    fn two_copies_of_a_run_are_said_to_be_no_estimate() {
        let mut asked = question();
        asked.situation.job.workload = Coefficients::default();
        asked.training = vec![run(64.0, 40); 2];
        asked.training.iter_mut().for_each(|run| (run.reduces, run.reduce_stage_s) = (0, 0.0));
        asked.situation.job.reduces = 0;
        asked.situation.nodes.iter_mut().for_each(|node| node.reduces_running.clear());
        let notes = autoscale(&asked).unwrap().notes;
        assert!(notes.iter().any(|note| note.contains("is no estimate of their error; add runs")), "{notes:?}");
    }

    #[test]
    fn a_training_run_that_is_absurd_is_refused_or_noted() {
        let mut question = question();
        question.situation.job.workload = Coefficients::default();
        question.training =
            [(32.0, 20), (64.0, 40), (64.0, 10), (96.0, 30), (80.0, 50)].map(|(mb, maps)| run(mb, maps)).to_vec();
        question.training[2].map_cores = 1e-300;
        let said = autoscale(&question).unwrap_err().to_string();
        assert_eq!(said, "training[2].map_cores: is 1e-300; it must be 0.01 to 1000000");
        question.training[2].map_cores = 2.0;
        question.training[2].map_stage_s *= 1_000.0;
        let noted = autoscale(&question).unwrap().notes;
        assert!(
            noted.iter().any(|note| note.starts_with("the coefficients of the map stage are off by ")),
            "{noted:?}"
        );
        let many = |index: u32| Node {
            name: HostId::new(format!("map-{index}")).unwrap(),
            price: DollarsPerHour::clamped(f64::from(index)),
            maps_done: 0,
            ..question.situation.nodes[0].clone()
        };
        let nodes = (1..=30).map(many).chain([question.situation.nodes[1].clone()]).collect();
        question.situation.nodes = nodes;
        let noted = autoscale(&question).unwrap().notes;
        assert!(noted.iter().any(|note| note.starts_with("there are too many nodes that differ")), "{noted:?}");
    }
}
