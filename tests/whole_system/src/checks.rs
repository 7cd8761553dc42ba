//! The checks. In: the messages sent and the kernel's files. Out: violations. Called by [`crate::world`]. They share no
//! code with what makes the plans.

mod followed;
mod harm;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gleaner_aggregator::event_log::EventReader;
use gleaner_aggregator::journal::{journal_files, replay};
use gleaner_aggregator::shell::MAX_UNLOGGED;
use gleaner_types::command::{Command, Desired, Quota, Target, Version};
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::HostId;
use gleaner_types::report::{Capability, Protection, VolunteerKind};
use gleaner_types::time::Timestamp;

pub use self::followed::{Followed, Tried};
use crate::host::{FLOOR_PERCENT, Host, LIMITS, MEMORY_FLOOR};

/// By how much what counters of a hundredth of a second say of CPU can be off, in percent of a core.
const COUNTED: f64 = 2.0;
/// By how much a host's clock goes wrong at most, and so what is counted by it.
const DRIFT: f64 = 0.015;

/// What was seen of one host.
#[derive(Debug, Default)]
struct Observed {
    /// When what a command asked for runs out, by the agent's clock.
    leases: BTreeMap<Target, Timestamp>,
    newest: BTreeMap<Target, Version>,
    machine: followed::Machine,
    /// Reports its agent made.
    reports: u64,
}

/// Everything seen, and every breach of a rule.
#[derive(Debug, Default)]
pub struct Checks {
    hosts: Vec<Observed>,
    /// Events that each agent was told are in the log, by host and incarnation.
    acknowledged: BTreeMap<(HostId, u64), u64>,
    /// Knobs that limit a workload now.
    limiting: BTreeSet<(HostId, usize, &'static str)>,
    /// Knobs that were written, and those that were put back afterwards.
    written: BTreeSet<&'static str>,
    restored: BTreeSet<&'static str>,
    /// A volunteer ran under a lease.
    volunteer_ran: bool,
    /// What each report says of the posture, by host, time and number.
    protections: BTreeMap<(HostId, u64, u64), Option<Protection>>,
    /// Changes of posture that an event has to tell of.
    announced: BTreeSet<(HostId, String)>,
    /// How volunteers were held by their harm.
    pub followed: Followed,
    /// What was broken, in words.
    pub breaches: Vec<String>,
    /// Checks made.
    pub made: u64,
}

impl Checks {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self { hosts: (0..hosts).map(|_| Observed::default()).collect(), ..Self::default() }
    }

    /// Notes a breach, unless `good`.
    pub fn demand(&mut self, good: bool, breach: impl FnOnce() -> String) {
        self.made += 1;
        if !good && self.breaches.len() < 20 {
            self.breaches.push(breach());
        }
    }

    /// An agent is about to carry out a command.
    pub fn commanded(&mut self, number: usize, host: &Host, command: &Command, at: Timestamp) {
        let Some(agent) = &host.agent else { return };
        let levers = &agent.facts.levers;
        let (id, target) = (&host.id, &command.target);
        self.demand(command.lease_ms > 0, || format!("{id}: a command without a lease"));
        match &command.desired {
            Desired::Run { cap } => {
                let able = levers.acting && levers.volunteer != VolunteerKind::None;
                self.demand(able, || format!("{id}: its volunteer should run, and it has none or only observes"));
                let most = f64::from(host.machine.cores) * 100.0;
                let within = matches!(cap, Quota::AtMost(cap) if cap.percent() <= most);
                self.demand(within, || format!("{id}: its volunteer may use {cap:?} of {most} %"));
            }
            Desired::Limit(limits) => {
                self.demand(levers.acting, || format!("{id} only observes and should limit {target:?}"));
                let quota = limits.quota == Quota::Unlimited || agent.facts.offers(Capability::CpuQuota);
                self.demand(quota, || format!("{id} offers no ceiling on CPU and should set one"));
                let memory = limits.memory.is_none() || agent.facts.offers(Capability::MemoryLimit);
                self.demand(memory, || format!("{id} offers no limit on memory and should set one"));
            }
            Desired::Stop | Desired::Release => {}
        }
        let seen = &mut self.hosts[number];
        let newest = seen.newest.entry(target.clone()).or_default();
        if command.version < *newest {
            // It must refuse this one; what is in force has the lease it has.
            return;
        }
        *newest = command.version;
        match command.desired {
            Desired::Run { .. } | Desired::Limit(_) => {
                let until = at.after(std::time::Duration::from_millis(command.lease_ms.into()));
                seen.leases.insert(target.clone(), until);
            }
            Desired::Stop | Desired::Release => _ = seen.leases.remove(target),
        }
    }

