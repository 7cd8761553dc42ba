//! An agent with limits in force is killed at a random moment, many times, and sometimes also its keeper or the
//! restoring process. No setting may remain.
//!
//! `GLEANER_KILLS` is the number of rounds (40 without it).

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gleaner_net::stream::{read_message, write_message};
use gleaner_net::tls::Identity;
use gleaner_net::transport;
use gleaner_types::command::{Command, Desired, DiskLimit, Limits, Quota, Target, Version, Weight};
use gleaner_types::id::WorkloadId;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare};
use gleaner_wire::{FromAgent, FromAggregator, ProtocolVersion, Welcome};

use crate::groups::{Groups, differences};
use crate::random::{Random, number, seed};
use gleaner_test_support::bench::{Bench, kill, processes, text, until};

/// Rounds that run side by side, each on groups and with an aggregator of its own.
const LANES: u64 = 8;
/// Longest life of an agent. It begins to act some 50 ms after its start.
const LIFE: Duration = Duration::from_millis(500);
/// How long a keeper may take to put everything back: it waits a second for a successor.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// What became of all rounds.
#[derive(Default)]
struct Tally {
    rounds: AtomicU64,
    /// A limit on the foreground was in force when the agent was killed.
    limited: AtomicU64,
    keepers: AtomicU64,
    restorers: AtomicU64,
    left: AtomicU64,
    /// Sum of the times from the kill until the keeper had put everything back, in milliseconds, and their number.
    restoring_ms: AtomicU64,
    restored: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

struct Lane<'a> {
    bench: &'a Bench,
    groups: Groups,
    config: String,
    state: String,
    random: Random,
}

impl<'a> Lane<'a> {
    fn new(bench: &'a Bench, number: u64, seed: u64, runtime: &tokio::runtime::Handle) -> Self {
        let groups = Groups::new(&format!("gleaner-kills-{}-{number}", std::process::id()));
        let dir = bench.folder.path().display().to_string();
        let (host, state) = (format!("host-{number}"), format!("{dir}/state-{number}"));
        let issued = bench.run(&["pki", "issue-agent", &host, "--authority", &format!("{dir}/pki")]);
        assert!(issued.status.success(), "{}", text(&issued.stderr));
        let identity = Identity::load(
            &bench.path("pki/ca.crt"),
            &bench.path("pki/aggregator.crt"),
            &bench.path("pki/aggregator.key"),
        );
        let _entered = runtime.enter();
        let endpoint = transport::server_endpoint("127.0.0.1:0".parse().unwrap(), &identity.unwrap()).unwrap();
        let address = endpoint.local_addr().unwrap();
        let disks = groups.foreground_file("blkio.throttle.write_bps_device").is_some()
            || groups.foreground_file("io.max").is_some();
        let workload = WorkloadId::new(groups.foreground()).unwrap();
        let commands = Commander { workload, disks, random: Random::new(seed, 1_000 + number) };
        runtime.spawn(commands.serve(endpoint));
        let config = bench.write(
            &format!("agent-{number}.toml"),
            &format!(
                "state_dir = '{state}'\n[host]\nname = '{host}'\n[aggregator]\naddress = '{address}'\n\
                 ca = '{dir}/pki/ca.crt'\ncertificate = '{dir}/pki/{host}.crt'\nkey = '{dir}/pki/{host}.key'\n\
                 [foreground]\ncgroups = ['{}']\nqemu = false\nmemory_floor_mib = 16\n\
                 [volunteer]\ncgroup = '{}'\nkill_after_ms = 200\n\
                 command = ['/bin/sh', '-c', 'while :; do sleep 0.1; done']\nuser = 'nobody'\n\
                 [sense]\nsample_period_ms = 100\nscan_period_s = 0.1\nmonitors = false\ncounters = false\n",
                groups.foreground(),
                groups.volunteer(),
            ),
        );
        let config = config.display().to_string();
        Self { bench, groups, config, state, random: Random::new(seed, number) }
    }

