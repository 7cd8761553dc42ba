//! Fair completion times of jobs whose work can be divided at will (§5.3.3): DRF without fragments, advanced from event to
//! event. In: a workload. Out: when each stage ends, and what network-intensive jobs may lend (Γ of Eq. 5.8).
//!
//! The paper keeps one dominant share for all jobs but the network-intensive ones until they end, because arrivals will
//! resemble departures. Here all shares are computed anew at each arrival, end of a stage and departure, which is what it
//! says of DRF itself.

use super::engine::TIME_ROUNDING;
use super::input::{Job, Stage, Workload};
use super::resources::{ROUNDING, Resources};

/// What a job wants at one time, in parts of the cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Its demand per dominant share.
    pub(super) direction: Resources,
    /// The dominant share at which all tasks of its stage run.
    pub(super) most: f64,
}

/// Equal dominant shares, as large as they can be. A job that needs nothing more of what is used up keeps on growing, so
/// that what one job cannot use goes to the others.
pub(super) fn shares(claims: &[Claim]) -> Vec<f64> {
    let mut shares = vec![0.0; claims.len()];
    let mut free = [1.0; 4];
    let mut growing: Vec<usize> = (0..claims.len()).collect();
    while !growing.is_empty() {
        let mut rate = [0.0; 4];
        for &index in &growing {
            for (rate, part) in rate.iter_mut().zip(claims[index].direction.parts()) {
                *rate += part;
            }
        }
        let of_resources = free.iter().zip(rate).filter(|(_, rate)| *rate > 0.0).map(|(free, rate)| free / rate);
        let of_jobs = growing.iter().map(|&index| claims[index].most - shares[index]);
        let step = of_resources.chain(of_jobs).fold(f64::INFINITY, f64::min).max(0.0);
        for &index in &growing {
            shares[index] += step;
        }
        for (free, rate) in free.iter_mut().zip(rate) {
            *free -= rate * step;
        }
        let used_up = |claim: &Claim| (0..4).any(|r| free[r] <= ROUNDING && claim.direction.parts()[r] > 0.0);
        growing.retain(|&index| {
            let claim = &claims[index];
            shares[index] < claim.most * (1.0 - ROUNDING) && !used_up(claim)
        });
    }
    shares
}

/// A time in which the network was used up.
#[derive(Debug, Clone)]
struct FullNetwork {
    from_s: f64,
    to_s: f64,
    /// The jobs whose dominant resource it was, with their shares.
    jobs: Vec<(usize, f64)>,
}

/// Fair completion times.
#[derive(Debug, Clone)]
pub struct FairTimes {
    /// When each stage of each job ends; infinite for jobs that were left out.
    pub ends_s: Vec<Vec<f64>>,
    full: Vec<FullNetwork>,
}

/// A job on its way.
struct Advance<'a> {
    job: &'a Job,
    stage: usize,
    /// Dominant product of the stage that is left.
    left: f64,
}

impl Advance<'_> {
    fn claim(&self, workload: &Workload) -> Option<Claim> {
        let stage = self.job.stages.get(self.stage)?;
        let demand = stage.demand.over(workload.cluster().capacity());
        let share = demand.largest();
        let direction = Resources::from_parts(demand.parts().map(|part| part / share));
        Some(Claim { direction, most: f64::from(stage.tasks) * share })
    }

    fn enter(&mut self, workload: &Workload) {
        let product = |stage: Stage| f64::from(stage.tasks) * stage.duration_s * workload.task_share(&stage);
        self.left = self.job.stages.get(self.stage).copied().map_or(0.0, product);
    }
}

impl FairTimes {
    /// Computes them for the jobs that arrive by `known_until_s`.
    #[must_use]
    pub fn new(workload: &Workload, known_until_s: f64) -> Self {
        let jobs = workload.jobs();
        let mut all: Vec<Advance<'_>> = jobs.iter().map(|job| Advance { job, stage: 0, left: 0.0 }).collect();
        all.iter_mut().for_each(|own| own.enter(workload));
        let ends_s = jobs.iter().map(|job| vec![f64::INFINITY; job.stages.len()]).collect();
        let mut times = Self { ends_s, full: Vec::new() };
        let mut now_s = 0.0;
        loop {
            let present = |own: &Advance<'_>| own.job.release_s <= now_s && own.job.release_s <= known_until_s;
            let active: Vec<(usize, Claim)> = all
                .iter()
                .enumerate()
                .filter(|(_, own)| present(own))
                .filter_map(|(index, own)| Some((index, own.claim(workload)?)))
                .collect();
            let claims: Vec<Claim> = active.iter().map(|(_, claim)| *claim).collect();
            let shares = shares(&claims);
            let ends = active.iter().zip(&shares).map(|((index, _), share)| now_s + all[*index].left / share);
            let releases = jobs.iter().map(|job| job.release_s);
            let arrivals = releases.filter(|&at| at > now_s && at <= known_until_s);
            let Some(next_s) = ends.chain(arrivals).min_by(f64::total_cmp) else { return times };
            times.note_network(now_s, next_s, &active, &shares);
            for ((index, _), share) in active.iter().zip(&shares) {
                let own = &mut all[*index];
                own.left -= share * (next_s - now_s);
                let rounding = TIME_ROUNDING * share * (next_s + own.job.stages[own.stage].duration_s);
                if own.left <= rounding {
                    times.ends_s[*index][own.stage] = next_s;
                    own.stage += 1;
                    own.enter(workload);
                }
            }
            now_s = next_s;
        }
    }

    /// When a job ends.
    #[must_use]
    pub fn completion_s(&self, job: usize) -> f64 {
        self.ends_s[job].last().copied().unwrap_or(f64::INFINITY)
    }

    fn note_network(&mut self, from_s: f64, to_s: f64, active: &[(usize, Claim)], shares: &[f64]) {
        let used: f64 = active.iter().zip(shares).map(|((_, claim), share)| claim.direction.network * share).sum();
        let intensive = active.iter().zip(shares).filter(|((_, claim), _)| claim.direction.network >= 1.0 - ROUNDING);
        let jobs: Vec<(usize, f64)> = intensive.map(|((index, _), share)| (*index, *share)).collect();
        if used >= 1.0 - ROUNDING && !jobs.is_empty() {
            self.full.push(FullNetwork { from_s, to_s, jobs });
        }
    }

    /// Γ: the most a network-intensive job may have lent at a time, so that the network stays used (Eq. 5.8): while the
    /// network is used up it can wait for the jobs that end before it, so it may lend what they hold, from now on. `None`
    /// for a job that no stage makes network-intensive.
    #[must_use]
    pub fn lendable(&self, workload: &Workload, job: usize, now_s: f64) -> Option<f64> {
        let capacity = workload.cluster().capacity();
        let intensive = workload.jobs()[job].stages.iter().any(|stage| {
            let demand = stage.demand.over(capacity);
            demand.network >= demand.largest()
        });
        let before = |other: usize| (self.completion_s(other), other) < (self.completion_s(job), job);
        let pieces = self.full.iter().filter(|piece| piece.jobs.iter().any(|(own, _)| *own == job));
        let lent = pieces.map(|piece| {
            let others: f64 = piece.jobs.iter().filter(|(other, _)| before(*other)).map(|(_, share)| share).sum();
            others * (piece.to_s - piece.from_s.max(now_s)).max(0.0)
        });
        intensive.then(|| lent.sum())
    }
}
