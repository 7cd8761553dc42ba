//! Verifies what the planner wants to do, without having planned it. In: a command, an engine's orders or a decision's
//! record, and a [`View`] of what is known of hosts, jobs and applications. Out: nothing, or the [`Violation`].
//!
//! The planner's controller calls it as the last gate before an output leaves, in production, replay and simulation
//! alike. It depends on `gleaner-types` alone, so that it can share no rule-making code with what it checks.

mod violation;

pub use violation::Violation;

use gleaner_types::application::{Bounds, TierSpec};
use gleaner_types::command::{Command, Desired, DiskLimit, Limits, Quota, Target};
use gleaner_types::id::{HostId, JobId, WorkloadId};
use gleaner_types::job::{Bound, ClusterSpec, Decision, EngineAction, JobSpec, SlotSpec, Workers};
use gleaner_types::report::{Capability, HostFacts, VolunteerKind};
use gleaner_types::stages::StageOpinion;
use gleaner_types::units::{Bytes, BytesPerSec};

/// What the checker may know.
pub trait View {
    /// A host that joined at least once.
    fn host(&self, id: &HostId) -> Option<KnownHost<'_>>;
    /// An operator wants the host left alone; it need not have joined.
    fn is_held(&self, id: &HostId) -> bool;
    /// A job as submitted.
    fn job(&self, id: &JobId) -> Option<&JobSpec>;
    /// The jobs on clusters that have a host which is not dedicated to them: it works for them, or still ends tasks of theirs.
    fn jobs_on(&self, host: &HostId) -> impl Iterator<Item = &JobId>;
    /// The tiers of all applications on a host. Of those of one workload the last counts.
    fn tiers(&self, host: &HostId) -> impl Iterator<Item = &TierSpec>;
}

/// A host as the checker sees it.
#[derive(Debug, Clone, Copy)]
pub struct KnownHost<'a> {
    /// Static facts.
    pub facts: &'a HostFacts,
    /// Its agent is connected.
    pub connected: bool,
}

/// Checks a command to a host.
///
/// # Errors
/// The rule that it breaks.
pub fn command(view: &impl View, host: &HostId, command: &Command) -> Result<(), Violation> {
    let KnownHost { facts, connected } = view.host(host).ok_or_else(|| Violation::UnknownHost(host.clone()))?;
    if !connected {
        return Err(Violation::NotConnected(host.clone()));
    }
    if command.lease_ms == 0 {
        return Err(Violation::NoLease(host.clone()));
    }
    let gives_back = matches!(command.desired, Desired::Stop | Desired::Release);
    if view.is_held(host) && !gives_back {
        return Err(Violation::Held(host.clone()));
    }
    match (&command.target, &command.desired) {
        (Target::Volunteer, Desired::Run { cap }) => volunteer(host, facts, *cap),
        (Target::Volunteer, Desired::Stop | Desired::Release) | (Target::Workload(_), Desired::Release) => Ok(()),
        (Target::Workload(workload), Desired::Limit(limits)) => {
            if !facts.levers.acting {
                return Err(Violation::LimitByObserver { host: host.clone(), workload: workload.clone() });
            }
            if let Some(capability) = needed(limits).into_iter().find(|capability| !facts.offers(*capability)) {
                return Err(Violation::NotOffered { host: host.clone(), workload: workload.clone(), capability });
            }
            within_bounds(view, (host, facts), workload, limits)
        }
        (target, desired) => {
            let (target, desired) = (target.clone(), Box::new(desired.clone()));
            Err(Violation::Senseless { host: host.clone(), target, desired })
        }
    }
}

fn volunteer(host: &HostId, facts: &HostFacts, cap: Quota) -> Result<(), Violation> {
    if !facts.levers.acting {
        return Err(Violation::VolunteerOfObserver(host.clone()));
    }
    if facts.levers.volunteer == VolunteerKind::None {
        return Err(Violation::NoVolunteer(host.clone()));
    }
    let capacity_percent = f64::from(facts.cores) * 100.0;
    match cap {
        Quota::AtMost(cap) if cap.percent() <= capacity_percent => Ok(()),
        Quota::AtMost(cap) => Err(Violation::CapTooHigh { host: host.clone(), cap, capacity_percent }),
        Quota::Unlimited => Err(Violation::NoCap(host.clone())),
    }
}

