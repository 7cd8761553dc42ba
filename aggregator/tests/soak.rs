//! Well-behaved agents beside hostile ones and hostile clients of the API, against the real aggregator: the well-behaved
//! lose nothing, and the aggregator's memory stays within bounds.
//!
//! `GLEANER_SOAK_SECONDS` is how long (20 without it).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gleaner_api::{Client, Request, Response};
use gleaner_net::stream::{read_message, write_message};
use gleaner_net::tls::{Authority, Identity};
use gleaner_net::transport;
use gleaner_test_support::generate::{Entropy, OF_AGENTS, of_agent};
use gleaner_test_support::synthetic;
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::HostId;
use gleaner_types::report::{Bounded, PromiseRecord, PromiseWindows, Reading};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Fraction, MAX_CORES, MAX_COUNT, MAX_MAGNITUDE};
use gleaner_wire::{AgentEvents, FromAgent, FromAggregator, ProtocolVersion, encode};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

/// Well-behaved agents.
const GOOD: u64 = 5;
/// What the aggregator may have grown by, in KiB. Chosen: generous, and far from what an unbounded queue would come to.
const MOST_GROWTH_KIB: u64 = 300 << 10;

/// Connections that another user opens at once. Chosen: more than one user may have.
const PLACES: usize = 100;

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Aggregator {
    folder: tempfile::TempDir,
    address: SocketAddr,
    child: Child,
}

