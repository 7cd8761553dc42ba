use std::time::Duration;

use gleaner_test_support::report::{self as support, facts};
use gleaner_types::command::{Ack, Desired, Outcome, Quota, Refusal, Target, Version};
use gleaner_types::engine::EngineSpec;
use gleaner_types::event::Event;
use gleaner_types::job::{
    Bound, EngineAction, EngineEnd, EngineProgress, Goal, JobPhase, JobSpec, Prices, SlotSpec, Workers,
};
use gleaner_types::report::{Bounded, HostReport, Reading, ResidualForecast};
use gleaner_types::units::{Bytes, CoreShare, Fraction};
use gleaner_wire::{decode_value, encode_value};
use proptest::prelude::*;

use super::*;
use crate::sizing::Choice;
use crate::sizing::policy::Situation;

mod applications;
mod clusters;
mod recorded;
mod sharing;
mod slots;

fn id() -> HostId {
    HostId::new("h1").unwrap()
}

fn report(sequence: u64, residual_percent: f64, used_percent: f64) -> HostReport {
    let mut report = support::report(&id(), sequence);
    report.machine.memory_total = Reading::Value(Bytes::from_mib(8192));
    report.machine.memory_available = Reading::Value(Bytes::from_mib(4096));
    report.volunteer.cpu = Reading::Value(CoreShare::clamped(used_percent));
    report.volunteer.memory = Reading::Value(Bytes(0));
    report.volunteer.processes = Reading::Value(1);
    report.residual = ResidualForecast {
        history_s: 10.0,
        lookahead_s: 10.0,
        memory: Reading::Value(Bounded { expected: Bytes::from_mib(4096), safe: Bytes::from_mib(4096) }),
        ..support::residual(residual_percent, residual_percent / 2.0)
    };
    report
}

fn spec(name: &str, goal: Goal) -> JobSpec {
    JobSpec {
        id: JobId::new(name).unwrap(),
        engine: EngineSpec::without_options("local"),
        workers: Workers::Slots(SlotSpec { host: id(), tasks: 100, dedicated_slots: 1, max_slots: None }),
        goal,
        prices: Prices::default(),
        memory_per_slot: Bytes::from_mib(64),
        set_up_s: 0.0,
        power: None,
        user: None,
    }
}

fn progress(fraction: f64, slots: u32) -> EngineProgress {
    EngineProgress {
        fraction_done: Fraction::clamped(fraction),
        tasks_total: 100,
        tasks_done: 0,
        tasks_failed: 0,
        tasks_retried: 0,
        tasks_running: slots,
        mean_task_s: Some(1.0),
        task_deviation_s: None,
        slots_in_use: slots,
        workers: BTreeMap::new(),
        unusable: std::collections::BTreeSet::new(),
        leases: Vec::new(),
        stages: gleaner_types::stages::Stages::NotTold,
    }
}

/// A controller with a virtual clock that checks every output.
struct Bench {
    controller: Controller,
    now: Timestamp,
    sequence: u64,
    sizes: Sizes,
}

/// Jobs whose size is given; the others are sized as those that ship.
#[derive(Default)]
struct Sizes(BTreeMap<String, u32>);

impl SizingPolicy for Sizes {
    fn choose(&mut self, situation: Situation<'_, '_>) -> Choice {
        match self.0.get(situation.job.as_str()) {
            Some(size) => situation.sizing.forced(*size, Bound::Policy),
            None => Adaptive.choose(situation),
        }
    }
}

impl Bench {
    fn new() -> Self {
        let settings = Settings { evaluation_interval_s: 10.0, profile_period_s: 10.0, ..Settings::default() };
        Self {
            controller: Controller::new(settings, Timestamp(1)),
            now: Timestamp(1_000_000),
            sequence: 0,
            sizes: Sizes::default(),
        }
    }

