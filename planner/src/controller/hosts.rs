//! The controller's picture of the hosts, and the desired state it keeps them in.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_types::command::{Ack, Command, Desired, Outcome, Quota, Target};
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::job::JobPhase;
use gleaner_types::report::{Bounded, HostFacts, HostReport, VolunteerKind};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare};
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
    /// When it last reported; before its first report, when it joined.
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
            gleaner_types::report::Reading::Value(Bounded { expected, .. }) => *expected,
            gleaner_types::report::Reading::Absent(absence) => return Err(expected(absence, "CPU")),
        };
        let memory = match &report.residual.memory {
            gleaner_types::report::Reading::Value(Bounded { safe, .. }) => *safe,
            gleaner_types::report::Reading::Absent(absence) => return Err(expected(absence, "memory")),
        };
        Ok((cpu, memory))
    }

    /// What is known of it when its agent is not connected.
    pub(super) fn disconnected(&self) -> Self {
        Self {
            connected: false,
            silent: self.silent,
            incarnation: self.incarnation,
            facts: self.facts.clone(),
            reported: self.reported,
            report: None,
            told: Vec::new(),
            settled: self.settled,
        }
    }

    /// Its volunteer does nothing, and was told so: what ran in it for an earlier job is over.
    pub(super) fn is_latent(&self) -> bool {
        self.settled && !self.told(&Target::Volunteer).is_some_and(|told| told.command.desired != Desired::Stop)
    }

    /// Commands under a lease that were told.
    pub(super) fn leases(&self) -> usize {
        let holds = |told: &&Told| matches!(told.command.desired, Desired::Run { .. } | Desired::Limit { .. });
        self.told.iter().filter(holds).count()
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
        let (cpu, memory) = self.hosts.get(id).ok_or("it has not joined")?.residual()?;
        // Foreground applications come first, even where they do not use what they were granted yet.
        Ok((cpu.min(self.left_by_applications(id)?), memory))
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

    pub(super) fn host_joined(
        &mut self,
        id: HostId,
        incarnation: u64,
        facts: HostFacts,
        now: Timestamp,
        outputs: &mut Vec<Output>,
    ) {
        outputs.push(Output::Event(Event::HostJoined {
            host: id.clone(),
            cores: facts.cores,
            acting: facts.levers.acting,
            weaknesses: facts.levers.weaknesses.clone(),
        }));
        // What a host of another incarnation was told is gone with it; the same one may have missed some.
        let (told, settled) = (Vec::new(), false);
        let reported = Some(now);
        self.hosts.insert(
            id,
            Host { connected: true, silent: false, incarnation, facts, reported, report: None, told, settled },
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
        self.account_applications(&report);
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
        let stopped = matches!(told.command.desired, Desired::Stop | Desired::Release);
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
                } else if ack.target == Target::Volunteer {
                    self.refused(id, &detail, now, outputs);
                }
            }
        }
    }

    /// Brings what each host was told in line with what its jobs and applications need, and renews leases.
    pub(super) fn settle_hosts(&mut self, now: Timestamp, outputs: &mut Vec<Output>) {
        let ids: Vec<HostId> = self.hosts.iter().filter(|(_, h)| h.connected).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let mut wanted = self.wanted_limits(&id);
            match self.wanted(&id) {
                Some(cap) => _ = wanted.insert(Target::Volunteer, Desired::Run { cap: Quota::AtMost(cap) }),
                None if self.is_awaited(&id, now) => {}
                None => self.stop_volunteer(&id, &mut wanted),
            }
            let Some(host) = self.hosts.get(&id) else { continue };
            let over = host.told.iter().map(|told| &told.command.target).filter(|target| !wanted.contains_key(target));
            let over: Vec<Target> = over.filter(|target| **target != Target::Volunteer).cloned().collect();
            wanted.extend(over.into_iter().map(|target| (target, Desired::Release)));
            for (target, desired) in wanted {
                self.settle(&id, target, desired, now, outputs);
            }
        }
    }

    /// A volunteer that nobody wants stops, if it may be running.
    fn stop_volunteer(&self, id: &HostId, wanted: &mut BTreeMap<Target, Desired>) {
        let Some(host) = self.hosts.get(id) else { return };
        let levers = &host.facts.levers;
        // It may run what it was told before the connection broke, or by an aggregator before this one.
        let unknown = !host.settled && levers.acting && levers.volunteer != VolunteerKind::None;
        if unknown || host.told(&Target::Volunteer).is_some() {
            wanted.insert(Target::Volunteer, Desired::Stop);
        }
    }

    /// Sends a command that is new, or whose lease is due to be renewed.
    fn settle(&mut self, id: &HostId, target: Target, desired: Desired, now: Timestamp, outputs: &mut Vec<Output>) {
        let lease_ms = u32::try_from(seconds(self.settings.command_lease_s).as_millis()).unwrap_or(u32::MAX);
        let Some(host) = self.hosts.get_mut(id) else { return };
        match host.told.iter_mut().find(|told| told.command.target == target) {
            Some(told) if told.command.desired == desired => {
                // Leases may have become longer or shorter since; the one that the host has must not run out.
                let renew_after = Duration::from_millis(told.command.lease_ms.min(lease_ms).into()) / 3;
                if now.since(told.sent) >= renew_after {
                    told.command.lease_ms = lease_ms;
                    let command = told.command.clone();
                    send(host, id, command, now, outputs);
                }
            }
            _ => {
                self.version.number += 1;
                let command = Command { target: target.clone(), version: self.version, lease_ms, desired };
                host.told.retain(|told| told.command.target != target);
                host.settled |= target == Target::Volunteer;
                send(host, id, command, now, outputs);
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
        // Where applications contend, what runs on loses its CPU at once, and its host with the next decision.
        Some(CoreShare::from_cores(slots).min(self.left_by_applications(id).unwrap_or(CoreShare::ZERO)))
    }
}

fn send(host: &mut Host, id: &HostId, command: Command, now: Timestamp, outputs: &mut Vec<Output>) {
    match host.told.iter_mut().find(|told| told.command.target == command.target) {
        Some(told) => told.sent = now,
        None => host.told.push(Told { command: command.clone(), sent: now, outcome: None }),
    }
    outputs.push(Output::Command { host: id.clone(), command });
}
