//! Network-aware scheduling (§5.4.2): what network-intensive (NI) jobs get beyond their turn in the next epoch while the
//! cluster switch is not fully used. In: what each job did in the last epoch, and what credit must be given back. Out: how
//! many tasks of each job start before others.
//!
//! How the paper is read here. Ranks are among the jobs that have arrived and not ended. What the jobs of lower rank have
//! borrowed (Eq. 5.16) is never below zero. A task uses the network and its node for at most an epoch. Tasks are whole, so a job
//! can get up to one task more than it should.

use super::engine::State;
use super::input::Stage;

/// Part of the cluster switch from which on it counts as fully used (§5.4.2).
pub(super) const FULL: f64 = 0.9;

/// The end of an epoch.
#[derive(Debug)]
pub(super) struct EpochEnd<'a, 'w> {
    pub(super) state: &'a State<'w>,
    pub(super) epoch_s: f64,
    /// The jobs that are there, in the order of their fair completions.
    pub(super) ranks: &'a [usize],
    /// G of each job.
    pub(super) gaps: &'a [f64],
    /// Node product of each job in the last epoch.
    pub(super) last: &'a [f64],
    /// Node product of each job in an epoch, its moving average.
    pub(super) usual: &'a [f64],
    /// When each stage of each job ends if shared fairly.
    pub(super) ends_s: &'a [Vec<f64>],
    /// Part of the cluster switch × time that the next epoch has to offer.
    pub(super) network: f64,
}

/// Jobs that were accelerated, in the order of their ranks: rank and S, the node product of Eq. 5.14 to 5.17.
type Accelerated = Vec<(usize, f64)>;

impl EpochEnd<'_, '_> {
    /// Tasks of each job that start before others.
    pub(super) fn supplements(&self) -> Vec<f64> {
        let mut tasks = vec![0.0; self.gaps.len()];
        let quotas = self.quotas();
        let mut accelerated = Accelerated::new();
        let left = self.of_reduce(&quotas, &mut accelerated, &mut tasks);
        if left > 0.0 {
            self.of_map(&quotas, &mut accelerated, &mut tasks);
        }
        tasks
    }

    /// Q by rank (Eq. 5.13): the fair part of this job and all behind it, less what is given back to them and what the job
    /// uses anyway.
    fn quotas(&self) -> Vec<f64> {
        let weights = self.state.weights();
        let all: f64 = self.ranks.iter().map(|&job| weights.of(job)).sum();
        let (mut compensated, mut behind) = (0.0, 0.0);
        let mut quotas = vec![0.0; self.ranks.len()];
        for (rank, &job) in self.ranks.iter().enumerate().rev() {
            compensated += self.gaps[job];
            behind += weights.of(job);
            quotas[rank] = behind / all * self.epoch_s - self.last[job] - compensated;
        }
        quotas
    }

    fn stage(&self, job: usize) -> Option<(&Stage, u32)> {
        self.state.ready(job)
    }

    /// How long a task of the job's current stage uses resources in the next epoch.
    fn task_s(&self, job: usize) -> f64 {
        let current = self.state.unfinished(job).map_or(0, |(stage, _)| stage);
        self.state.duration_s(job, current).min(self.epoch_s)
    }

    /// Jobs whose current stage needs the network most, from the first rank on, until the network or the quota is used up.
    fn of_reduce(&self, quotas: &[f64], accelerated: &mut Accelerated, tasks: &mut [f64]) -> f64 {
        let workload = self.state.workload;
        let mut network = self.network;
        for (rank, &job) in self.ranks.iter().enumerate() {
            let Some((stage, waiting)) = self.stage(job).filter(|(stage, _)| workload.network_intensive(stage)) else {
                continue;
            };
            // Eq. 5.14.
            let eligible = quotas[rank] - borrowed(accelerated, quotas, rank);
            if eligible <= 0.0 || network <= 0.0 {
                break;
            }
            let product = workload.node_share(stage) * self.task_s(job);
            let network_product = workload.task_share(stage) * self.task_s(job);
            let by_credit = if product > 0.0 { eligible / product } else { f64::INFINITY };
            // Eq. 5.15.
            let count = by_credit.min(network / network_product).min(waiting.into());
            network -= count * network_product;
            tasks[job] = count;
            accelerated.push((rank, count * product));
        }
        network
    }

