//! The cloud of a question of `gleaner plan fill`. In: the question. Out: what is to be done, by the code in [`crate::reservations`]. Only
//! [`super::fill`] calls it.

use std::collections::BTreeMap;

use gleaner_types::id::{HostId, JobId};
use gleaner_types::text::counted;

use super::answer::{FillAnswer, LeaseHosts, Noticed, Preempted, Started};
use super::checks::{check_hosts, check_jobs, check_leases, check_numbers};
use super::question::{FillNode, FillPolicy, FillQuestion, Lease, NoticeGiven, WaitingJob};
use crate::reservations::fill::{Filling, Taken, taken_per_hour};
use crate::reservations::history::{HOUR_S, History, InvalidHistory, Request};
use crate::reservations::learnt::Learnt;
use crate::reservations::node::{Held, Node, Notice, Running};
use crate::reservations::queue::Queue;
use crate::reservations::surviving::{Waiting, start_cost};
use crate::snapshot::problems::Problems;

/// A lease that was made longer than this before it begins was made in advance (CHISim's published simulator).
const IN_ADVANCE_S: f64 = 120.0;

/// The cloud of a question.
pub(super) struct Cloud<'a> {
    question: &'a FillQuestion,
    filling: Filling,
    history: History,
    nodes: Vec<Node>,
    index: BTreeMap<&'a HostId, usize>,
    /// For each node the first lease to come that names it: its position in the question.
    booked: Vec<Option<usize>>,
}

impl<'a> Cloud<'a> {
    pub(super) fn new(question: &'a FillQuestion) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        problems.version(question.version);
        problems.clone().end()?;
        check_numbers(question, &mut problems);
        let index = check_hosts(question, &mut problems);
        check_leases(question, &index, &mut problems);
        let mut nodes: Vec<Node> = question.nodes.iter().map(node).collect();
        check_jobs(question, &index, &mut nodes, &mut problems);
        for node in &mut nodes {
            if node.held == Held::Filled {
                node.held = without_lease(node);
            }
        }
        let now_s = question.now_s;
        let asked = question.leases.iter().filter(|lease| lease.start_s <= now_s);
        let on_demand = asked.filter(|lease| {
            lease.start_s >= question.record.since_s && lease.start_s - lease.created_s() <= IN_ADVANCE_S
        });
        let requests = on_demand.map(|lease| Request { at_s: lease.start_s, nodes: lease.wanted() }).collect();
        let gaps = question.record.gaps.iter().map(|gap| (gap.from_s, gap.to_s)).collect();
        let history = match History::new(question.record.since_s, requests, gaps) {
            Ok(history) => history,
            Err(invalid) => {
                // Leases in the wrong order were named above.
                if matches!(invalid, InvalidHistory::Gap { .. }) {
                    problems.push(format!("record.{invalid}"));
                }
                History::default()
            }
        };
        problems.end()?;
        let filling = match question.policy {
            FillPolicy::Surviving => Filling::Surviving(question.surviving),
            FillPolicy::Greedy => Filling::Greedy(question.preemption),
            FillPolicy::Predictive => {
                let (forecaster, preemption, scale) = (question.forecaster, question.preemption, question.scale);
                Filling::Predictive { forecaster, preemption, scale }
            }
        };
        let mut booked: Vec<Option<usize>> = vec![None; nodes.len()];
        for (position, lease) in question.leases.iter().enumerate().filter(|(_, lease)| lease.start_s > now_s) {
            for at in lease.hosts.iter().filter_map(|host| index.get(host)) {
                booked[*at] = booked[*at].or(Some(position));
            }
        }
        Ok(Self { question, filling, history, nodes, index, booked })
    }

    fn host(&self, index: usize) -> HostId {
        self.question.nodes[index].host.clone()
    }

    /// The nodes that a lease names.
    fn named(&self, lease: &Lease) -> Vec<usize> {
        lease.hosts.iter().filter_map(|host| self.index.get(host).copied()).collect()
    }

    /// When the first lease to come that names a node begins.
    fn booked_s(&self, index: usize) -> Option<f64> {
        self.booked[index].map(|position| self.question.leases[position].start_s)
    }

    fn names(&self, running: &[Running]) -> Vec<JobId> {
        let told = running.iter().filter_map(|own| self.question.running.get(usize::try_from(own.job).ok()?));
        told.map(|own| own.job.clone()).collect()
    }

    /// Ends the jobs of a node, if it has any.
    fn end(&mut self, index: usize, (at_s, notice_s): (f64, f64), reason: String, answer: &mut FillAnswer) {
        let lost_core_s = self.nodes[index].lost_core_s(at_s);
        let running = std::mem::take(&mut self.nodes[index].running);
        if !running.is_empty() {
            let (host, jobs) = (self.host(index), self.names(&running));
            answer.preempt.push(Preempted { host, jobs, at_s, notice_s, lost_core_s, reason });
        }
    }

