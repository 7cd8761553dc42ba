//! Simulation 1 with users that are not equal (ours; the paper takes all jobs as equal): CANAL and DRF with weights of users, and
//! Slurm's multifactor priority with the same. In: workloads of seeds. Out: rows of detail. Called by [`super`].
//!
//! Four users have the weights 1 to 4, and each job is one of theirs by chance. Fair completions are those of DRF with these weights and whole
//! tasks. A user's part is what it had of all dominant products while each of the four had a job that had not ended. No user
//! can have more than its jobs can use, so under no scheduler are the parts those of the weights; DRF is the measure.

use gleaner_planner::sharing::drf::Drf;
use gleaner_planner::sharing::engine::{Schedule, play};
use gleaner_planner::sharing::input::{Invalid, Workload};
use gleaner_planner::sharing::weights::{Group, Member, Shares};
use gleaner_planner::snapshot::share::SharePolicy;
use gleaner_simulator::random::Random;

use super::facebook::Submission;
use super::outcome::{Outcome, late_jobs, latest_s, mean, outcome, worst};
use crate::{Detail, Reproduction};

/// Weights of the users. Chosen.
const WEIGHTS: [f64; 4] = [1.0, 2.0, 3.0, 4.0];

/// Schedulers of these rows: all that heed weights, and two that do not.
const POLICIES: [(&str, SharePolicy); 5] = [
    ("CANAL with weights", SharePolicy::Canal),
    ("DRF with weights", SharePolicy::Drf),
    ("multifactor", SharePolicy::Multifactor),
    ("Tetris with weights", SharePolicy::Tetris),
    ("SRJF", SharePolicy::Srjf),
];

/// The part of each user.
type Parts = [f64; WEIGHTS.len()];

/// The stream of random numbers of who submits what.
const STREAM: u64 = 3;

/// A submission of four users, and the user of each job.
fn of_users(own: &Submission, seed: u64) -> Result<(Submission, Vec<usize>), Vec<Invalid>> {
    let mut random = Random::part(seed, STREAM);
    let users: Vec<usize> = own.workload.jobs().iter().map(|_| random.below(WEIGHTS.len())).collect();
    let name = |user: usize| format!("user-{user}");
    let group = |(user, &weight): (usize, &f64)| Group { name: name(user), weight, parent: None };
    let members = own.workload.jobs().iter().zip(&users);
    let shares = Shares {
        groups: WEIGHTS.iter().enumerate().map(group).collect(),
        jobs: members
            .map(|(job, &user)| Member { job: job.name.clone(), weight: 1.0, group: Some(name(user)) })
            .collect(),
    };
    let workload = own.workload.clone().with_shares(&shares)?;
    Ok((Submission { workload, bins: own.bins.clone() }, users))
}

