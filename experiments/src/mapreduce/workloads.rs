//! The workloads of the plant, and runs of them on clusters of their own: training and tests. In: a workload, a cluster, a
//! seed. Out: measured stages, and what the planner's fit makes of them. Called by [`super`] and [`scenarios`](super::scenarios).
//!
//! The paper (Gandhi et al.) gives fitted coefficients, not what Hadoop did. What tasks do here is chosen so that their
//! times are about Tables II and III at 64 MB a map task: 31.6 s for WordCount, 9.4 s for TeraSort, 12.4 s more beyond 80 MB as the sort
//! buffer spills. Of K-means the paper gives nothing: its iterations compute as WordCount's map tasks do, its classification a quarter of that.

use gleaner_planner::mapreduce::equations::{self, Coefficients, Layout, Work};
use gleaner_planner::mapreduce::fit::{FitError, Fitted, TrainingRun, fit};

use super::plant::{Job, Node, Plant, Stages, Workload};

/// Coefficient of variation of nodes' speeds: virtual machines of one kind. Chosen.
pub const NODE_VARIATION: f64 = 0.02;

/// Coefficient of variation of tasks of at most [`PART_S`]: with it T_ms of ten waves is off by some 2 %, as Δ of Table II is. Chosen.
const VARIATION: f64 = 0.1;

/// Length of a part of a longer task, in CPU seconds: that of a map task of Table II at 64 MB, whose variation the above is. A reduce task of 20 GB
/// then has 2.2 %, and with its node's speed 2.9 %. Recorded sorts of 9 to 19 GB that took 340 to 870 s on two nodes of EC2, five runs each, have 2.1
/// and 1.2 % (C3O, github.com/dos-group/c3o-experiments, `sort.tsv`, c4.2xlarge and m4.2xlarge); the paper's TeraSort was at most 2 % off (Fig. 3).
const PART_S: f64 = 31.6;

/// Times of map tasks on EC2 over Table II's 31.6 s, of which the paper says only what came of them: with one node of two cores more from 360 s on
/// the job ended before 600 s, and without it did not (§V-D). Half of two slots had done 360 s / s of its 32 tasks of s seconds by then, four slots
/// less the other job's do the rest, and its reduce stage takes 9 s by Table II: so s is 18.5 to 32.9 s. This is the middle.
pub const EC2_SLOWER: f64 = 0.81;

/// CPU-bound map tasks that leave little output.
pub const WORD_COUNT: Workload = Workload {
    set_up_s: 5.0,
    start_s: 4.5,
    map_s_per_mb: 0.4,
    sort_mb: f64::INFINITY,
    spill_s_per_mb: 0.0,
    output_ratio: 0.02,
    copy_mb_per_s: 20.0,
    merge_s_per_mb: 0.06,
    segment_s: 0.02,
    reduce_s_per_mb: 0.025,
    variation: VARIATION,
    part_s: PART_S,
};

/// Map tasks that pass everything on, and I/O-bound reduce tasks.
pub const TERA_SORT: Workload = Workload {
    map_s_per_mb: 0.053,
    sort_mb: 80.0,
    spill_s_per_mb: 0.6,
    output_ratio: 1.0,
    copy_mb_per_s: 40.0,
    merge_s_per_mb: 0.015,
    segment_s: 0.01,
    reduce_s_per_mb: 0.02,
    ..WORD_COUNT
};

/// An iteration of K-means.
pub const ITERATION: Workload = WORD_COUNT;

/// The classification of K-means, without reduce tasks.
pub const CLASSIFICATION: Workload = Workload { map_s_per_mb: 0.1, ..WORD_COUNT };

/// The same with map tasks that take so many times as long.
#[must_use]
pub fn slow(own: Workload, times: f64) -> Workload {
    Workload { start_s: own.start_s * times, map_s_per_mb: own.map_s_per_mb * times, ..own }
}

/// The same with tasks whose variation does not fall with their length.
#[must_use]
pub const fn flat(own: Workload) -> Workload {
    Workload { part_s: f64::INFINITY, ..own }
}