/// What limits need of a host.
fn needed(limits: &Limits) -> Vec<Capability> {
    let Limits { quota, weight, memory, disk, disk_weight, network } = limits;
    let all = [
        (Capability::CpuQuota, *quota != Quota::Unlimited),
        (Capability::CpuWeight, weight.is_some()),
        (Capability::MemoryLimit, memory.is_some()),
        (Capability::DiskLimit, *disk != DiskLimit::default()),
        (Capability::DiskWeight, disk_weight.is_some()),
        (Capability::NetworkReceive, network.receive.is_some()),
        (Capability::NetworkTransmit, network.transmit.is_some()),
    ];
    all.into_iter().filter(|(_, needed)| *needed).map(|(capability, _)| capability).collect()
}

/// No limit is below the floor or above the ceiling that an operator gave for the tier, and none is on what has no such bounds.
fn within_bounds(
    view: &impl View,
    (host, facts): (&HostId, &HostFacts),
    workload: &WorkloadId,
    limits: &Limits,
) -> Result<(), Violation> {
    let tiers: Vec<&TierSpec> = view.tiers(host).collect();
    let tier = tiers.iter().rfind(|tier| tier.workload == *workload);
    let tier = tier.ok_or_else(|| Violation::NoTier { host: host.clone(), workload: workload.clone() })?;
    // No tier has bounds for these.
    let Limits { quota: _, weight, memory: _, disk, disk_weight, network } = limits;
    let unasked = [
        ("CPU weight", weight.is_some()),
        ("disk weight", disk_weight.is_some()),
        ("disk operations", disk.read_operations.is_some() || disk.write_operations.is_some()),
        ("network", network.receive.is_some() || network.transmit.is_some()),
    ];
    if let Some((resource, _)) = unasked.into_iter().find(|(_, limited)| *limited) {
        return Err(Violation::Unbounded { resource, workload: workload.clone() });
    }
    let cpu = match limits.quota {
        Quota::Unlimited => None,
        Quota::AtMost(cap) => Some(cap.percent()),
    };
    let megabytes = |rate: BytesPerSec| rate.per_sec() / 1e6;
    // A disk does not tell what it can: as much as any tier there may have.
    let disk_whole = tiers.iter().filter_map(|tier| tier.disk_mb_s).map(|bounds| bounds.ceiling).fold(0.0, f64::max);
    let checks: [Checked; 4] = [
        ("CPU", cpu, |tier| tier.cpu_percent, f64::from(facts.cores) * 100.0, 0.0),
        ("memory", limits.memory.map(mebibytes), |tier| tier.memory_mib, mebibytes(facts.memory), 0.5),
        ("disk", limits.disk.read.map(megabytes), |tier| tier.disk_mb_s, disk_whole, 0.0),
        ("disk", limits.disk.write.map(megabytes), |tier| tier.disk_mb_s, disk_whole, 0.0),
    ];
    for (resource, value, bounds_of, whole, rounding) in checks {
        let Some(value) = value else { continue };
        let bounds = bounds_of(tier).ok_or_else(|| Violation::Unbounded { resource, workload: workload.clone() })?;
        // Rounding of shares to whole units is no breach.
        if value > bounds.ceiling * 1.01 + 1.0 {
            let (workload, ceiling) = (workload.clone(), bounds.ceiling);
            return Err(Violation::OutOfBounds { resource, workload, value, ceiling });
        }
        let floors: f64 = tiers.iter().filter_map(|tier| bounds_of(tier)).map(|bounds| bounds.floor.min(whole)).sum();
        // A host cannot give more than it has: floors that do not fit together count in proportion.
        let floor = bounds.floor.min(whole) * if floors > whole { whole / floors } else { 1.0 };
        if value < floor * (1.0 - 1e-6) - rounding {
            return Err(Violation::BelowFloor { resource, workload: workload.clone(), value, floor });
        }
    }
    Ok(())
}

