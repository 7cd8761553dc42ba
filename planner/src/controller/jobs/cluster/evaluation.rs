//! The size of a job on a cluster, decided once per evaluation interval (RHIC §4). In: what it has learned, what hosts
//! offer, what the account of shared hosts allows. Out: its volunteers from now on, and the decision's record. Called by
//! the owner of the jobs.
//!
//! With several jobs each is sized as if all hosts that they share were its own; how many of those it may have is said by
//! the account of the pool. What it may have and others still use comes to it when they have given it back.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::HostId;
use gleaner_types::job::{JobPhase, PoolShare};
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

use super::dedicated_slots;
use super::staged::with_what_is_left;
use crate::controller::capacity::Capacity;
use crate::controller::hosts::Host;
use crate::controller::interface::{Settings, seconds};
use crate::controller::jobs::job::{Job, WorkerState};
use crate::controller::jobs::others::Others;
use crate::controller::jobs::pool::Pool;
use crate::controller::outputs::Outputs;
use crate::io_model::IoCurve;
use crate::sampling::Observed;
use crate::selection::Offer;
use crate::sizing::Choice;
use crate::sizing::input::{ClusterFacts, DedicatedFacts, HostCpu, PowerFacts, SizingInput};
use crate::sizing::policy::{Situation, SizingPolicy};

/// What decides about a job's size: a policy as if all hosts that jobs share were its own, and the account of those hosts.
pub(in crate::controller::jobs) struct Deciders<'a> {
    pub(in crate::controller::jobs) policy: &'a mut dyn SizingPolicy,
    pub(in crate::controller::jobs) pool: &'a mut Pool,
}

impl Job {
    /// Decides about its size. The next decision is an evaluation interval away. Returns what every job on a cluster may have
    /// from now on, by number, where that has changed.
    pub(in crate::controller::jobs) fn evaluate_cluster(
        &mut self,
        others: Others<'_>,
        capacity: Capacity<'_>,
        settings: &Settings,
        deciders: Deciders<'_>,
        now: Timestamp,
        outputs: &mut Outputs,
    ) -> Option<BTreeMap<u64, PoolShare>> {
        self.next_evaluation = now.after(seconds(settings.evaluation_interval_s));
        self.accrue(now);
        let mut free = self.free_offers(others, capacity);
        if !others.is_alone() {
            free.extend(self.draining_offers(others, capacity));
        }
        let lent = self.lent_offers(others, capacity);
        let all = free.iter().cloned().chain(lent).collect();
        let input = self.cluster_input(all, capacity, settings, now)?;
        let choice = self.choose_size(&input, capacity, deciders.policy, now);
        let wanted = choice.size;
        let number = self.cluster()?.number?;
        let news = deciders.pool.claim(number, self.claim(wanted)?);
        let named = others.named().into_iter().chain(self.named().cloned()).collect();
        deciders.pool.count(capacity.usable_but(&named));
        if others.is_alone() {
            self.status.share = None;
            self.take_size(&input, choice, wanted, capacity, now, outputs);
            return None;
        }
        let shares = deciders.pool.shares(settings.evaluation_interval_s, now);
        let share = shares.get(&number)?;
        let allotted = share.allotted.min(wanted);
        // What others have yet to give back comes soon, so that it is not there now makes nothing late.
        let choice = with_what_is_left(&input.sizing(), choice, allotted);
        self.status.share = Some(share.clone());
        self.give_back_to(allotted as usize, others, capacity, now);
        // Hosts that others have yet to give back are not there now.
        let input = self.cluster_input(free, capacity, settings, now)?;
        let there = u32::try_from(input.offers().len()).unwrap_or(u32::MAX);
        let choice = input.sizing().limited(choice, allotted.min(there));
        self.take_size(&input, choice, allotted, capacity, now, outputs);
        news.then_some(shares)
    }

    /// Takes what it may have from now on. It gives back what is more at once, and takes what is less as it comes.
    pub(in crate::controller::jobs) fn may_have(&mut self, shares: &BTreeMap<u64, PoolShare>) {
        let is_running = self.status.phase == JobPhase::Running;
        let Some(cluster) = self.cluster_mut().filter(|_| is_running) else { return };
        let Some(share) = cluster.number.and_then(|number| shares.get(&number)) else { return };
        cluster.target = share.allotted.min(cluster.wanted);
        self.status.share = (shares.len() > 1).then(|| share.clone());
    }