    fn joined() -> Self {
        let mut bench = Self::new();
        bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(true)) });
        bench.report(300.0, 0.0);
        bench
    }

    fn send(&mut self, input: Input) -> Vec<Output> {
        let outputs = self.controller.handle_sizing_by(&mut self.sizes, input, self.now);
        for output in &outputs {
            assert!(!matches!(output, Output::Event(Event::PlanRejected { .. })), "{output:?}");
        }
        outputs
    }

    fn report(&mut self, residual: f64, used: f64) -> Vec<Output> {
        self.sequence += 1;
        let mut outputs = self.send(Input::Report(Box::new(report(self.sequence, residual, used))));
        outputs.extend(self.send(Input::Tick));
        outputs
    }

    /// One second in which the job's slots do `rate` of it per slot and the engine and the host report.
    fn second(&mut self, job: &str, done: &mut f64, rate: f64) -> Vec<Output> {
        self.now = self.now.after(Duration::from_secs(1));
        let status = self.controller.job(&JobId::new(job).unwrap()).unwrap();
        let slots = if status.phase == JobPhase::Running || status.phase == JobPhase::Profiling {
            1 + status.volunteers
        } else {
            0
        };
        *done += rate * f64::from(slots);
        let job = JobId::new(job).unwrap();
        let mut outputs = self.report(300.0, 100.0 * f64::from(slots));
        outputs.extend(self.send(Input::Progress { job, progress: progress(*done, slots) }));
        outputs.extend(self.send(Input::Tick));
        outputs
    }

    fn phase(&self, job: &str) -> JobPhase {
        self.controller.job(&JobId::new(job).unwrap()).unwrap().phase.clone()
    }
}

fn commands(outputs: &[Output]) -> Vec<&Desired> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Command { command, .. } => Some(&command.desired),
            _ => None,
        })
        .collect()
}

fn slots(outputs: &[Output]) -> Vec<u32> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Engine { action: EngineAction::SetSlots(slots), .. } => slots.get(&id()).copied(),
            _ => None,
        })
        .collect()
}

fn run_cap(percent: f64) -> Desired {
    Desired::Run { cap: Quota::AtMost(CoreShare::clamped(percent)) }
}

#[test]
fn a_job_waits_is_profiled_sized_and_ends() {
    let mut bench = Bench::new();
    let goal = Goal::Deadline { within_s: 800.0 };
    let outputs = bench.send(Input::JobSubmitted(Box::new(spec("j", goal))));
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { reason } if reason.contains("not known")), "{outputs:?}");
    bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(true)) });
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { reason } if reason.contains("not reported")));
    let outputs = bench.report(300.0, 0.0);
    assert_eq!(bench.phase("j"), JobPhase::Profiling);
    assert_eq!((slots(&outputs), commands(&outputs)), (vec![1], vec![&run_cap(100.0)]));

    // Each slot does a thousandth a second: alone it needs 1,000 s, two slots 500 s.
    let mut done = 0.0;
    let mut sized = Vec::new();
    for _ in 0..11 {
        sized.extend(bench.second("j", &mut done, 0.001));
    }
    assert_eq!(bench.phase("j"), JobPhase::Running);
    assert_eq!(slots(&sized), [2], "one volunteer meets the deadline");
    assert!(commands(&sized).contains(&&run_cap(200.0)));
    let decision = bench.controller.last_decision(&JobId::new("j").unwrap()).unwrap();
    assert_eq!((decision.size_before, decision.size), (0, 1));
    // R_proc: a thousandth per second and 100 %, but for the one report that may be ahead of its progress.
    assert!((decision.processing_rate.unwrap() - 1e-5).abs() < 1.1e-6, "{decision:?}");

    let ended =
        bench.send(Input::EngineEnded { job: JobId::new("j").unwrap(), end: EngineEnd::Completed, progress: None });
    assert_eq!(bench.phase("j"), JobPhase::Completed);
    assert_eq!(commands(&ended), [&Desired::Stop]);
    assert!(ended.iter().any(|o| matches!(o, Output::Event(Event::JobEnded { deadline_met: Some(true), .. }))));
}

