//! Applications with response-time targets: what their hosts' reports say of them, what every control interval decides
//! about their shares (BConf, dissertation chapter 4), and what that leaves to volunteers.
//!
//! Balancing and harvesting work on one picture of each host: what is granted fits the host, and a volunteer may have what
//! the grants leave. Where applications contend for the CPU there is no volunteer at all: it is the last to get and the
//! first to give. Foreground beside the applications is not counted: grants are ceilings, not reservations, and what
//! something without a target uses says nothing of what it needs; the kernel shares between them as without Gleaner.

use std::collections::BTreeMap;

use gleaner_types::application::{
    ApplicationSpec, ApplicationStatus, BalanceDecision, Bounds, Reach, ResponseTime, ShareDecision, TierSpec,
};
use gleaner_types::command::{Desired, DiskLimit, Limits, Quota, Target};
use gleaner_types::event::Event;
use gleaner_types::id::{ApplicationId, HostId};
use gleaner_types::report::{Capability, HostReport, WorkloadSample};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use super::hosts::Host;
use super::{Controller, Output, seconds};
use crate::balance::application::{Observation, Request, Seen};
use crate::balance::arbitration::{Demand, arbitrate};
use crate::balance::{Resource, Share};
use crate::policy::{Controlling, Policy as _};

/// How long before a control interval ends its response times are asked for, in seconds. Chosen: longer than a source
/// usually takes.
const ASK_AHEAD_S: f64 = 2.0;
/// Change of a share, in parts of the host, from which an event tells of it. Chosen.
const NEWS: f64 = 0.01;
/// Error from which a target counts as missed, and intervals in a row after which that is told. Chosen.
const MISSED: f64 = 0.1;
const MISSED_INTERVALS: u32 = 3;

/// One share of an application: a tier and a resource of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Own {
    tier: usize,
    resource: Resource,
    /// What was last asked for: held when nothing is known, so that a cut by contention does not last.
    requested: Share,
    /// In force: the last grant.
    granted: Share,
    /// Use over the control interval, on the scale of the share, and its seconds.
    used: (f64, f64),
}

/// An application and what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Managed {
    pub(super) status: ApplicationStatus,
    control: Controlling,
    shares: Vec<Own>,
    /// References to the last level cache and misses over the control interval.
    cache: (f64, f64),
    decisions: u32,
}

/// What all applications together mean for a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Reserved {
    /// CPU granted to applications, as a part of the host.
    pub(super) cpu: f64,
    /// They ask for more CPU than there is.
    pub(super) contended: bool,
}

impl Managed {
    fn new(spec: ApplicationSpec) -> Self {
        let resources = |tier: &TierSpec| {
            let all = [
                (Resource::Cpu, tier.cpu_percent.is_some()),
                (Resource::Memory, tier.memory_mib.is_some()),
                (Resource::Disk, tier.disk_mb_s.is_some()),
            ];
            all.into_iter().filter_map(|(resource, moved)| moved.then_some(resource))
        };
        let own = |(index, tier)| {
            let whole = Share::clamped(1.0);
            resources(tier).map(move |resource| Own {
                tier: index,
                resource,
                requested: whole,
                granted: whole,
                used: (0.0, 0.0),
            })
        };
        let shares = spec.tiers.iter().enumerate().flat_map(own).collect();
        Self {
            control: Controlling::new(spec.control),
            status: ApplicationStatus { spec, response: None, missed: 0, decision: None },
            shares,
            cache: (0.0, 0.0),
            decisions: 0,
        }
    }

    pub(super) fn tier_on(&self, host: &HostId) -> impl Iterator<Item = &TierSpec> {
        self.status.spec.tiers.iter().filter(move |tier| tier.host == *host)
    }
}

fn bounds_of(tier: &TierSpec, resource: Resource) -> Option<Bounds> {
    match resource {
        Resource::Cpu => tier.cpu_percent,
        Resource::Memory => tier.memory_mib,
        Resource::Disk => tier.disk_mb_s,
        Resource::Network => None,
    }
}

/// A resource's use by a workload, in the unit of its bounds.
fn use_of(sample: &WorkloadSample, resource: Resource) -> Option<f64> {
    match resource {
        Resource::Cpu => Some(sample.cpu.value()?.percent()),
        Resource::Memory => Some(sample.memory.value()?.0 as f64 / f64::from(1 << 20)),
        // Reads and writes are limited each: the greater of the two counts.
        Resource::Disk => {
            let rate = |reading: Option<&BytesPerSec>| reading.map(|rate| rate.per_sec() / 1e6);
            match (rate(sample.disk_read.value()), rate(sample.disk_write.value())) {
                (None, None) => None,
                (read, write) => Some(read.unwrap_or(0.0).max(write.unwrap_or(0.0))),
            }
        }
        Resource::Network => None,
    }
}

