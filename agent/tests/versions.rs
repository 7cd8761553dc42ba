//! The agent's link against aggregators of other versions of the protocol, over real QUIC: one of the version before,
//! played from its golden bytes; and one that shares no version.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gleaner_agent::link::{self, Introduction, LinkSettings};
use gleaner_agent::order::{self, Order, Orders};
use gleaner_agent::outbox::{Outbox, OutboxLimits};
use gleaner_daemon::clock::Clock;
use gleaner_net::stream::read_message;
use gleaner_net::tls::{Authority, Identity, IdentityFiles};
use gleaner_net::transport;
use gleaner_test_support::report;
use gleaner_types::command::{Ack, Desired, Limits, Outcome};
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::report::Reason;
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAgent, ProtocolVersion, Purpose};
use quinn::crypto::rustls::QuicServerConfig;

/// Longest wait for anything.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// A frame as version 1 sent it.
fn recorded(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../common/wire/golden/v1");
    std::fs::read(folder.join(format!("{name}.bin"))).unwrap()
}

/// An aggregator's endpoint that knows just these protocols, and the files of an agent that trusts it.
struct Site {
    _folder: tempfile::TempDir,
    endpoint: quinn::Endpoint,
    address: SocketAddr,
    files: IdentityFiles,
    host: HostId,
}

impl Site {
    fn with(names: &[&[u8]]) -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::create().unwrap());
        let host = HostId::new("h1").unwrap();
        let (ca, _) = authority.write(folder.path()).unwrap();
        let (certificate, key) = authority.issue_aggregator().unwrap().write(folder.path(), "aggregator").unwrap();
        let mut tls = Identity::load(&ca, &certificate, &key).unwrap().server().unwrap();
        tls.alpn_protocols = names.iter().map(|name| name.to_vec()).collect();
        let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        let endpoint = quinn::Endpoint::server(config, ([127, 0, 0, 1], 0).into()).unwrap();
        let address = endpoint.local_addr().unwrap();
        let (certificate, key) = authority.issue_agent(&host).unwrap().write(folder.path(), "h1").unwrap();
        Self { _folder: folder, endpoint, address, files: IdentityFiles { ca, certificate, key }, host }
    }

    /// Starts the link of an agent.
    fn link(&self) -> (Arc<Outbox>, Orders, tokio::task::JoinHandle<()>) {
        let limits = OutboxLimits { reports: 10, events: 10 };
        let outbox = Arc::new(Outbox::new(limits, self.host.clone(), 7));
        let (orders, taken) = order::orders();
        let (host, facts) = (self.host.clone(), report::facts(true));
        let introduction = Introduction { host, incarnation: 7, facts, tasks_of_root: Some(false) };
        let (tasks, _) = tokio::sync::mpsc::channel(1);
        let (addresses, files) = (vec![self.address.to_string()], self.files.clone());
        let settings = LinkSettings { addresses, files, introduction, tasks };
        let link =
            tokio::spawn(link::run(settings, Clock::start(), Arc::clone(&outbox), orders, std::future::pending()));
        (outbox, taken, link)
    }
}

/// The next thing, or the end of the test.
async fn soon<T>(what: &str, happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONGEST_WAIT, happens).await.unwrap_or_else(|_| panic!("{what}: not in 20 s"))
}