    /// Jobs that come to such a stage later: those that it brings there earlier than they come anyway, the ones with most
    /// network to use for the least work first.
    fn of_map(&self, quotas: &[f64], accelerated: &mut Accelerated, tasks: &mut [f64]) {
        let mut accepted: Vec<(f64, usize, usize)> = Vec::new();
        for (rank, &job) in self.ranks.iter().enumerate() {
            let Some((demand, work)) = self.network_ahead(job) else { continue };
            let eligible = quotas[rank] - borrowed(accelerated, quotas, rank);
            if eligible > 0.0 && self.window_s(job, work, eligible) > 0.0 {
                accepted.push((demand / work, rank, job));
            }
        }
        accepted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, rank, job) in accepted {
            let Some((stage, waiting)) = self.stage(job) else { continue };
            let below: f64 = accelerated.iter().filter(|(other, _)| *other > rank).map(|(_, product)| product).sum();
            // Eq. 5.17.
            let eligible = quotas[rank] - borrowed(accelerated, quotas, rank) - below;
            let product = self.state.workload.node_share(stage) * self.task_s(job);
            if eligible <= 0.0 || product <= 0.0 {
                continue;
            }
            tasks[job] = (eligible / product).min(waiting.into());
            let place = accelerated.partition_point(|(other, _)| *other < rank);
            accelerated.insert(place, (rank, tasks[job] * product));
        }
    }

    /// The network product of a job's later stages, and the node product that is left of the current one; `None` where the
    /// current one needs the network most, none to come does, or it has no task to start.
    fn network_ahead(&self, job: usize) -> Option<(f64, f64)> {
        let workload = self.state.workload;
        let (current, unfinished) = self.state.unfinished(job)?;
        let (stage, _) = self.stage(job).filter(|(stage, _)| !workload.network_intensive(stage))?;
        let later = workload.jobs()[job].stages.iter().enumerate().skip(current + 1);
        let intensive = later.filter(|(_, stage)| workload.network_intensive(stage));
        let demand = intensive.map(|(index, stage)| {
            f64::from(self.state.left(job, index)) * self.state.duration_s(job, index) * workload.task_share(stage)
        });
        let (demand, share) = (demand.sum::<f64>(), workload.node_share(stage));
        let work = f64::from(unfinished) * self.state.duration_s(job, current) * share;
        (demand > 0.0 && work > 0.0).then_some((demand, work))
    }

    /// By how much an acceleration brings the end of the current stage before the time at which it comes, or may come.
    fn window_s(&self, job: usize, work: f64, eligible: f64) -> f64 {
        let now_s = self.state.now_s;
        let current = self.state.unfinished(job).map_or(0, |(stage, _)| stage);
        let usual_s = now_s + work / (self.usual[job] / self.epoch_s);
        let accelerated_s = now_s + work / ((self.usual[job] + eligible) / self.epoch_s);
        let fair_s = self.ends_s[job][current];
        if usual_s < fair_s { fair_s - accelerated_s } else { usual_s - accelerated_s }
    }
}

