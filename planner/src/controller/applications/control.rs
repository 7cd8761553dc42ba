//! A control interval: what was seen of each application, what each asks for, what contention leaves of it. In: use and
//! response times since the last one, and the hosts. Out: shares in force, their records as events, and what the grants
//! reserve of each host. Called by the owner of the applications.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::application::{Amount, Bounds, ResponseTime, TierSpec};
use gleaner_types::event::Event;
use gleaner_types::id::{ApplicationId, HostId};
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Fraction};

use super::limited::{in_force, needed, used_of};
use super::managed::{Contention, Managed, TierShare, bounds_of, decide, host_capacity, movable};
use super::{Applications, Reserved};
use crate::balance::application::{Observation, ObservedShare, Request};
use crate::balance::arbitration::{Demand, arbitrate, capacity};
use crate::balance::scaler::OVERLOAD;
use crate::balance::{Resource, Share};
use crate::controller::hosts::Hosts;
use crate::controller::interface::Settings;
use crate::controller::outputs::Outputs;

impl Applications {
    /// Releases applications to their ceilings whose sources have had no answer for too long. One a tier of which was out of sight
    /// for as long is released on that host alone: elsewhere nothing is taken from it, and what is used up grows, because what
    /// limits it there is of another load. Takes those back that are known again: they go on from what they had. Returns them.
    pub(super) fn release(
        &mut self,
        hosts: &Hosts,
        settings: &Settings,
        now: Timestamp,
        outputs: &mut Outputs,
    ) -> BTreeSet<ApplicationId> {
        let interval_s = settings.control_interval_s;
        let mut taken_back = BTreeSet::new();
        for (name, managed) in &mut self.managed {
            let is_silent = match &managed.status.response {
                Some((at, response)) => {
                    let has_none = matches!(
                        response,
                        ResponseTime::Late { .. } | ResponseTime::Missing { .. } | ResponseTime::Absurd { .. }
                    );
                    has_none || now.seconds_since(*at) > interval_s
                }
                None => true,
            };
            if managed.follow_hosts(hosts, settings.response_outage_s, now, outputs) {
                taken_back.insert(name.clone());
            }
            if !is_silent {
                if managed.released {
                    taken_back.insert(name.clone());
                }
                (managed.silent_since, managed.released) = (None, false);
                continue;
            }
            let silent_s = now.seconds_since(*managed.silent_since.get_or_insert(now));
            if managed.released {
                managed.begin_interval();
            } else if silent_s >= settings.response_outage_s && managed.is_limited() {
                managed.released = true;
                managed.begin_interval();
                if let Some(decision) = &mut managed.status.decision {
                    let silent = duration(silent_s);
                    decision.reason = format!("released to its ceilings: its source has had no answer for {silent}");
                }
                outputs.event(Event::ApplicationReleased { application: name.clone(), host: None, silent_s });
            }
        }
        taken_back
    }