#[test]
fn a_lost_host_makes_the_job_wait_and_it_goes_on_without_a_second_profile() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    let mut done = 0.0;
    for _ in 0..15 {
        bench.second("j", &mut done, 0.001);
    }
    assert_eq!(bench.phase("j"), JobPhase::Running);
    let (lost, left) = (
        Input::HostLost { host: id(), reason: "test".into() },
        Input::HostLeft { host: id(), reason: "stopped".into() },
    );
    for (input, incarnation) in [(lost, 2), (left, 3)] {
        let has_left = matches!(input, Input::HostLeft { .. });
        let outputs = bench.send(input);
        assert_eq!(slots(&outputs), [0]);
        let said =
            |output: &Output| matches!(output, Output::Event(Event::HostLeft { reason, .. }) if reason == "stopped");
        assert_eq!(outputs.iter().any(said), has_left, "{outputs:?}");
        assert!(matches!(bench.phase("j"), JobPhase::Waiting { .. }));
        assert_eq!(bench.controller.hosts()[0].left, has_left);
        bench.send(Input::HostJoined { host: id(), incarnation, facts: Box::new(facts(true)) });
        assert!(!bench.controller.hosts()[0].left);
        bench.report(300.0, 0.0);
        assert_eq!(bench.phase("j"), JobPhase::Running);
    }
}

#[test]
fn a_silent_host_is_lost_until_it_reports_again() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    bench.now = bench.now.after(Duration::from_secs(6));
    let outputs = bench.send(Input::Tick);
    assert!(outputs.iter().any(|o| matches!(o, Output::Event(Event::HostLost { .. }))));
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { .. }));
    assert_eq!(commands(&outputs), [&Desired::Stop]);
    bench.report(300.0, 0.0);
    assert_eq!(bench.phase("j"), JobPhase::Profiling);
}

#[test]
fn leases_are_renewed_with_the_same_version() {
    let mut bench = Bench::joined();
    let started = bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    let version = |outputs: &[Output]| {
        outputs.iter().find_map(|o| match o {
            Output::Command { command, .. } => Some(command.version),
            _ => None,
        })
    };
    bench.now = bench.now.after(Duration::from_secs(4));
    assert_eq!(version(&bench.send(Input::Tick)), None);
    bench.now = bench.now.after(Duration::from_secs(1));
    let renewed = version(&bench.report(300.0, 0.0));
    assert!(renewed.is_some());
    assert_eq!(renewed, version(&started));
}

#[test]
fn a_renewal_brings_the_lease_that_is_configured_now_before_the_old_one_ends() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    let leases = |outputs: &[Output]| -> Vec<u32> {
        let commands = outputs.iter().filter_map(|output| match output {
            Output::Command { command, .. } => Some(command.lease_ms),
            _ => None,
        });
        commands.collect()
    };
    let settings = bench.controller.settings().clone();
    for (command_lease_s, lease_ms, renewed_after_s) in [(60.0, 60_000, 5), (60.0, 60_000, 20), (9.0, 9_000, 3)] {
        bench.controller.set_settings(Settings { command_lease_s, ..settings.clone() });
        bench.now = bench.now.after(Duration::from_secs(renewed_after_s - 1));
        assert_eq!(leases(&bench.report(300.0, 0.0)), Vec::<u32>::new());
        bench.now = bench.now.after(Duration::from_secs(1));
        assert_eq!(leases(&bench.report(300.0, 0.0)), [lease_ms]);
    }
}

#[test]
fn a_host_that_joins_and_never_reports_falls_silent() {
    let mut bench = Bench::new();
    bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(true)) });
    let lost = |outputs: &[Output]| outputs.iter().any(|o| matches!(o, Output::Event(Event::HostLost { .. })));
    bench.now = bench.now.after(Duration::from_secs(5));
    assert!(!lost(&bench.send(Input::Tick)), "it has as long as between two reports");
    bench.now = bench.now.after(Duration::from_secs(1));
    assert!(lost(&bench.send(Input::Tick)));
    assert!(bench.controller.glances().all(|host| host.silent));
    bench.report(300.0, 0.0);
    assert!(bench.controller.glances().all(|host| !host.silent));
}

