//! The owner of applications with response-time targets: what their hosts' reports say of them, what every control
//! interval decides about their shares (BConf, dissertation chapter 4), and what that leaves to volunteers.
//!
//! In: specs from operators, reports, response times, the time. Out: questions to the sources of response times, the limits
//! wanted on each host, and the CPU left of it. Called by the controller; it reads the hosts and changes nothing of them.
//!
//! Balancing and harvesting work on one picture of each host: what is granted fits the host, and a volunteer may have what
//! the grants leave. Where applications contend for the CPU there is no volunteer at all: it gets CPU
//! last and gives it up first. Foreground beside the applications is not counted: grants are ceilings, not reservations, and what
//! something without a target uses says nothing of what it needs; the kernel shares between them as without Gleaner.

mod control;
mod limited;
mod managed;
mod surge;

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::application::{Amount, ApplicationSpec, ApplicationStatus, ResponseTime};
use gleaner_types::command::{Desired, DiskLimit, Limits, Quota, Target};
use gleaner_types::event::Event;
use gleaner_types::id::{ApplicationId, HostId};
use gleaner_types::report::HostReport;
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

use super::hosts::Hosts;
use super::interface::{Settings, seconds};
use super::outputs::Outputs;
use super::unusable::Contended;
use limited::{in_force, is_used_up};
use managed::{Managed, Surge, bounds_of, movable};

/// How long before a control interval ends its response times are asked for, in seconds. Chosen: longer than a source
/// usually takes.
const ASK_AHEAD_S: f64 = 2.0;
/// Longest time for which a source is waited for, in seconds: so long into an interval its answer may be about the one before.
const LATEST_ANSWER_S: f64 = 10.0;

/// All applications.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Applications {
    managed: BTreeMap<ApplicationId, Managed>,
    /// What applications have of each host.
    reserved: BTreeMap<HostId, Reserved>,
    /// When shares are moved next, and whether response times were asked for.
    next_control: Timestamp,
    asked: bool,
}

/// What all applications together mean for a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Reserved {
    /// CPU granted to applications, as a part of the host.
    cpu: f64,
    /// They ask for more CPU than there is.
    contended: bool,
}

