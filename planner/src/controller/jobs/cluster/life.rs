//! The life of a job on a cluster between two sizings: it begins, is profiled, observed, and its lost volunteers are
//! replaced. In: what hosts offer, the other jobs. Out: who works for it, told to its engine. Called by the owner of the
//! jobs. A change of the pool between two evaluations changes no size: a volunteer that is lost is replaced by the best
//! free one, and a new decision waits for the next evaluation (RHIC §4.2, "deferment").

use std::cmp::Reverse;
use std::collections::BTreeSet;

use gleaner_types::id::HostId;
use gleaner_types::job::{EngineAction, JobPhase};
use gleaner_types::report::HostReport;
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

use super::dedicated_slots;
use crate::controller::capacity::Capacity;
use crate::controller::hosts::{Host, Hosts};
use crate::controller::interface::{Settings, seconds};
use crate::controller::jobs::job::{Job, WorkerState, idle_core_s};
use crate::controller::jobs::others::Others;
use crate::controller::outputs::Outputs;
use crate::io_model::saturation;
use crate::power::marginal_watts;
use crate::productivity::{Efficiency, potential};
use crate::sampling::{Second, WorkerSecond};
use crate::selection::{Offer, ranked};
use crate::sizing::input::VolunteerFacts;

/// Utilisation of a host's busiest disk.
fn disk_of(report: &HostReport) -> Option<f64> {
    let known = report.machine.disks.iter().filter_map(|disk| disk.utilisation.value().map(|used| used.value()));
    known.fold(None, |most: Option<f64>, used| Some(most.map_or(used, |most| most.max(used))))
}

/// What a host of a cluster could do and did, by its last report: potential and actual productivity, in common units.
fn productivity(host: &Host, slots: u32, dedicated: bool, efficiency: &Efficiency) -> Option<(CoreShare, CoreShare)> {
    let report = host.fresh_report()?;
    let machine = &report.machine;
    let (free, used) = if dedicated {
        (machine.cpu_capacity, *machine.cpu_busy.value()?)
    } else {
        let foreground = *machine.cpu_foreground.value()?;
        (machine.cpu_capacity.saturating_sub(foreground), *report.volunteer.cpu.value()?)
    };
    let factor = efficiency.of(&host.facts().cpu_model);
    Some((potential(free, slots) * factor, used * factor))
}

impl Job {
    /// Books what a host of its cluster used; says whether the host is one of its own.
    pub(in crate::controller::jobs) fn account_host(&mut self, report: &HostReport, class: &str) -> bool {
        let id = &report.host;
        let Some(spec) = self.status.spec.workers.hosts() else { return false };
        let dedicated = spec.dedicated.iter().any(|dedicated| dedicated.host == *id);
        let power = self.status.spec.power;
        let WorkerState::Hosts(cluster) = &mut self.workers else { return false };
        let machine = &report.machine;
        let used = match dedicated {
            true => machine.cpu_busy.value(),
            false if cluster.uses(id) => report.volunteer.cpu.value(),
            false => return false,
        };
        let Some(used) = used.copied() else { return true };
        cluster.efficiency.observe(class, 0.0, used, report.interval_s);
        // What classes were seen to be worth since changes what they did before too.
        self.rate.used_in_all(cluster.efficiency.productivity_percent_s());
        if !dedicated {
            self.status.harvested_core_s += used.cores() * report.interval_s;
            self.status.idle_core_s += idle_core_s(report);
        }
        if let (Some(power), Some(energy_wh)) = (power, &mut self.status.energy_wh) {
            let part = |share: CoreShare| share.percent() / machine.cpu_capacity.percent().max(1.0);
            let watts = if dedicated {
                power.dedicated.watts(part(used))
            } else {
                let foreground = machine.cpu_foreground.value().copied().unwrap_or(CoreShare::ZERO);
                marginal_watts(power.interactive, part(foreground), part(used))
            };
            *energy_wh += watts * report.interval_s / 3_600.0;
        }
        true
    }

