//! What a job on a cluster has and has learned: its volunteers, those that drain, and its models. In: choices, losses,
//! refusals, progress, a second's observation. Out: who works for it. Called by the job; its life is in `cluster/life.rs`,
//! its sizing in `cluster/evaluation.rs`, with what its stages say in `cluster/staged.rs`.

mod evaluation;
mod life;
mod staged;

pub(super) use evaluation::Deciders;

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::HostId;
use gleaner_types::job::{ClusterSpec, EngineProgress, Samples};
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

use crate::controller::hosts::Host;
use crate::controller::interface::seconds;
use crate::io_model::{IoModel, IoPoint};
use crate::productivity::Efficiency;
use crate::sampling::{Observed, Sampler, Second, TRANSIENT_S};
use crate::sizing::policy::Exploration;

/// Seconds gathered into one point of the I/O model. Chosen: shorter ones are noise of single tasks.
const POINT_S: f64 = 10.0;
/// Service of volunteers per loss that is assumed before any was seen, in seconds. Chosen: two hours, about how long a
/// user of the papers' desktops stays.
const PRIOR_SERVICE_S: f64 = 7_200.0;
/// Time that hosts have to come back to a restarted aggregator before they count as lost, in seconds. Chosen: more than
/// an agent's first few attempts take, and less than a command's lease.
pub(super) const RETURN_S: f64 = 10.0;

/// What a job on a cluster has and has learned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cluster {
    /// Volunteers, with their slots.
    volunteers: BTreeMap<HostId, u32>,
    /// Hosts sent away whose last tasks run on, with their slots.
    draining: BTreeMap<HostId, u32>,
    /// Hosts that refused, until when they are not asked again.
    refused: BTreeMap<HostId, Timestamp>,
    /// Volunteers by the last decision: those it has, and those it waits for.
    target: u32,
    io: IoModel,
    exploration: Exploration,
    efficiency: Efficiency,
    #[serde(default)]
    sampler: Sampler,
    /// Toward the next point.
    point: Observed,
    /// Since the last evaluation.
    interval: Observed,
    /// When the workers last changed.
    changed: Timestamp,
    /// Volunteers that are being set up, and since when.
    #[serde(default)]
    set_up_since: BTreeMap<HostId, Timestamp>,
    /// Part of the job done per host, by the last progress.
    done: BTreeMap<HostId, f64>,
    /// Slots the engine was last given.
    engine_slots: BTreeMap<HostId, u32>,
    /// Volunteers lost so far, and the seconds volunteers have served.
    losses: (u32, f64),
    /// Time that its tasks have run, summed over tasks, in seconds.
    #[serde(default)]
    running_s: f64,
    /// Until when volunteers that are not connected may still come back after a restart.
    awaited_until: Timestamp,
    /// Its number in the account of the pool.
    #[serde(default)]
    pub(super) number: Option<u64>,
    /// Volunteers it would have taken at the last decision if nobody else had wanted any.
    #[serde(default)]
    pub(super) wanted: u32,
}

impl Cluster {
    pub(super) fn uses(&self, host: &HostId) -> bool {
        self.volunteers.contains_key(host) || self.draining.contains_key(host)
    }

    pub(super) fn slots_on(&self, host: &HostId) -> Option<u32> {
        self.volunteers.get(host).or_else(|| self.draining.get(host)).copied()
    }

    /// Hosts that work for it or drain.
    pub(super) fn taken(&self) -> impl Iterator<Item = &HostId> {
        self.volunteers.keys().chain(self.draining.keys())
    }

    /// It has fewer volunteers than it may.
    pub(super) fn is_short(&self) -> bool {
        self.volunteers.len() < self.target as usize
    }

    /// How many seconds went into the I/O model since this was last asked, and how many did not.
    pub(super) fn samples(&mut self) -> Samples {
        self.sampler.counted()
    }

    /// How many hosts drain.
    pub(super) fn draining(&self) -> usize {
        self.draining.len()
    }

    /// A host that may come back after a restart.
    pub(super) fn awaits(&self, host: &HostId, now: Timestamp) -> bool {
        now < self.awaited_until && self.uses(host)
    }

    /// Probability that at least one of the present volunteers is lost within so many seconds. Before anything is known
    /// one loss in [`PRIOR_SERVICE_S`] is assumed.
    pub(super) fn loss_within(&self, seconds: f64) -> f64 {
        let (lost, served_s) = self.losses;
        let rate = (f64::from(lost) + 1.0) / (served_s + PRIOR_SERVICE_S);
        1.0 - (-rate * self.volunteers.len() as f64 * seconds.max(0.0)).exp()
    }

