//! Jobs on clusters: who gets which hosts, what happens when hosts go, are held or refuse.

use std::collections::BTreeSet;

use gleaner_types::job::{ClusterSpec, DedicatedHost, WorkerProgress};
use gleaner_types::report::PromiseWindows;
use gleaner_types::stages::{DecidedBy, Stage, StageOnHost, StageOpinion, Stages, StagesSeen};

use super::*;

pub(super) fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

pub(super) fn cluster(name: &str, dedicated: &[&str]) -> JobSpec {
    let dedicated = dedicated.iter().map(|name| DedicatedHost { host: host(name), disk: 1.0 }).collect();
    let workers =
        Workers::Hosts(ClusterSpec { dedicated, max_volunteers: None, max_slots_per_host: None, weight: 1.0 });
    JobSpec { engine: EngineSpec::without_options("simulated"), workers, ..spec(name, Goal::Cost { budget: None }) }
}

/// A bench of several hosts of four cores, whose volunteers use all they may.
struct Room {
    bench: Bench,
    hosts: Vec<HostId>,
    done: f64,
    tasks_done: u32,
    /// Volunteers report running tasks whether they have slots or not.
    draining: bool,
    /// What the engine was last told, per job.
    slots: BTreeMap<String, BTreeMap<HostId, u32>>,
    capped: BTreeMap<HostId, f64>,
    /// Hosts that no task of any job can use.
    unusable: BTreeSet<HostId>,
    /// What the engine tells of every job's stages.
    stages: Stages,
    /// Hosts on which no task runs, though they have slots.
    idle: BTreeSet<HostId>,
    /// Jobs of which it was said last that they miss their goals.
    at_risk: BTreeSet<JobId>,
}

impl Room {
    fn new(hosts: &[&str]) -> Self {
        let mut room = Self {
            bench: Bench::new(),
            hosts: hosts.iter().map(|name| host(name)).collect(),
            done: 0.0,
            tasks_done: 0,
            draining: false,
            slots: BTreeMap::new(),
            capped: BTreeMap::new(),
            unusable: BTreeSet::new(),
            stages: Stages::NotTold,
            idle: BTreeSet::new(),
            at_risk: BTreeSet::new(),
        };
        for id in room.hosts.clone() {
            room.send(Input::HostJoined { host: id, incarnation: 1, facts: Box::new(facts(true)) });
        }
        room.second();
        room
    }

    /// Submits a job that always gets so many volunteers, as far as there are.
    fn submit_sized(&mut self, job: JobSpec, volunteers: u32) {
        self.bench.sizes.0.insert(job.id.to_string(), volunteers);
        self.send(Input::JobSubmitted(Box::new(job)));
    }

    fn send(&mut self, input: Input) {
        for output in self.bench.send(input) {
            match output {
                Output::Engine { job, action: EngineAction::SetSlots(slots) } => {
                    self.slots.insert(job.to_string(), slots);
                }
                Output::Command { host, command } => {
                    let cap = match command.desired {
                        Desired::Run { cap: Quota::AtMost(cap) } => cap.percent(),
                        _ => 0.0,
                    };
                    self.capped.insert(host, cap);
                }
                Output::Event(Event::GoalAtRisk { job, .. }) => _ = self.at_risk.insert(job),
                Output::Event(Event::GoalBackInReach { job }) => _ = self.at_risk.remove(&job),
                _ => {}
            }
        }
    }

