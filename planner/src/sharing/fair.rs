//! Fair completion times of jobs whose work can be divided at will (§5.3.3): DRF without fragments, advanced from event to
//! event. In: jobs as they arrive. Out: what each job would have had, when each stage would end, and what network-intensive
//! jobs may lend (Γ of Eq. 5.8).
//!
//! The paper keeps one dominant share for all jobs but the network-intensive ones until they end, because arrivals will
//! resemble departures. Here all shares are computed anew at each arrival, end of a stage and departure, which is what it
//! says of DRF itself.

use super::engine::TIME_ROUNDING;
use super::input::{Job, Stage, Workload};
use super::resources::{ROUNDING, Resources};
use super::weights::Weights;

/// What a job wants at one time, in parts of the cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Its demand per dominant share.
    pub(super) direction: Resources,
    /// The dominant share at which all tasks of its stage run.
    pub(super) most: f64,
    /// Its dominant share grows by so much of the common level.
    pub(super) weight: f64,
}

impl Claim {
    /// The level at which it has its most.
    fn full_at(&self) -> f64 {
        self.most / self.weight
    }
}

/// Dominant shares that are equal for their weights, as large as they can be. A job that needs nothing more of what is used up keeps on growing, so
/// that what one job cannot use goes to the others. Claims have to be in the order of the levels at which they have their most; `available` is what there
/// is, in parts of the cluster.
pub(super) fn shares(claims: &[Claim], available: Resources, shares: &mut Vec<f64>) {
    let parts = |index: usize| claims[index].direction.parts();
    let (mut free, mut rate) = (available.parts(), [0.0; 4]);
    let mut used_up = free.map(|free| free <= 0.0);
    for claim in claims {
        for (rate, part) in rate.iter_mut().zip(claim.direction.parts()) {
            *rate += claim.weight * part;
        }
    }
    shares.clear();
    shares.resize(claims.len(), f64::NAN);
    let (mut level, mut next) = (0.0, 0);
    let stop = |index: usize, share: f64, shares: &mut [f64], rate: &mut [f64; 4]| {
        shares[index] = share;
        for (rate, part) in rate.iter_mut().zip(parts(index)) {
            *rate -= claims[index].weight * part;
        }
    };
    loop {
        while shares.get(next).is_some_and(|share| !share.is_nan()) {
            next += 1;
        }
        let Some(claim) = claims.get(next) else { return spread_network(claims, free[3], shares) };
        // Rates below this are what rounding leaves of jobs that have stopped.
        let of = |r: usize| if used_up[r] || rate[r] < 1e-12 { f64::INFINITY } else { free[r] / rate[r] };
        let until_full = (0..4).map(of).fold(f64::INFINITY, f64::min).max(0.0);
        let full_at = claim.full_at();
        let step = until_full.min(full_at - level).max(0.0);
        level += step;
        for (free, rate) in free.iter_mut().zip(rate) {
            *free -= rate.max(0.0) * step;
        }
        if full_at - level <= ROUNDING * full_at {
            stop(next, claim.most, shares, &mut rate);
            continue;
        }
        for r in 0..4 {
            used_up[r] |= free[r] <= ROUNDING;
        }
        for index in next..claims.len() {
            if shares[index].is_nan() && (0..4).any(|r| used_up[r] && parts(index)[r] > 0.0) {
                stop(index, level * claims[index].weight, shares, &mut rate);
            }
        }
    }
}

/// Divides the network that is left by weight among network-intensive jobs that the nodes have stopped, as long as their shares of
/// a node's resources are at most what their dominant shares were (§5.3.3). Their small tasks fit where others do not: what they use
/// more of the nodes is taken from nobody, so shares may come to a little more than the nodes, and fair completions are that much
/// earlier than a schedule can be.
fn spread_network(claims: &[Claim], mut free: f64, shares: &mut [f64]) {
    if free <= ROUNDING {
        return;
    }
    let weight = |index: usize| claims[index].weight;
    let mut rooms: Vec<(f64, f64, usize)> = Vec::with_capacity(claims.len());
    for (index, claim) in claims.iter().enumerate() {
        if claim.direction.network < 1.0 - ROUNDING {
            continue;
        }
        let of_node = Resources { network: 0.0, ..claim.direction }.largest();
        let most = if of_node > 0.0 { claim.most.min(shares[index] / of_node) } else { claim.most };
        let room = most - shares[index];
        if room > 0.0 {
            rooms.push((room / claim.weight, room, index));
        }
    }
    rooms.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut weights: f64 = rooms.iter().map(|&(_, _, index)| weight(index)).sum();
    for (_, room, index) in rooms {
        let more = room.min(free * weight(index) / weights);
        shares[index] += more;
        free -= more;
        weights -= weight(index);
    }
}

