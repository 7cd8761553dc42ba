//! The memory of a real database on a booted host with cgroup version 2. In it run PostgreSQL in a cgroup of its own, the agent's
//! loop and the controller; the loop's reports and commands go between them, and the response times are those of `pgbench`.
//!
//! First the database reads a table that is larger than its limit again and again, while its users ask for few of its pages: the
//! page cache fills the limit, and nothing of that is use. Then its users ask for more pages than its limit holds.

use std::io::{BufRead, BufReader};
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gleaner_agent::act::Actor;
use gleaner_agent::config::Config;
use gleaner_agent::hierarchies::Hierarchies;
use gleaner_agent::host_loop::HostLoop;
use gleaner_agent::outbox::{Outbox, OutboxLimits};
use gleaner_agent::probe;
use gleaner_agent::roots::Roots;
use gleaner_daemon::clock::Clock;
use gleaner_planner::controller::{Controller, Input, Output, Settings};
use gleaner_test_support::{beds, lab};
use gleaner_types::application::{
    ApplicationSpec, Bounds, Control, ResponseSource, ResponseTime, ShareDecision, TierSpec,
};
use gleaner_types::id::{ApplicationId, TierId, WorkloadId};
use gleaner_types::report::WorkloadSample;
use rustix::fs::{major, minor};

use crate::guests::{sh, until};

const TEST: &str = "the_memory_of_a_real_database_follows_its_use_and_not_its_page_cache";
const CONFIG: &str =
    "state_dir = \"/tmp/state\"\n[act]\nenabled = true\n[foreground]\ncgroups = [\"lab-db\"]\nmemory_floor_mib = 16\n";
const GROUP: &str = "/sys/fs/cgroup/lab-db";
/// What the table has; 1.5 times what the database may have.
const TABLE_MIB: u32 = 192;
const CEILING_MIB: u32 = 128;
const FLOOR_MIB: u32 = 32;
/// What its users ask for at first, and later.
const FEW_MIB: u32 = 12;
const MANY_MIB: u32 = 64;
/// Pages of a request: 2 MiB.
const PAGES: u32 = 256;
/// What the disk reads in a second. An emulated one has the speed of the machine below.
const DISK_MB_S: u32 = 12;
/// A request of pages that are in memory takes a part of it, also on a busy machine; one of pages that are not takes twice as long.
const TARGET_MS: f64 = 50.0;
const INTERVAL_S: f64 = 3.0;
/// Control intervals in which the table is read, and in which more is asked for.
const PHASES: [u32; 2] = [15, 15];

#[test]
fn the_memory_of_a_real_database_follows_its_use_and_not_its_page_cache() {
    if !beds::wanted(TEST) || lab::inside() {
        return;
    }
    let _alone = lab::alone();
    let Some(programs) = std::fs::read_dir("/usr/lib/postgresql").ok().and_then(|versions| {
        versions.flatten().map(|version| version.path().join("bin")).filter(|bin| bin.join("postgres").exists()).max()
    }) else {
        gleaner_test_support::skipped!("{TEST}: PostgreSQL is not installed");
        return;
    };
    let Some(images) = lab::images(TEST) else { return };
    let disk = lab::cache("database.img");
    sh(&format!("{} {} {TABLE_MIB}", lab::script("postgres/image.sh").display(), disk.display()));
    let tests = lab::stripped("lab-tests", &std::env::current_exe().unwrap());
    let (postgres, pgbench) = (programs.join("postgres"), programs.join("pgbench"));
    let options = ["-m", "768", "-T", "500", "-i", disk.to_str().unwrap()];
    let output = lab::on_host(&images, &options, "kvm/database-tests.sh", &[&tests, &postgres, &pgbench]);
    assert!(!lab::host_died(&output), "the emulated host died each time:\n{}", lab::quoted(&output));
    assert!(output.status.success(), "{}\n{}", output.status, lab::quoted(&output));
    println!("{}", String::from_utf8_lossy(&output.stdout));
}

/// A program of PostgreSQL's as user nobody.
fn as_nobody(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).uid(65_534).gid(65_534).stdin(Stdio::null());
    command
}

/// Clients of `pgbench`, one after the other's request, until the value is dropped.
struct Clients {
    process: Child,
    /// Requests of each second and their mean response time in ms.
    seconds: Arc<Mutex<Vec<(f64, f64)>>>,
}