    /// Moves shares. `of_others` are applications whose response time is not of the shares that they have now.
    pub(super) fn balance(
        &mut self,
        of_others: &BTreeSet<ApplicationId>,
        hosts: &Hosts,
        settings: &Settings,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let shrunk = self.rescale(hosts, settings);
        // What a share is a part of is not known before its host has joined. Nothing is asked of one that was away for too long.
        let known = |managed: &Managed| {
            let is_known = |tier: &TierSpec| hosts.get(&tier.host).is_some() || managed.is_released_on(&tier.host);
            managed.status.spec.tiers.iter().all(is_known)
        };
        let mut names: Vec<ApplicationId> = Vec::with_capacity(self.managed.len());
        for (name, managed) in &mut self.managed {
            if known(managed) && !managed.released {
                names.push(name.clone());
            } else {
                managed.unanswered = managed.unanswered.saturating_add(1);
            }
        }
        let mut observed: Vec<(Observation, ResponseTime)> =
            names.iter().map(|name| self.observe(name, hosts, settings.control_interval_s, now)).collect();
        for (name, (observation, _)) in names.iter().zip(&mut observed) {
            // What was measured at the ceilings says nothing of the shares that it goes on from, nor what was measured with less
            // than was granted because a host came back smaller. Just after the relief of a surge those are answered that had
            // waited before: taken for what the larger shares bring, it says that they bring nothing.
            if of_others.contains(name) || shrunk.contains(name) {
                observation.mean_ms = None;
            }
        }
        let mut requests: Vec<Request> = Vec::with_capacity(names.len());
        for (name, (observation, _)) in names.iter().zip(&observed) {
            let first = self.managed.get(name).and_then(|managed| managed.status.spec.tiers.first());
            let facts = first.and_then(|tier| hosts.facts(&tier.host));
            let whole = facts.map_or(CoreShare::ZERO, |facts| CoreShare::from_cores(facts.cores));
            let Some(managed) = self.managed.get_mut(name) else { continue };
            requests.push(managed.request(observation, whole));
        }
        let places: Vec<HostId> = hosts.iter().map(|(id, _)| id.clone()).collect();
        let place = |host: &HostId| places.binary_search(host).unwrap_or(usize::MAX);
        let kept = self.kept(&names, place, hosts);
        // What arbitration has to grant, and what is asked for in all.
        let (mut demands, mut asked_for) = (Vec::new(), Vec::new());
        for (application, ((name, request), (observation, response))) in
            names.iter().zip(&mut requests).zip(&observed).enumerate()
        {
            let Some(managed) = self.managed.get(name) else { continue };
            let asked = request.shares.iter_mut().zip(&request.gains).zip(&observation.shares);
            for (share, ((wanted, gain), seen)) in managed.shares.iter().zip(asked) {
                let (id, resource) = (&managed.status.spec.tiers[share.tier].host, share.resource);
                // It has its ceiling: nothing is asked for there.
                if managed.is_released(share) {
                    continue;
                }
                // What cannot be limited is not below its floor either.
                let floor = if movable(hosts, id, resource) { seen.floor } else { Share::default() };
                // What is held may have been asked for when the host was larger.
                *wanted = Share::clamped(wanted.part().max(floor.part()));
                // Up to that load its CPU suffices.
                let idle_need =
                    share.last_used.filter(|_| resource == Resource::Cpu && *response == ResponseTime::Idle);
                let needed = idle_need.map_or(*wanted, |used| {
                    let part = used / OVERLOAD / share.scale();
                    Share::clamped(part.max(floor.part()).min(wanted.part()))
                });
                asked_for.push(*wanted);
                let (host, in_use) = (place(id), seen.in_use());
                demands.push(Demand { application, host, resource, wanted: needed, floor, in_use, gain: *gain });
            }
        }
        // A disk share is a part of the capacity that is configured, and that of a host's CPU and memory of all it has.
        let is_known = |host: usize, resource: Resource| {
            resource != Resource::Disk || places.get(host).is_some_and(|id| settings.disks.of(id).is_some())
        };
        let mut grants = arbitrate(&demands, |host, resource| {
            let given = is_known(host, resource).then(|| left_beside(&kept, &demands, host, resource));
            capacity(&demands, host, resource, given)
        });
        lend_to_idle(&demands, &asked_for, &kept, &mut grants.shares);
        self.reserved.clear();
        for contended in &grants.contended {
            if let (Resource::Cpu, Some(host)) = (contended.resource, places.get(contended.host)) {
                self.reserved.entry(host.clone()).or_default().contended = true;
            }
        }
        let mut granted = grants.shares.iter();
        for (index, (name, request)) in names.iter().zip(&requests).enumerate() {
            let Some(managed) = self.managed.get_mut(name) else { continue };
            let host = |share: &TierShare| &managed.status.spec.tiers[share.tier].host;
            let moves = |share: &TierShare| movable(hosts, host(share), share.resource);
            let movable: Vec<bool> = managed.shares.iter().map(moves).collect();
            // What is released goes on from what it had when its host is back.
            let mut given = |share: &TierShare| {
                let next = if managed.is_released(share) { None } else { granted.next() };
                next.copied().unwrap_or(share.granted)
            };
            let given: Vec<Share> = managed.shares.iter().map(&mut given).collect();
            let (_, response) = &mut observed[index];
            let floors = grants.contended.iter().filter(|own| {
                let is_here = |share: &TierShare| share.resource == own.resource && place(host(share)) == own.host;
                own.floors_kept < 1.0 && managed.shares.iter().any(is_here)
            });
            let contention = Contention {
                part: grants.parts.get(index).copied().unwrap_or(1.0),
                floors_kept: floors.map(|own| own.floors_kept).fold(1.0, f64::min),
            };
            let response = std::mem::replace(response, ResponseTime::Idle);
            decide(managed, request, (&given, &movable), contention, response, now, outputs);
        }
        self.reserve(hosts);
    }

