//! The life of a job on a cluster: which interactive hosts it has, what it learns of them, and how it is sized every
//! evaluation interval (RHIC §4). Its workers are hosts.
//!
//! A change of the pool between two evaluations changes no size: a volunteer that is lost is replaced by the best
//! free one, and a new decision waits for the next evaluation (RHIC §4.2, "deferment").

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{Bound, ClusterSpec, EngineAction, Goal, JobPhase, SizingPolicy, Workers};
use gleaner_types::report::HostReport;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use super::hosts::Host;
use super::jobs::Job;
use super::{Controller, Output, seconds};
use crate::baselines::Fuzzy;
use crate::goal::Margins;
use crate::io_model::{Growth, GrowthView, IoCurve, IoModel, IoPoint, Saturation, saturation};
use crate::power::marginal_watts;
use crate::productivity::{Efficiency, potential, slots_in_memory};
use crate::selection::{Offer, REPLACEMENT_THRESHOLD, arranged, with_tasks};
use crate::sizing::{Choice, Energy, Response, Sizing};

/// Seconds gathered into one point of the I/O model. Chosen: shorter ones are noise of single tasks.
const POINT_S: f64 = 10.0;
/// Part of the slots that must have a task for a second to say what the cluster can do.
const FULL: f64 = 0.97;
/// Seconds after a change, set-up not included, that say nothing about the new size yet. Chosen.
const SETTLE_S: f64 = 5.0;
/// Most that the busiest dedicated host's disk may have to do, relative to the mean, while load counts as balanced.
/// Chosen.
const BALANCED: f64 = 1.5;
/// Service of volunteers per loss that is assumed before any was seen, in seconds. Chosen: two hours, about how long a
/// user of the papers' desktops stays.
const PRIOR_SERVICE_S: f64 = 7_200.0;
/// Evaluations after which free hosts go to the next job (RHIC §4.8: "after several periods").
const ROTATE_AFTER: f64 = 2.0;
/// Time that hosts have to come back to a restarted aggregator before they count as lost, in seconds. Chosen: more than
/// an agent's first few attempts take, and less than a command's lease.
const RETURN_S: f64 = 10.0;

/// Sums over seconds in which the cluster was full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Observed {
    seconds: f64,
    potential: f64,
    actual: f64,
    disk: f64,
    /// The busiest host's share of `disk`, summed likewise.
    disk_most: f64,
    disk_seconds: f64,
}

impl Observed {
    fn add(&mut self, second: Self) {
        self.seconds += second.seconds;
        self.potential += second.potential;
        self.actual += second.actual;
        self.disk += second.disk;
        self.disk_most += second.disk_most;
        self.disk_seconds += second.disk_seconds;
    }

    fn mean(&self, sum: f64) -> CoreShare {
        CoreShare::clamped(if self.seconds > 0.0 { sum / self.seconds } else { 0.0 })
    }

    /// The dedicated hosts' disks had about equally much to do.
    fn balanced(&self, hosts: usize) -> bool {
        // `disk` sums over hosts, `disk_most` has one of them per second.
        self.disk > 0.0 && self.disk_most * hosts as f64 <= BALANCED * self.disk
    }

    fn disk(&self) -> Option<Fraction> {
        (self.disk_seconds > 0.0).then(|| Fraction::clamped(self.disk / self.disk_seconds))
    }
}

/// What a job on a cluster has and has learned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cluster {
    /// Volunteers, with their slots.
    pub(super) volunteers: BTreeMap<HostId, u32>,
    /// Hosts sent away whose last tasks run on, with their slots.
    pub(super) draining: BTreeMap<HostId, u32>,
    /// Hosts that refused, until when they are not asked again.
    refused: BTreeMap<HostId, Timestamp>,
    /// Volunteers by the last decision.
    target: u32,
    io: IoModel,
    growth: Growth,
    saturation: Option<Saturation>,
    profile_disk: Option<Fraction>,
    efficiency: Efficiency,
    fuzzy: Fuzzy,
    /// Toward the next point.
    point: Observed,
    /// Since the last evaluation.
    interval: Observed,
    /// When the workers last changed.
    changed: Timestamp,
    /// Part of the job done per host, by the last progress.
    done: BTreeMap<HostId, f64>,
    /// Cost, energy and progress at the last evaluation, for [`Fuzzy`].
    mark: (f64, f64, f64),
    /// Slots the engine was last told of.
    told: BTreeMap<HostId, u32>,
    /// Volunteers lost so far, and the seconds volunteers have served.
    losses: (u32, f64),
    /// Until when volunteers that are not connected may still come back after a restart.
    awaited_until: Timestamp,
}