    /// A second in which every host reports and every job gets on.
    fn second(&mut self) {
        self.bench.now = self.bench.now.after(Duration::from_secs(1));
        self.bench.sequence += 1;
        for id in self.hosts.clone() {
            let mut report = HostReport { host: id, ..report(self.bench.sequence, 300.0, 290.0) };
            report.machine.cpu_busy = Reading::Value(CoreShare::clamped(390.0));
            report.machine.cpu_foreground = Reading::Value(CoreShare::clamped(100.0));
            self.send(Input::Report(Box::new(report)));
        }
        self.done += 0.001;
        let jobs: Vec<JobId> = self.bench.controller.jobs().map(|status| status.spec.id.clone()).collect();
        for job in jobs {
            let slots = self.slots.get(job.as_str()).cloned().unwrap_or_default();
            let running: u32 = slots.values().sum();
            let mut progress = progress(self.done, running);
            (progress.tasks_total, progress.tasks_done) = (10_000, self.tasks_done);
            progress.unusable.clone_from(&self.unusable);
            progress.stages.clone_from(&self.stages);
            let worker = |slots: u32| WorkerProgress { tasks_running: slots, done: Fraction::clamped(0.01) };
            let running = |(host, slots): (HostId, u32)| {
                let slots = if self.idle.contains(&host) { 0 } else { slots };
                (host, worker(slots))
            };
            progress.workers = slots.into_iter().map(running).collect();
            if self.draining {
                progress.workers.extend(self.hosts.iter().map(|id| (id.clone(), worker(1))));
            }
            self.send(Input::Progress { job, progress });
        }
        self.send(Input::Tick);
    }

    fn seconds(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.second();
        }
    }

    fn is_stopped(&self, name: &str) -> bool {
        self.capped.get(&host(name)).is_some_and(|cap| *cap <= 0.0)
    }

    /// Interactive hosts a job has.
    fn volunteers(&self, job: &str) -> BTreeSet<&str> {
        let slots = self.slots.get(job);
        slots.into_iter().flat_map(BTreeMap::keys).map(HostId::as_str).filter(|name| name.starts_with('i')).collect()
    }
}

const SIX: [&str; 6] = ["d1", "d2", "i1", "i2", "i3", "i4"];

/// Finished tasks of a first stage on hosts, and a second stage that reads their output.
fn two_stages(done: &[(&str, u32)]) -> Stages {
    let own = |(name, done): &(&str, u32)| {
        let on_host = StageOnHost { done: *done, ended: *done, task_s: f64::from(*done), ..StageOnHost::default() };
        (host(name), on_host)
    };
    let (sum, mib) = (done.iter().map(|(_, done)| done).sum(), Bytes::from_mib(1));
    let hosts = done.iter().map(own).collect();
    let first = Stage { tasks: 100, done: sum, runs: sum, shuffle_written: mib, hosts, ..Stage::default() };
    let stages = vec![first, Stage { id: 1, tasks: 8, ..Stage::default() }];
    Stages::Known(StagesSeen { stages, hands_over: Some(false) })
}

/// Hosts whose output is still read are given back last, and what the model of the stages says is on record.
#[test]
fn the_stages_of_a_job_say_which_hosts_are_given_back_last() {
    let mut room = Room::new(&SIX);
    room.submit_sized(cluster("j", &["d1", "d2"]), 4);
    room.seconds(25);
    assert_eq!(room.volunteers("j").len(), 4);
    room.stages = two_stages(&[("d1", 10), ("i1", 1), ("i3", 9), ("i4", 5)]);
    let id = JobId::new("j").unwrap();
    let opinion = |room: &Room| room.bench.controller.last_decision(&id).unwrap().stages.clone();
    room.seconds(11);
    let Some(StageOpinion::Predicted(found)) = opinion(&room) else { panic!("{:?}", opinion(&room)) };
    assert_eq!((found.decided_by, found.rate_size), (DecidedBy::Rate, 4));
    assert_eq!((found.of(4).unwrap().again, found.of(2).unwrap().again, found.of(0).unwrap().again), (0, 1, 15));
    room.bench.sizes.0.insert("j".to_owned(), 2);
    room.seconds(11);
    assert_eq!(room.volunteers("j"), BTreeSet::from(["i3", "i4"]));
    room.stages = Stages::Unknown { reason: "no answer".to_owned() };
    room.seconds(11);
    assert_eq!(opinion(&room), Some(StageOpinion::Unknown { reason: "no answer".to_owned() }));
    assert_eq!(room.volunteers("j").len(), 2, "the rate decides alone");
    room.stages = Stages::NotTold;
    room.seconds(11);
    assert_eq!(opinion(&room), None);
}

