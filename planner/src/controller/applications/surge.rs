//! Fast relief of a surge: an application whose CPU or disk is used up for seconds, and whose response time is far above its
//! target, gets at once what is free on its hosts. The balancer goes on from there when its control interval ends. Ours; the paper
//! waits for the interval.
//! In: reports of every second, and the source's answer when it is asked early. Out: questions, and larger shares. Called by
//! the owner of the applications.

use gleaner_types::application::ResponseTime;
use gleaner_types::event::Event;
use gleaner_types::id::{ApplicationId, HostId};
use gleaner_types::report::HostReport;

use super::Applications;
use super::limited::{in_force, needed, used_of};
use super::managed::{Managed, TierShare, bounds_of, movable, use_of};
use crate::balance::surge::{SLOW, STRAINED_S, is_relief, is_strained, raised};
use crate::balance::{Resource, Share};
use crate::controller::hosts::Hosts;
use crate::controller::interface::Settings;
use crate::controller::outputs::Outputs;

/// Questions to a source about one control interval before its end, because a source may average over what was before.
const MOST_QUESTIONS: u32 = 3;

impl Applications {
    /// Books for how long shares of CPU and disk on a host have looked like a surge. A cache fills whatever memory there is.
    pub(super) fn strain(&mut self, report: &HostReport, hosts: &Hosts) {
        for managed in self.managed.values_mut() {
            let limit = |own: &TierShare| {
                let is_limited = managed.is_limited() && !managed.is_released(own);
                (in_force(managed, own, hosts), is_limited)
            };
            let amounts: Vec<(f64, bool)> = managed.shares.iter().map(limit).collect();
            let tiers = &managed.status.spec.tiers;
            let own = managed.shares.iter_mut().zip(amounts);
            for (share, (amount, is_limited)) in
                own.filter(|(share, _)| matches!(share.resource, Resource::Cpu | Resource::Disk))
            {
                let tier = &tiers[share.tier];
                if tier.host != report.host {
                    continue;
                }
                let sample = report.workloads.iter().find(|sample| sample.id == tier.workload);
                let used = sample.and_then(|sample| use_of(sample, share.resource));
                // Waits for the CPU say nothing of a disk.
                let wait =
                    sample.filter(|_| share.resource == Resource::Cpu).and_then(|sample| sample.cpu_wait.value());
                let waited = wait.map_or(0.0, |wait| wait.percent());
                let part = used.and_then(|used| used_of((used, 1.0), waited, amount, true)).filter(|_| is_limited);
                let last = share.last_used.map(|last| last / amount.max(1e-9));
                let is_strained = part.is_some_and(|part| is_strained(part, last));
                let waits = is_strained && wait.is_some() && used.is_some_and(|used| waited >= used);
                share.strained_s = if is_strained { share.strained_s + report.interval_s } else { 0.0 };
                share.waiting_s = if waits { share.waiting_s + report.interval_s } else { 0.0 };
            }
        }
    }

    /// Asks the sources of applications that look like a surge.
    pub(super) fn ask_early(&mut self, outputs: &mut Outputs) {
        for (name, managed) in &mut self.managed {
            let is_strained = managed.shares.iter().any(|share| share.strained_s >= STRAINED_S);
            if is_strained && !managed.surge.relieved && managed.surge.asked < MOST_QUESTIONS {
                (managed.surge.asked, managed.surge.awaits) = (managed.surge.asked + 1, true);
                managed.surge.waits = managed.shares.iter().any(|share| share.waiting_s >= STRAINED_S);
                managed.shares.iter_mut().for_each(|share| share.strained_s = 0.0);
                outputs.ask(name.clone());
            }
        }
    }

    /// A source's answer: to an early question about a surge, relief follows. Where a source cannot say it, the wait for the CPU
    /// does: a share may be used up without harm.
    pub(super) fn relieve(
        &mut self,
        name: &ApplicationId,
        response: &ResponseTime,
        hosts: &Hosts,
        settings: &Settings,
        outputs: &mut Outputs,
    ) {
        let Some(managed) = self.managed.get_mut(name).filter(|managed| managed.surge.awaits) else { return };
        managed.surge.awaits = false;
        // Where shares are given back because they change nothing it was slow before, and that is no surge.
        let target_ms = managed.status.spec.target_ms;
        let elsewhere = managed.status.decision.as_ref().filter(|decision| decision.elsewhere);
        let usual_ms =
            elsewhere.and_then(|decision| decision.response.mean_ms()).map_or(target_ms, |ms| ms.max(target_ms));
        let is_surge = match response {
            ResponseTime::Mean { mean_ms } => *mean_ms > SLOW * usual_ms,
            ResponseTime::Idle => false,
            _ => managed.surge.waits,
        };
        // With a tier out of sight nothing is moved, until it was for too long.
        let is_away = managed.away(hosts).is_some_and(|tier| !managed.is_released_on(&tier.host));
        if !is_surge || is_away || !managed.is_limited() {
            return;
        }
        // What is granted does not fit a host that came back smaller: the next decision divides it.
        if self.managed.values().any(|other| other.has_shrunk(hosts)) {
            return;
        }
        // Parts of one whole are compared.
        self.rescale(hosts, settings);
        let Some(managed) = self.managed.get(name) else { return };
        let raised: Vec<Share> = managed.shares.iter().map(|own| self.raise(managed, own, hosts, settings)).collect();
        let grows = |(own, raised): (&TierShare, &Share)| is_relief(own.granted, *raised);
        if !managed.shares.iter().zip(&raised).any(grows) {
            return;
        }
        let Some(managed) = self.managed.get_mut(name) else { return };
        managed.surge.relieved = true;
        // What was used before says nothing of the larger shares.
        managed.begin_interval();
        for (share, raised) in managed.shares.iter_mut().zip(raised) {
            (share.requested, share.granted) = (raised, raised);
        }
        outputs.event(Event::SurgeRelieved { application: name.clone(), response: response.clone() });
        self.reserve(hosts);
    }

    /// A share and its part of what no application has of its host, up to its ceiling. Memory stays, because a cache fills
    /// whatever there is.
    fn raise(&self, managed: &Managed, own: &TierShare, hosts: &Hosts, settings: &Settings) -> Share {
        let tier = &managed.status.spec.tiers[own.tier];
        let host = &tier.host;
        if own.resource == Resource::Memory || managed.is_released(own) || !movable(hosts, host, own.resource) {
            return own.granted;
        }
        let ceiling =
            bounds_of(tier, own.resource).map_or(own.granted, |bounds| Share::clamped(bounds.ceiling / own.scale()));
        if own.resource == Resource::Disk && settings.disks.of(host).is_none() {
            // It is not divided: what others have of it leaves no less.
            return Share::clamped(ceiling.part().max(own.granted.part()));
        }
        let here = granted_on(managed, host, own.resource, hosts);
        let all: f64 = self.managed.values().map(|other| granted_on(other, host, own.resource, hosts)).sum();
        raised(own.granted, here, all, ceiling)
    }
}

/// What an application was granted of a host, or what it needs while it is released there: nothing before its first decision, which
/// may be as far away as a host that has not joined.
fn granted_on(managed: &Managed, host: &HostId, resource: Resource, hosts: &Hosts) -> f64 {
    if managed.decisions == 0 {
        return 0.0;
    }
    let tiers = &managed.status.spec.tiers;
    let here = managed.shares.iter().filter(|own| own.resource == resource && tiers[own.tier].host == *host);
    let granted =
        |own: &TierShare| if managed.is_released(own) { needed(managed, own, hosts) } else { own.granted.part() };
    here.map(granted).sum()
}