    /// What is not divided: what released shares need, and what applications keep that are not among the decided ones, because a
    /// host of theirs is not known.
    fn kept(
        &self,
        decided: &[ApplicationId],
        place: impl Fn(&HostId) -> usize,
        hosts: &Hosts,
    ) -> BTreeMap<(usize, Resource), f64> {
        let mut kept: BTreeMap<(usize, Resource), f64> = BTreeMap::new();
        for (name, managed) in &self.managed {
            let is_held = managed.decisions > 0 && !decided.contains(name);
            for own in &managed.shares {
                let part = match managed.is_released(own) {
                    true => needed(managed, own, hosts),
                    false if is_held => own.granted.part(),
                    false => continue,
                };
                let host = place(&managed.status.spec.tiers[own.tier].host);
                *kept.entry((host, own.resource)).or_default() += part;
            }
        }
        kept
    }

    /// What was seen of an application over the control interval, and the response time it goes by.
    fn observe(
        &self,
        name: &ApplicationId,
        hosts: &Hosts,
        interval_s: f64,
        now: Timestamp,
    ) -> (Observation, ResponseTime) {
        let nothing =
            || Observation { target_ms: 1.0, mean_ms: None, unanswered: 0, miss_rate: None, shares: Vec::new() };
        let missing = |reason: String| ResponseTime::Missing { reason };
        let Some(managed) = self.managed.get(name) else { return (nothing(), missing("it is gone".into())) };
        let spec = &managed.status.spec;
        let response = match &managed.status.response {
            None => missing("its source has not said anything yet".into()),
            Some((at, _)) if now.seconds_since(*at) > interval_s => {
                ResponseTime::Late { age_s: now.seconds_since(*at) }
            }
            Some((_, response)) => response.clone(),
        };
        // With a tier out of sight nothing is moved: what it uses and what limits it are not known. Once it is released that is no
        // reason to keep the others at limits that are used up.
        let away = managed.away(hosts);
        let is_away = away.is_some_and(|tier| !managed.is_released_on(&tier.host));
        let response = match away {
            Some(tier) => {
                let outage = managed.hosts_away.get(&tier.host).filter(|away| away.released);
                let since = outage.map_or_else(
                    || "now".to_owned(),
                    |away| format!("for {}, released there to its ceilings", duration(now.seconds_since(away.since))),
                );
                missing(format!("tier {}: host {} cannot be acted on {since}", tier.name, tier.host))
            }
            None => response,
        };
        let shares = managed.shares.iter().map(|own| {
            let tier = &spec.tiers[own.tier];
            let whole = own.scale();
            let bounds = bounds_of(tier, own.resource).unwrap_or(Bounds { floor: 0.0, ceiling: whole });
            let ceiling = Share::clamped(bounds.ceiling / whole);
            // Before the first decision nothing is limited: the share is all it may have.
            let share = if managed.decisions == 0 { ceiling } else { own.granted };
            let used = used_of(own.used, own.waited, share.part() * whole, response.mean_ms().is_none());
            let is_released = managed.is_released(own);
            let (floor, ceiling) = match movable(hosts, &tier.host, own.resource) && !is_released {
                true => (Share::clamped(bounds.floor / whole), ceiling),
                false => (share, share),
            };
            // With a tier out of sight what the others use up may be that one's doing.
            let utilisation = used.filter(|_| !is_away && !is_released).map(|used| Fraction::clamped(used.min(1.0)));
            ObservedShare { resource: own.resource, share, utilisation, floor, ceiling }
        });
        let miss_rate =
            (managed.cache.0 > 0.0).then(|| Fraction::clamped((managed.cache.1 / managed.cache.0).min(1.0)));
        let observation = Observation {
            target_ms: spec.target_ms,
            mean_ms: response.mean_ms(),
            unanswered: managed.unanswered,
            miss_rate,
            shares: shares.collect(),
        };
        (observation, response)
    }

    /// Takes what shares are parts of now, for all that was learned and granted. Returns applications of which a host has less
    /// than before.
    pub(super) fn rescale(&mut self, hosts: &Hosts, settings: &Settings) -> BTreeSet<ApplicationId> {
        self.read_older_grants(hosts);
        let shrunk = self.managed.iter_mut().filter_map(|(name, managed)| {
            let has_shrunk = managed.rescale(hosts, &settings.disks);
            has_shrunk.then(|| name.clone())
        });
        shrunk.collect()
    }

