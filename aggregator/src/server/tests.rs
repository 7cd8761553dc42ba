//! Hostile and clumsy peers, places and rates.

use std::net::SocketAddr;

use gleaner_net::tls::{Authority, Identity};
use gleaner_types::command::{Ack, Limits, Outcome, Refusal, Target, Version};
use gleaner_types::id::JobId;
use gleaner_types::report::{HostFacts, Levers};
use gleaner_types::time::Timestamp;
use quinn::crypto::rustls::QuicClientConfig;

use super::*;

fn acceptor() -> Arc<Acceptor> {
    let (arrivals, _) = mpsc::channel(1);
    Arc::new(Acceptor {
        places: Arc::new(Semaphore::new(1)),
        pending: Mutex::default(),
        connects: Mutex::default(),
        sent: Mutex::default(),
        refusals: Mutex::new((Rate::new(REFUSALS_LOGGED), 0)),
        clock: Clock::start(),
        arrivals,
        leader_lease: LeaderLease::alone(),
        tasks: task_link(),
    })
}

fn task_link() -> TaskLink {
    TaskLink::new(host("h1"), "/nonexistent".into())
}

fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

/// An aggregator's endpoint, and the identity of the agent on host `h1`.
fn site() -> (quinn::Endpoint, SocketAddr, Identity) {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::create().unwrap());
    let (ca, _) = authority.write(folder.path()).unwrap();
    let [server, agent] = [authority.issue_aggregator(), authority.issue_agent(&host("h1"))].map(|issued| {
        let (certificate, key) = issued.unwrap().write(folder.path(), "peer").unwrap();
        Identity::load(&ca, &certificate, &key).unwrap()
    });
    let endpoint = transport::server_endpoint(([127, 0, 0, 1], 0).into(), &server).unwrap();
    let address = endpoint.local_addr().unwrap();
    (endpoint, address, agent)
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_ended() {
    let (endpoint, address, agent) = site();
    let accepting = tokio::spawn(async move {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        let (mut send, _receive) = connection.accept_bi().await.unwrap();
        let message = FromAggregator::Refused("because".to_owned());
        connection::send(&connection, ProtocolVersion::CURRENT, &mut send, &message, Duration::from_millis(100)).await;
        connection.close_reason().is_some()
    });
    // It allows not a single byte to be sent to it.
    let mut settings = quinn::TransportConfig::default();
    settings.stream_receive_window(0_u8.into());
    let tls = QuicClientConfig::try_from(agent.client().unwrap()).unwrap();
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(settings));
    let mut client = transport::client_endpoint(address, &agent).unwrap();
    client.set_default_client_config(config);
    let connection = transport::connect(&client, address).unwrap().await.unwrap();
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    send.write_all(&[0]).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), connection.closed()).await.expect("an end");
    assert!(ended.to_string().contains("does not take what it is sent"), "{ended}");
    assert!(accepting.await.unwrap());
}

#[tokio::test]
async fn a_hello_longer_than_any_host_needs_is_refused() {
    let (endpoint, address, agent) = site();
    let (arrivals, mut arrived) = mpsc::channel(8);
    tokio::spawn(serve(endpoint, 1, Clock::start(), arrivals, LeaderLease::alone(), task_link()));
    let levers = Levers::without_volunteer(true, vec!["it pushes everything else out of the log".to_owned(); 1_000]);
    let facts = HostFacts { levers, ..gleaner_test_support::report::facts(true) };
    let hello = Hello {
        host: host("h1"),
        incarnation: 1,
        software: String::new(),
        now: Timestamp(1),
        facts,
        tasks_of_root: None,
    };
    let client = transport::client_endpoint(address, &agent).unwrap();
    let connection = transport::connect(&client, address).unwrap().await.unwrap();
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    // The end may come before it is all sent.
    _ = write_message(&mut send, ProtocolVersion::CURRENT, &FromAgent::Hello(Box::new(hello))).await;
    let ended = tokio::time::timeout(Duration::from_secs(20), connection.closed()).await.expect("an end");
    assert!(ended.to_string().contains("over the limit of 32768"), "{ended}");
    let arrival = arrived.recv().await;
    let refused = |reason: &str| reason.contains("the hello of host h1 cannot be read: frame of");
    assert!(
        matches!(&arrival, Some(Arrival::Noticed(Event::PeerRefused { reason, .. })) if refused(reason)),
        "{arrival:?}"
    );
}

