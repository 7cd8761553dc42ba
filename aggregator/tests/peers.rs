//! Bad peers against the real aggregator, over real QUIC: each harms only itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod site;

use std::process::Command;
use std::time::Duration;

use gleaner_api::{Client, Request, Response};
use gleaner_net::join::new_secret;
use gleaner_net::stream::{read_message, write_message};
use gleaner_net::tls::{AGGREGATOR_NAME, CertificateRequest};
use gleaner_types::id::HostId;
use gleaner_wire::{
    AgentEvents, FromAgent, FromAggregator, FromJoiner, JoinRequest, ProtocolVersion, ToJoiner, encode,
};
use site::{Aggregator, events, frame, hello};

#[tokio::test]
async fn malformed_frames_end_their_own_connection_and_no_other() {
    let aggregator = Aggregator::start().await;
    let mut good = aggregator.connect("good").await;
    assert!(matches!(good.greet("good").await, Some(FromAggregator::Welcome(_))));
    let hello_payload = encode(ProtocolVersion::CURRENT, &hello("x")).unwrap()[6..].to_vec();
    for (name, bytes) in [
        ("leftover", frame(1, &[&hello_payload[..], &[0]].concat())),
        ("oversized", u32::MAX.to_le_bytes().to_vec()),
        ("short", vec![1, 0, 0, 0, 7]),
        ("garbage", vec![0x5a; 300]),
        // Events whose payload announces a list of 2^60 entries.
        ("bomb", frame(4, &[253, 0, 0, 0, 0, 0, 0, 0, 16])),
        ("second-hello", encode(ProtocolVersion::CURRENT, &hello("second-hello")).unwrap()),
    ] {
        let mut bad = aggregator.connect(name).await;
        assert!(matches!(bad.greet(name).await, Some(FromAggregator::Welcome(_))), "{name}");
        bad.send.write_all(&bytes).await.unwrap();
        bad.is_closed().await;
        let mine = format!("\"host\":\"{name}\"");
        let refused =
            |events: &str| events.lines().any(|line| line.contains("message_refused") && line.contains(&mine));
        aggregator.until(name, refused).await;
    }
    // A frame cut off by the end of its stream.
    let mut torn = aggregator.connect("torn").await;
    torn.greet("torn").await;
    torn.send.write_all(&encode(ProtocolVersion::CURRENT, &hello("torn")).unwrap()[..20]).await.unwrap();
    torn.send.finish().unwrap();
    torn.is_closed().await;
    aggregator.until("the lost hosts are told of", |events| events.matches("host_lost").count() == 7).await;
    assert_eq!(aggregator.connected().await, ["good"]);
}

#[tokio::test]
async fn what_is_not_a_proper_hello_is_refused_with_the_reason() {
    let aggregator = Aggregator::start().await;
    let mut liar = aggregator.connect("liar").await;
    let answer = liar.greet("somebody-else").await;
    let refused = |answer: &Option<FromAggregator>, part: &str| matches!(answer, Some(FromAggregator::Refused(why)) if why.contains(part));
    assert!(refused(&answer, "certificate is of host liar"), "{answer:?}");
    let mut rude = aggregator.connect("rude").await;
    write_message(&mut rude.send, ProtocolVersion::CURRENT, &FromAgent::Events(AgentEvents { events: vec![] }))
        .await
        .unwrap();
    let answer = read_message(&mut rude.receive, ProtocolVersion::CURRENT).await.unwrap();
    assert!(refused(&answer, "does not begin with a hello"), "{answer:?}");
    let mute = aggregator.connect("mute").await;
    mute.is_closed().await;
    aggregator.until("the silent one is told of", |events| events.contains("host mute sends no hello")).await;
    assert!(aggregator.connected().await.is_empty());
}

