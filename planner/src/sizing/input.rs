//! The one place where the input of a sizing decision is made. In: facts about a job and its workers, from whoever has
//! them: the controller about a job on one machine or on a cluster, or a JSON document (`gleaner plan size`). Out: a
//! [`Sizing`]. Callers supply facts; ranking, margins, padding and power terms are decided here.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::HostId;
use gleaner_types::job::{Goal, PowerModels, Prices};
use gleaner_types::units::{Bytes, CoreShare, Dollars, Fraction};

use super::{Energy, Response, Sizing};
use crate::goal::Margins;
use crate::io_model::IoCurve;
use crate::productivity::{potential, slots_in_memory};
use crate::progress::Tail;
use crate::selection::{Offer, REPLACEMENT_THRESHOLD, arranged, slots_of, with_tasks};

/// A job and how far it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobFacts {
    /// Goal.
    pub goal: Goal,
    /// Prices per worker.
    pub prices: Prices,
    /// Cost so far.
    pub spent: Dollars,
    /// Seconds left to the deadline, if that is the goal.
    pub deadline_in_s: Option<f64>,
    /// Time between two decisions, in seconds.
    pub evaluation_interval_s: f64,
    /// Work left.
    pub remaining: Fraction,
    /// R_proc (RHIC Eq. 5).
    pub rate: f64,
    /// Mean length of a finished task, in seconds; 0 before there is one.
    pub mean_task_s: f64,
    /// Standard deviation of the same, where known.
    pub task_deviation_s: Option<f64>,
    /// Tasks not finished, where known.
    pub unfinished: Option<u32>,
    /// Probability that a volunteer is lost while a task runs.
    pub loss: f64,
    /// Time to set up an added worker, in seconds.
    pub set_up_s: f64,
    /// Volunteers in use.
    pub current: u32,
}

/// The workers of a job on one machine: slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineFacts<'a> {
    /// The machine.
    pub host: &'a HostId,
    /// Its residual CPU.
    pub residual: CoreShare,
    /// Slots that run from the first second to the last.
    pub dedicated: u32,
    /// Most slots, dedicated ones included.
    pub most: u32,
    /// Part of the potential that its slots really used, where seen.
    pub yield_ratio: Option<f64>,
}

impl MachineFacts<'_> {
    /// What the dedicated slots can contribute.
    #[must_use]
    pub fn dedicated_potential(&self) -> CoreShare {
        potential(self.residual, self.dedicated.min(self.most))
    }
}

/// A volunteer that a job on a cluster could have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VolunteerFacts<'a> {
    /// Its host.
    pub host: &'a HostId,
    /// CPUs of the host.
    pub cores: u32,
    /// Its residual CPU.
    pub residual: CoreShare,
    /// Its residual memory; `None` is no limit.
    pub memory: Option<Bytes>,
    /// Memory a slot needs.
    pub memory_per_slot: Bytes,
    /// Most slots on it; `None` is one per CPU.
    pub most_slots: Option<u32>,
    /// Work per unit of productivity (RHIC Eq. 7).
    pub efficiency: f64,
}

impl VolunteerFacts<'_> {
    /// What the host offers, in common units (RHIC Eq. 1 and 8); nothing where not one slot fits.
    #[must_use]
    pub fn offer(&self) -> Option<Offer> {
        let in_memory = self.memory.map_or(u32::MAX, |memory| slots_in_memory(memory, self.memory_per_slot));
        let slots = self.most_slots.unwrap_or(self.cores).min(self.cores).min(in_memory);
        let potential = potential(self.residual, slots) * self.efficiency;
        (slots > 0).then(|| Offer { host: self.host.clone(), slots, potential })
    }
}

/// CPU of an interactive host and what its foreground uses of it, in percent of one core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostCpu {
    /// All it has.
    pub capacity_percent: f64,
    /// Of that, the foreground.
    pub foreground_percent: f64,
}

/// Power of a cluster's hosts, where it is known.
#[derive(Clone, Copy)]
pub struct PowerFacts<'a> {
    /// Models of the hosts.
    pub models: PowerModels,
    /// Energy so far, in watt-hours.
    pub spent_wh: f64,
    /// Most CPUs of a dedicated host.
    pub dedicated_cores: u32,
    /// CPU of the interactive hosts that count, given the offers.
    pub interactive: &'a dyn Fn(&[Offer]) -> Vec<HostCpu>,
}