impl Cluster {
    pub(super) fn uses(&self, host: &HostId) -> bool {
        self.volunteers.contains_key(host) || self.draining.contains_key(host)
    }

    pub(super) fn slots_on(&self, host: &HostId) -> Option<u32> {
        self.volunteers.get(host).or_else(|| self.draining.get(host)).copied()
    }

    /// Probability that at least one of the present volunteers is lost within so many seconds. Before anything is known
    /// one loss in [`PRIOR_SERVICE_S`] is assumed.
    pub(super) fn loss_within(&self, seconds: f64) -> f64 {
        let (lost, served_s) = self.losses;
        let rate = (f64::from(lost) + 1.0) / (served_s + PRIOR_SERVICE_S);
        1.0 - (-rate * self.volunteers.len() as f64 * seconds.max(0.0)).exp()
    }

    /// Nothing runs any more; what was learned stays.
    pub(super) fn stop(&mut self) {
        self.volunteers.clear();
        self.draining.clear();
        self.told.clear();
        self.target = 0;
    }

    /// The aggregator was restarted: hosts run on what they were told, and come back one by one.
    pub(super) fn resume(&mut self, now: Timestamp) {
        self.told.clear();
        self.awaited_until = now.after(seconds(RETURN_S));
    }

    /// A host refuses to run the volunteer.
    pub(super) fn refuses(&mut self, host: &HostId, until: Timestamp) {
        self.volunteers.remove(host);
        self.draining.remove(host);
        self.refused.insert(host.clone(), until);
    }

    /// Keeps these volunteers; the others drain.
    fn choose(&mut self, wanted: BTreeMap<HostId, u32>, now: Timestamp) {
        if self.volunteers == wanted {
            return;
        }
        for (host, slots) in std::mem::take(&mut self.volunteers) {
            if !wanted.contains_key(&host) {
                self.draining.insert(host, slots);
            }
        }
        self.draining.retain(|host, _| !wanted.contains_key(host));
        self.volunteers = wanted;
        self.changed = now;
        self.point = Observed::default();
    }

    /// Grows to the point of saturation first (RHIC Algorithm 1), then follows the curve. A deadline is followed from
    /// the start, because time lost on exploring cannot be made up for near the end of what is possible; sizes beyond
    /// saturation do it no harm but their price.
    fn adaptive(&mut self, sizing: &mut Sizing<'_>) -> Choice {
        if matches!(sizing.goal, Goal::Deadline { .. } | Goal::Cost { budget: Some(_) }) || self.growth.is_over() {
            return sizing.decide();
        }
        // Ours: once two sizes beyond the profile were seen, the curve bounds the growth, and after the third it takes
        // over. Algorithm 1 goes on in small steps until the disks are full: a job whose optimum lies before that pays
        // for it, and one whose optimum lies far beyond takes too long.
        let seen = sizing.decide();
        let known = self.growth.steps() >= 2 && sizing.current > 0;
        if self.growth.steps() >= 3 || (known && seen.size <= sizing.current) {
            self.growth.end();
            return seen;
        }
        let interval = self.interval;
        let (potential, actual) = (interval.mean(interval.potential), interval.mean(interval.actual));
        // PredictIdealIgnoringIO: the present yield at every size.
        let modelled = sizing.response;
        if potential > CoreShare::ZERO {
            sizing.response = Response::Yield((actual.percent() / potential.percent()).min(1.0));
        }
        let ideal = if known { seen } else { sizing.decide() };
        sizing.response = modelled;
        let volunteers = |size: u32| sizing.offers.iter().take(size as usize).map(|offer| offer.potential).sum();
        let view = GrowthView {
            saturation: self.saturation,
            most: volunteers(ideal.size),
            current: volunteers(sizing.current),
            disk: interval.disk(),
            profile_disk: self.profile_disk,
        };
        let Some(next) = self.growth.next(view) else { return sizing.decide() };
        let mut reached = CoreShare::ZERO;
        let steps = sizing.offers.iter().take_while(|offer| {
            let short = reached < next;
            reached += offer.potential;
            short
        });
        let size = u32::try_from(steps.count()).unwrap_or(u32::MAX).min(sizing.useful);
        // Fewer than now would explore nothing.
        let size = size.max(sizing.current.min(u32::try_from(sizing.offers.len()).unwrap_or(u32::MAX)));
        sizing.forced(size, Bound::Exploring)
    }
}