/// A time in which the network was used up, by these jobs with these shares.
#[derive(Debug)]
struct UsedUp {
    from_s: f64,
    to_s: f64,
    jobs: Vec<(usize, f64)>,
}

/// A time in which the network was used up, and what a job may lend in it.
#[derive(Debug, Clone, Copy)]
struct FullNetwork {
    from_s: f64,
    to_s: f64,
    /// What the jobs that end before it hold.
    share: f64,
}

/// Fair completion times.
#[derive(Debug, Clone, Default)]
pub struct FairTimes {
    /// When each stage of each job ends; infinite for jobs that were left out.
    pub ends_s: Vec<Vec<f64>>,
    /// Of each job.
    full: Vec<Vec<FullNetwork>>,
}

/// A job on its way.
#[derive(Debug, Clone)]
struct Advance {
    stage: usize,
    /// How long tasks of the stage run.
    task_s: f64,
    /// Dominant product of the stage that is left.
    left: f64,
    /// Dominant product of the stages before.
    done: f64,
}

/// A number for each stage of each job, one after the other: a look ahead copies all of them.
#[derive(Debug, Clone)]
struct PerStage {
    /// Where each job begins, and the end of the last.
    begins: Vec<usize>,
    values: Vec<f64>,
}

impl PerStage {
    fn new(workload: &Workload, of: impl Fn(&Stage) -> f64) -> Self {
        let mut own = Self { begins: vec![0], values: Vec::new() };
        for job in workload.jobs() {
            own.values.extend(job.stages.iter().map(&of));
            own.begins.push(own.values.len());
        }
        own
    }

    fn of(&self, job: usize) -> &[f64] {
        &self.values[self.begins[job]..self.begins[job + 1]]
    }

    fn of_mut(&mut self, job: usize) -> &mut [f64] {
        &mut self.values[self.begins[job]..self.begins[job + 1]]
    }

    fn lists(&self) -> Vec<Vec<f64>> {
        (1..self.begins.len()).map(|end| self.of(end - 1).to_vec()).collect()
    }
}

/// Divisible DRF at one time.
#[derive(Debug, Clone)]
pub(super) struct Fluid {
    now_s: f64,
    /// What there is, in parts of the cluster: less than 1 after nodes were lost.
    pub(super) available: Resources,
    jobs: Vec<Advance>,
    /// Dominant product of each stage of each job.
    products: PerStage,
    /// Of each job that is there, in the order of the levels at which it has its most; and its position.
    claims: Vec<Claim>,
    present: Vec<usize>,
    ends_s: PerStage,
    /// The least time between two changes of shares.
    step_s: f64,
    /// Buffer.
    shares: Vec<f64>,
}

fn claim(workload: &Workload, stage: &Stage) -> Claim {
    let demand = stage.demand.over(workload.capacity());
    let share = demand.largest();
    let direction = Resources::from_parts(demand.parts().map(|part| part / share));
    Claim { direction, most: f64::from(stage.tasks) * share, weight: 1.0 }
}

impl Fluid {
    pub(super) fn new(workload: &Workload) -> Self {
        let jobs = workload.jobs();
        let product = |stage: &Stage| f64::from(stage.tasks) * stage.duration_s * workload.task_share(stage);
        let begin = |job: &Job| Advance {
            stage: 0,
            task_s: job.stages.first().map_or(0.0, |stage| stage.duration_s),
            left: job.stages.first().map_or(0.0, product),
            done: 0.0,
        };
        Self {
            now_s: 0.0,
            available: Resources::from_parts([1.0; 4]),
            jobs: jobs.iter().map(begin).collect(),
            products: PerStage::new(workload, product),
            claims: Vec::new(),
            present: Vec::new(),
            ends_s: PerStage::new(workload, |_| f64::INFINITY),
            step_s: 0.0,
            shares: Vec::new(),
        }
    }

    /// A job arrives.
    pub(super) fn add(&mut self, workload: &Workload, job: usize) {
        self.enter(workload, job);
    }

    /// What a job has had, in share seconds.
    pub(super) fn product(&self, job: usize) -> f64 {
        let own = &self.jobs[job];
        let whole = self.products.of(job).get(own.stage).copied().unwrap_or(0.0);
        own.done + whole - own.left
    }

