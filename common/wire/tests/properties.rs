//! Any message of version 2 survives encoding and decoding. A message without anything new survives version 1 too. No
//! bytes make decoding panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod golden_samples;

use gleaner_types::absence::{Absence, AbsenceKind, Reason};
use gleaner_types::command::{Ack, Command, Desired, Limits, Outcome, Quota, Refusal, Target, Version, Weight};
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::{JobId, WorkloadId};
use gleaner_types::report::{HostReport, Reading, VolunteerState, WorkloadKind};
use gleaner_types::task::{TaskAttempt, TaskDesired, TaskJob, TaskOrder, TaskOrders, TaskState, TaskStatus, TaskUser};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare, MAX_COUNT};
use gleaner_wire::{
    AgentEvents, FromAgent, FromAggregator, FromJoiner, Message, ProtocolVersion, TaskStates, ToJoiner, Unknowns,
    decode, encode,
};
use golden_samples::{Sample, of_version_1, of_version_2};
use proptest::collection::vec;
use proptest::prelude::*;

fn through<M: Message>(version: ProtocolVersion, message: &M) -> M {
    let frame = encode(version, message).unwrap();
    let (back, used) = decode(version, &frame, &mut Unknowns::default()).unwrap().unwrap();
    assert_eq!(used, frame.len());
    back
}

/// Absences as version 1 can say them: a known kind, and words.
fn described() -> impl Strategy<Value = Absence> {
    let fixed = (0..Reason::FIXED.len()).prop_map(|index| Absence::because(Reason::FIXED[index].0.clone()));
    let words = ".{0,40}".prop_map(|text| Absence::described(AbsenceKind::Denied, text));
    prop_oneof![fixed, words]
}

/// Absences that only version 2 can say as they are.
fn detailed() -> impl Strategy<Value = Absence> {
    let back = any::<(u64, u64)>();
    let back = back.prop_map(|(before, now)| Absence::because(Reason::CounterWentBack { before, now }));
    let file = (".{0,20}", any::<i32>());
    let file = file.prop_map(|(file, errno)| Absence::because(Reason::Unreadable { file: file.into(), errno }));
    let level = any::<Option<i32>>().prop_map(|paranoid| Absence::because(Reason::CountersDenied { paranoid }));
    let unknown = (1_000_u16.., 100_u16..)
        .prop_map(|(code, kind)| Absence { kind: AbsenceKind::Unknown(kind), reason: Reason::Unknown(code) });
    prop_oneof![back, file, level, unknown]
}

/// Whole numbers that a peer may say.
fn count() -> impl Strategy<Value = u64> {
    0..=MAX_COUNT
}

fn reading(absence: impl Strategy<Value = Absence> + 'static) -> impl Strategy<Value = Reading<CoreShare>> {
    let value = (0.0..6e6).prop_map(|percent| Reading::Value(CoreShare::new(percent).unwrap()));
    prop_oneof![value, absence.prop_map(Reading::Absent)]
}

/// Reports around these readings.
fn report(absence: BoxedStrategy<Absence>) -> impl Strategy<Value = FromAgent> {
    let base = of_version_1().into_iter().find_map(|(name, sample)| match sample {
        Sample::FromAgent(FromAgent::Report(report)) if name.ends_with("workloads") => Some(report),
        _ => None,
    });
    let base: Box<HostReport> = base.expect("a report");
    let readings = (reading(absence.clone()), vec((".{1,20}", reading(absence.clone())), 0..6), reading(absence));
    ((count(), count(), count()), readings).prop_map(move |((sequence, at, bytes), (busy, workloads, allowance))| {
        let mut report = base.clone();
        (report.sequence, report.at) = (sequence, Timestamp(at / 10));
        report.machine.cpu_busy = busy;
        report.machine.memory_total = Reading::Value(Bytes(bytes));
        report.volunteer.allowance = allowance;
        let pattern = report.workloads[0].clone();
        report.workloads = workloads
            .into_iter()
            .map(|(name, cpu)| {
                let mut workload = pattern.clone();
                (workload.id, workload.cpu) = (WorkloadId::from_untrusted(&name), cpu);
                workload
            })
            .collect();
        FromAgent::Report(report)
    })
}

