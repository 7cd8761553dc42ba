//! Credit sharing between jobs (Wei, chapter 5): the worked example, and Simulation 1 under CANAL and the schedulers that it is
//! compared with; packing by inputs and by the network alone (§5.5.3); Simulation 2, where there is a trace; wrong estimates,
//! lost nodes, and users of different weights. In: options and seeds. Out: the paper's figures, ours beside them.
//!
//! Fair completions are those of DRF with whole tasks on the same cluster, every input being on every node. All schedulers
//! get the same workload of a seed, and no constant of any was chosen by these figures.

mod curves;
mod facebook;
mod outcome;
mod packing;
mod recorded;
mod rows;
mod users;

use std::path::PathBuf;

use gleaner_planner::sharing::drf::Drf;
use gleaner_planner::sharing::engine::play;
use gleaner_planner::sharing::input::{Cluster, Job, Node, Stage, Workload};
use gleaner_planner::sharing::resources::Resources;
use gleaner_planner::snapshot::share::SharePolicy;
use gleaner_types::id::{HostId, JobId};

pub use self::facebook::Size;
use self::facebook::{FACEBOOK, submission};
use self::outcome::{LATE_S, Outcomes, POLICIES, late_jobs, latest_s, makespan_gain, mean, outcome, speed_up, worst};
pub use self::recorded::DAY;
use crate::{Detail, Figure, ReproduceError, Reproduction};

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Workloads are this seed's and the following ones'. The seeds 1 to 8 were looked at while the code was written.
    pub seed: u64,
    /// How many workloads.
    pub runs: u64,
    /// How large they are.
    pub size: Size,
    /// Folder of recorded traces, for Simulation 2.
    pub traces: Option<PathBuf>,
    /// How many hours of a recorded day are played, 1 to [`DAY`].
    pub hours: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1_001, runs: 5, size: Size::PAPER, traces: None, hours: DAY }
    }
}

