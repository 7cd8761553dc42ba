//! CANAL: credit sharing (§5.3), with packing that knows where inputs are (§5.4.1), and the acceleration of jobs that will
//! use an idle network (§5.4.2).
//! In: a cluster's state. Out: what to start. Called by [`engine`](super::engine) at every event.
//!
//! How the paper is read here. Fair completions are those of DRF for the jobs that have arrived. While these are few, they are
//! computed with whole tasks on the same cluster: Tables 5.5 and 5.6 count so, and such times can be reached. With more jobs
//! the work counts as divisible (§5.3.3), which large clusters come close to.
//!
//! The highest score has a task of a job that can wait no longer. This is ours; such a task also starts where the network is
//! short, which the paper proposes in §5.5.2 and did not do. Next comes a task that closes a gap, then one of a supplement.
//! Nothing is reserved for them.
//!
//! The theorem of §5.3.2 is about work that can be divided. Whole tasks that are not interrupted can make a job late: the
//! test `whole_tasks_seldom_make_a_job_late` counts how often.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::credit::{Check, Products};
use super::drf::Drf;
use super::engine::{Policy, State, TIME_ROUNDING, Truth, play_in};
use super::fair::{FairTimes, Fluid};
use super::input::{Stage, Workload};
use super::network::{EpochEnd, FULL};
use super::packing::{Away, Heads, pack};
use super::resources::Resources;
use super::tasks::Locality;

/// Most tasks of all jobs that have arrived, times nodes, with which fair completions are those of whole tasks. Chosen: they
/// are played out anew with every arrival.
const MOST_WHOLE: u64 = 200_000;
/// Rounds in an epoch in which tasks are tried again that were left out for their input. Chosen: every second or so.
const ROUNDS: f64 = 16.0;
/// Steps of an epoch in which divisible shares stay the same when fair completions are foreseen. Chosen.
const STEPS: f64 = 4.0;
/// What the latest epoch counts in the moving average of a job's speed. Chosen.
const LATEST: f64 = 0.5;

/// What is known of the jobs that have arrived.
#[derive(Debug, Clone)]
struct Fair {
    /// The workload with every input on every node, which is what fair completions are of.
    without_inputs: Workload,
    arrived: usize,
    lost: usize,
    /// By what the durations of stages have to be multiplied: job, stage, factor.
    factors: Vec<(usize, usize, f64)>,
    fluid: Fluid,
    /// The part of the nodes' resources that packing reaches while tasks wait (Eq. 5.7).
    reached: f64,
    /// In the order of their fair completions; equal ones in the order of the jobs.
    ranks: Vec<usize>,
    ends_s: Vec<Vec<f64>>,
    /// Products of whole tasks, where there are few.
    whole: Option<Products>,
    divisible: FairTimes,
}

impl Fair {
    fn new(state: &State<'_>) -> Self {
        Self {
            without_inputs: state.workload.without_inputs(),
            arrived: 0,
            lost: 0,
            factors: Vec::new(),
            fluid: Fluid::new(state.workload),
            reached: 1.0,
            ranks: Vec::new(),
            ends_s: Vec::new(),
            whole: None,
            divisible: FairTimes::default(),
        }
    }