/// What idle hosts have made is lost with them only when they are given back.
#[test]
fn an_idle_host_keeps_its_output_for_the_model_of_the_stages() {
    let mut room = Room::new(&SIX);
    room.submit_sized(cluster("j", &["d1", "d2"]), 4);
    room.seconds(25);
    room.stages = two_stages(&[("d1", 10), ("i1", 1), ("i3", 9), ("i4", 5)]);
    room.idle = ["i3", "i4"].map(host).into();
    room.seconds(11);
    let stages = room.bench.controller.last_decision(&JobId::new("j").unwrap()).unwrap().stages.clone();
    let Some(StageOpinion::Predicted(found)) = stages else { panic!("{stages:?}") };
    assert_eq!((found.of(4).unwrap().again, found.of(2).unwrap().again, found.of(0).unwrap().again), (0, 1, 15));
}

/// Others have hosts without which it is late by its stages. By its rate it is in time, also as the account of hosts has it.
#[test]
fn a_job_to_which_others_leave_too_few_hosts_is_late_by_its_stages() {
    let play = |jobs: &[(&str, &str)], within_s: f64| {
        let mut room = Room::new(&SIX);
        let done = StageOnHost { done: 10, ended: 10, task_s: 1_000.0, ..StageOnHost::default() };
        let (mib, hosts) = (Bytes::from_mib(1), [(host("d1"), done)].into());
        let first = Stage { tasks: 1_000, done: 10, runs: 10, shuffle_written: mib, hosts, ..Stage::default() };
        let stages = vec![first, Stage { id: 1, tasks: 8, ..Stage::default() }];
        room.stages = Stages::Known(StagesSeen { stages, hands_over: Some(false) });
        for (name, dedicated) in jobs {
            room.submit_sized(JobSpec { goal: Goal::Deadline { within_s }, ..cluster(name, &[dedicated]) }, 4);
        }
        room.seconds(60);
        room
    };
    let predicted = |room: &Room, job: &JobId| match &room.bench.controller.last_decision(job).unwrap().stages {
        Some(StageOpinion::Predicted(found)) => found.clone(),
        other => panic!("{other:?}"),
    };
    let found = predicted(&play(&[("a", "d1")], 1e6), &JobId::new("a").unwrap());
    let [three, four] = [3, 4].map(|size| found.of(size).unwrap().completion_s);
    assert!(three > four * 1.1, "{found:?}");
    let within_s = 60.0 + f64::midpoint(three, four);
    assert!(play(&[("a", "d1")], within_s).at_risk.is_empty());
    let shared = play(&[("a", "d1"), ("b", "d2")], within_s);
    assert!(!shared.at_risk.is_empty());
    for job in &shared.at_risk {
        let status = shared.bench.controller.job(job).unwrap();
        let fairly = status.share.as_ref().unwrap().fair_completion;
        assert!(fairly.is_none_or(|fairly| fairly <= status.deadline.unwrap()), "{status:?}");
        assert!(!predicted(&shared, job).meets_goal);
        assert!(status.completion_estimate > status.deadline);
    }
}

/// Hosts that no task can use are not taken, and given back when the last task that could is gone.
#[test]
fn hosts_that_no_task_can_use_are_left_to_others() {
    let mut room = Room::new(&SIX);
    room.unusable = ["i1", "i2"].map(host).into();
    room.submit_sized(cluster("j", &["d1", "d2"]), 4);
    room.seconds(40);
    assert_eq!(room.volunteers("j"), ["i3", "i4"].into());
    room.unusable = [host("i3")].into();
    room.seconds(20);
    assert_eq!(room.volunteers("j"), ["i1", "i2", "i4"].into());
}