impl Controller {
    pub(super) fn application_applied(&mut self, spec: ApplicationSpec, outputs: &mut Vec<Output>) {
        let name = spec.name.clone();
        outputs.push(Output::Event(Event::ApplicationApplied { application: name.clone(), target_ms: spec.target_ms }));
        let same = |old: &Managed| old.status.spec.tiers == spec.tiers && old.status.spec.control == spec.control;
        match self.applications.get_mut(&name) {
            // What was learned of the same shares stays.
            Some(old) if same(old) => old.status.spec = spec,
            _ => _ = self.applications.insert(name, Managed::new(spec)),
        }
        self.reserve();
    }

    pub(super) fn application_removed(&mut self, name: &ApplicationId, outputs: &mut Vec<Output>) {
        if self.applications.remove(name).is_some() {
            outputs.push(Output::Event(Event::ApplicationRemoved { application: name.clone() }));
            self.reserve();
        }
    }

    pub(super) fn responded(
        &mut self,
        name: &ApplicationId,
        response: ResponseTime,
        now: Timestamp,
        outputs: &mut Vec<Output>,
    ) {
        let Some(managed) = self.applications.get_mut(name) else { return };
        let kind = |response: &ResponseTime| std::mem::discriminant(response);
        let before = managed.status.response.replace((now, response.clone()));
        if before.is_none_or(|(_, before)| kind(&before) != kind(&response)) {
            outputs.push(Output::Event(Event::ResponseTimeChanged { application: name.clone(), response }));
        }
    }

    /// Books what a host's workloads used to the applications they are tiers of.
    pub(super) fn account_applications(&mut self, report: &HostReport) {
        for managed in self.applications.values_mut() {
            for (index, tier) in managed.status.spec.tiers.iter().enumerate().filter(|(_, t)| t.host == report.host) {
                let Some(sample) = report.workloads.iter().find(|sample| sample.id == tier.workload) else { continue };
                let interval_s = report.interval_s;
                for own in managed.shares.iter_mut().filter(|own| own.tier == index) {
                    if let Some(used) = use_of(sample, own.resource).filter(|used| used.is_finite()) {
                        own.used = (own.used.0 + used * interval_s, own.used.1 + interval_s);
                    }
                }
                if let (Some(references), Some(misses)) = (sample.llc_references.value(), sample.llc_misses.value()) {
                    managed.cache.0 += references.per_sec() * interval_s;
                    managed.cache.1 += misses.per_sec() * interval_s;
                }
            }
        }
    }

    /// Once a control interval: asks for response times, then moves shares.
    pub(super) fn control_applications(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        if self.applications.is_empty() {
            return;
        }
        let interval_s = self.settings.control_interval_s;
        if self.next_control == Timestamp(0) {
            self.next_control = now.after(seconds(interval_s));
        }
        let ahead_s = ASK_AHEAD_S.min(interval_s / 2.0);
        if !self.asked && now.after(seconds(ahead_s)) >= self.next_control {
            self.asked = true;
            let ask = |name: &ApplicationId| Output::AskResponseTime { application: name.clone() };
            outputs.extend(self.applications.keys().map(ask));
        }
        if now < self.next_control {
            return;
        }
        self.asked = false;
        self.next_control = now.after(seconds(interval_s));
        self.balance(now, outputs);
    }

