//! A real aggregator in a folder of its own, and agents built in the test.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_api::{Client, Request, Response};
use gleaner_net::stream::{read_message, write_message};
use gleaner_net::tls::{AGGREGATOR_NAME, Authority, Identity, IdentityFiles};
use gleaner_net::transport;
use gleaner_test_support::report;
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAgent, FromAggregator, Hello, ProtocolVersion};

pub(crate) struct Aggregator {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) authority: Authority,
    pub(crate) address: SocketAddr,
    /// Where its metrics are.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) child: Child,
}

impl Aggregator {
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// One that also tells its metrics.
    pub(crate) async fn start_with_metrics() -> Self {
        let metrics = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut aggregator = Self::start_with(&format!("[metrics]\nlisten = '{metrics}'\n")).await;
        aggregator.metrics = Some(metrics);
        aggregator
    }

    async fn start_with(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create().unwrap();
        authority.write(folder.path()).unwrap();
        authority.issue_aggregator().unwrap().write(folder.path(), "aggregator").unwrap();
        let address = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let dir = folder.path().display();
        let config = format!(
            "listen = '{address}'\nsocket = '{dir}/a.sock'\nstate_dir = '{dir}/state'\nlocal_host = 'here'\n\
             [tls]\nca = '{dir}/ca.crt'\ncertificate = '{dir}/aggregator.crt'\nkey = '{dir}/aggregator.key'\n{more}"
        );
        std::fs::write(folder.path().join("a.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner-aggregator"));
        command.arg("--config").arg(folder.path().join("a.toml")).stderr(Stdio::null());
        let aggregator = Self { folder, authority, address, metrics: None, child: command.spawn().unwrap() };
        aggregator.until("the aggregator answers", |_| true).await;
        aggregator
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("a.sock")
    }

    pub(crate) fn identity(&self, host: &str) -> Identity {
        let issued = self.authority.issue_agent(&HostId::new(host).unwrap()).unwrap();
        let (certificate, key) = issued.write(self.folder.path(), host).unwrap();
        Identity::load(&self.folder.path().join("ca.crt"), &certificate, &key).unwrap()
    }

    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let events = events(&self.socket()).await;
            if events.as_ref().is_some_and(|events| condition(events)) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: not in 30 s, events are {events:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn connect(&self, host: &str) -> Agent {
        let endpoint = transport::client_endpoint(self.address, &self.identity(host)).unwrap();
        let connection = transport::connect(&endpoint, self.address).unwrap().await.unwrap();
        let (send, receive) = connection.open_bi().await.unwrap();
        Agent { _endpoint: endpoint, connection, send, receive }
    }

    /// A connection of an agent that offers just these names in the handshake; no stream is open yet.
    pub(crate) async fn connect_as(
        &self,
        host: &str,
        names: &[&[u8]],
    ) -> Result<(quinn::Endpoint, quinn::Connection), quinn::ConnectionError> {
        let mut tls = self.identity(host).client().unwrap();
        tls.alpn_protocols = names.iter().map(|name| name.to_vec()).collect();
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let connecting = endpoint.connect_with(config, self.address, AGGREGATOR_NAME).unwrap();
        Ok((endpoint, connecting.await?))
    }

    /// The authority's certificate, as a token has it.
    pub(crate) fn roots(&self) -> Vec<Vec<u8>> {
        let files = IdentityFiles { ca: self.folder.path().join("ca.crt"), certificate: "".into(), key: "".into() };
        files.authority().unwrap()
    }

    pub(crate) async fn joiner(&self) -> Agent {
        let endpoint = transport::joining_endpoint(self.address, &self.roots()).unwrap();
        let connection = transport::connect(&endpoint, self.address).unwrap().await.unwrap();
        let (send, receive) = connection.open_bi().await.unwrap();
        Agent { _endpoint: endpoint, connection, send, receive }
    }

    pub(crate) async fn connected(&self) -> Vec<String> {
        let client = Client::connect(&self.socket()).await.unwrap();
        let Response::Hosts(hosts) = client.call(&Request::Hosts).await.unwrap() else { panic!("no hosts") };
        hosts.into_iter().filter(|view| view.connected).map(|view| view.host.to_string()).collect()
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub(crate) async fn events(socket: &Path) -> Option<String> {
    let mut lines = Client::connect(socket).await.ok()?.events(None, false).await.ok()?;
    let mut all = String::new();
    while let Some(line) = lines.next().await.ok()? {
        all.push_str(&line);
        all.push('\n');
    }
    Some(all)
}

/// An agent made by hand.
pub(crate) struct Agent {
    pub(crate) _endpoint: quinn::Endpoint,
    pub(crate) connection: quinn::Connection,
    pub(crate) send: quinn::SendStream,
    pub(crate) receive: quinn::RecvStream,
}

impl Agent {
    pub(crate) async fn greet(&mut self, host: &str) -> Option<FromAggregator> {
        write_message(&mut self.send, ProtocolVersion::CURRENT, &hello(host)).await.unwrap();
        read_message(&mut self.receive, ProtocolVersion::CURRENT).await.unwrap()
    }

    pub(crate) async fn is_closed(&self) {
        tokio::time::timeout(Duration::from_secs(20), self.connection.closed())
            .await
            .expect("closed by the aggregator");
    }
}

pub(crate) fn hello(host: &str) -> FromAgent {
    FromAgent::Hello(Box::new(Hello {
        host: HostId::new(host).unwrap(),
        incarnation: 1,
        software: "test".into(),
        now: Timestamp(1),
        facts: report::facts(false),
        tasks_of_root: None,
    }))
}

/// A frame with this tag and payload, its length field right.
pub(crate) fn frame(tag: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len() + 2).unwrap();
    [&length.to_le_bytes()[..], &tag.to_le_bytes(), payload].concat()
}
