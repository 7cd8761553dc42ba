//! The owner of hosts: who is connected, what each last reported, which an operator holds, and what each was commanded.
//!
//! In: joins, losses, reports, acknowledgements, holds; from jobs and applications, the state in which each host should be.
//! Out: what a host could give a volunteer, and the commands that bring it into that state and keep it there. Called by the
//! controller; jobs and applications read it.

mod host;
mod promises;
mod reconcile;

pub(super) use host::Host;
pub(super) use reconcile::{VolunteerWanted, Wanted};

use std::collections::BTreeMap;

use gleaner_types::command::{Ack, Command, Desired, Outcome, Target, Version};
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::report::{HostFacts, HostReport};
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use super::held::HeldUntil;
use super::interface::FleetHold;
use super::outputs::Outputs;
use super::unusable::Unusable;

/// Most hosts held at once; a bound for what an operator's script might do.
const MOST_HOLDS: usize = 100_000;

/// All hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Hosts {
    /// Of the last command.
    version: Version,
    known: BTreeMap<HostId, Host>,
    /// Hosts an operator wants left alone, until when; `None` is until they are released. A host may be held before it joins.
    holds: BTreeMap<HostId, Option<Timestamp>>,
    /// An operator wants all left alone, also those that join later.
    all_held: Option<FleetHold>,
}

impl Hosts {
    /// None. Commands are of this epoch.
    pub(super) const fn new(epoch: u64) -> Self {
        Self { version: Version { epoch, number: 0 }, known: BTreeMap::new(), holds: BTreeMap::new(), all_held: None }
    }

    /// The epoch of commands.
    pub(super) const fn epoch(&self) -> u64 {
        self.version.epoch
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) {
        self.version = Version { epoch, number: 0 };
    }

    /// What hosts do not say again when they join another aggregator.
    pub(super) fn for_standby(&self) -> Self {
        let known = self.known.iter().map(|(id, host)| (id.clone(), host.disconnected())).collect();
        Self { version: self.version, known, holds: self.holds.clone(), all_held: self.all_held.clone() }
    }

    pub(super) fn get(&self, id: &HostId) -> Option<&Host> {
        self.known.get(id)
    }

