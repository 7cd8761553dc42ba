//! Autoscaling of MapReduce jobs (Gandhi et al., "Autoscaling for Hadoop Clusters"): the models' error, and the decisions of §V with what
//! comes of them. In: options and seeds. Out: the paper's figures, ours beside them. Called by `gleaner reproduce mapreduce`.
//!
//! The [`plant`] is a simulation of single tasks that shares no equation with the models. Coefficients are trained on its runs; the planner
//! decides from what a controller would see; the same plant then goes on with the decision and without.

mod accuracy;
mod bench;
pub mod error;
pub mod plant;
pub mod recorded;
pub mod scenarios;
pub mod workloads;

use std::path::PathBuf;

use gleaner_planner::mapreduce::situation::LostOutput;

use self::bench::{Bench, Value, figure, mean, mean_of_runs, median};
use self::error::BedError;
use self::scenarios::{Case, Run};
use self::workloads::Trained;
use crate::{ReproduceError, Reproduction, Series, interval};

/// Part of the runs in which a decision must be the paper's, the deadline be kept with it, and be missed without it. Chosen before
/// any run.
const MOST_RUNS: f64 = 0.9;
/// Lead times of new nodes that are tried beside the paper's none, in seconds. Chosen; the last is what
/// virtual machines of EC2 took on average (Mao and Humphrey, CLOUD 2012).
const LEADS_S: [f64; 3] = [15.0, 45.0, 97.0];
/// Part of the remaining time that is kept in reserve where it says so. Chosen.
const RESERVE: f64 = 0.05;
/// Other times of tasks on EC2 that are tried, over those of Table II. Chosen: those with which the paper's outcome is possible, and one beyond.
const EC2_SPEEDS: [f64; 6] = [0.6, 0.7, 0.8, 0.9, 1.0, 1.1];
/// How much slower tasks become than in training for the experiment on refitting. Chosen.
const SLOWER: f64 = 1.4;

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Plants are this seed's and the following ones'. The seeds 1 to 200 were looked at while the code was written.
    pub seed: u64,
    /// How many plants.
    pub runs: u64,
    /// Folder of traces.
    pub traces: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        // With 20 runs a share of 93 % is below 90 % in one set of seeds in seven.
        Self { seed: 1_001, runs: 200, traces: None }
    }
}

/// Runs of one scenario.
struct Outcome {
    runs: Vec<Run>,
    sla_s: f64,
}

impl Outcome {
    fn part(&self, of: impl Fn(&Run) -> bool) -> f64 {
        self.runs.iter().filter(|run| of(run)).count() as f64 / self.runs.len() as f64
    }

    fn kept(&self) -> f64 {
        self.part(|run| run.with_s <= self.sla_s)
    }

    fn missed_without(&self) -> f64 {
        self.part(|run| run.without_s > self.sla_s)
    }

    fn median_nodes(&self) -> f64 {
        median(self.runs.iter().map(|run| f64::from(run.nodes)))
    }

    /// Nodes added or removed, with the interval over runs.
    fn nodes(&self) -> Value {
        let nodes = |drawn: &[usize]| median(drawn.iter().map(|run| f64::from(self.runs[*run].nodes))).abs();
        (self.median_nodes().abs(), interval::bootstrap(self.runs.len(), nodes))
    }

    /// How many runs have a property, and what share of any runs does.
    fn counted(&self, of: impl Fn(&Run) -> bool) -> String {
        let (some, all) = (self.runs.iter().filter(|run| of(run)).count(), self.runs.len());
        let [low, high] = interval::share(some, all).unwrap_or([0.0, 1.0]).map(|share| 100.0 * share);
        format!("{some} of {all} runs ({low:.0} to {high:.0} %)")
    }

    /// Counts in words.
    fn note(&self, nodes: i32) -> String {
        format!(
            "{} decide so; deadline of {:.0} s kept in {}, missed without in {}; ends after {:.0} s and {:.0} s (medians), expected {:.0} s",
            self.counted(|run| run.nodes == nodes),
            self.sla_s,
            self.counted(|run| run.with_s <= self.sla_s),
            self.counted(|run| run.without_s > self.sla_s),
            median(self.runs.iter().map(|run| run.with_s)),
            median(self.runs.iter().map(|run| run.without_s)),
            median(self.runs.iter().map(|run| run.expected_s)),
        )
    }
}