impl Applications {
    /// All, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ApplicationStatus> {
        self.managed.values().map(|managed| &managed.status)
    }

    pub(super) fn get(&self, name: &ApplicationId) -> Option<&ApplicationStatus> {
        self.managed.get(name).map(|managed| &managed.status)
    }

    pub(super) fn applied(&mut self, spec: ApplicationSpec, hosts: &Hosts, outputs: &mut Outputs) {
        let name = spec.name.clone();
        outputs.event(Event::ApplicationApplied { application: name.clone(), target_ms: spec.target_ms });
        let same = |old: &Managed| old.status.spec.tiers == spec.tiers && old.status.spec.control == spec.control;
        match self.managed.get_mut(&name) {
            // What was learned of the same shares stays.
            Some(old) if same(old) => old.status.spec = spec,
            _ => _ = self.managed.insert(name, Managed::new(spec)),
        }
        self.reserve(hosts);
    }

    pub(super) fn removed(&mut self, name: &ApplicationId, hosts: &Hosts, outputs: &mut Outputs) {
        if self.managed.remove(name).is_some() {
            outputs.event(Event::ApplicationRemoved { application: name.clone() });
            self.reserve(hosts);
        }
    }

    pub(super) fn responded(
        &mut self,
        name: &ApplicationId,
        response: ResponseTime,
        hosts: &Hosts,
        settings: &Settings,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let Some(managed) = self.managed.get(name) else { return };
        // No request ended, and what the application may use is used up: it is not idle.
        let is_stalled = response == ResponseTime::Idle && is_used_up(managed, hosts);
        let response = if is_stalled { ResponseTime::Stalled } else { response };
        let next_control = self.next_control;
        let Some(managed) = self.managed.get_mut(name) else { return };
        // The answer to an early question may have been all that a source has of this interval: what is pushed is told once.
        let is_empty = matches!(response, ResponseTime::Late { .. } | ResponseTime::Missing { .. });
        if managed.surge.answered && is_empty {
            managed.surge.awaits = false;
            return;
        }
        if managed.surge.awaits && response.mean_ms().is_none() {
            // A source may have no mean of seconds and one of the interval.
            return self.relieve(name, &response, hosts, settings, outputs);
        }
        // No requests since then: the mean of those before them is what this interval has, and no decision has used it. What came
        // at its beginning may be a late answer about the one before.
        let is_mean = |(at, response): &(Timestamp, ResponseTime)| {
            response.mean_ms().is_some()
                && next_control.seconds_since(*at) < settings.control_interval_s - LATEST_ANSWER_S
        };
        if response == ResponseTime::Idle && managed.status.response.as_ref().is_some_and(is_mean) {
            return;
        }
        let is_told = matches!(response, ResponseTime::Mean { .. } | ResponseTime::Idle | ResponseTime::Stalled);
        managed.surge.answered |= managed.surge.asked > 0 && is_told;
        let kind = |response: &ResponseTime| std::mem::discriminant(response);
        let before = managed.status.response.replace((now, response.clone()));
        if before.is_none_or(|(_, before)| kind(&before) != kind(&response)) {
            outputs.event(Event::ResponseTimeChanged { application: name.clone(), response: response.clone() });
            self.reserve(hosts);
        }
        self.relieve(name, &response, hosts, settings, outputs);
    }

    /// The controller starts again: of the time between nothing is known.
    pub(super) fn resumed(&mut self, hosts: &Hosts) {
        self.read_older_grants(hosts);
        for managed in self.managed.values_mut() {
            managed.unanswered = managed.unanswered.max(1);
            managed.silent_since = None;
            managed.hosts_away.retain(|_, away| away.released);
        }
    }

    /// Books what a host's workloads used to the applications they are tiers of.
    pub(super) fn account(&mut self, report: &HostReport, hosts: &Hosts) {
        self.managed.values_mut().for_each(|managed| managed.account(report));
        self.strain(report, hosts);
    }

    /// Once a control interval: asks for response times, then moves shares.
    pub(super) fn control(&mut self, hosts: &Hosts, settings: &Settings, now: Timestamp, outputs: &mut Outputs) {
        if self.managed.is_empty() {
            return;
        }
        let interval_s = settings.control_interval_s;
        if self.next_control == Timestamp(0) {
            self.next_control = now.after(seconds(interval_s));
        }
        let ahead_s = ASK_AHEAD_S.min(interval_s / 2.0);
        if !self.asked && now.after(seconds(ahead_s)) >= self.next_control {
            self.asked = true;
            for (name, managed) in &mut self.managed {
                managed.surge.awaits = false;
                outputs.ask(name.clone());
            }
        }
        if !self.asked {
            self.ask_early(outputs);
        }
        if now < self.next_control {
            return;
        }
        self.asked = false;
        self.next_control = now.after(seconds(interval_s));
        let relieved = self.managed.iter().filter(|(_, managed)| managed.surge.relieved).map(|(name, _)| name.clone());
        let mut of_others: BTreeSet<ApplicationId> = relieved.collect();
        self.managed.values_mut().for_each(|managed| managed.surge = Surge::default());
        of_others.append(&mut self.release(hosts, settings, now, outputs));
        self.balance(&of_others, hosts, settings, now, outputs);
    }

    /// CPU that a volunteer may have at most.
    pub(super) fn left_on(&self, id: &HostId, hosts: &Hosts) -> Result<CoreShare, Contended> {
        let whole = hosts.facts(id).map_or(CoreShare::ZERO, |facts| CoreShare::from_cores(facts.cores));
        match self.reserved.get(id) {
            Some(reserved) if reserved.contended => Err(Contended),
            Some(reserved) => Ok(whole * (1.0 - reserved.cpu).max(0.0)),
            None => Ok(whole),
        }
    }

    /// The limits that applications have on a host's workloads.
    pub(super) fn wanted_limits(&self, id: &HostId, hosts: &Hosts) -> BTreeMap<Target, Desired> {
        let mut wanted = BTreeMap::new();
        if !hosts.is_usable(id) {
            return wanted;
        }
        for managed in self.managed.values().filter(|managed| managed.decisions > 0) {
            for share in &managed.shares {
                let tier = &managed.status.spec.tiers[share.tier];
                if tier.host != *id || !movable(hosts, id, share.resource) {
                    continue;
                }
                let mut amount = in_force(managed, share, hosts);
                // An application whose floors counted may be gone.
                let floor = bounds_of(tier, share.resource).map_or(0.0, |bounds| bounds.floor);
                if amount < floor {
                    amount = amount.max(self.least(tier, share.resource, hosts));
                }
                let target = Target::Workload(tier.workload.clone());
                let desired = wanted.entry(target).or_insert(Desired::Limit(Limits::NONE));
                let Desired::Limit(limits) = desired else { continue };
                match Amount::of(share.resource, amount) {
                    Amount::Cpu(cpu) => limits.quota = Quota::AtMost(cpu),
                    Amount::Memory(memory) => limits.memory = Some(memory),
                    Amount::Bandwidth(rate) => {
                        limits.disk = DiskLimit { read: Some(rate), write: Some(rate), ..DiskLimit::default() };
                    }
                }
            }
        }
        wanted
    }
}
