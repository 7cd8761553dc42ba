//! One application as the controller knows it: its shares, what they were used for, and how the next ones are found. In:
//! use by reports, a decided grant. Out: what to ask for next, and the record of the decision.

use std::collections::BTreeMap;

use gleaner_types::application::{
    Amount, ApplicationSpec, ApplicationStatus, BalanceDecision, Bounds, Reach, ResponseTime, ShareDecision, TierSpec,
};
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::report::{Capability, HostReport, WorkloadSample};
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{BytesPerSec, CoreShare};
use serde::{Deserialize, Serialize};

use crate::balance::application::{Observation, Request};
use crate::balance::request::{GiveBack, Held};
use crate::balance::scaler::MISSED;
use crate::balance::{Resource, Share};
use crate::controller::hosts::Hosts;
use crate::controller::interface::DiskCapacities;
use crate::controller::outputs::Outputs;
use crate::policy::{Controlling, Policy as _};

/// Part of a share by which it has to move for an event to tell of it: not of the host, because on a large one all of a service may
/// be less than a hundredth. Chosen: more than a share is varied by from one interval to the next.
const REPORTED_CHANGE: f64 = 0.04;
/// Factor by which what a host or a disk has may change; beyond it is not believed. Chosen.
const LARGEST_CHANGE: f64 = 1e6;
/// Intervals in a row after which a missed target is told. Chosen.
const MISSED_INTERVALS: u32 = 3;

/// One share of an application: a tier and a resource of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TierShare {
    pub(super) tier: usize,
    pub(super) resource: Resource,
    /// What was last asked for: held when nothing is known, so that a cut by contention does not last. More than 1 where its
    /// host has become too small for it.
    pub(super) requested: Share,
    /// In force: the last grant.
    pub(super) granted: Share,
    /// What a share of 1 is, so that a grant is an amount: as of the last decision. `None` before the first, and in a state of
    /// an older release until the controller resumes.
    #[serde(default)]
    pub(super) whole: Option<Amount>,
    /// What more of it brought by the last request that knew: what is held keeps it in arbitration.
    #[serde(default)]
    pub(super) gain: f64,
    /// Use over the control interval, on the scale of the share, and its seconds.
    pub(super) used: (f64, f64),
    /// Mean use over the last control interval, in the unit of its bounds.
    #[serde(default)]
    pub(super) last_used: Option<f64>,
    /// Time that it waited for the CPU over the control interval, on the scale of use: of a share of CPU.
    #[serde(default)]
    pub(super) waited: f64,
    /// Seconds for which its use has looked like a surge now: of a share of CPU or disk.
    #[serde(default)]
    pub(super) strained_s: f64,
    /// Of them, those for which its tier waited for the CPU as long as it ran: of a share of CPU.
    #[serde(default)]
    pub(super) waiting_s: f64,
}

impl TierShare {
    /// What a share of 1 is, in the unit of bounds.
    pub(super) fn scale(&self) -> f64 {
        self.whole.map_or(1.0, Amount::value).max(1e-9)
    }
}

/// What was done about a surge in the present control interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Surge {
    /// Questions to the source.
    pub(super) asked: u32,
    /// The last of them is not answered yet.
    pub(super) awaits: bool,
    /// When it was asked a tier had waited for the CPU as long as it ran.
    pub(super) waits: bool,
    /// Shares were raised.
    pub(super) relieved: bool,
    /// The source has said something of the response time since the first of them.
    #[serde(default)]
    pub(super) answered: bool,
}

/// A host of an application that cannot be acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Away {
    /// Since when, by the control interval that found it so.
    pub(super) since: Timestamp,
    /// For too long: what the application has there is limited to its ceilings until the host can be acted on again.
    pub(super) released: bool,
}