#[test]
fn a_job_waits_for_its_dedicated_hosts_profiles_them_alone_and_takes_volunteers() {
    let mut room = Room::new(&["d1", "i1", "i2", "i3", "i4"]);
    let job = cluster("j", &["d1", "d2"]);
    room.send(Input::JobSubmitted(Box::new(job)));
    assert!(matches!(room.bench.phase("j"), JobPhase::Waiting { reason } if reason.contains("d2")));
    room.hosts.push(host("d2"));
    room.send(Input::HostJoined { host: host("d2"), incarnation: 1, facts: Box::new(facts(true)) });
    room.seconds(5);
    assert_eq!(room.bench.phase("j"), JobPhase::Profiling);
    assert!(room.volunteers("j").is_empty() && room.slots["j"].len() == 2);
    room.seconds(20);
    // Volunteers at $0.42 that bring 300 % beside dedicated hosts of 400 % at $1.00 are worth their price, all of them.
    assert_eq!(room.volunteers("j").len(), 4);
    assert!((room.capped[&host("i1")] - 400.0).abs() < f64::EPSILON && room.is_stopped("d1"));
    let decision = room.bench.controller.last_decision(&JobId::new("j").unwrap()).unwrap();
    assert_eq!((decision.size, decision.selection.len()), (4, 6));
}

#[test]
fn a_lost_volunteer_is_replaced_at_once_and_nothing_else_changes() {
    for left in [false, true] {
        replaces_at_once(left);
    }
}

/// A volunteer is lost, or its agent was stopped.
fn replaces_at_once(left: bool) {
    let mut room = Room::new(&SIX);
    room.submit_sized(cluster("j", &["d1", "d2"]), 2);
    room.seconds(14);
    let before: Vec<String> = room.volunteers("j").into_iter().map(str::to_owned).collect();
    assert_eq!(before.len(), 2);
    let decisions = room.bench.controller.job(&JobId::new("j").unwrap()).unwrap().decisions;
    room.hosts.retain(|id| id.as_str() != before[0]);
    let (id, reason) = (host(&before[0]), "test".to_owned());
    // The tick of `second` finds nobody silent: only what is sent here tells that it is gone.
    room.send(match left {
        true => Input::HostLeft { host: id.clone(), reason },
        false => Input::HostLost { host: id.clone(), reason },
    });
    let views = room.bench.controller.hosts();
    let view = views.iter().find(|view| view.host == id).unwrap();
    assert_eq!((view.connected, view.left), (false, left));
    room.second();
    let after = room.volunteers("j");
    assert!(after.len() == 2 && after.contains(before[1].as_str()) && !after.contains(before[0].as_str()), "{after:?}");
    assert_eq!(room.bench.controller.job(&JobId::new("j").unwrap()).unwrap().decisions, decisions);
}

#[test]
fn more_tasks_than_can_run_are_not_believed() {
    let volunteers = |told: Option<u32>| {
        let mut room = Room::new(&SIX);
        room.send(Input::JobSubmitted(Box::new(cluster("j", &["d1", "d2"]))));
        room.seconds(14);
        if let Some(running) = told {
            let told = EngineProgress { tasks_total: 10_000, ..progress(room.done, running) };
            room.send(Input::Progress { job: JobId::new("j").unwrap(), progress: told });
            room.send(Input::Tick);
        }
        room.seconds(60);
        room.volunteers("j").len()
    };
    assert_eq!(volunteers(None), 4);
    assert_eq!(volunteers(Some(u32::MAX)), 4);
}

#[test]
fn held_and_refusing_hosts_are_left_alone() {
    let mut room = Room::new(&SIX);
    room.submit_sized(cluster("j", &["d1", "d2"]), 4);
    room.seconds(14);
    assert_eq!(room.volunteers("j").len(), 4);
    let until = room.bench.now.after(Duration::from_secs(600));
    room.send(Input::HostHeld { host: host("i2"), until: Some(until) });
    room.second();
    assert!(!room.volunteers("j").contains("i2") && room.capped[&host("i2")] == 0.0);
    let views = room.bench.controller.hosts();
    let i3 = views.iter().find(|view| view.host == host("i3")).unwrap();
    let (target, command, _) = i3.targets[0].clone();
    let outcome = Outcome::Refused { reason: Refusal::Failed, detail: "test".into() };
    room.send(Input::Acked { host: host("i3"), ack: Ack { target, version: command.version, outcome } });
    room.second();
    assert_eq!(room.volunteers("j").into_iter().collect::<Vec<_>>(), ["i1", "i4"]);
    assert_eq!(room.bench.phase("j"), JobPhase::Running, "the others go on");
    room.seconds(40);
    assert!(room.volunteers("j").contains("i3"), "it is asked again after a while");
}