#[tokio::test]
async fn another_protocol_version_is_refused_in_the_handshake() {
    let aggregator = Aggregator::start().await;
    let error = aggregator.connect_as("future", &[b"gleaner/9"]).await.unwrap_err().to_string();
    assert!(error.contains("any known protocol"), "{error}");
    let refused = |events: &str| events.contains("this aggregator speaks versions 1, 2");
    aggregator.until("it is told with the versions there are", refused).await;
}

#[tokio::test]
async fn a_newer_connection_of_a_host_replaces_the_older() {
    let aggregator = Aggregator::start().await;
    let mut first = aggregator.connect("twice").await;
    first.greet("twice").await;
    let mut second = aggregator.connect("twice").await;
    assert!(matches!(second.greet("twice").await, Some(FromAggregator::Welcome(_))));
    first.is_closed().await;
    assert_eq!(aggregator.connected().await, ["twice"], "the end of the older is no loss of the host");
}

#[tokio::test]
async fn a_second_aggregator_on_the_same_socket_says_who_has_it() {
    let aggregator = Aggregator::start().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner-aggregator"));
    let output = command.arg("--config").arg(aggregator.folder.path().join("a.toml")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("another aggregator (process {})", aggregator.child.id())), "{said}");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_answered() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let aggregator = Aggregator::start().await;
    for request in ["nonsense\n", "{\"job\":{\"job\":\"../x\"}}\n", "{\"overview\":1}\n", "\u{0}\n"] {
        let mut stream = tokio::net::UnixStream::connect(aggregator.socket()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("\"code\":\"invalid\""), "{request:?} got {answer:?}");
    }
}

