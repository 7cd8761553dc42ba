//! Dynamic level (§5.3.4) and locality-aware packing (§5.4.1): which tasks go to a node, of the first job or of the first
//! two, four, …, by what they waste of the node and by how much work their jobs have left.
//! In: a node and the jobs at the head of the queue. Out: tasks for it. Called by [`canal`](super::canal).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

use super::engine::State;
use super::input::{Need, Stage};
use super::resources::Resources;
use super::tasks::Locality;

/// Most jobs whose tasks are tried on a node at a time, the first in rank with a task that fits. Chosen.
const MOST: usize = 8;

/// Most jobs that are looked at for tasks near their input while others do not count. Chosen.
const MOST_NEAR: usize = 64;

/// Most candidates: a job can have tasks beside their input and away from it.
const MOST_CANDIDATES: usize = 2 * MOST;

/// A job with tasks to start, in a round.
#[derive(Debug, Clone, Copy)]
struct Head {
    job: usize,
    /// Which of the needs a task beside its input has.
    need: usize,
}

/// The jobs with tasks to start, in a round. Many have tasks of equal needs, so what fits a node is asked once for each need.
#[derive(Debug)]
pub(super) struct Heads {
    list: Vec<Head>,
    needs: Vec<Need>,
    /// The least that any of them takes of each resource: what a full node is asked first.
    least: Option<Resources>,
    /// Which needs fit the node that is looked at, as far as was asked.
    fits: Vec<Option<bool>>,
    /// Asks the state each time instead: what tests compare with.
    plain: bool,
}

impl Heads {
    /// Those of these jobs that have tasks to start, in their order.
    pub(super) fn new(state: &State<'_>, jobs: impl Iterator<Item = usize>, plain: bool) -> Self {
        let (mut list, mut needs) = (Vec::new(), Vec::new());
        let mut known = vec![None; state.workload.kinds()];
        for job in jobs {
            let Some(((stage, _), kind)) = state.ready(job).zip(state.kind(job)) else { continue };
            let need = *known[kind].get_or_insert_with(|| {
                needs.push(stage.need(Locality::Node));
                needs.len() - 1
            });
            list.push(Head { job, need });
        }
        let smaller = |a: Resources, b: Resources| {
            let (a, b) = (a.parts(), b.parts());
            Resources::from_parts(std::array::from_fn(|index| a[index].min(b[index])))
        };
        let least = needs.iter().map(|need| need.demand).reduce(smaller);
        Self { list, fits: vec![None; needs.len()], needs, least, plain }
    }

    /// Forgets what fits: another node is looked at, or a task has started.
    pub(super) fn forget(&mut self) {
        self.fits.fill(None);
    }

    /// Forgets the jobs that have no more tasks to start.
    pub(super) fn keep_ready(&mut self, state: &State<'_>) {
        self.list.retain(|head| state.ready(head.job).is_some());
    }

    /// How many jobs there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// A job by its place, if a task of it that is beside its input fits the node.
    pub(super) fn fitting(&mut self, state: &State<'_>, node: usize, place: usize) -> Option<usize> {
        let Head { job, need } = self.list[place];
        self.need_fits(state, node, need).then_some(job)
    }

    /// Whether a task of any of the needs fits the node.
    pub(super) fn any_fits(&mut self, state: &State<'_>, node: usize) -> bool {
        let capacity = state.workload.cluster().nodes[node].capacity;
        let may_fit = self.least.is_some_and(|least| least.fits(state.free(node), capacity));
        self.plain || (may_fit && (0..self.needs.len()).any(|need| self.need_fits(state, node, need)))
    }

    fn need_fits(&mut self, state: &State<'_>, node: usize, need: usize) -> bool {
        if self.plain {
            return state.fits(&self.needs[need], node);
        }
        *self.fits[need].get_or_insert_with(|| state.fits(&self.needs[need], node))
    }

    /// Whether the job has a waiting task whose input is on the node.
    pub(super) fn is_near(&self, state: &State<'_>, job: usize, node: usize) -> bool {
        if self.plain { state.local(job, node) > 0 } else { state.is_near(job, node) }
    }
}

/// Tasks of a job that fit the node.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    job: usize,
    /// In parts of the node.
    demand: Resources,
    waiting: u32,
    /// w: the work of its job's tasks that have not started.
    remaining: f64,
    /// What each wastes of the node by being away from its input.
    waste: f64,
}

/// Tasks of the candidates: how many of each.
#[derive(Debug, Clone)]
struct Packing {
    counts: [u32; MOST_CANDIDATES],
    /// v: the size of the fragment they leave, and of their non-local fragments.
    fragment: f64,
    /// w: the mean of their jobs' remaining work.
    remaining: f64,
}

/// Two values that differ only by rounding are equal.
fn less(a: f64, b: f64) -> bool {
    a < b - 1e-9 * b.abs().max(1e-9)
}

/// Whether tasks are packed away from their input.
#[derive(Debug)]
pub(super) enum Away<'a> {
    /// Not at all.
    No,
    /// By chance, the less they waste the likelier (Eq. 5.12).
    Chance(&'a mut ChaCha8Rng),
    /// As all others.
    Yes,
}