    /// Leases that run have their hosts, or get them.
    pub(super) fn leases_begin(&mut self, answer: &mut FillAnswer) {
        let question = self.question;
        let now_s = question.now_s;
        let runs = |lease: &&Lease| lease.start_s <= now_s && now_s < lease.end_s;
        for lease in question.leases.iter().filter(runs) {
            for index in self.named(lease) {
                let notice_s = self.nodes[index].notice.map_or(0.0, |notice| now_s - notice.given_s);
                self.end(index, (now_s, notice_s), format!("lease {} has this host", lease.lease), answer);
                (self.nodes[index].held, self.nodes[index].notice) = (Held::Leased, None);
            }
        }
        let rate = taken_per_hour(&self.history, &self.nodes, now_s, f64::from(question.scale.window_h) * HOUR_S);
        let mut left = self.nodes.iter().filter(|node| may_be_taken(node)).count();
        for (position, lease) in question.leases.iter().enumerate().filter(|(_, lease)| runs(lease)) {
            let wanted = (lease.wanted() as usize).saturating_sub(lease.hosts.len());
            if wanted == 0 {
                continue;
            }
            let seed = question.seed.wrapping_add(position as u64);
            let (taken, booked) = match left {
                0 => (Vec::new(), 0),
                _ => self.take(lease, wanted, (rate, seed)),
            };
            left -= taken.len();
            let mut hosts = lease.hosts.clone();
            for &(index, how) in &taken {
                hosts.push(self.host(index));
                let notice = self.nodes[index].notice.filter(|_| how == Taken::Noticed);
                let notice_s = notice.map_or(0.0, |notice| now_s - notice.given_s);
                let how = if how == Taken::Noticed { "it had notice" } else { "the forecast did not expect it" };
                self.end(index, (now_s, notice_s), format!("lease {} begins; {how}", lease.lease), answer);
                (self.nodes[index].held, self.nodes[index].notice) = (Held::Leased, None);
            }
            let missing = wanted - taken.len();
            answer.leases.push(LeaseHosts {
                lease: lease.lease.clone(),
                hosts,
                missing: count(missing),
                booked: count(booked.min(missing)),
            });
        }
    }

    /// The nodes that a lease gets now; and how many others it could have, if leases that name them did not begin before it ends.
    fn take(&mut self, lease: &Lease, wanted: usize, chance: (f64, u64)) -> (Vec<(usize, Taken)>, usize) {
        let (now_s, horizon_s) = (self.question.now_s, self.filling.horizon_s());
        let (mut changed, mut booked) = (Vec::new(), 0);
        for index in 0..self.nodes.len() {
            let Some(begins_s) = self.booked_s(index) else { continue };
            let node = &mut self.nodes[index];
            changed.push((index, node.held, node.notice));
            if begins_s < lease.end_s {
                booked += usize::from(may_be_taken(node));
                node.held = Held::Leased;
            }
            // Notice that a lease begins later is none for this one.
            if begins_s <= now_s + horizon_s {
                node.notice = None;
            }
        }
        let taken = self.filling.take(&self.nodes, wanted, now_s, chance);
        for (index, held, notice) in changed {
            (self.nodes[index].held, self.nodes[index].notice) = (held, notice);
        }
        (taken, booked)
    }

    /// Who gets notice and whose is taken back.
    pub(super) fn give_notice(&mut self, answer: &mut FillAnswer) {
        let question = self.question;
        let (now_s, horizon_s) = (question.now_s, self.filling.horizon_s());
        let released = self.release_held();
        let leases = question.leases.iter().enumerate();
        let soon = leases.filter(|(_, lease)| lease.start_s > now_s && lease.start_s <= now_s + horizon_s);
        // Hosts that a lease names have notice of their own; what it wants beyond is taken where it costs least.
        let mut known: Vec<Request> = Vec::new();
        for (position, lease) in soon {
            known.push(Request {
                at_s: lease.start_s,
                nodes: lease.wanted().saturating_sub(u32::try_from(lease.hosts.len()).unwrap_or(u32::MAX)),
            });
            for index in self.named(lease) {
                // Later leases of a host end none of the jobs that are there now.
                if self.booked[index] == Some(position) {
                    self.name_lease(index, lease, answer);
                }
            }
        }
        let mut candidates = self.nodes.clone();
        for (index, node) in candidates.iter_mut().enumerate() {
            if self.booked_s(index).is_some_and(|begins_s| begins_s <= now_s + horizon_s) {
                node.held = Held::Leased;
            }
        }
        let mut learnt = Learnt::default();
        self.filling.learn(&mut learnt, &self.history, now_s, question.seed);
        let reserve = self.filling.reserve((&learnt, &self.history), &known, &candidates, now_s, question.seed);
        (answer.wanted, answer.unknown) = (reserve.wanted, reserve.unknown);
        for index in reserve.withdrawn {
            answer.withdrawn.push(self.host(index));
            let node = &mut self.nodes[index];
            node.notice = None;
            if node.held == Held::Reserved {
                node.held = without_lease(node);
            }
        }
        let reserved = self.filling.vacates();
        for (index, notice) in reserve.given {
            let percent = 100.0 * notice.probability;
            let reason = if reserved {
                format!("the forecast wants {} in the next slot", counted(reserve.wanted, "node"))
            } else {
                format!("{percent:.0} % likely to be taken; it loses least of all nodes")
            };
            if reserved {
                self.end(index, (now_s, notice.wanted_s - now_s), reason.clone(), answer);
                self.nodes[index].held = Held::Reserved;
            }
            self.nodes[index].notice = Some(notice);
            answer.notices.push(Noticed { host: self.host(index), notice: told(notice), reserved, reason });
        }
        let unnoticed = released.into_iter().filter(|index| self.nodes[*index].notice.is_none());
        answer.withdrawn.extend(unnoticed.map(|index| self.host(index)));
    }