impl Clients {
    /// One that runs a script again and again.
    fn start(name: &str, script: &str) -> Self {
        let file = format!("/tmp/{name}.sql");
        std::fs::write(&file, script).unwrap();
        let arguments =
            ["-h", "/tmp", "-U", "postgres", "-n", "-c", "1", "-T", "1000", "-P", "1", "-f", &file, "postgres"];
        let mut command = as_nobody("/t/pgbench", &arguments);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (seconds, said) = (Arc::new(Mutex::new(Vec::new())), process.stderr.take().unwrap());
        let kept = Arc::clone(&seconds);
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                // "progress: 5.0 s, 24.0 tps, lat 41.2 ms stddev 3.1, 0 failed"
                let number = |before: &str, after: &str| {
                    line.split_once(before)?.1.split_once(after)?.0.trim().parse::<f64>().ok()
                };
                match number(" s, ", " tps").zip(number(", lat ", " ms")) {
                    Some((requests, ms)) if requests > 0.0 => kept.lock().unwrap().push((requests, ms)),
                    Some(_) => {}
                    None => println!("pgbench: {line}"),
                }
            }
        });
        Self { process, seconds }
    }

    /// Users who ask for pages that are next to each other, anywhere among the first so many MiB.
    fn users(mib: u32) -> Self {
        let last = mib * 128 - PAGES;
        Self::start(
            "users",
            &format!(
                "\\set first random(1, {last})\nSELECT count(filler) FROM pages WHERE id BETWEEN :first AND :first + {};\n",
                PAGES - 1
            ),
        )
    }

    /// The mean response time since the last question, in ms.
    fn mean_ms(&self) -> Option<f64> {
        let seconds = std::mem::take(&mut *self.seconds.lock().unwrap());
        let requests: f64 = seconds.iter().map(|(requests, _)| requests).sum();
        (requests > 0.0).then(|| seconds.iter().map(|(requests, ms)| requests * ms).sum::<f64>() / requests)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// What was seen in a control interval.
#[derive(Debug, Clone, Copy)]
struct Interval {
    mean_ms: f64,
    /// What the database may have, all that is charged to it, and what of that is its working set, in MiB.
    granted: f64,
    limit: f64,
    charged: f64,
    used: f64,
    /// Part of the time in which it waited for memory.
    pressure: f64,
}

/// The agent's loop and the controller on this host.
struct Bed {
    host: HostLoop,
    outbox: Arc<Outbox>,
    clock: Clock,
    controller: Controller,
    users: Clients,
    mean_ms: Option<f64>,
    sample: Option<WorkloadSample>,
}

fn shop() -> ApplicationId {
    ApplicationId::new("shop").unwrap()
}

/// A number of one of the database's files of memory, in MiB; `max` is what it may have at most.
fn mib(file: &str) -> f64 {
    let text = std::fs::read_to_string(Path::new(GROUP).join(file)).unwrap();
    text.trim().parse::<f64>().map_or(CEILING_MIB.into(), |bytes| bytes / f64::from(1 << 20))
}

impl Bed {
    fn start(users: Clients) -> Self {
        std::fs::write("/tmp/agent.toml", CONFIG).unwrap();
        let config = Config::load("/tmp/agent.toml".as_ref()).unwrap();
        let (hierarchies, clock) = (Hierarchies::of_this_machine(), Clock::start());
        let (actor, _) = Actor::open(config.act_settings(), &hierarchies).unwrap();
        let facts = probe::facts(&hierarchies, actor.levers().clone(), true);
        let limits = OutboxLimits { reports: 1, events: 256 };
        let outbox = Arc::new(Outbox::new(limits, config.host.clone(), 1));
        let host =
            HostLoop::open(&config, clock, &hierarchies, Some(actor), Arc::clone(&outbox), Roots::default()).unwrap();
        let settings = Settings { control_interval_s: INTERVAL_S, ..Settings::default() };
        let controller = Controller::new(settings, clock.now());
        let mut bed = Self { host, outbox, clock, controller, users, mean_ms: None, sample: None };
        bed.send(Input::HostJoined { host: config.host.clone(), incarnation: 1, facts: Box::new(facts) });
        bed.send(Input::ApplicationApplied(Box::new(ApplicationSpec {
            name: shop(),
            target_ms: TARGET_MS,
            response_time: ResponseSource::Push,
            control: Control::Balance,
            tiers: vec![TierSpec {
                name: TierId::new("db").unwrap(),
                host: config.host,
                workload: WorkloadId::new("lab-db").unwrap(),
                cpu_percent: None,
                memory_mib: Some(Bounds { floor: FLOOR_MIB.into(), ceiling: CEILING_MIB.into() }),
                disk_mb_s: None,
            }],
        })));
        bed
    }

    fn send(&mut self, input: Input) {
        for output in self.controller.handle(input, self.clock.now()) {
            match output {
                Output::Command { command, .. } => self.host.command(&command),
                Output::AskResponseTime { application } => {
                    self.mean_ms = self.users.mean_ms().or(self.mean_ms);
                    let response = self.mean_ms.map_or(ResponseTime::Idle, ResponseTime::from_ms);
                    self.send(Input::Responded { application, response });
                }
                Output::Event(event) => println!("event: {event:?}"),
                Output::Engine { .. } => {}
            }
        }
    }

    /// What the agent and the aggregator do in a second.
    fn second(&mut self) {
        self.host.tick(Instant::now());
        let batch = self.outbox.take();
        for event in &batch.events {
            println!("agent: {:?}", event.event);
        }
        if let Some(report) = batch.report {
            self.sample = report.workloads.iter().find(|own| own.id.as_str() == "lab-db").cloned();
            let host = report.host.clone();
            self.send(Input::Report(Box::new(report)));
            batch.acks.into_iter().for_each(|ack| self.send(Input::Acked { host: host.clone(), ack }));
        }
        self.send(Input::Tick);
    }

    fn decided(&self) -> Option<(u32, ShareDecision)> {
        let decision = self.controller.application(&shop())?.decision.as_ref()?;
        Some((decision.number, decision.shares.first()?.clone()))
    }

    /// So many control intervals.
    fn intervals(&mut self, what: &str, count: u32) -> Vec<Interval> {
        let mut seen: Vec<Interval> = Vec::new();
        let mut before = self.decided().map(|(number, _)| number);
        let deadline = Instant::now() + Duration::from_secs_f64(4.0 * INTERVAL_S * f64::from(count + 2));
        while seen.len() < count as usize {
            assert!(Instant::now() < deadline, "{what}: {} intervals", seen.len());
            let next = Instant::now() + Duration::from_secs(1);
            self.second();
            if let Some((number, share)) = self.decided()
                && before != Some(number)
            {
                before = Some(number);
                let sample = self.sample.as_ref().unwrap();
                let whole = share.whole.unwrap().value();
                let interval = Interval {
                    mean_ms: self.mean_ms.unwrap_or_default(),
                    granted: share.granted * whole,
                    limit: mib("memory.high"),
                    charged: mib("memory.current"),
                    used: sample.memory.value().unwrap().0 as f64 / f64::from(1 << 20),
                    pressure: sample.memory_pressure.value().map_or(f64::NAN, |pressure| pressure.value()),
                };
                println!("{what}: {:?}, {interval:.2?}", share.load);
                seen.push(interval);
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        seen
    }
}

/// The disk becomes slow for the database.
fn limit_disk() {
    let device = std::fs::metadata("/disk/data").unwrap().st_dev();
    let limit = format!("{}:{} rbps={}", major(device), minor(device), DISK_MB_S * 1_000_000);
    std::fs::write(Path::new(GROUP).join("io.max"), limit).unwrap();
}

/// PostgreSQL in its cgroup, with no more memory than it may have at most.
fn start_database() -> Child {
    std::fs::create_dir(GROUP).unwrap();
    let write = |file: &str, text: String| std::fs::write(Path::new(GROUP).join(file), text).unwrap();
    write("memory.max", (u64::from(CEILING_MIB) << 20).to_string());
    // It enters before it starts, so that all it does is counted.
    let script = format!("echo $$ >{GROUP}/cgroup.procs && exec su nobody -c 'exec /t/postgres -D /disk/data'");
    let process = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap();
    // Its socket is there some time before it takes anybody.
    until("the database is ready", || {
        std::fs::read_to_string("/disk/data/postmaster.pid").is_ok_and(|text| text.contains("\nready"))
    });
    process
}

#[test]
fn database_memory_from_inside() {
    if !lab::inside() || !Path::new("/disk/data").exists() {
        return;
    }
    let mut database = start_database();
    let scan = Clients::start("scan", "SELECT count(filler) FROM pages;\n");
    // What is read fills all that it may have, before the first decision.
    until("page cache fills the cgroup", || mib("memory.current") > 0.95 * f64::from(CEILING_MIB));
    limit_disk();
    let mut bed = Bed::start(Clients::users(FEW_MIB));
    let few = bed.intervals("few pages and scans", PHASES[0]);
    drop(scan);
    bed.users = Clients::users(MANY_MIB);
    let many = bed.intervals("many pages", PHASES[1]);
    _ = database.kill();
    _ = database.wait();

    let (later, most) = (&few[few.len() / 2..], 0.75 * f64::from(CEILING_MIB));
    assert!(later.iter().all(|own| own.charged > 0.9 * own.limit), "page cache fills the limit: {later:.1?}");
    assert!(later.iter().all(|own| own.used < most), "that is no use: {later:.1?}");
    assert!(later.iter().all(|own| own.granted < most), "and nothing to grant memory for: {later:.1?}");
    let before = few.last().unwrap().granted;
    let most = |of: fn(&Interval) -> f64| many.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    assert!(most(|own| own.mean_ms) > TARGET_MS, "what does not fit is slow: {many:.1?}");
    assert!(most(|own| own.pressure) > 0.01, "and waits for memory: {many:.1?}");
    let last = many.last().unwrap();
    assert!(last.granted > before + 16.0 && last.granted >= f64::from(MANY_MIB), "it is granted more: {many:.1?}");
    assert!(last.mean_ms < TARGET_MS, "until it fits: {many:.1?}");
}
