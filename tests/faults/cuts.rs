//! Simulated power cuts. The aggregator runs a job under strace, beside the agent's real parts that keep something: the
//! runner of tasks, the outbox and link, and the limits on workloads with their ledger. From the traced calls follows
//! what the disks held at any moment. The test picks moments at random, and all acknowledged data must be there each
//! time.
//!
//! The agent has no guard: on a busy machine a volunteer gets no CPU, and this test is about disks.
//!
//! `GLEANER_CUTS` is their number (200 without it); every twentieth is also booted, to the job's end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use gleaner_agent::link::{self, Introduction, LinkSettings};
use gleaner_agent::order::orders;
use gleaner_agent::outbox::{Outbox, OutboxLimits};
use gleaner_agent::tasks::{TaskRunner, TaskSettings};
use gleaner_aggregator::store::Store;
use gleaner_daemon::clock::Clock;
use gleaner_net::tls::IdentityFiles;
use gleaner_test_support::bench::{Running, kill, processes, text, until};
use gleaner_test_support::pair::{HOST, Pair};
use gleaner_test_support::synthetic;
use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::report::{Bounded, HostReport, Reading, VolunteerKind};
use gleaner_types::task::TaskStatus;
use gleaner_types::units::Bytes;
use gleaner_wire::FromAgent;
use serde_json::Value;

use crate::levers::Levers;
use crate::power::{ARGUMENTS, Call, Disk, Left, Step, read_trace};
use crate::random::{Random, number, seed};

/// Tasks of the job. Every third one fails the first time.
const TASKS: u32 = 48;

/// What was acknowledged, and when, in nanoseconds since 1970.
#[derive(Debug, Default)]
struct Promises {
    /// Events of the agent through this number are in the log.
    events: Vec<(u64, u64)>,
    /// The job is taken.
    taken: u64,
    /// The end of this task, from 0, where it was a good one.
    ends: Vec<(u64, u32)>,
    /// The aggregator has that end: the agent may forget it.
    forgotten: Vec<(u64, u32)>,
}

impl Promises {
    fn events_by(&self, now: u64) -> u64 {
        self.events.iter().filter(|(at, _)| *at <= now).map(|(_, through)| *through).max().unwrap_or(0)
    }
}

fn tasks_by(promised: &[(u64, u32)], now: u64) -> BTreeSet<u32> {
    promised.iter().filter(|(at, _)| *at <= now).map(|(_, task)| *task).collect()
}

