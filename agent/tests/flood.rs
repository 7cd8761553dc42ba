//! A real agent whose aggregator, with a valid certificate, floods it with commands and tasks over real QUIC. The agent's memory
//! stays bounded, and it stops on request as soon as an idle one does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::net::SocketAddr;
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gleaner_net::stream::{read_message, write_message};
use gleaner_net::tls::{Authority, Identity};
use gleaner_net::transport;
use gleaner_types::command::{Command, Desired, Quota, Target, Version};
use gleaner_types::id::{HostId, JobId, WorkloadId};
use gleaner_types::task::{TaskAttempt, TaskDesired, TaskJob, TaskOrder, TaskOrders, TaskUser};
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAgent, FromAggregator, ProtocolVersion, Welcome, encode};

const VERSION: ProtocolVersion = ProtocolVersion::CURRENT;
/// Commands of the flood before the agent is asked to end.
const COMMANDS: u64 = 100_000;
/// Longest wait for anything but the end.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// What the agent may have grown by, in KiB. Chosen: the answers and refusals that it keeps, and what it is reading, come to 14
/// to 23 MiB, by how the allocator places them. Where all of the jobs are kept they take 13 MiB more, and commands as much.
const MOST_GROWTH_KIB: u64 = 28 << 10;

struct Agent {
    child: Child,
    group: String,
    _folder: tempfile::TempDir,
}

impl Agent {
    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Tells it to end, and waits until it has.
    fn terminate(&mut self) -> (ExitStatus, Duration) {
        let started_ending = Instant::now();
        assert!(Process::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, started_ending.elapsed());
            }
            assert!(started_ending.elapsed() < LONGEST_WAIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            _ = self.child.kill();
            _ = self.child.wait();
        }
        for root in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            _ = std::fs::remove_dir(root.path().join(&self.group).join("volunteer"));
            _ = std::fs::remove_dir(root.path().join(&self.group));
        }
    }
}

/// An endpoint of an aggregator, and an agent that acts and trusts it.
fn site(name: &str) -> (quinn::Endpoint, Agent) {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::create().unwrap());
    let (ca, _) = authority.write(folder.path()).unwrap();
    let (certificate, key) = authority.issue_aggregator().unwrap().write(folder.path(), "aggregator").unwrap();
    let identity = Identity::load(&ca, &certificate, &key).unwrap();
    let endpoint = transport::server_endpoint(([127, 0, 0, 1], 0).into(), &identity).unwrap();
    let address: SocketAddr = endpoint.local_addr().unwrap();
    authority.issue_agent(&HostId::new("h1").unwrap()).unwrap().write(folder.path(), "agent").unwrap();
    let (dir, group) = (folder.path().display(), format!("gleaner-{name}-{}", std::process::id()));
    let config = format!(
        "state_dir = '{dir}/state'\n[host]\nname = 'h1'\n[act]\nenabled = true\n[volunteer]\ncgroup = '{group}/volunteer'\n\
         [aggregator]\naddress = '{address}'\nca = '{dir}/ca.crt'\ncertificate = '{dir}/agent.crt'\nkey = '{dir}/agent.key'\n"
    );
    let file = folder.path().join("agent.toml");
    std::fs::write(&file, config).unwrap();
    let program = env!("CARGO_BIN_EXE_gleaner-agent");
    let child = Process::new(program).arg("--config").arg(file).stderr(Stdio::null()).spawn().unwrap();
    (endpoint, Agent { child, group, _folder: folder })
}

/// A command nobody would send: each of a newer epoch, most for the volunteer and some for workloads without number.
fn command(number: u64, first_epoch: u64) -> FromAggregator {
    let target = match number % 4 {
        0 => Target::Workload(WorkloadId::new(format!("w{number}")).unwrap()),
        _ => Target::Volunteer,
    };
    let desired = if number.is_multiple_of(2) { Desired::Stop } else { Desired::Run { cap: Quota::Unlimited } };
    let version = Version { epoch: first_epoch + number, number };
    FromAggregator::Command(Command { target, version, lease_ms: 60_000, desired })
}

