//! A real service that is no database: a queue with workers in a cgroup of this machine, beside a third user of its CPU. Its
//! response-time target is held by moving its CPU while its load grows to six times as much; the response time comes from its
//! own exposition, without a Prometheus server. Beside it: no limit, and the mean share, fixed. Figures are printed. With another
//! such service behind it, on a second host, it is an application of two tiers ([`tiers`]): that runs by its name alone,
//! `cargo xtask beds two_tiers`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod second_host;
mod tiers;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gleaner_test_support::bench::{self, Running, text, until};
use gleaner_test_support::cpu;
use gleaner_test_support::pair::{HOST, Pair};

use second_host::SecondHost;

/// Chosen: some 15 times what a request takes alone. Without a limit it waits for the other threads and for the third user.
const TARGET_MS: f64 = 60.0;
/// CPU of a request, and workers.
const WORK_MS: u32 = 4;
const WORKERS: u32 = 8;
/// Clients in the first and in the second phase; each thinks 100 ms between two requests.
const CLIENTS: [u32; 2] = [4, 24];
const THINK: Duration = Duration::from_millis(100);
/// Time between two decisions.
const INTERVAL_S: u32 = 3;
/// Intervals of a phase while its share is moved; the first half of a phase is for settling. What is fixed settles sooner.
const PHASE: usize = 16;
const PHASE_FIXED: usize = 8;
/// A target is missed by a response time that is so many times as long.
const MISSED: f64 = 1.35;
/// The most that it may have, in percent of a core: more than it can use.
const CEILING_PERCENT: f64 = 150.0;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn get((address, port): (&str, u16), path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(text(&answer))
}

/// The service in its cgroup; both end when dropped.
struct Service {
    running: Option<Running>,
    groups: Vec<PathBuf>,
    group: String,
    address: &'static str,
    port: u16,
    metrics_port: u16,
}

/// Where a service runs, what a request costs it, and whom it asks.
#[derive(Default)]
struct Place<'a> {
    /// Its cgroup's name.
    name: &'a str,
    /// CPU of a request.
    work_ms: u32,
    /// The service that answers before it does.
    behind: Option<&'a Service>,
    /// On the second host, if not on this one.
    host: Option<&'a SecondHost>,
}