#[tokio::test]
async fn without_a_certificate_only_joining_is_spoken_and_only_once() {
    let aggregator = Aggregator::start().await;
    // The agents' protocol without a certificate: the handshake works, nothing else does.
    let mut joining = gleaner_net::tls::joining_client(&aggregator.roots()).unwrap();
    joining.alpn_protocols = vec![ProtocolVersion::CURRENT.alpn().to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(joining).unwrap();
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = quinn::ClientConfig::new(std::sync::Arc::new(crypto));
    let connecting = endpoint.connect_with(config, aggregator.address, AGGREGATOR_NAME).unwrap();
    let connection = connecting.await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    _ = write_message(&mut send, ProtocolVersion::CURRENT, &hello("nobody")).await;
    assert!(read_message::<FromAggregator, _>(&mut receive, ProtocolVersion::CURRENT).await.is_err());
    aggregator.until("it is told", |events| events.contains("the peer shows no certificate")).await;
    assert!(aggregator.connected().await.is_empty());

    // An agent's messages on the joining protocol, too long ones, and half ones.
    let long = FromJoiner::Join(JoinRequest { secret: new_secret().unwrap(), request: vec![0; 9_000] });
    let good = FromJoiner::Join(JoinRequest { secret: new_secret().unwrap(), request: vec![0; 10] });
    for bytes in [
        encode(ProtocolVersion::CURRENT, &hello("x")).unwrap(),
        encode(ProtocolVersion::CURRENT, &long).unwrap(),
        u32::MAX.to_le_bytes().to_vec(),
    ] {
        let mut joiner = aggregator.joiner().await;
        joiner.send.write_all(&bytes).await.unwrap();
        joiner.is_closed().await;
    }
    let mut torn = aggregator.joiner().await;
    torn.send.write_all(&encode(ProtocolVersion::CURRENT, &good).unwrap()[..12]).await.unwrap();
    torn.send.finish().unwrap();
    torn.is_closed().await;
    let refused = |count: usize| move |events: &str| events.matches("join_refused").count() == count;
    aggregator.until("four are told", refused(4)).await;

    // One question, one answer, the end.
    let mut joiner = aggregator.joiner().await;
    write_message(&mut joiner.send, ProtocolVersion::CURRENT, &good).await.unwrap();
    let answer = read_message(&mut joiner.receive, ProtocolVersion::CURRENT).await.unwrap();
    assert!(matches!(&answer, Some(ToJoiner::Refused(why)) if why.contains("no open invitation")), "{answer:?}");
    joiner.is_closed().await;
}

#[tokio::test]
async fn guesses_are_limited() {
    let aggregator = Aggregator::start().await;
    let mut limited = 0;
    for _ in 0..30 {
        let mut joiner = aggregator.joiner().await;
        let guess = JoinRequest { secret: new_secret().unwrap(), request: vec![0; 10] };
        write_message(&mut joiner.send, ProtocolVersion::CURRENT, &FromJoiner::Join(guess)).await.unwrap();
        let Some(ToJoiner::Refused(why)) = read_message(&mut joiner.receive, ProtocolVersion::CURRENT).await.unwrap()
        else {
            panic!("joined")
        };
        joiner.connection.close(0u8.into(), b"");
        limited += usize::from(why.contains("too many attempts to join have failed"));
    }
    assert!(limited > 0, "of 30 guesses none was turned away");
    let logged = events(&aggregator.socket()).await.unwrap().matches("join_refused").count();
    assert_eq!(logged + limited, 30, "what is turned away is not logged");
}

#[tokio::test]
async fn a_connection_is_given_one_certificate_and_for_its_own_host_only() {
    let aggregator = Aggregator::start().await;
    let mut agent = aggregator.connect("h1").await;
    assert!(matches!(agent.greet("h1").await, Some(FromAggregator::Welcome(_))));
    // The request names another host.
    let request = CertificateRequest::new(&HostId::new("h2").unwrap()).unwrap();
    write_message(&mut agent.send, ProtocolVersion::CURRENT, &FromAgent::CertificateRequest(request.der.clone()))
        .await
        .unwrap();
    let Some(FromAggregator::Certificate(certificate)) =
        read_message(&mut agent.receive, ProtocolVersion::CURRENT).await.unwrap()
    else {
        panic!("no certificate")
    };
    request.complete(&aggregator.roots(), certificate, &HostId::new("h1").unwrap()).unwrap();
    let again = CertificateRequest::new(&HostId::new("h1").unwrap()).unwrap();
    write_message(&mut agent.send, ProtocolVersion::CURRENT, &FromAgent::CertificateRequest(again.der)).await.unwrap();
    let answer = read_message(&mut agent.receive, ProtocolVersion::CURRENT).await.unwrap();
    assert!(matches!(answer, Some(FromAggregator::CertificateRefused(_))), "{answer:?}");
    aggregator.until("it is told", |events| events.contains("was issued on this connection already")).await;
    write_message(&mut agent.send, ProtocolVersion::CURRENT, &FromAgent::CertificateRequest(vec![0; 5_000]))
        .await
        .unwrap();
    agent.is_closed().await;
}

#[tokio::test]
async fn a_revoked_peer_that_reads_nothing_is_cut_off_too() {
    let aggregator = Aggregator::start().await;
    let mut agent = aggregator.connect("deaf").await;
    assert!(matches!(agent.greet("deaf").await, Some(FromAggregator::Welcome(_))));
    let client = Client::connect(&aggregator.socket()).await.unwrap();
    let host = HostId::new("deaf").unwrap();
    let revoked = client.call(&Request::Revoke { host, unknown: false }).await.unwrap();
    assert!(matches!(revoked, Response::Revoked { was_connected: true, .. }), "{revoked:?}");
    let closed = tokio::time::timeout(Duration::from_secs(20), agent.connection.closed()).await.unwrap().to_string();
    assert!(closed.contains("the certificates of host deaf are revoked"), "{closed}");
    let mut again = aggregator.connect("deaf").await;
    let answer = again.greet("deaf").await;
    assert!(matches!(&answer, Some(FromAggregator::Refused(why)) if why.contains("were revoked at")), "{answer:?}");
    let mut other = aggregator.connect("other").await;
    assert!(matches!(other.greet("other").await, Some(FromAggregator::Welcome(_))));
}
