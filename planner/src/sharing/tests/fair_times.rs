//! Fair completion times against the same computed plainly: jobs one by one, everything looked up and allocated anew. Sums and
//! divisions are in the same order, so that times are equal to the last bit, and with them every decision.

use proptest::prelude::*;

use super::*;
use crate::sharing::engine::TIME_ROUNDING;
use crate::sharing::fair::Fluid;
use crate::sharing::resources::ROUNDING;
use crate::sharing::weights::Weights;

/// A job that is there: its number, its stage, and what is left of the stage.
#[derive(Clone)]
struct Present {
    job: usize,
    stage: usize,
    left: f64,
    claim: Claim,
}

#[derive(Clone)]
struct Plain<'a> {
    workload: &'a Workload,
    now_s: f64,
    step_s: f64,
    /// In the order of the levels at which they have their most.
    present: Vec<Present>,
    ends_s: Vec<Vec<f64>>,
    full: Vec<Full>,
}

/// From when to when the network was used up, by whom with what shares.
#[derive(Clone)]
struct Full {
    from_s: f64,
    to_s: f64,
    jobs: Vec<(usize, f64)>,
}

fn full_at(claim: &Claim) -> f64 {
    claim.most / claim.weight
}

/// The network that is left, by weight among those that may have more.
fn spread_network(claims: &[Claim], mut free: f64, shares: &mut [f64]) {
    let room = |(index, claim): (usize, &Claim)| {
        let of_node = Resources { network: 0.0, ..claim.direction }.largest();
        let most = if of_node > 0.0 { claim.most.min(shares[index] / of_node) } else { claim.most };
        (claim.direction.network >= 1.0 - ROUNDING && most > shares[index]).then_some((most - shares[index], index))
    };
    let mut rooms: Vec<(f64, usize)> = claims.iter().enumerate().filter_map(room).collect();
    rooms.sort_by(|a, b| (a.0 / claims[a.1].weight).total_cmp(&(b.0 / claims[b.1].weight)));
    let mut weights: f64 = rooms.iter().map(|&(_, index)| claims[index].weight).sum();
    for (room, index) in rooms {
        let more = room.min(free * claims[index].weight / weights);
        shares[index] += more;
        free -= more;
        weights -= claims[index].weight;
    }
}

/// Levels rise together: a claim stops when it has its most, and when something that it needs is used up.
fn shares(claims: &[Claim]) -> Vec<f64> {
    let (mut free, mut used_up, mut level) = ([1.0_f64; 4], [false; 4], 0.0);
    let mut rate = [0.0_f64; 4];
    for claim in claims {
        (0..4).for_each(|r| rate[r] += claim.weight * claim.direction.parts()[r]);
    }
    let mut found: Vec<Option<f64>> = vec![None; claims.len()];
    while let Some(next) = found.iter().position(Option::is_none) {
        let of = |r: usize| if used_up[r] || rate[r] < 1e-12 { f64::INFINITY } else { free[r] / rate[r] };
        let until_full = (0..4).map(of).fold(f64::INFINITY, f64::min).max(0.0);
        let step = until_full.min(full_at(&claims[next]) - level).max(0.0);
        level += step;
        (0..4).for_each(|r| free[r] -= rate[r].max(0.0) * step);
        let mut stopped = Vec::new();
        if full_at(&claims[next]) - level <= ROUNDING * full_at(&claims[next]) {
            stopped.push((next, claims[next].most));
        } else {
            (0..4).for_each(|r| used_up[r] |= free[r] <= ROUNDING);
            let needs = |claim: &Claim| (0..4).any(|r| used_up[r] && claim.direction.parts()[r] > 0.0);
            let open = (next..claims.len()).filter(|&index| found[index].is_none() && needs(&claims[index]));
            stopped.extend(open.map(|index| (index, level * claims[index].weight)));
        }
        for (index, share) in stopped {
            found[index] = Some(share);
            (0..4).for_each(|r| rate[r] -= claims[index].weight * claims[index].direction.parts()[r]);
        }
    }
    let mut shares: Vec<f64> = found.into_iter().flatten().collect();
    if free[3] > ROUNDING {
        spread_network(claims, free[3], &mut shares);
    }
    shares
}