    /// Takes note of jobs that have arrived and nodes that were lost; at the end of an epoch, of durations too.
    fn update(&mut self, state: &State<'_>, end_of_epoch: bool, step_s: f64) {
        let learned = if end_of_epoch { self.learn(state) } else { false };
        if self.arrived == state.arrived() && self.lost == state.lost().len() && !learned {
            return;
        }
        let workload = state.workload;
        self.fluid.advance(workload, state.now_s, |_, _| {});
        for &job in &state.arrivals()[self.arrived..] {
            self.fluid.add(workload, job);
        }
        let nodes = workload.cluster().nodes.len();
        for lost in self.lost..state.lost().len() {
            // Outputs lie on all nodes that were left.
            self.fluid.lose(1.0 / (nodes - lost) as f64);
        }
        self.fluid.available = self.available(state);
        self.arrived = state.arrived();
        self.lost = state.lost().len();
        self.divisible = self.fluid.forward(workload, step_s);
        self.ends_s.clone_from(&self.divisible.ends_s);
        self.whole = None;
        let stages = state.arrivals().iter().flat_map(|&job| &workload.jobs()[job].stages);
        let nodes = workload.cluster().nodes.len() as u64;
        if stages.map(|stage| u64::from(stage.tasks)).sum::<u64>().saturating_mul(nodes) <= MOST_WHOLE {
            let truth = Truth { factors: self.factors.clone(), losses: state.lost().to_vec() };
            let schedule = play_in(&self.without_inputs, &mut Drf, &truth, state.now_s);
            self.ends_s.clone_from(&schedule.ends_s);
            self.whole = Some(Products::new(workload, &schedule));
        }
        self.ranks = (0..workload.jobs().len()).filter(|&job| state.released(job)).collect();
        let ends_s = &self.ends_s;
        let completion_s = |job: usize| ends_s[job].last().copied().unwrap_or(f64::INFINITY);
        self.ranks.sort_by(|&a, &b| completion_s(a).total_cmp(&completion_s(b)));
    }

    /// What there is to share, in parts of the cluster: nodes that were not lost, as far as packing fills them (Eq. 5.7).
    /// The switch has no fragments.
    fn available(&self, state: &State<'_>) -> Resources {
        let capacity = |node: usize| state.workload.cluster().nodes[node].capacity.over(state.workload.capacity());
        let lost = state.lost().iter().fold(Resources::default(), |sum, &(_, node)| sum.plus(capacity(node)));
        let left = lost.parts().map(|lost| self.reached * (1.0 - lost).max(0.0));
        Resources { network: 1.0, ..Resources::from_parts(left) }
    }

    /// Takes note of how full the nodes are after a round that left tasks waiting for them, and not for the network.
    fn observe(&mut self, state: &State<'_>) {
        let mut ready = state.present().iter().filter_map(|&job| state.ready(job));
        if ready.any(|(stage, _)| !state.workload.network_intensive(stage)) {
            self.reached += LATEST * (state.node_utilisation() - self.reached);
            self.fluid.available = self.available(state);
        }
    }

    /// Durations that differ from what was told, once a task has ended. True if any is new.
    fn learn(&mut self, state: &State<'_>) -> bool {
        let before = self.factors.len();
        for &job in state.arrivals() {
            for (index, stage) in state.workload.jobs()[job].stages.iter().enumerate() {
                let differs = |factor: &f64| (factor - 1.0).abs() > 1e-6;
                let Some(factor) = state.learned(job, index).filter(differs) else { continue };
                if self.factors.iter().any(|&(other, at, _)| (other, at) == (job, index)) {
                    continue;
                }
                self.factors.push((job, index, factor));
                let share = f64::from(stage.tasks) * state.workload.task_share(stage);
                self.fluid.correct(job, index, share * state.duration_s(job, index));
            }
        }
        self.factors.len() > before
    }

    /// What each job would have had until now.
    fn products(&mut self, state: &State<'_>) -> Vec<f64> {
        self.fluid.advance(state.workload, state.now_s, |_, _| {});
        if let Some(whole) = &mut self.whole {
            whole.advance(state.now_s);
            return whole.now().to_vec();
        }
        (0..state.workload.jobs().len()).map(|job| self.fluid.product(job)).collect()
    }

