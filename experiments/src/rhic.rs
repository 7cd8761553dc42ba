//! RHIC's evaluation (both papers, §5) on the simulated test bed: cost, energy and deadlines against an exhaustive
//! survey, other algorithms, churn, another framework, several classes of hosts, and hybrid against dedicated clusters.
//! In: options and seeds. Out: the papers' figures, ours beside them. Called by `gleaner reproduce rhic`.
//!
//! Jobs are calibrated on the survey's ranges with the foreground mix 1 ([`crate::jobs`]); every figure comes from
//! other mixes and other seeds.

pub mod any_job;
pub mod drawn;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::baselines::sizing::{Scenario, Sizing};
use crate::forecast::{self, Outcome};
use crate::jobs::{HbaseJob, PaperJob};
use crate::pool::run_all;
use crate::{Detail, Figure, ReproduceError, Reproduction, Series};
use gleaner_simulator::cluster::{ClusterRun, ScenarioError};
use gleaner_simulator::foreground::Session;
use gleaner_simulator::scenario::{HostClass, JobProfile};
use gleaner_types::job::{Goal, Prices};
use gleaner_types::units::{DollarsPerHour, Fraction};
use values::{least_mean, mean, percent_over};

/// Prices of a volunteer in the survey, in dollars an hour (RHIC Fig. 11).
pub const VOLUNTEER_PRICES: [f64; 4] = [0.20, 0.42, 0.60, 0.80];
/// The default one.
const PRICE: f64 = 0.42;
/// Where in the range of possible completion times the three deadlines lie.
const DEADLINES: [f64; 3] = [0.15, 0.4, 0.7];
/// Least miss that counts, as a part of the deadline.
const MISS: f64 = 0.01;

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Foreground mixes are this seed and the ones after it; 1 is the calibration's.
    pub seed: u64,
    /// Mixes; the paper ran everything twice.
    pub mixes: u64,
    /// Folder of recorded traces, for the promises.
    pub traces: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1_001, mixes: 2, traces: None }
    }
}

/// Where a run belongs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// Fixed size, of the survey.
    Survey {
        job: &'static str,
        mix: u64,
        volunteers: u32,
    },
    /// Adaptive for cost at a price in cents.
    Cost {
        job: &'static str,
        mix: u64,
        cents: u32,
    },
    Energy {
        job: &'static str,
        mix: u64,
    },
    /// With the number of the deadline.
    Deadline {
        job: &'static str,
        mix: u64,
        number: usize,
    },
    /// Another algorithm, with its name.
    Other {
        job: &'static str,
        mix: u64,
        goal: &'static str,
        name: String,
    },
    /// With more churn.
    Churn {
        job: &'static str,
        mix: u64,
        times: u32,
    },
    ChurnDeadline {
        job: &'static str,
        mix: u64,
        times: u32,
    },
    /// Hybrid or dedicated, with the number of added nodes.
    Hybrid {
        job: &'static str,
        nodes: u32,
        hybrid: bool,
    },
    /// A class of hosts alone, or all together for `None`.
    Class {
        job: &'static str,
        class: Option<usize>,
    },
}

/// Runs that are waiting, and what came of them.
#[derive(Default)]
struct Runs {
    waiting: Vec<(Key, Scenario)>,
    done: BTreeMap<Key, ClusterRun>,
}

impl Runs {
    fn add(&mut self, key: Key, scenario: Scenario) {
        self.waiting.push((key, scenario));
    }

    fn run(&mut self, what: &str, progress: &(dyn Fn(&str, usize, usize) + Sync)) -> Result<(), ScenarioError> {
        let (keys, scenarios): (Vec<Key>, Vec<Scenario>) = std::mem::take(&mut self.waiting).into_iter().unzip();
        let runs = run_all(&scenarios, &|done, all| progress(what, done, all))?;
        self.done.extend(keys.into_iter().zip(runs));
        Ok(())
    }

    fn get(&self, key: &Key) -> Option<&ClusterRun> {
        self.done.get(key)
    }
}

fn prices(volunteer: f64) -> Prices {
    Prices { dedicated: DollarsPerHour::clamped(1.0), volunteer: DollarsPerHour::clamped(volunteer) }
}