impl Plain<'_> {
    fn enter(&mut self, job: usize, stage: usize) {
        let Some(own) = self.workload.jobs()[job].stages.get(stage) else { return };
        let demand = own.demand.over(self.workload.capacity());
        let share = demand.largest();
        let direction = Resources::from_parts(demand.parts().map(|part| part / share));
        let claim = Claim { direction, most: f64::from(own.tasks) * share, weight: 1.0 };
        let left = f64::from(own.tasks) * own.duration_s * self.workload.task_share(own);
        let place = self.present.partition_point(|other| full_at(&other.claim) < full_at(&claim));
        self.present.insert(place, Present { job, stage, left, claim });
    }

    fn weigh(&mut self) {
        if self.workload.tree().is_some() {
            let jobs: Vec<usize> = self.present.iter().map(|own| own.job).collect();
            let weights = Weights::new(self.workload.tree(), &jobs);
            self.present.iter_mut().for_each(|own| own.claim.weight = weights.of(own.job));
            self.present.sort_by(|a, b| full_at(&a.claim).total_cmp(&full_at(&b.claim)));
        }
    }

    fn arrive(&mut self, job: usize) {
        self.enter(job, 0);
        self.weigh();
    }

    fn advance(&mut self, to_s: f64) {
        while !self.present.is_empty() && self.now_s < to_s {
            let claims: Vec<Claim> = self.present.iter().map(|own| own.claim).collect();
            let shares = shares(&claims);
            let left_s = self.present.iter().zip(&shares).map(|(own, share)| own.left / share.max(f64::MIN_POSITIVE));
            let first_s = left_s.fold(f64::INFINITY, f64::min);
            let end_s = (self.now_s + first_s.max(self.step_s)).min(to_s);
            let used: f64 = claims.iter().zip(&shares).map(|(claim, share)| claim.direction.network * share).sum();
            let each = self.present.iter().zip(&shares);
            let intensive = each.filter(|(own, _)| own.claim.direction.network >= 1.0 - ROUNDING);
            let intensive: Vec<(usize, f64)> = intensive.map(|(own, share)| (own.job, *share)).collect();
            if used >= 1.0 - ROUNDING && !intensive.is_empty() {
                self.full.push(Full { from_s: self.now_s, to_s: end_s, jobs: intensive });
            }
            let mut ended = Vec::new();
            for (own, share) in self.present.iter_mut().zip(&shares) {
                own.left -= share * (end_s - self.now_s);
                let duration_s = self.workload.jobs()[own.job].stages[own.stage].duration_s;
                let rounding = TIME_ROUNDING * share * (end_s + duration_s);
                if own.left <= rounding {
                    let late_s = if own.left < -rounding { own.left / share } else { 0.0 };
                    self.ends_s[own.job][own.stage] = end_s + late_s;
                    ended.push((own.job, own.stage));
                }
            }
            self.now_s = end_s;
            for &(job, stage) in &ended {
                self.present.retain(|own| own.job != job);
                self.enter(job, stage + 1);
            }
            if !ended.is_empty() {
                self.weigh();
            }
        }
        if to_s.is_finite() {
            self.now_s = self.now_s.max(to_s);
        }
    }

    /// When all end if no more arrive, and what a job may lend while the network is used up.
    fn forward(&self, step_s: f64) -> (Vec<Vec<f64>>, Vec<f64>) {
        let mut own = Self { step_s, full: Vec::new(), ..self.clone() };
        own.advance(f64::INFINITY);
        let completion_s = |job: usize| own.ends_s[job].last().copied().unwrap();
        let mut order: Vec<usize> = (0..own.ends_s.len()).collect();
        order.sort_by(|&a, &b| completion_s(a).total_cmp(&completion_s(b)));
        let mut lendable = vec![0.0; order.len()];
        for Full { from_s, to_s, jobs } in &own.full {
            let mut before = 0.0;
            for &job in &order {
                if let Some((_, share)) = jobs.iter().find(|(other, share)| *other == job && *share > 0.0) {
                    lendable[job] += before * (to_s - from_s.max(self.now_s)).max(0.0);
                    before += share;
                }
            }
        }
        (own.ends_s, lendable)
    }
}

fn bits(times: &[Vec<f64>]) -> Vec<Vec<u64>> {
    times.iter().map(|own| own.iter().map(|value| value.to_bits()).collect()).collect()
}

proptest! {
    /// After each arrival all fair completions, and what jobs may lend, are those of the plain computation.
    #[test]
    fn fair_times_are_those_computed_plainly(
        workload in prop_oneof![workloads(8, 2.0), workloads(2, 2.0)],
        weights in proptest::option::of(proptest::collection::vec(0.5..4.0_f64, 5)),
        step_s in prop_oneof![Just(0.0), 1.0..20.0_f64],
    ) {
        let workload = match weights {
            Some(weights) => weighed(workload, &weights),
            None => workload,
        };
        let jobs = workload.jobs();
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by(|&a, &b| jobs[a].release_s.total_cmp(&jobs[b].release_s));
        let mut fluid = Fluid::new(&workload);
        let ends_s = jobs.iter().map(|job| vec![f64::INFINITY; job.stages.len()]).collect();
        let mut plain =
            Plain { workload: &workload, now_s: 0.0, step_s: 0.0, present: Vec::new(), ends_s, full: Vec::new() };
        for job in order {
            let now_s = jobs[job].release_s;
            fluid.advance(&workload, now_s, |_, _| {});
            plain.advance(now_s);
            fluid.add(&workload, job);
            plain.arrive(job);
            let found = fluid.forward(&workload, step_s);
            let (ends_s, lendable) = plain.forward(step_s);
            prop_assert_eq!(bits(&found.ends_s), bits(&ends_s));
            for (other, lendable) in lendable.iter().enumerate() {
                let own = found.lendable(&workload, other, now_s);
                // Sums of nothing may be -0.
                prop_assert!(own.is_none_or(|own| (own + 0.0).to_bits() == lendable.to_bits()), "{:?}", own);
            }
        }
    }
}