    fn balance(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        // What a share is a part of is not known before its host has joined.
        let known =
            |managed: &Managed| managed.status.spec.tiers.iter().all(|tier| self.hosts.contains_key(&tier.host));
        let known = self.applications.iter().filter(|(_, managed)| known(managed));
        let names: Vec<ApplicationId> = known.map(|(name, _)| name.clone()).collect();
        let mut observed: Vec<(Observation, ResponseTime)> = names.iter().map(|name| self.observe(name, now)).collect();
        let mut requests: Vec<Request> = Vec::with_capacity(names.len());
        for (name, (observation, _)) in names.iter().zip(&observed) {
            let first = self.applications.get(name).and_then(|managed| managed.status.spec.tiers.first());
            let facts = first.and_then(|tier| self.hosts.get(&tier.host)).map(|host| &host.facts);
            let whole = facts.map_or(CoreShare::ZERO, |facts| CoreShare::from_cores(facts.cores));
            let Some(managed) = self.applications.get_mut(name) else { continue };
            let mut request = managed.control.request(observation, whole);
            if request.error.is_none() && managed.decisions > 0 {
                request.shares = managed.shares.iter().map(|own| own.requested).collect();
            }
            requests.push(request);
            managed.cache = (0.0, 0.0);
            managed.shares.iter_mut().for_each(|own| own.used = (0.0, 0.0));
        }
        let hosts: Vec<HostId> = self.hosts.keys().cloned().collect();
        let number = |host: &HostId| hosts.binary_search(host).unwrap_or(usize::MAX);
        let mut demands = Vec::new();
        for (index, (name, request)) in names.iter().zip(&requests).enumerate() {
            let Some(managed) = self.applications.get(name) else { continue };
            for ((own, wanted), gain) in managed.shares.iter().zip(&request.shares).zip(&request.gains) {
                let host = number(&managed.status.spec.tiers[own.tier].host);
                demands.push(Demand { application: index, host, resource: own.resource, wanted: *wanted, gain: *gain });
            }
        }
        let grants = arbitrate(&demands, |_, _| 1.0);
        self.reserved.clear();
        for (host, resource, _) in &grants.contended {
            if let (Resource::Cpu, Some(host)) = (resource, hosts.get(*host)) {
                self.reserved.entry(host.clone()).or_default().contended = true;
            }
        }
        let mut granted = grants.shares.iter();
        for (index, (name, request)) in names.iter().zip(&requests).enumerate() {
            let Some(managed) = self.applications.get(name) else { continue };
            let host = |own: &Own| &managed.status.spec.tiers[own.tier].host;
            let movable: Vec<bool> = managed.shares.iter().map(|own| self.movable(host(own), own.resource)).collect();
            let Some(managed) = self.applications.get_mut(name) else { continue };
            let given: Vec<Share> = granted.by_ref().take(managed.shares.len()).copied().collect();
            let (_, response) = &mut observed[index];
            let part = grants.parts.get(index).copied().unwrap_or(1.0);
            let response = std::mem::replace(response, ResponseTime::Idle);
            decide(managed, request, (&given, &movable), part, response, now, outputs);
        }
        self.reserve();
    }

    /// What was seen of an application over the control interval, and the response time it goes by.
    fn observe(&self, name: &ApplicationId, now: Timestamp) -> (Observation, ResponseTime) {
        let nothing = || Observation { target_ms: 1.0, mean_ms: None, miss_rate: None, shares: Vec::new() };
        let missing = |reason: String| ResponseTime::Missing { reason };
        let Some(managed) = self.applications.get(name) else { return (nothing(), missing("it is gone".into())) };
        let spec = &managed.status.spec;
        let response = match &managed.status.response {
            None => missing("its source has not said anything yet".into()),
            Some((at, _)) if now.seconds_since(*at) > self.settings.control_interval_s => {
                ResponseTime::Late { age_s: now.seconds_since(*at) }
            }
            Some((_, response)) => response.clone(),
        };
        // With a tier out of sight nothing is moved: what it uses and what limits it are not known.
        let away = spec.tiers.iter().find(|tier| self.residual_host(&tier.host).is_none());
        let response = match away {
            Some(tier) => missing(format!("tier {}: host {} cannot be acted on now", tier.name, tier.host)),
            None => response,
        };
        let shares = managed.shares.iter().map(|own| {
            let tier = &spec.tiers[own.tier];
            let whole = self.whole(tier, own.resource);
            let bounds = bounds_of(tier, own.resource).unwrap_or(Bounds { floor: 0.0, ceiling: whole });
            let ceiling = Share::clamped(bounds.ceiling / whole);
            // Before the first decision nothing is limited: the share is all it may have.
            let share = if managed.decisions == 0 { ceiling } else { own.granted };
            let used = (own.used.1 > 0.0).then(|| own.used.0 / own.used.1 / (share.part() * whole).max(1e-9));
            let (floor, ceiling) = match self.movable(&tier.host, own.resource) {
                true => (Share::clamped(bounds.floor / whole), ceiling),
                false => (share, share),
            };
            let utilisation = used.map(|used| Fraction::clamped(used.min(1.0)));
            Seen { resource: own.resource, share, utilisation, floor, ceiling }
        });
        let miss_rate =
            (managed.cache.0 > 0.0).then(|| Fraction::clamped((managed.cache.1 / managed.cache.0).min(1.0)));
        let observation =
            Observation { target_ms: spec.target_ms, mean_ms: response.mean_ms(), miss_rate, shares: shares.collect() };
        (observation, response)
    }

