//! Simulation 1 where the truth differs from what schedulers are told (ours; the paper has no such experiment): durations
//! that were estimated wrong, and nodes that are lost. In: workloads of seeds. Out: rows of detail. Called by [`super`].
//!
//! Fair completions are those of DRF with whole tasks in the same truth.

use gleaner_planner::sharing::drf::Drf;
use gleaner_planner::sharing::engine::{Truth, play_in};
use gleaner_planner::snapshot::share::SharePolicy;
use gleaner_simulator::random::Random;

use super::facebook::Submission;
use super::outcome::{Outcome, late_jobs, latest_s, mean, outcome, worst};
use crate::{Detail, Reproduction};

/// Schedulers of these rows.
const POLICIES: [(&str, SharePolicy); 2] = [("CANAL", SharePolicy::Canal), ("Tetris", SharePolicy::Tetris)];

/// Errors of estimates, and parts of the nodes that are lost, in percent.
const ERRORS: [u32; 3] = [10, 30, 100];
const LOST: [u32; 2] = [1, 5];

/// A stream of random numbers for each of the two.
const STREAMS: [u64; 2] = [1, 2];

/// Estimates that are off by up to `percent`, each stage's by its own factor. An error counts the same in both directions, so
/// with 100 % a task takes between half and twice as long as was told.
fn wrong_estimates(submission: &Submission, seed: u64, percent: u32) -> Truth {
    let mut random = Random::part(seed, STREAMS[0]);
    let most = (1.0 + f64::from(percent) / 100.0).ln();
    let mut factors = Vec::new();
    for (job, own) in submission.workload.jobs().iter().enumerate() {
        for stage in 0..own.stages.len() {
            factors.push((job, stage, (most * (2.0 * random.uniform() - 1.0)).exp()));
        }
    }
    Truth { factors, losses: Vec::new() }
}

/// So many percent of the nodes are lost for ever, at times by chance while jobs arrive.
fn losses(submission: &Submission, seed: u64, percent: u32) -> Truth {
    let mut random = Random::part(seed, STREAMS[1]);
    let jobs = submission.workload.jobs();
    let last_s = jobs.iter().map(|job| job.release_s).fold(0.0, f64::max);
    let mut nodes: Vec<usize> = (0..submission.workload.cluster().nodes.len()).collect();
    let lost = (nodes.len() * percent as usize).div_ceil(100);
    let lose = |_| (last_s * random.uniform(), nodes.swap_remove(random.below(nodes.len())));
    Truth { factors: Vec::new(), losses: (0..lost).map(lose).collect() }
}

/// Tasks that had to run again.
type Again = f64;

fn run(seed: u64, submission: &Submission, truth: &Truth, policy: SharePolicy) -> (Outcome, Again) {
    let workload = &submission.workload;
    let fair = play_in(&workload.without_inputs(), &mut Drf, truth, f64::INFINITY);
    let own = play_in(workload, policy.policy(workload.mean_task_s(), seed).as_mut(), truth, f64::INFINITY);
    let again = own.runs.iter().filter(|run| run.lost).count() as f64;
    (outcome(seed, submission, &fair, &own), again)
}

/// Adds the rows; every workload goes through every truth under both schedulers.
pub(super) fn rows(out: &mut Reproduction, submissions: &[(u64, Submission)], progress: &dyn Fn(usize, usize)) {
    let truths = |seed: u64, submission: &Submission| {
        let errors = ERRORS.iter().map(|&percent| wrong_estimates(submission, seed, percent));
        let lost = LOST.iter().map(|&percent| losses(submission, seed, percent));
        errors.chain(lost).collect::<Vec<_>>()
    };
    let errors = ERRORS.iter().map(|percent| ("wrong estimates", format!("±{percent} %")));
    let lost = LOST.iter().map(|percent| ("lost nodes", format!("{percent} %")));
    let names: Vec<(&str, String)> = errors.chain(lost).collect();
    let (all, mut done) = (submissions.len() * names.len() * POLICIES.len(), 0);
    let truths: Vec<Vec<Truth>> = submissions.iter().map(|(seed, own)| truths(*seed, own)).collect();
    for (index, (experiment, case)) in names.iter().enumerate() {
        for (name, policy) in POLICIES {
            let mut found: Vec<(Outcome, Again)> = Vec::new();
            for ((seed, submission), truths) in submissions.iter().zip(&truths) {
                found.push(run(*seed, submission, &truths[index], policy));
                done += 1;
                progress(done, all);
            }
            row(out, experiment, &format!("{name}, {case}"), &found);
        }
    }
}

fn row(out: &mut Reproduction, experiment: &str, case: &str, found: &[(Outcome, Again)]) {
    let (outcomes, again): (Vec<Outcome>, Vec<Again>) = found.iter().cloned().unzip();
    let jobs: usize = outcomes.iter().map(|outcome| outcome.late_s.len()).sum();
    let late = 100.0 * outcomes.iter().map(late_jobs).sum::<f64>() / jobs as f64;
    let makespans_s: Vec<f64> = outcomes.iter().map(|outcome| outcome.makespan_s).collect();
    let quantities = [
        ("jobs late by more than 40 s", late, "%"),
        ("latest", worst(&outcomes, latest_s), "s"),
        ("mean makespan", mean(&makespans_s), "s"),
        ("tasks that ran again", again.iter().sum(), "tasks"),
    ];
    for (quantity, value, unit) in quantities {
        let (experiment, case) = (experiment.to_owned(), case.to_owned());
        out.details.push(Detail { experiment, case, quantity, value, unit });
    }
}

#[cfg(test)]
mod tests {
    use super::super::facebook::{FACEBOOK, Size, submission};
    use super::*;

    fn small() -> Submission {
        submission(FACEBOOK, 1, Size { racks: 2, part: 10, ..Size::PAPER }).unwrap()
    }

    /// Errors reach nearly as far as they may in both directions, and 100 % is half to twice as long.
    #[test]
    fn errors_are_within_their_bounds() {
        for (percent, least, most) in [(10, 1.0 / 1.1, 1.1), (100, 0.5, 2.0)] {
            let factors = wrong_estimates(&small(), 1, percent).factors;
            let (low, high) = factors.iter().fold((f64::MAX, 0.0_f64), |(a, b), own| (a.min(own.2), b.max(own.2)));
            assert!(least <= low && low < least.powf(0.7), "{low}");
            assert!(high <= most && high > most.powf(0.7), "{high}");
        }
    }

    #[test]
    fn each_lost_node_is_lost_once_while_jobs_arrive() {
        let submission = small();
        let mut nodes: Vec<usize> = losses(&submission, 1, 5).losses.iter().map(|own| own.1).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), 2);
        let last_s = submission.workload.jobs().iter().map(|job| job.release_s).fold(0.0, f64::max);
        assert!(losses(&submission, 1, 5).losses.iter().all(|own| own.0 <= last_s));
    }

    /// All jobs end though a tenth of the nodes is lost, later than with all nodes, and lost tasks are counted.
    #[test]
    fn jobs_end_on_the_nodes_that_are_left() {
        let submission = small();
        let truth = losses(&submission, 1, 10);
        let (with_losses, again) = run(1, &submission, &truth, SharePolicy::Canal);
        let (without, none) = run(1, &submission, &Truth::default(), SharePolicy::Canal);
        assert!(with_losses.makespan_s.is_finite() && with_losses.makespan_s > without.makespan_s);
        assert!(again > 0.0 && none < 0.5);
    }
}
