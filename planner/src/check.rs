//! Verifies what the controller wants to do, without having planned it: shares no rule-making code with the
//! planner. Runs in tests, in the simulator and, as the last gate, in production.

use gleaner_types::command::{Desired, DiskLimit, Limits, Quota, Target};
use gleaner_types::event::Event;
use gleaner_types::id::{HostId, WorkloadId};
use gleaner_types::job::{Bound, ClusterSpec, Decision, EngineAction, Workers};
use gleaner_types::report::{Capability, VolunteerKind};
use gleaner_types::units::Bytes;

use crate::controller::{Controller, Output};

/// What limits need of a host.
fn asked(limits: &Limits) -> Vec<Capability> {
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
    all.into_iter().filter(|(_, asked)| *asked).map(|(capability, _)| capability).collect()
}

/// Checks one output against what the controller knows.
///
/// # Errors
/// The rule that was broken, with the numbers.
pub fn output(controller: &Controller, output: &Output) -> Result<(), String> {
    match output {
        Output::Command { host, command } => {
            let (facts, connected) =
                controller.host_facts(host).ok_or_else(|| format!("command for unknown host {host}"))?;
            if !connected {
                return Err(format!("command for host {host}, whose agent is not connected"));
            }
            if command.lease_ms == 0 {
                return Err(format!("command for host {host} without a lease"));
            }
            let gives_back = matches!(command.desired, Desired::Stop | Desired::Release);
            if controller.held_until(host).is_some() && !gives_back {
                return Err(format!("command for host {host}, which an operator holds"));
            }
            let levers = &facts.levers;
            match (&command.target, &command.desired) {
                (Target::Volunteer, Desired::Run { cap }) => {
                    if !levers.acting {
                        return Err(format!("host {host} only observes, yet its volunteer should run"));
                    }
                    if levers.volunteer == VolunteerKind::None {
                        return Err(format!("host {host} has no volunteer, yet it should run"));
                    }
                    let capacity_percent = f64::from(facts.cores) * 100.0;
                    match cap {
                        Quota::AtMost(cap) if cap.percent() <= capacity_percent => Ok(()),
                        Quota::AtMost(cap) => {
                            Err(format!("volunteer of host {host} capped at {cap}, over its {capacity_percent} %"))
                        }
                        Quota::Unlimited => Err(format!("volunteer of host {host} would run without a cap")),
                    }
                }
                (Target::Volunteer, Desired::Stop | Desired::Release) | (Target::Workload(_), Desired::Release) => {
                    Ok(())
                }
                (Target::Workload(workload), Desired::Limit(limits)) => {
                    if !levers.acting {
                        return Err(format!("host {host} only observes, yet `{workload}` should be limited"));
                    }
                    within_bounds(controller, host, workload, limits)?;
                    let missing = asked(limits).into_iter().find(|capability| !facts.offers(*capability));
                    missing.map_or(Ok(()), |capability| {
                        Err(format!(
                            "host {host} does not offer {capability:?}, yet `{workload}` should be limited by it"
                        ))
                    })
                }
                (target, desired) => Err(format!("{desired:?} makes no sense for {target:?} of host {host}")),
            }
        }
        Output::Engine { job, action: EngineAction::SetSlots(slots) } => {
            let status = controller.job(job).ok_or_else(|| format!("slots for unknown job {job}"))?;
            let local = match &status.spec.workers {
                Workers::Slots(local) => local,
                Workers::Hosts(cluster) => {
                    return slots.iter().try_for_each(|(host, slots)| cluster_slots(controller, cluster, host, *slots));
                }
            };
            for (host, slots) in slots {
                if *host != local.host {
                    return Err(format!("job {job} may only run on {}, not on {host}", local.host));
                }
                let cores = controller.host_facts(host).map_or(0, |(facts, _)| facts.cores);
                let most = local.max_slots.unwrap_or(cores).max(local.dedicated_slots);
                if *slots > most {
                    return Err(format!("job {job} would get {slots} slots of at most {most}"));
                }
            }
            Ok(())
        }
        Output::Engine { .. } | Output::AskResponseTime { .. } => Ok(()),
        Output::Event(Event::JobSized { decision }) => decision_is_sound(decision),
        Output::Event(_) => Ok(()),
    }
}