/// A dedicated host at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DedicatedFacts {
    /// Its slots.
    pub slots: u32,
    /// Work per unit of productivity (RHIC Eq. 7).
    pub efficiency: f64,
}

/// The workers of a job on a cluster: hosts.
pub struct ClusterFacts<'a> {
    /// Dedicated hosts, at work or not.
    pub dedicated: u32,
    /// Those at work.
    pub working: Vec<DedicatedFacts>,
    /// Offers of volunteers in use.
    pub used: Vec<Offer>,
    /// Offers of free hosts.
    pub free: Vec<Offer>,
    /// Free hosts of classes of which nothing is known yet, one of each: they come first among the free, because nothing becomes
    /// known of hosts that rank last.
    pub probes: BTreeSet<HostId>,
    /// Finished tasks whose output hosts have and others still read; empty where there is no such output.
    pub output: BTreeMap<HostId, u32>,
    /// Most volunteers.
    pub max_volunteers: Option<u32>,
    /// The I/O model, as far as there is one.
    pub curve: Option<IoCurve>,
    /// Power, where it is known.
    pub power: Option<PowerFacts<'a>>,
}

/// Everything a sizing decision depends on, owned.
#[derive(Debug, Clone, PartialEq)]
pub struct SizingInput {
    job: JobFacts,
    margins: Margins,
    /// On one machine.
    yield_ratio: Option<f64>,
    curve: Option<IoCurve>,
    energy: Option<Energy>,
    dedicated: u32,
    dedicated_potential: CoreShare,
    offers: Vec<Offer>,
    useful: u32,
    dedicated_slots: u32,
    replaced: u32,
}

impl SizingInput {
    /// Of a job on one machine.
    #[must_use]
    pub fn of_machine(job: JobFacts, machine: &MachineFacts<'_>) -> Self {
        let MachineFacts { host, residual, dedicated, most, yield_ratio } = *machine;
        let useful = job.unfinished.unwrap_or(u32::MAX).saturating_sub(dedicated);
        // Not every slot of a large machine, but those that find a task, those in use, and one more, which shows that it is
        // not the machine that limits the size.
        let needed = dedicated.saturating_add(useful.max(job.current)).saturating_add(1);
        Self {
            margins: Margins::ONE_HOST,
            yield_ratio: Some(yield_ratio.unwrap_or(1.0)),
            curve: None,
            energy: None,
            dedicated,
            dedicated_potential: machine.dedicated_potential(),
            offers: slots_of(host, residual, dedicated.min(most), most.min(needed)),
            useful,
            dedicated_slots: dedicated.min(most),
            replaced: 0,
            job,
        }
    }

    /// Of a job on a cluster.
    #[must_use]
    pub fn of_cluster(job: JobFacts, cluster: ClusterFacts<'_>) -> Self {
        let in_use = cluster.used.len();
        let (mut offers, replaced) = arranged(cluster.used, cluster.free, REPLACEMENT_THRESHOLD, &cluster.output);
        offers[in_use..].sort_by_key(|offer| !cluster.probes.contains(&offer.host));
        offers.truncate(cluster.max_volunteers.map_or(usize::MAX, |most| most as usize));
        let working = cluster.working.iter();
        let dedicated_slots: u32 = working.clone().map(|host| host.slots).sum();
        let left = job.unfinished.unwrap_or(u32::MAX).saturating_sub(dedicated_slots);
        // Too few volunteers cannot be made up for near the deadline; too many cost a minute.
        let is_deadline = matches!(job.goal, Goal::Deadline { .. });
        Self {
            margins: Margins::CLUSTER,
            yield_ratio: None,
            curve: cluster.curve.map(|curve| if is_deadline { curve.cautious() } else { curve }),
            energy: cluster.power.map(|power| energy(power, &offers)),
            dedicated: cluster.dedicated,
            dedicated_potential: working.map(|host| CoreShare::from_cores(host.slots) * host.efficiency).sum(),
            useful: with_tasks(&offers, left),
            dedicated_slots,
            offers,
            replaced,
            job,
        }
    }