    /// Mean length of a task, in seconds, where so many have been done, running ones counted in part. Unlike the mean of finished
    /// tasks it counts those that take long from their beginning.
    pub(super) fn task_s(&self, done: f64) -> f64 {
        if done > 0.0 { self.running_s / done } else { 0.0 }
    }

    /// Nothing runs any more; what was learned stays.
    pub(super) fn stop(&mut self) {
        self.volunteers.clear();
        self.draining.clear();
        self.engine_slots.clear();
        self.target = 0;
        self.wanted = 0;
    }

    /// The aggregator was restarted: hosts run on what they were commanded, and come back one by one.
    pub(super) fn resume(&mut self, now: Timestamp) {
        self.engine_slots.clear();
        self.awaited_until = now.after(seconds(RETURN_S));
    }

    /// A host refuses to run the volunteer.
    pub(super) fn refuses(&mut self, host: &HostId, until: Timestamp) {
        self.volunteers.remove(host);
        self.draining.remove(host);
        self.refused.insert(host.clone(), until);
    }

    /// Takes what the engine says of single hosts: work for the efficiencies, and which ones have drained.
    pub(super) fn progress<'h>(&mut self, progress: &EngineProgress, host: impl Fn(&HostId) -> Option<&'h Host>) {
        self.efficiency.tasks(progress.tasks_total);
        for (id, worker) in &progress.workers {
            let before = self.done.get(id).copied().unwrap_or(0.0);
            let more = worker.done.value() - before;
            if more > 0.0
                && let Some(known) = host(id)
            {
                let class = &known.facts().cpu_model;
                self.efficiency.observe(class, more, CoreShare::ZERO, 0.0);
                match self.done.get_mut(id) {
                    Some(done) => *done = worker.done.value(),
                    None => _ = self.done.insert(id.clone(), worker.done.value()),
                }
            }
        }
        let running = |host: &HostId| progress.workers.get(host).is_some_and(|worker| worker.tasks_running > 0);
        self.draining.retain(|host, _| running(host));
    }

    /// Keeps these volunteers; the others drain.
    fn choose(&mut self, wanted: BTreeMap<HostId, u32>, now: Timestamp) {
        if self.volunteers == wanted {
            return;
        }
        let added = wanted.keys().filter(|host| !self.volunteers.contains_key(*host));
        self.set_up_since.extend(added.map(|host| (host.clone(), now)));
        for (host, slots) in std::mem::take(&mut self.volunteers) {
            if !wanted.contains_key(&host) {
                self.draining.insert(host, slots);
            }
        }
        self.draining.retain(|host, _| !wanted.contains_key(host));
        self.volunteers = wanted;
        self.changed = now;
        self.point = Observed::default();
    }

    /// Sends these away: their last tasks run on.
    fn drain(&mut self, hosts: &BTreeSet<HostId>, now: Timestamp) {
        for id in hosts {
            if let Some(slots) = self.volunteers.remove(id) {
                self.draining.insert(id.clone(), slots);
                self.changed = now;
            }
        }
    }

    /// These are gone, with what ran on them.
    fn lose(&mut self, hosts: &[HostId], now: Timestamp) {
        for id in hosts {
            self.losses.0 += u32::from(self.volunteers.contains_key(id));
            self.volunteers.remove(id);
            self.draining.remove(id);
            self.changed = now;
        }
    }

    /// A volunteer is being set up: of it only the tasks that run there already count.
    fn is_being_set_up(&self, host: &HostId) -> bool {
        self.set_up_since.contains_key(host)
    }

    /// Forgets whose set-up is over.
    fn finish_set_ups(&mut self, set_up_s: f64, now: Timestamp) {
        let Self { set_up_since, volunteers, .. } = self;
        let lasts = |since: Timestamp| now.seconds_since(since) < set_up_s + TRANSIENT_S;
        set_up_since.retain(|host, since| volunteers.contains_key(host) && lasts(*since));
    }

    /// Looks at a second: one that says what the cluster can do goes into the points of the I/O model.
    fn observe(&mut self, second: &Second<'_>, now: Timestamp) {
        let Some(second) = self.sampler.look(second) else { return };
        if self.point.is_unlike(&second) {
            self.point = Observed::default();
        }
        self.interval.add(second);
        self.point.add(second);
        if self.point.seconds < POINT_S {
            return;
        }
        let means = std::mem::take(&mut self.point).means();
        let at_s = now.seconds_since(Timestamp(0));
        self.io.observe(IoPoint { at_s, potential: means.potential, actual: means.actual, disk: means.disk });
    }
}

/// Slots of a dedicated host: one per CPU, unless the job says less.
fn dedicated_slots(host: &Host, spec: &ClusterSpec) -> u32 {
    spec.max_slots_per_host.map_or(host.facts().cores, |most| most.min(host.facts().cores))
}