    /// Tasks of a job's stage turn out to be longer or shorter than was known: its work changes, also what was done of it.
    pub(super) fn correct(&mut self, job: usize, stage: usize, product: f64) {
        let own = &mut self.jobs[job];
        let before = std::mem::replace(&mut self.products.of_mut(job)[stage], product);
        if own.stage == stage && before > 0.0 {
            own.left *= product / before;
        } else if own.stage > stage {
            own.done += product - before;
        }
    }

    /// This part of what tasks wrote is lost: what is done of a stage that another one reads, and what was done of the stage before
    /// and is not yet read. It has to be done again, and does not count as had.
    pub(super) fn lose(&mut self, part: f64) {
        for &job in &self.present {
            let (own, products) = (&mut self.jobs[job], self.products.of(job));
            let whole = products[own.stage];
            let unread = (own.left / whole).min(1.0);
            let is_last = own.stage + 1 == products.len();
            let written = if is_last { 0.0 } else { whole - own.left.min(whole) };
            let before = own.stage.checked_sub(1).map_or(0.0, |before| unread * products[before]);
            own.left += part * (written + before);
        }
    }

    fn enter(&mut self, workload: &Workload, job: usize) {
        let own = &mut self.jobs[job];
        let Some(stage) = workload.jobs()[job].stages.get(own.stage) else { return };
        own.left = self.products.of(job)[own.stage];
        own.task_s = stage.duration_s;
        let claim = claim(workload, stage);
        let place = self.claims.partition_point(|other| other.full_at() < claim.full_at());
        self.claims.insert(place, claim);
        self.present.insert(place, job);
        self.weigh(workload);
    }

    /// Other jobs are there than before, so weights are others, and with them the order.
    fn weigh(&mut self, workload: &Workload) {
        if workload.tree().is_none() {
            return;
        }
        let weights = Weights::new(workload.tree(), &self.present);
        let weighed = |(claim, job): (Claim, usize)| (Claim { weight: weights.of(job), ..claim }, job);
        let claims = std::mem::take(&mut self.claims).into_iter();
        let mut all: Vec<(Claim, usize)> = claims.zip(std::mem::take(&mut self.present)).map(weighed).collect();
        all.sort_by(|a, b| a.0.full_at().total_cmp(&b.0.full_at()));
        all.into_iter().for_each(|own| self.put(own));
    }

    /// Goes on to a time without arrivals, or until all is done; `note` is told each time in which the network is used up.
    pub(super) fn advance(&mut self, workload: &Workload, to_s: f64, mut note: impl FnMut(&Self, f64)) {
        let mut ended = Vec::new();
        while !self.present.is_empty() && self.now_s < to_s {
            let mut values = std::mem::take(&mut self.shares);
            shares(&self.claims, self.available, &mut values);
            self.shares = values;
            let each = || self.present.iter().zip(&self.shares);
            let left_s = |job: usize, share: f64| self.jobs[job].left / share.max(f64::MIN_POSITIVE);
            let first_s = each().map(|(&job, &share)| left_s(job, share)).fold(f64::INFINITY, f64::min);
            let end_s = (self.now_s + first_s.max(self.step_s)).min(to_s);
            note(self, end_s);
            let passed_s = end_s - self.now_s;
            ended.clear();
            for (&job, share) in self.present.iter().zip(&self.shares) {
                let own = &mut self.jobs[job];
                own.left -= share * passed_s;
                let rounding = TIME_ROUNDING * share * (end_s + own.task_s);
                if own.left <= rounding {
                    let late_s = if own.left < -rounding { own.left / share } else { 0.0 };
                    ended.push((job, end_s + late_s));
                }
            }
            self.now_s = end_s;
            self.end(workload, &ended);
        }
        if to_s.is_finite() {
            self.now_s = self.now_s.max(to_s);
        }
    }