/// An application and what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Managed {
    pub(super) status: ApplicationStatus,
    pub(super) control: Controlling,
    pub(super) shares: Vec<TierShare>,
    /// References to the last level cache and misses over the control interval.
    pub(super) cache: (f64, f64),
    pub(super) decisions: u32,
    /// Control intervals in a row without a response time.
    #[serde(default)]
    pub(super) unanswered: u32,
    /// Since when its source has had no answer.
    #[serde(default)]
    pub(super) silent_since: Option<Timestamp>,
    /// It is limited to its ceilings until its source has an answer again.
    #[serde(default)]
    pub(super) released: bool,
    /// What was done about a surge in this control interval.
    #[serde(default)]
    pub(super) surge: Surge,
    /// Its hosts that cannot be acted on. They have clocks of their own: a host's outage says nothing of the source.
    #[serde(default)]
    pub(super) hosts_away: BTreeMap<HostId, Away>,
}

impl Managed {
    pub(super) fn new(spec: ApplicationSpec) -> Self {
        let resources = |tier: &TierSpec| {
            let all = [
                (Resource::Cpu, tier.cpu_percent.is_some()),
                (Resource::Memory, tier.memory_mib.is_some()),
                (Resource::Disk, tier.disk_mb_s.is_some()),
            ];
            all.into_iter().filter_map(|(resource, moved)| moved.then_some(resource))
        };
        let shares_of = |(index, tier)| {
            let whole = Share::clamped(1.0);
            resources(tier).map(move |resource| TierShare {
                tier: index,
                resource,
                requested: whole,
                granted: whole,
                whole: None,
                gain: 0.0,
                used: (0.0, 0.0),
                last_used: None,
                waited: 0.0,
                strained_s: 0.0,
                waiting_s: 0.0,
            })
        };
        let shares = spec.tiers.iter().enumerate().flat_map(shares_of).collect();
        Self {
            control: Controlling::new(spec.control),
            status: ApplicationStatus { spec, response: None, missed: 0, decision: None },
            shares,
            cache: (0.0, 0.0),
            decisions: 0,
            unanswered: 0,
            silent_since: None,
            released: false,
            surge: Surge::default(),
            hosts_away: BTreeMap::new(),
        }
    }

    /// Its grants are in force, but for those on hosts that were away for too long: it has been decided about, and is not released.
    pub(super) const fn is_limited(&self) -> bool {
        self.decisions > 0 && !self.released
    }

    /// It was released on this host, which was away for too long.
    pub(super) fn is_released_on(&self, host: &HostId) -> bool {
        self.hosts_away.get(host).is_some_and(|away| away.released)
    }

    /// A share has its ceiling: the application is released, or was on the share's host.
    pub(super) fn is_released(&self, own: &TierShare) -> bool {
        self.released || self.is_released_on(&self.status.spec.tiers[own.tier].host)
    }

    /// A tier whose host cannot be acted on now: it is not known, its agent does not report or only observes, or it is held. One that
    /// is not released yet comes first.
    pub(super) fn away(&self, hosts: &Hosts) -> Option<&TierSpec> {
        let away = self.status.spec.tiers.iter().filter(|tier| !hosts.is_usable(&tier.host));
        away.min_by_key(|tier| self.is_released_on(&tier.host))
    }

    /// Follows which of its hosts cannot be acted on, and releases it on those that could not for too long, which is told. True if
    /// it was released on one that can be acted on again.
    pub(super) fn follow_hosts(&mut self, hosts: &Hosts, outage_s: f64, now: Timestamp, outputs: &mut Outputs) -> bool {
        let mut is_back = false;
        self.hosts_away.retain(|host, away| {
            let is_usable = hosts.is_usable(host);
            is_back |= is_usable && away.released;
            !is_usable
        });
        for tier in self.status.spec.tiers.iter().filter(|tier| !hosts.is_usable(&tier.host)) {
            let away = self.hosts_away.entry(tier.host.clone()).or_insert(Away { since: now, released: false });
            let silent_s = now.seconds_since(away.since);
            // Before the first decision nothing is limited.
            if silent_s < outage_s || away.released || self.decisions == 0 {
                continue;
            }
            away.released = true;
            // One that is released everywhere was told already.
            if !self.released {
                let (application, host) = (self.status.spec.name.clone(), Some(tier.host.clone()));
                outputs.event(Event::ApplicationReleased { application, host, silent_s });
            }
        }
        is_back
    }

