//! A cloud whose gaps are filled, from event to event. In: leases and hosts over time, jobs, a strategy. Out: what became of nodes and jobs.
//! Every decision is [`Filling`]'s; here things only happen.
//!
//! Readings. Enough jobs always wait, as in CHISim. Its nodes have two cores for jobs. Before jobs start on a node it is set up, for 19 to 22
//! minutes; a node that is taken in this time wastes nothing (section 3.2). Cores count as used while they are leased, while a job runs on
//! them and while they are set up; cores of a node that is held for a lease, or left empty before one, do not.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use gleaner_planner::reservations::fill::{Filling, Taken, taken_per_hour};
use gleaner_planner::reservations::history::{HOUR_S, History, Request};
use gleaner_planner::reservations::learnt::Learnt;
use gleaner_planner::reservations::node::{Held, Node, Running};
use gleaner_simulator::leases::{CloudLease, CloudTrace};
use gleaner_simulator::random::Random;

use super::jobs::{Job, Queue};

/// Cores of a node for jobs: what CHISim's pool of resources has for each.
const CORES: u32 = 2;
/// Least and most time to start a node, set it up and create the container for jobs (CHISim's published simulator): 7 to 8, 1 to 2, and
/// 11 to 12 minutes.
const SET_UP_S: (f64, f64) = (19.0 * 60.0, 22.0 * 60.0);
/// A lease that was made longer than this before it begins was made in advance (CHISim's published simulator).
const IN_ADVANCE_S: f64 = 120.0;
/// The record from which the rate of being taken comes: the paper's week.
const WEEK_S: f64 = 168.0 * HOUR_S;

/// A lease was made in advance: it is known when it begins, and no forecast.
pub(super) fn is_in_advance(lease: &CloudLease) -> bool {
    lease.start_s - lease.created_s > IN_ADVANCE_S
}

/// What happens, in the order in which it does at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    JobEnds { node: usize, job: u64 },
    Host { host: usize, present: bool },
    LeaseEnds { lease: usize },
    Decide,
    LeaseStarts { lease: usize },
    SetUp { node: usize },
}

/// What is summed over time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Use {
    /// Used part of the cores that were there, in percent: mean over time.
    pub(super) over_time: f64,
    /// The same as CHISim measures it: mean over the ends of leases.
    pub(super) at_ends: f64,
    /// Leased alone, mean over time.
    pub(super) leased: f64,
    /// Leased alone, mean over the ends of leases.
    pub(super) leased_at_ends: f64,
}

/// What became of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) utilisation: Use,
    /// Mean over finished jobs of 100 × wasted / total core hours (Eq. 1).
    pub(super) waste: f64,
    /// Wasted core hours of all jobs in percent of all that they used.
    pub(super) waste_of_hours: f64,
    /// Jobs that finished.
    pub(super) finished: u64,
    /// Nodes taken without notice, taken as noticed, and noticed in vain (Table 3).
    pub(super) sudden: u64,
    pub(super) advanced: u64,
    pub(super) unused: u64,
    /// Nodes that leases got.
    pub(super) taken: u64,
    /// Nodes that leases wanted and nobody had.
    pub(super) unmet: u64,
    /// Nodes present, leased, with jobs, and preempted since the hour before, at each hour.
    pub(super) hourly: Vec<[f64; 4]>,
}

/// What a run is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) trace: &'a CloudTrace,
    pub(super) filling: Filling,
    pub(super) seed: u64,
    /// Coefficient of variation of estimates over run times.
    pub(super) estimate_error: f64,
    /// Nothing is filled: leases alone.
    pub(super) leases_only: bool,
}