/// What a worker could do and did in the last second, in common units.
struct WorkerNow {
    potential: CoreShare,
    actual: CoreShare,
}

fn spec_of(job: &Job) -> Option<&ClusterSpec> {
    job.status.spec.workers.hosts()
}

/// Utilisation of a host's busiest disk.
fn disk_of(report: &HostReport) -> Option<f64> {
    let known = report.machine.disks.iter().filter_map(|disk| disk.utilisation.value().map(|used| used.value()));
    known.fold(None, |most: Option<f64>, used| Some(most.map_or(used, |most| most.max(used))))
}

impl Controller {
    /// Books what a host of a cluster used to the job that has it.
    pub(super) fn account_cluster(&mut self, report: &HostReport) {
        let id = &report.host;
        let Some(host) = self.hosts.get(id) else { return };
        if !(0.0..=super::jobs::LONGEST_INTERVAL_S).contains(&report.interval_s) {
            return;
        }
        for job in self.jobs.iter_mut().filter(|job| job.is_active()) {
            let Some(spec) = spec_of(job) else { continue };
            let dedicated = spec.dedicated.iter().any(|dedicated| dedicated.host == *id);
            let power = job.status.spec.power;
            let Some(cluster) = job.cluster.as_deref_mut() else { continue };
            let machine = &report.machine;
            let used = match dedicated {
                true => machine.cpu_busy.value(),
                false if cluster.uses(id) => report.volunteer.cpu.value(),
                false => continue,
            };
            let Some(used) = used.copied() else { return };
            let class = host.facts.cpu_model.as_str();
            cluster.efficiency.observe(class, 0.0, used, report.interval_s);
            job.rate.used(used * cluster.efficiency.of(class), report.interval_s);
            if !dedicated {
                job.status.harvested_core_s += used.cores() * report.interval_s;
            }
            if let (Some(power), Some(energy_wh)) = (power, &mut job.status.energy_wh) {
                let part = |share: CoreShare| share.percent() / machine.cpu_capacity.percent().max(1.0);
                let watts = if dedicated {
                    power.dedicated.watts(part(used))
                } else {
                    let foreground = machine.cpu_foreground.value().copied().unwrap_or(CoreShare::ZERO);
                    marginal_watts(power.interactive, part(foreground), part(used))
                };
                *energy_wh += watts * report.interval_s / 3_600.0;
            }
            return;
        }
    }

