//! Additions that a newer release of version 2 may make, byte by byte: an older release ignores and counts them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod golden_samples;

use gleaner_types::command::{Outcome, Refusal, Version};
use gleaner_types::event::Event;
use gleaner_types::id::JobId;
use gleaner_types::report::{
    AbsenceKind, Capability, CgroupMode, Reading, Reason, VolunteerKind, VolunteerState, WorkloadKind,
};
use gleaner_types::task::{TaskAttempt, TaskDesired, TaskOrder, TaskOrders, TaskState, TaskStatus};
use gleaner_wire::{
    FrameError, FromAgent, FromAggregator, Message, ProtocolVersion, TaskStates, Unknowns, decode, encode,
};
use golden_samples::{Sample, of_version_2};

fn sample(name: &str) -> Sample {
    of_version_2().into_iter().find(|(own, _)| own == name).expect("a golden message").1
}

fn from_agent(name: &str) -> FromAgent {
    match sample(name) {
        Sample::FromAgent(message) => message,
        other => panic!("{other:?}"),
    }
}

/// A frame around a payload.
fn frame(tag: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len() + 2).unwrap();
    [&length.to_le_bytes()[..], &tag.to_le_bytes(), payload].concat()
}

fn payload(message: &impl Message) -> Vec<u8> {
    encode(ProtocolVersion::V2, message).unwrap()[6..].to_vec()
}

fn read<M: Message>(tag: u16, payload: &[u8]) -> (M, Unknowns) {
    let mut unknown = Unknowns::default();
    let (message, _) = decode(ProtocolVersion::V2, &frame(tag, payload), &mut unknown).unwrap().unwrap();
    (message, unknown)
}

/// The place of the only occurrence of some bytes.
fn place(of: &[u8], within: &[u8]) -> usize {
    let mut places = within.windows(of.len()).enumerate().filter(|(_, window)| *window == of);
    let first = places.next().expect("they are there").0;
    assert!(places.next().is_none(), "they are there once");
    first
}

#[test]
fn fields_after_the_last_of_a_message_are_skipped() {
    let mut hello = from_agent("from_agent.hello.guest");
    // With all that a hello may have.
    let FromAgent::Hello(said) = &mut hello else { panic!("{hello:?}") };
    said.tasks_of_root = Some(true);
    let longer = [&payload(&hello)[..], b"more"].concat();
    let (message, unknown) = read::<FromAgent>(1, &longer);
    assert_eq!(message, hello);
    assert_eq!((unknown.messages, unknown.codes, unknown.fields), (0, 0, 1));
}