struct Plant<'a> {
    setting: Setting<'a>,
    now_s: f64,
    nodes: Vec<Node>,
    /// Hosts that went while they were leased.
    leaving: Vec<bool>,
    /// Nodes that were taken from jobs to be held for a lease.
    held_from_jobs: Vec<bool>,
    /// Nodes of each lease that runs.
    leased: BTreeMap<usize, Vec<usize>>,
    history: History,
    /// What was learnt of it, in this run and in others of the same record: the record is the same whatever is filled.
    learnt: &'a mut Learnt,
    queue: Queue,
    running: BTreeMap<u64, Job>,
    next_job: u64,
    random: Random,
    decision: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    out: Outcome,
    waste_sum: f64,
    used_core_s: f64,
    wasted_core_s: f64,
    cores: Cores,
    integral: [f64; 3],
    samples: [f64; 2],
    sample_count: f64,
    preempted_this_hour: f64,
    next_hour_s: f64,
}

/// Cores by use now; kept up to date node by node.
#[derive(Debug, Clone, Default)]
struct Cores {
    of_node: Vec<[u32; 3]>,
    /// Present, leased, used (leased or by jobs).
    all: [u32; 3],
}

impl Cores {
    fn refresh(&mut self, index: usize, node: &Node, now_s: f64) {
        let new = match node.held {
            Held::Away => [0, 0, 0],
            Held::Leased => [node.cores, node.cores, node.cores],
            Held::Free | Held::Reserved => [node.cores, 0, 0],
            Held::Filled if node.ready_s > now_s => [node.cores, 0, node.cores],
            Held::Filled => [node.cores, 0, node.busy()],
        };
        for (kind, value) in new.into_iter().enumerate() {
            self.all[kind] = self.all[kind] + value - self.of_node[index][kind];
        }
        self.of_node[index] = new;
    }
}

fn milliseconds(at_s: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are not negative; infinity saturates"
    )]
    let value = (at_s.max(0.0) * 1_000.0).round() as u64;
    value
}

/// Plays a trace.
pub(super) fn play<'a>(setting: Setting<'a>, learnt: &'a mut Learnt) -> Outcome {
    let trace = setting.trace;
    let hosts = trace.host_count();
    let mut events = BinaryHeap::new();
    for change in &trace.hosts {
        events.push(Reverse((milliseconds(change.at_s), Event::Host { host: change.host, present: change.present })));
    }
    for (index, lease) in trace.leases.iter().enumerate() {
        events.push(Reverse((milliseconds(lease.start_s), Event::LeaseStarts { lease: index })));
    }
    events.push(Reverse((0, Event::Decide)));
    let mut plant = Plant {
        setting,
        now_s: 0.0,
        nodes: vec![Node { held: Held::Away, ..Node::free(CORES) }; hosts],
        leaving: vec![false; hosts],
        held_from_jobs: vec![false; hosts],
        leased: BTreeMap::new(),
        history: History::default(),
        learnt,
        queue: Queue::new(setting.seed, setting.estimate_error),
        running: BTreeMap::new(),
        next_job: 0,
        random: Random::part(setting.seed, 12),
        decision: 0,
        events,
        out: Outcome::default(),
        waste_sum: 0.0,
        used_core_s: 0.0,
        wasted_core_s: 0.0,
        cores: Cores { of_node: vec![[0; 3]; hosts], all: [0; 3] },
        integral: [0.0; 3],
        samples: [0.0; 2],
        sample_count: 0.0,
        preempted_this_hour: 0.0,
        next_hour_s: 0.0,
    };
    plant.run();
    plant.finish()
}