/// No limit is below the floor or above the ceiling that an operator gave for the tier.
fn within_bounds(controller: &Controller, host: &HostId, workload: &WorkloadId, limits: &Limits) -> Result<(), String> {
    let tiers = controller.applications().flat_map(|own| &own.spec.tiers);
    let tier = tiers.filter(|tier| tier.host == *host && tier.workload == *workload).last();
    let Some(tier) = tier else {
        return Err(format!("`{workload}` on host {host} is no tier of an application, yet it should be limited"));
    };
    let mebibytes = |bytes: Bytes| bytes.0 as f64 / f64::from(1 << 20);
    let cpu = match limits.quota {
        Quota::Unlimited => None,
        Quota::AtMost(cap) => Some(cap.percent()),
    };
    let disk = [limits.disk.read, limits.disk.write].into_iter().flatten().map(|rate| rate.per_sec() / 1e6);
    let disk = disk.fold(None, |least: Option<f64>, rate| Some(least.map_or(rate, |least| least.min(rate))));
    for (what, value, bounds) in [
        ("CPU", cpu, tier.cpu_percent),
        ("memory", limits.memory.map(mebibytes), tier.memory_mib),
        ("disk", disk, tier.disk_mb_s),
    ] {
        // Rounding of shares to whole units is no breach. What several applications contend for may go below a floor:
        // a host cannot give more than it has.
        let Some(value) = value else { continue };
        let bounds =
            bounds.ok_or_else(|| format!("{what} of `{workload}` should be limited, which nobody asked for"))?;
        if value > bounds.ceiling * 1.01 + 1.0 || value < 0.0 {
            return Err(format!("{what} of `{workload}` would be {value:.1}, at most {:.1}", bounds.ceiling));
        }
    }
    Ok(())
}

/// A cluster may have slots on its dedicated hosts, and on hosts that act and are not held. One that is not connected may
/// be on its way back; what runs there is under the lease its agent was given.
fn cluster_slots(controller: &Controller, cluster: &ClusterSpec, host: &HostId, slots: u32) -> Result<(), String> {
    if cluster.dedicated.iter().any(|dedicated| dedicated.host == *host) {
        return Ok(());
    }
    let (facts, _) = controller.host_facts(host).ok_or_else(|| format!("slots on unknown host {host}"))?;
    if !facts.levers.acting || facts.levers.volunteer == VolunteerKind::None {
        return Err(format!("slots on host {host}, which offers no volunteer"));
    }
    if controller.held_until(host).is_some() {
        return Err(format!("slots on host {host}, which an operator holds"));
    }
    let most = cluster.max_slots_per_host.unwrap_or(facts.cores);
    if slots > most { Err(format!("{slots} slots on host {host}, at most {most}")) } else { Ok(()) }
}

/// A decision's record must hold together: the size is among the candidates, no candidate that meets the goal
/// was passed over for one that does not.
fn decision_is_sound(decision: &Decision) -> Result<(), String> {
    let job = &decision.job;
    let chosen = decision.candidates.iter().find(|candidate| candidate.size == decision.size);
    let chosen = chosen.ok_or_else(|| format!("job {job} got size {}, which was no candidate", decision.size))?;
    // A step to learn from, or a size by decree, need not be the best.
    let free = !matches!(decision.bound, Bound::Exploring | Bound::Policy);
    if free && !chosen.meets_goal && decision.candidates.iter().any(|candidate| candidate.meets_goal) {
        return Err(format!("job {job} got size {}, which misses its goal, though another meets it", decision.size));
    }
    let slots: u32 = decision.selection.values().sum();
    if slots < decision.size {
        return Err(format!("job {job} got size {} but only {slots} slots", decision.size));
    }
    Ok(())
}