#[test]
fn a_refusal_is_reported_once_and_the_job_waits() {
    let mut bench = Bench::joined();
    let outputs = bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    let Some(Output::Command { command, .. }) = outputs.iter().find(|o| matches!(o, Output::Command { .. })) else {
        panic!("no command in {outputs:?}");
    };
    let ack = Ack {
        target: Target::Volunteer,
        version: command.version,
        outcome: Outcome::Refused { reason: Refusal::ForeignWrite, detail: "cpu.max was changed".into() },
    };
    let outputs = bench.send(Input::Acked { host: id(), ack: ack.clone() });
    assert!(outputs.iter().any(|o| matches!(o, Output::Event(Event::CommandRefused { .. }))));
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { reason } if reason.contains("cpu.max was changed")));
    let again = bench.send(Input::Acked { host: id(), ack });
    assert!(!again.iter().any(|o| matches!(o, Output::Event(Event::CommandRefused { .. }))));
    bench.now = bench.now.after(Duration::from_secs(31));
    bench.report(300.0, 0.0);
    assert_eq!(bench.phase("j"), JobPhase::Profiling, "it tries again");
}

#[test]
fn an_observing_host_gets_no_command() {
    let mut bench = Bench::new();
    bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(false)) });
    bench.report(300.0, 0.0);
    let outputs = bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    assert!(commands(&outputs).is_empty());
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { reason } if reason.contains("--act")));
}

#[test]
fn the_oldest_of_jobs_that_know_nothing_yet_begins_and_the_others_have_what_it_leaves() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("a", Goal::Cost { budget: None }))));
    let outputs = bench.send(Input::JobSubmitted(Box::new(spec("b", Goal::Cost { budget: None }))));
    assert_eq!((bench.phase("a"), bench.phase("b")), (JobPhase::Profiling, JobPhase::Profiling));
    assert_eq!(slots(&outputs), [0, 1], "it begins with none, and has what the first leaves of four at once");
    assert!(matches!(commands(&outputs)[..], [Desired::Run { .. }]), "{outputs:?}");
    bench.send(Input::JobCancelled { job: JobId::new("a").unwrap() });
    assert_eq!((bench.phase("a"), bench.phase("b")), (JobPhase::Cancelled, JobPhase::Profiling));
}

#[test]
fn a_held_host_is_left_alone_until_it_is_given_back_or_its_time_is_over() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    let until = bench.now.after(Duration::from_secs(600));
    let outputs = bench.send(Input::HostHeld { host: id(), until: Some(until) });
    assert_eq!((commands(&outputs), slots(&outputs)), (vec![&Desired::Stop], vec![0]));
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { reason } if reason.contains("it is held until ")));
    assert_eq!(bench.controller.hosts()[0].held_until, Some(HeldUntil::Time(until)));
    // Neither a new agent nor time that is not over changes that.
    let facts = Box::new(facts(true));
    bench.send(Input::HostJoined { host: id(), incarnation: 2, facts });
    assert!(commands(&bench.report(300.0, 0.0)).is_empty());

    let outputs = bench.send(Input::HostReleased { host: id() });
    assert!(matches!(commands(&outputs)[..], [Desired::Run { .. }]), "{outputs:?}");
    assert!(bench.send(Input::HostReleased { host: id() }).is_empty(), "it is not held");

    let until = bench.now.after(Duration::from_secs(5));
    bench.send(Input::HostHeld { host: id(), until: Some(until) });
    bench.now = until;
    let outputs = bench.report(300.0, 0.0);
    assert!(
        outputs
            .iter()
            .any(|o| matches!(o, Output::Event(Event::HostReleased { reason, .. }) if reason.contains("over")))
    );
    assert!(matches!(commands(&outputs)[..], [Desired::Run { .. }]), "{outputs:?}");
    let over = Input::HostHeld { host: id(), until: Some(until) };
    assert!(bench.send(over).is_empty(), "a time that is over holds nothing");

    bench.send(Input::HostHeld { host: id(), until: None });
    bench.now = bench.now.after(Duration::from_secs(86_400 * 365));
    bench.report(300.0, 0.0);
    assert_eq!(bench.controller.hosts()[0].held_until, Some(HeldUntil::Released), "no time ends it");
}