/// The times in which each user has a job that has arrived and not ended.
fn all_present(workload: &Workload, schedule: &Schedule, users: &[usize]) -> Vec<(f64, f64)> {
    let mut changes: Vec<(f64, usize, i32)> = Vec::new();
    for (job, (own, &user)) in workload.jobs().iter().zip(users).enumerate() {
        changes.push((own.release_s, user, 1));
        changes.push((schedule.completion_s(job), user, -1));
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut present = [0_i32; WEIGHTS.len()];
    let mut times = Vec::new();
    for pair in changes.windows(2) {
        let (at_s, user, change) = pair[0];
        present[user] += change;
        if present.iter().all(|jobs| *jobs > 0) && pair[1].0 > at_s {
            times.push((at_s, pair[1].0));
        }
    }
    times
}

/// What each user had of all dominant products in these times, as a part; `None` where there are no such times.
fn parts(workload: &Workload, schedule: &Schedule, users: &[usize], times: &[(f64, f64)]) -> Option<Parts> {
    let mut products = [0.0; WEIGHTS.len()];
    for run in &schedule.runs {
        let share = workload.task_share(&workload.jobs()[run.job].stages[run.stage]);
        let first = times.partition_point(|(_, to_s)| *to_s <= run.start_s);
        let within = times[first..].iter().take_while(|(from_s, _)| *from_s < run.end_s);
        let together_s: f64 = within.map(|(from_s, to_s)| to_s.min(run.end_s) - from_s.max(run.start_s)).sum();
        products[users[run.job]] += share * together_s;
    }
    let all: f64 = products.iter().sum();
    (all > 0.0).then(|| products.map(|product| product / all))
}

/// What one scheduler did with one workload: times of jobs, and the part of each user.
type Found = (Outcome, Option<Parts>);

/// Adds the rows.
pub(super) fn rows(out: &mut Reproduction, submissions: &[(u64, Submission)], progress: &dyn Fn(usize, usize)) {
    let mut found: Vec<Vec<Found>> = vec![Vec::new(); POLICIES.len()];
    let (all, mut done) = (submissions.len() * POLICIES.len(), 0);
    for (seed, own) in submissions {
        let (own, users) = match of_users(own, *seed) {
            Ok(own) => own,
            Err(problems) => {
                let first = problems.first().map_or_else(String::new, ToString::to_string);
                out.skipped.push(format!("several users, seed {seed}: {first}"));
                continue;
            }
        };
        let workload = &own.workload;
        let fair = play(&workload.without_inputs(), &mut Drf, f64::INFINITY);
        for ((_, policy), found) in POLICIES.iter().zip(&mut found) {
            let schedule = play(workload, policy.policy(workload.mean_task_s(), *seed).as_mut(), f64::INFINITY);
            let times = all_present(workload, &schedule, &users);
            let parts = parts(workload, &schedule, &users, &times);
            found.push((outcome(*seed, &own, &fair, &schedule), parts));
            done += 1;
            progress(done, all);
        }
    }
    for ((name, _), found) in POLICIES.iter().zip(&found) {
        row(out, name, found);
    }
}

fn row(out: &mut Reproduction, case: &str, found: &[Found]) {
    let outcomes: Vec<Outcome> = found.iter().map(|own| own.0.clone()).collect();
    let times_s: Vec<f64> = outcomes.iter().flat_map(|own| own.times_s.values().flatten().copied()).collect();
    let late = 100.0 * outcomes.iter().map(late_jobs).sum::<f64>() / times_s.len() as f64;
    let mut quantities = vec![
        ("mean time", mean(&times_s), "s"),
        ("jobs late by more than 40 s", late, "%"),
        ("latest", worst(&outcomes, latest_s), "s"),
    ];
    let parts: Vec<Parts> = found.iter().filter_map(|own| own.1).collect();
    let weights: f64 = WEIGHTS.iter().sum();
    let names =
        ["part of weight 1 (10 %)", "part of weight 2 (20 %)", "part of weight 3 (30 %)", "part of weight 4 (40 %)"];
    let mut off = Vec::new();
    for (user, (weight, name)) in WEIGHTS.iter().zip(names).enumerate().filter(|_| !parts.is_empty()) {
        quantities.push((name, 100.0 * mean(&parts.iter().map(|own| own[user]).collect::<Vec<_>>()), "%"));
        off.extend(parts.iter().map(|own| 100.0 * (own[user] - weight / weights).abs()));
    }
    if !off.is_empty() {
        quantities.push(("parts off the weights, mean", mean(&off), "points"));
    }
    for (quantity, value, unit) in quantities {
        let (experiment, case) = ("several users".to_owned(), case.to_owned());
        out.details.push(Detail { experiment, case, quantity, value, unit });
    }
}

#[cfg(test)]
mod tests {
    use super::super::facebook::{FACEBOOK, Size, submission};
    use super::*;

    /// Jobs that come close together, so that all users are there at once.
    fn crowd() -> Submission {
        submission(FACEBOOK, 1, Size { racks: 2, part: 6, between_s: 0.1 }).unwrap()
    }

    /// A user is there from its first release to its last completion, all four from the latest to the earliest of these; what
    /// they had then is all there was.
    #[test]
    fn parts_are_the_whole_while_all_are_there() {
        let (own, users) = of_users(&crowd(), 1).unwrap();
        let schedule = play(&own.workload, &mut Drf, f64::INFINITY);
        let times = all_present(&own.workload, &schedule, &users);
        assert!(!times.is_empty() && times.iter().all(|(from_s, to_s)| from_s < to_s));
        for &(from_s, to_s) in &times {
            let now_s = f64::midpoint(from_s, to_s);
            for user in 0..WEIGHTS.len() {
                let there = |job: usize| {
                    let release_s = own.workload.jobs()[job].release_s;
                    users[job] == user && release_s <= now_s && now_s < schedule.completion_s(job)
                };
                assert!((0..users.len()).any(there), "{user} at {now_s}");
            }
        }
        let found = parts(&own.workload, &schedule, &users, &times).unwrap();
        assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-9 && found.iter().all(|part| *part > 0.0), "{found:?}");
        // In no time at all there is nothing to have.
        assert_eq!(parts(&own.workload, &schedule, &users, &[]), None);
    }

    #[test]
    fn every_scheduler_has_its_rows() {
        let mut out = Reproduction::default();
        rows(&mut out, &[(1, crowd())], &|_, _| {});
        assert_eq!((out.details.len(), out.skipped.len()), (8 * POLICIES.len(), 0));
        assert!(out.details.iter().all(|row| row.value.is_finite()), "{:?}", out.details);
    }
}