    fn agent(&self, more: &[&str]) -> Child {
        let mut command = self.bench.gleaner(&[&["daemon", "agent", "--config", &self.config], more].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn keepers(&self) -> Vec<u32> {
        processes(&["keeper", &self.state])
    }

    /// Waits until every keeper has done what it is for.
    fn wait_for_keepers(&self) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while Instant::now() < deadline && !self.keepers().is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends every keeper there is, also one that an agent has just started.
    fn kill_keepers(&self, tally: &Tally) {
        for pid in self.keepers() {
            kill(pid, "KILL");
            count(&tally.keepers);
        }
    }

    fn round(&mut self, tally: &Tally) {
        let before = self.groups.snapshot();
        let mut agent = self.agent(&["--act"]);
        std::thread::sleep(self.random.pause(LIFE));
        let how = self.random.below(100);
        let keeper_first = how >= 40 && self.random.percent(50);
        if keeper_first {
            self.kill_keepers(tally);
        }
        _ = agent.kill();
        let killed = Instant::now();
        _ = agent.wait();
        let foreground = |path: &&PathBuf| path.parent().is_some_and(|folder| folder.ends_with("foreground"));
        let now = self.groups.snapshot();
        if before.keys().filter(foreground).any(|path| before.get(path) != now.get(path)) {
            count(&tally.limited);
        }
        match how {
            // Nobody but the keeper.
            0..40 => {
                self.wait_for_keepers();
                tally.restoring_ms.fetch_add(u64::try_from(killed.elapsed().as_millis()).unwrap(), Ordering::Relaxed);
                count(&tally.restored);
            }
            // The keeper dies too, perhaps while it restores; then `gleaner-agent restore`, itself killed now and then.
            40..70 => {
                if self.random.percent(50) {
                    std::thread::sleep(self.random.pause(Duration::from_millis(1_200)));
                }
                self.kill_keepers(tally);
                while self.random.percent(30) {
                    let mut restorer = self.agent(&["restore"]);
                    std::thread::sleep(self.random.pause(Duration::from_millis(40)));
                    _ = restorer.kill();
                    _ = restorer.wait();
                    count(&tally.restorers);
                }
                assert!(self.agent(&["restore"]).wait().unwrap().success(), "restore says that it could not");
            }
            // The keeper dies too; the next agent restores, itself killed now and then, and ends in an orderly way.
            _ => {
                self.kill_keepers(tally);
                while self.random.percent(30) {
                    let mut next = self.agent(&["--act"]);
                    std::thread::sleep(self.random.pause(LIFE));
                    _ = next.kill();
                    _ = next.wait();
                    self.kill_keepers(tally);
                    count(&tally.restorers);
                }
                let mut last = self.agent(&["--act"]);
                std::thread::sleep(Duration::from_millis(100) + self.random.pause(LIFE));
                kill(last.id(), "TERM");
                // A signal that comes before the agent can deal with it ends it as a kill does: then its keeper puts back.
                if last.wait().unwrap().success() { self.kill_keepers(tally) } else { self.wait_for_keepers() }
            }
        }
        count(&tally.rounds);
        let left = differences(&before, &self.groups.snapshot());
        if !left.is_empty() {
            count(&tally.left);
            eprintln!("LEFT BEHIND ({how}): {left:#?}\nledger: {}", self.ledger());
            // One that stays would count in every further round.
            self.kill_keepers(tally);
            _ = self.agent(&["restore"]).wait();
        }
    }

    fn ledger(&self) -> String {
        std::fs::read_to_string(format!("{}/ledger.json", self.state)).unwrap_or_default()
    }
}

/// Stands for an aggregator that changes its mind every few milliseconds.
#[derive(Clone)]
struct Commander {
    workload: WorkloadId,
    disks: bool,
    random: Random,
}

impl Commander {
    async fn serve(mut self, endpoint: quinn::Endpoint) {
        let mut serving: Option<tokio::task::JoinHandle<()>> = None;
        while let Some(incoming) = endpoint.accept().await {
            // A killed agent says no goodbye: whoever comes next takes its place.
            serving.iter().for_each(tokio::task::JoinHandle::abort);
            _ = self.random.below(2);
            let mut own = self.clone();
            serving = Some(tokio::spawn(async move { _ = own.command(incoming).await }));
        }
    }

    async fn command(&mut self, incoming: quinn::Incoming) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let connection = incoming.await?;
        let (mut send, mut receive) = connection.accept_bi().await?;
        let Some(FromAgent::Hello(_)) = read_message(&mut receive, ProtocolVersion::CURRENT).await? else {
            return Ok(());
        };
        let welcome = Welcome { software: "test".into(), now: Timestamp(1), events_through: 0 };
        write_message(&mut send, ProtocolVersion::CURRENT, &FromAggregator::Welcome(welcome)).await?;
        let mut number = 0;
        loop {
            number += 1;
            let command = self.next(number);
            write_message(&mut send, ProtocolVersion::CURRENT, &FromAggregator::Command(command)).await?;
            let pause = self.random.pause(Duration::from_millis(8));
            tokio::time::sleep(pause).await;
        }
    }

    fn next(&mut self, number: u64) -> Command {
        let (target, desired) = match self.random.below(10) {
            0 => (Target::Volunteer, Desired::Run { cap: Quota::Unlimited }),
            1 => (Target::Volunteer, Desired::Stop),
            2 => (Target::Workload(self.workload.clone()), Desired::Release),
            _ => (Target::Workload(self.workload.clone()), Desired::Limit(self.limits())),
        };
        Command { target, version: Version { epoch: 1, number }, lease_ms: 3_000, desired }
    }

    fn limits(&mut self) -> Limits {
        let percent = CoreShare::clamped(20.0 + self.random.below(150) as f64);
        let mut some = |least: u64, below: u64| self.random.percent(50).then(|| least + self.random.below(below));
        let weight = some(50, 400).and_then(|weight| Weight::new(u32::try_from(weight).unwrap()).ok());
        let memory = some(16, 500).map(Bytes::from_mib);
        let (read, write) = if self.disks { (some(1, 1 << 30), some(1, 1 << 30)) } else { (None, None) };
        let rate = |bytes: Option<u64>| bytes.map(|bytes| BytesPerSec::clamped(bytes as f64));
        let disk = DiskLimit { read: rate(read), write: rate(write), ..DiskLimit::default() };
        Limits { quota: Quota::AtMost(percent), weight, memory, disk, ..Limits::NONE }
    }
}

#[test]
fn an_agent_killed_at_any_moment_leaves_no_limit_behind() {
    if !gleaner_test_support::beds::wanted("an_agent_killed_at_any_moment_leaves_no_limit_behind") {
        return;
    }
    if !gleaner_test_support::bench::cgroups_writable("an_agent_killed_at_any_moment_leaves_no_limit_behind") {
        return;
    }
    let _machine = crate::machine();
    let (rounds, seed) = (number("GLEANER_KILLS").unwrap_or(40), seed());
    eprintln!("{rounds} kills with GLEANER_FAULT_SEED={seed}");
    let bench = Bench::new();
    assert!(bench.run(&["pki", "init", bench.path("pki").to_str().unwrap()]).status.success());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tally = Tally::default();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for lane in 0..LANES.min(rounds) {
            let own = rounds / LANES + u64::from(lane < rounds % LANES);
            let (bench, tally, handle) = (&bench, &tally, runtime.handle().clone());
            scope.spawn(move || {
                let mut lane = Lane::new(bench, lane, seed, &handle);
                (0..own).for_each(|_| lane.round(tally));
            });
        }
    });
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    eprintln!(
        "{} rounds in {:.0} s: in {} of them a limit on the foreground was in force when the agent was killed; {} keepers and {} restorers \
         were killed as well; a keeper alone had everything put back after {} ms in the mean; limits left behind in {}",
        of(&tally.rounds),
        started.elapsed().as_secs_f64(),
        of(&tally.limited),
        of(&tally.keepers),
        of(&tally.restorers),
        of(&tally.restoring_ms) / of(&tally.restored).max(1),
        of(&tally.left),
    );
    assert_eq!((of(&tally.rounds), of(&tally.left)), (rounds, 0));
    assert!(of(&tally.limited) * 4 >= rounds, "most kills came before anything was limited");
}