#[test]
fn fields_after_the_last_of_a_struct_are_skipped() {
    // A command with a block within: an answer whose limits have three bytes more.
    let ack = from_agent("from_agent.ack.applied_nothing");
    let bytes = payload(&ack);
    // Target 1 without content; version; outcome 1 with a content of ten bytes: a block of nine (no quota, weight,
    // memory, four ceilings on the disk, disk weight, two on the network are ten bytes), and no shortfalls.
    let block = [10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let at = place(&[&[1, 12][..], &block].concat(), &bytes);
    let longer = [&bytes[..at], &[1, 15, 13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 0]].concat();
    let (message, unknown) = read::<FromAgent>(3, &longer);
    assert_eq!(message, ack);
    assert_eq!((unknown.fields, unknown.total()), (1, 1));
}

#[test]
fn unknown_variants_are_kept_with_their_numbers() {
    let mut expected = from_agent("from_agent.report.reasons_with_details");
    let FromAgent::Report(report) = &mut expected else { panic!("no report") };
    report.workloads[0].kind = WorkloadKind::Unknown(900);
    report.machine.cpu_busy = Reading::Absent(gleaner_types::report::Absence {
        kind: AbsenceKind::Unknown(77),
        reason: Reason::Unknown(999),
    });
    let (message, unknown) = read::<FromAgent>(2, &payload(&expected));
    assert_eq!(message, expected);
    assert_eq!((unknown.codes, unknown.total()), (3, 3));

    let mut expected = from_agent("from_agent.hello.cgroup");
    let FromAgent::Hello(hello) = &mut expected else { panic!("no hello") };
    hello.facts.cgroups = CgroupMode::Unknown(60);
    hello.facts.levers.volunteer = VolunteerKind::Unknown(61);
    hello.facts.offers[0].capability = Capability::Unknown(62);
    let (message, unknown) = read::<FromAgent>(1, &payload(&expected));
    assert_eq!(message, expected);
    assert_eq!((unknown.codes, unknown.total()), (3, 3));

    let mut expected = from_agent("from_agent.ack.refused_stale");
    let FromAgent::Ack(ack) = &mut expected else { panic!("no answer") };
    ack.outcome = Outcome::Refused { reason: Refusal::Unknown(63), detail: "too warm".to_owned() };
    assert_eq!(read::<FromAgent>(3, &payload(&expected)).0, expected);
}

#[test]
fn an_unknown_event_is_kept_between_those_that_are_known() {
    let several = from_agent("from_agent.events.several");
    let FromAgent::Events(events) = &several else { panic!("no events") };
    // A list of the first, one of the number 700 with five bytes of content, and the last.
    let mut three = events.clone();
    three.events = vec![events.events[0].clone(), events.events[1].clone(), events.events[15].clone()];
    three.events[1].event = Event::UnknownEvent { code: 700 };
    let bytes = payload(&FromAgent::Events(three.clone()));
    // 700 is sent as 251 and two bytes; its content is empty here. The record around it grows by five bytes.
    let code = [251, 188, 2, 0];
    let at = place(&code, &bytes);
    let record = usize::from(bytes[1]) + 2;
    let length = usize::from(bytes[record]);
    assert!(record < at && record + 1 + length == at + code.len(), "the code ends its record");
    let mut newer = bytes.clone();
    newer[record] += 5;
    newer[at + 3] = 5;
    newer.splice(at + 4..at + 4, *b"fresh");
    for bytes in [bytes, newer] {
        let (message, unknown) = read::<FromAgent>(4, &bytes);
        assert_eq!(message, FromAgent::Events(three.clone()));
        assert_eq!((unknown.codes, unknown.last), (1, Some(("event", 700))));
    }
}

#[test]
fn a_message_about_something_unknown_is_skipped() {
    let Sample::FromAggregator(stop) = sample("from_aggregator.command.stop") else { panic!("no command") };
    let mut bytes = payload(&stop);
    // The desired state is last: number 2, no content.
    let last = bytes.len() - 2;
    assert_eq!(bytes[last..], [2, 0]);
    bytes[last] = 99;
    let (message, unknown) = read::<FromAggregator>(103, &bytes);
    assert_eq!(message, FromAggregator::Unknown { tag: 103 });
    assert_eq!((unknown.messages, unknown.last), (1, Some(("desired state", 99))));
    // The target is first: number 1.
    let mut bytes = payload(&stop);
    assert_eq!(bytes[..2], [1, 0]);
    bytes[0] = 98;
    assert_eq!(read::<FromAggregator>(103, &bytes).0, FromAggregator::Unknown { tag: 103 });
}

#[test]
fn an_unknown_tag_is_skipped_in_version_2_and_an_error_in_version_1() {
    let (message, unknown) = read::<FromAgent>(999, b"whatever");
    assert_eq!(message, FromAgent::Unknown { tag: 999 });
    assert_eq!((unknown.messages, unknown.last), (1, Some(("message tag", 999))));
    let mut unknown = Unknowns::default();
    let error = decode::<FromAgent>(ProtocolVersion::V1, &frame(999, b"whatever"), &mut unknown).unwrap_err();
    assert!(matches!(error, FrameError::UnknownTag { tag: 999 }), "{error}");
    assert!(encode(ProtocolVersion::V2, &message).is_err(), "it cannot be passed on");
}

#[test]
fn version_1_says_what_it_cannot_say() {
    let mut report = from_agent("from_agent.report.best");
    let FromAgent::Report(own) = &mut report else { panic!("no report") };
    own.volunteer.state = VolunteerState::Unknown(9);
    let error = encode(ProtocolVersion::V1, &report).unwrap_err().to_string();
    assert!(error.contains("version 1 of the protocol has no form for"), "{error}");
    // Reasons it says in words.
    let detailed = from_agent("from_agent.report.reasons_with_details");
    let frame = encode(ProtocolVersion::V1, &detailed).unwrap();
    let (back, _) = decode::<FromAgent>(ProtocolVersion::V1, &frame, &mut Unknowns::default()).unwrap().unwrap();
    let FromAgent::Report(back) = back else { panic!("no report") };
    let Reading::Absent(absence) = &back.workloads[0].cpu else { panic!("it is there") };
    assert_eq!(absence.kind, AbsenceKind::WentBack);
    assert_eq!(absence.detail(), "its counter went back from 70000 to 5");
}

/// Frames whose payload is mostly a list of as many empty elements as fit: an element is a byte there, and many in memory.
#[test]
fn a_list_of_millions_of_empty_elements_is_refused_before_it_is_read() {
    for (version, announced) in
        [(ProtocolVersion::V1, 4_000_000_u32), (ProtocolVersion::V2, 4_000_000), (ProtocolVersion::V2, 8_193)]
    {
        let mut body = vec![4, 0, 252];
        body.extend(announced.to_le_bytes());
        body.resize(body.len() + announced as usize, 0);
        let length = u32::try_from(body.len()).unwrap();
        let frame = [length.to_le_bytes().as_slice(), &body].concat();
        let error = decode::<FromAgent>(version, &frame, &mut Unknowns::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("a list of {announced} elements; at most 8192 are taken")), "{error}");
    }
}