    /// Volunteers to choose from, ranked.
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Volunteers in use that gave way to much better free ones.
    #[must_use]
    pub const fn replaced(&self) -> u32 {
        self.replaced
    }

    /// The I/O model that the decision goes by.
    #[must_use]
    pub const fn curve(&self) -> Option<&IoCurve> {
        self.curve.as_ref()
    }

    /// By the curve, by the yield on one machine, or by a cautious assumption: too few volunteers miss a deadline, too many only cost,
    /// so for a deadline all of them count, and for other goals no more than the dedicated hosts have.
    fn response(&self) -> Response<'_> {
        match (&self.curve, self.yield_ratio) {
            (Some(curve), _) => Response::Curve(curve),
            (None, Some(ratio)) => Response::Yield(ratio),
            (None, None) => self.assumed(self.dedicated_potential),
        }
    }

    fn assumed(&self, dedicated: CoreShare) -> Response<'_> {
        let is_deadline = matches!(self.job.goal, Goal::Deadline { .. });
        Response::Assumed { dedicated, fed: (!is_deadline).then_some(dedicated) }
    }

    /// What decides.
    #[must_use]
    pub fn sizing(&self) -> Sizing<'_> {
        let job = &self.job;
        Sizing {
            goal: job.goal,
            deadline_in_s: job.deadline_in_s,
            evaluation_interval_s: job.evaluation_interval_s,
            margins: self.margins,
            prices: job.prices,
            spent: job.spent,
            remaining: job.remaining,
            rate: job.rate,
            response: self.response(),
            energy: self.energy,
            mean_task_s: job.mean_task_s,
            tail: Tail::of(job.goal, job.mean_task_s, job.task_deviation_s, job.loss),
            unfinished: job.unfinished.unwrap_or(u32::MAX),
            dedicated_slots: self.dedicated_slots,
            set_up_s: job.set_up_s,
            dedicated: self.dedicated,
            dedicated_potential: self.dedicated_potential,
            offers: &self.offers,
            current: job.current,
            useful: self.useful,
        }
    }

    /// The same for another number of dedicated hosts, each of which is taken to be like the mean of those there are.
    #[must_use]
    pub fn with_dedicated(&self, hosts: u32) -> Sizing<'_> {
        let times = f64::from(hosts) / f64::from(self.dedicated);
        let dedicated_potential = self.dedicated_potential * times;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let dedicated_slots = (f64::from(self.dedicated_slots) * times) as u32;
        let assumed = || self.assumed(dedicated_potential);
        let response = self.curve.as_ref().map_or_else(assumed, |curve| Response::Stretched(curve, times));
        Sizing { dedicated: hosts, dedicated_potential, dedicated_slots, response, ..self.sizing() }
    }
}