/// A scenario by name, for all seeds.
type Scenario<'a> = (&'static str, f64, &'a dyn Fn(Case, &Trained) -> Result<Run, BedError>);

/// The scenarios in which nodes are added, with their deadlines.
const ADDING: [Scenario<'static>; 5] = [
    ("WordCount, one map node", 3_000.0, &|case, trained| scenarios::word_count(case, trained, 1)),
    ("a map node fails", 3_000.0, &scenarios::failure),
    ("two jobs, known at the start", 600.0, &|case, trained| scenarios::two_jobs(case, trained, 0.0)),
    ("two jobs, the second arrives", 600.0, &|case, trained| scenarios::two_jobs(case, trained, 120.0)),
    ("TeraSort, after the map stage", 2_000.0, &scenarios::tera_sort),
];

/// The scenario in which nodes are removed.
const FOUR_NODES: Scenario<'static> =
    ("WordCount, four map nodes", 3_000.0, &|case, trained| scenarios::word_count(case, trained, 4));

impl Bench<'_> {
    fn outcome(&self, scenario: Scenario<'_>, case: impl Fn(u64) -> Case) -> Result<Outcome, BedError> {
        let (name, sla_s, run) = scenario;
        let mut runs = Vec::new();
        for (index, (seed, trained)) in self.seeds.iter().zip(&self.trained).enumerate() {
            runs.push(run(case(*seed), trained)?);
            (self.progress)(name, index + 1, self.seeds.len());
        }
        Ok(Outcome { runs, sla_s })
    }

    fn details(&mut self, experiment: &str, outcome: &Outcome) {
        for (index, run) in outcome.runs.iter().enumerate() {
            let case = || format!("seed {}", self.seeds[index]);
            let rows = [
                ("nodes", f64::from(run.nodes), "nodes"),
                ("ends with the decision", run.with_s, "s"),
                ("ends without", run.without_s, "s"),
                ("finished map tasks that ran again", f64::from(run.again), "tasks"),
            ];
            let rows = rows.map(|(quantity, value, unit)| (case(), quantity, value, unit));
            for (case, quantity, value, unit) in rows {
                self.detail(experiment, case, quantity, value, unit);
            }
        }
    }

    /// A decision of the paper: the same in most runs, and the deadline kept with it, and missed without it where `needed`.
    fn decision(&mut self, id: &'static str, nodes: i32, needed: bool, outcome: &Outcome, what: &str) {
        let same = outcome.part(|run| run.nodes == nodes);
        let missed = !needed || outcome.missed_without() >= MOST_RUNS;
        let holds = same >= MOST_RUNS && outcome.kept() >= MOST_RUNS && missed;
        let without = if needed { ", missed without" } else { "" };
        let target = format!("{} in 90 % of the runs; deadline kept in 90 %{without}", nodes.abs());
        let note = format!("{what}: {}", outcome.note(nodes));
        self.out.figures.push(figure(id, Some(nodes.abs().into()), outcome.nodes(), "nodes", (target, holds), note));
    }

    /// The median progress of all runs, with the band that 95 % of them are in.
    fn curves(&mut self, plot: &str, outcome: &Outcome) {
        for (index, name) in ["with the decision", "without"].into_iter().enumerate() {
            let runs: Vec<&Vec<(f64, f64)>> = outcome.runs.iter().map(|run| &run.progress[index]).collect();
            let Some(longest) = runs.iter().max_by_key(|run| run.len()) else { return };
            let (mut points, mut band) = (Vec::new(), Vec::new());
            for (at, (time_s, _)) in longest.iter().enumerate() {
                // A run that has ended stays as it was.
                let then: Vec<f64> = runs.iter().filter_map(|run| Some(run.get(at).or(run.last())?.1)).collect();
                points.push((*time_s, median(then.iter().copied())));
                band.extend(interval::middle(then));
            }
            self.out.series.push(Series {
                plot: plot.to_owned(),
                name: format!("{name} (median, 95 % of runs)"),
                x: "time, s",
                y: "map tasks done, %",
                points_only: false,
                points,
                band,
            });
        }
    }
}