fn target() -> impl Strategy<Value = Target> {
    let workload = ".{1,30}".prop_map(|name| Target::Workload(WorkloadId::from_untrusted(&name)));
    prop_oneof![Just(Target::Volunteer), workload]
}

fn limits() -> impl Strategy<Value = Limits> {
    let quota = prop_oneof![
        Just(Quota::Unlimited),
        (0.0..6e6).prop_map(|percent| Quota::AtMost(CoreShare::new(percent).unwrap())),
    ];
    let weight = proptest::option::of((1..=10_000_u32).prop_map(|weight| Weight::new(weight).unwrap()));
    (quota, weight, proptest::option::of(count())).prop_map(|(quota, weight, memory)| Limits {
        quota,
        weight,
        memory: memory.map(Bytes),
        ..Limits::NONE
    })
}

fn version() -> impl Strategy<Value = Version> {
    (count(), count()).prop_map(|(epoch, number)| Version { epoch, number })
}

fn command() -> impl Strategy<Value = FromAggregator> {
    let desired = prop_oneof![
        Just(Desired::Stop),
        Just(Desired::Release),
        limits().prop_map(|limits| Desired::Run { cap: limits.quota }),
        limits().prop_map(Desired::Limit),
    ];
    (target(), version(), any::<u32>(), desired).prop_map(|(target, version, lease_ms, desired)| {
        FromAggregator::Command(Command { target, version, lease_ms, desired })
    })
}

fn ack() -> impl Strategy<Value = FromAgent> {
    let outcome = prop_oneof![
        (limits(), vec(".{0,30}", 0..4)).prop_map(|(limits, shortfalls)| Outcome::Applied { limits, shortfalls }),
        ".{0,60}".prop_map(|detail| Outcome::Refused { reason: Refusal::Stale, detail }),
    ];
    (target(), version(), outcome)
        .prop_map(|(target, version, outcome)| FromAgent::Ack(Ack { target, version, outcome }))
}

fn events() -> impl Strategy<Value = FromAgent> {
    let event = prop_oneof![
        count().prop_map(|count| Event::ReportsDropped { count }),
        (".{0,20}", proptest::option::of(described()))
            .prop_map(|(sensor, absent)| Event::SensorChanged { sensor, absent }),
        (target(), version()).prop_map(|(target, version)| Event::LeaseExpired { target, version }),
    ];
    vec(((count(), count(), count()), event), 0..5).prop_map(|events| {
        let record = |((at, incarnation, sequence), event)| {
            let source = EventSource::Agent { host: golden_samples::host(), incarnation, sequence };
            EventRecord { at: Timestamp(at / 10), source, event }
        };
        FromAgent::Events(AgentEvents { events: events.into_iter().map(record).collect() })
    })
}

fn attempt() -> impl Strategy<Value = TaskAttempt> {
    ("[a-z0-9_-]{1,64}", any::<u32>(), version()).prop_map(|(job, task, version)| TaskAttempt {
        job: JobId::new(job).unwrap(),
        task,
        version,
    })
}

fn task_job() -> impl Strategy<Value = FromAggregator> {
    let numbers = (count(), any::<u32>(), any::<u32>(), proptest::option::of(count()), any::<u32>());
    (numbers, attempt(), ".{0,40}", ".{0,40}", vec((".{0,10}", ".{0,40}"), 0..5)).prop_map(
        |((epoch, uid, gid, timeout_ms, tasks), attempt, working_dir, output_dir, environment)| {
            FromAggregator::TaskJob(Box::new(TaskJob {
                epoch,
                job: attempt.job,
                user: TaskUser { uid, gid },
                working_dir,
                output_dir,
                environment,
                timeout_ms,
                tasks,
            }))
        },
    )
}

fn task_orders() -> impl Strategy<Value = FromAggregator> {
    let run = (any::<u32>(), ".{0,60}").prop_map(|(attempt, command)| TaskDesired::Run { attempt, command });
    let desired = prop_oneof![run, Just(TaskDesired::End), Just(TaskDesired::Forget)];
    let order = (attempt(), desired).prop_map(|(attempt, desired)| TaskOrder { attempt, desired });
    (count(), vec(order, 0..6)).prop_map(|(epoch, orders)| FromAggregator::Tasks(TaskOrders { epoch, orders }))
}

