//! Filling the gaps between reservations as a question and an answer, for `gleaner plan fill`. In: leases, nodes, running and waiting jobs, a
//! policy. Out: what to start where, which nodes get notice, and which jobs are ended for which lease, by the code in [`crate::reservations`].

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::{HostId, JobId};
use serde::{Deserialize, Serialize};

use super::problems::Problems;
use crate::reservations::Unknown;
use crate::reservations::fill::{Filling, Taken, taken_per_hour};
use crate::reservations::forecast::{Forecaster, Scale};
use crate::reservations::history::{HOUR_S, History, Request};
use crate::reservations::node::{Held, Node, Notice, Running};
use crate::reservations::preemption::Preemption;
use crate::reservations::surviving::{Gap, Surviving, Waiting, gap, start_cost};

/// A lease that was made longer than this before it begins was made in advance (CHISim's published simulator).
const IN_ADVANCE_S: f64 = 120.0;
/// Seconds that a time may be.
const LONGEST_S: f64 = 1e12;
/// Most cores of a node.
const MOST_CORES: u32 = 100_000;

/// A question. All times are in seconds from the same zero, which is yours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillQuestion {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// The time of the decision.
    pub now_s: f64,
    /// How gaps are filled.
    #[serde(default)]
    pub policy: FillPolicy,
    /// Who is preempted, under `greedy` and `predictive`.
    #[serde(default)]
    pub preemption: Preemption,
    /// The forecast of `predictive`.
    #[serde(default)]
    pub forecaster: Forecaster,
    /// Its window and slot.
    #[serde(default)]
    pub scale: Scale,
    /// What notice is worth under `surviving`.
    #[serde(default)]
    pub surviving: Surviving,
    /// Chance is this seed's.
    #[serde(default)]
    pub seed: u64,
    /// What the record of leases covers.
    pub record: Record,
    /// Leases so far and to come, in the order of their starts.
    #[serde(default)]
    pub leases: Vec<Lease>,
    /// The nodes.
    pub nodes: Vec<FillNode>,
    /// Jobs on them.
    #[serde(default)]
    pub running: Vec<RunningJob>,
    /// Jobs that wait, the first first.
    #[serde(default)]
    pub waiting: Vec<WaitingJob>,
}

/// How gaps are filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillPolicy {
    /// Ours: by the probability that work survives.
    #[default]
    Surviving,
    /// CHISim's: as many nodes as the forecast says are emptied at the begin of a slot.
    Predictive,
    /// Everything is filled and nobody gets notice.
    Greedy,
}

/// What the record of leases covers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// When it begins.
    pub since_s: f64,
    /// Spans in which nothing was recorded.
    #[serde(default)]
    pub gaps: Vec<RecordGap>,
}

/// A span without a record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordGap {
    /// Where it begins.
    pub from_s: f64,
    /// Where it ends.
    pub to_s: f64,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Its name; only for the reader.
    pub lease: String,
    /// When it was asked for; at its start where left out.
    #[serde(default)]
    pub created_s: Option<f64>,
    /// When it begins.
    pub start_s: f64,
    /// When it ends.
    pub end_s: f64,
    /// How many nodes; as many as hosts where left out.
    #[serde(default)]
    pub nodes: Option<u32>,
    /// The hosts that it has or will have; one that runs without any is given hosts now.
    #[serde(default)]
    pub hosts: Vec<HostId>,
}

impl Lease {
    fn wanted(&self) -> u32 {
        self.nodes.unwrap_or_else(|| u32::try_from(self.hosts.len()).unwrap_or(u32::MAX))
    }

