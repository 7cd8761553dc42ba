//! Slurm's priority of several factors (plugin `priority/multifactor`), for those who have it today: how long a job waits, and
//! how much its user had of late for that user's part of the cluster.
//! In: a cluster's state. Out: what to start. Called by [`engine`](super::engine), for `plan share` and the reproductions.
//!
//! From Slurm's documentation: the fair-share factor is 2^(−usage / shares), both in parts of the whole; usage halves in a week
//! (`PriorityDecayHalfLife`) and counts each job's largest part of any resource (`MAX_TRES`); the age factor grows to 1
//! in a week (`PriorityMaxAge`). Its weights of factors are 0 until an administrator sets them; those here are chosen.
//! Users are the groups to which jobs belong directly: usage of groups of groups does not count. A job of no group is a user of its
//! own.

use std::collections::BTreeMap;

use super::baselines::fill;
use super::engine::{Policy, State};

/// Weights of the two factors. Chosen: age only breaks near ties.
const FAIR_SHARE: f64 = 100_000.0;
const AGE: f64 = 1_000.0;

/// Half-life of usage, and the age at which its factor is 1.
const WEEK_S: f64 = 7.0 * 86_400.0;

/// A group of jobs, or a job of none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Group(usize),
    Alone(usize),
}

/// The policy. Jobs start in the order of their priorities; one that does not fit does not stop others.
#[derive(Debug, Clone, Default)]
pub struct Multifactor {
    at_s: f64,
    /// Share seconds of each user, as they have decayed.
    usage: BTreeMap<User, f64>,
    /// Share seconds of each job when usage was last counted.
    counted: Vec<f64>,
}

fn user(state: &State<'_>, job: usize) -> User {
    let group = state.workload.tree().and_then(|tree| tree.group(job));
    group.map_or(User::Alone(job), User::Group)
}

/// 2^(−usage / shares).
fn fair_share(usage: f64, shares: f64) -> f64 {
    (-usage / shares.max(f64::MIN_POSITIVE)).exp2()
}

impl Multifactor {
    fn count(&mut self, state: &State<'_>) {
        let kept = ((self.at_s - state.now_s) / WEEK_S).exp2();
        self.at_s = state.now_s;
        self.usage.values_mut().for_each(|usage| *usage *= kept);
        self.counted.resize(state.workload.jobs().len(), 0.0);
        for &job in state.arrivals() {
            let product = state.product(job);
            // What a lost task had is taken back.
            *self.usage.entry(user(state, job)).or_default() += product - self.counted[job];
            self.counted[job] = product;
        }
    }

    /// The priority of each job, by its number.
    fn priorities(&self, state: &State<'_>) -> Vec<f64> {
        let weights = state.weights();
        let mut shares: BTreeMap<User, f64> = BTreeMap::new();
        for &job in state.present() {
            *shares.entry(user(state, job)).or_default() += weights.of(job);
        }
        let all: f64 = shares.values().sum();
        let used: f64 = self.usage.values().map(|usage| usage.max(0.0)).sum();
        let mut priorities = vec![0.0; state.workload.jobs().len()];
        for &job in state.present() {
            let own = user(state, job);
            let usage = self.usage.get(&own).copied().unwrap_or(0.0).max(0.0) / used.max(f64::MIN_POSITIVE);
            let factor = fair_share(usage, shares.get(&own).copied().unwrap_or(0.0) / all);
            let age = ((state.now_s - state.workload.jobs()[job].release_s) / WEEK_S).clamp(0.0, 1.0);
            priorities[job] = FAIR_SHARE * factor + AGE * age;
        }
        priorities
    }
}

impl Policy for Multifactor {
    fn schedule(&mut self, state: &mut State<'_>) {
        self.count(state);
        let priorities = self.priorities(state);
        fill(state, |_, job| FAIR_SHARE + AGE - priorities[job]);
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::{HostId, JobId};

    use super::*;
    use crate::sharing::engine::play;
    use crate::sharing::input::{Cluster, Job, Node, Stage, Workload};
    use crate::sharing::resources::Resources;
    use crate::sharing::weights::{Group, Member, Shares};

    #[test]
    fn the_factor_by_hand() {
        assert!((fair_share(0.0, 0.5) - 1.0).abs() < 1e-12);
        assert!((fair_share(0.5, 0.5) - 0.5).abs() < 1e-12);
        assert!((fair_share(0.5, 0.25) - 0.25).abs() < 1e-12);
    }

    /// One core: a user has had it for 10 s, so the job of another comes next though it arrived later; a second job of the first
    /// user comes last.
    #[test]
    fn who_has_had_less_comes_first() {
        let capacity = Resources { cpu: 1.0, ..Resources::default() };
        let stage = Stage { tasks: 1, demand: capacity, duration_s: 10.0, input: None };
        let job = |name: &str, release_s: f64| Job {
            name: JobId::new(name).unwrap(),
            release_s,
            stages: vec![stage.clone()],
        };
        let node = Node { name: HostId::new("n").unwrap(), capacity, rack: 0 };
        let jobs = vec![job("ann-1", 0.0), job("ann-2", 1.0), job("abe-1", 2.0)];
        let group = |name: &str| Group { name: name.to_owned(), weight: 1.0, parent: None };
        let member =
            |job: &Job| Member { job: job.name.clone(), weight: 1.0, group: Some(job.name.as_str()[..3].to_owned()) };
        let shares = Shares { groups: vec![group("ann"), group("abe")], jobs: jobs.iter().map(member).collect() };
        let workload = Workload::new(Cluster { nodes: vec![node], switch: 0.0 }, jobs).unwrap();
        let ends = |workload: &Workload| {
            let schedule = play(workload, &mut Multifactor::default(), f64::INFINITY);
            let mut order = [0, 1, 2];
            order.sort_by(|&a, &b| schedule.completion_s(a).total_cmp(&schedule.completion_s(b)));
            order
        };
        assert_eq!(ends(&workload.clone().with_shares(&shares).unwrap()), [0, 2, 1]);
        // Users of their own have had nothing, and the older comes first.
        assert_eq!(ends(&workload), [0, 1, 2]);
    }
}