impl Service {
    fn start(place: &Place<'_>) -> Self {
        let group = format!("gleaner-queue-{}/{}", std::process::id(), place.name);
        let root = Path::new("/sys/fs/cgroup");
        let found: Vec<PathBuf> = ["cpu", "cpuacct", "memory", "blkio"]
            .iter()
            .map(|controller| root.join(controller))
            .filter(|folder| folder.join("cgroup.procs").exists())
            .collect();
        let roots = if found.is_empty() { vec![root.to_owned()] } else { found };
        let groups: Vec<PathBuf> = roots.iter().map(|root| root.join(&group)).collect();
        for folder in &groups {
            std::fs::create_dir_all(folder).unwrap();
        }
        if let [only] = groups.as_slice() {
            // Version 2: children have only what their parents pass on.
            for parent in only.ancestors().skip(1).take(2).collect::<Vec<_>>().into_iter().rev() {
                _ = std::fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory +io");
            }
        }
        let (port, metrics_port) = (free_port(), free_port());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/queue/service.py");
        let enter: String =
            groups.iter().map(|folder| format!("echo $$ > {}/cgroup.procs; ", folder.display())).collect();
        let address = if place.host.is_some() { second_host::SECOND } else { "127.0.0.1" };
        let behind = place.behind.map_or_else(String::new, |behind| format!("{} {}", behind.address, behind.port));
        let work_ms = place.work_ms;
        let run =
            format!("{enter}exec {} {address} {port} {metrics_port} {WORKERS} {work_ms} {behind}", script.display());
        let mut command = Command::new("sh");
        command.args(["-ec", &run]);
        if let Some(host) = place.host {
            command = host.inside(&command);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = Some(Running(command.spawn().unwrap()));
        let service = Self { running, groups, group, address, port, metrics_port };
        until("the service answers", || get((address, port), "/work").is_ok_and(|answer| answer.ends_with("ok\n")));
        service
    }

    /// Seconds spent in its requests so far, and their number, by its exposition.
    fn spent(&self) -> (f64, f64) {
        let page = get((self.address, self.metrics_port), "/metrics").unwrap_or_default();
        let value = |ending: &str| {
            let name = format!("http_request_duration_seconds_{ending}{{path=\"/work\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0.0)
        };
        (value("sum"), value("count"))
    }

    /// CPU that it used so far, in seconds.
    fn cpu_s(&self) -> f64 {
        cpu::of_group(&self.group)
    }

    /// Limits its CPU, in percent of a core, or does not.
    fn limit(&self, percent: Option<f64>) {
        for folder in &self.groups {
            let quota = percent.map(|percent| format!("{:.0}", percent * 1_000.0));
            let of_v2 = format!("{} 100000", quota.as_deref().unwrap_or("max"));
            for (file, value) in [("cpu.cfs_quota_us", quota.unwrap_or_else(|| "-1".to_owned())), ("cpu.max", of_v2)] {
                if folder.join(file).exists() {
                    std::fs::write(folder.join(file), value).unwrap();
                }
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running = None;
        for folder in &self.groups {
            _ = std::fs::remove_dir(folder);
            _ = std::fs::remove_dir(folder.parent().unwrap());
        }
    }
}

/// Clients that ask, wait, think, and ask again until dropped.
struct Load {
    ends: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(asked: (&'static str, u16), clients: u32) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let client = |_| {
            let ends = Arc::clone(&ends);
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    _ = get(asked, "/work");
                    std::thread::sleep(THINK);
                }
            })
        };
        let clients = (0..clients).map(client).collect();
        Self { ends, clients }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.clients.drain(..).for_each(|client| _ = client.join());
    }
}

/// Mean response times of the intervals of both phases, in milliseconds, and the CPU used, in percent of a core.
struct Measured {
    phases: [Vec<f64>; 2],
    cpu_percent: f64,
}

impl Measured {
    /// The mean over the second half of a phase.
    fn settled(&self, phase: usize) -> f64 {
        let phase = &self.phases[phase];
        let judged = &phase[phase.len() / 2..];
        judged.iter().sum::<f64>() / judged.len() as f64
    }

