//! The slots of one machine that several jobs of engine `local` share, by credit: the machine's jobs are a queue, as the arrays of a
//! batch system are ([`crate::queue`]). In: the jobs, what the machine has. Out: how many slots each may have. Called by the owner of the
//! jobs.
//!
//! The job that would be done first under fair sharing goes first with all slots that it wants, and the others have what it
//! leaves: also fewer than their dedicated ones, or none for a while. No running task is stopped for that: who comes next has
//! its slots as these tasks end.

use std::collections::BTreeMap;

use gleaner_types::id::{HostId, UserName};
use gleaner_types::job::{JobPhase, PoolShare};
use gleaner_types::report::VolunteerState;
use gleaner_types::time::Timestamp;
use gleaner_types::units::Bytes;
use serde::{Deserialize, Serialize};

use super::job::{Job, Slots, WorkerState};
use crate::controller::capacity::Capacity;
use crate::controller::hosts::Host;
use crate::controller::interface::seconds;
use crate::controller::outputs::Outputs;
use crate::pool::UserShares;
use crate::productivity::slots_in_memory;
use crate::queue::{Array, QueueAccount, Turn, task_s};

/// Who has had how much of a machine. It is kept from when a second job comes until one is left.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    account: QueueAccount,
    /// The last number that was given to a job.
    last: u64,
    /// The jobs of the last look that were at work, and the slots that each wanted.
    seen: Vec<(u64, u32)>,
    /// A second has passed since.
    #[serde(skip)]
    is_due: bool,
}

impl Machine {
    /// A second has passed: tasks may have ended.
    pub(super) const fn tick(&mut self) {
        self.is_due = true;
    }

    /// No aggregator ran until now. Jobs begin anew, and are told what they may have at once: tasks that run on would be ended
    /// in the second in which none had a slot.
    pub(super) fn resumed(&mut self, now: Timestamp) {
        self.skip(now);
        self.seen.clear();
    }

    /// Nobody knows what jobs had until now, or it counts for nobody.
    fn skip(&mut self, now: Timestamp) {
        self.account.skip(at_s(now));
    }
}