/// A job alone on a cluster of map nodes and reduce nodes of one core each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Input of a map task.
    pub task_mb: f64,
    /// Map tasks.
    pub maps: u32,
    /// Reduce tasks.
    pub reduces: u32,
    /// Map nodes and their slots.
    pub map_nodes: (u32, u32),
    /// Reduce nodes and their slots.
    pub reduce_nodes: (u32, u32),
}

impl Config {
    /// Its size.
    #[must_use]
    pub fn work(&self) -> Work {
        Work { input_mb: self.task_mb * f64::from(self.maps), maps: self.maps, reduces: self.reduces }
    }

    /// Its cluster.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout {
            map_cores: self.map_nodes.0.into(),
            map_slots_per_core: self.map_nodes.1,
            reduce_cores: self.reduce_nodes.0.into(),
            reduce_slots_per_core: self.reduce_nodes.1,
        }
    }
}

/// Clusters and sizes to train on; none of them is in a scenario or in a test. Map tasks have the sizes given.
fn training(task_mb: [f64; 3], with_reduce: bool) -> Vec<Config> {
    // Map and reduce tasks, map nodes and slots, reduce nodes and slots: small clusters and jobs of minutes, and one with as much for a reduce task as a test has.
    let shapes = [
        (24, 1, (2, 1), (1, 1)),
        (45, 1, (3, 1), (1, 1)),
        (40, 4, (2, 2), (2, 1)),
        (30, 6, (5, 1), (2, 1)),
        (60, 2, (6, 1), (2, 1)),
        (90, 9, (5, 1), (3, 1)),
        (50, 8, (3, 1), (2, 2)),
        (48, 2, (2, 3), (1, 1)),
        (150, 1, (6, 1), (1, 1)),
    ];
    let config = |task_mb: f64, (maps, reduces, map_nodes, reduce_nodes)| Config {
        task_mb,
        maps,
        reduces: if with_reduce { reduces } else { 0 },
        map_nodes,
        reduce_nodes,
    };
    task_mb.iter().flat_map(|mb| shapes.iter().map(move |shape| config(*mb, *shape))).collect()
}

/// Runs a job alone; `None` would be a mistake of the plant.
#[must_use]
pub fn run_alone(workload: &Workload, config: &Config, seed: u64) -> Option<Stages> {
    let mut plant = Plant::new(seed, NODE_VARIATION);
    let node = |map_slots, reduce_slots| Node { cores: 1, map_slots, reduce_slots, from_s: 0.0, only_for: None };
    for _ in 0..config.map_nodes.0 {
        plant.add(node(config.map_nodes.1, 0));
    }
    for _ in 0..config.reduce_nodes.0 {
        plant.add(node(0, config.reduce_nodes.1));
    }
    let work = config.work();
    let job = plant.submit(Job {
        submitted_s: 0.0,
        input_mb: work.input_mb,
        maps: work.maps,
        reduces: work.reduces,
        weight: 1.0,
        after: None,
        workload: *workload,
    });
    plant.run(f64::INFINITY, job);
    plant.stages(job)
}

/// A seed for one of many runs of a seed.
fn seed_of(seed: u64, run: usize) -> u64 {
    seed.wrapping_mul(10_007).wrapping_add(run as u64)
}

/// Trains on runs of the plant.
///
/// # Errors
/// [`FitError`].
pub fn train(workload: &Workload, task_mb: [f64; 3], with_reduce: bool, seed: u64) -> Result<Fitted, FitError> {
    let configs = training(task_mb, with_reduce);
    let run = |(index, config): (usize, &Config)| {
        let stages = run_alone(workload, config, seed_of(seed, index))?;
        let (work, on) = (config.work(), config.layout());
        Some(TrainingRun {
            input_mb: work.input_mb,
            maps: work.maps,
            reduces: work.reduces,
            map_cores: on.map_cores,
            map_slots_per_core: on.map_slots_per_core,
            reduce_cores: on.reduce_cores,
            reduce_slots_per_core: on.reduce_slots_per_core,
            map_stage_s: stages.map_s,
            reduce_stage_s: stages.reduce_s,
            set_up_s: stages.set_up_s,
        })
    };
    fit(&configs.iter().enumerate().filter_map(run).collect::<Vec<_>>())
}