/// Runs everything. `progress` is told the stage, and how many of its runs are done.
///
/// # Errors
/// [`ReproduceError`] where a recorded trace is there and cannot be read.
pub fn reproduce(
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<Reproduction, ReproduceError> {
    let mut out = Reproduction::default();
    example(&mut out);
    // First, so that a trace that cannot be read is said at once.
    let mut recorded_day = Reproduction::default();
    let recorded_jobs = |done, all| progress("recorded jobs", done, all);
    recorded::recorded(&mut recorded_day, options.traces.as_deref(), options.hours, options.seed, &recorded_jobs)?;
    let seeds: Vec<u64> = (0..options.runs.max(1)).map(|run| options.seed.wrapping_add(run)).collect();
    let mut submissions = Vec::new();
    for &seed in &seeds {
        match submission(FACEBOOK, seed, options.size) {
            Some(own) => submissions.push((seed, own)),
            None => out.skipped.push(format!("the workload of seed {seed} is not valid")),
        }
    }
    let mut outcomes = Outcomes::new();
    let (all, mut done) = (submissions.len() * POLICIES.len(), 0);
    for (seed, submission) in &submissions {
        let workload = &submission.workload;
        let fair = play(&workload.without_inputs(), &mut Drf, f64::INFINITY);
        for (name, policy) in POLICIES {
            let schedule = play(workload, policy.policy(workload.mean_task_s(), *seed).as_mut(), f64::INFINITY);
            let own = outcomes.entry(name).or_default();
            if own.is_empty() {
                curves::utilisation(&mut out, "canal", name, workload, &schedule);
            }
            own.push(outcome(*seed, submission, &fair, &schedule));
            done += 1;
            progress("Facebook jobs", done, all);
        }
    }
    simulation(&mut out, &outcomes);
    details(&mut out, &outcomes);
    curves::completions(&mut out, ("canal", "seed"), &outcomes);
    rows::rows(&mut out, &submissions, &|done, all| progress("wrong estimates and lost nodes", done, all));
    users::rows(&mut out, &submissions, &|done, all| progress("several users", done, all));
    packing::packing(&mut out, options.size, &seeds, progress);
    out.figures.append(&mut recorded_day.figures);
    out.details.append(&mut recorded_day.details);
    out.series.append(&mut recorded_day.series);
    out.skipped.append(&mut recorded_day.skipped);
    out.series.sort_by(|a, b| a.plot.cmp(&b.plot));
    out.skipped.push("canal.sched_round_ms: time is measured by `cargo bench --workspace --bench sharing`".to_owned());
    Ok(out)
}

/// The example of §5.2.1 with tasks of 60 s; `None` would be a mistake in it.
fn example_workload() -> Option<Workload> {
    let capacity = Resources { cpu: 20.0, memory: 20.0, disk: 0.0, network: 2.0 };
    let node = |name: &str| Some(Node { name: HostId::new(name).ok()?, capacity, rack: 0 });
    let stage = |tasks: u32, cpu: f64, memory: f64, network: f64| Stage {
        tasks,
        demand: Resources { cpu, memory, disk: 0.0, network },
        duration_s: 60.0,
        input: None,
    };
    let reduce = || stage(2, 0.0, 0.0, 1.0);
    let job = |name: &str, stages| Some(Job { name: JobId::new(name).ok()?, release_s: 0.0, stages });
    let jobs = vec![
        job("A", vec![stage(3, 4.0, 12.0, 0.0)])?,
        job("B", vec![stage(4, 8.0, 4.0, 0.0), reduce()])?,
        job("C", vec![stage(6, 5.0, 3.0, 0.0), reduce()])?,
        job("D", vec![stage(3, 10.0, 6.0, 0.0)])?,
    ];
    Workload::new(Cluster { nodes: vec![node("n1")?, node("n2")?], switch: 2.0 }, jobs).ok()
}

/// Table 5.5.
fn example(out: &mut Reproduction) {
    let Some(workload) = example_workload() else {
        out.skipped.push("canal.example_exact: the example is not valid".to_owned());
        return;
    };
    let table = [
        (SharePolicy::Tetris, [2.0, 4.0, 5.0, 2.0]),
        (SharePolicy::Canal, [2.0, 2.0, 3.0, 3.0]),
        (SharePolicy::Drf, [3.0, 5.0, 4.0, 3.0]),
    ];
    let equal = table.iter().flat_map(|(policy, expected)| {
        let schedule = play(&workload, policy.policy(60.0, 0).as_mut(), f64::INFINITY);
        let close = |(job, units): (usize, &f64)| (schedule.completion_s(job) / 60.0 - units).abs() < 1e-9;
        expected.iter().enumerate().map(close).collect::<Vec<_>>()
    });
    let equal = equal.filter(|equal| *equal).count() as f64;
    let note = "completions of Table 5.5 that are exact, of 12 (Tetris, CANAL, DRF)";
    out.figures.push(Figure::new("canal.example_exact", 12.0, equal, "cells", ("12", equal > 11.5), note));
}

fn simulation(out: &mut Reproduction, outcomes: &Outcomes) {
    let of = |name: &str| outcomes.get(name).map_or(&[][..], Vec::as_slice);
    let canal = of("CANAL");
    let jobs: usize = canal.iter().map(|outcome| outcome.late_s.len()).sum();
    let late = 100.0 * canal.iter().map(late_jobs).sum::<f64>() / jobs as f64;
    let none = ("0", late <= 0.0);
    out.figures.push(Figure::new(
        "canal.fjct_violations",
        2.5,
        late,
        "%",
        none,
        "jobs that end more than 40 s after their fair completion",
    ));
    let latest = worst(canal, latest_s);
    let at_most = ("at most 40", latest <= LATE_S);
    out.figures.push(Figure::new(
        "canal.fjct_worst_s",
        50.0,
        latest,
        "s",
        at_most,
        "the most by which a job ends after its fair completion",
    ));
    let mut at_least = |id, paper: f64, ours: f64, unit, note: &str| {
        out.figures.push(Figure::new(id, paper, ours, unit, (format!("at least {paper}"), ours >= paper), note));
    };
    let makespan = |name: &str| makespan_gain(canal, of(name));
    let oblivious = ["LAO", "Tetris", "Delay", "SRJF"].into_iter().map(makespan).fold(f64::NEG_INFINITY, f64::max);
    at_least("canal.makespan_vs_tetris", 12.8, makespan("Tetris"), "%", "how much longer Tetris takes for all jobs");
    at_least(
        "canal.makespan_vs_oblivious",
        23.0,
        oblivious,
        "%",
        "the same of the longest of LAO, Tetris, Delay and SRJF",
    );
    at_least("canal.makespan_vs_nao", 8.0, makespan("NAO"), "%", "the same of NAO");
    let ratio = |name: &str, bins| speed_up(canal, of(name), bins);
    at_least(
        "canal.medium_jobs_vs_delay",
        1.84,
        ratio("Delay", 4..=6),
        "times",
        "mean time under Delay over CANAL's: the best of the bins 4 to 6",
    );
    at_least("canal.medium_jobs_vs_tetris", 2.38, ratio("Tetris", 4..=6), "times", "the same under Tetris");
    at_least(
        "canal.large_jobs_vs_delay",
        1.92,
        ratio("Delay", 7..=9),
        "times",
        "the best of the bins 7 to 9 under Delay",
    );
}

/// Every scheduler with every workload.
fn details(out: &mut Reproduction, outcomes: &Outcomes) {
    for (name, own) in outcomes {
        for outcome in own {
            let mut row = |quantity, value, unit| {
                let (experiment, case) = ("Facebook jobs".to_owned(), format!("{name}, seed {}", outcome.seed));
                out.details.push(Detail { experiment, case, quantity, value, unit });
            };
            row("makespan", outcome.makespan_s, "s");
            row("jobs late by more than 40 s", late_jobs(outcome), "jobs");
            row("latest", latest_s(outcome), "s");
        }
        for bin in 1..=9 {
            let times_s: Vec<f64> = own.iter().filter_map(|outcome| outcome.mean_s.get(&bin).copied()).collect();
            let (experiment, case) = ("mean time by bin".to_owned(), format!("{name}, bin {bin}"));
            out.details.push(Detail { experiment, case, quantity: "mean time", value: mean(&times_s), unit: "s" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::outcome::Outcome;
    use super::*;

    /// Two racks and a tenth of the jobs, seed 1.
    fn small() -> Options {
        Options { seed: 1, runs: 1, size: Size { racks: 2, part: 10, ..Size::PAPER }, ..Options::default() }
    }

    #[test]
    fn the_example_is_exact_and_every_figure_is_there() {
        let found = reproduce(&small(), &|_, _, _| {}).unwrap();
        let ids: Vec<&str> = found.figures.iter().map(|figure| figure.id).collect();
        assert_eq!(ids.len(), 17, "{ids:?}");
        assert!(found.figures[0].holds, "{:?}", found.figures[0]);
        assert!(found.figures.iter().all(|figure| figure.ours.is_some()));
        assert_eq!(found, reproduce(&small(), &|_, _, _| {}).unwrap());
    }

    #[test]
    fn figures_by_hand() {
        let of = |makespan_s, late_s: &[f64], mean_s: &[(u32, f64)]| Outcome {
            seed: 1,
            makespan_s,
            late_s: late_s.to_vec(),
            mean_s: mean_s.iter().copied().collect(),
            ..Outcome::default()
        };
        let canal = [of(100.0, &[-5.0, 40.0, 41.0], &[(4, 10.0), (5, 20.0)])];
        let other = [of(112.0, &[90.0], &[(4, 15.0), (5, 24.0)])];
        assert!((makespan_gain(&canal, &other) - 12.0).abs() < 1e-9);
        assert!((speed_up(&canal, &other, 4..=5) - 1.5).abs() < 1e-9);
        assert!((late_jobs(&canal[0]) - 1.0).abs() < 1e-9 && (latest_s(&canal[0]) - 41.0).abs() < 1e-9);
    }

    #[test]
    fn the_paper_s_workload_has_its_jobs() {
        let found = submission(FACEBOOK, 1_001, Size::PAPER).unwrap();
        let maps: u32 = found.workload.jobs().iter().map(|job| job.stages[0].tasks).sum();
        assert_eq!((found.workload.jobs().len(), maps), (200, 65_814));
        assert_eq!(found.workload.cluster().nodes.len(), 200);
        assert!((found.workload.cluster().switch - 20_000.0).abs() < 1e-9);
    }
}