/// Tells the unfinished jobs of a machine, in their order, what they may have: every second, and when one comes, ends, or wants more or less.
pub(super) fn share(
    host: &HostId,
    mut jobs: Vec<&mut Job>,
    machines: &mut BTreeMap<HostId, Machine>,
    capacity: Capacity<'_>,
    users: &UserShares,
    now: Timestamp,
    outputs: &mut Outputs,
) {
    // Who is left may have lent to those that have ended, and their account says when.
    if jobs.len() < 2 && machines.get(host).is_none_or(|machine| !machine.account.owes()) {
        machines.remove(host);
        jobs.into_iter().for_each(|job| job.has_machine(now, outputs));
        return;
    }
    let machine = machines.entry(host.clone()).or_default();
    // One that waits keeps its place in the account, and wants nothing.
    jobs.retain(|job| job.is_active() || job.number().is_some());
    let mut numbered: Vec<(u64, &mut Job)> = Vec::with_capacity(jobs.len());
    for job in jobs {
        let WorkerState::Slots(slots) = &mut job.workers else { continue };
        let number = *slots.number.get_or_insert_with(|| {
            machine.last += 1;
            machine.last
        });
        numbered.push((number, job));
    }
    let at_work = numbered.iter().filter(|(_, job)| job.is_active());
    let seen: Vec<(u64, u32)> = at_work.map(|(number, job)| (*number, job.wants_slots())).collect();
    if !std::mem::take(&mut machine.is_due) && machine.seen == seen {
        return;
    }
    machine.seen = seen;
    if machine.seen.is_empty() {
        // Their machine is away: nobody knows what runs there.
        return machine.skip(now);
    }
    let is_frozen = capacity
        .host(host)
        .and_then(Host::fresh_report)
        .is_some_and(|report| report.volunteer.state == VolunteerState::Frozen);
    if is_frozen {
        // Nothing runs, whoever has the slots: that time counts for nobody.
        machine.skip(now);
        numbered.iter_mut().for_each(|(_, job)| job.begins_anew(now));
    }
    let slots = slots_of(host, &numbered, capacity);
    let memory = capacity.residual(host).map(|(_, memory)| memory).unwrap_or_default();
    let usual_s = usual_task_s(&numbered);
    let arrays: BTreeMap<u64, Array> =
        numbered.iter().map(|(number, job)| (*number, job.as_array(memory, usual_s, now))).collect();
    let turns = machine.account.turns(&arrays, slots, users, at_s(now));
    let held = arrays.values().map(|array| array.running).fold(0, u32::saturating_add);
    let mut free = slots.saturating_sub(held);
    // Of each user: what its jobs would have fairly, and how many these are.
    let mut of_users: BTreeMap<Option<&UserName>, (f64, u32)> = BTreeMap::new();
    for (turn, array) in turns.iter().filter_map(|(number, turn)| Some((turn, arrays.get(number)?))) {
        let (fair, jobs) = of_users.entry(array.user.as_ref()).or_default();
        (*fair, *jobs) = (*fair + turn.standing.fair, *jobs + 1);
    }
    let mut by_place: Vec<(&Turn, &Array, &mut Job)> = numbered
        .into_iter()
        .filter_map(|(number, job)| Some((turns.get(&number)?, arrays.get(&number)?, job)))
        .filter(|(.., job)| job.is_active())
        .collect();
    by_place.sort_by_key(|(turn, ..)| turn.place);
    let needs =
        |array: &Array, job: &Job| Bytes(job.status.spec.memory_per_slot.0.saturating_mul(array.running.into()));
    let in_use = by_place.iter().fold(0_u64, |sum, (_, array, job)| sum.saturating_add(needs(array, job).0));
    let mut memory_left = Bytes(memory.0.saturating_sub(in_use));
    for (turn, array, job) in by_place {
        let may = turn.at_once.unwrap_or_else(|| array.useful());
        let per_slot = job.status.spec.memory_per_slot;
        let more = may.saturating_sub(array.running).min(free).min(slots_in_memory(memory_left, per_slot));
        free -= more;
        memory_left = Bytes(memory_left.0.saturating_sub(per_slot.0.saturating_mul(more.into())));
        let of_user = of_users.get(&array.user.as_ref()).copied().unwrap_or_default();
        job.may_have_slots((may.min(array.running + more), may), turn, of_user, now, outputs);
    }
}