    pub(super) fn tiers_on(&self, host: &HostId) -> impl Iterator<Item = &TierSpec> {
        self.status.spec.tiers.iter().filter(move |tier| tier.host == *host)
    }

    /// What it asks for now, by what was seen over the control interval; what is booked begins anew. `whole` is the CPU
    /// of the host that its first tier is on.
    pub(super) fn request(&mut self, observed: &Observation, whole: CoreShare) -> Request {
        let mut request = self.control.request(observed, whole);
        if self.decisions > 0 {
            let held = self.shares.iter().map(|own| Held { requested: own.requested, gain: own.gain });
            request.hold_to(&observed.shares, &held.collect::<Vec<Held>>());
        }
        if request.error.is_some() {
            self.shares.iter_mut().zip(&request.gains).for_each(|(own, gain)| own.gain = *gain);
        }
        self.unanswered = if request.error.is_none() { self.unanswered.saturating_add(1) } else { 0 };
        self.begin_interval();
        request
    }

    /// Takes what shares are parts of now: what was learned and what is asked for keep their meaning. Returns whether a host
    /// has less than before: less than what is granted was in force there since it came back.
    pub(super) fn rescale(&mut self, hosts: &Hosts, disks: &DiskCapacities) -> bool {
        let has_shrunk = self.has_shrunk(hosts);
        let tiers = &self.status.spec.tiers;
        for (index, share) in self.shares.iter_mut().enumerate() {
            let tier = &tiers[share.tier];
            if hosts.get(&tier.host).is_none() {
                continue;
            }
            let Some(present) = whole(tier, share.resource, hosts, disks) else { continue };
            let present = Amount::of(share.resource, present);
            let before = share.whole.map(Amount::value).filter(|before| *before > 0.0);
            let factor = before.unwrap_or(present.value()) / present.value();
            if !(1.0 / LARGEST_CHANGE..=LARGEST_CHANGE).contains(&factor) {
                continue;
            }
            if share.whole.replace(present).is_none_or(|before| before == present) {
                continue;
            }
            self.control.rescale(index, factor);
            // A smaller host has had as much less of everything in force since it came back.
            let granted = if share.resource == Resource::Disk { factor } else { factor.min(1.0) };
            share.granted = Share::clamped(share.granted.part() * granted);
            share.requested = share.requested.rescaled(factor);
        }
        has_shrunk
    }

    /// A host has less CPU or memory than when its shares were granted.
    pub(super) fn has_shrunk(&self, hosts: &Hosts) -> bool {
        let tiers = &self.status.spec.tiers;
        self.shares.iter().any(|share| {
            let present = host_capacity(&tiers[share.tier].host, share.resource, hosts);
            let before = share.whole.map(Amount::value);
            before.zip(present).is_some_and(|(before, present)| {
                let factor = before / Amount::of(share.resource, present).value();
                factor > 1.0 && factor <= LARGEST_CHANGE
            })
        })
    }

    /// What is booked begins anew.
    pub(super) fn begin_interval(&mut self) {
        self.cache = (0.0, 0.0);
        for share in &mut self.shares {
            let (used, seconds) = share.used;
            share.last_used = (seconds > 0.0).then(|| used / seconds);
            (share.used, share.waited) = ((0.0, 0.0), 0.0);
        }
    }

