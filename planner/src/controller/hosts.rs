//! The controller's picture of the hosts, and the desired state it keeps them in.

use gleaner_common::clock::Timestamp;
use gleaner_common::command::{Ack, Command, Desired, Outcome, Quota, Target};
use gleaner_common::event::Event;
use gleaner_common::id::HostId;
use gleaner_common::job::JobPhase;
use gleaner_common::report::{Bounded, HostFacts, HostReport, VolunteerKind};
use gleaner_common::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use super::{Controller, Output, seconds};

/// Most hosts held at once; a bound for what an operator's script might do.
const MOST_HOLDS: usize = 100_000;

/// A host that joined at least once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Host {
    pub(super) connected: bool,
    /// No report for too long although connected.
    pub(super) silent: bool,
    pub(super) incarnation: u64,
    pub(super) facts: HostFacts,
    pub(super) reported: Option<Timestamp>,
    pub(super) report: Option<HostReport>,
    /// The command in force per target, at most one each.
    pub(super) told: Vec<Told>,
    /// What its volunteer does is known: it was told to run or to stop since it joined.
    pub(super) settled: bool,
}

/// A command as last sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) command: Command,
    pub(super) sent: Timestamp,
    pub(super) outcome: Option<Outcome>,
}

impl Host {
    /// Residual CPU and memory it has, or why that is not known.
    fn residual(&self) -> Result<(CoreShare, Bytes), String> {
        if !self.connected {
            return Err("its agent is not connected".into());
        }
        if !self.facts.levers.acting {
            return Err("its agent only observes; start it with --act or set act.enabled".into());
        }
        if self.facts.levers.volunteer == VolunteerKind::None {
            return Err("it has no volunteer".into());
        }
        let report = self.report.as_ref().filter(|_| !self.silent).ok_or("it has not reported lately")?;
        let expected = |absent: &dyn std::fmt::Display, what: &str| format!("its residual {what} is {absent}");
        let cpu = match &report.residual.cpu {
            gleaner_common::report::Reading::Value(Bounded { expected, .. }) => *expected,
            gleaner_common::report::Reading::Absent(absence) => return Err(expected(absence, "CPU")),
        };
        let memory = match &report.residual.memory {
            gleaner_common::report::Reading::Value(Bounded { safe, .. }) => *safe,
            gleaner_common::report::Reading::Absent(absence) => return Err(expected(absence, "memory")),
        };
        Ok((cpu, memory))
    }

    /// Its volunteer does nothing, and was told so: what ran in it for an earlier job is over.
    pub(super) fn is_latent(&self) -> bool {
        self.settled && !self.told(&Target::Volunteer).is_some_and(|told| told.command.desired != Desired::Stop)
    }

    pub(super) fn told(&self, target: &Target) -> Option<&Told> {
        self.told.iter().find(|told| told.command.target == *target)
    }
}

impl Controller {
    /// Residual CPU and memory a host can offer a volunteer now, or why it cannot.
    pub(super) fn residual(&self, id: &HostId) -> Result<(CoreShare, Bytes), String> {
        if let Some(until) = self.held_until(id) {
            return Err(format!("an operator holds it until {until}; `gleaner host release {id}` gives it back"));
        }
        self.hosts.get(id).ok_or("it has not joined")?.residual()
    }

    pub(super) fn hold(&mut self, host: HostId, until: Timestamp, now: Timestamp, outputs: &mut Vec<Output>) {
        if until <= now || (self.holds.len() >= MOST_HOLDS && !self.holds.contains_key(&host)) {
            return;
        }
        self.holds.insert(host.clone(), until);
        outputs.push(Output::Event(Event::HostHeld { host, until }));
    }

    pub(super) fn release(&mut self, host: &HostId, reason: &str, outputs: &mut Vec<Output>) {
        if self.holds.remove(host).is_some() {
            outputs.push(Output::Event(Event::HostReleased { host: host.clone(), reason: reason.to_owned() }));
        }
    }

    pub(super) fn end_holds(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        let ended: Vec<HostId> =
            self.holds.iter().filter(|(_, until)| **until <= now).map(|(id, _)| id.clone()).collect();
        for host in ended {
            self.release(&host, "its time is over", outputs);
        }
    }

    pub(super) fn host_joined(&mut self, id: HostId, incarnation: u64, facts: HostFacts, outputs: &mut Vec<Output>) {
        outputs.push(Output::Event(Event::HostJoined {
            host: id.clone(),
            cores: facts.cores,
            acting: facts.levers.acting,
            weaknesses: facts.levers.weaknesses.clone(),
        }));
        // What a host of another incarnation was told is gone with it; the same one may have missed some.
        let (told, settled) = (Vec::new(), false);
        self.hosts.insert(
            id,
            Host { connected: true, silent: false, incarnation, facts, reported: None, report: None, told, settled },
        );
    }

    pub(super) fn host_lost(&mut self, id: &HostId, reason: String, outputs: &mut Vec<Output>) {
        let Some(host) = self.hosts.get_mut(id).filter(|host| host.connected) else { return };
        host.connected = false;
        host.told.clear();
        outputs.push(Output::Event(Event::HostLost { host: id.clone(), reason }));
    }