fn hold_of_all(now: Timestamp, until: Option<Timestamp>) -> Input {
    Input::AllHostsHeld(FleetHold { by: "ann".into(), since: now, until })
}

#[test]
fn a_hold_of_all_hosts_holds_newcomers_and_survives_a_restart_and_a_takeover() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    let outputs = bench.send(hold_of_all(bench.now, None));
    assert_eq!((commands(&outputs), slots(&outputs)), (vec![&Desired::Stop], vec![0]));
    let told =
        |output: &Output| matches!(output, Output::Event(Event::AllHostsHeld { by, until: None }) if by == "ann");
    assert!(outputs.iter().any(told), "{outputs:?}");
    let says =
        |bench: &Bench, words: &str| matches!(bench.phase("j"), JobPhase::Waiting { reason } if reason.contains(words));
    assert!(says(&bench, "it is held by ann until released, as all hosts are"), "{:?}", bench.phase("j"));

    let newcomer = HostId::new("h2").unwrap();
    bench.send(Input::HostJoined { host: newcomer.clone(), incarnation: 1, facts: Box::new(facts(true)) });
    assert_eq!(bench.controller.held_until(&newcomer), Some(HeldUntil::Released));
    // The standby's state, and a restart on it.
    bench.controller = bench.controller.for_standby();
    bench.send(Input::Resumed);
    bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(true)) });
    assert!(commands(&bench.report(300.0, 0.0)).iter().all(|desired| **desired == Desired::Stop));
    assert!(bench.controller.all_held().is_some());

    // A host's own hold is another one.
    bench.send(Input::HostHeld { host: newcomer.clone(), until: None });
    let outputs = bench.send(Input::AllHostsReleased { by: "bob".into() });
    let told = |output: &Output| matches!(output, Output::Event(Event::AllHostsReleased { reason }) if reason == "bob released them");
    assert!(outputs.iter().any(told), "{outputs:?}");
    assert!(matches!(commands(&outputs)[..], [Desired::Run { .. }]), "{outputs:?}");
    assert_eq!(bench.controller.held_until(&id()), None);
    assert_eq!(bench.controller.held_until(&newcomer), Some(HeldUntil::Released));
    assert!(bench.send(Input::AllHostsReleased { by: "bob".into() }).is_empty(), "they are not held");

    // One with an end ends by itself.
    let until = bench.now.after(Duration::from_secs(5));
    bench.send(hold_of_all(bench.now, Some(until)));
    assert_eq!(bench.controller.held_until(&newcomer), Some(HeldUntil::Released), "the later end");
    bench.now = until;
    bench.report(300.0, 0.0);
    assert_eq!((bench.controller.all_held(), bench.controller.held_until(&id())), (None, None));
    assert!(bench.send(hold_of_all(until, Some(until))).is_empty(), "a time that is over holds nothing");
}