#[tokio::test]
async fn an_aggregator_of_version_1_is_spoken_to_in_version_1() {
    let site = Site::with(&[b"gleaner/1", b"gleaner-join/1"]);
    let (outbox, orders, link) = site.link();
    let mut sent = report::report(&site.host, 1);
    sent.machine.load_1min = gleaner_types::report::Reading::because(Reason::CounterWentBack { before: 9, now: 5 });
    outbox.report(sent);
    outbox.event(Timestamp(1), Event::ReportsDropped { count: 3 });
    let connection = soon("a connection", async { site.endpoint.accept().await.unwrap().await.unwrap() }).await;
    let version = ProtocolVersion::V1;
    assert_eq!(transport::purpose(&connection), Some(Purpose::Agent(version)));
    let (mut send, mut receive) = soon("a stream", connection.accept_bi()).await.unwrap();
    let Some(FromAgent::Hello(hello)) = soon("a hello", read_message(&mut receive, version)).await.unwrap() else {
        panic!("no hello")
    };
    assert_eq!((hello.host.as_str(), hello.incarnation), ("h1", 7));
    // The welcome says that events up to a higher number are in the log, so the agent has none to send again; the one it
    // makes next has a lower one and is taken for sent. So the welcome here is of an aggregator that knows none.
    let welcome = gleaner_wire::FromAggregator::Welcome(gleaner_wire::Welcome {
        software: "0.1.0".to_owned(),
        now: Timestamp(1),
        events_through: 0,
    });
    send.write_all(&gleaner_wire::encode(version, &welcome).unwrap()).await.unwrap();
    let Some(FromAgent::Events(events)) = soon("events", read_message(&mut receive, version)).await.unwrap() else {
        panic!("no events")
    };
    assert_eq!(events.events[0].event, Event::ReportsDropped { count: 3 });
    let mut reports = soon("the stream of reports", connection.accept_uni()).await.unwrap();
    let Some(FromAgent::Report(report)) = soon("a report", read_message(&mut reports, version)).await.unwrap() else {
        panic!("no report")
    };
    let load = report.machine.load_1min.clone();
    assert_eq!(serde_json::to_value(load).unwrap()["absent"]["detail"], "its counter went back from 9 to 5");
    // A recorded command is carried out and answered; a recorded acknowledgement is taken.
    send.write_all(&recorded("from_aggregator.command.run")).await.unwrap();
    send.write_all(&recorded("from_aggregator.events_through")).await.unwrap();
    let order =
        soon("a command", tokio::task::spawn_blocking(move || orders.next(LONGEST_WAIT).unwrap())).await.unwrap();
    let Order::Command(command) = order else { panic!("{order:?}") };
    assert!(matches!(command.desired, Desired::Run { .. }), "{command:?}");
    let outcome = Outcome::Applied { limits: Limits::NONE, shortfalls: vec![] };
    let ack = Ack { target: command.target, version: command.version, outcome };
    outbox.ack(ack.clone());
    let Some(FromAgent::Ack(received)) = soon("an answer", read_message(&mut receive, version)).await.unwrap() else {
        panic!("no answer")
    };
    assert_eq!(received, ack);
    soon("the event is done with", async {
        while outbox.queued().events > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(outbox.queued().unknown.is_empty());
    link.abort();
}

#[tokio::test]
async fn an_aggregator_that_shares_no_version_learns_ours_and_tells_its() {
    let site = Site::with(&[b"gleaner/9", gleaner_wire::VERSIONS_ALPN]);
    let (_outbox, _orders, link) = site.link();
    let connection = soon("a connection", async { site.endpoint.accept().await.unwrap().await.unwrap() }).await;
    let (mut send, mut receive) = soon("a stream", connection.accept_bi()).await.unwrap();
    assert_eq!(soon("our versions", receive.read_to_end(64)).await.unwrap(), [2, 0, 1, 0]);
    send.write_all(&[9, 0]).await.unwrap();
    send.finish().unwrap();
    // It has read them when it ends the connection, and comes again after a pause.
    soon("the end", connection.closed()).await;
    link.abort();
}

#[tokio::test]
async fn what_a_newer_aggregator_says_is_skipped_and_counted() {
    let site = Site::with(&[b"gleaner/3", b"gleaner/2"]);
    let (outbox, orders, link) = site.link();
    let connection = soon("a connection", async { site.endpoint.accept().await.unwrap().await.unwrap() }).await;
    let version = ProtocolVersion::V2;
    assert_eq!(transport::purpose(&connection), Some(Purpose::Agent(version)));
    let (mut send, mut receive) = soon("a stream", connection.accept_bi()).await.unwrap();
    let hello = soon("a hello", read_message::<FromAgent, _>(&mut receive, version)).await.unwrap();
    assert!(matches!(hello, Some(FromAgent::Hello(_))), "{hello:?}");
    let v2 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../common/wire/golden/v2");
    let frame = |name: &str| std::fs::read(v2.join(format!("from_aggregator.{name}.bin"))).unwrap();
    // A welcome with a field that was appended.
    let welcome = frame("welcome");
    let length = u32::try_from(welcome.len() - 4 + 3).unwrap();
    send.write_all(&[&length.to_le_bytes()[..], &welcome[4..], &[7; 3]].concat()).await.unwrap();
    // A message of an unknown tag, a command for an unknown state, and one that is understood.
    send.write_all(&[6, 0, 0, 0, 132, 3, 1, 2, 3, 4]).await.unwrap();
    let mut strange = frame("command.stop");
    let state = strange.len() - 2;
    strange[state] = 99;
    send.write_all(&strange).await.unwrap();
    send.write_all(&frame("command.stop")).await.unwrap();
    let order =
        soon("a command", tokio::task::spawn_blocking(move || orders.next(LONGEST_WAIT).unwrap())).await.unwrap();
    assert!(matches!(&order, Order::Command(command) if command.desired == Desired::Stop), "{order:?}");
    let unknown = outbox.queued().unknown;
    assert_eq!((unknown.messages, unknown.fields, unknown.total()), (2, 1, 3));
    assert!(connection.close_reason().is_none());
    link.abort();
}