    /// Stages of these jobs end at these times. Claims move once for all of them; their order is as if they ended one by one.
    fn end(&mut self, workload: &Workload, ended: &[(usize, f64)]) {
        if ended.is_empty() {
            return;
        }
        let mut entered: Vec<(Claim, usize)> = Vec::with_capacity(ended.len());
        for &(job, at_s) in ended {
            let (own, products) = (&mut self.jobs[job], self.products.of(job));
            own.done += products[own.stage];
            self.ends_s.of_mut(job)[own.stage] = at_s;
            own.stage += 1;
            own.left = products.get(own.stage).copied().unwrap_or(0.0);
            if let Some(stage) = workload.jobs()[job].stages.get(own.stage) {
                own.task_s = stage.duration_s;
                entered.push((claim(workload, stage), job));
            }
        }
        // Of equals the last to enter comes first.
        entered.reverse();
        entered.sort_by(|a, b| a.0.full_at().total_cmp(&b.0.full_at()));
        let mut entered = entered.into_iter().peekable();
        let (claims, present) = (std::mem::take(&mut self.claims), std::mem::take(&mut self.present));
        self.claims.reserve(claims.len());
        self.present.reserve(present.len());
        let mut left = ended.iter().map(|(job, _)| *job).peekable();
        for (own, job) in claims.into_iter().zip(present) {
            // Both are in the order of the claims.
            if left.next_if_eq(&job).is_some() {
                continue;
            }
            while let Some(new) = entered.next_if(|new| new.0.full_at() <= own.full_at()) {
                self.put(new);
            }
            self.put((own, job));
        }
        entered.for_each(|new| self.put(new));
        self.weigh(workload);
    }

    fn put(&mut self, (claim, job): (Claim, usize)) {
        self.claims.push(claim);
        self.present.push(job);
    }

    /// The jobs that use the network up now, with their shares, if any do.
    fn on_full_network(&self) -> Vec<(usize, f64)> {
        let each = || self.claims.iter().zip(&self.shares);
        let used: f64 = each().map(|(claim, share)| claim.direction.network * share).sum();
        if used < 1.0 - ROUNDING {
            return Vec::new();
        }
        let intensive = each().zip(&self.present).filter(|((claim, _), _)| claim.direction.network >= 1.0 - ROUNDING);
        let mut jobs = Vec::with_capacity(self.present.len());
        jobs.extend(intensive.map(|((_, share), job)| (*job, *share)));
        jobs
    }

    /// When all that have arrived end if no more arrive. To be quick, shares stay the same for such a time: what a stage that
    /// ends in it leaves goes to the others after it.
    pub(super) fn forward(&self, workload: &Workload, step_s: f64) -> FairTimes {
        let mut own = self.clone();
        let mut pieces = Vec::new();
        own.step_s = step_s;
        own.advance(workload, f64::INFINITY, |fluid, to_s| {
            let jobs = fluid.on_full_network();
            if !jobs.is_empty() {
                pieces.push(UsedUp { from_s: fluid.now_s, to_s, jobs });
            }
        });
        FairTimes::of(own.ends_s.lists(), &pieces)
    }
}

impl FairTimes {
    /// Computes them for the jobs that arrive by `known_until_s`.
    #[must_use]
    pub fn new(workload: &Workload, known_until_s: f64) -> Self {
        let jobs = workload.jobs();
        let mut order: Vec<usize> = (0..jobs.len()).filter(|&job| jobs[job].release_s <= known_until_s).collect();
        order.sort_by(|&a, &b| jobs[a].release_s.total_cmp(&jobs[b].release_s));
        let mut fluid = Fluid::new(workload);
        let mut pieces = Vec::new();
        let mut note = |fluid: &Fluid, to_s: f64| {
            let jobs = fluid.on_full_network();
            if !jobs.is_empty() {
                pieces.push(UsedUp { from_s: fluid.now_s, to_s, jobs });
            }
        };
        for job in order {
            fluid.advance(workload, jobs[job].release_s, &mut note);
            fluid.add(workload, job);
        }
        fluid.advance(workload, f64::INFINITY, &mut note);
        Self::of(fluid.ends_s.lists(), &pieces)
    }

    /// While the network is used up a job can wait for those that end before it, so it may lend what they hold.
    fn of(ends_s: Vec<Vec<f64>>, pieces: &[UsedUp]) -> Self {
        let mut of_job = vec![0; ends_s.len()];
        pieces.iter().flat_map(|piece| &piece.jobs).for_each(|&(job, _)| of_job[job] += 1);
        let mut own = Self { full: of_job.into_iter().map(Vec::with_capacity).collect(), ends_s };
        let mut order: Vec<usize> = (0..own.ends_s.len()).collect();
        order.sort_by(|&a, &b| own.completion_s(a).total_cmp(&own.completion_s(b)));
        let mut held = vec![0.0; own.ends_s.len()];
        for &UsedUp { from_s, to_s, ref jobs } in pieces {
            jobs.iter().for_each(|&(job, share)| held[job] = share);
            let mut share = 0.0;
            for &job in order.iter().filter(|&&job| held[job] > 0.0) {
                own.full[job].push(FullNetwork { from_s, to_s, share });
                share += held[job];
            }
            jobs.iter().for_each(|&(job, _)| held[job] = 0.0);
        }
        own
    }