    /// An agent is gone, with everything it knew.
    pub fn ended(&mut self, number: usize) {
        self.hosts[number] = Observed::default();
    }

    /// The foreground keeps what it must.
    pub fn floors(&mut self, host: &Host) {
        for workload in 0..host.machine.workloads() {
            let quota = host.machine.quota(workload);
            self.demand(quota.is_none_or(|quota| quota >= FLOOR_PERCENT - 0.01), || {
                format!("{}: vm{workload} may use {quota:?} %, less than its floor", host.id)
            });
            let memory = host.machine.memory_limit(workload);
            self.demand(memory.is_none_or(|memory| memory >= MEMORY_FLOOR), || {
                format!("{}: vm{workload} may keep {memory:?} bytes, less than its floor", host.id)
            });
        }
    }

    /// After an agent looked after its leases: what is limited or runs has one.
    pub fn leases(&mut self, number: usize, host: &Host, at: Timestamp) {
        self.knobs(host);
        for workload in 0..host.machine.workloads() {
            if !self.limiting.iter().any(|(id, number, _)| (id, *number) == (&host.id, workload)) {
                continue;
            }
            let Ok(id) = host.workload(workload) else { continue };
            let lease = self.hosts[number].leases.get(&Target::Workload(id)).copied();
            self.demand(lease.is_some_and(|lease| lease > at), || {
                format!("{}: vm{workload} is limited at {at}, its lease is {lease:?}", host.id)
            });
        }
        if host.volunteer_runs() {
            self.volunteer_ran |= host.allowance() > 0.0;
            let lease = self.hosts[number].leases.get(&Target::Volunteer).copied();
            self.demand(lease.is_some_and(|lease| lease > at), || {
                format!("{}: the volunteer runs at {at}, its lease is {lease:?}", host.id)
            });
        }
    }

    /// Notes which knobs limit the host's workloads now, and which do not any more.
    fn knobs(&mut self, host: &Host) {
        for workload in 0..host.machine.workloads() {
            let now = host.machine.limited_by(workload);
            self.written.extend(&now);
            let mine = |(id, number, _): &(HostId, usize, _)| (id, *number) == (&host.id, workload);
            let over = self.limiting.iter().filter(|own| mine(own) && !now.contains(&own.2)).map(|own| own.2);
            self.restored.extend(over);
            self.limiting.retain(|own| !mine(own) || now.contains(&own.2));
            self.limiting.extend(now.into_iter().map(|knob| (host.id.clone(), workload, knob)));
        }
    }