    /// The size it should have if all hosts it could have were its own.
    fn choose_size(
        &mut self,
        input: &SizingInput,
        capacity: Capacity<'_>,
        policy: &mut dyn SizingPolicy,
        now: Timestamp,
    ) -> Choice {
        let sizing = input.sizing();
        let capacity_of =
            |id: &HostId| capacity.host(id).map_or(CoreShare::ZERO, |host| CoreShare::from_cores(host.facts().cores));
        let job = &self.status.spec.id;
        let WorkerState::Hosts(cluster) = &mut self.workers else { return sizing.decide() };
        let choice = policy.choose(Situation {
            job,
            sizing: sizing.clone(),
            exploration: &mut cluster.exploration,
            observed: cluster.interval.means(),
            is_settling: !cluster.set_up_since.is_empty(),
            capacity_of: &capacity_of,
        });
        let choice = sizing.kept_as_wanted(choice, cluster.wanted);
        let choice = self.with_stages(&sizing, choice, capacity, now);
        if let Some(cluster) = self.cluster_mut() {
            cluster.wanted = choice.size;
        }
        choice
    }

    /// Makes a choice its size. What it may have beyond that it takes as soon as others give it back.
    fn take_size(
        &mut self,
        input: &SizingInput,
        choice: Choice,
        target: u32,
        capacity: Capacity<'_>,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let dedicated = self.dedicated_slots(capacity);
        let WorkerState::Hosts(cluster) = &mut self.workers else { return };
        let chosen = input.offers().get(..choice.size as usize).unwrap_or_default();
        let taken: BTreeMap<HostId, u32> = chosen.iter().map(|offer| (offer.host.clone(), offer.slots)).collect();
        let mut selection = taken.clone();
        selection.extend(dedicated);
        cluster.choose(taken, now);
        cluster.target = target;
        cluster.interval = Observed::default();
        self.adopt(&input.sizing(), choice, selection, now, outputs);
    }

    /// One free host of each class whose efficiency is not known and of which it has none.
    fn probes(&self, free: &[Offer], capacity: Capacity<'_>) -> BTreeSet<HostId> {
        let Some(cluster) = self.cluster() else { return BTreeSet::new() };
        let class = |id: &HostId| capacity.host(id).map(|host| host.facts().cpu_model.as_str());
        let mut tried: BTreeSet<&str> = cluster.volunteers.keys().filter_map(class).collect();
        let mut probes = BTreeSet::new();
        for Offer { host, .. } in free {
            if class(host).is_some_and(|class| !cluster.efficiency.is_known(class) && tried.insert(class)) {
                probes.insert(host.clone());
            }
        }
        probes
    }

    /// What a decision goes by, where these hosts are free beside its own.
    fn cluster_input(
        &self,
        free: Vec<Offer>,
        capacity: Capacity<'_>,
        settings: &Settings,
        now: Timestamp,
    ) -> Option<SizingInput> {
        let (rate, cluster, spec) = (self.rate.value()?, self.cluster()?, self.cluster_spec()?);
        let known = || spec.dedicated.iter().filter_map(|dedicated| capacity.host(&dedicated.host));
        let working = |host: &Host| DedicatedFacts {
            slots: dedicated_slots(host, spec),
            efficiency: cluster.efficiency.of(&host.facts().cpu_model),
        };
        let means = cluster.interval.means();
        let curve = cluster.io.curve(now.seconds_since(Timestamp(0)));
        let interactive = |offers: &[Offer]| -> Vec<HostCpu> {
            let reports = offers.iter().filter_map(|offer| capacity.host(&offer.host)?.report());
            let cpu = reports.map(|report| HostCpu {
                capacity_percent: report.machine.cpu_capacity.percent(),
                foreground_percent: report.machine.cpu_foreground.value().map_or(0.0, |share| share.percent()),
            });
            cpu.collect()
        };
        let power = self.status.spec.power.zip(self.status.energy_wh).map(|(models, spent_wh)| PowerFacts {
            models,
            spent_wh,
            dedicated_cores: known().map(|host| host.facts().cores).max().unwrap_or(1),
            interactive: &interactive,
        });
        let facts = ClusterFacts {
            dedicated: self.dedicated(),
            working: known().filter(|host| host.is_connected()).map(working).collect(),
            used: cluster.volunteers.keys().filter_map(|id| self.offer(id, capacity)).collect(),
            probes: self.probes(&free, capacity),
            free,
            output: self.output(),
            max_volunteers: spec.max_volunteers,
            curve: curve.or_else(|| IoCurve::constant(means.potential, means.actual, means.disk)),
            power,
        };
        Some(SizingInput::of_cluster(self.facts(rate, settings.evaluation_interval_s, now), facts))
    }
}