    /// Every second: what its cluster could do and did, toward the points of its I/O model (RHIC §4.3).
    pub(in crate::controller::jobs) fn observe_cluster(&mut self, hosts: &Hosts, now: Timestamp) {
        let Some(spec) = self.status.spec.workers.hosts() else { return };
        let (WorkerState::Hosts(cluster), Some(progress)) = (&mut self.workers, &self.status.progress) else { return };
        cluster.losses.1 += cluster.volunteers.len() as f64;
        cluster.finish_set_ups(self.status.spec.set_up_s, now);
        let running_on = |id: &HostId| progress.workers.get(id).map_or(0, |worker| worker.tasks_running);
        let dedicated = spec.dedicated.iter().map(|dedicated| (&dedicated.host, None));
        let at_work =
            |(host, slots): (&HostId, &u32)| if cluster.is_being_set_up(host) { running_on(host) } else { *slots };
        let volunteers = cluster.volunteers.iter().map(|own| (own.0, Some(at_work(own))));
        let draining = cluster.draining.keys().map(|host| (host, Some(running_on(host))));
        let known = dedicated.chain(volunteers).chain(draining).filter_map(|(id, given)| Some((hosts.get(id)?, given)));
        let worker = |(host, given): (&Host, Option<u32>)| {
            let (slots, is_dedicated) = (given.unwrap_or_else(|| dedicated_slots(host, spec)), given.is_none());
            WorkerSecond {
                slots,
                productivity: productivity(host, slots, is_dedicated, &cluster.efficiency),
                disk: host.report().filter(|_| is_dedicated).and_then(disk_of),
            }
        };
        let workers: Vec<WorkerSecond> = known.map(worker).collect();
        // An engine may say anything once. No more can run than there are unfinished tasks, and slots on all hosts.
        let over = progress.tasks_done.saturating_add(progress.tasks_failed);
        let unfinished = progress.tasks_total.saturating_sub(over);
        let own =
            spec.dedicated.iter().filter_map(|dedicated| Some(dedicated_slots(hosts.get(&dedicated.host)?, spec)));
        let given = cluster.volunteers.values().chain(cluster.draining.values()).copied();
        let slots: f64 = own.chain(given).map(f64::from).sum();
        cluster.running_s += f64::from(progress.tasks_running.min(unfinished)).min(slots);
        let second = Second {
            unchanged_s: now.seconds_since(cluster.changed),
            setting_up: progress.workers.is_empty() && !cluster.set_up_since.is_empty(),
            waiting: progress.waiting(),
            running: progress.tasks_running,
            stages_told: progress.stages.waiting().is_some(),
            workers: &workers,
        };
        cluster.observe(&second, now);
    }

    /// Moves a job on a cluster on as far as it can go between two sizings. Says whether a sizing is due.
    pub(in crate::controller::jobs) fn advance_cluster(
        &mut self,
        others: Others<'_>,
        capacity: Capacity<'_>,
        settings: &Settings,
        now: Timestamp,
        outputs: &mut Outputs,
    ) -> bool {
        if !self.is_active() {
            if let Some(reason) = self.missing_dedicated(capacity) {
                self.wait(reason, now, outputs);
                // What it had before a restart is for others after a while.
                if let Some(cluster) = self.cluster_mut().filter(|cluster| now >= cluster.awaited_until) {
                    cluster.stop();
                }
                return false;
            }
            self.start_cluster(capacity, settings.profile_period_s, now, outputs);
        }
        self.replace_lost(others, capacity, now);
        if self.status.phase == JobPhase::Profiling && self.profile_is_over(now) {
            self.end_cluster_profile(capacity, now);
        }
        self.status.phase == JobPhase::Running && now >= self.next_evaluation
    }

    /// Why it cannot run: its dedicated hosts must be there.
    fn missing_dedicated(&self, capacity: Capacity<'_>) -> Option<String> {
        let there = |id: &HostId| capacity.host(id).is_some_and(Host::is_present);
        let missing = self.cluster_spec()?.dedicated.iter().find(|dedicated| !there(&dedicated.host))?;
        Some(format!("dedicated host {} has not joined or not reported yet", missing.host))
    }