    /// What this seed did not try, of what it was to: each of these knobs written and put back, and a volunteer.
    #[must_use]
    pub fn untried(&self, knobs: &[&'static str]) -> Vec<String> {
        let knobs = knobs.iter().filter(|knob| !self.written.contains(*knob) || !self.restored.contains(*knob));
        let knobs = knobs.map(|knob| format!("{knob} was not written and put back"));
        knobs.chain((!self.volunteer_ran).then(|| "no volunteer ran".to_owned())).collect()
    }

    /// After a look of the guard at counters that tell the truth: the volunteer may use no more than what the foreground
    /// leaves, but for a half of the machine and more, of which the kernel gives it only what is left.
    pub fn leaves(&mut self, host: &Host) {
        let (allowance, left) = (host.allowance(), host.machine.left());
        let capacity = f64::from(host.machine.cores) * 100.0;
        let wrong = COUNTED + DRIFT * capacity;
        self.demand(left >= capacity / 2.0 || allowance <= left + wrong, || {
            format!("{}: the volunteer may use {allowance:.1} % of the {left:.1} % that the foreground leaves", host.id)
        });
    }

    /// Nothing of Gleaner is left on a host.
    pub fn untouched(&mut self, host: &Host, when: &str) {
        self.knobs(host);
        let changed = host.machine.changed();
        self.demand(changed.is_empty(), || format!("{} {when}: {}", host.id, changed.join(", ")));
    }

    /// Queues keep their bounds.
    pub fn queues(&mut self, host: &Host) {
        let Some(agent) = &host.agent else { return };
        let queued = agent.outbox.queued();
        let within = queued.reports <= LIMITS.reports && queued.events <= LIMITS.events && queued.acks <= 64;
        self.demand(within, || format!("{}: {queued:?} wait", host.id));
        self.demand(queued.events_dropped == 0, || {
            format!("{}: {} events were dropped", host.id, queued.events_dropped)
        });
    }

    /// Events that wait in the aggregator keep their bound.
    pub fn unlogged(&mut self, waiting: usize) {
        self.demand(waiting <= MAX_UNLOGGED, || format!("{waiting} events of agents wait in the aggregator"));
    }

    /// An agent is told that its events through this one are in the log.
    pub fn acknowledged(&mut self, host: &Host, through: u64) {
        let Some(agent) = &host.agent else { return };
        let newest = self.acknowledged.entry((host.id.clone(), agent.incarnation)).or_default();
        *newest = through.max(*newest);
    }

    /// What the log holds in the end; gives its lines.
    pub fn log(&mut self, folder: &Path) -> Vec<String> {
        let mut all = Vec::new();
        let mut logged: BTreeMap<(HostId, u64), BTreeSet<u64>> = BTreeMap::new();
        let mut reader = EventReader::open(folder, None);
        loop {
            let lines = match reader.next_lines(1_000) {
                Ok(lines) if lines.is_empty() => break,
                Ok(lines) => lines,
                Err(error) => {
                    self.demand(false, || format!("the event log cannot be read: {error}"));
                    break;
                }
            };
            for line in &lines {
                match EventRecord::from_json_line(line) {
                    Ok(EventRecord { source: EventSource::Agent { host, incarnation, sequence }, event, .. }) => {
                        let twice = !logged.entry((host.clone(), incarnation)).or_default().insert(sequence);
                        self.demand(!twice, || format!("event {sequence} of {host} is in the log twice"));
                        if let Event::ProtectionChanged { reason, .. } = event {
                            self.followed.logged += 1;
                            let true_one = self.announced.contains(&(host.clone(), reason.clone()));
                            self.demand(true_one, || format!("{host}: no change was like this: {reason}"));
                        }
                    }
                    Ok(EventRecord { event: Event::PlanRejected { violation }, .. }) => {
                        self.demand(false, || format!("a plan was rejected: {violation}"));
                    }
                    Ok(_) => {}
                    // A line cut short by a full disk or a kill says nothing, and nothing was acknowledged of it.
                    Err(_) => {}
                }
            }
            all.extend(lines);
        }
        for ((host, incarnation), through) in std::mem::take(&mut self.acknowledged) {
            let own = logged.get(&(host.clone(), incarnation));
            let missing = (1..=through).find(|sequence| !own.is_some_and(|own| own.contains(sequence)));
            self.demand(missing.is_none(), || {
                format!("event {missing:?} of {host} was acknowledged and is not in the log")
            });
        }
        all
    }

    /// Every decision is in a journal, and can be reproduced. Only if the disk `was_full` a file may be without a beginning.
    pub fn journal(&mut self, folder: &Path, was_full: bool) {
        let files = journal_files(folder).unwrap_or_default();
        let mut steps = 0;
        for file in files {
            match replay(&file) {
                Ok(replay) => {
                    self.demand(replay.difference.is_none(), || {
                        format!("step {:?} of {} replays to something else", replay.difference, file.display())
                    });
                    self.demand(was_full || !replay.torn, || format!("{} ends in half a record", file.display()));
                    steps += replay.steps;
                }
                // On a full disk not even the first record finds room.
                Err(error) => {
                    let empty = std::fs::metadata(&file).is_ok_and(|file| file.len() < 1 << 16);
                    self.demand(was_full && empty, || format!("{}: {error}", file.display()));
                }
            }
        }
        self.demand(steps > 0, || format!("no step is in a journal in {}", folder.display()));
    }
}