#[tokio::test]
async fn an_agent_that_was_stopped_is_told_from_one_that_is_lost() {
    let (endpoint, address, agent) = site();
    let (arrivals, mut arrived) = mpsc::channel(8);
    tokio::spawn(serve(endpoint, 2, Clock::start(), arrivals, LeaderLease::alone(), task_link()));
    for leaves in [false, true] {
        let client = transport::client_endpoint(address, &agent).unwrap();
        let connection = transport::connect(&client, address).unwrap().await.unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let hello = Hello {
            host: host("h1"),
            incarnation: 1,
            software: String::new(),
            now: Timestamp(1),
            facts: gleaner_test_support::report::facts(true),
            tasks_of_root: None,
        };
        write_message(&mut send, ProtocolVersion::CURRENT, &FromAgent::Hello(Box::new(hello))).await.unwrap();
        let Some(Arrival::Joined(Joined { sender: _sender, closer: _closer, events_through, .. })) =
            arrived.recv().await
        else {
            panic!("it does not join")
        };
        events_through.send(Ok(0)).unwrap();
        let welcome = gleaner_net::stream::read_message(&mut receive, ProtocolVersion::CURRENT).await.unwrap();
        assert!(matches!(welcome, Some(FromAggregator::Welcome(_))), "{welcome:?}");
        match leaves {
            true => transport::leave(&connection),
            false => connection.close(0u8.into(), b"stopped"),
        }
        let lost = tokio::time::timeout(Duration::from_secs(20), arrived.recv()).await.expect("an end");
        assert!(matches!(lost, Some(Arrival::Lost { left, .. }) if left == leaves), "{lost:?}");
    }
}

#[test]
fn an_answer_to_a_command_is_no_longer_than_an_event() {
    let acceptor = acceptor();
    let peer = Peer {
        host: host("h1"),
        incarnation: 1,
        connection: 1,
        version: ProtocolVersion::CURRENT,
        arrivals: acceptor.arrivals.clone(),
        leader_lease: LeaderLease::alone(),
        tasks: task_link(),
        sent: acceptor.sent(&host("h1")),
    };
    let ack = |shortfalls: Vec<String>| {
        let outcome = Outcome::Applied { limits: Limits::NONE, shortfalls };
        FromAgent::Ack(Ack { target: Target::Volunteer, version: Version::default(), outcome })
    };
    assert!(peer.control_stream(ack(vec!["no lever for it here".to_owned(); 20])).is_ok());
    for shortfalls in [vec!["x".repeat(MAX_EVENT)], vec![String::new(); MAX_EVENT]] {
        assert!(peer.control_stream(ack(shortfalls)).unwrap_err().to_string().contains("of more than 16384 bytes"));
    }
}

#[test]
fn a_host_that_connects_anew_may_not_send_more_for_it() {
    let acceptor = acceptor();
    let sent = |name| acceptor.sent(&host(name));
    sent("h1").messages().spend(5_000);
    assert!(sent("h1").messages().claim() > Duration::ZERO);
    assert_eq!(sent("h2").messages().claim(), Duration::ZERO, "others are not held up");
    // What an agent keeps through an outage comes at once: 300 reports and 4,096 events.
    let backlog = sent("h3");
    let waits: Duration = (0..4_396).map(|_| backlog.messages().claim()).sum();
    assert_eq!(waits, Duration::ZERO);
    let events = arrival((1..=4_096).map(|sequence| event(sequence, 500)).collect());
    assert_eq!(backlog.count(&events), Duration::ZERO);
}

/// An event of host `h1` whose text has so many bytes.
fn event(sequence: u64, bytes: usize) -> EventRecord {
    let source = EventSource::Agent { host: host("h1"), incarnation: 7, sequence };
    EventRecord {
        at: Timestamp(1),
        source,
        event: Event::JobWaiting { job: JobId::new("j").unwrap(), reason: "x".repeat(bytes) },
    }
}