/// ΔĈ (Eq. 5.16): what the accelerated jobs before this rank borrow of it and of all behind it.
fn borrowed(accelerated: &[(usize, f64)], quotas: &[f64], rank: usize) -> f64 {
    let before = accelerated.iter().filter(|(other, _)| *other < rank).count();
    let mut borrowed = 0.0_f64;
    for (index, &(own, product)) in accelerated[..before].iter().enumerate() {
        let next = if index + 1 < before { accelerated[index + 1].0 } else { rank };
        borrowed = (borrowed + product - (quotas[own] - quotas[next])).max(0.0);
    }
    borrowed
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::{HostId, JobId};

    use super::*;
    use crate::sharing::engine::{Play, Truth};
    use crate::sharing::input::{Cluster, Job, Node, Workload};
    use crate::sharing::resources::Resources;

    /// Of quotas 1.0, 0.7, 0.6: the first borrows 0.5, of which 0.3 is its own beyond the second's; the second 0.3.
    #[test]
    fn borrowed_by_hand() {
        let quotas = [1.0, 0.7, 0.6];
        let accelerated = [(0, 0.5), (1, 0.3)];
        let of = |rank| borrowed(&accelerated, &quotas, rank);
        assert!((of(0)).abs() < 1e-12 && (of(1) - 0.2).abs() < 1e-12 && (of(2) - 0.4).abs() < 1e-12);
        assert!(borrowed(&[(0, 0.1)], &quotas, 2).abs() < 1e-12);
    }

    /// Three jobs of equal tasks on 20 cores and 2 of a switch; the second has these stages.
    fn supplements(second: Vec<Stage>, network: f64, gap: f64) -> Vec<f64> {
        let capacity = Resources { cpu: 10.0, memory: 10.0, disk: 0.0, network: 10.0 };
        let node = |name: &str| Node { name: HostId::new(name).unwrap(), capacity, rack: 0 };
        let job = |name: &str, stages| Job { name: JobId::new(name).unwrap(), release_s: 0.0, stages };
        let jobs = vec![job("a", vec![map(100)]), job("b", second), job("c", vec![map(400)])];
        let workload = Workload::new(Cluster { nodes: vec![node("n1"), node("n2")], switch: 2.0 }, jobs).unwrap();
        let mut play = Play::new(&workload, &Truth::default(), f64::INFINITY);
        play.skip_to(0.0);
        let ends_s: Vec<Vec<f64>> = workload.jobs().iter().map(|job| vec![300.0; job.stages.len()]).collect();
        EpochEnd {
            state: &play.state,
            epoch_s: 20.0,
            ranks: &[0, 1, 2],
            gaps: &[0.0, 0.0, gap],
            last: &[0.0; 3],
            usual: &[1.0; 3],
            ends_s: &ends_s,
            network,
        }
        .supplements()
    }

    fn map(tasks: u32) -> Stage {
        let demand = Resources { cpu: 1.0, memory: 1.0, ..Resources::default() };
        Stage { tasks, demand, duration_s: 20.0, input: None }
    }

    fn reduce() -> Stage {
        let demand = Resources { cpu: 0.1, memory: 0.1, network: 0.5, ..Resources::default() };
        Stage { tasks: 8, demand, duration_s: 40.0, input: None }
    }

    fn close(own: &[f64], expected: &[f64; 3]) {
        assert!(own.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{own:?} is not {expected:?}");
    }

    /// The quota of the second of three is two thirds of an epoch of 20 s, less what is given back to the last. A task has a
    /// twentieth of the cluster for all of it, so its product is 1.
    #[test]
    fn a_job_with_network_ahead_may_borrow_of_those_behind() {
        close(&supplements(vec![map(50), reduce()], 20.0, 0.0), &[0.0, 40.0 / 3.0, 0.0]);
        close(&supplements(vec![map(50), reduce()], 20.0, 5.0), &[0.0, 25.0 / 3.0, 0.0]);
        close(&supplements(vec![map(50), reduce()], 0.0, 0.0), &[0.0; 3]);
        close(&supplements(vec![map(50)], 20.0, 0.0), &[0.0; 3]);
    }

    /// A task has a quarter of the switch for an epoch, 5 s of all of it; of 12 s there is room for 2.4.
    #[test]
    fn a_job_at_the_network_gets_what_there_is_of_it() {
        close(&supplements(vec![reduce()], 12.0, 0.0), &[0.0, 2.4, 0.0]);
        close(&supplements(vec![reduce()], 90.0, 0.0), &[0.0, 8.0, 0.0]);
        close(&supplements(vec![reduce()], 90.0, 40.0), &[0.0; 3]);
    }
}