/// A test bed: the Hadoop one, or the smaller one of HBase.
#[derive(Clone, Copy)]
struct Bed {
    dedicated: u32,
    interactive: u32,
}

const HADOOP: Bed = Bed { dedicated: 6, interactive: 36 };
const HBASE: Bed = Bed { dedicated: 3, interactive: 18 };

impl Bed {
    fn scenario(self, job: &JobProfile, mix: u64, goal: Goal, sizing: Sizing) -> Scenario {
        Scenario {
            seed: mix,
            foreground_seed: mix,
            dedicated: vec![HostClass { count: self.dedicated, ..HostClass::default() }],
            interactive: vec![HostClass { count: self.interactive, ..HostClass::default() }],
            job: job.clone(),
            goal,
            sizing,
            ..Scenario::default()
        }
    }

    fn sizes(self) -> impl Iterator<Item = u32> {
        (0..=self.interactive).step_by(2)
    }
}

const CHEAPEST: Goal = Goal::Cost { budget: None };

/// Cheapest cost over the survey at a price, in dollars.
fn survey_least(runs: &Runs, bed: Bed, job: &'static str, mix: u64, value: impl Fn(&ClusterRun) -> f64) -> f64 {
    let of = |volunteers| runs.get(&Key::Survey { job, mix, volunteers }).map_or(f64::INFINITY, &value);
    bed.sizes().map(of).fold(f64::INFINITY, f64::min)
}