/// Runs everything. `progress` is told the stage, and how many of its runs are done.
///
/// # Errors
/// [`ReproduceError::Trace`] for a trace that is there and cannot be read; [`ReproduceError::MapReduce`] is a mistake.
pub fn reproduce(
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<Reproduction, ReproduceError> {
    let seeds: Vec<u64> = (0..options.runs.max(1)).map(|run| options.seed.wrapping_add(run)).collect();
    let mut trained = Vec::new();
    for (index, seed) in seeds.iter().enumerate() {
        trained.push(Trained::new(*seed).map_err(BedError::Fit)?);
        progress("training runs", index + 1, seeds.len());
    }
    let mut bench = Bench { seeds, trained, progress, out: Reproduction::default() };
    adding(&mut bench)?;
    removing(&mut bench)?;
    accuracy::accuracy(&mut bench)?;
    lead_times(&mut bench)?;
    refitting(&mut bench)?;
    other_speeds(&mut bench)?;
    match &options.traces {
        Some(folder) => recorded_runs(&mut bench, folder)?,
        None => bench.out.skipped.push("mapreduce.recorded_held_out: no folder of traces is named".into()),
    }
    bench.out.skipped.push("time of a decision: measured by `cargo bench --workspace --bench mapreduce`".to_owned());
    Ok(bench.out)
}

/// §V-A, C and D, with new nodes that take tasks at once, as the paper's models have it.
fn adding(bench: &mut Bench<'_>) -> Result<(), BedError> {
    let rows = [
        ("mapreduce.add_two", 2, "map nodes added to one at 1000 s, WordCount of 12 GB"),
        ("mapreduce.failure_add_two", 2, "map nodes added when one of two has failed"),
        ("mapreduce.two_jobs_known", 1, "nodes of two cores added at 360 s beside a job that is there from the start"),
        ("mapreduce.two_jobs_arrive", 2, "nodes of one core added at 360 s beside a job that came at 120 s"),
        ("mapreduce.tera_sort_add_reduce", 1, "reduce nodes added after the map stage of TeraSort (Fig. 5b)"),
    ];
    for ((id, nodes, what), scenario) in rows.into_iter().zip(ADDING) {
        let outcome = bench.outcome(scenario, Case::paper)?;
        bench.decision(id, nodes, true, &outcome, what);
        bench.details(scenario.0, &outcome);
        if id == "mapreduce.add_two" {
            bench.curves("mapreduce_add", &outcome);
        }
    }
    Ok(())
}

/// §V-B.
fn removing(bench: &mut Bench<'_>) -> Result<(), BedError> {
    let four: Scenario<'_> = FOUR_NODES;
    let counted = bench.outcome(four, Case::paper)?;
    bench.decision("mapreduce.remove_one", -1, false, &counted, "map nodes removed of four at 1000 s");
    bench.details(four.0, &counted);
    bench.curves("mapreduce_remove", &counted);
    let naive = bench.outcome(four, |seed| Case { lost_output: LostOutput::Forgotten, ..Case::paper(seed) })?;
    let (same, missed) = (naive.part(|run| run.nodes == -2), 1.0 - naive.kept());
    let note = format!("the same by the model that forgets lost map output: {}", naive.note(-2));
    let target = "2 in 90 % of the runs; deadline missed in 90 %".to_owned();
    let holds = same >= MOST_RUNS && missed >= MOST_RUNS;
    let ours = naive.nodes();
    bench.out.figures.push(figure("mapreduce.naive_misses", Some(2.0), ours, "nodes", (target, holds), note));
    bench.details("WordCount, four map nodes, lost output forgotten", &naive);
    let (mut runs, mut at_once) = (Vec::new(), Vec::new());
    for (seed, trained) in bench.seeds.iter().zip(&bench.trained) {
        let (run, lost) = scenarios::k_means(Case::paper(*seed), trained)?;
        runs.push(run);
        at_once.push(f64::from(lost));
    }
    let k_means = Outcome { runs, sla_s: 1_500.0 };
    let lost = k_means.runs.iter().map(|run| run.again).max().unwrap_or(0);
    let most_lost = |drawn: &[usize]| drawn.iter().map(|run| f64::from(k_means.runs[*run].again)).fold(0.0, f64::max);
    let ours = (f64::from(lost), interval::bootstrap(k_means.runs.len(), most_lost));
    let fewer = k_means.part(|run| run.nodes < 0);
    let holds = lost == 0 && k_means.kept() >= MOST_RUNS && fewer >= MOST_RUNS;
    let note = format!(
        "most map tasks lost in a run of K-means whose nodes leave before the classification ({:.0} nodes of 4; at once {:.0} tasks would be \
         lost, medians); none lost in {}; deadline of 1500 s kept in {}, ends after {:.0} s",
        k_means.median_nodes().abs(),
        median(at_once.into_iter()),
        k_means.counted(|run| run.again == 0),
        k_means.counted(|run| run.with_s <= k_means.sla_s),
        median(k_means.runs.iter().map(|run| run.with_s)),
    );
    let target = "0; nodes removed and deadline kept in 90 % of the runs".to_owned();
    bench.out.figures.push(figure("mapreduce.kmeans_no_loss", Some(0.0), ours, "tasks", (target, holds), note));
    bench.details("K-means", &k_means);
    Ok(())
}

/// Ours: new nodes that take a while, known to the planner or not, and with a reserve; the model is corrected by finished tasks.
fn lead_times(bench: &mut Bench<'_>) -> Result<(), BedError> {
    let ways = [("known", true, 0.0), ("forgotten", false, 0.0), ("known, with a reserve", true, RESERVE)];
    // Of each run, the part of its cases in which the deadline is kept.
    let mut kept: [Vec<f64>; 3] = std::array::from_fn(|_| vec![0.0; bench.seeds.len()]);
    let cases = (ADDING.len() * LEADS_S.len()) as f64;
    for scenario in ADDING {
        for lead_s in LEADS_S {
            for ((what, lead_known, reserve), all) in ways.into_iter().zip(&mut kept) {
                let case = |seed| Case { lead_s, lead_known, reserve, refit: true, ..Case::paper(seed) };
                let outcome = bench.outcome(scenario, case)?;
                let case = format!("{}, lead time {lead_s:.0} s, {what}", scenario.0);
                for (run, part) in outcome.runs.iter().zip(all) {
                    *part += 100.0 * f64::from(u8::from(run.with_s <= outcome.sla_s)) / cases;
                }
                bench.detail("lead time", case.clone(), "nodes, median", outcome.median_nodes(), "nodes");
                bench.detail("lead time", case, "deadline kept", 100.0 * outcome.kept(), "%");
            }
        }
    }
    let [known, forgotten, reserved] = kept.map(|own| mean_of_runs(&own));
    let leads: Vec<String> = LEADS_S.iter().map(|lead| format!("{lead:.0}")).collect();
    let note = format!(
        "deadlines kept in the five scenarios above when new nodes take {} s to start and the planner knows it, without a reserve; when it \
         does not {:.0} %",
        leads.join(", "),
        forgotten.0
    );
    let target = |kept: f64| ("at least 90".to_owned(), kept >= 90.0);
    bench.out.figures.push(figure("mapreduce.lead_time_known", None, known, "%", target(known.0), note));
    let note = format!("the same with {:.0} % of the remaining time in reserve", 100.0 * RESERVE);
    bench.out.figures.push(figure("mapreduce.lead_time_reserve", None, reserved, "%", target(reserved.0), note));
    Ok(())
}

/// Where the paper does not say how fast tasks are, other speeds: WordCount's scenarios as fast as trained, and two jobs on EC2 with
/// tasks that are faster and slower than those of Table II, with models trained on such tasks.
fn other_speeds(bench: &mut Bench<'_>) -> Result<(), BedError> {
    let four: Scenario<'_> = FOUR_NODES;
    for (what, lost_output) in [("lost output counted", LostOutput::Counted), ("forgotten", LostOutput::Forgotten)] {
        let outcome = bench.outcome(four, |seed| Case { slower: Some(1.0), lost_output, ..Case::paper(seed) })?;
        let case = format!("{}, tasks as fast as in training, {what}", four.0);
        bench.detail("other speeds", case.clone(), "nodes, median", outcome.median_nodes(), "nodes");
        bench.detail("other speeds", case, "deadline kept", 100.0 * outcome.kept(), "%");
    }
    let as_trained = bench.trained.clone();
    for times in EC2_SPEEDS {
        let slowed = workloads::slow(workloads::WORD_COUNT, times);
        for (seed, trained) in bench.seeds.iter().zip(&mut bench.trained) {
            trained.on_ec2 = workloads::train_word_count(&slowed, *seed)?;
        }
        for reserve in [0.0, RESERVE] {
            let outcome =
                bench.outcome(ADDING[2], |seed| Case { slower: Some(times), reserve, ..Case::paper(seed) })?;
            let case = format!("{}, tasks of {times} times Table II's, reserve {reserve}", ADDING[2].0);
            let rows = [
                ("nodes, median", outcome.median_nodes(), "nodes"),
                ("deadline kept", 100.0 * outcome.kept(), "%"),
                ("deadline missed without", 100.0 * outcome.missed_without(), "%"),
            ];
            rows.into_iter()
                .for_each(|(what, value, unit)| bench.detail("other speeds", case.clone(), what, value, unit));
        }
    }
    bench.trained = as_trained;
    Ok(())
}

/// Ours: tasks that take longer than in training.
fn refitting(bench: &mut Bench<'_>) -> Result<(), BedError> {
    let [word_count, ..] = ADDING;
    let mut kept = |refit| {
        let outcome = bench.outcome(word_count, |seed| Case { slower: Some(SLOWER), refit, ..Case::paper(seed) })?;
        let what = if refit { "refitted" } else { "as trained" };
        bench.detail("slower tasks", what.to_owned(), "nodes, median", outcome.median_nodes(), "nodes");
        bench.detail("slower tasks", what.to_owned(), "deadline kept", 100.0 * outcome.kept(), "%");
        let (some, all) = (outcome.runs.iter().filter(|run| run.with_s <= outcome.sla_s).count(), outcome.runs.len());
        let interval = interval::share(some, all).map(|own| own.map(|share| 100.0 * share));
        Ok::<Value, BedError>((100.0 * outcome.kept(), interval))
    };
    let (with, without) = (kept(true)?, kept(false)?);
    let note = format!(
        "deadlines kept by WordCount on one map node when tasks take {SLOWER} times what they took in training and the model is corrected by \
         finished tasks; uncorrected: {:.0} %",
        without.0
    );
    let target = ("at least 90".to_owned(), with.0 >= 90.0);
    bench.out.figures.push(figure("mapreduce.refitted", None, with, "%", target, note));
    Ok(())
}

/// The recorded runs.
fn recorded_runs(bench: &mut Bench<'_>, folder: &std::path::Path) -> Result<(), ReproduceError> {
    let Some(runs) = recorded::read(folder)? else {
        bench.out.skipped.push("mapreduce.recorded_held_out: the folder of traces has no scout-hadoop-scaleout".into());
        return Ok(());
    };
    let (mut all, mut each, mut nearest, mut sum) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for (workload, runs) in runs {
        let found = match recorded::left_out(&runs) {
            Ok(found) => found,
            Err(error) => {
                bench.out.skipped.push(format!("recorded runs of {workload}: {error}"));
                continue;
            }
        };
        let errors: Vec<f64> = found.iter().map(recorded::LeftOut::error).collect();
        each.push(format!("{workload} {:.1}", mean(&errors)));
        if let Some(error) = recorded::nearest(&runs) {
            nearest.push(format!("{workload} {error:.1}"));
            sum += error * runs.len() as f64;
        }
        for own in &found {
            let case = format!("{workload}, {:.0} nodes, {:.0} s", own.nodes, own.recorded_s);
            bench.detail("recorded runs", case.clone(), "predicted from the others", own.predicted_s, "s");
            bench.detail("recorded runs", case, "error", own.error(), "%");
        }
        all.extend(errors);
    }
    let error = mean_of_runs(&all);
    let note = format!(
        "{} recorded Hadoop runs on 4 to 12 nodes, each predicted from the others of its workload by T(N) = a + b/N; {}; the curve nearest to \
         all runs, with none left out, errs by {:.1} %: {}",
        all.len(),
        each.join(", "),
        sum / all.len() as f64,
        nearest.join(", ")
    );
    let target = ("below 5".to_owned(), error.0 < 5.0);
    bench.out.figures.push(figure("mapreduce.recorded_held_out", None, error, "%", target, note));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::plant::{Job, Node, Plant};
    use super::workloads::WORD_COUNT;
    use super::*;

    fn node(cores: u32, map_slots: u32, reduce_slots: u32) -> Node {
        Node { cores, map_slots, reduce_slots, from_s: 0.0, only_for: None }
    }

    fn job(maps: u32, reduces: u32) -> Job {
        let input_mb = 64.0 * f64::from(maps);
        let workload = plant::Workload { variation: 0.0, ..WORD_COUNT };
        Job { submitted_s: 0.0, input_mb, maps, reduces, weight: 1.0, after: None, workload }
    }

    /// Tasks take turns on a slot, share a core, and end when the plant's constants say, within its heartbeats.
    #[test]
    fn the_plant_by_hand() {
        let map_s = |nodes: usize, slots: u32, maps: u32| {
            let mut plant = Plant::new(1, 0.0);
            (0..nodes).for_each(|_| _ = plant.add(node(1, slots, 0)));
            let of = plant.submit(job(maps, 0));
            plant.run(f64::INFINITY, of);
            plant.stages(of).unwrap().map_s
        };
        // 4.5 + 0.4 × 64 = 30.1 s, and up to 3 s of a heartbeat before each but the first.
        for (nodes, slots, maps, least, most) in
            [(1, 1, 4, 120.4, 130.5), (4, 1, 4, 29.0, 34.0), (1, 2, 4, 119.0, 133.0), (2, 1, 3, 59.5, 67.0)]
        {
            let found = map_s(nodes, slots, maps);
            assert!((least..=most).contains(&found), "{nodes} nodes of {slots} slots, {maps} tasks: {found}");
        }
    }

    /// A node that leaves takes finished map tasks with it if reduce tasks need them, and none of a job without.
    #[test]
    fn what_a_leaving_node_takes_with_it() {
        for reduces in [0, 1] {
            let mut plant = Plant::new(3, 0.0);
            let nodes = [node(1, 1, 0), node(1, 1, 0), node(1, 0, 1)].map(|own| plant.add(own));
            let of = plant.submit(job(20, reduces));
            plant.run(170.0, of);
            let done: u32 = plant.seen(of).iter().map(|own| own.maps_done).sum();
            let here = plant.seen(of)[0].maps_done;
            assert!((8..=10).contains(&done) && here > 0, "{done}");
            plant.remove(nodes[0]);
            plant.run(f64::INFINITY, of);
            assert_eq!(plant.again(of), if reduces > 0 { here } else { 0 });
            // The rest on one node.
            let rest = f64::from(20 - done + plant.again(of));
            let end_s = plant.end_s(of).unwrap();
            assert!((170.0 + rest * 29.0..170.0 + (rest + 2.0) * 33.5 + 30.0).contains(&end_s), "{end_s} {rest}");
        }
    }

    /// Two jobs of equal weight have half of the slots each, and a node of one job's own is no other's.
    #[test]
    fn jobs_share_slots() {
        let mut plant = Plant::new(5, 0.0);
        plant.add(node(2, 1, 0));
        let (first, second) = (plant.submit(job(12, 0)), plant.submit(job(12, 0)));
        plant.run(200.0, first);
        assert!((plant.part_done(first) - plant.part_done(second)).abs() < 0.1);
        plant.add(Node { from_s: 200.0, only_for: Some(first), ..node(2, 1, 0) });
        plant.run(300.0, first);
        assert!(plant.part_done(first) > plant.part_done(second) + 0.3);
    }

    /// A task four times as long as a part varies half as much; one that is shorter as much as a part. A reduce task of 20 GB has what 21 parts and the
    /// speed of its node have, 3 % in all.
    #[test]
    fn long_tasks_vary_less() {
        use super::workloads::{Config, TERA_SORT, flat, run_alone};
        for (seconds, variation) in [(10.0, 0.1), (31.6, 0.1), (126.4, 0.05)] {
            assert!((TERA_SORT.variation_of(seconds) - variation).abs() < 1e-12, "{seconds}");
        }
        assert!((flat(TERA_SORT).variation_of(1e4) - 0.1).abs() < 1e-12);
        let config = Config { task_mb: 64.0, maps: 298, reduces: 1, map_nodes: (4, 1), reduce_nodes: (1, 1) };
        let deviation = |workload| {
            let seconds: Vec<f64> =
                (0..400).map(|seed| run_alone(&workload, &config, seed).unwrap().reduce_s).collect();
            let middle = mean(&seconds);
            (mean(&seconds.iter().map(|own| (own / middle - 1.0).powi(2)).collect::<Vec<_>>())).sqrt()
        };
        let (parts, whole) = (deviation(TERA_SORT), deviation(flat(TERA_SORT)));
        assert!((0.025..0.034).contains(&parts) && (0.08..0.115).contains(&whole), "{parts} {whole}");
    }

    /// The paper's claim, on a few of the seeds that are reported; the worst of 40 sets of 20 runs is 3.35 % (docs/autoscale.md).
    #[test]
    fn the_models_err_by_less_than_5_percent_in_the_worst_of_the_workloads() {
        let seeds: Vec<u64> = (0..8).map(|run| Options::default().seed + run).collect();
        let trained = seeds.iter().map(|seed| Trained::new(*seed).unwrap()).collect();
        let mut bench = Bench { seeds, trained, progress: &|_, _, _| {}, out: Reproduction::default() };
        accuracy::accuracy(&mut bench).unwrap();
        let error = bench.out.figures.iter().find(|figure| figure.id == "mapreduce.model_error").unwrap();
        assert!(error.holds && error.ours.is_some_and(|percent| percent > 0.0 && percent < 5.0), "{error:?}");
    }

    #[test]
    fn every_figure_is_there_and_equal_seeds_give_equal_runs() {
        let options = Options { seed: 1, runs: 2, traces: None };
        let found = reproduce(&options, &|_, _, _| {}).unwrap();
        let ids: Vec<&str> = found.figures.iter().map(|figure| figure.id).collect();
        assert_eq!(ids.len(), 14, "{ids:?}");
        let holds = |figure: &crate::Figure| {
            figure.ours.zip(figure.interval).is_some_and(|(ours, [low, high])| (low..=high).contains(&ours))
        };
        assert!(found.figures.iter().all(holds), "{:?}", found.figures);
        let banded = |series: &Series| series.band.is_empty() || series.band.len() == series.points.len();
        assert!(found.series.iter().all(banded) && found.series.iter().any(|series| !series.band.is_empty()));
        let plots: std::collections::BTreeSet<&str> = found.series.iter().map(|series| series.plot.as_str()).collect();
        assert_eq!(plots.len(), 6, "{plots:?}");
        assert_eq!(found.skipped.len(), 2);
        assert_eq!(found, reproduce(&options, &|_, _, _| {}).unwrap());
    }

    #[test]
    fn recorded_runs_where_there_are_some() {
        let Some(folder) = std::env::var_os("GLEANER_TRACES") else {
            _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIPPED: recorded_runs_where_there_are_some: GLEANER_TRACES names no folder of traces\n",
            );
            return;
        };
        let runs = recorded::read(std::path::Path::new(&folder)).unwrap().unwrap();
        let errors = |workload: &str| -> Vec<f64> {
            recorded::left_out(&runs[workload]).unwrap().iter().map(recorded::LeftOut::error).collect()
        };
        assert_eq!(errors("terasort").len(), 4, "one of five was not completed");
        assert!(mean(&errors("wordcount")) < 10.0);
    }
}