#[test]
fn a_host_that_is_gone_and_that_no_job_needs_can_be_removed() {
    let mut bench = Bench::joined();
    let removal = || Input::HostRemoved { host: id(), by: "ann".into() };
    assert!(bench.send(removal()).is_empty(), "it is connected");
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    bench.send(Input::HostLost { host: id(), reason: "test".into() });
    bench.send(Input::HostHeld { host: id(), until: None });
    assert_eq!(bench.controller.job_needing(&id()), Some(&JobId::new("j").unwrap()));
    assert!(bench.send(removal()).is_empty() && bench.controller.hosts().len() == 1, "a job needs it");
    bench.send(Input::JobCancelled { job: JobId::new("j").unwrap() });
    let outputs = bench.send(removal());
    assert!(matches!(&outputs[..], [Output::Event(Event::HostRemoved { by, .. })] if by == "ann"), "{outputs:?}");
    assert!(bench.controller.hosts().is_empty() && bench.controller.held_until(&id()).is_none());
    assert!(bench.send(removal()).is_empty(), "it is gone");
    bench.send(Input::HostJoined { host: id(), incarnation: 2, facts: Box::new(facts(true)) });
    assert_eq!(bench.controller.hosts().len(), 1);
}

#[test]
fn a_job_that_needs_more_memory_than_is_left_says_so() {
    let mut bench = Bench::joined();
    let mut hungry = spec("j", Goal::Cost { budget: None });
    hungry.memory_per_slot = Bytes::from_mib(5_000);
    bench.send(Input::JobSubmitted(Box::new(hungry)));
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { reason } if reason.contains("a slot needs 4.9 GiB")));
}

#[test]
fn cost_counts_slots_by_the_second() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    bench.now = bench.now.after(Duration::from_secs(36));
    bench.send(Input::Progress { job: JobId::new("j").unwrap(), progress: progress(0.1, 1) });
    // One dedicated slot at $1/h for 36 s.
    let cost = bench.controller.job(&JobId::new("j").unwrap()).unwrap().cost.amount();
    assert!((cost - 0.01).abs() < 1e-12, "{cost}");
}

#[test]
fn a_restart_continues_where_it_was() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Deadline { within_s: 500.0 }))));
    let mut done = 0.0;
    for _ in 0..20 {
        bench.second("j", &mut done, 0.0015);
    }
    let before = bench.controller.last_decision(&JobId::new("j").unwrap()).cloned();
    let mut bytes = Vec::new();
    encode_value(0, &bench.controller, &mut bytes).unwrap();
    bench.controller = decode_value(0, &bytes).unwrap();
    bench.send(Input::Resumed);
    assert!(matches!(bench.phase("j"), JobPhase::Waiting { .. }));
    assert_eq!(bench.controller.last_decision(&JobId::new("j").unwrap()).cloned(), before);
    bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(true)) });
    bench.sequence += 1;
    bench.report(300.0, 0.0);
    assert_eq!(bench.phase("j"), JobPhase::Running);
}

#[test]
fn a_standby_goes_on_where_the_leader_was_with_a_later_epoch() {
    let mut bench = Bench::joined();
    bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Deadline { within_s: 500.0 }))));
    let mut done = 0.0;
    for _ in 0..20 {
        bench.second("j", &mut done, 0.0015);
    }
    let (leader, epoch) = (bench.controller.clone(), bench.controller.epoch());
    let mut bytes = Vec::new();
    encode_value(0, &leader.for_standby(), &mut bytes).unwrap();
    bench.controller = decode_value(0, &bytes).unwrap();
    bench.controller.set_epoch(epoch + 5);
    bench.send(Input::Resumed);
    assert!(bench.controller.hosts()[0].report.is_none(), "what hosts say again is left out");
    bench.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts(true)) });
    bench.sequence += 1;
    let outputs = bench.report(300.0, 0.0);
    let versions = outputs.iter().filter_map(|output| match output {
        Output::Command { command, .. } => Some(command.version),
        _ => None,
    });
    let versions: Vec<Version> = versions.collect();
    assert!(!versions.is_empty() && versions.iter().all(|version| version.epoch == epoch + 5), "{versions:?}");
    assert_eq!(bench.phase("j"), JobPhase::Running);
    let job = JobId::new("j").unwrap();
    assert_eq!(bench.controller.last_decision(&job), leader.last_decision(&job));
}