    fn say(&self, what: &str) {
        let missed = self.phases.iter().flatten().filter(|mean_ms| **mean_ms > MISSED * TARGET_MS).count();
        let worst = self.phases.iter().flatten().copied().fold(0.0, f64::max);
        eprintln!(
            "{what}: {:.1} and {:.1} ms when settled, worst {worst:.0} ms, {missed} of {} intervals above {MISSED} of the \
             target; CPU used {:.0} % of a core",
            self.settled(0),
            self.settled(1),
            self.phases[0].len() + self.phases[1].len(),
            self.cpu_percent
        );
        let grown: Vec<String> = self.phases[1].iter().take(8).map(|mean_ms| format!("{mean_ms:.0}")).collect();
        eprintln!("  the first intervals after the load grew: {} ms", grown.join(", "));
    }
}

/// Both phases of load, each of so many intervals; `each` is called once an interval.
fn run(service: &Service, intervals: usize, mut each: impl FnMut()) -> Measured {
    let (started, cpu_s) = (Instant::now(), service.cpu_s());
    let phases = CLIENTS.map(|clients| {
        let _load = Load::start((service.address, service.port), clients);
        let mut before = service.spent();
        (0..intervals)
            .map(|_| {
                std::thread::sleep(Duration::from_secs(INTERVAL_S.into()));
                each();
                let now = service.spent();
                let (spent, count) = (now.0 - before.0, now.1 - before.1);
                before = now;
                // At a standstill nothing ends: as slow as can be told.
                if count > 0.0 { spent / count * 1e3 } else { f64::from(INTERVAL_S) * 1e3 }
            })
            .collect()
    });
    let cpu_percent = (service.cpu_s() - cpu_s) / started.elapsed().as_secs_f64() * 100.0;
    Measured { phases, cpu_percent }
}

/// The third user, who takes what it can get below normal weight.
fn hog() -> Running {
    let mut hog = Command::new("nice");
    hog.args(["-n", "5", "sh", "-c", "while :; do :; done"]).stdout(Stdio::null()).stderr(Stdio::null());
    Running(hog.spawn().unwrap())
}

/// The service can make its exposition; says so if not.
fn client_is_installed(test: &str) -> bool {
    let client =
        Command::new("/usr/bin/python3").args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
    let found = client.is_ok_and(|status| status.success());
    if !found {
        gleaner_test_support::skipped!("{test}: apt-get install python3-prometheus-client");
    }
    found
}

#[test]
fn a_queue_keeps_its_target_by_its_own_exposition() {
    const TEST: &str = "a_queue_keeps_its_target_by_its_own_exposition";
    if !gleaner_test_support::beds::wanted(TEST) || !bench::cgroups_writable(TEST) {
        return;
    }
    if !client_is_installed(TEST) {
        return;
    }
    let _machine = gleaner_test_support::beds::machine();
    let service = Service::start(&Place { name: "service", work_ms: WORK_MS, ..Place::default() });
    let mut pair = Pair::with_controller(&[HOST], &format!("control_interval_s = {INTERVAL_S}\n"));
    pair.agent_config(
        "agent.toml",
        HOST,
        HOST,
        &format!("[foreground]\ncgroups = ['{}']\nfloor_percent = 5\n", service.group),
    );
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    let workload = || Some(pair.hosts()[0]["report"]["workloads"].as_array()?.first()?["id"].as_str()?.to_owned());
    until("the service is seen", || workload().is_some());
    let _hog = hog();

    let application = format!(
        "name = 'queue'\ntarget_ms = {TARGET_MS}\n[response_time.openmetrics]\n\
         url = 'http://127.0.0.1:{}/metrics'\nmetric = 'http_request_duration_seconds'\nlabels = {{ path = '/work' }}\n\
         in_flight = 'http_requests_in_flight'\n[[tier]]\nname = 'only'\nhost = '{HOST}'\nworkload = '{}'\n\
         cpu_percent = {{ floor = 10, ceiling = {CEILING_PERCENT} }}\n",
        service.metrics_port,
        workload().unwrap()
    );
    pair.bench.write("app.toml", &application);
    let applied = pair.ask(&["app", "apply", "app.toml"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    let mut shares = Vec::new();
    let held = run(&service, PHASE, || {
        let shown = pair.ask(&["app", "show", "queue", "--json"]).stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap_or_default();
        shares.extend(shown["decision"]["shares"][0]["granted"].as_f64().map(|part| part * cores * 100.0));
    });
    let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    let events = pair.events();
    assert!(pair.ask(&["app", "remove", "queue"]).status.success());
    until("its limit is given back", || pair.ask(&["app", "list"]).stdout.starts_with(b"no applications"));
    std::thread::sleep(Duration::from_secs(2));
    held.say(&format!("moved, mean share {mean:.0} % of a core"));
    let free = run(&service, PHASE_FIXED, || {});
    free.say("no limit");
    service.limit(Some(mean));
    let fixed = run(&service, PHASE_FIXED, || {});
    fixed.say("the same mean share, fixed");
    service.limit(None);

    let worst = |measured: &Measured| measured.settled(0).max(measured.settled(1));
    assert!(events.contains("\"mean\""), "the source gave a mean: {events}");
    // A machine that does not serve it in time without a limit does not do so with one.
    let wanted_ms = TARGET_MS.max(worst(&free));
    assert!(worst(&held) < MISSED * wanted_ms, "held: {:?}, no limit: {:?}", held.phases, free.phases);
    assert!(mean < 0.8 * CEILING_PERCENT, "it has less than it may have: {mean}");
    assert!(worst(&fixed) > MISSED * worst(&held), "fixed: {:?}, held: {:?}", fixed.phases, held.phases);
}