/// Slots that jobs can have on a machine together: one per CPU, or more where a job says so, as far as CPU is expected to be
/// free; a job's dedicated ones always. One at least. Memory bounds each job by the size of its own slots.
fn slots_of(host: &HostId, jobs: &[(u64, &mut Job)], capacity: Capacity<'_>) -> u32 {
    let specs = || jobs.iter().filter(|(_, job)| job.is_active()).map(|(_, job)| &job.status.spec);
    let locals = || specs().filter_map(|spec| spec.workers.slots());
    let cores = capacity.host(host).map_or(1, |host| host.facts().cores);
    let dedicated = locals().map(|local| local.dedicated_slots).max().unwrap_or(1);
    let most = locals().filter_map(|local| local.max_slots).fold(cores, u32::max).max(dedicated);
    let Ok((cpu, _)) = capacity.residual(host) else { return 1 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let with_cpu = cpu.cores().ceil() as u32;
    most.min(with_cpu.max(dedicated)).max(1)
}

/// Mean length of the tasks of a machine's jobs, in seconds; 0 while none has ended.
fn usual_task_s(jobs: &[(u64, &mut Job)]) -> f64 {
    let ended = || jobs.iter().filter_map(|(_, job)| job.status.progress.as_ref());
    let sum = |of: fn(f64, f64) -> f64| -> f64 {
        ended().filter_map(|p| Some(of(p.mean_task_s?, f64::from(p.tasks_done)))).sum()
    };
    let tasks = sum(|_, tasks| tasks);
    if tasks > 0.0 { sum(|mean_s, tasks| mean_s * tasks) / tasks } else { 0.0 }
}

fn at_s(now: Timestamp) -> f64 {
    now.seconds_since(Timestamp(0))
}

impl Job {
    fn number(&self) -> Option<u64> {
        match &self.workers {
            WorkerState::Slots(slots) => slots.number,
            WorkerState::Hosts(_) => None,
        }
    }

    /// Others have a right to slots of its machine too.
    pub(super) const fn has_part_of_machine(&self) -> bool {
        matches!(&self.workers, WorkerState::Slots(Slots { granted: Some(_), .. }))
    }

    /// Slots it would have if the machine were its own.
    fn wants_slots(&self) -> u32 {
        let WorkerState::Slots(slots) = &self.workers else { return 0 };
        let beside = if self.status.phase == JobPhase::Running { slots.wanted } else { 0 };
        self.dedicated().saturating_add(beside)
    }

    /// It, as an array of a queue. In each slot that it was given since its engine last told what runs, a task may run.
    fn as_array(&self, memory: Bytes, usual_s: f64, now: Timestamp) -> Array {
        let (unheard, begun) = match &self.workers {
            WorkerState::Slots(slots) => (slots.unheard, slots.begun),
            WorkerState::Hosts(_) => (0, None),
        };
        let progress = self.status.progress.as_ref();
        let tasks = self.local().map_or(0, |local| local.tasks);
        let (in_all, over, in_use) = progress.map_or((tasks, 0, 0), |progress| {
            let over = progress.tasks_done.saturating_add(progress.tasks_failed);
            (progress.tasks_total, over, progress.tasks_running.max(progress.slots_in_use))
        });
        let left = in_all.saturating_sub(over);
        let running = in_use.max(unheard).min(left);
        // Its first tasks run since it has had slots.
        let ran_s = begun.map(|begun| now.seconds_since(begun));
        let task_s = task_s(progress.and_then(|progress| progress.mean_task_s), usual_s, ran_s.into_iter());
        let part_left = progress.map_or(1.0, |progress| 1.0 - progress.fraction_done.value());
        Array {
            user: self.status.spec.user.clone(),
            cpus: 1,
            waiting: if self.is_active() { left - running } else { 0 },
            running,
            left_cpu_s: f64::from(in_all) * part_left * task_s,
            task_s,
            own_bound: Some(if self.is_active() {
                self.wants_slots().min(slots_in_memory(memory, self.status.spec.memory_per_slot).max(1))
            } else {
                0
            }),
        }
    }

    /// What its first tasks have run so far does not count.
    fn begins_anew(&mut self, now: Timestamp) {
        if let WorkerState::Slots(Slots { begun: Some(begun), .. }) = &mut self.workers {
            *begun = now;
        }
    }

    /// Takes what it may have now, and what it may have when tasks of others have ended; and what its user's jobs would have
    /// fairly, and how many these are.
    fn may_have_slots(
        &mut self,
        (granted, may): (u32, u32),
        turn: &Turn,
        (user_fair, user_jobs): (f64, u32),
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let standing = turn.standing;
        self.status.share = Some(PoolShare {
            wanted: self.wants_slots(),
            allotted: may,
            fair: standing.fair,
            user_fair,
            user_jobs,
            credit_s: standing.credit,
            ahead_s: if standing.fair > 0.0 { standing.credit / standing.fair } else { 0.0 },
            fair_completion: standing.fair_completion_in_s.map(|in_s| now.after(seconds(in_s))),
        });
        self.grant(Some(granted), now, outputs);
    }

    /// It has the machine for itself.
    fn has_machine(&mut self, now: Timestamp, outputs: &mut Outputs) {
        let WorkerState::Slots(slots) = &mut self.workers else { return };
        slots.number = None;
        if slots.granted.is_some() {
            self.status.share = None;
            self.grant(None, now, outputs);
        }
    }

    fn grant(&mut self, granted: Option<u32>, now: Timestamp, outputs: &mut Outputs) {
        let (before, wanted) = (self.slots(), self.wants_slots());
        self.accrue(now);
        let WorkerState::Slots(slots) = &mut self.workers else { return };
        slots.granted = granted;
        self.status.volunteers = granted.unwrap_or(wanted).saturating_sub(self.dedicated());
        let after = self.slots();
        if after != before {
            self.order_slots(after, now, outputs);
        }
    }
}