    pub(super) fn find_silent_hosts(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        let limit_s = self.settings.report_stale_after_s;
        for (id, host) in &mut self.hosts {
            let quiet = host.reported.is_some_and(|at| now.seconds_since(at) > limit_s);
            if host.connected && !host.silent && quiet {
                host.silent = true;
                let reason = format!("no report for {limit_s:.0} s");
                outputs.push(Output::Event(Event::HostLost { host: id.clone(), reason }));
            }
        }
    }

    pub(super) fn report(&mut self, report: HostReport, now: Timestamp, outputs: &mut Vec<Output>) {
        let Some(host) = self.hosts.get_mut(&report.host).filter(|host| host.connected) else { return };
        if host.report.as_ref().is_some_and(|last| last.sequence >= report.sequence) {
            return;
        }
        if host.silent {
            host.silent = false;
            outputs.push(Output::Event(Event::HostJoined {
                host: report.host.clone(),
                cores: host.facts.cores,
                acting: host.facts.levers.acting,
                weaknesses: host.facts.levers.weaknesses.clone(),
            }));
        }
        host.reported = Some(now);
        self.account(&report);
        self.account_cluster(&report);
        if let Some(host) = self.hosts.get_mut(&report.host) {
            host.report = Some(report);
        }
    }

    pub(super) fn acked(&mut self, id: &HostId, ack: Ack, now: Timestamp, outputs: &mut Vec<Output>) {
        let Some(host) = self.hosts.get_mut(id) else { return };
        let Some(told) =
            host.told.iter_mut().find(|t| t.command.target == ack.target && t.command.version == ack.version)
        else {
            return;
        };
        let news = told.outcome.as_ref() != Some(&ack.outcome);
        told.outcome = Some(ack.outcome.clone());
        let stopped = told.command.desired == Desired::Stop;
        match ack.outcome {
            Outcome::Applied { shortfalls, .. } => {
                if news && !shortfalls.is_empty() {
                    let target = ack.target.clone();
                    outputs.push(Output::Event(Event::CommandShortfall { host: id.clone(), target, shortfalls }));
                }
                if stopped {
                    host.told.retain(|told| told.command.target != ack.target);
                }
            }
            Outcome::Refused { reason, detail } => {
                if news {
                    outputs.push(Output::Event(Event::CommandRefused {
                        host: id.clone(),
                        target: ack.target.clone(),
                        version: ack.version,
                        reason,
                        detail: detail.clone(),
                    }));
                }
                if stopped {
                    host.told.retain(|told| told.command.target != ack.target);
                } else {
                    self.refused(id, &detail, now, outputs);
                }
            }
        }
    }

    /// Brings what each host was told in line with what its jobs need, and renews leases.
    pub(super) fn settle_hosts(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        let ids: Vec<HostId> = self.hosts.iter().filter(|(_, h)| h.connected).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let wanted = self.wanted(&id);
            if wanted.is_none() && self.is_awaited(&id, now) {
                continue;
            }
            let Some(host) = self.hosts.get_mut(&id) else { continue };
            let unknown =
                !host.settled && host.facts.levers.acting && host.facts.levers.volunteer != VolunteerKind::None;
            let last = host.told(&Target::Volunteer);
            let desired = match (wanted, last.map(|told| &told.command.desired)) {
                (Some(cap), _) => Desired::Run { cap: Quota::AtMost(cap) },
                (None, Some(_)) => Desired::Stop,
                // It may run what it was told before the connection broke, or by an aggregator before this one.
                (None, None) if unknown => Desired::Stop,
                (None, None) => continue,
            };
            let renew_after = seconds(self.settings.command_lease_s / 3.0);
            match last {
                Some(told) if told.command.desired == desired => {
                    if now.since(told.sent) >= renew_after {
                        let command = told.command.clone();
                        send(host, &id, command, now, outputs);
                    }
                }
                _ => {
                    self.version.number += 1;
                    let lease_ms = seconds(self.settings.command_lease_s).as_millis();
                    let command = Command {
                        target: Target::Volunteer,
                        version: self.version,
                        lease_ms: u32::try_from(lease_ms).unwrap_or(u32::MAX),
                        desired,
                    };
                    host.told.retain(|told| told.command.target != Target::Volunteer);
                    host.settled = true;
                    send(host, &id, command, now, outputs);
                }
            }
        }
    }

    /// What a host's volunteer may use: 100 % for every slot in use or wanted, as much as there is.
    fn wanted(&self, id: &HostId) -> Option<CoreShare> {
        if self.held_until(id).is_some() {
            return None;
        }
        let job = self.holder(id)?;
        if !matches!(job.status.phase, JobPhase::Profiling | JobPhase::Running) {
            return None;
        }
        let slots = match &job.cluster {
            Some(cluster) => cluster.slots_on(id)?,
            None => {
                let in_use = job.status.progress.as_ref().map_or(0, |progress| progress.slots_in_use);
                job.slots().max(in_use)
            }
        };
        let capacity = self.hosts.get(id).map_or(CoreShare::ZERO, |h| CoreShare::from_cores(h.facts.cores));
        Some(CoreShare::from_cores(slots).min(capacity))
    }
}

fn send(host: &mut Host, id: &HostId, command: Command, now: Timestamp, outputs: &mut Vec<Output>) {
    match host.told.iter_mut().find(|told| told.command.target == command.target) {
        Some(told) => told.sent = now,
        None => host.told.push(Told { command: command.clone(), sent: now, outcome: None }),
    }
    outputs.push(Output::Command { host: id.clone(), command });
}
