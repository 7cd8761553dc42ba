//! Agents of other versions of the protocol against the real aggregator, over real QUIC: one of the version before,
//! played from its golden bytes; one of a newer release; one that shares no version.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod site;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use gleaner_api::{Client, Request, Response};
use gleaner_net::stream::read_message;
use gleaner_net::transport;
use gleaner_types::command::{Desired, Target, Version};
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::{HostId, JobId};
use gleaner_types::task::{TaskAttempt, TaskState, TaskStatus};
use gleaner_types::time::Timestamp;
use gleaner_wire::{AgentEvents, FromAgent, FromAggregator, ProtocolVersion, Purpose, TaskStates, encode};
use site::{Aggregator, frame, hello};

/// The host of the golden messages.
const HOST: &str = "lab-07.example.org";

/// A frame as version 1 sent it.
fn recorded(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../common/wire/golden/v1");
    std::fs::read(folder.join(format!("{name}.bin"))).unwrap()
}

/// The next message that is of interest.
async fn until<T>(
    receive: &mut quinn::RecvStream,
    version: ProtocolVersion,
    wanted: impl Fn(FromAggregator) -> Option<T>,
) -> T {
    let search = async {
        loop {
            let message = read_message(receive, version).await.unwrap().expect("the connection stays");
            if let Some(found) = wanted(message) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), search).await.expect("it comes")
}

#[tokio::test]
async fn an_agent_of_version_1_is_served_in_version_1() {
    let aggregator = Aggregator::start().await;
    let (_endpoint, connection) = aggregator.connect_as(HOST, &[b"gleaner/1"]).await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let version = ProtocolVersion::V1;
    assert_eq!(transport::purpose(&connection), Some(Purpose::Agent(version)));
    send.write_all(&recorded("from_agent.hello.cgroup")).await.unwrap();
    let welcome = read_message(&mut receive, version).await.unwrap();
    assert!(matches!(welcome, Some(FromAggregator::Welcome(_))), "{welcome:?}");
    let mut reports = connection.open_uni().await.unwrap();
    for name in ["best", "workloads", "absent"] {
        reports.write_all(&recorded(&format!("from_agent.report.{name}"))).await.unwrap();
    }
    send.write_all(&recorded("from_agent.ack.applied_nothing")).await.unwrap();
    send.write_all(&recorded("from_agent.events.several")).await.unwrap();
    // What it may still run from before is stopped when it joins: a command that it understands.
    let command = until(&mut receive, version, |message| match message {
        FromAggregator::Command(command) => Some(command),
        _ => None,
    });
    let command = command.await;
    assert_eq!((command.target, command.desired), (Target::Volunteer, Desired::Stop));
    // A second time, so that the order of command and acknowledgement does not matter.
    send.write_all(&recorded("from_agent.events.several")).await.unwrap();
    let all = |message| match message {
        FromAggregator::EventsThrough(through) => Some(through),
        _ => None,
    };
    assert_eq!(until(&mut receive, version, all).await, 16);
    aggregator.until("its events are in the log", |events| events.contains("old_epoch_refused")).await;
    let client = Client::connect(&aggregator.socket()).await.unwrap();
    let Response::Hosts(hosts) = client.call(&Request::Hosts).await.unwrap() else { panic!("no hosts") };
    let own = hosts.into_iter().find(|view| view.host.as_str() == HOST).expect("it is there");
    assert!(own.connected);
    assert_eq!(own.report.expect("a report").sequence, 70_000);
    assert!(connection.close_reason().is_none());
}

/// Metrics of what was not known, by kind: messages, codes, fields.
fn not_understood(aggregator: &Aggregator) -> [u64; 3] {
    let mut stream = std::net::TcpStream::connect(aggregator.metrics.unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    ["message", "code", "field"].map(|kind| {
        let start = format!("gleaner_protocol_unknown_total{{kind=\"{kind}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start} in {page}")).parse().unwrap()
    })
}