    fn created_s(&self) -> f64 {
        self.created_s.unwrap_or(self.start_s)
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillNode {
    /// Its name.
    pub host: HostId,
    /// Cores for jobs.
    pub cores: u32,
    /// It may be used; false is switched off or broken.
    #[serde(default = "yes")]
    pub present: bool,
    /// When jobs got it; unknown counts as long ago.
    #[serde(default)]
    pub deployed_s: f64,
    /// When it is set up for jobs.
    #[serde(default)]
    pub ready_s: f64,
    /// When its jobs were given notice, as in an earlier answer.
    #[serde(default)]
    pub notice: Option<NoticeGiven>,
    /// Its jobs were ended for a lease that is expected, as in an earlier answer.
    #[serde(default)]
    pub reserved: bool,
}

fn yes() -> bool {
    true
}

/// Notice that was given before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoticeGiven {
    /// When.
    pub given_s: f64,
    /// When the node is wanted at the earliest.
    pub wanted_s: f64,
    /// When at the latest.
    pub latest_s: f64,
    /// When the notice ends.
    pub until_s: f64,
    /// The probability that the node is taken.
    pub probability: f64,
}

/// A job on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunningJob {
    /// Its name.
    pub job: JobId,
    /// Where.
    pub host: HostId,
    /// Cores.
    pub cores: u32,
    /// When it started.
    pub started_s: f64,
    /// How long it will run in all, where known.
    #[serde(default)]
    pub estimate_s: Option<f64>,
    /// Time between its checkpoints; without any it starts from its beginning again.
    #[serde(default)]
    pub checkpoint_s: Option<f64>,
    /// How often it was preempted before.
    #[serde(default)]
    pub resubmissions: u32,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitingJob {
    /// Its name.
    pub job: JobId,
    /// Cores.
    pub cores: u32,
    /// How long it will run, where known.
    #[serde(default)]
    pub estimate_s: Option<f64>,
    /// Time between its checkpoints.
    #[serde(default)]
    pub checkpoint_s: Option<f64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FillAnswer {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// The policy that was asked for.
    pub policy: FillPolicy,
    /// Nodes that should have notice now.
    pub wanted: usize,
    /// Why there is no forecast; then only leases that are known count.
    pub unknown: Option<Unknown>,
    /// The hosts that leases get now.
    pub leases: Vec<LeaseHosts>,
    /// Nodes whose jobs end, now or when a lease begins.
    pub preempt: Vec<Preempted>,
    /// Nodes that have notice from now on.
    pub notices: Vec<Noticed>,
    /// Hosts whose notice is taken back.
    pub withdrawn: Vec<HostId>,
    /// Jobs that start now.
    pub start: Vec<Started>,
}

/// Hosts of a lease.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeaseHosts {
    /// The lease.
    pub lease: String,
    /// Its hosts.
    pub hosts: Vec<HostId>,
    /// Nodes that it wants and nobody can give.
    pub missing: u32,
}

/// A node whose jobs end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preempted {
    /// The host.
    pub host: HostId,
    /// The jobs, which wait again.
    pub jobs: Vec<JobId>,
    /// When they end.
    pub at_s: f64,
    /// How long before they had word of it; 0 is without notice.
    pub notice_s: f64,
    /// Core seconds of work that are lost.
    pub lost_core_s: f64,
    /// Why.
    pub reason: String,
}

/// A node with notice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Noticed {
    /// The host.
    pub host: HostId,
    /// The notice; give it back in the next question.
    pub notice: NoticeGiven,
    /// Why.
    pub reason: String,
}

/// A job that starts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Started {
    /// The job.
    pub job: JobId,
    /// Where.
    pub host: HostId,
    /// Core seconds that are lost in expectation.
    pub waste_core_s: f64,
}

/// Answers a question.
///
/// # Errors
/// Every field that is wrong.
pub fn fill(question: &FillQuestion) -> Result<FillAnswer, Problems> {
    let mut cloud = Cloud::new(question)?;
    let mut answer = FillAnswer {
        version: super::VERSION,
        policy: question.policy,
        wanted: 0,
        unknown: None,
        leases: Vec::new(),
        preempt: Vec::new(),
        notices: Vec::new(),
        withdrawn: Vec::new(),
        start: Vec::new(),
    };
    cloud.leases_begin(&mut answer);
    cloud.give_notice(&mut answer);
    cloud.start(&mut answer);
    Ok(answer)
}