    /// Whether a job with tasks to start ends after its fair completion if they wait any longer. A stage takes as long as one
    /// of its tasks, and before that as long as others take to give back what all its tasks need: that part of the cluster of
    /// such a duration.
    fn urgent(&self, state: &State<'_>, job: usize) -> bool {
        let Some(((_, waiting), (current, _))) = state.ready(job).zip(state.unfinished(job)) else { return false };
        let ends_s = &self.ends_s[job];
        let stage_s = |(index, stage): (usize, &Stage)| {
            let tasks = if index == current { waiting } else { state.left(job, index) };
            state.duration_s(job, index) * (1.0 + f64::from(tasks) * state.workload.task_share(stage))
        };
        let left: f64 = state.workload.jobs()[job].stages.iter().enumerate().skip(current).map(stage_s).sum();
        // It may have to start anywhere.
        let input = state.workload.jobs()[job].stages.get(current).and_then(|stage| stage.input.as_ref());
        let end_s = state.now_s + left + input.map_or(0.0, |input| input.off_rack_extra_s);
        ends_s.last().is_some_and(|completion_s| end_s >= completion_s * (1.0 - TIME_ROUNDING))
    }
}

/// Which parts of the policy are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awareness {
    /// Packing by where inputs are (§5.4.1); without it (NAO) a task away from its input counts as any other.
    pub locality: bool,
    /// Acceleration of network-intensive jobs (§5.4.2); without it (LAO) these wait for their turn.
    pub network: bool,
}

impl Awareness {
    /// CANAL.
    pub const BOTH: Self = Self { locality: true, network: true };
}

/// What a job did at the end of the last epoch.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    node_product: f64,
    /// In the epoch.
    gained: f64,
    /// In an epoch, the moving average.
    usual: f64,
}

/// The policy.
#[derive(Debug, Clone)]
pub struct Canal {
    epoch_s: f64,
    aware: Awareness,
    random: ChaCha8Rng,
    check_s: f64,
    retry_s: Option<f64>,
    fair: Option<Fair>,
    /// G of each job that is still open.
    gaps: Vec<f64>,
    /// Tasks of each job that start before others.
    supplements: Vec<f64>,
    last: Vec<Last>,
    switch_product: f64,
    /// Finds what fits without shortcuts: what tests compare with.
    plain: bool,
}

impl Canal {
    /// With an epoch of this length; chance in packing is this seed's.
    #[must_use]
    pub fn new(epoch_s: f64, aware: Awareness, seed: u64) -> Self {
        Self {
            epoch_s,
            aware,
            random: ChaCha8Rng::seed_from_u64(seed),
            check_s: epoch_s,
            retry_s: None,
            fair: None,
            gaps: Vec::new(),
            supplements: Vec::new(),
            last: Vec::new(),
            switch_product: 0.0,
            plain: false,
        }
    }

    /// The same without the shortcuts of [`Heads`].
    #[cfg(test)]
    pub(super) fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    fn start(&mut self, state: &mut State<'_>, job: usize, node: usize, short: Option<f64>) -> bool {
        let Some((stage, current)) = state.ready(job).map(|(stage, _)| stage).zip(state.unfinished(job)) else {
            return false;
        };
        let product = state.workload.task_share(stage) * state.duration_s(job, current.0);
        let started = match short {
            Some(freed_s) => state.start_short(job, node, freed_s),
            None => state.start(job, node),
        };
        if started {
            self.gaps[job] -= product;
            self.supplements[job] -= 1.0;
        }
        started
    }

    fn open(&self, job: usize) -> bool {
        self.gaps[job] > 1e-9 * self.epoch_s
    }