#[tokio::test]
async fn an_agent_of_a_newer_version_speaks_ours_and_what_we_do_not_know_is_counted() {
    let aggregator = Aggregator::start_with_metrics().await;
    let names: [&[u8]; 3] = [b"gleaner/3", b"gleaner/2", b"gleaner-versions"];
    let (_endpoint, connection) = aggregator.connect_as("new", &names).await.unwrap();
    let version = ProtocolVersion::V2;
    assert_eq!(transport::purpose(&connection), Some(Purpose::Agent(version)));
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    // A hello with all that it may have, and fields that were appended.
    let mut said = hello("new");
    let FromAgent::Hello(content) = &mut said else { panic!("{said:?}") };
    content.tasks_of_root = Some(true);
    let payload = encode(version, &said).unwrap()[6..].to_vec();
    send.write_all(&frame(1, &[&payload[..], b"more"].concat())).await.unwrap();
    let welcome = read_message(&mut receive, version).await.unwrap();
    assert!(matches!(welcome, Some(FromAggregator::Welcome(_))), "{welcome:?}");
    // A message of a new tag, an event of a new kind, and a known one after it.
    send.write_all(&frame(900, b"news")).await.unwrap();
    let host = HostId::new("new").unwrap();
    let record = |sequence, event| EventRecord {
        at: Timestamp(sequence),
        source: EventSource::Agent { host: host.clone(), incarnation: 1, sequence },
        event,
    };
    let events = vec![record(1, Event::UnknownEvent { code: 700 }), record(2, Event::ReportsDropped { count: 3 })];
    send.write_all(&encode(version, &FromAgent::Events(AgentEvents { events })).unwrap()).await.unwrap();
    // How tasks are, with a field that was appended, and a task's state that is new.
    let attempt = TaskAttempt { job: JobId::new("j").unwrap(), task: 1, version: Version { epoch: 7, number: 9 } };
    let states = TaskStates { states: vec![TaskState { attempt, status: TaskStatus::Lost { ran_ms: 77 } }] };
    let mut payload = encode(version, &FromAgent::Tasks(states)).unwrap()[6..].to_vec();
    let code = payload.windows(3).position(|bytes| bytes == [4, 1, 77]).unwrap();
    payload[code] = 99;
    send.write_all(&frame(5, &[&payload[..], b"more"].concat())).await.unwrap();
    let through = until(&mut receive, version, |message| match message {
        FromAggregator::EventsThrough(through) => Some(through),
        _ => None,
    });
    assert_eq!(through.await, 2, "both are in the log");
    let logged = |events: &str| events.contains("\"unknown_event\"") && events.contains("\"code\":700");
    aggregator.until("the unknown event is in the log", logged).await;
    assert_eq!(aggregator.connected().await, ["new"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while not_understood(&aggregator) != [1, 2, 2] {
        assert!(Instant::now() < deadline, "{:?}", not_understood(&aggregator));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(connection.close_reason().is_none());
}

#[tokio::test]
async fn a_peer_that_shares_no_version_learns_ours_and_we_its() {
    let aggregator = Aggregator::start().await;
    let names: [&[u8]; 3] = [b"gleaner/9", b"gleaner/8", b"gleaner-versions"];
    let (_endpoint, connection) = aggregator.connect_as("future", &names).await.unwrap();
    assert_eq!(transport::purpose(&connection), Some(Purpose::Versions));
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&[9, 0, 8, 0]).await.unwrap();
    send.finish().unwrap();
    assert_eq!(receive.read_to_end(64).await.unwrap(), [2, 0, 1, 0]);
    connection.close(0u8.into(), b"bye");
    let refused = |events: &str| events.contains("the peer speaks 8, 9, this aggregator 1, 2");
    aggregator.until("it is told with both sides' versions", refused).await;
    assert!(aggregator.connected().await.is_empty());
}