/// What the tasks of a job have in common, of a job that nobody submitted.
fn job(number: u64, epoch: u64) -> FromAggregator {
    FromAggregator::TaskJob(Box::new(TaskJob {
        epoch,
        job: JobId::new(format!("job-{number}")).unwrap(),
        user: TaskUser { uid: 0, gid: 0 },
        environment: vec![("TEXT".to_owned(), "x".repeat(500))],
        working_dir: String::new(),
        output_dir: String::new(),
        timeout_ms: None,
        tasks: 1,
    }))
}

/// Many tasks at once.
fn orders(number: u64, epoch: u64) -> FromAggregator {
    let order = |task| TaskOrder {
        attempt: TaskAttempt {
            job: JobId::new(format!("job-{number}")).unwrap(),
            task,
            version: Version { epoch, number: u64::from(task) },
        },
        desired: TaskDesired::Run { attempt: 1, command: "x".repeat(500) },
    };
    FromAggregator::Tasks(TaskOrders { epoch, orders: (0..1_000).map(order).collect() })
}

/// Welcomes the agent; then sends as many commands, as fast as they are taken. The streams stay open in what is returned.
async fn serve(endpoint: &quinn::Endpoint, commands: u64) -> (quinn::Connection, quinn::SendStream) {
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let (mut send, mut receive) = connection.accept_bi().await.unwrap();
    let hello = read_message::<FromAgent, _>(&mut receive, VERSION).await.unwrap();
    assert!(matches!(hello, Some(FromAgent::Hello(_))), "{hello:?}");
    let now = gleaner_daemon::clock::Clock::start().now();
    let welcome = Welcome { software: "flood".into(), now: Timestamp(now.0), events_through: 0 };
    write_message(&mut send, VERSION, &FromAggregator::Welcome(welcome)).await.unwrap();
    for stream in [connection.accept_uni().await.unwrap(), receive] {
        // What the agent says is taken, so that it is the flood alone that troubles it.
        tokio::spawn(async move {
            let mut stream = stream;
            let mut bytes = vec![0; 64 << 10];
            while let Ok(Some(_)) = stream.read(&mut bytes).await {}
        });
    }
    for number in 0..commands {
        send.write_all(&encode(VERSION, &command(number, now.0)).unwrap()).await.unwrap();
        if number % 2 == 0 {
            send.write_all(&encode(VERSION, &job(number, now.0)).unwrap()).await.unwrap();
        }
        if number % 1_000 == 0 {
            send.write_all(&encode(VERSION, &orders(number, now.0)).unwrap()).await.unwrap();
        }
    }
    (connection, send)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_commands_neither_fills_an_agent_nor_keeps_it_from_ending() {
    let (endpoint, mut idle) = site("idle");
    let open = tokio::time::timeout(LONGEST_WAIT, serve(&endpoint, 0)).await.expect("a welcome");
    let idle_kib = idle.resident_kib();
    let (status, idle_took) = tokio::task::spawn_blocking(move || idle.terminate()).await.unwrap();
    assert!(status.success(), "{status}");
    drop(open);

    let (endpoint, mut flooded) = site("flood");
    let (connection, mut send) = tokio::time::timeout(LONGEST_WAIT, serve(&endpoint, COMMANDS)).await.expect("a flood");
    let flooded_kib = flooded.resident_kib();
    // It goes on until the end.
    let flood = tokio::spawn(async move {
        let now = gleaner_daemon::clock::Clock::start().now().0;
        for number in COMMANDS.. {
            if send.write_all(&encode(VERSION, &command(number, now)).unwrap()).await.is_err() {
                return number;
            }
        }
        unreachable!()
    });
    let (status, took) = tokio::task::spawn_blocking(move || flooded.terminate()).await.unwrap();
    drop(connection);
    let sent = tokio::time::timeout(LONGEST_WAIT, flood).await.expect("an end").unwrap();
    eprintln!(
        "{sent} commands; resident {idle_kib} KiB idle, {flooded_kib} KiB flooded; ended after {idle_took:?} idle, {took:?} flooded"
    );
    assert!(status.success(), "{status}");
    assert!(flooded_kib < idle_kib + MOST_GROWTH_KIB, "{idle_kib} KiB idle, {flooded_kib} KiB flooded");
    // The last events have two seconds in which an aggregator that acknowledges none is waited for; so it is for both.
    assert!(took < idle_took * 5 + Duration::from_secs(5), "{idle_took:?} idle, {took:?} flooded");
}