impl Plant<'_> {
    fn run(&mut self) {
        let end = milliseconds(self.setting.trace.length_s);
        while let Some(Reverse((at, event))) = self.events.pop() {
            if at > end {
                break;
            }
            self.advance(at as f64 / 1_000.0);
            match event {
                Event::JobEnds { node, job } => self.job_ends(node, job),
                Event::Host { host, present } => self.host(host, present),
                Event::LeaseEnds { lease } => self.lease_ends(lease),
                Event::Decide => self.decide(),
                Event::LeaseStarts { lease } => self.lease_starts(lease),
                Event::SetUp { node } => self.start_jobs(node),
            }
        }
        self.advance(self.setting.trace.length_s);
    }

    fn advance(&mut self, to_s: f64) {
        while self.next_hour_s <= to_s {
            let [present, leased, used] = self.cores.all.map(|cores| f64::from(cores) / f64::from(CORES));
            self.out.hourly.push([present, leased, used - leased, self.preempted_this_hour]);
            self.preempted_this_hour = 0.0;
            self.next_hour_s += HOUR_S;
        }
        for (sum, cores) in self.integral.iter_mut().zip(self.cores.all) {
            *sum += f64::from(cores) * (to_s - self.now_s);
        }
        self.now_s = to_s;
    }

    fn at(&mut self, at_s: f64, event: Event) {
        self.events.push(Reverse((milliseconds(at_s), event)));
    }

    fn refresh(&mut self, node: usize) {
        self.cores.refresh(node, &self.nodes[node], self.now_s);
    }

    fn seed(&mut self) -> u64 {
        self.decision += 1;
        self.setting.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(self.decision)
    }

    fn host(&mut self, host: usize, present: bool) {
        match (self.nodes[host].held, present) {
            (Held::Away, true) => self.release(host),
            (Held::Leased, present) => self.leaving[host] = !present,
            (_, false) => {
                self.drop_notice(host);
                self.end_jobs(host);
                self.nodes[host].held = Held::Away;
                self.refresh(host);
            }
            (_, true) => {}
        }
    }

    /// A node is nobody's any more; it is filled at once.
    fn release(&mut self, index: usize) {
        let fill = !self.setting.leases_only;
        let set_up_s = SET_UP_S.0 + (SET_UP_S.1 - SET_UP_S.0) * self.random.uniform();
        // As events have it, so that the node is ready when its event comes.
        let ready_s = milliseconds(self.now_s + set_up_s) as f64 / 1_000.0;
        let node = &mut self.nodes[index];
        (node.held, node.notice) = (if fill { Held::Filled } else { Held::Free }, None);
        (node.deployed_s, node.ready_s) = (self.now_s, ready_s);
        self.refresh(index);
        if fill {
            self.at(ready_s, Event::SetUp { node: index });
        }
    }

    fn job_ends(&mut self, index: usize, number: u64) {
        let Some(position) = self.nodes[index].running.iter().position(|running| running.job == number) else { return };
        self.nodes[index].running.remove(position);
        if let Some(job) = self.running.remove(&number) {
            let useful = f64::from(job.cores) * job.run_s;
            self.used_core_s += useful;
            self.waste_sum += 100.0 * job.wasted_core_s / (job.wasted_core_s + useful);
            self.out.finished += 1;
        }
        self.start_jobs(index);
    }

    fn start_jobs(&mut self, index: usize) {
        while let Some(chosen) = self.setting.filling.place(&self.nodes[index], self.queue.heads(), self.now_s) {
            let Some(job) = self.queue.take(chosen) else { break };
            let number = self.next_job;
            self.next_job += 1;
            self.nodes[index].running.push(Running {
                job: number,
                cores: job.cores,
                started_s: self.now_s,
                estimate_s: Some(job.estimate_s),
                checkpoint_s: None,
                resubmissions: job.resubmissions,
            });
            self.running.insert(number, job);
            self.at(self.now_s + job.run_s, Event::JobEnds { node: index, job: number });
        }
        self.refresh(index);
    }

    /// Its jobs go back to the head of the queue, to start from their initial state.
    fn end_jobs(&mut self, index: usize) {
        for running in std::mem::take(&mut self.nodes[index].running) {
            let Some(mut job) = self.running.remove(&running.job) else { continue };
            let lost = running.lost_core_s(self.now_s);
            job.wasted_core_s += lost;
            job.resubmissions += 1;
            self.wasted_core_s += lost;
            self.used_core_s += lost;
            self.queue.again(job);
        }
    }

    /// A notice, or a node that was held, that was in vain.
    fn drop_notice(&mut self, index: usize) {
        let noticed = self.nodes[index].notice.take().is_some();
        if std::mem::take(&mut self.held_from_jobs[index]) || (noticed && self.nodes[index].held == Held::Filled) {
            self.out.unused += 1;
        }
    }

    fn decide(&mut self) {
        let Some(step_s) = self.setting.filling.step_s().filter(|_| !self.setting.leases_only) else { return };
        self.at(self.now_s + step_s, Event::Decide);
        let (now_s, seed) = (self.now_s, self.seed());
        let filling = self.setting.filling;
        if filling.vacates() {
            // At the end of a slot what was taken from jobs and not used was in vain; the next slot keeps it, as nobody's.
            let kept = self.held_from_jobs.iter_mut().filter(|held| **held);
            self.out.unused += kept.map(|held| *held = false).count() as u64;
        }
        // Leases that were made in advance and begin soon.
        let leases = &self.setting.trace.leases;
        let from = leases.partition_point(|lease| lease.start_s < now_s);
        let soon = leases[from..].iter().take_while(|lease| lease.start_s < now_s + filling.horizon_s());
        let booked = soon.filter(|lease| lease.created_s <= now_s && is_in_advance(lease));
        let known: Vec<Request> = booked.map(|lease| Request { at_s: lease.start_s, nodes: lease.nodes }).collect();
        filling.learn(self.learnt, &self.history, now_s, self.setting.seed);
        let reserve = filling.reserve((self.learnt, &self.history), &known, &self.nodes, now_s, seed);
        for index in reserve.withdrawn {
            self.drop_notice(index);
            match self.nodes[index].held {
                Held::Reserved => self.release(index),
                _ => self.start_jobs(index),
            }
        }
        for (index, notice) in reserve.given {
            if !filling.vacates() {
                self.nodes[index].notice = Some(notice);
                continue;
            }
            self.held_from_jobs[index] = self.nodes[index].held == Held::Filled;
            self.preempted_this_hour += 1.0;
            self.end_jobs(index);
            (self.nodes[index].held, self.nodes[index].notice) = (Held::Reserved, Some(notice));
            self.refresh(index);
        }
        // A gap that was not used is closed: its cores may take jobs again.
        let open = |node: &Node| node.notice.is_some() && node.open(now_s) > 0;
        for index in (0..self.nodes.len()).filter(|&index| open(&self.nodes[index])).collect::<Vec<_>>() {
            self.start_jobs(index);
        }
    }

    fn lease_starts(&mut self, number: usize) {
        let lease = self.setting.trace.leases[number];
        let (count, seed) = (lease.nodes as usize, self.seed());
        let rate = taken_per_hour(&self.history, &self.nodes, self.now_s, WEEK_S);
        let taken = self.setting.filling.take(&self.nodes, count, self.now_s, (rate, seed));
        self.out.unmet += count.saturating_sub(taken.len()) as u64;
        self.out.taken += taken.len() as u64;
        for &(index, how) in &taken {
            match how {
                // A node that was held without having been taken from jobs is none of Table 3.
                Taken::Noticed if self.nodes[index].held == Held::Reserved && !self.held_from_jobs[index] => {}
                Taken::Noticed => self.out.advanced += 1,
                Taken::Sudden => self.out.sudden += 1,
                Taken::Free => {}
            }
            if self.nodes[index].held == Held::Filled {
                self.preempted_this_hour += 1.0;
            }
            self.end_jobs(index);
            self.held_from_jobs[index] = false;
            (self.nodes[index].held, self.nodes[index].notice) = (Held::Leased, None);
            self.refresh(index);
        }
        self.leased.insert(number, taken.into_iter().map(|(index, _)| index).collect());
        if lease.end_s.is_finite() {
            self.at(lease.end_s, Event::LeaseEnds { lease: number });
        }
        if !is_in_advance(&lease) {
            self.history.push(Request { at_s: self.now_s, nodes: lease.nodes });
        }
    }

    fn lease_ends(&mut self, number: usize) {
        for index in self.leased.remove(&number).unwrap_or_default() {
            if std::mem::take(&mut self.leaving[index]) {
                self.nodes[index].held = Held::Away;
                self.refresh(index);
            } else {
                self.release(index);
            }
        }
        let [present, leased, used] = self.cores.all.map(f64::from);
        if present > 0.0 {
            self.samples[0] += 100.0 * used / present;
            self.samples[1] += 100.0 * leased / present;
            self.sample_count += 1.0;
        }
    }

    fn finish(mut self) -> Outcome {
        let [present, leased, used] = self.integral;
        self.out.utilisation = Use {
            over_time: 100.0 * used / present,
            at_ends: self.samples[0] / self.sample_count,
            leased: 100.0 * leased / present,
            leased_at_ends: self.samples[1] / self.sample_count,
        };
        self.out.waste = self.waste_sum / (self.out.finished.max(1) as f64);
        self.out.waste_of_hours = 100.0 * self.wasted_core_s / self.used_core_s.max(1.0);
        self.out
    }
}