#[test]
fn an_agent_that_is_stopped_for_good_is_ended_by_its_keeper() {
    if !gleaner_test_support::beds::wanted("an_agent_that_is_stopped_for_good_is_ended_by_its_keeper") {
        return;
    }
    if !gleaner_test_support::bench::cgroups_writable("an_agent_that_is_stopped_for_good_is_ended_by_its_keeper") {
        return;
    }
    let _machine = crate::machine();
    let bench = Bench::new();
    assert!(bench.run(&["pki", "init", bench.path("pki").to_str().unwrap()]).status.success());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lane = Lane::new(&bench, 100, seed(), runtime.handle());
    let config = std::fs::read_to_string(&lane.config).unwrap();
    std::fs::write(&lane.config, format!("{config}[act]\nhung_after_s = 5\n")).unwrap();
    let before = lane.groups.snapshot();
    let mut agent = lane.agent(&["--act"]);
    let quota = lane.groups.foreground_file("cpu.cfs_quota_us").or_else(|| lane.groups.foreground_file("cpu.max"));
    let quota = quota.unwrap();
    until("a limit is in force", || std::fs::read_to_string(&quota).ok() != before.get(&quota).cloned());
    // A moment's stop is none of the keeper's business.
    kill(agent.id(), "STOP");
    std::thread::sleep(Duration::from_secs(2));
    kill(agent.id(), "CONT");
    std::thread::sleep(Duration::from_secs(4));
    assert!(agent.try_wait().unwrap().is_none(), "it goes on");
    kill(agent.id(), "STOP");
    until("the keeper has ended it", || agent.try_wait().unwrap().is_some());
    until("everything is put back", || lane.groups.snapshot() == before);
}