/// A resource's name, its limit, its bounds of a tier and what the host has of it, all in the unit of the bounds; and how
/// far rounding may go below a floor.
type Checked = (&'static str, Option<f64>, fn(&TierSpec) -> Option<Bounds>, f64, f64);

fn mebibytes(bytes: Bytes) -> f64 {
    bytes.0 as f64 / f64::from(1 << 20)
}

/// Checks what an engine is told.
///
/// # Errors
/// The rule that it breaks.
pub fn engine(view: &impl View, job: &JobId, action: &EngineAction) -> Result<(), Violation> {
    let EngineAction::SetSlots(slots) = action else { return Ok(()) };
    let spec = view.job(job).ok_or_else(|| Violation::UnknownJob(job.clone()))?;
    slots.iter().try_for_each(|(host, slots)| match &spec.workers {
        Workers::Slots(local) => local_slots(view, job, local, host, *slots),
        Workers::Hosts(cluster) => cluster_slots(view, (job, cluster), host, *slots),
    })
}

fn local_slots(view: &impl View, job: &JobId, local: &SlotSpec, host: &HostId, slots: u32) -> Result<(), Violation> {
    if *host != local.host {
        return Err(Violation::WrongMachine { job: job.clone(), own: local.host.clone(), host: host.clone() });
    }
    let cores = view.host(host).map_or(0, |known| known.facts.cores);
    let most = local.max_slots.unwrap_or(cores).max(local.dedicated_slots);
    if slots > most { Err(Violation::TooManySlots { job: job.clone(), slots, most }) } else { Ok(()) }
}

/// A cluster may have slots on its dedicated hosts, and on hosts that act and are not held. One that is not connected may
/// be on its way back; what runs there is under the lease its agent was given.
///
/// No host is another job's at the same time: so what jobs share is never more than there is.
fn cluster_slots(
    view: &impl View,
    (job, cluster): (&JobId, &ClusterSpec),
    host: &HostId,
    slots: u32,
) -> Result<(), Violation> {
    if cluster.dedicated.iter().any(|dedicated| dedicated.host == *host) {
        return Ok(());
    }
    let facts = view.host(host).ok_or_else(|| Violation::SlotsOnUnknownHost(host.clone()))?.facts;
    if !facts.levers.acting || facts.levers.volunteer == VolunteerKind::None {
        return Err(Violation::SlotsWithoutVolunteer(host.clone()));
    }
    if view.is_held(host) {
        return Err(Violation::SlotsOnHeldHost(host.clone()));
    }
    if let Some(other) = view.jobs_on(host).find(|other| *other != job).filter(|_| slots > 0) {
        return Err(Violation::HostOfAnother { job: job.clone(), host: host.clone(), other: other.clone() });
    }
    let most = cluster.max_slots_per_host.unwrap_or(facts.cores);
    if slots > most { Err(Violation::TooManySlotsOnHost { host: host.clone(), slots, most }) } else { Ok(()) }
}

/// Checks a decision's record: the size is among the candidates, and no candidate that meets the goal was passed over for
/// one that does not.
///
/// # Errors
/// The rule that it breaks.
pub fn decision(decision: &Decision) -> Result<(), Violation> {
    let (job, size) = (|| decision.job.clone(), decision.size);
    let chosen = decision.candidates.iter().find(|candidate| candidate.size == size);
    let chosen = chosen.ok_or_else(|| Violation::NoCandidate { job: job(), size })?;
    // A step to learn from, a size by decree, what other jobs leave, or what another model wants need not be the best.
    let free = !matches!(decision.bound, Bound::Exploring | Bound::Policy | Bound::Share | Bound::Stages);
    // The model of its stages only ever adds to what the rate takes.
    if let (Bound::Stages, Some(StageOpinion::Predicted(found))) = (decision.bound, &decision.stages)
        && size < found.rate_size
    {
        return Err(Violation::FewerThanByRate { job: job(), size, rate_size: found.rate_size });
    }
    if free && !chosen.meets_goal && decision.candidates.iter().any(|candidate| candidate.meets_goal) {
        return Err(Violation::MissesGoal { job: job(), size });
    }
    let slots: u32 = decision.selection.values().sum();
    if slots < size { Err(Violation::TooFewSlots { job: job(), size, slots }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