fn clock() -> u64 {
    u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

struct Bed {
    pair: Pair,
    dir: String,
    /// A cgroup like any other: the tasks' own.
    group: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let pair = Pair::new(&[HOST]);
        let dir = pair.bench.folder.path().canonicalize().unwrap().display().to_string();
        let name = format!("gleaner-cuts-{}", std::process::id());
        let roots = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"].map(|root| Path::new(root).join(&name));
        let group = roots.into_iter().find(|group| std::fs::create_dir(group).is_ok()).expect("a cgroup");
        Levers::new(&dir).make();
        Self { pair, dir, group }
    }

    fn state(&self) -> [String; 2] {
        [format!("{}/state", self.dir), format!("{}/agent-state", self.dir)]
    }

    fn aggregator(&self) -> Command {
        self.pair.bench.gleaner(&["daemon", "aggregator", "--config", &format!("{}/aggregator.toml", self.dir)])
    }

    fn agent(&self, incarnation: u64) -> Command {
        let [_, state] = self.state();
        let (dir, procs_file) = (&self.dir, self.group.join("cgroup.procs").display().to_string());
        let part = format!("{dir}\n{}\n{state}\n{incarnation}\n{procs_file}", self.pair.port);
        let mut command = Command::new(std::env::current_exe().unwrap());
        // The folder is no test's name; by it the process is found.
        command.args(["--exact", "cuts::the_agents_part", "--nocapture", &self.dir]);
        command.env(PART, part);
        command
    }

    /// Starts a program, under strace if that is wanted.
    fn start(&self, which: &str, program: Command, traced: bool) -> Running {
        let mut command = Command::new(if traced { "strace".as_ref() } else { program.get_program() });
        if traced {
            let folder = self.pair.bench.path("trace");
            std::fs::create_dir_all(&folder).unwrap();
            command.args(ARGUMENTS).arg("-o").arg(folder.join(which)).arg(program.get_program());
        }
        command.args(program.get_args()).current_dir(&self.dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stderr(std::fs::File::create(format!("{}/{which}.log", self.dir)).unwrap());
        Running(command.spawn().unwrap())
    }

    /// Both daemons, when the one is connected to the other.
    fn start_both(&self, incarnation: u64, traced: bool) -> [Running; 2] {
        let aggregator = self.start("aggregator", self.aggregator(), traced);
        until("the aggregator answers", || self.pair.ask(&["job", "list"]).status.success());
        let agent = self.start("agent", self.agent(incarnation), traced);
        until("the agent reports", || self.pair.hosts().iter().any(|host| !host["report"].is_null()));
        [agent, aggregator]
    }

    /// Both programs themselves.
    fn programs(&self) -> Vec<u32> {
        let aggregator = processes(&["daemon", "aggregator", "--config", &self.dir]);
        let agent = processes(&["cuts::the_agents_part", &self.dir]);
        let own = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| !exe.ends_with("strace"));
        agent.into_iter().chain(aggregator).filter(own).collect()
    }

    /// Ends both programs: what strace runs outlives it.
    fn end(&self) {
        self.programs().into_iter().for_each(|pid| kill(pid, "TERM"));
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline && !self.programs().is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.programs().into_iter().for_each(|pid| kill(pid, "KILL"));
    }

    fn submit(&self) {
        let dir = &self.dir;
        let task = |task: u32| match task % 3 {
            0 => format!("echo {task} >>{dir}/started; sleep 0.1; [ $GLEANER_ATTEMPT -gt 1 ]\n"),
            _ => format!("echo {task} >>{dir}/started; sleep 0.1\n"),
        };
        let list: String = (0..TASKS).map(task).collect();
        self.pair.bench.write("tasks.txt", &list);
        let arguments = ["job", "submit", "tasks.txt", "--name", "j", "--slots", "3", "--dedicated-slots", "3"];
        let submitted = self.pair.ask(&arguments);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    }

    fn completed(&self) -> bool {
        self.pair.job("j")["status"]["phase"] == "completed"
    }

    /// Runs the job to its end, and collects what was acknowledged.
    fn record(&self) -> (Vec<Call>, Promises) {
        let both = self.start_both(1, true);
        self.submit();
        let taken = clock();
        until("the job is complete", || self.completed());
        let tasks = format!("{}/agent-state/tasks", self.dir);
        let is_record = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|kind| kind == "run");
        until("the agent has forgotten its tasks", || !std::fs::read_dir(&tasks).unwrap().flatten().any(is_record));
        self.end();
        for mut traced in both {
            _ = traced.0.wait();
        }
        let calls = read_trace(&self.pair.bench.path("trace"));
        let mut promises = Promises { taken, ..Promises::default() };
        self.read_promises(&calls, &mut promises);
        (calls, promises)
    }

    /// From what the agent wrote: what it said on standard error, and its records of tasks.
    fn read_promises(&self, calls: &[Call], promises: &mut Promises) {
        let (log, records) = (format!("{}/agent.log", self.dir), format!("{}/agent-state/tasks/", self.dir));
        let mut tasks = BTreeMap::new();
        for call in calls {
            match &call.step {
                Step::Wrote { bytes, .. } if call.path == log => {
                    for line in text(bytes).lines() {
                        match line.split_once(' ') {
                            Some(("told", task)) => promises.ends.push((call.start, task.parse().unwrap())),
                            Some(("acknowledged", through)) => {
                                promises.events.push((call.start, through.parse().unwrap()));
                            }
                            _ => {}
                        }
                    }
                }
                Step::Wrote { bytes, .. } if call.path.starts_with(&records) => {
                    let Ok(record) = serde_json::from_slice::<Value>(bytes) else { continue };
                    if let Some(task) = good_end(&record) {
                        let version = &record["attempt"]["version"];
                        tasks.insert(format!("{records}{}-{}.run", version["epoch"], version["number"]), task);
                    }
                }
                Step::Removed => promises.forgotten.extend(tasks.get(&call.path).map(|task| (call.start, *task))),
                _ => {}
            }
        }
    }

    /// What must be on the disks after a cut, at which the levers of workloads held this. The problems there are.
    fn check(&self, now: u64, left: &Left, promises: &Promises, held: &BTreeMap<String, String>) -> Vec<String> {
        let [_, agent] = self.state();
        let mut problems = Levers::new(&self.dir).check(held, &agent, left, &self.pair.bench.path("ledger"));
        let file = |path: &str| left.get(&format!("{}/{path}", self.dir)).cloned().flatten();
        let taken = now >= promises.taken;
        let ended = self.check_store(file("state/state.redb"), taken).unwrap_or_else(|problem| {
            problems.push(problem);
            false
        });
        let mut demand = |good: bool, what: String| problems.extend((!good).then_some(what));

        let mut logged = BTreeMap::new();
        for (path, content) in left.range(format!("{}/state/events/", self.dir)..format!("{}/state/events0", self.dir))
        {
            assert!(path.contains("/events/events"), "{path}");
            for line in text(content.as_deref().unwrap_or_default()).lines() {
                let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
                if event["agent"] == HOST && event["incarnation"] == 1 {
                    *logged.entry(event["sequence"].as_u64().unwrap()).or_insert(0) += 1;
                }
            }
        }
        let missing: Vec<u64> = (1..=promises.events_by(now)).filter(|number| !logged.contains_key(number)).collect();
        demand(missing.is_empty(), format!("acknowledged events are not in the log: {missing:?}"));
        demand(logged.values().all(|times| *times == 1), "events are twice in the log".to_owned());

        let results = file("state/jobs/j/results.log").unwrap_or_default();
        let lines = text(&results);
        let lines = lines.lines().filter(|line| line.contains(" done "));
        let done: BTreeSet<u32> = match ended {
            // Its results are in the state, and its records may go.
            true => (0..TASKS).collect(),
            false => lines.filter_map(|line| line.split(' ').next()?.parse().ok()).collect(),
        };
        let lost: Vec<u32> = tasks_by(&promises.forgotten, now).difference(&done).copied().collect();
        demand(lost.is_empty(), format!("the agent may forget results that are not recorded: {lost:?}"));
        let known = |content: &Option<Vec<u8>>| good_end(&serde_json::from_slice(content.as_deref()?).ok()?);
        let tasks = format!("{}/agent-state/tasks/", self.dir);
        let records = left.iter().filter(|(path, _)| path.starts_with(&tasks) && path.ends_with(".run"));
        let kept: BTreeSet<u32> =
            records.filter_map(|(_, content)| known(content)).chain(done.iter().copied()).collect();
        let lost: Vec<u32> = tasks_by(&promises.ends, now).difference(&kept).copied().collect();
        demand(lost.is_empty(), format!("reported ends are in no record: {lost:?}"));

        let whole = |path: &str, good: &dyn Fn(&[u8]) -> bool| file(path).is_none_or(|content| good(&content));
        let list = whole("state/jobs/j/tasks.json", &|content| serde_json::from_slice::<Value>(content).is_ok());
        demand(list, "the task list is broken".to_owned());
        let epoch = whole("agent-state/tasks/epoch", &|content| text(content).trim().parse::<u64>().is_ok());
        demand(epoch, "the agent's epoch for tasks is broken".to_owned());
        let epoch = whole("agent-state/epoch", &|content| text(content).trim().parse::<u64>().is_ok());
        demand(epoch, "the agent's epoch is broken".to_owned());
        let kept = file("state/jobs/j/tasks.json").is_some();
        demand(!taken || ended || kept, "the task list of a taken job is gone".to_owned());
        problems
    }

    /// The store opens, and knows a job that was taken. Whether the job has ended.
    fn check_store(&self, content: Option<Vec<u8>>, taken: bool) -> Result<bool, String> {
        let folder = self.pair.bench.path("store");
        _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let copy = folder.join("state.redb");
        match content {
            Some(content) => std::fs::write(&copy, content).unwrap(),
            None if taken => return Err("the store is gone".to_owned()),
            None => return Ok(false),
        }
        let store = Store::open(&copy).map_err(|error| format!("the store is refused: {error:?}"))?;
        let state = store.load().map_err(|error| format!("the state is refused: {error:?}"))?;
        let phase = state.and_then(|state| Some(state.job(&JobId::new("j").unwrap())?.phase.clone()));
        if taken && phase.is_none() {
            return Err("a taken job is unknown".to_owned());
        }
        Ok(phase.is_some_and(|phase| phase.is_final()))
    }

    /// Starts the real daemons on what is left, and has them finish the job. What ran then, from the end of the trace on.
    fn boot(&self, now: u64, left: &Left, promises: &Promises) {
        for folder in self.state() {
            _ = std::fs::remove_dir_all(folder);
        }
        for (path, content) in left {
            match content {
                None => std::fs::create_dir(path).unwrap(),
                Some(content) => std::fs::write(path, content).unwrap(),
            }
        }
        _ = std::fs::remove_file(self.pair.bench.path("started"));
        let both = self.start_both(2, false);
        let events = self.pair.events();
        let shown = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let shown: BTreeSet<u64> =
            shown.filter(|event| event["incarnation"] == 1).filter_map(|event| event["sequence"].as_u64()).collect();
        let missing = (1..=promises.events_by(now)).find(|number| !shown.contains(number));
        assert_eq!(missing, None, "an acknowledged event is not shown");
        let known = !self.pair.job("j").is_null();
        assert!(known || now < promises.taken, "a taken job is unknown");
        if known {
            until("the job is complete", || self.completed());
            let progress = self.pair.job("j")["status"]["progress"].clone();
            assert_eq!((&progress["tasks_done"], &progress["tasks_failed"]), (&TASKS.into(), &0.into()), "{progress}");
            let ran: BTreeSet<u32> =
                self.pair.bench.lines("started").iter().map(|line| line.parse().unwrap()).collect();
            let twice: Vec<u32> = tasks_by(&promises.ends, now).intersection(&ran).copied().collect();
            assert!(twice.is_empty(), "tasks whose good ends were reported ran again: {twice:?}");
        }
        drop(both);
    }
}