    /// Gives back the nodes that another policy has held for leases; this one would never do so. Returns which these are.
    fn release_held(&mut self) -> Vec<usize> {
        if self.filling.vacates() {
            return Vec::new();
        }
        let held: Vec<usize> =
            (0..self.nodes.len()).filter(|index| self.nodes[*index].held == Held::Reserved).collect();
        for index in &held {
            let node = &mut self.nodes[*index];
            (node.held, node.notice) = (without_lease(node), None);
        }
        held
    }

    /// A lease that names this node begins soon: what does not end before is ended then.
    fn name_lease(&mut self, index: usize, lease: &Lease, answer: &mut FillAnswer) {
        let now_s = self.question.now_s;
        if !matches!(self.nodes[index].held, Held::Filled | Held::Free) {
            return;
        }
        let (given_s, at_s) = (self.nodes[index].notice.map_or(now_s, |notice| notice.given_s), lease.start_s);
        let notice = Notice { given_s, wanted_s: at_s, latest_s: at_s, until_s: lease.end_s, probability: 1.0 };
        self.nodes[index].notice = Some(notice);
        let (host, reason) = (self.host(index), format!("lease {} begins here", lease.lease));
        let told = told(notice);
        answer.notices.push(Noticed { host: host.clone(), notice: told, reserved: false, reason: reason.clone() });
        let late = |running: &Running| running.remaining_s(now_s).is_none_or(|left_s| now_s + left_s > at_s);
        let lost: Vec<Running> = self.nodes[index].running.iter().copied().filter(late).collect();
        if lost.is_empty() {
            return;
        }
        answer.preempt.push(Preempted {
            host,
            jobs: self.names(&lost),
            at_s,
            notice_s: at_s - given_s,
            lost_core_s: lost.iter().map(|running| running.lost_core_s(at_s)).sum(),
            reason: format!("{reason}; they do not end before"),
        });
    }

    /// Which jobs start where.
    pub(super) fn start(&mut self, answer: &mut FillAnswer) {
        let question = self.question;
        let now_s = question.now_s;
        let jobs: Vec<Waiting> = question.waiting.iter().map(waiting).collect();
        let mut queue = Queue::new(&jobs);
        for index in 0..self.nodes.len() {
            if self.nodes[index].held == Held::Free {
                self.nodes[index].held = Held::Filled;
            }
            let node = &self.nodes[index];
            let gap = self.filling.gap(node, self.booked_s(index), now_s);
            let mut open = node.open(now_s);
            while let Some(chosen) = queue.take(open, gap, now_s) {
                open -= jobs[chosen].cores;
                let waste_core_s = gap.map_or(0.0, |gap| start_cost(&jobs[chosen], gap, now_s));
                let job = question.waiting[chosen].job.clone();
                answer.start.push(Started { job, host: self.host(index), waste_core_s });
            }
        }
    }
}

fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}

fn may_be_taken(node: &Node) -> bool {
    !matches!(node.held, Held::Leased | Held::Away)
}

/// Who has a node that no lease has.
fn without_lease(node: &Node) -> Held {
    if node.running.is_empty() { Held::Free } else { Held::Filled }
}

fn node(told: &FillNode) -> Node {
    let held = match (told.present, told.reserved) {
        (false, _) => Held::Away,
        (true, true) => Held::Reserved,
        (true, false) => Held::Filled,
    };
    let notice = told.notice.map(|notice| Notice {
        given_s: notice.given_s,
        wanted_s: notice.wanted_s,
        latest_s: notice.latest_s,
        until_s: notice.until_s,
        probability: notice.probability,
    });
    let (cores, deployed_s, ready_s) = (told.cores, told.deployed_s, told.ready_s);
    Node { cores, held, deployed_s, ready_s, running: Vec::new(), notice }
}

fn told(notice: Notice) -> NoticeGiven {
    let Notice { given_s, wanted_s, latest_s, until_s, probability } = notice;
    NoticeGiven { given_s, wanted_s, latest_s, until_s, probability }
}

fn waiting(job: &WaitingJob) -> Waiting {
    Waiting { cores: job.cores, estimate_s: job.estimate_s, checkpoint_s: job.checkpoint_s }
}