#[test]
fn jobs_share_the_pool_without_sharing_a_host() {
    let mut room = Room::new(&["d1", "d2", "i1", "i2", "i3", "i4", "i5", "i6"]);
    room.submit_sized(cluster("a", &["d1"]), 1);
    room.submit_sized(cluster("b", &["d2"]), 5);
    room.seconds(200);
    let (a, b) = (room.volunteers("a"), room.volunteers("b"));
    assert!(a.is_disjoint(&b), "{a:?} {b:?}");
    // What `a` leaves unused is for `b`.
    assert_eq!((a.len(), b.len()), (1, 5), "{a:?} {b:?}");
    room.send(Input::JobCancelled { job: JobId::new("b").unwrap() });
    room.second();
    let caps: Vec<f64> = room.hosts.iter().filter_map(|id| room.capped.get(id)).copied().collect();
    assert_eq!(caps.iter().filter(|cap| **cap > 0.0).count(), 1, "only the volunteer of `a` runs on");
}

#[test]
fn a_host_that_another_job_names_is_given_up() {
    let mut room = Room::new(&["d1", "d2", "i1", "i2", "h1"]);
    room.submit_sized(cluster("j", &["d1", "d2"]), 3);
    room.seconds(14);
    assert!(room.slots["j"].contains_key(&id()), "the third volunteer is on h1");
    room.draining = true;
    room.send(Input::JobSubmitted(Box::new(spec("local", Goal::Cost { budget: None }))));
    room.seconds(3);
    assert!(!room.slots["j"].contains_key(&id()) && room.capped[&id()] > 0.0, "its tasks there run on");
    assert!(matches!(room.bench.phase("local"), JobPhase::Waiting { .. }));
    room.draining = false;
    room.seconds(3);
    assert_eq!(room.bench.phase("local"), JobPhase::Profiling);
    assert!((room.capped[&id()] - 100.0).abs() < f64::EPSILON, "one slot of the job on this machine");
}

#[test]
fn a_deselected_volunteer_drains_before_it_is_stopped() {
    let mut room = Room::new(&SIX);
    room.send(Input::JobSubmitted(Box::new(cluster("j", &["d1", "d2"]))));
    room.seconds(25);
    assert_eq!(room.volunteers("j").len(), 4);
    // Five tasks are left for eight dedicated slots: at the next evaluation volunteers have nothing more to start.
    (room.tasks_done, room.draining) = (9_995, true);
    room.seconds(11);
    assert!(room.volunteers("j").is_empty());
    assert!(["i1", "i2", "i3", "i4"].iter().all(|name| room.capped[&host(name)] > 0.0), "their last tasks run on");
    let paid = room.bench.controller.job(&JobId::new("j").unwrap()).unwrap().cost;
    room.draining = false;
    room.seconds(2);
    assert!(["i1", "i2", "i3", "i4"].iter().all(|name| room.capped[&host(name)] == 0.0));
    assert!(room.bench.controller.job(&JobId::new("j").unwrap()).unwrap().cost > paid);
}

#[test]
fn a_restart_goes_on_with_what_was_learned() {
    let mut room = Room::new(&SIX);
    room.send(Input::JobSubmitted(Box::new(cluster("j", &["d1", "d2"]))));
    room.seconds(40);
    let mut encoded = Vec::new();
    encode_value(1, &room.bench.controller, &mut encoded).unwrap();
    room.bench.controller = decode_value(1, &encoded).unwrap();
    room.send(Input::Resumed);
    assert!(matches!(room.bench.phase("j"), JobPhase::Waiting { .. }));
    for id in room.hosts.clone() {
        room.send(Input::HostJoined { host: id, incarnation: 2, facts: Box::new(facts(true)) });
    }
    room.seconds(3);
    assert_eq!(room.bench.phase("j"), JobPhase::Running, "no second profile");
    room.seconds(10);
    assert_eq!(room.volunteers("j").len(), 4);
}