/// Runs everything. `progress` is told the stage, and how many of its runs are done, from any thread.
///
/// # Errors
/// [`ReproduceError`].
pub fn reproduce(
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<Reproduction, ReproduceError> {
    let mixes: Vec<u64> = (0..options.mixes.max(1)).map(|mix| options.seed + mix).collect();
    let mut runs = Runs::default();
    survey(&mut runs, &mixes);
    runs.run("exhaustive survey", progress)?;
    let deadlines = adaptive(&mut runs, &mixes);
    runs.run("adaptive sizing", progress)?;
    others(&mut runs, &mixes, &deadlines);
    runs.run("other algorithms", progress)?;
    churn(&mut runs, &mixes, &deadlines);
    runs.run("churn", progress)?;
    hybrid(&mut runs, options.seed);
    runs.run("hybrid against dedicated", progress)?;
    classes(&mut runs, options.seed);
    runs.run("classes of hosts", progress)?;

    progress("promises", 0, 1);
    let promises = forecast::of_default(&forecast::Options { seed: options.seed, traces: options.traces.clone() })?;

    let mut report = Report { runs: &runs, mixes: &mixes, out: Reproduction::default() };
    report.calibration();
    report.cost();
    report.energy();
    report.deadlines(&deadlines);
    report.hbase();
    report.others();
    report.churn(&deadlines);
    report.classes();
    report.promises(&promises);
    report.hybrid();
    if options.traces.is_none() {
        report.out.skipped.push("promises on recorded traces: no folder of traces is named".into());
    }
    report.plots();
    Ok(report.out)
}

fn survey(runs: &mut Runs, mixes: &[u64]) {
    let hadoop = PaperJob::ALL.map(|job| (HADOOP, job.name(), job.profile()));
    let hbase = HbaseJob::ALL.map(|job| (HBASE, job.name(), job.profile()));
    for (bed, job, profile) in hadoop.into_iter().chain(hbase) {
        for &mix in mixes {
            for volunteers in bed.sizes() {
                let scenario = bed.scenario(&profile, mix, CHEAPEST, Sizing::Fixed { volunteers });
                runs.add(Key::Survey { job, mix, volunteers }, scenario);
            }
        }
    }
}

/// Deadlines per job and mix, from the survey's range of completion times.
type Deadlines = BTreeMap<(&'static str, u64), [f64; 3]>;

fn adaptive(runs: &mut Runs, mixes: &[u64]) -> Deadlines {
    let mut deadlines = Deadlines::new();
    for job in PaperJob::ALL {
        let (name, profile) = (job.name(), job.profile());
        for &mix in mixes {
            for price in VOLUNTEER_PRICES {
                let mut scenario = HADOOP.scenario(&profile, mix, CHEAPEST, Sizing::Adaptive);
                scenario.prices = prices(price);
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cents")]
                let cents = (price * 100.0).round() as u32;
                runs.add(Key::Cost { job: name, mix, cents }, scenario);
            }
            runs.add(Key::Energy { job: name, mix }, HADOOP.scenario(&profile, mix, Goal::Energy, Sizing::Adaptive));
            let time =
                |volunteers| runs.get(&Key::Survey { job: name, mix, volunteers }).map_or(0.0, |run| run.elapsed_s);
            let (slowest, fastest) = (time(0), HADOOP.sizes().map(time).fold(f64::INFINITY, f64::min));
            let within = DEADLINES.map(|part| (fastest + part * (slowest - fastest)).round());
            deadlines.insert((name, mix), within);
            for (number, within_s) in within.into_iter().enumerate() {
                let goal = Goal::Deadline { within_s };
                let scenario = HADOOP.scenario(&profile, mix, goal, Sizing::Adaptive);
                runs.add(Key::Deadline { job: name, mix, number }, scenario);
            }
        }
    }
    for job in HbaseJob::ALL {
        let (name, profile) = (job.name(), job.profile());
        for &mix in mixes {
            let scenario = |goal| HBASE.scenario(&profile, mix, goal, Sizing::Adaptive);
            runs.add(Key::Cost { job: name, mix, cents: 42 }, scenario(CHEAPEST));
            runs.add(Key::Energy { job: name, mix }, scenario(Goal::Energy));
        }
    }
    deadlines
}

/// FUZZY(p) from three start points each, and Threshold(t), which knows no goal.
fn other_policies() -> Vec<(String, Sizing)> {
    let mut policies = Vec::new();
    for step in [2, 4, 8] {
        for start in [0.25, 0.5, 0.75] {
            let start_percent = start * 100.0;
            let policy = Sizing::Fuzzy { step, start: Fraction::clamped(start) };
            policies.push((format!("fuzzy({step}) from {start_percent:.0} %"), policy));
        }
    }
    for residual in [0.25, 0.5] {
        let policy = Sizing::Threshold { residual: Fraction::clamped(residual) };
        policies.push((format!("threshold({residual:.2})"), policy));
    }
    policies
}

fn others(runs: &mut Runs, mixes: &[u64], deadlines: &Deadlines) {
    for job in PaperJob::ALL {
        let (name, profile) = (job.name(), job.profile());
        for &mix in mixes {
            let middle = deadlines.get(&(name, mix)).map_or(0.0, |within| within[1]);
            let goals =
                [("cost", CHEAPEST), ("energy", Goal::Energy), ("deadline", Goal::Deadline { within_s: middle })];
            for (goal_name, goal) in goals {
                for (policy_name, policy) in other_policies() {
                    let key = Key::Other { job: name, mix, goal: goal_name, name: policy_name };
                    runs.add(key, HADOOP.scenario(&profile, mix, goal, policy));
                }
            }
        }
    }
}

const CHURN: [u32; 3] = [1, 2, 8];
const CHURNED: [PaperJob; 2] = [PaperJob::Grep, PaperJob::Pi];

fn churn(runs: &mut Runs, mixes: &[u64], deadlines: &Deadlines) {
    for job in CHURNED {
        let (name, profile) = (job.name(), job.profile());
        for &mix in mixes {
            let within_s = deadlines.get(&(name, mix)).map_or(0.0, |within| within[1]);
            for times in CHURN {
                let scenario = |goal| {
                    let scenario = HADOOP.scenario(&profile, mix, goal, Sizing::Adaptive);
                    Scenario { churn: f64::from(times), ..scenario }
                };
                runs.add(Key::Churn { job: name, mix, times }, scenario(CHEAPEST));
                runs.add(Key::ChurnDeadline { job: name, mix, times }, scenario(Goal::Deadline { within_s }));
            }
        }
    }
}

/// RHIC Fig. 4: two dedicated hosts and 2 to 8 volunteers whose users edit pictures, against as many dedicated hosts.
fn hybrid(runs: &mut Runs, mix: u64) {
    for job in PaperJob::ALL {
        let mut profile = job.profile();
        // A third of the dedicated hosts, a third of the work.
        profile.tasks /= 3;
        for nodes in [2, 4, 6, 8] {
            let bed = |dedicated, interactive| Bed { dedicated, interactive };
            for (hybrid, bed) in [(true, bed(2, nodes)), (false, bed(2 + nodes, 0))] {
                let mut scenario = bed.scenario(&profile, mix, CHEAPEST, Sizing::Fixed { volunteers: nodes });
                scenario.sessions = vec![Session::Photoshop];
                scenario.churn = 0.0;
                runs.add(Key::Hybrid { job: job.name(), nodes, hybrid }, scenario);
            }
        }
    }
}

/// Three generations of hosts (RHIC §5.6): cores, speed, and the foreground that goes with them.
const CLASSES: [(u32, f64, Session); 3] =
    [(16, 1.0, Session::Matlab), (8, 1.6, Session::Office), (12, 0.7, Session::Development)];

fn classes(runs: &mut Runs, mix: u64) {
    for job in CHURNED {
        let mut profile = job.profile();
        profile.tasks /= 2;
        let class = |index: usize, count: u32, disk_mb_s: f64| {
            let (cores, speed, _) = CLASSES[index];
            HostClass { count, cores, speed, disk_mb_s, ..HostClass::default() }
        };
        for index in 0..CLASSES.len() {
            let disk_mb_s = [150.0, 130.0, 110.0][index];
            let mut scenario = HADOOP.scenario(&profile, mix, CHEAPEST, Sizing::Fixed { volunteers: 8 });
            scenario.dedicated = vec![class(index, 4, disk_mb_s)];
            scenario.interactive = vec![class(index, 8, disk_mb_s)];
            scenario.sessions = vec![CLASSES[index].2];
            scenario.churn = 0.0;
            // Up to one period after the profile: the predictions are made then.
            scenario.limit_s = 600;
            runs.add(Key::Class { job: job.name(), class: Some(index) }, scenario);
        }
        let mut together = HADOOP.scenario(&profile, mix, CHEAPEST, Sizing::Fixed { volunteers: 12 });
        together.dedicated = vec![class(0, 4, 250.0)];
        together.interactive = (0..CLASSES.len()).map(|index| class(index, 4, 100.0)).collect();
        together.churn = 0.0;
        together.limit_s = 600;
        runs.add(Key::Class { job: job.name(), class: None }, together);
    }
}

struct Report<'r> {
    runs: &'r Runs,
    mixes: &'r [u64],
    out: Reproduction,
}

impl Report<'_> {
    fn figure(
        &mut self,
        id: &'static str,
        paper: Option<f64>,
        ours: f64,
        unit: &'static str,
        target: (&str, bool),
        note: impl Into<String>,
    ) {
        self.out.figures.push(Figure::new(id, paper, ours, unit, target, note));
    }

    fn detail(
        &mut self,
        experiment: &str,
        case: impl Into<String>,
        quantity: &'static str,
        value: f64,
        unit: &'static str,
    ) {
        let (experiment, case) = (experiment.to_owned(), case.into());
        self.out.details.push(Detail { experiment, case, quantity, value, unit });
    }

    /// How far the simulated survey is from the paper's, over the mixes used here.
    fn calibration(&mut self) {
        for job in PaperJob::ALL {
            let name = job.name();
            let (mut costs, mut energies) = (Vec::new(), Vec::new());
            for &mix in self.mixes {
                for volunteers in HADOOP.sizes() {
                    if let Some(run) = self.runs.get(&Key::Survey { job: name, mix, volunteers }) {
                        costs.push(run.cost_at(HADOOP.dedicated, 1.0, PRICE));
                        energies.push(run.energy_wh);
                    }
                }
            }
            let range = |values: &[f64]| {
                let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                (least, values.iter().copied().fold(0.0, f64::max))
            };
            let ((cheapest, dearest), (least, most)) = (range(&costs), range(&energies));
            let paper = job.survey();
            self.detail("calibration", name, "cheapest, off by", percent_over(cheapest, paper.cost.0), "%");
            self.detail("calibration", name, "dearest, off by", percent_over(dearest, paper.cost.1), "%");
            self.detail("calibration", name, "least energy, off by", percent_over(least, paper.energy.0), "%");
            self.detail("calibration", name, "most energy, off by", percent_over(most, paper.energy.1), "%");
        }
    }

    fn cost(&mut self) {
        let mut errors = Vec::new();
        for job in PaperJob::ALL {
            let name = job.name();
            for price in VOLUNTEER_PRICES {
                let mut own = Vec::new();
                for &mix in self.mixes {
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cents")]
                    let cents = (price * 100.0).round() as u32;
                    let least =
                        survey_least(self.runs, HADOOP, name, mix, |run| run.cost_at(HADOOP.dedicated, 1.0, price));
                    if let Some(run) = self.runs.get(&Key::Cost { job: name, mix, cents }) {
                        own.push(percent_over(run.cost, least));
                    }
                }
                self.detail("cost", format!("{name} at ${price:.2}"), "above the exhaustive minimum", mean(&own), "%");
                errors.extend(own);
            }
        }
        let error = mean(&errors);
        let worst = errors.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let note =
            format!("4 jobs × 4 prices; negative is cheaper than the best fixed size; worst single run {worst:.1} %");
        self.figure("rhic.cost_error_mean", Some(5.0), error, "%", ("at most 2", error <= 2.0), note);
    }

    fn energy(&mut self) {
        let mut errors = Vec::new();
        for job in PaperJob::ALL {
            let name = job.name();
            let mut own = Vec::new();
            for &mix in self.mixes {
                let least = survey_least(self.runs, HADOOP, name, mix, |run| run.energy_wh);
                if let Some(run) = self.runs.get(&Key::Energy { job: name, mix }) {
                    own.push(percent_over(run.energy_wh, least));
                }
            }
            self.detail("energy", name, "above the exhaustive minimum", mean(&own), "%");
            errors.extend(own);
        }
        let error = mean(&errors);
        let worst = errors.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let note = format!("4 jobs; worst single run {worst:.1} %");
        self.figure("rhic.energy_error_mean", Some(3.0), error, "%", ("at most 1.5", error <= 1.5), note);
    }

    fn deadlines(&mut self, deadlines: &Deadlines) {
        let (mut missed, mut worst, mut under) = (0_u32, f64::NEG_INFINITY, Vec::new());
        for (&(job, mix), within) in deadlines {
            for (number, within_s) in within.iter().enumerate() {
                let Some(run) = self.runs.get(&Key::Deadline { job, mix, number }) else { continue };
                let late = percent_over(run.elapsed_s, *within_s);
                missed += u32::from(late > MISS * 100.0);
                worst = worst.max(late);
                under.push(-late);
                let case = format!("{job}, mix {mix}, {:.1} min", within_s / 60.0);
                self.detail("deadline", case, "later than the deadline", late, "%");
            }
        }
        let all = under.len();
        let under = mean(&under);
        let note = format!("of {all}, by more than 1 %");
        self.figure("rhic.deadline_missed", Some(5.0), f64::from(missed), "runs", ("0", missed == 0), note);
        let note = "how late the latest was; negative is early";
        self.figure("rhic.deadline_worst_miss", Some(3.0), worst, "%", ("at most 1", worst <= 1.0), note);
        let holds = (0.0..=2.0).contains(&under);
        let note = "mean runtime below the deadline";
        self.figure("rhic.deadline_mean_under", Some(2.0), under, "%", ("0 to 2", holds), note);
    }

    fn hbase(&mut self) {
        let (mut costs, mut energies) = (Vec::new(), Vec::new());
        for job in HbaseJob::ALL {
            let name = job.name();
            for &mix in self.mixes {
                let cheapest =
                    survey_least(self.runs, HBASE, name, mix, |run| run.cost_at(HBASE.dedicated, 1.0, PRICE));
                let least = survey_least(self.runs, HBASE, name, mix, |run| run.energy_wh);
                if let Some(run) = self.runs.get(&Key::Cost { job: name, mix, cents: 42 }) {
                    let over = percent_over(run.cost, cheapest);
                    self.detail("hbase", format!("{name}, mix {mix}"), "cost above the exhaustive minimum", over, "%");
                    costs.push(over);
                }
                if let Some(run) = self.runs.get(&Key::Energy { job: name, mix }) {
                    let over = percent_over(run.energy_wh, least);
                    self.detail(
                        "hbase",
                        format!("{name}, mix {mix}"),
                        "energy above the exhaustive minimum",
                        over,
                        "%",
                    );
                    energies.push(over);
                }
            }
        }
        let (cost, energy) = (mean(&costs), mean(&energies));
        let note = "3 dedicated hosts, 0 to 18 volunteers";
        self.figure("rhic.hbase_cost_error", Some(1.0), cost, "%", ("at most 1", cost <= 1.0), note);
        self.figure("rhic.hbase_energy_error", Some(2.0), energy, "%", ("at most 1", energy <= 1.0), note);
    }

    /// What other algorithms cost more than ours on the same mixes.
    fn others(&mut self) {
        let mut excess: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        let mut energies: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (key, run) in &self.runs.done {
            let Key::Other { job, mix, goal, name } = key else { continue };
            let value = match *goal {
                "cost" => {
                    self.runs.get(&Key::Cost { job, mix: *mix, cents: 42 }).map(|own| percent_over(run.cost, own.cost))
                }
                "energy" => {
                    self.runs.get(&Key::Energy { job, mix: *mix }).map(|own| percent_over(run.energy_wh, own.energy_wh))
                }
                _ => continue,
            };
            let Some(value) = value else { continue };
            let (experiment, quantity) = match *goal {
                "cost" => ("others, cost", "cost above ours"),
                _ => ("others, energy", "energy above ours"),
            };
            let case = format!("{job}, mix {mix}, {name}");
            self.out.details.push(Detail { experiment: experiment.into(), case, quantity, value, unit: "%" });
            if *goal == "energy" {
                energies.entry(name.clone()).or_default().push(value);
            }
            if *goal == "cost" {
                let family = if name.starts_with("fuzzy") { "fuzzy" } else { "threshold" };
                excess.entry(family).or_default().push(value);
            }
        }
        let of = |family: &str| excess.get(family).map_or(f64::NAN, |values| mean(values));
        let spread = |family: &str| {
            let values = excess.get(family).cloned().unwrap_or_default();
            let centre = mean(&values);
            mean(&values.iter().map(|value| (value - centre).powi(2)).collect::<Vec<_>>()).sqrt()
        };
        let (fuzzy, threshold) = (of("fuzzy"), of("threshold"));
        let note = format!(
            "mean cost above ours, 3 steps × 3 start points; deviation {:.1}; the paper gives no number",
            spread("fuzzy")
        );
        self.figure("rhic.fuzzy_cost_excess", None, fuzzy, "%", ("above 0", fuzzy > 0.0), note);
        let note = format!(
            "mean cost above ours, at 0.25 and 0.50; deviation {:.1}; the paper gives no number",
            spread("threshold")
        );
        self.figure("rhic.threshold_cost_excess", None, threshold, "%", ("above 0", threshold > 0.0), note);
        let (best, gap) = least_mean(&energies).unwrap_or(("none", f64::NAN));
        let note = format!("mean energy above ours of the algorithm that takes least, {best}");
        self.figure("rhic.best_baseline_energy_gap", None, gap, "%", ("above 0", gap > 0.0), note);
    }

    fn churn(&mut self, deadlines: &Deadlines) {
        let mut busiest = 0;
        for job in CHURNED {
            let name = job.name();
            for times in [2, 8] {
                let (mut over, mut late) = (Vec::new(), Vec::new());
                for &mix in self.mixes {
                    let run = |times| self.runs.get(&Key::Churn { job: name, mix, times });
                    if let (Some(base), Some(run)) = (run(1), run(times)) {
                        over.push(percent_over(run.cost, base.cost));
                        busiest = busiest.max(run.decisions_per_interval);
                    }
                    let within_s = deadlines.get(&(name, mix)).map_or(f64::NAN, |within| within[1]);
                    if let Some(run) = self.runs.get(&Key::ChurnDeadline { job: name, mix, times }) {
                        late.push(percent_over(run.elapsed_s, within_s));
                    }
                }
                let case = format!("{name} ×{times}");
                self.detail("churn", case.clone(), "cost above that at ×1", mean(&over), "%");
                self.detail("churn", case, "later than the deadline", mean(&late), "%");
            }
        }
        self.detail("churn", "all", "most decisions in an interval", f64::from(busiest), "");
        let of = |job: PaperJob| {
            let over = self.mixes.iter().filter_map(|&mix| {
                let run = |times| self.runs.get(&Key::Churn { job: job.name(), mix, times });
                Some(percent_over(run(8)?.cost, run(1)?.cost))
            });
            mean(&over.collect::<Vec<_>>())
        };
        let (grep, pi) = (of(PaperJob::Grep), of(PaperJob::Pi));
        let note = format!(
            "Grep, cost at 8 times the churn above that at the measured one; Pi, which the paper excepts: {pi:.1} %; at most \
             {busiest} decisions an interval"
        );
        let holds = grep <= 2.0 && busiest <= 1;
        self.figure("rhic.churn8_cost_excess", Some(0.0), grep, "%", ("at most 2, 1 decision", holds), note);
    }

    /// T_direct against T_equiv (RHIC §5.6): a cluster's runtime predicted from its own progress, and from that of the
    /// base class, the efficiency E_K learned where the classes work together, and the ratio of productivities.
    fn classes(&mut self) {
        let mut worst = f64::NEG_INFINITY;
        for job in CHURNED {
            let name = job.name();
            let seen = |class| self.runs.get(&Key::Class { job: name, class }).map(|run| &run.by_class);
            let (Some(together), Some(base)) = (seen(None), seen(Some(0))) else { continue };
            let class_name = |index: usize| gleaner_simulator::cluster::class_name(CLASSES[index].1);
            let mut errors = Vec::new();
            for index in 1..CLASSES.len() {
                let Some(alone) = seen(Some(index)) else { continue };
                let efficiency = together.efficiency(&class_name(index), &class_name(0));
                // Whole runtimes at the pace so far: 1 / (AP × R_proc).
                let direct = alone.seconds / alone.done;
                let base_s = base.seconds / base.done;
                let productivity = |seen: &gleaner_simulator::cluster::ByClass| seen.cpu_percent_s / seen.seconds;
                let equivalent = base_s * productivity(base) / (productivity(alone) * efficiency);
                let error = percent_over(equivalent, direct).abs();
                self.detail("classes", format!("{name}, class {index}"), "efficiency E_K", efficiency, "");
                self.detail("classes", format!("{name}, class {index}"), "T_equiv from T_direct", error, "%");
                errors.push(error);
            }
            worst = worst.max(mean(&errors));
        }
        let note = "T_equiv against T_direct, the worse of Pi (paper: 0.9) and Grep (paper: 2.0)";
        self.figure("rhic.hetero_error", Some(2.0), worst, "%", ("at most 2", worst <= 2.0), note);
    }

    /// Promises of the shipped default (RHIC Fig. 8); `gleaner reproduce forecast` says more.
    fn promises(&mut self, sets: &[(&'static str, Outcome)]) {
        for (set, outcome) in sets {
            self.detail("promises", (*set).to_owned(), "promises broken", outcome.broken, "%");
            self.detail("promises", (*set).to_owned(), "harvested by kept promises", outcome.harvested, "%");
        }
        let broken = |(_, outcome): &(&str, Outcome)| outcome.broken;
        let worst = sets.iter().max_by(|a, b| broken(a).total_cmp(&broken(b)));
        let (set, violations) = worst.map_or(("none", 0.0), |worst| (worst.0, broken(worst)));
        let note = format!(
            "promises of the shipped default broken, 5 minutes ahead at a stated risk of 1 %, from the third hour on, in the worst of {} sets ({set}); `gleaner reproduce forecast` has hosts, lookaheads and other methods",
            sets.len(),
        );
        self.figure("rhic.predictor_violation", None, violations, "%", ("at most 5", violations <= 5.0), note);
    }

    fn hybrid(&mut self) {
        let (mut costs, mut energies) = (Vec::new(), Vec::new());
        for job in PaperJob::ALL {
            let name = job.name();
            for nodes in [2, 4, 6, 8] {
                let run = |hybrid| self.runs.get(&Key::Hybrid { job: name, nodes, hybrid });
                let (Some(hybrid), Some(dedicated)) = (run(true), run(false)) else { continue };
                let cost = -percent_over(hybrid.cost, dedicated.cost);
                let energy = -percent_over(hybrid.energy_wh, dedicated.energy_wh);
                let case = format!("{name}, 2 + {nodes}");
                self.detail("hybrid", case.clone(), "cost saved", cost, "%");
                self.detail("hybrid", case, "energy saved", energy, "%");
                costs.push(cost);
                energies.push(energy);
            }
        }
        let (cost, energy) = (mean(&costs), mean(&energies));
        let note = "mean over 4 jobs and 2 to 8 volunteers; the paper: 20 to 40 %";
        self.figure("rhic.hybrid_cost_saving", Some(30.0), cost, "%", ("at least 20", cost >= 20.0), note);
        let note = "mean over 4 jobs and 2 to 8 volunteers; the paper: 20 to 29 %";
        self.figure("rhic.hybrid_energy_saving", Some(24.5), energy, "%", ("at least 20", energy >= 20.0), note);
    }

    fn plots(&mut self) {
        let mix = self.mixes[0];
        for job in PaperJob::ALL {
            let name = job.name();
            let survey = |value: &dyn Fn(&ClusterRun) -> f64| -> Vec<(f64, f64)> {
                let run = |volunteers| self.runs.get(&Key::Survey { job: name, mix, volunteers });
                HADOOP.sizes().filter_map(|size| run(size).map(|run| (run.mean_volunteers, value(run)))).collect()
            };
            let own = |key: &Key, value: &dyn Fn(&ClusterRun) -> f64| -> Vec<(f64, f64)> {
                self.runs.get(key).map(|run| (run.mean_volunteers, value(run))).into_iter().collect()
            };
            let line = |plot: &str, name: String, y, points_only, points| Series {
                plot: plot.to_owned(),
                name,
                x: "mean volunteers",
                y,
                points_only,
                points,
                band: Vec::new(),
            };
            let mut series = Vec::new();
            for (price, cents) in VOLUNTEER_PRICES.into_iter().zip([20, 42, 60, 80]) {
                let cost = |run: &ClusterRun| run.cost_at(HADOOP.dedicated, 1.0, price);
                let plot = format!("cost-{name}");
                series.push(line(&plot, format!("fixed sizes at ${price:.2}"), "cost, $", false, survey(&cost)));
                let key = Key::Cost { job: name, mix, cents };
                series.push(line(
                    &plot,
                    format!("adaptive at ${price:.2}"),
                    "cost, $",
                    true,
                    own(&key, &|run| run.cost),
                ));
            }
            let plot = format!("energy-{name}");
            let energy = |run: &ClusterRun| run.energy_wh;
            series.push(line(&plot, "fixed sizes".into(), "energy, Wh", false, survey(&energy)));
            series.push(line(
                &plot,
                "adaptive".into(),
                "energy, Wh",
                true,
                own(&Key::Energy { job: name, mix }, &energy),
            ));
            for (goal, key) in [
                ("cost", Key::Cost { job: name, mix, cents: 42 }),
                ("energy", Key::Energy { job: name, mix }),
                ("deadline", Key::Deadline { job: name, mix, number: 1 }),
            ] {
                let steps = self.runs.get(&key).map(steps).unwrap_or_default();
                series.push(Series {
                    plot: format!("choices-{name}"),
                    name: goal.into(),
                    x: "time, min",
                    y: "volunteers",
                    points_only: false,
                    points: steps,
                    band: Vec::new(),
                });
            }
            self.out.series.extend(series);
        }
        let mut late: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (place, job) in PaperJob::ALL.into_iter().enumerate() {
            for detail in self.out.details.iter().filter(|detail| {
                detail.experiment == "deadline" && detail.case.starts_with(&format!("{},", job.name()))
            }) {
                late.entry(job.name()).or_default().push((place as f64 + 1.0, 1.0 + detail.value / 100.0));
            }
        }
        for (name, points) in late {
            self.out.series.push(Series {
                plot: "deadlines".into(),
                name: name.into(),
                x: "job",
                y: "runtime over deadline",
                points_only: true,
                points,
                band: Vec::new(),
            });
        }
    }
}

/// Sizes over time as a staircase, in minutes.
fn steps(run: &ClusterRun) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for size in &run.sizes {
        let (at, volunteers) = (f64::from(size.at_s) / 60.0, f64::from(size.volunteers));
        if let Some(&(_, before)) = points.last() {
            points.push((at, before));
        }
        points.push((at, volunteers));
    }
    points
}