/// The cloud of a question.
struct Cloud<'a> {
    question: &'a FillQuestion,
    filling: Filling,
    history: History,
    nodes: Vec<Node>,
    index: BTreeMap<&'a HostId, usize>,
    /// When the next lease that names a node begins there.
    booked: Vec<Option<f64>>,
}

impl<'a> Cloud<'a> {
    fn new(question: &'a FillQuestion) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        problems.version(question.version);
        problems.clone().end()?;
        check_numbers(question, &mut problems);
        let mut index = BTreeMap::new();
        for (position, node) in question.nodes.iter().enumerate() {
            if index.insert(&node.host, position).is_some() {
                problems.push(format!("nodes[{position}].host: is {}; it must be named once", node.host));
            }
        }
        check_leases(question, &index, &mut problems);
        let mut nodes: Vec<Node> = question.nodes.iter().map(node).collect();
        check_jobs(question, &index, &mut nodes, &mut problems);
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
                problems.push(format!("record.{invalid}"));
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
        let booked = vec![None; nodes.len()];
        Ok(Self { question, filling, history, nodes, index, booked })
    }

    fn host(&self, index: usize) -> HostId {
        self.question.nodes[index].host.clone()
    }

    /// Ends the jobs of a node.
    fn end(&mut self, index: usize, (at_s, notice_s): (f64, f64), reason: String) -> Preempted {
        let node = &mut self.nodes[index];
        let lost_core_s = node.lost_core_s(at_s);
        let positions = std::mem::take(&mut node.running).into_iter().map(|running| running.job);
        let jobs = positions.filter_map(|job| self.question.running.get(usize::try_from(job).ok()?));
        let jobs = jobs.map(|running| running.job.clone()).collect();
        Preempted { host: self.host(index), jobs, at_s, notice_s, lost_core_s, reason }
    }

    /// Leases that run have their hosts, or get them; those that will begin book theirs.
    fn leases_begin(&mut self, answer: &mut FillAnswer) {
        let question = self.question;
        let now_s = question.now_s;
        let runs = |lease: &&Lease| lease.start_s <= now_s && now_s < lease.end_s;
        for lease in question.leases.iter().filter(runs) {
            for index in lease.hosts.iter().filter_map(|host| self.index.get(host).copied()).collect::<Vec<_>>() {
                let notice_s = self.nodes[index].notice.map_or(0.0, |notice| now_s - notice.given_s);
                if !self.nodes[index].running.is_empty() {
                    let reason = format!("lease {} has this host", lease.lease);
                    let ended = self.end(index, (now_s, notice_s), reason);
                    answer.preempt.push(ended);
                }
                (self.nodes[index].held, self.nodes[index].notice) = (Held::Leased, None);
            }
        }
        let rate = taken_per_hour(&self.history, &self.nodes, now_s, f64::from(question.scale.window_h) * HOUR_S);
        for (position, lease) in question.leases.iter().enumerate().filter(|(_, lease)| runs(lease)) {
            let missing = (lease.wanted() as usize).saturating_sub(lease.hosts.len());
            if missing == 0 {
                continue;
            }
            let seed = question.seed.wrapping_add(position as u64);
            let taken = self.filling.take(&self.nodes, missing, now_s, (rate, seed));
            let mut hosts = lease.hosts.clone();
            for &(index, how) in &taken {
                hosts.push(self.host(index));
                if !self.nodes[index].running.is_empty() {
                    let given_s = self.nodes[index].notice.map_or(now_s, |notice| notice.given_s);
                    let how = if how == Taken::Noticed { "it had notice" } else { "the forecast did not expect it" };
                    let ended =
                        self.end(index, (now_s, now_s - given_s), format!("lease {} begins; {how}", lease.lease));
                    answer.preempt.push(ended);
                }
                (self.nodes[index].held, self.nodes[index].notice) = (Held::Leased, None);
            }
            let missing = u32::try_from(missing - taken.len()).unwrap_or(u32::MAX);
            answer.leases.push(LeaseHosts { lease: lease.lease.clone(), hosts, missing });
        }
        for lease in question.leases.iter().filter(|lease| lease.start_s > now_s) {
            for index in lease.hosts.iter().filter_map(|host| self.index.get(host)) {
                let begins_s = self.booked[*index].map_or(lease.start_s, |booked_s| booked_s.min(lease.start_s));
                self.booked[*index] = Some(begins_s);
            }
        }
    }