    /// Books what a host's workloads used to the tiers they are.
    pub(super) fn account(&mut self, report: &HostReport) {
        for (index, tier) in self.status.spec.tiers.iter().enumerate().filter(|(_, tier)| tier.host == report.host) {
            let Some(sample) = report.workloads.iter().find(|sample| sample.id == tier.workload) else { continue };
            let interval_s = report.interval_s;
            for share in self.shares.iter_mut().filter(|share| share.tier == index) {
                if let Some(used) = use_of(sample, share.resource).filter(|used| used.is_finite()) {
                    share.used = (share.used.0 + used * interval_s, share.used.1 + interval_s);
                }
                if let (Resource::Cpu, Some(waited)) = (share.resource, sample.cpu_wait.value()) {
                    share.waited += waited.percent() * interval_s;
                }
            }
            if let (Some(references), Some(misses)) = (sample.llc_references.value(), sample.llc_misses.value()) {
                self.cache.0 += references.per_sec() * interval_s;
                self.cache.1 += misses.per_sec() * interval_s;
            }
        }
    }
}

pub(super) fn bounds_of(tier: &TierSpec, resource: Resource) -> Option<Bounds> {
    match resource {
        Resource::Cpu => tier.cpu_percent,
        Resource::Memory => tier.memory_mib,
        Resource::Disk => tier.disk_mb_s,
        Resource::Network => None,
    }
}

/// What a host has of its CPU or memory, in the unit of bounds; nothing is not believed. A disk does not say what it can.
pub(super) fn host_capacity(host: &HostId, resource: Resource, hosts: &Hosts) -> Option<f64> {
    let facts = hosts.facts(host)?;
    let capacity = match resource {
        Resource::Cpu => f64::from(facts.cores) * 100.0,
        Resource::Memory => Amount::Memory(facts.memory).value(),
        Resource::Disk | Resource::Network => return None,
    };
    (capacity > 0.0).then_some(capacity)
}

/// What a share of 1 is, in the unit of bounds. Of a disk whose capacity nobody configured that is all that the tier may
/// have: what others may have there says nothing of it.
fn whole(tier: &TierSpec, resource: Resource, hosts: &Hosts, disks: &DiskCapacities) -> Option<f64> {
    match resource {
        Resource::Disk => {
            let configured = disks.of(&tier.host).map(|rate| Amount::Bandwidth(rate).value());
            configured.or_else(|| bounds_of(tier, resource).map(|bounds| bounds.ceiling))
        }
        Resource::Cpu | Resource::Memory | Resource::Network => host_capacity(&tier.host, resource, hosts),
    }
}

/// The host has a lever for the resource.
pub(super) fn movable(hosts: &Hosts, host: &HostId, resource: Resource) -> bool {
    let capability = match resource {
        Resource::Cpu => Capability::CpuQuota,
        Resource::Memory => Capability::MemoryLimit,
        Resource::Disk => Capability::DiskLimit,
        Resource::Network => return false,
    };
    hosts.facts(host).is_some_and(|facts| facts.offers(capability))
}

/// A resource's use by a workload, in the unit of its bounds.
pub(super) fn use_of(sample: &WorkloadSample, resource: Resource) -> Option<f64> {
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

/// What contention leaves of an application's requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contention {
    /// Part of its contended requests beyond their floors and what is in use that is granted at least.
    pub(super) part: f64,
    /// Part of its floors that is kept: less than 1 where those of a host add up to more than it has.
    pub(super) floors_kept: f64,
}