#[test]
fn volunteers_work_on_through_a_restart() {
    let mut room = Room::new(&SIX);
    room.send(Input::JobSubmitted(Box::new(cluster("j", &["d1", "d2"]))));
    room.seconds(40);
    assert_eq!(room.volunteers("j").len(), 4);
    room.send(Input::Resumed);
    room.slots.clear();
    // The volunteers are back before the dedicated hosts, but for one that comes late and one that never does.
    for id in ["i1", "i2", "d1", "d2", "i3"] {
        room.capped.remove(&host(id));
        room.send(Input::HostJoined { host: host(id), incarnation: 1, facts: Box::new(facts(true)) });
        room.hosts = room.hosts.iter().filter(|id| id.as_str() != "i4").cloned().collect();
        room.second();
        assert!(id.starts_with('d') || !room.is_stopped(id), "{id} is not stopped");
    }
    assert_eq!(room.volunteers("j").len(), 4, "the engine is told of those that are awaited");
    assert!(["i1", "i2", "i3"].iter().all(|name| room.capped[&host(name)] > 0.0));
    room.seconds(10);
    assert_eq!(room.volunteers("j"), BTreeSet::from(["i1", "i2", "i3"]), "the last one is given up");
}

#[test]
fn a_host_is_fenced_before_reassignment() {
    let mut room = Room::new(&["d1", "i1"]);
    assert!(room.is_stopped("i1"), "what it does is not known when it joins");
    room.send(Input::JobSubmitted(Box::new(cluster("j", &["d1"]))));
    room.seconds(25);
    assert!(room.volunteers("j").contains("i1") && room.capped[&host("i1")] > 0.0);
    // Its connection breaks for a moment: the engine lets its worker go, so it has to begin anew.
    room.send(Input::HostLost { host: host("i1"), reason: "test".into() });
    room.send(Input::HostJoined { host: host("i1"), incarnation: 1, facts: Box::new(facts(true)) });
    room.send(Input::Tick);
    assert!(room.is_stopped("i1"));
    room.seconds(12);
    assert!(room.volunteers("j").contains("i1") && room.capped[&host("i1")] > 0.0);
}

/// Names of the events about promises that a report of these broken windows brings.
fn said_of_promises(bench: &mut Bench, name: &str, broken: u32) -> Vec<String> {
    bench.sequence += 1;
    bench.now = bench.now.after(Duration::from_secs(1));
    let mut report = HostReport { host: host(name), ..report(bench.sequence, 300.0, 0.0) };
    report.residual.windows = PromiseWindows::new(Fraction::clamped(0.01), 288, broken).ok();
    let outputs = bench.send(Input::Report(Box::new(report)));
    let of = |output: &Output| match output {
        Output::Event(event @ (Event::PromisesBroken { .. } | Event::PromisesKept { .. })) => Some(event.name()),
        _ => None,
    };
    outputs.iter().filter_map(of).collect()
}

#[test]
fn broken_promises_are_said_once_over_a_rejoin_and_not_of_dedicated_hosts() {
    let mut bench = Bench::new();
    let join = |name| Input::HostJoined { host: host(name), incarnation: 1, facts: Box::new(facts(true)) };
    for name in ["d1", "i1"] {
        bench.send(join(name));
    }
    bench.send(Input::JobSubmitted(Box::new(cluster("j", &["d1"]))));
    assert_eq!(said_of_promises(&mut bench, "i1", 50), ["promises_broken"]);
    assert!(said_of_promises(&mut bench, "i1", 51).is_empty());
    assert!(bench.controller.glances().any(|own| *own.host == host("i1") && own.breaks_promises));
    bench.send(Input::HostLost { host: host("i1"), reason: "test".into() });
    bench.send(join("i1"));
    assert!(said_of_promises(&mut bench, "i1", 50).is_empty(), "it was said before it joined again");
    assert_eq!(said_of_promises(&mut bench, "i1", 1), ["promises_kept"]);
    assert!(said_of_promises(&mut bench, "d1", 288).is_empty(), "its own workers are foreground to its forecast");
}