    fn give_notice(&mut self, answer: &mut FillAnswer) {
        let question = self.question;
        let (now_s, horizon_s) = (question.now_s, self.filling.horizon_s());
        let soon = question.leases.iter().filter(|lease| lease.start_s > now_s && lease.start_s <= now_s + horizon_s);
        // Hosts that a lease names have notice of their own; what it wants beyond is taken where it costs least.
        let mut known: Vec<Request> = Vec::new();
        for lease in soon {
            known.push(Request {
                at_s: lease.start_s,
                nodes: lease.wanted().saturating_sub(u32::try_from(lease.hosts.len()).unwrap_or(u32::MAX)),
            });
            for index in lease.hosts.iter().filter_map(|host| self.index.get(host).copied()).collect::<Vec<_>>() {
                self.name_lease(index, lease, answer);
            }
        }
        let mut candidates = self.nodes.clone();
        for (node, booked) in candidates.iter_mut().zip(&self.booked) {
            if booked.is_some_and(|begins_s| begins_s <= now_s + horizon_s) {
                node.held = Held::Leased;
            }
        }
        let reserve = self.filling.reserve(&self.history, &known, &candidates, now_s, question.seed);
        (answer.wanted, answer.unknown) = (reserve.wanted, reserve.unknown);
        for index in reserve.withdrawn {
            answer.withdrawn.push(self.host(index));
            self.nodes[index].notice = None;
            if self.nodes[index].held == Held::Reserved {
                self.nodes[index].held = Held::Filled;
            }
        }
        for (index, notice) in reserve.given {
            let percent = 100.0 * notice.probability;
            let reason = if self.filling.vacates() {
                format!("the forecast wants {} nodes in the next slot", reserve.wanted)
            } else {
                format!("{percent:.0} % likely to be taken; it loses least of all nodes")
            };
            if self.filling.vacates() {
                let ended = self.end(index, (now_s, notice.wanted_s - now_s), reason.clone());
                answer.preempt.push(ended);
                self.nodes[index].held = Held::Reserved;
            }
            self.nodes[index].notice = Some(notice);
            answer.notices.push(Noticed { host: self.host(index), notice: told(notice), reason });
        }
    }

    /// A lease that names this node begins soon: what does not end before is ended then.
    fn name_lease(&mut self, index: usize, lease: &Lease, answer: &mut FillAnswer) {
        let now_s = self.question.now_s;
        if self.nodes[index].held != Held::Filled {
            return;
        }
        let (given_s, at_s) = (self.nodes[index].notice.map_or(now_s, |notice| notice.given_s), lease.start_s);
        let notice = Notice { given_s, wanted_s: at_s, latest_s: at_s, until_s: lease.end_s, probability: 1.0 };
        self.nodes[index].notice = Some(notice);
        let reason = format!("lease {} begins here", lease.lease);
        answer.notices.push(Noticed { host: self.host(index), notice: told(notice), reason: reason.clone() });
        let late = |running: &Running| running.remaining_s(now_s).is_none_or(|left_s| now_s + left_s > at_s);
        let lost: Vec<Running> = self.nodes[index].running.iter().copied().filter(late).collect();
        if lost.is_empty() {
            return;
        }
        let lost_core_s = lost.iter().map(|running| running.lost_core_s(at_s)).sum();
        let jobs = lost.iter().filter_map(|running| self.question.running.get(usize::try_from(running.job).ok()?));
        let jobs = jobs.map(|running| running.job.clone()).collect();
        answer.preempt.push(Preempted {
            host: self.host(index),
            jobs,
            at_s,
            notice_s: at_s - given_s,
            lost_core_s,
            reason: format!("{reason}; they do not end before"),
        });
    }