    fn start_cluster(&mut self, capacity: Capacity<'_>, period_s: f64, now: Timestamp, outputs: &mut Outputs) {
        self.costed = now;
        self.status.started.get_or_insert(now);
        let profiled = self.is_profiled(now);
        let WorkerState::Hosts(cluster) = &mut self.workers else { return };
        cluster.changed = now;
        cluster.engine_slots.clear();
        if profiled {
            self.status.phase = JobPhase::Running;
            self.next_evaluation = now.after(seconds(1.0)).max(cluster.awaited_until);
            return;
        }
        if cluster.efficiency == Efficiency::default() {
            cluster.efficiency = Efficiency::relative_to(capacity.classes());
        }
        self.begin_profile(period_s, now, outputs);
    }

    /// The profile of the dedicated hosts alone is over: what it says about their disks (RHIC Eq. 2–4).
    fn end_cluster_profile(&mut self, capacity: Capacity<'_>, now: Timestamp) {
        let Some(spec) = self.status.spec.workers.hosts() else { return };
        let WorkerState::Hosts(cluster) = &mut self.workers else { return };
        let disk = cluster.interval.disk();
        let known = spec.dedicated.iter().filter_map(|dedicated| capacity.host(&dedicated.host));
        let p_max = known.map(|host| CoreShare::from_cores(dedicated_slots(host, spec)));
        let p_max = p_max.fold(CoreShare::ZERO, CoreShare::max);
        let hosts = u32::try_from(spec.dedicated.len()).unwrap_or(u32::MAX);
        let mean_disk = spec.dedicated.iter().map(|dedicated| dedicated.disk).sum::<f64>() / f64::from(hosts.max(1));
        let balanced = cluster.interval.is_balanced(spec.dedicated.len());
        let saturated = disk.and_then(|used| saturation(used, p_max, hosts, mean_disk));
        cluster.exploration.profiled(disk, balanced, saturated);
        self.status.phase = JobPhase::Running;
        self.next_evaluation = now;
    }

    /// Volunteers that are gone are replaced by the best free ones, up to the last decision's number, as are those that
    /// another job has yet to give back; those on hosts that another job names drain, and so do the worst of those that it
    /// may no longer have.
    fn replace_lost(&mut self, others: Others<'_>, capacity: Capacity<'_>, now: Timestamp) {
        let WorkerState::Hosts(cluster) = &mut self.workers else { return };
        let awaited = |id: &HostId| now < cluster.awaited_until && capacity.is_away(id);
        let gone: Vec<HostId> =
            cluster.taken().filter(|id| capacity.residual(id).is_err() && !awaited(id)).cloned().collect();
        cluster.refused.retain(|_, until| *until > now);
        cluster.drain(&others.named(), now);
        cluster.lose(&gone, now);
        let (target, present) = (cluster.target as usize, cluster.volunteers.len());
        if self.status.phase == JobPhase::Running {
            self.give_back_to(target, others, capacity, now);
        }
        let missing = target.saturating_sub(present);
        if missing > 0 && self.status.phase == JobPhase::Running {
            let best = self.free_offers(others, capacity).into_iter().take(missing);
            if let Some(cluster) = self.cluster_mut() {
                for offer in best {
                    cluster.set_up_since.insert(offer.host.clone(), now);
                    cluster.volunteers.insert(offer.host, offer.slots);
                    cluster.changed = now;
                }
            }
        }
        self.count_volunteers(now);
    }

    /// Keeps so many volunteers; the others drain: first those that a job which has fewer than it may can use, then the worst, and those
    /// whose output is still read last.
    pub(super) fn give_back_to(&mut self, target: usize, others: Others<'_>, capacity: Capacity<'_>, now: Timestamp) {
        let Some(cluster) = self.cluster().filter(|cluster| cluster.volunteers.len() > target) else { return };
        let awaited = |id: &HostId| others.short().any(|job| job.offer(id, capacity).is_some());
        let mut used = ranked(cluster.volunteers.keys().filter_map(|id| self.offer(id, capacity)).collect());
        let output = self.output();
        used.sort_by_key(|offer| (awaited(&offer.host), Reverse(output.get(&offer.host).copied())));
        let kept: BTreeSet<HostId> = used.into_iter().take(target).map(|offer| offer.host).collect();
        if let Some(cluster) = self.cluster_mut() {
            let surplus = cluster.volunteers.keys().filter(|id| !kept.contains(*id)).cloned().collect();
            cluster.drain(&surplus, now);
        }
    }