/// What a node can be filled with.
struct Choice {
    candidates: Vec<Candidate>,
    /// Tasks were left out because of where their input is.
    discarded: bool,
}

/// The work of a job's tasks that have not started, in parts of a node of this capacity.
fn remaining(state: &State<'_>, job: usize, capacity: Resources) -> f64 {
    let work = |stage: &Stage, tasks: u32| f64::from(tasks) * stage.demand.over(capacity).node_work();
    let Some(((stage, waiting), (current, _))) = state.ready(job).zip(state.unfinished(job)) else { return 0.0 };
    let later = state.workload.jobs()[job].stages.iter().enumerate().skip(current + 1);
    work(stage, waiting) + later.map(|(at, stage)| work(stage, state.left(job, at))).sum::<f64>()
}

/// Candidates of the first jobs that fit.
fn choose(state: &State<'_>, node: usize, heads: &mut Heads, room: Room, away_by: Away<'_>) -> Choice {
    let capacity = state.workload.cluster().nodes[node].capacity;
    let mut local: Vec<Candidate> = Vec::new();
    let mut away: Vec<(usize, Candidate, f64)> = Vec::new();
    let only_near = matches!(away_by, Away::No);
    let (mut jobs, mut seen) = (0, 0);
    for place in 0..heads.len() {
        if jobs == MOST || (only_near && seen == MOST_NEAR) {
            break;
        }
        let Some(job) = heads.fitting(state, node, place) else { continue };
        seen += 1;
        let near = heads.is_near(state, job, node);
        if only_near && !near {
            continue;
        }
        let Some((stage, waiting)) = state.ready(job) else { continue };
        let here = if near { state.local(job, node) } else { 0 };
        let mut own = Candidate {
            job,
            demand: stage.demand.over(capacity),
            waiting: here,
            remaining: remaining(state, job, capacity),
            waste: 0.0,
        };
        let locality = if state.in_rack(job, node) > here { Locality::Rack } else { Locality::OffRack };
        let need = stage.need(locality);
        let is_away = !only_near && waiting > here && state.fits(&need, node);
        jobs += usize::from(here > 0 || is_away);
        if here > 0 {
            local.push(own);
        }
        if is_away {
            let fragment = stage.non_local_fragment(locality, capacity);
            own.waste = fragment * own.demand.node_work() / room.present();
            (own.demand, own.waiting) = (need.demand.over(capacity), waiting - here);
            away.push((local.len(), own, fragment));
        }
    }
    merge(local, away, room, away_by)
}

/// Puts both kinds of candidates together in the order of ranks.
fn merge(mut local: Vec<Candidate>, away: Vec<(usize, Candidate, f64)>, room: Room, away_by: Away<'_>) -> Choice {
    let mut discarded = false;
    let mut accepted = away;
    if let (Away::Chance(random), false) = (away_by, accepted.is_empty()) {
        let only_local = room.fill(&local, None).fragment;
        accepted.retain(|(_, _, fragment)| {
            let chance = if only_local > 0.0 { 1.0 - fragment / only_local } else { 0.0 };
            // g in 1 to 10.
            let drawn = 1.0 + 9.0 * f64::from(random.next_u32()) / f64::from(u32::MAX);
            let packed = drawn <= 10.0 * chance;
            discarded |= !packed;
            packed
        });
    }
    for (place, own, _) in accepted.into_iter().rev() {
        local.insert(place, own);
    }
    Choice { candidates: local, discarded }
}

/// What is free of a node, in parts of it, and which resources it has.
#[derive(Debug, Clone, Copy)]
struct Room {
    free: Resources,
    whole: Resources,
}

impl Room {
    /// How many of the resources of a fragment the node has (R̂ of §5.4.1).
    fn present(self) -> f64 {
        self.whole.node_work().max(1.0)
    }

    /// How many tasks of this demand it holds: a bound that counts nothing else.
    fn holds(self, demand: Resources) -> u32 {
        let each = demand.parts().into_iter().zip(self.free.parts()).filter(|(demand, _)| *demand > 0.0);
        let most = each.map(|(demand, free)| free / demand).fold(f64::INFINITY, f64::min);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let whole = (most + 1e-6).floor() as u32;
        whole.max(1)
    }

    /// Fills it: as many tasks of `first` as fit, then always the task with the largest dot product.
    fn fill(mut self, candidates: &[Candidate], first: Option<usize>) -> Packing {
        let mut counts = [0; MOST_CANDIDATES];
        loop {
            let fitting = |index: usize| {
                let own = &candidates[index];
                counts[index] < own.waiting && own.demand.fits(self.free, self.whole)
            };
            // The first of equals.
            let aligned = || {
                let mut best = None;
                for index in (0..candidates.len()).filter(|&index| fitting(index)) {
                    let dot = candidates[index].demand.dot(self.free);
                    if best.is_none_or(|(_, most): (usize, f64)| dot.total_cmp(&most).is_gt()) {
                        best = Some((index, dot));
                    }
                }
                best.map(|(index, _)| index)
            };
            let Some(next) = first.filter(|&first| fitting(first)).or_else(aligned) else { break };
            counts[next] += 1;
            self.free = self.free.minus(candidates[next].demand);
        }
        let tasks: u32 = counts.iter().sum();
        let wasted: f64 = counts.iter().zip(candidates).map(|(&count, own)| f64::from(count) * own.waste).sum();
        let remaining: f64 = counts.iter().zip(candidates).map(|(&count, own)| f64::from(count) * own.remaining).sum();
        let fragment = self.free.node_work() / self.present() + wasted;
        Packing { fragment, remaining: remaining / f64::from(tasks.max(1)), counts }
    }
}