/// What is trained for the scenarios of a seed.
#[derive(Debug, Clone, Copy)]
pub struct Trained {
    /// WordCount; an iteration of K-means too.
    pub word_count: Fitted,
    /// WordCount on EC2.
    pub on_ec2: Fitted,
    /// TeraSort.
    pub tera_sort: Fitted,
    /// An iteration of K-means.
    pub iteration: Fitted,
    /// The classification of K-means.
    pub classification: Fitted,
}

impl Trained {
    /// Trains all on runs of this seed.
    ///
    /// # Errors
    /// [`FitError`].
    pub fn new(seed: u64) -> Result<Self, FitError> {
        Ok(Self {
            word_count: train_word_count(&WORD_COUNT, seed)?,
            on_ec2: train_word_count(&slow(WORD_COUNT, EC2_SLOWER), seed)?,
            tera_sort: train_tera_sort(&TERA_SORT, seed)?,
            iteration: train(&ITERATION, [8.0, 16.0, 32.0], true, seed.wrapping_add(2 << 20))?,
            classification: train(&CLASSIFICATION, [8.0, 16.0, 32.0], false, seed.wrapping_add(3 << 20))?,
        })
    }
}

/// Trains WordCount, or one that is slower.
///
/// # Errors
/// [`FitError`].
pub fn train_word_count(workload: &Workload, seed: u64) -> Result<Fitted, FitError> {
    train(workload, [32.0, 64.0, 128.0], true, seed)
}

/// Trains TeraSort, or one that differs in its tasks' variation.
///
/// # Errors
/// [`FitError`].
pub fn train_tera_sort(workload: &Workload, seed: u64) -> Result<Fitted, FitError> {
    train(workload, [64.0, 96.0, 128.0], true, seed.wrapping_add(1 << 20))
}

/// Runs of each test that its median is of. Chosen.
const KNOWN_RUNS: usize = 31;

/// Errors on one run of a test, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Error {
    /// Of the model.
    pub model: f64,
    /// Of the median of `KNOWN_RUNS` other runs: what is left where everything but the run's own noise is known.
    pub known: f64,
    /// Of the model against that median: what is due to equations and training.
    pub bias: f64,
    /// What the run took.
    pub measured_s: f64,
    /// What the model said.
    pub model_s: f64,
}