    /// A host that is there, acts and is not held.
    fn residual_host(&self, id: &HostId) -> Option<&Host> {
        let host = self.hosts.get(id).filter(|host| host.connected && !host.silent && host.facts.levers.acting)?;
        (self.held_until(id).is_none() && host.report.is_some()).then_some(host)
    }

    /// The host has a lever for the resource.
    fn movable(&self, host: &HostId, resource: Resource) -> bool {
        let capability = match resource {
            Resource::Cpu => Capability::CpuQuota,
            Resource::Memory => Capability::MemoryLimit,
            Resource::Disk => Capability::DiskLimit,
            Resource::Network => return false,
        };
        self.hosts.get(host).is_some_and(|host| host.facts.offers(capability))
    }

    /// A host's whole capacity of a resource, in the unit of bounds. Of its disk, the most that any application may have
    /// there, because a disk does not tell what it can.
    fn whole(&self, tier: &TierSpec, resource: Resource) -> f64 {
        let facts = self.hosts.get(&tier.host).map(|host| &host.facts);
        let own = bounds_of(tier, resource).map_or(1.0, |bounds| bounds.ceiling);
        let whole = match resource {
            Resource::Cpu => facts.map_or(own, |facts| f64::from(facts.cores) * 100.0),
            Resource::Memory => facts.map_or(own, |facts| facts.memory.0 as f64 / f64::from(1 << 20)),
            Resource::Disk | Resource::Network => {
                let others = self.applications.values().flat_map(|other| other.tier_on(&tier.host));
                others.filter_map(|other| bounds_of(other, resource)).map(|bounds| bounds.ceiling).fold(own, f64::max)
            }
        };
        whole.max(1e-9)
    }

    /// What the grants leave to volunteers.
    fn reserve(&mut self) {
        let contended: Vec<HostId> =
            self.reserved.iter().filter(|(_, reserved)| reserved.contended).map(|(host, _)| host.clone()).collect();
        let mut reserved: BTreeMap<HostId, Reserved> = BTreeMap::new();
        for managed in self.applications.values() {
            for own in managed.shares.iter().filter(|own| own.resource == Resource::Cpu) {
                let tier = &managed.status.spec.tiers[own.tier];
                // What has not been decided about yet may use all it may have.
                let share = match managed.decisions {
                    0 => tier.cpu_percent.map_or(0.0, |bounds| bounds.ceiling / self.whole(tier, Resource::Cpu)),
                    _ => own.granted.part(),
                };
                reserved.entry(tier.host.clone()).or_default().cpu += share;
            }
        }
        for host in contended {
            if let Some(own) = reserved.get_mut(&host) {
                own.contended = true;
            }
        }
        self.reserved = reserved;
    }

    /// CPU that a volunteer may have at most, or why it may have none.
    pub(super) fn left_by_applications(&self, id: &HostId) -> Result<CoreShare, String> {
        let whole = self.hosts.get(id).map_or(CoreShare::ZERO, |host| CoreShare::from_cores(host.facts.cores));
        match self.reserved.get(id) {
            Some(reserved) if reserved.contended => Err("applications contend for its CPU".into()),
            Some(reserved) => Ok(whole * (1.0 - reserved.cpu).max(0.0)),
            None => Ok(whole),
        }
    }

    /// The limits that applications have on a host's workloads.
    pub(super) fn wanted_limits(&self, id: &HostId) -> BTreeMap<Target, Desired> {
        let mut wanted = BTreeMap::new();
        if self.residual_host(id).is_none() {
            return wanted;
        }
        for managed in self.applications.values().filter(|managed| managed.decisions > 0) {
            for own in &managed.shares {
                let tier = &managed.status.spec.tiers[own.tier];
                if tier.host != *id || !self.movable(id, own.resource) {
                    continue;
                }
                // A host may come back as a larger one.
                let ceiling = bounds_of(tier, own.resource).map_or(f64::MAX, |bounds| bounds.ceiling);
                let amount = (own.granted.part() * self.whole(tier, own.resource)).min(ceiling);
                let target = Target::Workload(tier.workload.clone());
                let desired = wanted.entry(target).or_insert(Desired::Limit(Limits::NONE));
                let Desired::Limit(limits) = desired else { continue };
                match own.resource {
                    Resource::Cpu => limits.quota = Quota::AtMost(CoreShare::clamped(amount)),
                    Resource::Memory => limits.memory = Some(mebibytes(amount)),
                    Resource::Disk => {
                        let rate = Some(BytesPerSec::clamped(amount * 1e6));
                        limits.disk = DiskLimit { read: rate, write: rate, ..DiskLimit::default() };
                    }
                    Resource::Network => {}
                }
            }
        }
        wanted
    }
}