    /// The end of an epoch: what must be given back, and what is accelerated.
    fn check(&mut self, state: &State<'_>, fair: &mut Fair) {
        let all = state.workload.jobs().len();
        let fair_products = fair.products(state);
        let credits: Vec<f64> = (0..all).map(|job| state.product(job) - fair_products[job]).collect();
        let unfinished: Vec<Option<(usize, u32)>> = (0..all).map(|job| state.unfinished(job)).collect();
        self.gaps = Check {
            workload: state.workload,
            now_s: state.now_s,
            ranks: &fair.ranks,
            credits: &credits,
            unfinished: &unfinished,
            ends_s: &fair.ends_s,
            divisible: &fair.divisible,
        }
        .gaps();
        for (job, last) in self.last.iter_mut().enumerate() {
            let node_product = state.node_product(job);
            last.gained = node_product - last.node_product;
            last.node_product = node_product;
            last.usual += LATEST * (last.gained - last.usual);
        }
        self.supplements.fill(0.0);
        let used = state.switch_product() - std::mem::replace(&mut self.switch_product, state.switch_product());
        let used = used / (state.workload.cluster().switch * self.epoch_s);
        if self.aware.network && used < FULL {
            let ranks: Vec<usize> = fair.ranks.iter().copied().filter(|&job| unfinished[job].is_some()).collect();
            let of = |part: fn(&Last) -> f64| self.last.iter().map(part).collect::<Vec<_>>();
            self.supplements = EpochEnd {
                state,
                epoch_s: self.epoch_s,
                ranks: &ranks,
                gaps: &self.gaps,
                last: &of(|last| last.gained),
                usual: &of(|last| last.usual),
                ends_s: &fair.ends_s,
                network: (1.0 - used) * self.epoch_s,
            }
            .supplements();
        }
    }

    /// Tasks that come before others: of jobs that can wait no longer, of gaps, of supplements.
    fn start_first(&mut self, state: &mut State<'_>, fair: &Fair, nodes: &[usize]) {
        let urgent: Vec<usize> = fair.ranks.iter().copied().filter(|&job| fair.urgent(state, job)).collect();
        self.start_nearest(state, &urgent, nodes, &|_, _| true);
        self.start_short(state, &urgent);
        let open = |own: &Self, job: usize| own.open(job);
        let supplemented = |own: &Self, job: usize| own.supplements[job] > 1e-9;
        for wanted in [&open as &dyn Fn(&Self, usize) -> bool, &supplemented] {
            let jobs: Vec<usize> = fair.ranks.iter().copied().filter(|&job| wanted(self, job)).collect();
            self.start_nearest(state, &jobs, nodes, wanted);
        }
    }

    /// Starts tasks that use the network where it is short.
    fn start_short(&mut self, state: &mut State<'_>, urgent: &[usize]) {
        let uses_network = |job: &usize| state.ready(*job).is_some_and(|(stage, _)| stage.demand.network > 0.0);
        let jobs: Vec<usize> = urgent.iter().copied().filter(uses_network).collect();
        if jobs.is_empty() {
            return;
        }
        let freed_s = state.network_freed_s();
        for job in jobs {
            for node in 0..state.workload.cluster().nodes.len() {
                if !state.may_start_short(job) {
                    break;
                }
                while self.start(state, job, node, Some(freed_s)) {}
            }
        }
    }

    /// Starts tasks of these jobs in their order; with awareness of inputs, on all nodes those near theirs before others.
    fn start_nearest(
        &mut self,
        state: &mut State<'_>,
        jobs: &[usize],
        nodes: &[usize],
        wanted: &dyn Fn(&Self, usize) -> bool,
    ) {
        let mut heads = Heads::new(state, jobs.iter().copied(), self.plain);
        let aware = self.aware.locality;
        let farthest = [Locality::Node, Locality::Rack, Locality::OffRack];
        for farthest in &farthest[if aware { 0 } else { 2 }..] {
            for &node in nodes {
                heads.forget();
                if !heads.any_fits(state, node) {
                    continue;
                }
                for place in 0..heads.len() {
                    let Some(job) = heads.fitting(state, node, place) else { continue };
                    if *farthest == Locality::Node && !heads.is_near(state, job, node) {
                        continue;
                    }
                    let near = |state: &State<'_>| state.option(job, node).is_some_and(|(own, _)| own <= *farthest);
                    while wanted(self, job) && near(state) && self.start(state, job, node, None) {
                        heads.forget();
                    }
                }
            }
        }
    }

    /// Fills nodes with what packs best: with awareness of inputs, all nodes with tasks near theirs before any with others.
    fn start_packed(&mut self, state: &mut State<'_>, fair: &Fair, nodes: &[usize]) {
        if self.aware.locality {
            self.fill(state, fair, nodes, false);
        }
        self.fill(state, fair, nodes, true);
    }