/// A test of §IV-D: jobs and clusters that no training run had.
pub struct Test {
    /// Name of the workload.
    pub name: &'static str,
    /// What differs from cluster to cluster, and how much of it each has.
    pub across: (&'static str, Vec<f64>),
    /// The paper's own coefficients where it prints them.
    pub paper: Option<Coefficients>,
    workload: Workload,
    trained: fn(&Trained) -> Coefficients,
    /// With the median time of each.
    configs: Vec<(Config, f64)>,
}

/// The workload whose map slots vary.
const TERA_SORTS: &str = "TeraSort";

const fn alone(task_mb: f64, maps: u32, reduces: u32, map_nodes: u32, reduce_nodes: (u32, u32)) -> Config {
    Config { task_mb, maps, reduces, map_nodes: (map_nodes, 1), reduce_nodes }
}

/// Fig. 3: as many map as reduce nodes, and map slots that vary. The number of nodes is not given.
fn slots_vary() -> [Config; 4] {
    [1, 2, 3, 4].map(|slots| Config { map_nodes: (4, slots), ..alone(64.0, 298, 1, 4, (4, 1)) })
}

/// The tests, whose medians are of runs of this seed.
#[must_use]
pub fn tests(seed: u64) -> Vec<Test> {
    let word_count = (1..=8).map(|nodes| alone(12_288.0 / 190.0, 190, 1, nodes, (1, 1))).collect();
    let k_means = |reduces| (1..=8).map(|nodes| alone(1_536.0 / 100.0, 100, reduces, nodes, (1, 1))).collect();
    type Of = (&'static str, Workload, fn(&Trained) -> Coefficients, Vec<Config>, Option<Coefficients>);
    let tests: [Of; 4] = [
        ("WordCount", WORD_COUNT, |own| own.word_count.coefficients, word_count, Some(equations::WORD_COUNT)),
        (TERA_SORTS, TERA_SORT, |own| own.tera_sort.coefficients, slots_vary().into(), Some(equations::TERA_SORT)),
        ("K-means, iteration", ITERATION, |own| own.iteration.coefficients, k_means(1), None),
        ("K-means, classification", CLASSIFICATION, |own| own.classification.coefficients, k_means(0), None),
    ];
    // Seeds far from those of training and of the runs that are judged.
    let far = seed.wrapping_add(1 << 40);
    let of = |(index, (name, workload, trained, configs, paper)): (usize, Of)| {
        let slots = name == TERA_SORTS;
        let many = |config: &Config| f64::from(if slots { config.map_nodes.1 } else { config.map_nodes.0 });
        let across = (if slots { "map slots of a node" } else { "map nodes" }, configs.iter().map(many).collect());
        let median = |(at, config): (usize, Config)| {
            let run = |run: usize| run_alone(&workload, &config, seed_of(far, 10_000 * (index + 1) + 100 * at + run));
            let mut ends_s: Vec<f64> = (0..KNOWN_RUNS).filter_map(run).map(|stages| stages.end_s).collect();
            ends_s.sort_by(f64::total_cmp);
            (config, ends_s.get(ends_s.len() / 2).copied().unwrap_or(f64::NAN))
        };
        let configs = configs.into_iter().enumerate().map(median).collect();
        Test { name, across, paper, workload, trained, configs }
    };
    tests.into_iter().enumerate().map(of).collect()
}

/// A run of each cluster of each test against the model.
#[must_use]
pub fn errors(tests: &[Test], trained: &Trained, seed: u64) -> Vec<Vec<Error>> {
    let of = |(index, test): (usize, &Test)| {
        let coefficients = (test.trained)(trained);
        let error = |(at, (config, median_s)): (usize, &(Config, f64))| {
            let measured_s = run_alone(&test.workload, config, test_seed(seed, index, at))?.end_s;
            let model_s = coefficients.job_s(config.work(), config.layout()).ok()?;
            let (known, bias) = (percent(*median_s, measured_s), percent(model_s, *median_s));
            Some(Error { model: percent(model_s, measured_s), known, bias, measured_s, model_s })
        };
        test.configs.iter().enumerate().filter_map(error).collect()
    };
    tests.iter().enumerate().map(of).collect()
}

impl Test {
    /// What the paper's own coefficients say of each cluster; nothing where it prints none.
    #[must_use]
    pub fn by_the_paper(&self) -> Option<Vec<f64>> {
        let own = self.paper?;
        self.configs.iter().map(|(config, _)| own.job_s(config.work(), config.layout()).ok()).collect()
    }
}

/// |model − measured| / measured, in percent.
fn percent(model_s: f64, measured_s: f64) -> f64 {
    100.0 * (model_s - measured_s).abs() / measured_s
}

fn test_seed(seed: u64, test: usize, config: usize) -> u64 {
    seed_of(seed, 1_000 * (test + 1) + config)
}

/// The mean error on TeraSort's tests where tasks vary as much as short ones do, however long they are: in training and in the tests.
///
/// # Errors
/// [`FitError`].
pub fn flat_tera_sort(seed: u64) -> Result<f64, FitError> {
    let workload = flat(TERA_SORT);
    let coefficients = train_tera_sort(&workload, seed)?.coefficients;
    let error = |(at, config): (usize, &Config)| {
        let measured_s = run_alone(&workload, config, test_seed(seed, 1, at))?.end_s;
        Some(percent(coefficients.job_s(config.work(), config.layout()).ok()?, measured_s))
    };
    let configs = slots_vary();
    Ok(configs.iter().enumerate().filter_map(error).sum::<f64>() / configs.len() as f64)
}