    /// All that joined at least once, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&HostId, &Host)> {
        self.known.iter()
    }

    pub(super) fn facts(&self, id: &HostId) -> Option<&HostFacts> {
        self.known.get(id).map(Host::facts)
    }

    /// Until when an operator holds it, by its name or with all others.
    pub(super) fn held_until(&self, id: &HostId) -> Option<HeldUntil> {
        self.own_hold(id).max(self.all_held.as_ref().map(|hold| hold.until.into()))
    }

    /// Until when an operator holds it by its name.
    pub(super) fn own_hold(&self, id: &HostId) -> Option<HeldUntil> {
        self.holds.get(id).map(|until| (*until).into())
    }

    /// Those that are held by name.
    pub(super) fn held_hosts(&self) -> impl Iterator<Item = &HostId> {
        self.holds.keys()
    }

    /// The hold of all hosts.
    pub(super) const fn all_held(&self) -> Option<&FleetHold> {
        self.all_held.as_ref()
    }

    pub(super) fn is_held(&self, id: &HostId) -> bool {
        self.all_held.is_some() || self.holds.contains_key(id)
    }

    /// A host that is there, acts and is not held.
    pub(super) fn is_usable(&self, id: &HostId) -> bool {
        let host = self.known.get(id).filter(|host| host.facts.levers.acting && host.fresh_report().is_some());
        host.is_some() && !self.is_held(id)
    }

    /// Residual CPU and memory of a host, or why it offers none.
    pub(super) fn residual(&self, id: &HostId) -> Result<(CoreShare, Bytes), Unusable> {
        if let Some(until) = self.own_hold(id) {
            return Err(Unusable::Held { host: id.clone(), until });
        }
        if let Some(FleetHold { by, until, .. }) = &self.all_held {
            return Err(Unusable::AllHeld { by: by.clone(), until: (*until).into() });
        }
        self.known.get(id).ok_or(Unusable::NotJoined)?.residual()
    }

    /// Its agent is not connected, or has not reported since it connected; nobody holds it.
    pub(super) fn is_away(&self, id: &HostId) -> bool {
        self.known.get(id).is_none_or(|host| !host.is_present()) && !self.is_held(id)
    }

    pub(super) fn hold(&mut self, host: HostId, until: Option<Timestamp>, now: Timestamp, outputs: &mut Outputs) {
        if is_over(until, now) || (self.holds.len() >= MOST_HOLDS && !self.holds.contains_key(&host)) {
            return;
        }
        self.holds.insert(host.clone(), until);
        outputs.event(Event::HostHeld { host, until });
    }

    pub(super) fn release(&mut self, host: &HostId, reason: &str, outputs: &mut Outputs) {
        if self.holds.remove(host).is_some() {
            outputs.event(Event::HostReleased { host: host.clone(), reason: reason.to_owned() });
        }
    }

    pub(super) fn hold_all(&mut self, hold: FleetHold, now: Timestamp, outputs: &mut Outputs) {
        if is_over(hold.until, now) {
            return;
        }
        outputs.event(Event::AllHostsHeld { by: hold.by.clone(), until: hold.until });
        self.all_held = Some(hold);
    }

    pub(super) fn release_all(&mut self, reason: String, outputs: &mut Outputs) {
        if self.all_held.take().is_some() {
            outputs.event(Event::AllHostsReleased { reason });
        }
    }

    pub(super) fn end_holds(&mut self, now: Timestamp, outputs: &mut Outputs) {
        let ended: Vec<HostId> =
            self.holds.iter().filter(|(_, until)| is_over(**until, now)).map(|(id, _)| id.clone()).collect();
        for host in ended {
            self.release(&host, "its time is over", outputs);
        }
        if self.all_held.as_ref().is_some_and(|hold| is_over(hold.until, now)) {
            self.release_all("its time is over".to_owned(), outputs);
        }
    }

    /// Nothing is known of a host any more, until it joins again. One that is connected stays.
    pub(super) fn remove(&mut self, id: HostId, by: String, outputs: &mut Outputs) {
        if self.known.get(&id).is_some_and(|host| !host.connected) {
            self.known.remove(&id);
            self.holds.remove(&id);
            outputs.event(Event::HostRemoved { host: id, by });
        }
    }

    pub(super) fn joined(
        &mut self,
        id: HostId,
        incarnation: u64,
        facts: HostFacts,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        outputs.event(joined(&id, &facts));
        // What its promises did is of the last day, whoever runs.
        let promises = self.known.get(&id).map(|before| before.promises).unwrap_or_default();
        let host = Host {
            connected: true,
            left: false,
            silent: false,
            incarnation,
            facts,
            reported: Some(now),
            report: None,
            // What a host of another incarnation was commanded is gone with it; the same one may have missed some.
            commanded: Vec::new(),
            volunteer_known: false,
            promises,
        };
        self.known.insert(id, host);
    }

    /// The connection to its agent is gone; with `left` because the agent was stopped.
    pub(super) fn lost(&mut self, id: &HostId, left: bool, reason: String, outputs: &mut Outputs) {
        let Some(host) = self.known.get_mut(id).filter(|host| host.connected) else { return };
        let was_silent = host.silent;
        (host.connected, host.left, host.silent) = (false, left, false);
        host.commanded.clear();
        if was_silent && !left {
            // That it is lost was said when it fell silent.
            return;
        }
        let host = id.clone();
        outputs.event(if left { Event::HostLeft { host, reason } } else { Event::HostLost { host, reason } });
    }

    /// The aggregator was restarted: no agent is connected.
    pub(super) fn disconnect_all(&mut self) {
        for host in self.known.values_mut() {
            host.connected = false;
            host.commanded.clear();
        }
    }

    pub(super) fn find_silent(&mut self, stale_after_s: f64, now: Timestamp, outputs: &mut Outputs) {
        for (id, host) in &mut self.known {
            let quiet = host.reported.is_some_and(|at| now.seconds_since(at) > stale_after_s);
            if host.connected && !host.silent && quiet {
                host.silent = true;
                let reason = format!("no report for {}", duration(stale_after_s));
                outputs.event(Event::HostLost { host: id.clone(), reason });
            }
        }
    }

    /// A report counts: its host is connected, and it is news. A host that was silent is there again.
    pub(super) fn accept(&mut self, report: &HostReport, now: Timestamp, outputs: &mut Outputs) -> bool {
        let Some(host) = self.known.get_mut(&report.host).filter(|host| host.connected) else { return false };
        if host.report.as_ref().is_some_and(|last| last.sequence >= report.sequence) {
            return false;
        }
        if host.silent {
            host.silent = false;
            outputs.event(joined(&report.host, &host.facts));
        }
        host.reported = Some(now);
        true
    }

    /// Keeps an accepted report as the last one of its host. On a host that is `dedicated` to a job, the job's own workers
    /// count as foreground.
    pub(super) fn keep(&mut self, report: HostReport, dedicated: bool, now: Timestamp, outputs: &mut Outputs) {
        let Some(host) = self.known.get_mut(&report.host) else { return };
        if dedicated {
            host.promises.dedicated(now);
        }
        let before = host.report.as_ref().and_then(|last| last.residual.windows);
        match report.residual.windows {
            Some(windows) if before != Some(windows) => {
                let news = host.promises.judge(&report.host, windows, now);
                news.into_iter().for_each(|event| outputs.event(event));
            }
            Some(_) => {}
            None => host.promises.unknown(),
        }
        host.report = Some(report);
    }

    /// Takes an answer to a command. Gives the detail of a volunteer's refusal to run.
    pub(super) fn acked(&mut self, id: &HostId, ack: Ack, outputs: &mut Outputs) -> Option<String> {
        let host = self.known.get_mut(id)?;
        let current = |command: &Command| command.target == ack.target && command.version == ack.version;
        let sent = host.commanded.iter_mut().find(|sent| current(&sent.command))?;
        let news = sent.outcome.as_ref() != Some(&ack.outcome);
        sent.outcome = Some(ack.outcome.clone());
        let stopped = matches!(sent.command.desired, Desired::Stop | Desired::Release);
        if stopped {
            host.commanded.retain(|sent| sent.command.target != ack.target);
        }
        match ack.outcome {
            Outcome::Applied { shortfalls, .. } => {
                if news && !shortfalls.is_empty() {
                    outputs.event(Event::CommandShortfall { host: id.clone(), target: ack.target, shortfalls });
                }
                None
            }
            Outcome::Refused { reason, detail } => {
                if news {
                    outputs.event(Event::CommandRefused {
                        host: id.clone(),
                        target: ack.target.clone(),
                        version: ack.version,
                        reason,
                        detail: detail.clone(),
                    });
                }
                (!stopped && ack.target == Target::Volunteer).then_some(detail)
            }
        }
    }
}

/// A hold that ends by itself has ended.
fn is_over(until: Option<Timestamp>, now: Timestamp) -> bool {
    until.is_some_and(|until| until <= now)
}

fn joined(id: &HostId, facts: &HostFacts) -> Event {
    Event::HostJoined {
        host: id.clone(),
        cores: facts.cores,
        acting: facts.levers.acting,
        weaknesses: facts.levers.weaknesses.clone(),
    }
}
