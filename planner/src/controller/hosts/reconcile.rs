//! Brings what each host was commanded in line with what its jobs and applications need, and renews leases. In: the wanted
//! state of one host. Out: commands. Called by the controller after every input but reports and acknowledgements.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_types::command::{Command, Desired, Quota, Target};
use gleaner_types::id::HostId;
use gleaner_types::report::VolunteerKind;
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

use super::Hosts;
use super::host::{Commanded, Host};
use crate::controller::outputs::Outputs;

/// What should be in force on a host.
#[derive(Debug)]
pub(in crate::controller) struct Wanted {
    /// Limits of applications, per workload.
    pub(in crate::controller) limits: BTreeMap<Target, Desired>,
    pub(in crate::controller) volunteer: VolunteerWanted,
}

/// What the volunteer of a host should do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::controller) enum VolunteerWanted {
    /// Run, on so much CPU at most.
    Run(CoreShare),
    /// Go on with whatever it does: the job it works for waits for other hosts after a restart.
    GoOn,
    /// Stop, if it may be running.
    Stop,
}

impl Hosts {
    /// Those whose agents can be commanded.
    pub(in crate::controller) fn connected(&self) -> Vec<HostId> {
        self.iter().filter(|(_, host)| host.connected).map(|(id, _)| id.clone()).collect()
    }

    /// Commands what is wanted of a host and not in force, and renews the leases of the rest.
    pub(in crate::controller) fn reconcile(
        &mut self,
        id: &HostId,
        wanted: Wanted,
        lease: Duration,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let Self { version, known, .. } = self;
        let Some(host) = known.get_mut(id) else { return };
        let mut desired = wanted.limits;
        match wanted.volunteer {
            VolunteerWanted::Run(cap) => {
                desired.insert(Target::Volunteer, Desired::Run { cap: Quota::AtMost(cap) });
            }
            VolunteerWanted::Stop if may_run(host) => _ = desired.insert(Target::Volunteer, Desired::Stop),
            VolunteerWanted::GoOn | VolunteerWanted::Stop => {}
        }
        let over =
            host.commanded.iter().map(|sent| &sent.command.target).filter(|target| !desired.contains_key(target));
        let over: Vec<Target> = over.filter(|target| **target != Target::Volunteer).cloned().collect();
        desired.extend(over.into_iter().map(|target| (target, Desired::Release)));
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        for (target, desired) in desired {
            let command = match host.commanded.iter_mut().find(|sent| sent.command.target == target) {
                Some(sent) if sent.command.desired == desired => {
                    // Leases may have become longer or shorter since; the one that the host has must not run out.
                    let renew_after = Duration::from_millis(sent.command.lease_ms.min(lease_ms).into()) / 3;
                    if now.since(sent.sent) < renew_after {
                        continue;
                    }
                    sent.command.lease_ms = lease_ms;
                    sent.sent = now;
                    sent.command.clone()
                }
                _ => {
                    version.number += 1;
                    let command = Command { target: target.clone(), version: *version, lease_ms, desired };
                    host.commanded.retain(|sent| sent.command.target != target);
                    host.volunteer_known |= target == Target::Volunteer;
                    host.commanded.push(Commanded { command: command.clone(), sent: now, outcome: None });
                    command
                }
            };
            outputs.command(id.clone(), command);
        }
    }
}

/// Its volunteer may be running: it was commanded since the host joined, or nothing is known of it, because it goes on
/// with what it was commanded before the connection broke, or by an aggregator before this one.
fn may_run(host: &Host) -> bool {
    let levers = &host.facts.levers;
    let unknown = !host.volunteer_known && levers.acting && levers.volunteer != VolunteerKind::None;
    unknown || host.commanded(&Target::Volunteer).is_some()
}