    fn fill(&mut self, state: &mut State<'_>, fair: &Fair, nodes: &[usize], away: bool) {
        let mut heads = Heads::new(state, fair.ranks.iter().copied(), self.plain);
        for &node in nodes {
            loop {
                heads.forget();
                if heads.len() == 0 || !heads.any_fits(state, node) {
                    break;
                }
                let away = match (away, self.aware.locality) {
                    (false, _) => Away::No,
                    (true, true) => Away::Chance(&mut self.random),
                    (true, false) => Away::Yes,
                };
                let (packed, discarded) = pack(state, node, &mut heads, away);
                let mut started = false;
                for &(job, count) in &packed {
                    for _ in 0..count {
                        started |= self.start(state, job, node, None);
                    }
                }
                if !started {
                    if discarded {
                        state.ask_again(node);
                        self.retry_s = Some(state.now_s + self.epoch_s / ROUNDS);
                    }
                    break;
                }
                if packed.iter().any(|&(job, _)| state.ready(job).is_none()) {
                    heads.keep_ready(state);
                }
            }
        }
    }
}

impl Policy for Canal {
    fn wake_s(&self) -> Option<f64> {
        Some(self.retry_s.map_or(self.check_s, |retry_s| retry_s.min(self.check_s)))
    }

    fn schedule(&mut self, state: &mut State<'_>) {
        let all = state.workload.jobs().len();
        self.gaps.resize(all, 0.0);
        self.supplements.resize(all, 0.0);
        self.last.resize(all, Last::default());
        let mut fair = self.fair.take().unwrap_or_else(|| Fair::new(state));
        let end_of_epoch = state.now_s >= self.check_s * (1.0 - TIME_ROUNDING);
        fair.update(state, end_of_epoch, self.epoch_s / STEPS);
        if end_of_epoch {
            self.check_s = state.now_s + self.epoch_s;
            self.check(state, &mut fair);
        }
        self.retry_s = None;
        let nodes = state.take_fresh();
        self.start_first(state, &fair, &nodes);
        self.start_packed(state, &fair, &nodes);
        if end_of_epoch {
            fair.observe(state);
        }
        self.fair = Some(fair);
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::{HostId, JobId};

    use super::*;
    use crate::sharing::engine::Play;
    use crate::sharing::input::{Cluster, Job, Node};

    /// Tasks need six tenths of a node, so no packing fills more; divisible sharing would be ahead by two thirds.
    #[test]
    fn fair_sharing_gets_as_much_of_the_nodes_as_packing_fills() {
        let capacity = Resources { cpu: 10.0, ..Resources::default() };
        let node = |index: u32| Node { name: HostId::new(format!("n{index}")).unwrap(), capacity, rack: 0 };
        let stage = Stage { tasks: 1_500, demand: Resources { cpu: 6.0, ..capacity }, duration_s: 20.0, input: None };
        let job = |name| Job { name: JobId::new(name).unwrap(), release_s: 0.0, stages: vec![stage.clone()] };
        let cluster = Cluster { nodes: (0..100).map(node).collect(), switch: 0.0 };
        let workload = Workload::new(cluster, vec![job("a"), job("b")]).unwrap();
        let mut canal = Canal::new(20.0, Awareness::BOTH, 1);
        let mut play = Play::new(&workload, &Truth::default(), f64::INFINITY);
        while play.state.now_s < 200.0 && play.step(&mut canal) {}
        let fair = canal.fair.as_mut().unwrap();
        assert!((fair.reached - 0.6).abs() < 0.001, "{}", fair.reached);
        let ahead: f64 = fair.products(&play.state).iter().sum::<f64>() - play.state.product(0) - play.state.product(1);
        // 0.4 + 0.2 + 0.1 + … of epochs of 20 s; at the full rate it were 80 s.
        assert!(ahead < 16.5, "{ahead}");
    }
}