    /// Takes what the engine says of single hosts: work for the efficiencies, and which ones have drained.
    pub(super) fn cluster_progress(&mut self, id: &JobId) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.status.spec.id == *id) else { return };
        let (Some(cluster), Some(progress)) = (job.cluster.as_deref_mut(), &job.status.progress) else { return };
        for (host, worker) in &progress.workers {
            let before = cluster.done.get(host).copied().unwrap_or(0.0);
            let more = worker.done.value() - before;
            if more > 0.0
                && let Some(known) = self.hosts.get(host)
            {
                cluster.efficiency.observe(&known.facts.cpu_model, more, CoreShare::ZERO, 0.0);
                match cluster.done.get_mut(host) {
                    Some(done) => *done = worker.done.value(),
                    None => _ = cluster.done.insert(host.clone(), worker.done.value()),
                }
            }
        }
        let running = |host: &HostId| progress.workers.get(host).is_some_and(|worker| worker.tasks_running > 0);
        cluster.draining.retain(|host, _| running(host));
    }

    /// What a host of a cluster could do and did, by its last report.
    fn worker_now(host: &Host, slots: u32, dedicated: bool, efficiency: &Efficiency) -> Option<WorkerNow> {
        let report = host.report.as_ref().filter(|_| host.connected && !host.silent)?;
        let machine = &report.machine;
        let (free, used) = if dedicated {
            (machine.cpu_capacity, *machine.cpu_busy.value()?)
        } else {
            let foreground = *machine.cpu_foreground.value()?;
            (machine.cpu_capacity.saturating_sub(foreground), *report.volunteer.cpu.value()?)
        };
        let factor = efficiency.of(&host.facts.cpu_model);
        Some(WorkerNow { potential: potential(free, slots) * factor, actual: used * factor })
    }

    /// Every second: what each cluster could do and did, toward the points of its I/O model (RHIC §4.3).
    pub(super) fn observe_clusters(&mut self, now: Timestamp) {
        let hosts = &self.hosts;
        for job in self.jobs.iter_mut().filter(|job| job.is_active()) {
            let Workers::Hosts(spec) = &job.status.spec.workers else { continue };
            let (Some(cluster), Some(progress)) = (job.cluster.as_deref_mut(), &job.status.progress) else { continue };
            cluster.losses.1 += cluster.volunteers.len() as f64;
            let settled_s = now.seconds_since(cluster.changed);
            if !cluster.draining.is_empty() || settled_s < job.status.spec.set_up_s + SETTLE_S {
                continue;
            }
            let mut second = Observed { seconds: 1.0, ..Observed::default() };
            let mut slots_in_all = 0;
            let dedicated = spec.dedicated.iter().map(|dedicated| (&dedicated.host, None));
            let volunteers = cluster.volunteers.iter().map(|(host, slots)| (host, Some(*slots)));
            let mut complete = true;
            for (id, slots) in dedicated.chain(volunteers) {
                let Some(host) = hosts.get(id) else { continue };
                let own = slots.unwrap_or_else(|| dedicated_slots(host, spec));
                let Some(worker) = Self::worker_now(host, own, slots.is_none(), &cluster.efficiency) else {
                    complete = false;
                    break;
                };
                slots_in_all += own;
                second.potential += worker.potential.percent();
                second.actual += worker.actual.percent();
                if slots.is_none()
                    && let Some(used) = host.report.as_ref().and_then(disk_of)
                {
                    second.disk += used;
                    second.disk_most = second.disk_most.max(used);
                    second.disk_seconds += 1.0;
                }
            }
            let full = f64::from(progress.tasks_running) >= FULL * f64::from(slots_in_all);
            if !(complete && full) {
                continue;
            }
            cluster.interval.add(second);
            cluster.point.add(second);
            let point = cluster.point;
            if point.seconds >= POINT_S {
                cluster.io.observe(IoPoint {
                    at_s: now.seconds_since(Timestamp(0)),
                    potential: point.mean(point.potential),
                    actual: point.mean(point.actual),
                    disk: point.disk(),
                });
                cluster.point = Observed::default();
            }
        }
    }

    /// Interactive hosts that no job has, and that are this one's turn: with several jobs every free host goes
    /// round, so that one which a job does not use is offered to the next (RHIC §4.8).
    fn free_hosts(&self, index: usize, now: Timestamp) -> Vec<HostId> {
        let active: Vec<usize> = (0..self.jobs.len())
            .filter(|other| self.jobs[*other].cluster.is_some() && !self.jobs[*other].status.phase.is_final())
            .collect();
        let own = active.iter().position(|other| *other == index).unwrap_or(0);
        let period_s = (self.settings.evaluation_interval_s * ROTATE_AFTER).max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let turn = (now.seconds_since(Timestamp(0)) / period_s) as usize;
        let unfinished = || self.jobs.iter().filter(|job| !job.status.phase.is_final());
        let mut taken: BTreeSet<&HostId> = BTreeSet::new();
        for job in unfinished() {
            if let Some(cluster) = &job.cluster {
                taken.extend(cluster.volunteers.keys().chain(cluster.draining.keys()));
            }
            if let Some(spec) = spec_of(job) {
                taken.extend(spec.dedicated.iter().map(|dedicated| &dedicated.host));
            }
            taken.extend(job.local().map(|local| &local.host));
        }
        let free = self.hosts.iter().filter(|(id, host)| !taken.contains(id) && host.is_latent());
        let free = free.map(|(id, _)| id).enumerate();
        let turns = free.filter(|(position, _)| (position + turn) % active.len().max(1) == own);
        turns.map(|(_, id)| id.clone()).collect()
    }

    /// What a host offers a job, in common units (RHIC Eq. 1 and 8).
    fn offer(&self, id: &HostId, job: &Job) -> Option<Offer> {
        let (cpu, memory) = self.residual(id).ok()?;
        let host = self.hosts.get(id)?;
        let spec = spec_of(job)?;
        let cluster = job.cluster.as_ref()?;
        let slots = spec
            .max_slots_per_host
            .unwrap_or(host.facts.cores)
            .min(host.facts.cores)
            .min(slots_in_memory(memory, job.status.spec.memory_per_slot));
        let factor = cluster.efficiency.of(&host.facts.cpu_model);
        (slots > 0).then(|| Offer { host: id.clone(), slots, potential: potential(cpu, slots) * factor })
    }

    /// Why a job cannot run: its dedicated hosts must be there.
    fn missing_dedicated(&self, index: usize) -> Option<String> {
        let spec = spec_of(&self.jobs[index])?;
        let there = |id: &HostId| self.hosts.get(id).is_some_and(|host| host.connected && host.report.is_some());
        let missing = spec.dedicated.iter().find(|dedicated| !there(&dedicated.host))?;
        Some(format!("dedicated host {} has not joined or not reported yet", missing.host))
    }

    /// Moves a job on a cluster on as far as it can go now.
    pub(super) fn advance_cluster(&mut self, index: usize, now: Timestamp, outputs: &mut Vec<Output>) {
        if !self.jobs[index].is_active() {
            if let Some(reason) = self.missing_dedicated(index) {
                self.jobs[index].wait(reason, now, outputs);
                return;
            }
            self.start_cluster(index, now, outputs);
        }
        self.replace_lost(index, now);
        if self.jobs[index].status.phase == JobPhase::Profiling {
            self.end_profile(index, now);
        }
        let due = self.jobs[index].status.phase == JobPhase::Running && now >= self.jobs[index].next_evaluation;
        if due {
            let interval = seconds(self.settings.evaluation_interval_s);
            self.jobs[index].next_evaluation = now.after(interval);
            self.evaluate_cluster(index, now, outputs);
        }
        self.tell_engine(index, outputs);
    }

    fn start_cluster(&mut self, index: usize, now: Timestamp, outputs: &mut Vec<Output>) {
        let period_s = self.settings.profile_period_s;
        let classes: Vec<String> = self.hosts.values().map(|host| host.facts.cpu_model.clone()).collect();
        let job = &mut self.jobs[index];
        job.costed = now;
        job.status.started.get_or_insert(now);
        let Some(cluster) = job.cluster.as_deref_mut() else { return };
        cluster.changed = now;
        cluster.told.clear();
        if job.rate.value().is_some() && job.profiled_until.is_some_and(|until| until <= now) {
            job.status.phase = JobPhase::Running;
            job.next_evaluation = now.after(seconds(1.0)).max(cluster.awaited_until);
            return;
        }
        cluster.efficiency = Efficiency::relative_to(classes.iter().map(String::as_str));
        let period_s = job.profile_s(period_s, now);
        job.status.phase = JobPhase::Profiling;
        job.profiled_until = Some(now.after(seconds(period_s)));
        outputs.push(Output::Event(Event::JobProfiling { job: job.status.spec.id.clone(), period_s }));
    }

    /// The profile of the dedicated hosts alone is over: what it says about their disks (RHIC Eq. 2–4).
    fn end_profile(&mut self, index: usize, now: Timestamp) {
        let job = &mut self.jobs[index];
        let Workers::Hosts(spec) = &job.status.spec.workers else { return };
        let over = job.profiled_until.is_none_or(|until| now >= until);
        // A profile that saw no progress teaches nothing: it goes on until there is some.
        if !over || job.rate.value().is_none() {
            return;
        }
        let Some(cluster) = job.cluster.as_deref_mut() else { return };
        cluster.profile_disk = cluster.interval.disk();
        let capacity = |id: &HostId| self.hosts.get(id).map(|host| CoreShare::from_cores(dedicated_slots(host, spec)));
        let most = spec.dedicated.iter().filter_map(|dedicated| capacity(&dedicated.host));
        let p_max = most.fold(CoreShare::ZERO, CoreShare::max);
        let hosts = u32::try_from(spec.dedicated.len()).unwrap_or(u32::MAX);
        let mean_disk = spec.dedicated.iter().map(|dedicated| dedicated.disk).sum::<f64>() / f64::from(hosts.max(1));
        if cluster.interval.balanced(spec.dedicated.len()) {
            cluster.growth.skip_worst_case();
        }
        cluster.saturation = cluster.profile_disk.and_then(|used| saturation(used, p_max, hosts, mean_disk));
        job.status.phase = JobPhase::Running;
        job.next_evaluation = now;
    }

    /// Its agent is not connected, or has not reported since it connected.
    fn is_away(&self, id: &HostId) -> bool {
        self.hosts.get(id).is_none_or(|host| !host.connected || host.report.is_none()) && self.held_until(id).is_none()
    }

    /// A host that may go on with what it does: the job it works for waits for others after a restart.
    pub(super) fn is_awaited(&self, id: &HostId, now: Timestamp) -> bool {
        let job = self.holder(id).filter(|job| matches!(job.status.phase, JobPhase::Waiting { .. }));
        let cluster = job.and_then(|job| job.cluster.as_deref());
        self.held_until(id).is_none() && cluster.is_some_and(|cluster| now < cluster.awaited_until && cluster.uses(id))
    }

    /// Hosts that other jobs name: those have them before anybody's volunteers.
    fn named_by_others(&self, index: usize) -> BTreeSet<HostId> {
        let others =
            self.jobs.iter().enumerate().filter(|(other, job)| *other != index && !job.status.phase.is_final());
        others
            .flat_map(|(_, job)| {
                let dedicated = spec_of(job).into_iter().flat_map(|spec| &spec.dedicated).map(|own| &own.host);
                job.local().map(|local| &local.host).into_iter().chain(dedicated)
            })
            .cloned()
            .collect()
    }

    /// Volunteers that are gone are replaced by the best free ones, up to the last decision's number; those on hosts
    /// that another job names drain.
    fn replace_lost(&mut self, index: usize, now: Timestamp) {
        let named = self.named_by_others(index);
        let Some(cluster) = &self.jobs[index].cluster else { return };
        let all = cluster.volunteers.keys().chain(cluster.draining.keys());
        let awaited = |id: &HostId| now < cluster.awaited_until && self.is_away(id);
        let gone: Vec<HostId> = all.filter(|id| self.residual(id).is_err() && !awaited(id)).cloned().collect();
        let target = cluster.target as usize;
        if let Some(cluster) = &mut self.jobs[index].cluster {
            cluster.refused.retain(|_, until| *until > now);
            for id in &named {
                if let Some(slots) = cluster.volunteers.remove(id) {
                    cluster.draining.insert(id.clone(), slots);
                    cluster.changed = now;
                }
            }
            for id in &gone {
                cluster.losses.0 += u32::from(cluster.volunteers.contains_key(id));
                cluster.volunteers.remove(id);
                cluster.draining.remove(id);
                cluster.changed = now;
            }
        }
        let missing = self.jobs[index].cluster.as_ref().map_or(0, |own| target.saturating_sub(own.volunteers.len()));
        if missing == 0 || self.jobs[index].status.phase != JobPhase::Running {
            self.count_volunteers(index, now);
            return;
        }
        let best = self.free_offers(index, now).into_iter().take(missing);
        if let Some(cluster) = &mut self.jobs[index].cluster {
            for offer in best {
                cluster.volunteers.insert(offer.host, offer.slots);
                cluster.changed = now;
            }
        }
        self.count_volunteers(index, now);
    }

    /// What is paid for is what there is.
    fn count_volunteers(&mut self, index: usize, now: Timestamp) {
        let job = &mut self.jobs[index];
        let count = job.cluster.as_ref().map_or(0, |cluster| cluster.volunteers.len());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if job.status.volunteers != count {
            job.accrue(now);
            job.status.volunteers = count;
        }
    }

    fn free_offers(&self, index: usize, now: Timestamp) -> Vec<Offer> {
        let job = &self.jobs[index];
        let refused = |id: &HostId| job.cluster.as_ref().is_some_and(|cluster| cluster.refused.contains_key(id));
        let hosts = self.free_hosts(index, now).into_iter().filter(|id| !refused(id));
        crate::selection::ranked(hosts.filter_map(|id| self.offer(&id, job)).collect())
    }

    fn evaluate_cluster(&mut self, index: usize, now: Timestamp, outputs: &mut Vec<Output>) {
        self.jobs[index].accrue(now);
        let job = &self.jobs[index];
        let (Some(rate), Some(cluster), Some(spec)) = (job.rate.value(), &job.cluster, spec_of(job)) else { return };
        let used: Vec<Offer> = cluster.volunteers.keys().filter_map(|id| self.offer(id, job)).collect();
        let (mut offers, _) = arranged(used, self.free_offers(index, now), REPLACEMENT_THRESHOLD);
        offers.truncate(spec.max_volunteers.map_or(usize::MAX, |most| most as usize));
        let hosts = &self.hosts;
        let dedicated = || spec.dedicated.iter().filter_map(|own| hosts.get(&own.host)).filter(|host| host.connected);
        let dedicated_potential: CoreShare = dedicated()
            .map(|host| {
                CoreShare::from_cores(dedicated_slots(host, spec)) * cluster.efficiency.of(&host.facts.cpu_model)
            })
            .sum();
        let dedicated_slots_in_all: u32 = dedicated().map(|host| dedicated_slots(host, spec)).sum();
        let (mean_task_s, unfinished) = job.tasks_left();
        let interval = cluster.interval;
        let curve = cluster.io.curve(now.seconds_since(Timestamp(0))).or_else(|| {
            IoCurve::constant(interval.mean(interval.potential), interval.mean(interval.actual), interval.disk())
        });
        let mut sizing = Sizing {
            goal: job.status.spec.goal,
            deadline_in_s: job.deadline_in_s(now),
            evaluation_interval_s: self.settings.evaluation_interval_s,
            margins: Margins::CLUSTER,
            prices: job.status.spec.prices,
            spent: job.status.cost,
            remaining: job.rate.remaining(),
            rate,
            response: curve.as_ref().map_or(Response::Yield(1.0), Response::Curve),
            energy: self.energy(index, &offers),
            mean_task_s,
            tail_s: job.tail_s(mean_task_s),
            set_up_s: job.status.spec.set_up_s,
            dedicated: job.dedicated(),
            dedicated_potential,
            offers: &offers,
            current: job.status.volunteers,
            useful: with_tasks(&offers, unfinished.saturating_sub(dedicated_slots_in_all)),
        };
        let policy = job.status.spec.sizing;
        let dedicated: Vec<(HostId, u32)> = dedicated_selection(hosts, spec).collect();
        // Out of the job while it learns from a decision about the job.
        let Some(mut own) = self.jobs[index].cluster.take() else { return };
        // Too few volunteers cannot be made up for near the deadline; too many cost a minute.
        let cautious = curve.as_ref().map(IoCurve::cautious);
        if let (Goal::Deadline { .. }, Some(cautious)) = (sizing.goal, &cautious) {
            sizing.response = Response::Curve(cautious);
        }
        let choice = match policy {
            SizingPolicy::Adaptive => own.adaptive(&mut sizing),
            other => self.by_policy(index, &mut own, other, &sizing),
        };
        let chosen = offers.get(..choice.size as usize).unwrap_or_default();
        let wanted: BTreeMap<HostId, u32> = chosen.iter().map(|offer| (offer.host.clone(), offer.slots)).collect();
        let mut selection = wanted.clone();
        selection.extend(dedicated);
        let job = &mut self.jobs[index];
        own.choose(wanted, now);
        own.target = choice.size;
        own.interval = Observed::default();
        own.mark = (job.status.cost.amount(), job.status.energy_wh.unwrap_or(0.0), 1.0 - job.rate.remaining().value());
        job.cluster = Some(own);
        job.adopt(&sizing, choice, selection, now, outputs);
    }

    /// The size that one of the policies to compare with asks for.
    fn by_policy(&self, index: usize, own: &mut Cluster, policy: SizingPolicy, sizing: &Sizing<'_>) -> Choice {
        let pool = u32::try_from(sizing.offers.len()).unwrap_or(u32::MAX);
        let job = &self.jobs[index];
        let size = match policy {
            SizingPolicy::Adaptive => return sizing.decide(),
            SizingPolicy::Fixed { volunteers } => volunteers,
            SizingPolicy::Threshold { residual } => {
                let whole = |offer: &Offer| self.hosts.get(&offer.host).map_or(0, |host| host.facts.cores);
                let above =
                    |offer: &&Offer| offer.potential.percent() >= residual.value() * f64::from(whole(offer)) * 100.0;
                u32::try_from(sizing.offers.iter().filter(above).count()).unwrap_or(u32::MAX)
            }
            SizingPolicy::Fuzzy { step, start } => {
                let mark = own.mark;
                let done = 1.0 - job.rate.remaining().value() - mark.2;
                let per_progress = |spent: f64| (done > 0.0).then(|| spent / done);
                let score = match sizing.goal {
                    Goal::Cost { .. } => per_progress(job.status.cost.amount() - mark.0),
                    Goal::Energy => per_progress(job.status.energy_wh.unwrap_or(0.0) - mark.1),
                    // How far the rate of completion is from the one that ends 5 % before the deadline.
                    Goal::Deadline { within_s } => {
                        let left_s = sizing.deadline_in_s.unwrap_or(0.0) - 0.05 * within_s;
                        let ideal = sizing.remaining.value() / left_s.max(1.0);
                        Some((done / sizing.evaluation_interval_s.max(1.0) - ideal).abs())
                    }
                };
                own.fuzzy.next(score, sizing.current, pool, step, start)
            }
        };
        sizing.forced(size.min(pool), Bound::Policy)
    }

    /// Power terms of a job whose models are known.
    fn energy(&self, index: usize, offers: &[Offer]) -> Option<Energy> {
        let job = &self.jobs[index];
        let (power, spent_wh) = (job.status.spec.power?, job.status.energy_wh?);
        let reports = || offers.iter().filter_map(|offer| self.hosts.get(&offer.host)?.report.as_ref());
        let (mut hosts, mut capacity, mut foreground) = (0.0, 0.0, 0.0);
        for report in reports() {
            hosts += 1.0;
            capacity += report.machine.cpu_capacity.percent();
            foreground += report.machine.cpu_foreground.value().map_or(0.0, |share| share.percent());
        }
        let mean = |sum: f64| if hosts > 0.0 { sum / hosts } else { 0.0 };
        let part = if capacity > 0.0 { foreground / capacity } else { 0.0 };
        let cores = spec_of(job)?.dedicated.iter().filter_map(|own| self.hosts.get(&own.host)).map(|h| h.facts.cores);
        let dedicated_cpu = CoreShare::from_cores(cores.max().unwrap_or(1));
        Some(Energy { power, spent_wh, interactive: (CoreShare::clamped(mean(capacity)), part), dedicated_cpu })
    }

    /// Tells the engine where it has slots, when that changed.
    fn tell_engine(&mut self, index: usize, outputs: &mut Vec<Output>) {
        let job = &self.jobs[index];
        let (Some(spec), Some(cluster)) = (spec_of(job), &job.cluster) else { return };
        let mut slots = cluster.volunteers.clone();
        slots.extend(dedicated_selection(&self.hosts, spec));
        if cluster.told == slots {
            return;
        }
        let id = job.status.spec.id.clone();
        if let Some(cluster) = self.jobs[index].cluster.as_deref_mut() {
            cluster.told = slots.clone();
        }
        outputs.push(Output::Engine { job: id, action: EngineAction::SetSlots(slots) });
    }
}

/// Slots of a dedicated host: one per CPU, unless the job says less.
fn dedicated_slots(host: &Host, spec: &ClusterSpec) -> u32 {
    spec.max_slots_per_host.map_or(host.facts.cores, |most| most.min(host.facts.cores))
}

fn dedicated_selection<'a>(
    hosts: &'a BTreeMap<HostId, Host>,
    spec: &'a ClusterSpec,
) -> impl Iterator<Item = (HostId, u32)> + 'a {
    let known = spec.dedicated.iter().filter_map(|own| Some((own.host.clone(), hosts.get(&own.host)?)));
    known.map(|(id, host)| (id, dedicated_slots(host, spec)))
}