/// Power terms of a job whose models are known.
fn energy(power: PowerFacts<'_>, offers: &[Offer]) -> Energy {
    let hosts = (power.interactive)(offers);
    let mut sum = HostCpu { capacity_percent: 0.0, foreground_percent: 0.0 };
    for host in &hosts {
        sum.capacity_percent += host.capacity_percent;
        sum.foreground_percent += host.foreground_percent;
    }
    let part = if sum.capacity_percent > 0.0 { sum.foreground_percent / sum.capacity_percent } else { 0.0 };
    Energy {
        power: power.models,
        spent_wh: power.spent_wh,
        interactive: (CoreShare::clamped(sum.capacity_percent / hosts.len().max(1) as f64), part.min(1.0)),
        dedicated_cpu: CoreShare::from_cores(power.dedicated_cores),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(goal: Goal, deadline_in_s: Option<f64>) -> JobFacts {
        JobFacts {
            goal,
            prices: Prices::default(),
            spent: Dollars::ZERO,
            deadline_in_s,
            evaluation_interval_s: 60.0,
            remaining: Fraction::clamped(0.5),
            rate: 1e-5,
            mean_task_s: 20.0,
            task_deviation_s: Some(10.0),
            unfinished: Some(7),
            loss: 0.1,
            set_up_s: 0.0,
            current: 0,
        }
    }

    fn offer(name: &str, slots: u32) -> Offer {
        let host = HostId::new(name).unwrap();
        Offer { host, slots, potential: CoreShare::from_cores(slots) }
    }

    #[test]
    fn a_machine_offers_the_slots_beside_its_dedicated_ones() {
        let host = HostId::new("h").unwrap();
        let residual = CoreShare::clamped(250.0);
        let machine = MachineFacts { host: &host, residual, dedicated: 1, most: 4, yield_ratio: Some(0.5) };
        let input = SizingInput::of_machine(job(Goal::Cost { budget: None }, None), &machine);
        let sizing = input.sizing();
        let potentials: Vec<f64> = sizing.offers.iter().map(|offer| offer.potential.percent()).collect();
        assert_eq!(potentials, [100.0, 50.0]);
        assert_eq!((sizing.dedicated_potential, sizing.useful), (CoreShare::from_cores(1), 6));
        assert_eq!(
            (sizing.response, sizing.tail),
            (Response::Yield(0.5), Tail::of(sizing.goal, 20.0, Some(10.0), 0.1))
        );
        assert_eq!((sizing.unfinished, sizing.dedicated_slots), (7, 1));
        // More dedicated slots than fit into the memory that is left.
        let tight = MachineFacts { dedicated: 3, most: 2, ..machine };
        let input = SizingInput::of_machine(job(Goal::Cost { budget: None }, None), &tight);
        assert_eq!(input.sizing().dedicated_potential, CoreShare::from_cores(2));
        assert!(input.offers().is_empty());
    }

    #[test]
    fn a_cluster_is_ranked_cut_and_followed_cautiously_to_a_deadline() {
        let facts = |curve| ClusterFacts {
            dedicated: 2,
            working: vec![DedicatedFacts { slots: 4, efficiency: 0.5 }],
            used: vec![offer("a", 1)],
            free: vec![offer("b", 2), offer("c", 4)],
            probes: BTreeSet::new(),
            output: BTreeMap::new(),
            max_volunteers: Some(2),
            curve,
            power: None,
        };
        let curve = IoCurve::constant(CoreShare::from_cores(4), CoreShare::from_cores(3), Some(Fraction::clamped(0.5)));
        let input = SizingInput::of_cluster(job(Goal::Energy, None), facts(curve.clone()));
        let names: Vec<&str> = input.offers().iter().map(|offer| offer.host.as_str()).collect();
        // The one in use is worse than the best free one by more than the threshold.
        assert_eq!((names, input.replaced()), (vec!["c", "b"], 1));
        let sizing = input.sizing();
        assert_eq!(sizing.dedicated_potential, CoreShare::from_cores(2), "four slots of half the efficiency");
        // Seven tasks, of which four run on dedicated slots: one volunteer of four slots is enough.
        assert_eq!(sizing.useful, 1);
        assert_eq!(input.curve(), curve.as_ref());
        // One of a class of which nothing is known is before better free ones, and after those in use.
        let probed = ClusterFacts { probes: BTreeSet::from([HostId::new("a").unwrap()]), ..facts(curve.clone()) };
        let input = SizingInput::of_cluster(job(Goal::Energy, None), ClusterFacts { max_volunteers: None, ..probed });
        let names: Vec<&str> = input.offers().iter().map(|offer| offer.host.as_str()).collect();
        assert_eq!(names, ["c", "a", "b"]);
        let input = SizingInput::of_cluster(job(Goal::Energy, None), facts(curve.clone()));
        let doubled = input.with_dedicated(4);
        assert_eq!((doubled.dedicated, doubled.dedicated_potential), (4, CoreShare::from_cores(4)));

        let hurried = job(Goal::Deadline { within_s: 100.0 }, Some(50.0));
        let input = SizingInput::of_cluster(hurried, facts(curve.clone()));
        assert_eq!(input.curve(), curve.map(|curve| curve.cautious()).as_ref());
        assert_eq!(input.sizing().tail, Tail::of(hurried.goal, 20.0, Some(10.0), 0.1));
        assert_eq!(input.sizing().dedicated_slots, 4);
    }
}