fn task_states() -> impl Strategy<Value = FromAgent> {
    let status = prop_oneof![
        count().prop_map(|ran_ms| TaskStatus::Running { ran_ms }),
        (count(), any::<i32>()).prop_map(|(ran_ms, status)| TaskStatus::Exited { ran_ms, status }),
        count().prop_map(|ran_ms| TaskStatus::TimedOut { ran_ms }),
        count().prop_map(|ran_ms| TaskStatus::Lost { ran_ms }),
        ".{0,60}".prop_map(|reason| TaskStatus::NotStarted { reason }),
    ];
    let state = (attempt(), status).prop_map(|(attempt, status)| TaskState { attempt, status });
    vec(state, 0..6).prop_map(|states| FromAgent::Tasks(TaskStates { states }))
}

/// Messages of agents that both versions can say as they are.
fn encodable() -> impl Strategy<Value = FromAgent> {
    prop_oneof![report(described().boxed()), ack(), events()]
}

proptest! {
    #[test]
    fn what_both_versions_can_say_comes_back_through_each(message in encodable(), command in command()) {
        for version in ProtocolVersion::SUPPORTED {
            prop_assert_eq!(&through(version, &message), &message);
            prop_assert_eq!(&through(version, &command), &command);
        }
    }

    #[test]
    fn what_only_version_2_can_say_comes_back_through_it(
        message in report(detailed().boxed()),
        (kind, state) in (100_u16.., 100_u16..),
    ) {
        let FromAgent::Report(mut report) = message else { panic!("no report") };
        report.volunteer.state = VolunteerState::Unknown(state);
        for workload in &mut report.workloads {
            workload.kind = WorkloadKind::Unknown(kind);
        }
        let message = FromAgent::Report(report);
        prop_assert_eq!(&through(ProtocolVersion::V2, &message), &message);
    }

    #[test]
    fn orders_about_tasks_come_back_through_version_2_and_do_not_enter_version_1(
        job in task_job(),
        orders in task_orders(),
        states in task_states(),
    ) {
        prop_assert_eq!(&through(ProtocolVersion::V2, &job), &job);
        prop_assert_eq!(&through(ProtocolVersion::V2, &orders), &orders);
        prop_assert_eq!(&through(ProtocolVersion::V2, &states), &states);
        for error in [encode(ProtocolVersion::V1, &job), encode(ProtocolVersion::V1, &orders)] {
            prop_assert!(error.unwrap_err().to_string().contains("version 1 of the protocol does not know it"));
        }
        prop_assert!(encode(ProtocolVersion::V1, &states).is_err());
    }

    #[test]
    fn no_bytes_make_decoding_panic(tag in prop_oneof![Just(1_u16), Just(2), Just(3), Just(4), Just(5), Just(11), 101..113_u16,
        Just(201), 301..303_u16, any::<u16>()], payload in vec(any::<u8>(), 0..200)) {
        read_all(&[&u32::try_from(payload.len() + 2).unwrap().to_le_bytes()[..], &tag.to_le_bytes(), &payload].concat());
    }

    #[test]
    fn no_damage_to_a_message_makes_decoding_panic(which in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(),
        byte in any::<u8>(), cut in any::<bool>()) {
        let samples = of_version_2();
        let (_, sample) = &samples[which.index(samples.len())];
        let mut frame = match sample {
            Sample::FromAgent(message) => encode(ProtocolVersion::V2, message),
            Sample::FromAggregator(message) => encode(ProtocolVersion::V2, message),
            Sample::FromJoiner(message) => encode(ProtocolVersion::V2, message),
            Sample::ToJoiner(message) => encode(ProtocolVersion::V2, message),
        }
        .unwrap();
        let place = place.index(frame.len());
        frame[place] = byte;
        if cut {
            frame.truncate(place);
        }
        read_all(&frame);
    }
}

/// Reads some bytes as every direction of every version.
fn read_all(frame: &[u8]) {
    let mut unknown = Unknowns::default();
    for version in ProtocolVersion::SUPPORTED {
        _ = decode::<FromAgent>(version, frame, &mut unknown);
        _ = decode::<FromAggregator>(version, frame, &mut unknown);
        _ = decode::<FromJoiner>(version, frame, &mut unknown);
        _ = decode::<ToJoiner>(version, frame, &mut unknown);
    }
}