/// The jobs and how many tasks of each to start on a node, none when none fits; and whether tasks were left out because of
/// where their input is.
///
/// Readings. A packing with the dot product alone never finds the one of the paper's example, so each job's tasks are
/// also tried as the first ones, and the packing that leaves the smallest fragment counts for a level (of equals the one
/// with the least remaining work). w of a packing is the mean of its tasks' jobs. Fragments and work leave the network out.
/// A non-local fragment counts as the part that it is of its task.
pub(super) fn pack(state: &State<'_>, node: usize, heads: &mut Heads, away: Away<'_>) -> (Vec<(usize, u32)>, bool) {
    let capacity = state.workload.cluster().nodes[node].capacity;
    let room = Room { free: state.free(node).over(capacity), whole: capacity.over(capacity) };
    let Choice { candidates, discarded } = choose(state, node, heads, room, away);
    if let [only] = candidates[..] {
        return (vec![(only.job, only.waiting.min(room.holds(only.demand)))], discarded);
    }
    let better = |a: &Packing, b: &Packing| {
        less(a.fragment, b.fragment) || (!less(b.fragment, a.fragment) && less(a.remaining, b.remaining))
    };
    let mut levels: Vec<Packing> = Vec::with_capacity(MOST);
    let mut level = 1;
    while !candidates.is_empty() && (levels.is_empty() || level / 2 < candidates.len()) {
        let head = &candidates[..level.min(candidates.len())];
        let firsts = std::iter::once(None).chain((0..head.len()).map(Some));
        let packings = firsts.map(|first| room.fill(head, first));
        levels.extend(packings.reduce(|best, next| if better(&next, &best) { next } else { best }));
        level *= 2;
    }
    let mean = |of: fn(&Packing) -> f64| levels.iter().map(of).sum::<f64>() / levels.len() as f64;
    let (fragment, remaining) = (mean(|own| own.fragment), mean(|own| own.remaining));
    let weight = if remaining > 0.0 { fragment / remaining } else { 0.0 };
    let cost = |own: &Packing| own.fragment + weight * own.remaining;
    let best = levels.iter().reduce(|best, next| if less(cost(next), cost(best)) { next } else { best });
    let counts = best.into_iter().flat_map(|best| &best.counts).zip(&candidates);
    (counts.filter(|(count, _)| **count > 0).map(|(&count, own)| (own.job, count)).collect(), discarded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A node is filled as by asking for each task all that fit, and of equals the first.
    fn plainly(mut room: Room, candidates: &[Candidate], first: usize) -> Vec<u32> {
        let mut counts = vec![0; candidates.len()];
        loop {
            let fitting = |own: &Candidate, count: u32| count < own.waiting && own.demand.fits(room.free, room.whole);
            let all: Vec<usize> =
                (0..candidates.len()).filter(|&index| fitting(&candidates[index], counts[index])).collect();
            let dot = |index: &usize| candidates[*index].demand.dot(room.free);
            let most = all.iter().map(dot).fold(f64::NEG_INFINITY, f64::max);
            let aligned = all.iter().copied().find(|index| dot(index) >= most);
            let Some(next) = all.iter().copied().find(|index| *index == first).or(aligned) else { return counts };
            counts[next] += 1;
            room.free = room.free.minus(candidates[next].demand);
        }
    }

    proptest! {
        #[test]
        fn a_node_is_filled_as_by_asking_for_each_task(
            tasks in proptest::collection::vec((1..9_u32, 1..9_u32, 0..4_u32, 1..6_u32), 1..=MOST_CANDIDATES),
            free in 1..16_u32,
        ) {
            let part = |amount: u32| f64::from(amount) / 16.0;
            let candidate = |(cpu, memory, disk, waiting): (u32, u32, u32, u32)| Candidate {
                job: 0,
                demand: Resources { cpu: part(cpu), memory: part(memory), disk: part(disk), network: 0.0 },
                waiting,
                remaining: 1.0,
                waste: 0.0,
            };
            let candidates: Vec<Candidate> = tasks.into_iter().map(candidate).collect();
            let all = |amount| Resources { cpu: amount, memory: amount, disk: amount, network: amount };
            let room = Room { free: all(part(free)), whole: all(1.0) };
            for first in 0..candidates.len() {
                let found = room.fill(&candidates, Some(first));
                prop_assert_eq!(&found.counts[..candidates.len()], &plainly(room, &candidates, first)[..]);
            }
        }
    }
}