#[cfg(test)]
mod tests {
    use gleaner_planner::reservations::preemption::Preemption;
    use gleaner_planner::reservations::surviving::Surviving;
    use gleaner_simulator::leases::{CloudSize, HostChange, generate};

    use super::*;

    fn played(setting: Setting<'_>) -> Outcome {
        play(setting, &mut Learnt::default())
    }

    fn setting(trace: &CloudTrace, filling: Filling) -> Setting<'_> {
        Setting { trace, filling, seed: 3, estimate_error: 0.0, leases_only: false }
    }

    /// Two hosts for ten hours; the second goes after eight.
    fn by_hand() -> CloudTrace {
        let host = |at_s, host, present| HostChange { at_s, host, present };
        let lease = |from_h: f64, to_h: f64, nodes| CloudLease {
            created_s: from_h * HOUR_S,
            start_s: from_h * HOUR_S,
            end_s: to_h * HOUR_S,
            nodes,
        };
        CloudTrace {
            leases: vec![lease(2.0, 4.0, 1), lease(5.0, 6.0, 3)],
            hosts: vec![host(0.0, 0, true), host(0.0, 1, true), host(8.0 * HOUR_S, 1, false)],
            length_s: 10.0 * HOUR_S,
        }
    }

    #[test]
    fn leases_alone_by_hand() {
        let trace = by_hand();
        let outcome = played(Setting { leases_only: true, ..setting(&trace, Filling::Greedy(Preemption::Random)) });
        // 2 + 2 node hours of 18; at the ends of both leases nobody has a node.
        assert!((outcome.utilisation.leased - 100.0 * 4.0 / 18.0).abs() < 1e-6, "{outcome:?}");
        assert!(outcome.utilisation.leased_at_ends.abs() < 1e-9);
        assert_eq!((outcome.taken, outcome.unmet, outcome.sudden, outcome.finished), (3, 1, 0, 0));
    }

    #[test]
    fn greedy_filling_by_hand() {
        let trace = by_hand();
        let outcome = played(setting(&trace, Filling::Greedy(Preemption::RecentlyDeployed)));
        assert_eq!((outcome.taken, outcome.unmet, outcome.sudden), (3, 1, 3));
        assert!(outcome.utilisation.over_time > 99.0, "{outcome:?}");
        assert!(outcome.finished > 0 && outcome.waste > 0.0);
    }

    #[test]
    fn every_node_that_a_lease_gets_is_counted_once() {
        let trace = generate(2, CloudSize { hosts: 30, days: 15 });
        let outcome = played(setting(&trace, Filling::Surviving(Surviving::default())));
        assert_eq!(
            outcome.sudden + outcome.advanced,
            outcome.taken,
            "all nodes are filled, so each was noticed or not"
        );
        assert!(outcome.advanced > 0);
        let all = [outcome.waste, outcome.waste_of_hours, outcome.utilisation.over_time, outcome.utilisation.at_ends];
        assert!(all.iter().all(|percent| (0.0..=100.0).contains(percent)), "{all:?}");
    }
}