    /// What is paid for is what there is.
    fn count_volunteers(&mut self, now: Timestamp) {
        let count = self.cluster().map_or(0, |cluster| cluster.volunteers.len());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if self.status.volunteers != count {
            self.accrue(now);
            self.status.volunteers = count;
        }
    }

    /// Offers of interactive hosts that no job has. The best first.
    pub(super) fn free_offers(&self, others: Others<'_>, capacity: Capacity<'_>) -> Vec<Offer> {
        let Some(cluster) = self.cluster() else { return Vec::new() };
        let (named, working) = (others.named(), others.volunteers());
        let taken: BTreeSet<&HostId> =
            working.into_iter().chain(&named).chain(self.named()).chain(cluster.taken()).collect();
        let free = capacity.latent().filter(|id| !taken.contains(id));
        let asked = free.filter(|id| !cluster.refused.contains_key(*id));
        ranked(asked.filter_map(|id| self.offer(id, capacity)).collect())
    }

    /// Offers of its own hosts that drain: it can have them back at once.
    pub(super) fn draining_offers(&self, others: Others<'_>, capacity: Capacity<'_>) -> Vec<Offer> {
        let named = others.named();
        let draining = self.cluster().into_iter().flat_map(|cluster| cluster.draining.keys());
        draining.filter(|id| !named.contains(*id)).filter_map(|id| self.offer(id, capacity)).collect()
    }

    /// Offers of interactive hosts that other jobs have, which it could have in time.
    pub(super) fn lent_offers(&self, others: Others<'_>, capacity: Capacity<'_>) -> Vec<Offer> {
        let Some(cluster) = self.cluster() else { return Vec::new() };
        let named: BTreeSet<HostId> = others.named().into_iter().chain(self.named().cloned()).collect();
        let lent =
            others.volunteers().into_iter().filter(|id| !named.contains(*id) && !cluster.refused.contains_key(*id));
        lent.filter_map(|id| self.offer(id, capacity)).collect()
    }

    /// What a host offers it; nothing where none of its tasks can run.
    pub(super) fn offer(&self, id: &HostId, capacity: Capacity<'_>) -> Option<Offer> {
        if self.status.progress.as_ref().is_some_and(|progress| progress.unusable.contains(id)) {
            return None;
        }
        let (residual, memory) = capacity.residual(id).ok()?;
        let facts = capacity.host(id)?.facts();
        let volunteer = VolunteerFacts {
            host: id,
            cores: facts.cores,
            residual,
            memory: Some(memory),
            memory_per_slot: self.status.spec.memory_per_slot,
            most_slots: self.cluster_spec()?.max_slots_per_host,
            efficiency: self.cluster()?.efficiency.of(&facts.cpu_model),
        };
        volunteer.offer()
    }

    /// Its dedicated hosts with their slots, as far as they are known.
    pub(super) fn dedicated_slots(&self, capacity: Capacity<'_>) -> Vec<(HostId, u32)> {
        let Some(spec) = self.cluster_spec() else { return Vec::new() };
        let slots = |id: &HostId| Some((id.clone(), dedicated_slots(capacity.host(id)?, spec)));
        spec.dedicated.iter().filter_map(|dedicated| slots(&dedicated.host)).collect()
    }

    /// Tells the engine where it has slots, when that changed.
    pub(in crate::controller::jobs) fn update_engine(&mut self, capacity: Capacity<'_>, outputs: &mut Outputs) {
        let dedicated = self.dedicated_slots(capacity);
        let Some(cluster) = self.cluster_mut() else { return };
        let mut slots = cluster.volunteers.clone();
        slots.extend(dedicated);
        if cluster.engine_slots != slots {
            cluster.engine_slots.clone_from(&slots);
            outputs.engine(self.status.spec.id.clone(), EngineAction::SetSlots(slots));
        }
    }
}