impl Aggregator {
    fn start(authority: &Authority) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another user has to get to the socket.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        authority.write(folder.path()).unwrap();
        authority.issue_aggregator().unwrap().write(folder.path(), "aggregator").unwrap();
        let address = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let dir = folder.path().display();
        let config = format!(
            "listen = '{address}'\nsocket = '{dir}/a.sock'\nsocket_mode = '0666'\nstate_dir = '{dir}/state'\n\
             local_host = 'here'\n[tls]\nca = '{dir}/ca.crt'\ncertificate = '{dir}/aggregator.crt'\nkey = '{dir}/aggregator.key'\n"
        );
        std::fs::write(folder.path().join("a.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner-aggregator"));
        command.arg("--config").arg(folder.path().join("a.toml")).stderr(Stdio::null());
        Self { address, child: command.spawn().unwrap(), folder }
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What every peer needs.
#[derive(Clone)]
struct Scene {
    address: SocketAddr,
    socket: PathBuf,
    folder: PathBuf,
    over: Arc<AtomicBool>,
    attacks: Arc<Mutex<BTreeMap<&'static str, Outcomes>>>,
}

/// What became of the turns of one kind of attack.
#[derive(Debug, Clone, Copy, Default)]
struct Outcomes {
    turns: u64,
    /// Turns in which it got as far as to do what it is about.
    reached: u64,
    /// Turns that the aggregator ended, or that ended by themselves.
    ended: u64,
    /// Turns that went on until their time was over.
    timed_out: u64,
}

/// One turn of an attack.
#[derive(Clone)]
struct Turn {
    scene: Scene,
    name: &'static str,
}

impl Turn {
    /// The aggregator was sent what the attack is about.
    fn reached(&self) {
        self.scene.count(self.name, |outcomes| outcomes.reached += 1);
    }
}

impl std::ops::Deref for Turn {
    type Target = Scene;
    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Scene {
    fn identity(&self, authority: &Authority, host: &str) -> Arc<Identity> {
        let issued = authority.issue_agent(&HostId::new(host).unwrap()).unwrap();
        let (certificate, key) = issued.write(&self.folder, &format!("soak-{host}")).unwrap();
        Arc::new(Identity::load(&self.folder.join("ca.crt"), &certificate, &key).unwrap())
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    async fn connect(&self, identity: &Identity) -> Result<(quinn::Endpoint, quinn::Connection), Failure> {
        let endpoint = transport::client_endpoint(self.address, identity)?;
        let connection =
            tokio::time::timeout(Duration::from_secs(10), transport::connect(&endpoint, self.address)?).await??;
        Ok((endpoint, connection))
    }

    /// A connection that was welcomed as this host, with its control stream.
    async fn welcomed(&self, identity: &Identity, host: &str, incarnation: u64) -> Result<Welcomed, Failure> {
        let (endpoint, connection) = self.connect(identity).await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        write_message(&mut send, ProtocolVersion::CURRENT, &synthetic::hello(&HostId::new(host)?, incarnation)).await?;
        match tokio::time::timeout(Duration::from_secs(10), read_message(&mut receive, ProtocolVersion::CURRENT))
            .await??
        {
            Some(FromAggregator::Welcome(_)) => Ok(Welcomed { _endpoint: endpoint, connection, send, receive }),
            other => Err(format!("no welcome but {other:?}").into()),
        }
    }

    fn count(&self, name: &'static str, count: impl FnOnce(&mut Outcomes)) {
        count(self.attacks.lock().unwrap().entry(name).or_default());
    }

    /// Does the same bad thing again and again, whatever comes of it.
    fn attack<F: Future<Output = Result<(), Failure>> + Send>(
        &self,
        peers: &mut JoinSet<()>,
        name: &'static str,
        mut once: impl FnMut(Turn) -> F + Send + 'static,
    ) {
        let turn = Turn { scene: self.clone(), name };
        peers.spawn(async move {
            while !turn.is_over() {
                turn.count(name, |outcomes| outcomes.turns += 1);
                let end = tokio::time::timeout(Duration::from_secs(15), once(turn.clone())).await;
                turn.count(name, |outcomes| match end {
                    Ok(_) => outcomes.ended += 1,
                    Err(_) => outcomes.timed_out += 1,
                });
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
}

struct Welcomed {
    _endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
}

fn event(host: &str, incarnation: u64, sequence: u64) -> EventRecord {
    let source = EventSource::Agent { host: HostId::new(host).unwrap(), incarnation, sequence };
    EventRecord { at: Timestamp(sequence), source, event: Event::ReportsDropped { count: sequence } }
}

/// Reports and an event a second until it is over; then as many again until everything sent is acknowledged. Answers how
/// many of each were sent.
async fn well_behaved(scene: Scene, identity: Arc<Identity>, host: String) -> Result<(u64, u64), Failure> {
    let Welcomed { _endpoint, connection, mut send, mut receive } = scene.welcomed(&identity, &host, 1).await?;
    let mut reports = connection.open_uni().await?;
    let through = Arc::<AtomicU64>::default();
    let reader = {
        let through = Arc::clone(&through);
        tokio::spawn(async move {
            while let Ok(Some(message)) = read_message(&mut receive, ProtocolVersion::CURRENT).await {
                if let FromAggregator::EventsThrough(number) = message {
                    through.fetch_max(number, Ordering::Relaxed);
                }
            }
        })
    };
    let name = HostId::new(&*host)?;
    let mut sent = 0;
    while !scene.is_over() {
        sent += 1;
        write_message(&mut reports, ProtocolVersion::CURRENT, &synthetic::report(&name, sent, 3)).await?;
        let events = vec![event(&host, 1, sent)];
        write_message(&mut send, ProtocolVersion::CURRENT, &FromAgent::Events(AgentEvents { events })).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while through.load(Ordering::Relaxed) < sent && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It stays connected until its newest report has been looked for.
    let client = Client::connect(&scene.socket).await?;
    let mut newest = 0;
    while newest < sent && Instant::now() < deadline {
        let Response::Hosts(hosts) = client.call(&Request::Hosts).await? else { return Err("no hosts".into()) };
        let own = hosts.into_iter().find(|view| view.host == name).and_then(|view| view.report);
        newest = own.map_or(0, |report| report.sequence);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    reader.abort();
    assert_eq!(newest, sent, "{host}: the newest report");
    Ok((sent, through.load(Ordering::Relaxed)))
}

/// Everything that peers with a certificate, without one and with a wrong one can think of.
fn hostile_peers(scene: &Scene, authority: &Authority, peers: &mut JoinSet<()>) {
    let stranger = scene.identity(&Authority::create().unwrap(), "stranger");
    for _ in 0..4 {
        let stranger = stranger.clone();
        scene.attack(peers, "certificate of another authority", move |scene| {
            let stranger = stranger.clone();
            async move {
                // A flood of connections. A client is connected before the server has looked at its certificate.
                let (_endpoint, connection) = scene.connect(&stranger).await?;
                scene.reached();
                connection.closed().await;
                Ok(())
            }
        });
    }
    scene.attack(peers, "no QUIC", |scene| async move {
        // Datagrams that are no QUIC, and beginnings of handshakes that never go on.
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
        for number in 0..200_u32 {
            let mut bytes = vec![0xc0, 0, 0, 0, 1, 8];
            bytes.extend(number.to_le_bytes().iter().cycle().take(1_200));
            socket.send_to(&bytes, scene.address).await?;
        }
        scene.reached();
        Ok(())
    });
    let identity = scene.identity(authority, "mute");
    scene.attack(peers, "no hello", move |scene| {
        let identity = identity.clone();
        async move {
            // Connected, and not a word: a hundred at once.
            let mut silent = Vec::new();
            for _ in 0..100 {
                silent.push(scene.connect(&identity).await?);
                if silent.len() == 10 {
                    scene.reached();
                }
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok(())
        }
    });
    let frame = |length: u32, tag: u16, rest: &[u8]| [&length.to_le_bytes()[..], &tag.to_le_bytes(), rest].concat();
    let other =
        encode(ProtocolVersion::CURRENT, &synthetic::report(&HostId::new("good-0").unwrap(), 99_999, 1)).unwrap();
    for (host, bytes) in [
        ("oversized", u32::MAX.to_le_bytes().to_vec()),
        ("garbage", vec![0x5a; 5_000]),
        ("unknown-tag", frame(10, 999, &[0; 8])),
        ("bomb", frame(11, 4, &[253, 0, 0, 0, 0, 0, 0, 0, 16])),
        ("other-host", other),
    ] {
        let identity = scene.identity(authority, host);
        scene.attack(peers, host, move |scene| {
            let (identity, bytes) = (identity.clone(), bytes.clone());
            async move {
                // A valid hello, then something else on both streams.
                let mut welcomed = scene.welcomed(&identity, host, 1).await?;
                let mut reports = welcomed.connection.open_uni().await?;
                reports.write_all(&bytes).await?;
                welcomed.send.write_all(&bytes).await?;
                scene.reached();
                welcomed.connection.closed().await;
                Ok(())
            }
        });
    }
    let identity = scene.identity(authority, "slowloris");
    scene.attack(peers, "hello byte by byte", move |scene| {
        let identity = identity.clone();
        async move {
            // A hello that announces all that one may have and comes byte by byte.
            let (_endpoint, connection) = scene.connect(&identity).await?;
            let (mut send, _receive) = connection.open_bi().await?;
            send.write_all(&(32_u32 << 10).to_le_bytes()).await?;
            scene.reached();
            while connection.close_reason().is_none() {
                send.write_all(&[1]).await?;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(())
        }
    });
    let identity = scene.identity(authority, "deaf");
    scene.attack(peers, "huge reports, deaf", move |scene| {
        let identity = identity.clone();
        async move {
            // Huge reports as fast as they are taken, and nothing is ever read.
            let welcomed = scene.welcomed(&identity, "deaf", 1).await?;
            let mut reports = welcomed.connection.open_uni().await?;
            for sequence in 1.. {
                if sequence == 2 {
                    scene.reached();
                }
                write_message(
                    &mut reports,
                    ProtocolVersion::CURRENT,
                    &synthetic::report(&HostId::new("deaf")?, sequence, 4_000),
                )
                .await?;
            }
            Ok(())
        }
    });
    let identity = scene.identity(authority, "chatty");
    scene.attack(peers, "thousands of events", move |scene| {
        let identity = identity.clone();
        async move {
            let mut welcomed = scene.welcomed(&identity, "chatty", 7).await?;
            for turn in 0.. {
                if turn == 1 {
                    scene.reached();
                }
                let events = (1..=1_000).map(|sequence| event("chatty", 7, turn * 1_000 + sequence)).collect();
                write_message(&mut welcomed.send, ProtocolVersion::CURRENT, &FromAgent::Events(AgentEvents { events }))
                    .await?;
            }
            Ok(())
        }
    });
    let identity = scene.identity(authority, "liar");
    scene.attack(peers, "hello of another host", move |scene| {
        let identity = identity.clone();
        async move {
            let (_endpoint, connection) = scene.connect(&identity).await?;
            let (mut send, mut receive) = connection.open_bi().await?;
            write_message(&mut send, ProtocolVersion::CURRENT, &synthetic::hello(&HostId::new("good-1")?, 1)).await?;
            scene.reached();
            match read_message::<FromAggregator, _>(&mut receive, ProtocolVersion::CURRENT).await? {
                Some(FromAggregator::Welcome(_)) => panic!("a host is taken for another one"),
                _ => Ok(()),
            }
        }
    });
    lying_peers(scene, authority, peers);
}

/// Peers that follow the protocol and say of themselves what no host is like.
fn lying_peers(scene: &Scene, authority: &Authority, peers: &mut JoinSet<()>) {
    // Every number of hellos, reports, answers and events: NaN, infinite, negative and the largest there is.
    for (number, host) in ["numbers-0", "numbers-1", "numbers-2", "numbers-3"].into_iter().enumerate() {
        let identity = scene.identity(authority, host);
        let mut turn = number * 1_000;
        scene.attack(peers, "absurd numbers", move |scene| {
            turn += 1;
            let seed = turn as u64;
            let (identity, mut entropy) = (identity.clone(), Entropy::of_seed(seed));
            async move {
                let kind = turn % OF_AGENTS;
                let Some(Ok(framed)) = of_agent(kind, ProtocolVersion::CURRENT, &mut entropy) else { return Ok(()) };
                let all: Vec<Vec<u8>> = framed.altered().map(|altered| altered.frame).collect();
                let Some(frame) = all.get((turn * 7_919) % all.len().max(1)) else { return Ok(()) };
                let mut welcomed = scene.welcomed(&identity, host, seed).await?;
                // Each message on the stream it belongs to.
                let mut reports = welcomed.connection.open_uni().await?;
                let stream = if kind == 1 { &mut reports } else { &mut welcomed.send };
                stream.write_all(frame).await?;
                scene.reached();
                welcomed.connection.closed().await;
                Ok(())
            }
        });
    }
    // The largest of everything that is still taken, as often as it is taken.
    let identity = scene.identity(authority, "giant");
    scene.attack(peers, "largest numbers", move |scene| {
        let identity = identity.clone();
        async move {
            let host = HostId::new("giant")?;
            let (endpoint, connection) = scene.connect(&identity).await?;
            let (mut send, _receive) = connection.open_bi().await?;
            let FromAgent::Hello(mut hello) = synthetic::hello(&host, 1) else { return Err("no hello".into()) };
            (hello.facts.cores, hello.facts.memory) = (MAX_CORES, Bytes::MAX);
            write_message(&mut send, ProtocolVersion::CURRENT, &FromAgent::Hello(hello)).await?;
            let mut reports = connection.open_uni().await?;
            for sequence in 1.. {
                let report = giant(&host, sequence);
                write_message(&mut reports, ProtocolVersion::CURRENT, &report).await?;
                if sequence == 2 {
                    scene.reached();
                }
            }
            drop(endpoint);
            Ok(())
        }
    });
}

/// A report with the largest of every number that is taken.
fn giant(host: &HostId, sequence: u64) -> FromAgent {
    let FromAgent::Report(mut report) = synthetic::report(host, sequence, 1) else { panic!("no report") };
    let cpu = CoreShare::MOST_OF_A_HOST;
    report.at = Timestamp(1_000_000_000_000_000);
    report.interval_s = MAX_MAGNITUDE;
    report.machine.cpu_capacity = cpu;
    for reading in [
        &mut report.machine.cpu_busy,
        &mut report.machine.cpu_foreground,
        &mut report.machine.cpu_steal,
        &mut report.volunteer.cpu,
        &mut report.volunteer.allowance,
    ] {
        *reading = Reading::Value(cpu);
    }
    report.machine.load_1min = Reading::Value(MAX_MAGNITUDE);
    report.machine.memory_total = Reading::Value(Bytes::MAX);
    report.machine.network_receive = Reading::Value(BytesPerSec::clamped(f64::MAX));
    report.volunteer.processes = Reading::Value(u32::MAX);
    (report.volunteer.guard_shrinks, report.volunteer.guard_freezes) = (MAX_COUNT * (sequence % 2), MAX_COUNT);
    report.residual.cpu = Reading::Value(Bounded { expected: cpu, safe: cpu });
    report.residual.memory = Reading::Value(Bounded { expected: Bytes::MAX, safe: Bytes::MAX });
    report.residual.record = PromiseRecord { judged: MAX_COUNT, broken: MAX_COUNT };
    report.residual.windows =
        PromiseWindows::new(Fraction::clamped(0.5), PromiseWindows::MOST, PromiseWindows::MOST).ok();
    report.reports_dropped = MAX_COUNT;
    FromAgent::Report(report)
}

/// Clients of the API that cannot behave.
fn hostile_clients(scene: &Scene, peers: &mut JoinSet<()>) {
    async fn connect(scene: &Scene) -> std::io::Result<tokio::net::UnixStream> {
        tokio::net::UnixStream::connect(&scene.socket).await
    }
    scene.attack(peers, "client: nonsense", move |scene| async move {
        let mut stream = connect(&scene).await?;
        stream.write_all(b"\x00\xff{{{[[[ nonsense\n").await?;
        scene.reached();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(())
    });
    scene.attack(peers, "client: deeply nested", move |scene| async move {
        // A careless parser would use up its stack.
        let mut stream = connect(&scene).await?;
        stream.write_all(&[b"[".repeat(200_000), b"\n".to_vec()].concat()).await?;
        scene.reached();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(())
    });
    for _ in 0..8 {
        scene.attack(peers, "client: endless line", move |scene| async move {
            let mut stream = connect(&scene).await?;
            let chunk = vec![b'x'; 1 << 20];
            stream.write_all(&chunk[..1_000]).await?;
            scene.reached();
            loop {
                stream.write_all(&chunk).await?;
            }
        });
    }
    scene.attack(peers, "client: millions of empty tasks", move |scene| async move {
        let mut stream = connect(&scene).await?;
        let tasks = "\"\",".repeat(5_000_000);
        let line = format!("{{\"submit\":{{\"job\":null,\"tasks\":[{tasks}\"\"]}}}}\n");
        stream.write_all(line.as_bytes()).await?;
        scene.reached();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        assert!(answer.contains("tasks: there are more than 100000"), "{answer}");
        Ok(())
    });
    for _ in 0..8 {
        scene.attack(peers, "client: never reads", move |scene| async move {
            // Asks for much.
            let mut stream = connect(&scene).await?;
            stream.write_all(b"{\"events\":{\"since\":null,\"follow\":true}}\n").await?;
            scene.reached();
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(())
        });
    }
}

/// A connection that the kernel says is another user's, who may only ask.
async fn connect_as_nobody(scene: &Scene) -> Result<tokio::net::UnixStream, Failure> {
    let socket = scene.socket.clone();
    // Of this thread alone, which ends.
    let thread = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody)?;
        std::os::unix::net::UnixStream::connect(socket)
    });
    let stream = tokio::task::spawn_blocking(move || thread.join()).await?.map_err(|_| "its thread panicked")??;
    stream.set_nonblocking(true)?;
    Ok(tokio::net::UnixStream::from_std(stream)?)
}

/// Clients of a user who may only ask; only root can be one.
fn clients_of_another_user(scene: &Scene, peers: &mut JoinSet<()>) {
    if !rustix::process::geteuid().is_root() {
        gleaner_test_support::skipped!("soak, clients of another user: it takes root to be one");
        return;
    }
    scene.attack(peers, "another user: orders", move |scene| async move {
        let mut stream = connect_as_nobody(&scene).await?;
        let order = serde_json::to_string(&Request::Revoke { host: HostId::new("good-0")?, unknown: false })?;
        stream.write_all(format!("{order}\n").as_bytes()).await?;
        scene.reached();
        let mut answer = String::new();
        tokio::io::BufReader::new(stream).read_line(&mut answer).await?;
        let refused = answer.contains("operators.acting_users") || answer.contains("too many clients");
        assert!(refused, "{answer}");
        Ok(())
    });
    for _ in 0..4 {
        scene.attack(peers, "another user: asks again and again", move |scene| async move {
            let mut stream = tokio::io::BufReader::new(connect_as_nobody(&scene).await?);
            let question = serde_json::to_string(&Request::Hosts)?;
            stream.write_all(format!("{question}\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_line(&mut answer).await?;
            if answer.contains("good-0") {
                scene.reached();
            }
            Ok(())
        });
    }
    scene.attack(peers, "another user: takes all places", move |scene| async move {
        let mut held = Vec::new();
        for _ in 0..PLACES {
            let mut stream = connect_as_nobody(&scene).await?;
            // Half a question keeps its place until its time is over. One that gets no place is closed.
            _ = stream.write_all(b"{").await;
            held.push(stream);
        }
        scene.reached();
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
}

async fn until_it_answers(socket: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Client::connect(socket).await.is_err() {
        assert!(Instant::now() < deadline, "the aggregator does not answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn well_behaved_agents_lose_nothing_beside_hostile_ones() {
    if !gleaner_test_support::beds::wanted("well_behaved_agents_lose_nothing_beside_hostile_ones") {
        return;
    }
    let seconds = std::env::var("GLEANER_SOAK_SECONDS").ok().map_or(20, |text| text.parse().expect("a whole number"));
    let authority = Authority::create().unwrap();
    let mut aggregator = Aggregator::start(&authority);
    let scene = Scene {
        address: aggregator.address,
        socket: aggregator.folder.path().join("a.sock"),
        folder: aggregator.folder.path().to_owned(),
        over: Arc::default(),
        attacks: Arc::default(),
    };
    until_it_answers(&scene.socket).await;
    let mut good = JoinSet::new();
    for number in 0..GOOD {
        let host = format!("good-{number}");
        good.spawn(well_behaved(scene.clone(), scene.identity(&authority, &host), host));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before_kib = aggregator.resident_kib();
    let mut peers = JoinSet::new();
    hostile_peers(&scene, &authority, &mut peers);
    hostile_clients(&scene, &mut peers);
    clients_of_another_user(&scene, &mut peers);
    let (started, mut most_kib, mut slowest) = (Instant::now(), 0, Duration::ZERO);
    let mut late = None;
    while started.elapsed() < Duration::from_secs(seconds) {
        most_kib = most_kib.max(aggregator.resident_kib());
        // An operator still gets an answer.
        let asked = Instant::now();
        let client = Client::connect(&scene.socket).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(60), client.call(&Request::Overview)).await;
        assert!(answer.expect("an answer").is_ok());
        let Response::Hosts(hosts) = client.call(&Request::Hosts).await.unwrap() else { panic!("no hosts") };
        assert!(hosts.iter().all(|host| host.unreadable.is_none()), "{hosts:?}");
        slowest = slowest.max(asked.elapsed());
        if late.is_none() && started.elapsed() > Duration::from_secs(seconds / 2) {
            // Somebody who comes in the middle of it gets in too.
            let identity = scene.identity(&authority, "latecomer");
            late = Some((
                scene.welcomed(&identity, "latecomer", 1).await.expect("the latecomer's welcome"),
                Instant::now(),
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scene.over.store(true, Ordering::Relaxed);
    peers.abort_all();
    while let Some(end) = peers.join_next().await {
        assert!(!end.as_ref().is_err_and(tokio::task::JoinError::is_panic), "{end:?}");
    }
    let mut sent = BTreeMap::new();
    while let Some(agent) = good.join_next().await {
        let (reports, acknowledged) = agent.unwrap().unwrap();
        assert_eq!(reports, acknowledged, "events acknowledged");
        *sent.entry(reports).or_insert(0) += 1;
    }
    assert!(aggregator.child.try_wait().unwrap().is_none(), "it still runs");
    let log = std::fs::read_dir(scene.folder.join("state/events")).unwrap().flatten();
    let log: String = log.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect();
    for number in 0..GOOD {
        let own = format!("\"agent\":\"good-{number}\"");
        let logged = log.lines().filter(|line| line.contains(&own)).count() as u64;
        assert!(sent.keys().any(|reports| *reports == logged), "good-{number}: {logged} of {sent:?}");
    }
    let refused = log.lines().filter(|line| line.contains("peer_refused")).count();
    let attacks = scene.attacks.lock().unwrap().clone();
    eprintln!("{:34}  turns  reached  ended  timed out", "attack");
    for (name, Outcomes { turns, reached, ended, timed_out }) in &attacks {
        eprintln!("{name:34}  {turns:5}  {reached:7}  {ended:5}  {timed_out:9}");
    }
    for (name, outcomes) in &attacks {
        assert!(outcomes.reached > 0, "{name} never came to what it is about: {outcomes:?}");
    }
    eprintln!(
        "{} bad turns in {seconds} s; {GOOD} agents sent (reports and events each: agents) {sent:?} and lost none; an operator \
         waited {:.2} s at most; resident {} MiB before, {} MiB at most; {refused} refusals in the log",
        attacks.values().map(|outcomes| outcomes.turns).sum::<u64>(),
        slowest.as_secs_f64(),
        before_kib >> 10,
        most_kib >> 10,
    );
    assert!(most_kib < before_kib + MOST_GROWTH_KIB, "{before_kib} KiB before, {most_kib} KiB at most");
    assert!(refused < 200, "a flood of refusals must not push everything else out of the log");
}