fn any_input() -> impl Strategy<Value = Input> {
    let job = prop_oneof![Just("a"), Just("b")].prop_map(|name| JobId::new(name).unwrap());
    let goal = prop_oneof![
        (0.0..100.0f64).prop_map(|within_s| Goal::Deadline { within_s }),
        Just(Goal::Cost { budget: None }),
        (0.0..0.1f64).prop_map(|b| Goal::Cost { budget: Some(gleaner_types::units::Dollars::clamped(b)) }),
    ];
    prop_oneof![
        any::<bool>().prop_map(|acting| Input::HostJoined {
            host: id(),
            incarnation: 1,
            facts: Box::new(facts(acting))
        }),
        Just(Input::HostLost { host: id(), reason: "test".into() }),
        Just(Input::HostLeft { host: id(), reason: "test".into() }),
        (0..500u64, 0.0..500.0f64, 0.0..900.0f64).prop_map(|(s, r, u)| Input::Report(Box::new(report(s, r, u)))),
        (0..50u64).prop_map(|number| Input::Acked {
            host: id(),
            ack: Ack {
                target: Target::Volunteer,
                version: Version { epoch: 1, number },
                outcome: Outcome::Refused { reason: Refusal::Failed, detail: "test".into() },
            },
        }),
        (job.clone(), goal).prop_map(|(job, goal)| Input::JobSubmitted(Box::new(spec(job.as_str(), goal)))),
        job.clone().prop_map(|job| Input::JobCancelled { job }),
        (job.clone(), 0.0..2.0f64, 0..9u32).prop_map(|(job, f, s)| Input::Progress { job, progress: progress(f, s) }),
        job.prop_map(|job| Input::EngineEnded { job, end: EngineEnd::Completed, progress: None }),
        prop::option::of(0..2_000_000u64).prop_map(|until| Input::HostHeld { host: id(), until: until.map(Timestamp) }),
        prop::option::of(0..2_000_000u64).prop_map(|until| hold_of_all(Timestamp(0), until.map(Timestamp))),
        Just(Input::AllHostsReleased { by: "test".into() }),
        Just(Input::HostRemoved { host: id(), by: "test".into() }),
        Just(Input::HostReleased { host: id() }),
        Just(Input::Resumed),
        Just(Input::Tick),
    ]
}

proptest! {
    /// Whatever comes in whatever order: no panic, every output passes the checker, the same inputs give the
    /// same outputs, and a state that went through the store goes on like one that did not.
    #[test]
    fn any_sequence_is_survived_and_repeatable(steps in prop::collection::vec((any_input(), 0..20_000u64), 0..80)) {
        let mut bench = Bench::new();
        let mut twin = bench.controller.clone();
        for (index, (input, pause_ms)) in steps.into_iter().enumerate() {
            bench.now = bench.now.after(Duration::from_millis(pause_ms));
            let outputs = bench.send(input.clone());
            if index % 7 == 0 {
                let mut bytes = Vec::new();
                encode_value(0, &twin, &mut bytes).unwrap();
                twin = decode_value(0, &bytes).unwrap();
            }
            prop_assert_eq!(twin.handle(input, bench.now), outputs);
            prop_assert_eq!(&twin, &bench.controller);
        }
    }

    /// At most one change of size per evaluation interval, however the residual jumps.
    #[test]
    fn sizes_change_at_most_once_an_interval(residuals in prop::collection::vec(0.0..400.0f64, 60)) {
        let mut bench = Bench::joined();
        bench.send(Input::JobSubmitted(Box::new(spec("j", Goal::Deadline { within_s: 300.0 }))));
        let (mut done, mut last_change) = (0.0, None);
        for residual in residuals {
            let before = bench.controller.job(&JobId::new("j").unwrap()).unwrap().volunteers;
            bench.report(residual, 50.0);
            bench.second("j", &mut done, 0.001);
            let after = bench.controller.job(&JobId::new("j").unwrap()).unwrap().volunteers;
            if before != after && let Some(last) = last_change.replace(bench.now) {
                prop_assert!(bench.now.since(last) >= Duration::from_secs(10));
            }
        }
    }
}