/// The task whose good end a record of the agent's tells.
pub(crate) fn good_end(record: &Value) -> Option<u32> {
    let task = record["attempt"]["task"].as_u64()?;
    (record["ended"]["exited"]["status"] == 0).then_some(u32::try_from(task).ok()?)
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.end();
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && std::fs::remove_dir(&self.group).is_err() {
            let left = std::fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
            left.lines().filter_map(|pid| pid.parse().ok()).for_each(|pid| kill(pid, "KILL"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// What the agent's process is told.
const PART: &str = "GLEANER_CUTS_AGENT";

/// The agent: its state folder, and everything it needs to know.
struct Part {
    dir: String,
    port: u16,
    state: String,
    incarnation: u64,
    procs_file: String,
}

/// Not a test but a program: the bed runs it as a process of its own.
#[test]
fn the_agents_part() {
    let Ok(part) = std::env::var(PART) else { return };
    let [dir, port, state, incarnation, procs_file] = <[&str; 5]>::try_from(part.lines().collect::<Vec<_>>()).unwrap();
    let (port, incarnation) = (port.parse().unwrap(), incarnation.parse().unwrap());
    let part = Part { dir: dir.into(), port, state: state.into(), incarnation, procs_file: procs_file.into() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run_part(part));
}

/// Runs tasks, reports, and makes an event every few milliseconds. Says on standard error what it tells and is told.
async fn run_part(part: Part) {
    let (clock, host) = (Clock::start(), HostId::new(HOST).unwrap());
    let limits = OutboxLimits { reports: 10, events: 100_000 };
    let outbox = Arc::new(Outbox::new(limits, host.clone(), part.incarnation));
    let volunteer = VolunteerKind::Cgroup { procs_files: vec![part.procs_file] };
    let folder = Path::new(&part.state).join("tasks");
    let settings = TaskSettings { root: true, ..TaskSettings::new(true, folder, volunteer) };
    let telling = Arc::clone(&outbox);
    let runner = TaskRunner::open(settings, clock, move |state| {
        if let TaskStatus::Exited { status: 0, .. } = state.status {
            say(&format!("told {}", state.attempt.task));
        }
        telling.task(state);
    });
    let (tasks, inputs) = tokio::sync::mpsc::channel(64);
    tokio::spawn(runner.unwrap().run(inputs));
    let (levers, state) = (Levers::new(&part.dir), PathBuf::from(&part.state));
    std::thread::spawn(move || levers.act(&state));
    let FromAgent::Hello(hello) = synthetic::hello(&host, part.incarnation) else { panic!("no hello") };
    let file = |name: String| Path::new(&part.dir).join("pki").join(name);
    let files = IdentityFiles {
        ca: file("ca.crt".to_owned()),
        certificate: file(format!("{HOST}.crt")),
        key: file(format!("{HOST}.key")),
    };
    let (incarnation, facts) = (part.incarnation, hello.facts);
    let introduction = Introduction { host: host.clone(), incarnation, facts, tasks_of_root: None };
    let addresses = vec![format!("127.0.0.1:{}", part.port)];
    let (to_loop, _orders) = orders();
    tokio::spawn(link::run(
        LinkSettings { addresses, files, introduction, tasks },
        clock,
        Arc::clone(&outbox),
        to_loop,
        std::future::pending(),
    ));
    let (mut acknowledged, mut sequence) = (0, 0);
    for turn in 0_u64.. {
        if turn.is_multiple_of(TURNS_PER_REPORT)
            && let FromAgent::Report(mut report) = synthetic::report(&host, turn, 1)
        {
            let memory = Bytes::from_mib(16_384);
            report.residual.memory = Reading::Value(Bounded { expected: memory, safe: memory });
            outbox.report(HostReport { at: clock.now(), ..*report });
        }
        if turn.is_multiple_of(TURNS_PER_EVENT) {
            outbox.event(clock.now(), Event::AgentStopped { knobs_restored: 0 });
            sequence += 1;
        }
        let through = sequence - outbox.queued().events as u64;
        if through > acknowledged {
            acknowledged = through;
            say(&format!("acknowledged {through}"));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Between two looks at what the agent got acknowledged.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const TURNS_PER_EVENT: u64 = 8;
const TURNS_PER_REPORT: u64 = 200;

/// A moment at which something is under way: while a call runs, or between it and the next.
fn moment(calls: &[Call], random: &mut Random) -> u64 {
    let index = usize::try_from(random.below(calls.len() as u64)).unwrap();
    let (call, next) = (&calls[index], calls.get(index + 1));
    match random.below(3) {
        0 => call.start + random.below(call.end - call.start + 1),
        1 => call.end,
        _ => call.start + random.below(next.map_or(1_000_000, |next| next.start - call.start + 1)),
    }
}

#[test]
fn power_cut_at_any_moment_loses_nothing_that_was_promised() {
    let test = "power_cut_at_any_moment_loses_nothing_that_was_promised";
    if !gleaner_test_support::beds::wanted(test) || !gleaner_test_support::bench::cgroups_writable(test) {
        return;
    }
    let probe = tempfile::NamedTempFile::new().unwrap();
    let traced = Command::new("strace").args(ARGUMENTS).arg("-o").arg(probe.path()).arg("true").output();
    if !traced.is_ok_and(|output| output.status.success()) {
        gleaner_test_support::skipped!("{test}: there is no strace that can follow a program here");
        return;
    }
    let _machine = crate::machine();
    let (cuts, seed) = (number("GLEANER_CUTS").unwrap_or(200), seed());
    let (bed, started) = (Bed::new(), Instant::now());
    let (calls, promises) = bed.record();
    let disk = Disk::new(&bed.dir, &bed.state());
    let watched: Vec<Call> = calls.iter().filter(|call| disk.watches(&call.path)).cloned().collect();
    let syncs = watched.iter().filter(|call| call.step == Step::Synced).count();
    say(&format!(
        "{cuts} cuts with GLEANER_FAULT_SEED={seed} in {} calls ({syncs} syncs); {} acknowledgements of {} events, {} ends of tasks \
         reported; recorded in {:.0} s",
        watched.len(),
        promises.events.len(),
        promises.events_by(u64::MAX),
        promises.ends.len(),
        started.elapsed().as_secs_f64()
    ));
    let all = TASKS as usize;
    assert!(promises.events.len() > 10 && promises.ends.len() >= all && promises.forgotten.len() >= all);
    let levers = Levers::new(&bed.dir);
    let (mut problems, mut booted, mut lossy, mut limited, mut caught) = (Vec::new(), 0, 0, 0, 0);
    let [_, agent] = bed.state();
    let of_the_ledger = [agent.clone(), format!("{agent}/ledger.json.new")];
    for cut in 0..cuts {
        let mut random = Random::new(seed, cut);
        let now = moment(&watched, &mut random);
        let mut disk = Disk::new(&bed.dir, &bed.state());
        calls.iter().take_while(|call| call.start <= now).for_each(|call| disk.apply(call, now));
        let left = disk.left(&mut random);
        lossy += u32::from(disk.has_unsynced());
        let held = levers.at(&calls, now);
        limited += u32::from(levers.are_changed(&held));
        // Were the ledger never synced, that would be found.
        let mut careless = Disk::new(&bed.dir, &bed.state());
        let forgets = |call: &&Call| call.step != Step::Synced || !of_the_ledger.contains(&call.path);
        calls.iter().take_while(|call| call.start <= now).filter(forgets).for_each(|call| careless.apply(call, now));
        let careless = careless.left(&mut random);
        caught += u32::from(!levers.check(&held, &agent, &careless, &bed.pair.bench.path("ledger")).is_empty());
        let found = bed.check(now, &left, &promises, &held);
        problems.extend(found.into_iter().map(|problem| format!("cut {cut}: {problem}")));
        if problems.is_empty() && cut % 20 == 19 {
            bed.boot(now, &left, &promises);
            booted += 1;
        }
    }
    say(&format!(
        "{cuts} cuts, {lossy} of them with something unsynced and {limited} with limits in force; {booted} booted; {} problems; \
         with a ledger that is not synced, in {caught} cuts",
        problems.len()
    ));
    assert!(lossy > 0 && limited > 0, "no cut had anything to lose");
    assert!(caught > 0, "a ledger that is not synced is not told from one that is");
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Past the harness, which would swallow it.
fn say(what: &str) {
    _ = writeln!(std::io::stderr(), "{what}");
}