    fn start(&mut self, answer: &mut FillAnswer) {
        let question = self.question;
        let now_s = question.now_s;
        let mut left: Vec<usize> = (0..question.waiting.len()).collect();
        let mut jobs: Vec<Waiting> = question.waiting.iter().map(waiting).collect();
        let mut number = question.running.len() as u64;
        for index in 0..self.nodes.len() {
            if self.nodes[index].held == Held::Free {
                self.nodes[index].held = Held::Filled;
            }
            let within = |begins_s: &f64| matches!(self.filling, Filling::Surviving(_)) && *begins_s > now_s;
            let booked = self.booked[index].filter(within);
            // A lease that is further away than notice reaches is a gap all the same.
            let mut node = self.nodes[index].clone();
            if let (None, Some(at_s)) = (node.notice, booked) {
                let (given_s, until_s) = (now_s, at_s);
                node.notice = Some(Notice { given_s, wanted_s: at_s, latest_s: at_s, until_s, probability: 1.0 });
            }
            while let Some(chosen) = self.filling.place(&node, &jobs, now_s) {
                let job = &question.waiting[left.remove(chosen)];
                let started = jobs.remove(chosen);
                let closed = Gap { ends_s: now_s, probability: 0.0 };
                let waste_core_s = start_cost(&started, gap(node.notice, now_s).unwrap_or(closed), now_s);
                answer.start.push(Started { job: job.job.clone(), host: self.host(index), waste_core_s });
                node.running.push(Running {
                    job: number,
                    cores: job.cores,
                    started_s: now_s,
                    estimate_s: job.estimate_s,
                    checkpoint_s: job.checkpoint_s,
                    resubmissions: 0,
                });
                number += 1;
            }
        }
    }
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

fn check_numbers(question: &FillQuestion, problems: &mut Problems) {
    let time = |problems: &mut Problems, field: String, at_s: f64| problems.within(&field, at_s, -LONGEST_S, LONGEST_S);
    time(problems, "now_s".to_owned(), question.now_s);
    problems.within("record.since_s", question.record.since_s, -LONGEST_S, question.now_s);
    problems.within("scale.window_h", question.scale.window_h.into(), 1.0, 100_000.0);
    problems.within("scale.slot_h", question.scale.slot_h.into(), 1.0, question.scale.window_h.into());
    problems.within("surviving.horizon_s", question.surviving.horizon_s, 60.0, 24.0 * HOUR_S);
    problems.within("surviving.days", question.surviving.days.into(), 1.0, 366.0);
    problems.within("surviving.unused_per_sudden", question.surviving.unused_per_sudden, 0.0, 1e6);
    problems.within("surviving.notice_core_s", question.surviving.notice_core_s, 0.0, 1e12);
    problems.count("nodes", question.nodes.len(), 1);
    problems.count("leases", question.leases.len(), 0);
    problems.count("running", question.running.len(), 0);
    problems.count("waiting", question.waiting.len(), 0);
    for (position, node) in question.nodes.iter().enumerate() {
        let field = |name: &str| format!("nodes[{position}] ({}).{name}", node.host);
        problems.within(&field("cores"), node.cores.into(), 1.0, MOST_CORES.into());
        time(problems, field("deployed_s"), node.deployed_s);
        time(problems, field("ready_s"), node.ready_s);
        if let Some(notice) = node.notice {
            problems.within(&field("notice.probability"), notice.probability, 0.0, 1.0);
            problems.within(&field("notice.given_s"), notice.given_s, -LONGEST_S, question.now_s);
            for (name, at_s) in
                [("wanted_s", notice.wanted_s), ("latest_s", notice.latest_s), ("until_s", notice.until_s)]
            {
                time(problems, field(&format!("notice.{name}")), at_s);
            }
        }
    }
}

fn check_leases(question: &FillQuestion, index: &BTreeMap<&HostId, usize>, problems: &mut Problems) {
    let present = question.nodes.iter().filter(|node| node.present).count();
    let (mut least_s, mut spans) = (-LONGEST_S, BTreeMap::<&HostId, (f64, usize)>::new());
    for (position, lease) in question.leases.iter().enumerate() {
        let field = |name: &str| format!("leases[{position}] ({}).{name}", lease.lease);
        if lease.start_s < least_s || !lease.start_s.is_finite() {
            let (start_s, rule) = (lease.start_s, "leases must be in the order of their starts");
            problems.push(format!("{}: is {start_s}; it must be at least {least_s}: {rule}", field("start_s")));
        }
        least_s = least_s.max(lease.start_s);
        let ends = lease.end_s > lease.start_s && lease.end_s <= LONGEST_S;
        if !ends {
            let (end_s, start_s) = (lease.end_s, lease.start_s);
            problems.push(format!("{}: is {end_s}; it must be after start_s, {start_s}", field("end_s")));
        }
        if let Some(created_s) = lease.created_s {
            problems.within(&field("created_s"), created_s, -LONGEST_S, lease.start_s.min(question.now_s));
        } else if lease.start_s > question.now_s {
            let text = "is missing; a lease that begins after now_s must say when it was made";
            problems.push(format!("{}: {text}", field("created_s")));
        }
        // Of leases that are over only the number counts; the cloud may have been larger then.
        let most = if lease.end_s > question.now_s { present.max(lease.hosts.len()) as f64 } else { 1e6 };
        problems.within(&field("nodes"), lease.wanted().into(), lease.hosts.len().max(1) as f64, most);
        if lease.end_s <= question.now_s {
            continue;
        }
        for host in &lease.hosts {
            if !index.contains_key(host) {
                problems.push(format!("{}: is {host}; it must be one of nodes[]", field("hosts")));
            }
            match spans.get(host) {
                Some((end_s, other)) if lease.start_s < *end_s => {
                    let other = &question.leases[*other].lease;
                    problems.push(format!(
                        "{}: {host} has lease {other} until {end_s}; leases of one host must not overlap",
                        field("hosts")
                    ));
                }
                _ => {
                    spans.insert(host, (lease.end_s, position));
                }
            }
        }
    }
}

fn check_jobs(question: &FillQuestion, index: &BTreeMap<&HostId, usize>, nodes: &mut [Node], problems: &mut Problems) {
    let widest = question.nodes.iter().map(|node| node.cores).max().unwrap_or(0);
    let mut names = BTreeSet::new();
    let times = |problems: &mut Problems, field: &dyn Fn(&str) -> String, times: [Option<f64>; 2]| {
        for (name, value) in ["estimate_s", "checkpoint_s"].into_iter().zip(times) {
            if let Some(value) = value {
                problems.within(&field(name), value, 0.001, LONGEST_S);
            }
        }
    };
    for (position, job) in question.running.iter().enumerate() {
        let field = |name: &str| format!("running[{position}] ({}).{name}", job.job);
        if !names.insert(&job.job) {
            problems.push(format!("{}: is named twice", field("job")));
        }
        problems.within(&field("started_s"), job.started_s, -LONGEST_S, question.now_s);
        times(problems, &field, [job.estimate_s, job.checkpoint_s]);
        let Some(&at) = index.get(&job.host) else {
            problems.push(format!("{}: is {}; it must be one of nodes[]", field("host"), job.host));
            continue;
        };
        let room = nodes[at].cores.saturating_sub(nodes[at].busy());
        problems.within(&field("cores"), job.cores.into(), 1.0, room.into());
        nodes[at].running.push(Running {
            job: position as u64,
            cores: job.cores.min(room),
            started_s: job.started_s,
            estimate_s: job.estimate_s,
            checkpoint_s: job.checkpoint_s,
            resubmissions: job.resubmissions,
        });
    }
    for (position, job) in question.waiting.iter().enumerate() {
        let field = |name: &str| format!("waiting[{position}] ({}).{name}", job.job);
        if !names.insert(&job.job) {
            problems.push(format!("{}: is named twice", field("job")));
        }
        problems.within(&field("cores"), job.cores.into(), 1.0, widest.into());
        times(problems, &field, [job.estimate_s, job.checkpoint_s]);
    }
}

#[cfg(test)]
mod tests;