#[test]
fn a_hostile_length_costs_nothing() {
    for version in ProtocolVersion::SUPPORTED {
        for payload in [&[253, 0, 0, 0, 0, 0, 0, 0, 16][..], &[253, 255, 255, 255, 255, 255, 255, 255, 255], &[251]] {
            for tag in [1, 2, 3, 4, 11] {
                let mut unknown = Unknowns::default();
                let error = decode::<FromAgent>(version, &frame(tag, payload), &mut unknown).unwrap_err();
                assert!(matches!(error, FrameError::Malformed { .. }), "{error}");
            }
        }
    }
}

/// One attempt in a state that only a newer release knows must not hold up how all others ended.
#[test]
fn an_element_about_something_unknown_is_left_out_of_its_list() {
    let attempt = |task| TaskAttempt { job: JobId::new("j").unwrap(), task, version: Version { epoch: 7, number: 9 } };
    let state = |task, status| TaskState { attempt: attempt(task), status };
    let exited = |task| state(task, TaskStatus::Exited { ran_ms: 5, status: 0 });
    let mut states = TaskStates { states: vec![exited(0), state(1, TaskStatus::Lost { ran_ms: 77 }), exited(2)] };
    let mut bytes = payload(&FromAgent::Tasks(states.clone()));
    let at = place(&[4, 1, 77], &bytes);
    bytes[at] = 99;
    let (message, unknown) = read::<FromAgent>(5, &bytes);
    states.states.remove(1);
    assert_eq!(message, FromAgent::Tasks(states));
    assert_eq!((unknown.codes, unknown.total(), unknown.last), (1, 1, Some(("state of a task", 99))));

    let order = |task, desired| TaskOrder { attempt: attempt(task), desired };
    let run = TaskDesired::Run { attempt: 1, command: "unique".to_owned() };
    let mut orders = TaskOrders { epoch: 7, orders: vec![order(0, TaskDesired::Forget), order(1, run)] };
    let mut bytes = payload(&FromAggregator::Tasks(orders.clone()));
    let at = place(b"\x01\x08\x01\x06unique", &bytes);
    bytes[at] = 98;
    let (message, unknown) = read::<FromAggregator>(107, &bytes);
    orders.orders.pop();
    assert_eq!(message, FromAggregator::Tasks(orders));
    assert_eq!((unknown.codes, unknown.last), (1, Some(("desired state of a task", 98))));

    // What is wrong rather than unknown still ends it.
    let mut bytes = payload(&FromAgent::Tasks(TaskStates { states: vec![state(1, TaskStatus::Lost { ran_ms: 77 })] }));
    let at = place(&[4, 1, 77], &bytes);
    bytes[at + 2] = 251;
    let error = decode::<FromAgent>(ProtocolVersion::V2, &frame(5, &bytes), &mut Unknowns::default()).unwrap_err();
    assert!(matches!(error, FrameError::Malformed { tag: 5, .. }), "{error}");
}