fn mebibytes(amount: f64) -> Bytes {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    Bytes::from_mib(amount.round() as u64)
}

/// Puts a grant in force and records why.
fn decide(
    managed: &mut Managed,
    request: &Request,
    (granted, movable): (&[Share], &[bool]),
    part: f64,
    response: ResponseTime,
    now: Timestamp,
    outputs: &mut Vec<Output>,
) {
    let spec = &managed.status.spec;
    let mut news = managed.decisions == 0;
    let mut shares = Vec::with_capacity(managed.shares.len());
    for (index, own) in managed.shares.iter_mut().enumerate() {
        let tier = &spec.tiers[own.tier];
        let present = if managed.decisions == 0 { request.bounds[index].1 } else { own.granted };
        news |= (granted[index].part() - present.part()).abs() >= NEWS;
        shares.push(ShareDecision {
            tier: tier.name.clone(),
            host: tier.host.clone(),
            resource: own.resource,
            movable: movable[index],
            present: present.part(),
            load: request.loads[index],
            lower: request.bounds[index].0.part(),
            upper: request.bounds[index].1.part(),
            gain: request.gains[index],
            requested: request.shares[index].part(),
            granted: granted[index].part(),
        });
        own.requested = request.shares[index];
        own.granted = granted[index];
    }
    managed.decisions += 1;
    let decision = BalanceDecision {
        application: spec.name.clone(),
        number: managed.decisions,
        at: now,
        target_ms: spec.target_ms,
        error: request.error,
        predicted: request.predicted,
        reach: request.reach,
        model: request.model.as_ref().map(|model| model.kind),
        rows: request.model.as_ref().map_or(0, |model| u32::try_from(model.rows).unwrap_or(u32::MAX)),
        neighbour: request.model.as_ref().is_some_and(|model| model.neighbour),
        part,
        shares,
        reason: reason(request, part, &response, spec.target_ms),
        response,
    };
    let application = spec.name.clone();
    if request.error.is_some_and(|error| error > MISSED) {
        managed.status.missed = managed.status.missed.saturating_add(1);
        if managed.status.missed == MISSED_INTERVALS {
            let mean_ms = decision.response.mean_ms().unwrap_or_default();
            outputs.push(Output::Event(Event::TargetMissed { application, mean_ms, target_ms: spec.target_ms }));
        }
    } else if request.error.is_some() {
        if managed.status.missed >= MISSED_INTERVALS {
            outputs.push(Output::Event(Event::TargetMet { application }));
        }
        managed.status.missed = 0;
    }
    if news {
        outputs.push(Output::Event(Event::SharesMoved { decision: decision.clone() }));
    }
    managed.status.decision = Some(decision);
}

fn reason(request: &Request, part: f64, response: &ResponseTime, target_ms: f64) -> String {
    let Some(error) = request.error else {
        let why = match response {
            ResponseTime::Mean { .. } => "what was seen cannot be used".to_owned(),
            ResponseTime::Idle => "nobody asked anything of it".to_owned(),
            ResponseTime::Late { age_s } => format!("its response time is {age_s:.0} s old"),
            ResponseTime::Missing { reason } => reason.clone(),
            ResponseTime::Absurd { value } => format!("its source says {value}"),
        };
        return format!("every share is held: {why}");
    };
    let mean_ms = response.mean_ms().unwrap_or_default();
    let slower = if error > 0.0 { "slower" } else { "faster" };
    let reach = match request.reach {
        Some(Reach::TooFarAbove) => "; as far up as one interval allows",
        Some(Reach::TooFarBelow) => "; as far down as one interval allows",
        _ => "",
    };
    let cut =
        if part < 1.0 { format!("; {:.0} % of its contended requests granted", part * 100.0) } else { String::new() };
    format!("{mean_ms:.1} ms against {target_ms:.1} ms, {:.0} % {slower}{reach}{cut}", error.abs() * 100.0)
}
