//! Packing by where inputs are (LAP) and by the network (NAP), each alone (§5.5.3, Fig. 5.12 to 5.14): workloads in which the
//! other has nothing to do. In: seeds. Out: figures and rows of detail. Called by [`super`].
//!
//! The paper gives the jobs. It does not give the cluster nor when they arrive: both are here as in Simulation 1.

use std::collections::BTreeMap;

use super::facebook::{Jobs, LOCALITY, NETWORK, Size, Submission, submission};
use super::outcome::{Outcome, Outcomes, POLICIES, makespan_gain, mean, outcome, speed_up};
use crate::{Detail, Figure, Reproduction};
use gleaner_planner::sharing::drf::Drf;
use gleaner_planner::sharing::engine::play;

/// An experiment: its name, its jobs, and the names of their kinds.
struct Experiment {
    name: &'static str,
    jobs: Jobs,
    kinds: &'static [&'static str],
}

const EXPERIMENTS: [Experiment; 2] = [
    Experiment { name: "LAP alone", jobs: LOCALITY, kinds: &["TeraGen", "Pi", "RForest"] },
    Experiment { name: "NAP alone", jobs: NETWORK, kinds: &["RWrite", "TeraSort"] },
];

/// Schedulers whose policy is not credit sharing.
const OTHERS: [&str; 3] = ["Tetris", "Delay", "SRJF"];

/// Runs both experiments.
pub(super) fn packing(
    out: &mut Reproduction,
    size: Size,
    seeds: &[u64],
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) {
    for experiment in EXPERIMENTS {
        let mut outcomes = Outcomes::new();
        let (all, mut done) = (seeds.len() * POLICIES.len(), 0);
        for &seed in seeds {
            let Some(own) = submission(experiment.jobs, seed, size) else {
                out.skipped.push(format!("{}: the workload of seed {seed} is not valid", experiment.name));
                continue;
            };
            for (name, outcome) in every_policy(seed, &own) {
                outcomes.entry(name).or_default().push(outcome);
                done += 1;
                progress(experiment.name, done, all);
            }
        }
        details(out, &experiment, &outcomes);
        if experiment.name == EXPERIMENTS[0].name { locality(out, &outcomes) } else { network(out, &outcomes) }
    }
}

fn every_policy(seed: u64, own: &Submission) -> impl Iterator<Item = (&'static str, Outcome)> {
    let workload = &own.workload;
    let fair = play(&workload.without_inputs(), &mut Drf, f64::INFINITY);
    POLICIES.into_iter().map(move |(name, policy)| {
        let schedule = play(workload, policy.policy(workload.mean_task_s(), seed).as_mut(), f64::INFINITY);
        (name, outcome(seed, own, &fair, &schedule))
    })
}

fn of<'a>(outcomes: &'a Outcomes, name: &str) -> &'a [Outcome] {
    outcomes.get(name).map_or(&[][..], Vec::as_slice)
}

/// The least by which one of these takes longer for all jobs, and the most, in percent.
fn gains(outcomes: &Outcomes, names: &[&str]) -> (f64, f64) {
    let gains = names.iter().map(|name| makespan_gain(of(outcomes, "CANAL"), of(outcomes, name)));
    gains.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), gain| (least.min(gain), most.max(gain)))
}

fn at_least(out: &mut Reproduction, id: &'static str, paper: f64, ours: f64, unit: &'static str, note: &str) {
    out.figures.push(Figure::new(id, paper, ours, unit, (format!("at least {paper}"), ours >= paper), note));
}

/// The best of mean times of the jobs of kinds under the others over CANAL's.
fn best_speed_up(outcomes: &Outcomes, kinds: &[u32]) -> f64 {
    let ratios = OTHERS
        .iter()
        .flat_map(|name| kinds.iter().map(|&kind| speed_up(of(outcomes, "CANAL"), of(outcomes, name), kind..=kind)));
    ratios.fold(f64::NEG_INFINITY, f64::max)
}

/// Fig. 5.12 and 5.13(a).
fn locality(out: &mut Reproduction, outcomes: &Outcomes) {
    let (least, _) = gains(outcomes, &["Tetris", "SRJF"]);
    at_least(out, "canal.lap_makespan", 16.0, least, "%", "LAP alone: how much longer Tetris or SRJF takes, the less");
    let (least, _) = gains(outcomes, &["NAO", "Delay"]);
    at_least(out, "canal.lap_makespan_vs_nao_and_delay", 1.0, least, "%", "the same of NAO or Delay");
    let jobs = best_speed_up(outcomes, &[1, 3]);
    at_least(out, "canal.lap_jobs", 1.83, jobs, "times", "mean times of TeraGen or RForest over CANAL's, the best");
}

/// Fig. 5.13(b) and 5.14.
fn network(out: &mut Reproduction, outcomes: &Outcomes) {
    let (least, most) = gains(outcomes, &OTHERS);
    at_least(
        out,
        "canal.nap_makespan_least",
        9.0,
        least,
        "%",
        "NAP alone: how much longer Tetris, Delay or SRJF takes",
    );
    at_least(out, "canal.nap_makespan_most", 25.0, most, "%", "the same, the most");
    at_least(out, "canal.nap_makespan_vs_lao", 5.0, gains(outcomes, &["LAO"]).0, "%", "the same of LAO");
    at_least(out, "canal.nap_makespan_vs_nao", 6.0, gains(outcomes, &["NAO"]).0, "%", "the same of NAO");
    let jobs = best_speed_up(outcomes, &[1, 2]);
    at_least(out, "canal.nap_jobs", 2.06, jobs, "times", "mean times of RWrite or TeraSort over CANAL's, the best");
}

fn details(out: &mut Reproduction, experiment: &Experiment, outcomes: &Outcomes) {
    for (name, own) in outcomes {
        let makespans_s: Vec<f64> = own.iter().map(|outcome| outcome.makespan_s).collect();
        let mut rows: BTreeMap<String, f64> = BTreeMap::new();
        rows.insert(format!("{name}, all jobs"), mean(&makespans_s));
        for (kind, label) in (1..).zip(experiment.kinds) {
            let times_s: Vec<f64> = own.iter().filter_map(|outcome| outcome.mean_s.get(&kind).copied()).collect();
            rows.insert(format!("{name}, {label}"), mean(&times_s));
        }
        for (case, value) in rows {
            let quantity = if case.ends_with("all jobs") { "mean makespan" } else { "mean time" };
            out.details.push(Detail { experiment: experiment.name.to_owned(), case, quantity, value, unit: "s" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With nothing that is network-intensive CANAL and LAO are one scheduler (§5.5.3).
    #[test]
    fn without_network_canal_is_lao() {
        let size = Size { racks: 2, part: 10, ..Size::PAPER };
        let own = submission(LOCALITY, 1, size).unwrap();
        let found: BTreeMap<&str, Outcome> = every_policy(1, &own).collect();
        assert_eq!(found["CANAL"].mean_s, found["LAO"].mean_s);
        assert_ne!(found["CANAL"].mean_s, found["Tetris"].mean_s);
    }
}