    /// Grants of a release that did not store what a share is a part of: of a host's cores and memory, and of a disk of the
    /// largest ceiling that any application had there.
    pub(super) fn read_older_grants(&mut self, hosts: &Hosts) {
        let mut disks: BTreeMap<HostId, f64> = BTreeMap::new();
        for tier in self.managed.values().flat_map(|managed| &managed.status.spec.tiers) {
            let largest = disks.entry(tier.host.clone()).or_default();
            *largest = tier.disk_mb_s.map_or(*largest, |bounds| bounds.ceiling.max(*largest));
        }
        for managed in self.managed.values_mut().filter(|managed| managed.decisions > 0) {
            let tiers = &managed.status.spec.tiers;
            for share in managed.shares.iter_mut().filter(|share| share.whole.is_none()) {
                let host = &tiers[share.tier].host;
                let whole = match share.resource {
                    Resource::Disk => disks.get(host).copied(),
                    resource => host_capacity(host, resource, hosts),
                };
                share.whole = whole.map(|whole| Amount::of(share.resource, whole));
            }
        }
    }

    /// The least that a tier is limited to, in the unit of its bounds: its floor, or its part of the host where the floors
    /// there add up to more than the host has. Of a disk it is the floor.
    pub(super) fn least(&self, tier: &TierSpec, resource: Resource, hosts: &Hosts) -> f64 {
        let own = bounds_of(tier, resource).map_or(0.0, |bounds| bounds.floor);
        let Some(whole) = host_capacity(&tier.host, resource, hosts) else { return own };
        let floor = |tier: &TierSpec| bounds_of(tier, resource).map_or(0.0, |bounds| bounds.floor.min(whole));
        let floors: f64 = self.managed.values().flat_map(|other| other.tiers_on(&tier.host)).map(floor).sum();
        own.min(whole) * (whole / floors.max(1e-9)).min(1.0)
    }

    /// What the grants leave to volunteers. Of an idle application that is all that it does not use: the agent's guard takes it
    /// back when requests come.
    pub(super) fn reserve(&mut self, hosts: &Hosts) {
        let contended: Vec<HostId> =
            self.reserved.iter().filter(|(_, reserved)| reserved.contended).map(|(host, _)| host.clone()).collect();
        let mut reserved: BTreeMap<HostId, Reserved> = BTreeMap::new();
        for managed in self.managed.values() {
            let is_idle = matches!(&managed.status.response, Some((_, ResponseTime::Idle)));
            for share in managed.shares.iter().filter(|share| share.resource == Resource::Cpu) {
                let tier = &managed.status.spec.tiers[share.tier];
                let amount = in_force(managed, share, hosts);
                let whole = host_capacity(&tier.host, Resource::Cpu, hosts).unwrap_or(amount).max(1e-9);
                let part = (amount / whole).min(1.0);
                let floor = tier.cpu_percent.map_or(0.0, |bounds| bounds.floor);
                let part = share.last_used.filter(|_| is_idle).map_or(part, |used| part.min(used.max(floor) / whole));
                reserved.entry(tier.host.clone()).or_default().cpu += part;
            }
        }
        for host in contended {
            if let Some(own) = reserved.get_mut(&host) {
                own.contended = true;
            }
        }
        self.reserved = reserved;
    }
}

/// What released applications leave of a resource of a host to be divided. It is enough for the floors there, because nobody's is
/// cut for what a released application may use: in that the kernel shares between them.
fn left_beside(kept: &BTreeMap<(usize, Resource), f64>, demands: &[Demand], host: usize, resource: Resource) -> f64 {
    let Some(kept) = kept.get(&(host, resource)) else { return 1.0 };
    let here = demands.iter().filter(|demand| demand.host == host && demand.resource == resource);
    let floors: f64 = here.map(|demand| demand.floor.part()).sum();
    (1.0 - *kept).max(floors.min(1.0))
}

/// Gives idle applications, which contend with what they need only, what the others leave of all that they ask for: their
/// limits stay where there is room. Released ones leave all but what is `kept` for them.
fn lend_to_idle(
    demands: &[Demand],
    asked_for: &[Share],
    kept: &BTreeMap<(usize, Resource), f64>,
    shares: &mut [Share],
) {
    // Of each place: what is granted, and what is asked for beyond the demands.
    let mut places: BTreeMap<(usize, Resource), (f64, f64)> =
        kept.iter().map(|(place, kept)| (*place, (*kept, 0.0))).collect();
    for ((demand, asked), share) in demands.iter().zip(asked_for).zip(&*shares) {
        let (granted, beyond) = places.entry((demand.host, demand.resource)).or_default();
        *granted += share.part();
        *beyond += asked.part() - demand.wanted.part();
    }
    for ((demand, asked), share) in demands.iter().zip(asked_for).zip(shares) {
        let beyond = asked.part() - demand.wanted.part();
        if let (true, Some((granted, all))) = (beyond > 0.0, places.get(&(demand.host, demand.resource))) {
            *share = Share::clamped(share.part() + beyond * ((1.0 - granted) / all).clamp(0.0, 1.0));
        }
    }
}
