//! Scenarios of one job, and of several that share the hosts.

use gleaner_planner::sizing::Choice;
use gleaner_planner::sizing::policy::Situation;
use gleaner_types::job::{Bound, Goal, JobPhase};

use super::*;
use crate::scenario::{ByModel, JobProfile};

/// So many volunteers, as far as there are.
#[derive(Debug, Clone, Copy, Default)]
struct Fixed(u32);

impl SizingPolicy for Fixed {
    fn choose(&mut self, situation: Situation<'_, '_>) -> Choice {
        situation.sizing.forced(self.0, Bound::Policy)
    }
}

impl SizingChoice for Fixed {
    fn policy(&self) -> Box<dyn SizingPolicy> {
        Box::new(*self)
    }
}

fn small<S: Default>(sizing: S) -> ClusterScenario<S> {
    let mut scenario = ClusterScenario { sizing, ..ClusterScenario::default() };
    scenario.dedicated[0].count = 2;
    scenario.interactive[0].count = 8;
    scenario.job.tasks = 1_200;
    scenario.job.task_cpu_s = 60.0;
    scenario
}

#[test]
fn a_cpu_bound_job_takes_every_volunteer_and_is_cheapest_with_them() {
    let adaptive = simulate(&small(ByModel::Adaptive)).unwrap();
    assert!(adaptive.completed && adaptive.rejected.is_empty(), "{:?}", adaptive.rejected);
    assert_eq!(adaptive.job.as_ref().unwrap().phase, JobPhase::Completed);
    let alone = simulate(&small(Fixed(0))).unwrap();
    assert!(adaptive.cost < 0.75 * alone.cost, "{} and {}", adaptive.cost, alone.cost);
    assert!(adaptive.busiest <= 1.0 + 1e-9, "nobody gets more than there is");
    // Controller and simulation count the same.
    let own = adaptive.job.as_ref().unwrap().cost.amount();
    assert!((own / adaptive.cost - 1.0).abs() < 0.02, "{own} and {}", adaptive.cost);
    let energy = adaptive.job.unwrap().energy_wh.unwrap();
    assert!((energy / adaptive.energy_wh - 1.0).abs() < 0.02, "{energy} and {}", adaptive.energy_wh);
}

#[test]
fn a_fixed_size_is_kept_through_churn() {
    let mut scenario = small(Fixed(4));
    scenario.churn = 8.0;
    let run = simulate(&scenario).unwrap();
    assert!(run.completed);
    assert!((3.0..=4.2).contains(&run.mean_volunteers), "{}", run.mean_volunteers);
    assert!(run.decisions_per_interval <= 1);
}

#[test]
fn deadlines_are_met() {
    let mut scenario = small(ByModel::Adaptive);
    scenario.goal = Goal::Deadline { within_s: 1_200.0 };
    let run = simulate(&scenario).unwrap();
    assert!((1_050.0..=1_200.0).contains(&run.elapsed_s), "{}", run.elapsed_s);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = || simulate(&small(ByModel::Adaptive)).unwrap();
    assert_eq!(run(), run());
}

fn job(name: &str, arrives_s: u32, tasks: u32) -> JobProfile {
    JobProfile { name: name.into(), arrives_s, tasks, task_cpu_s: 30.0, ..JobProfile::default() }
}

/// Two jobs, a long one and then a short one, with a dedicated host each and six others.
fn two() -> ClusterScenario {
    let mut scenario = small(ByModel::Adaptive);
    scenario.jobs = vec![job("long", 0, 1_200), job("short", 120, 240)];
    scenario.job = JobProfile::default();
    scenario.dedicated[0].count = 1;
    scenario.interactive[0].count = 6;
    scenario.evaluation_interval_s = 20.0;
    scenario
}

#[test]
fn several_jobs_share_the_hosts_and_each_has_its_own_result() {
    let scenario = two();
    let run = simulate(&scenario).unwrap();
    assert!(run.completed && run.rejected.is_empty(), "{:?}", run.rejected);
    let [long, short] = &run.jobs[..] else { panic!("{:?}", run.jobs) };
    assert_eq!((long.name.as_str(), short.name.as_str(), short.arrives_s), ("long", "short", 120));
    assert!((run.elapsed_s - long.elapsed_s.max(120.0 + short.elapsed_s)).abs() < 1e-9, "{:?}", run.jobs);
    let sum = |of: fn(&JobRun) -> f64| run.jobs.iter().map(of).sum::<f64>();
    assert!(
        (sum(|job| job.volunteer_s) - run.volunteer_s).abs() < 1e-6 && (sum(|job| job.cost) - run.cost).abs() < 1e-9
    );
    // Nobody has more than there is at any time.
    assert!(run.sizes.iter().all(|size| size.volunteers <= 6) && run.busiest <= 1.0 + 1e-9);
    // None is later than fairly by more than three times a task of 30 s and an interval of 20 s.
    assert!(run.jobs.iter().all(|job| job.late_s.unwrap() <= 150.0), "{:?}", run.jobs);
    assert!(long.fair_elapsed_s.unwrap() > short.fair_elapsed_s.unwrap() + 60.0, "{:?}", run.jobs);
    assert!(short.credit_host_s.is_some() && long.mean_fair_volunteers.unwrap() > 1.0, "{:?}", run.jobs);
    assert_eq!(simulate(&scenario).unwrap(), run, "equal seeds give equal runs");
}

#[test]
fn each_job_has_its_goal_and_its_dedicated_hosts() {
    let mut scenario = two();
    scenario.jobs[1].goal = Some(Goal::Deadline { within_s: 300.0 });
    scenario.jobs[1].dedicated = Some(vec![HostClass { count: 2, cores: 8, ..HostClass::default() }]);
    let run = simulate(&scenario).unwrap();
    assert!(run.completed && run.rejected.is_empty(), "{:?}", run.rejected);
    assert_eq!([0, 1].map(|job| run.jobs[job].deadline_met), [None, Some(true)], "{:?}", run.jobs);
    let own = run.jobs[1].cost - run.jobs[1].volunteer_s * 0.42 / 3_600.0;
    assert!((own - run.jobs[1].elapsed_s * 2.0 / 3_600.0).abs() < 1e-9, "two dedicated hosts are paid for: {own}");
    assert!(
        run.decisions.iter().all(|decision| (decision.job.as_str() == "short") == decision.deadline_in_s.is_some()),
        "only the short one has a deadline"
    );
}

#[test]
fn a_job_that_is_not_done_in_time_says_so() {
    let mut scenario = two();
    scenario.limit_s = 200;
    let run = simulate(&scenario).unwrap();
    assert!(!run.completed && run.jobs.iter().all(|job| !job.completed && job.late_s.is_none()), "{:?}", run.jobs);
    let elapsed_s: Vec<String> = run.jobs.iter().map(|job| job.elapsed_s.to_string()).collect();
    assert_eq!(elapsed_s, ["200", "80"]);
}