/// Puts a grant in force and records why.
pub(super) fn decide(
    managed: &mut Managed,
    request: &Request,
    (granted, movable): (&[Share], &[bool]),
    contention: Contention,
    response: ResponseTime,
    now: Timestamp,
    outputs: &mut Outputs,
) {
    let spec = &managed.status.spec;
    let mut news = managed.decisions == 0;
    let mut shares = Vec::with_capacity(managed.shares.len());
    for (index, share) in managed.shares.iter_mut().enumerate() {
        let tier = &spec.tiers[share.tier];
        let present = if managed.decisions == 0 { request.bounds[index].1 } else { share.granted };
        news |= (granted[index].part() - present.part()).abs() > REPORTED_CHANGE * present.part();
        shares.push(ShareDecision {
            tier: tier.name.clone(),
            host: tier.host.clone(),
            resource: share.resource,
            movable: movable[index],
            present: present.part(),
            load: request.loads[index],
            lower: request.bounds[index].0.part(),
            upper: request.bounds[index].1.part(),
            gain: request.gains[index],
            requested: request.shares[index].part(),
            granted: granted[index].part(),
            whole: share.whole,
        });
        // What is held is not forgotten where its host has become too small for it.
        let is_too_much = managed.decisions > 0 && share.requested.part() > 1.0;
        if request.error.is_some() || !is_too_much {
            share.requested = request.shares[index];
        }
        share.granted = granted[index];
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
        part: contention.part,
        shares,
        elsewhere: request.give_back == GiveBack::Given,
        reason: reason(request, contention, &response, spec.target_ms),
        response,
    };
    let application = spec.name.clone();
    if request.error.is_some_and(|error| error > MISSED) {
        managed.status.missed = managed.status.missed.saturating_add(1);
        if managed.status.missed == MISSED_INTERVALS {
            let mean_ms = decision.response.mean_ms().unwrap_or_default();
            outputs.event(Event::TargetMissed { application, mean_ms, target_ms: spec.target_ms });
        }
    } else if request.error.is_some() {
        if managed.status.missed >= MISSED_INTERVALS {
            outputs.event(Event::TargetMet { application });
        }
        managed.status.missed = 0;
    }
    let was_elsewhere = managed.status.decision.as_ref().is_some_and(|before| before.elsewhere);
    if decision.elsewhere && !was_elsewhere {
        let mean_ms = decision.response.mean_ms().unwrap_or_default();
        let (application, target_ms) = (spec.name.clone(), spec.target_ms);
        outputs.event(Event::BottleneckElsewhere { application, mean_ms, target_ms });
    }
    if news {
        outputs.event(Event::SharesMoved { decision: decision.clone() });
    }
    managed.status.decision = Some(decision);
}

fn reason(request: &Request, contention: Contention, response: &ResponseTime, target_ms: f64) -> String {
    let Contention { part, floors_kept } = contention;
    let floors = if floors_kept < 1.0 {
        format!("; the floors on a host of it add up to more than there is: {:.0} % of each kept", floors_kept * 100.0)
    } else {
        String::new()
    };
    let back = match request.give_back {
        GiveBack::None => "",
        GiveBack::Given => "; more CPU and disk changes nothing, its bottleneck is elsewhere: they are given back",
        GiveBack::Restored => "; what was given back is restored",
    };
    if request.error.is_none() {
        let why = match response {
            ResponseTime::Mean { .. } => "what was seen cannot be used".to_owned(),
            ResponseTime::Idle => "nobody asked anything of it".to_owned(),
            ResponseTime::Late { age_s } => format!("its response time is {} old", duration(*age_s)),
            ResponseTime::Missing { reason } => reason.clone(),
            ResponseTime::Absurd { value } => format!("its source says {value}"),
            ResponseTime::Stalled => "none of its requests was answered".to_owned(),
        };
        let grows = request.bounds.iter().any(|(present, most)| most > present);
        let held = if grows { "what is used up grows and all else is held" } else { "every share is held" };
        return format!("{held}: {why}{back}{floors}");
    }
    let mean_ms = response.mean_ms().unwrap_or_default();
    let beyond = mean_ms / target_ms - 1.0;
    let side = if beyond > 0.0 { "above" } else { "below" };
    let reach = match request.reach {
        Some(Reach::TooFarAbove) => "; as far up as one interval allows",
        Some(Reach::TooFarBelow) => "; as far down as one interval allows",
        _ => "",
    };
    let cut = if part < 1.0 {
        format!("; {:.0} % of its contended requests beyond floors and use granted", part * 100.0)
    } else {
        String::new()
    };
    format!(
        "{mean_ms:.1} ms against {target_ms:.1} ms, {:.0} % {side} target{back}{reach}{cut}{floors}",
        beyond.abs() * 100.0
    )
}