fn arrival(records: Vec<EventRecord>) -> Arrival {
    Arrival::Events { host: host("h1"), connection: 1, records }
}

#[test]
fn what_a_host_has_logged_takes_hours_to_fill_the_event_log() {
    const SHORTEST: Duration = Duration::from_secs(7 * 3_600);
    // By default nine files of 16 MiB.
    let whole = 9 * (16 << 20);
    let sent = acceptor().sent(&host("h1"));
    // Nothing is waited for here: what is owed adds up.
    let (mut sequence, mut bytes, mut owed) = (0, 0, Duration::ZERO);
    while bytes < whole {
        sequence += 1;
        let one = event(sequence, 16_000);
        bytes += line_length(&one).unwrap();
        owed = sent.count(&arrival(vec![one]));
    }
    assert!(owed > SHORTEST, "{bytes} bytes in {} s", owed.as_secs());
    // Sent again, after a connection was lost, it counts no more.
    assert!(sent.count(&arrival((1..=sequence).map(|sequence| event(sequence, 10)).collect())) <= owed);
    // So do connections, which are events too: what is owed outlives each.
    let shared = acceptor();
    let joins = |name| shared.sent(&host(name)).count_events(weight(30_000) + 1);
    assert!((0..400).map(|_| joins("h4")).max() > Some(Duration::from_secs(1_000)));
    assert_eq!(joins("h5"), Duration::ZERO);
    // So does what is asked of the authority: each request is an event.
    let sent = acceptor().sent(&host("h1"));
    let request = || Arrival::CertificateRequest { host: host("h1"), connection: 1, request: vec![0] };
    assert!((0..6_000).map(|_| sent.count(&request())).max() > Some(Duration::from_secs(150)));
    // Answers that become events count too, others do not.
    let sent = acceptor().sent(&host("h1"));
    let acked = |outcome| {
        let ack = Ack { target: Target::Volunteer, version: Version::default(), outcome };
        sent.count(&Arrival::Acked { host: host("h1"), ack })
    };
    let refused = || Outcome::Refused { reason: Refusal::Stale, detail: "x".repeat(15_000) };
    let short = || Outcome::Applied { limits: Limits::NONE, shortfalls: vec!["x".repeat(15_000)] };
    let applied = || Outcome::Applied { limits: Limits::NONE, shortfalls: Vec::new() };
    assert_eq!((0..10_000).map(|_| acked(applied())).max(), Some(Duration::ZERO));
    assert!((0..1_000).map(|_| acked(refused())).max() > Some(Duration::from_secs(1_000)));
    assert!((0..1_000).map(|_| acked(short())).max() > Some(Duration::from_secs(3_000)));
}

#[test]
fn a_rate_runs_dry_and_fills_again() {
    let mut rate = Rate::new((1_000.0, 3.0));
    assert!((0..3).all(|_| rate.take()));
    rate.spend(1);
    assert!(!rate.take(), "nothing is left");
    rate.last -= Duration::from_secs(60);
    assert!((0..3).all(|_| rate.take()), "never more than at once");
}

#[test]
fn one_network_does_not_take_every_place() {
    let acceptor = acceptor();
    let address = |last| IpAddr::from([10, 0, 0, last]);
    let flood: Vec<_> =
        (0..2_000).filter_map(|number: u32| acceptor.begin_handshake(address(number.to_le_bytes()[0])).0).collect();
    assert_eq!(flood.len(), 256, "its addresses count as one");
    let others: Vec<_> = (2..=9).map(|third| acceptor.begin_handshake(IpAddr::from([10, 0, third, 1]))).collect();
    assert!(others.iter().all(|(handshake, _)| handshake.is_some()), "others come in");
    drop((flood, others));
    let (handshake, held) = acceptor.begin_handshake(address(1));
    assert_eq!(held, 0, "nothing is kept of who has gone");
    handshake.expect("a place").welcomed();
    let known = acceptor.begin_handshake(address(1)).0.expect("a place");
    assert_eq!(known.holder, Holder::Known(address(1)));
}