    /// When a job ends.
    #[must_use]
    pub fn completion_s(&self, job: usize) -> f64 {
        self.ends_s[job].last().copied().unwrap_or(f64::INFINITY)
    }

    /// Γ: the most a network-intensive job may have lent at a time, so that the network stays used (Eq. 5.8). `None` for a
    /// job that no stage makes network-intensive.
    #[must_use]
    pub fn lendable(&self, workload: &Workload, job: usize, now_s: f64) -> Option<f64> {
        let intensive = workload.jobs()[job].stages.iter().any(|stage| workload.network_intensive(stage));
        let lent = self.full[job].iter().map(|piece| piece.share * (piece.to_s - piece.from_s.max(now_s)).max(0.0));
        intensive.then(|| lent.sum())
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::{HostId, JobId};
    use proptest::prelude::*;

    use super::*;
    use crate::sharing::input::{Cluster, Node};

    /// Jobs with two stages of so many tasks, which is the order of their claims.
    fn workload(tasks: &[(u32, u32)]) -> Workload {
        let capacity = Resources { cpu: 100.0, ..Resources::default() };
        let node = Node { name: HostId::new("n").unwrap(), capacity, rack: 0 };
        let stage = |tasks| Stage { tasks, demand: Resources { cpu: 1.0, ..capacity }, duration_s: 1.0, input: None };
        let job = |(index, &(first, second)): (usize, &(u32, u32))| Job {
            name: JobId::new(format!("j{index}")).unwrap(),
            release_s: 0.0,
            stages: vec![stage(first), stage(second)],
        };
        Workload::new(Cluster { nodes: vec![node], switch: 0.0 }, tasks.iter().enumerate().map(job).collect()).unwrap()
    }

    /// Half of what 4 tasks of the first stage wrote in 2 s of 100 tasks' room is lost; of the second stage nothing is.
    #[test]
    fn what_was_written_is_lost_in_part() {
        let workload = workload(&[(400, 100)]);
        let mut fluid = Fluid::new(&workload);
        fluid.add(&workload, 0);
        fluid.advance(&workload, 2.0, |_, _| {});
        assert!((fluid.product(0) - 2.0).abs() < 1e-9);
        fluid.lose(0.5);
        assert!((fluid.product(0) - 1.0).abs() < 1e-9);
        // 3 s are left of the first stage; of the second, 1 s long, half has read what the first wrote.
        fluid.advance(&workload, 5.5, |_, _| {});
        assert!((fluid.product(0) - 4.5).abs() < 1e-9);
        fluid.lose(0.25);
        assert!((fluid.product(0) - 4.0).abs() < 1e-9);
        fluid.advance(&workload, 7.0, |_, _| {});
        assert!((fluid.product(0) - 5.0).abs() < 1e-9 && (fluid.ends_s.of(0)[1] - 6.5).abs() < 1e-9);
    }

    proptest! {
        /// Stages that end together leave claims in the order in which they were if they ended one by one; some end twice.
        #[test]
        fn stages_that_end_together_are_as_if_one_by_one(
            jobs in proptest::collection::vec(((1..5_u32, 1..5_u32), any::<bool>(), any::<bool>()), 1..12),
        ) {
            let tasks: Vec<(u32, u32)> = jobs.iter().map(|own| own.0).collect();
            let workload = workload(&tasks);
            let mut together = Fluid::new(&workload);
            (0..jobs.len()).for_each(|job| together.add(&workload, job));
            let mut single = together.clone();
            for round in 0..2 {
                let ends = |job: &usize| if round == 0 { jobs[*job].1 } else { jobs[*job].1 && jobs[*job].2 };
                let ended: Vec<(usize, f64)> =
                    together.present.iter().copied().filter(ends).map(|job| (job, 1.0)).collect();
                together.end(&workload, &ended);
                for one in &ended {
                    // As it was done before.
                    let place = single.present.iter().position(|job| *job == one.0).unwrap();
                    single.present.remove(place);
                    single.claims.remove(place);
                    single.jobs[one.0].stage += 1;
                    single.enter(&workload, one.0);
                }
                prop_assert_eq!(&together.present, &single.present);
                let most = |own: &Fluid| own.claims.iter().map(|claim| claim.most.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(most(&together), most(&single));
            }
        }
    }
}
