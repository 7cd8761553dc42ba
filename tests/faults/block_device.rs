//! Power is cut on a real block device. In a booted host both daemons keep their state on a file system whose device
//! stops writing at a random moment of a running job. Daemons and tasks are killed, the file system is mounted again,
//! and the daemons continue from it. Every time, all acknowledged data must be there, and no task whose good end was
//! acknowledged may run again. [`crate::cuts`] simulates the same many more times and with harsher disks.
//!
//! Two things survive these cuts, which is harsher than a reboot: limits and cgroups, which the next agent must find in
//! its ledger; and the files in which tasks record that they ran.
//!
//! `GLEANER_FAULT_SEED` repeats a run as far as real processes allow. `GLEANER_DEVICE_CUTS` is how often one boot cuts power;
//! without it, as often as it can in [`CUTTING`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gleaner_agent::act::ledger::Ledger;
use gleaner_test_support::bench::{Running, kill, processes, text, until};
use gleaner_test_support::lab;
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::Value;

use crate::cuts::good_end;
use crate::device::{Device, Fate, contents, differing};
use crate::fleet::{acknowledged_in, logged_in};
use crate::random::{Random, seed};

const TEST: &str = "power_cut_on_a_block_device_loses_nothing_that_was_acknowledged";
/// Set inside the booted host: the disk, whose content is lost.
const DISK: &str = "GLEANER_CUT_DISK";
/// Set inside the booted host: how often power is cut there, if not as often as [`CUTTING`] allows.
const CUTS: &str = "GLEANER_DEVICE_CUTS";
/// Tasks of the job, without [`CUTS`]; with it, for each cut. A cut comes some five tasks after the one before.
const TASKS: u32 = 80;
const TASKS_PER_CUT: u32 = 6;
/// For how long a boot may take, in seconds: the usual one, and what each cut adds beyond it.
const BOOT_S: u32 = 600;
const CUT_S: u32 = 40;
/// Power is cut no more when fewer tasks than this are left, so that each cut comes while tasks run.
const LAST_TASKS: u32 = 12;
/// For how long power is cut again and again, and at least how often.
const CUTTING: Duration = Duration::from_secs(40);
const LEAST_CUTS: usize = 3;
/// From the moment at which everybody is at work, at most, until power is cut.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);
/// From the moment at which the disk refuses everything until the daemons are killed.
const REFUSING: Duration = Duration::from_millis(300);
/// Begins what a run that came to its end says.
const SUMMARY: &str = "cuts on a block device: ";

#[test]
fn power_cut_on_a_block_device_loses_nothing_that_was_acknowledged() {
    if !gleaner_test_support::beds::wanted(TEST) {
        return;
    }
    let _machine = crate::machine();
    match std::env::var(DISK) {
        Ok(disk) => {
            assert!(lab::inside(), "{DISK} is for a booted host: the disk is formatted");
            cut_repeatedly(&disk);
        }
        Err(_) => in_a_host(),
    }
}

/// Boots a host with a disk and device-mapper of its own, and runs this test in it.
fn in_a_host() {
    let Some(images) = lab::images(TEST) else { return };
    let seed = seed();
    say(&format!("cuts on a block device with GLEANER_FAULT_SEED={seed}"));
    // Without symbols they are a quarter the size, which the host's memory has to hold.
    let stripped = |name: &str, program: &Path| {
        let small = lab::cache(name);
        let strip = Command::new("strip").arg("-o").arg(&small).arg(program).status();
        assert!(strip.unwrap().success(), "{name}");
        small
    };
    let gleaner = stripped("gleaner", Path::new(env!("CARGO_BIN_EXE_gleaner")));
    let tests = stripped("faults-tests", &std::env::current_exe().unwrap());
    let written = |name: &str, content: String| {
        let file = lab::cache(name);
        std::fs::write(&file, content).unwrap();
        file
    };
    let cuts = cuts_wanted();
    let seed_file = written("seed", seed.to_string());
    let cuts_file = written("cuts", cuts.map(|cuts| cuts.to_string()).unwrap_or_default());
    let limit = (BOOT_S + CUT_S * cuts.unwrap_or(0)).to_string();
    let options = ["-m", "1200", "-T", &limit];
    let output = lab::on_host(&images, &options, "kvm/power-tests.sh", &[&gleaner, &tests, &seed_file, &cuts_file]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains(SUMMARY), "{}\n{}", output.status, lab::quoted(&output));
    said.lines().filter(|line| line.starts_with("cut")).for_each(say);
}

/// How often power is to be cut, if that was said.
fn cuts_wanted() -> Option<u32> {
    let wanted = std::env::var(CUTS).ok().filter(|wanted| !wanted.is_empty())?;
    Some(wanted.parse().unwrap_or_else(|_| panic!("{CUTS}={wanted} is no number of cuts")))
}

/// What was acknowledged.
#[derive(Debug, Default)]
struct Promised {
    /// Events of the agent through this number are in the log, by incarnation.
    events: BTreeMap<u64, u64>,
    /// Tasks whose good end the agent has told.
    done: BTreeSet<u32>,
}

/// What a cut did.
#[derive(Debug)]
struct Cut {
    number: usize,
    fate: Fate,
    promised: Promised,
    /// Starts of tasks until then.
    started: usize,
    /// Files of the daemons that had more in the page cache than on the disk.
    lost: BTreeSet<PathBuf>,
    problems: Vec<String>,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: BTreeSet<String> = self.lost.iter().map(|path| kind(path)).collect();
        write!(
            f,
            "cut {}: writes {:?}; promised: {} events, {} ends of tasks; {} files had more than the disk: {}; problems: {:?}",
            self.number,
            self.fate,
            self.promised.events.values().sum::<u64>(),
            self.promised.done.len(),
            self.lost.len(),
            kinds.into_iter().collect::<Vec<_>>().join(" "),
            self.problems,
        )
    }
}

/// A file's path, or that of all like it whose names are numbers.
fn kind(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match (path.parent(), path.extension()) {
        (Some(folder), Some(kind)) if name.starts_with(|first: char| first.is_ascii_digit()) => {
            format!("{}/*.{}", folder.display(), kind.to_string_lossy())
        }
        _ => path.display().to_string(),
    }
}

/// Both daemons, the device that has their state, and the job.
struct Site {
    daemons: Vec<Running>,
    starts: usize,
    /// What agents before this one had been told when power was cut. What the log of one says after that counts for nothing:
    /// a disk that drops what is written says that all is well.
    acknowledged_before: BTreeMap<u64, u64>,
    device: Device,
    pair: Pair,
    dir: PathBuf,
    random: Random,
    /// Tasks of the job.
    tasks: u32,
}

impl Site {
    fn new(disk: &str, seed: u64, tasks: u32) -> Self {
        let pair = Pair::new(&[HOST]);
        let dir = pair.bench.folder.path().canonicalize().unwrap();
        let device = Device::make(disk, &dir.join("disk"));
        for file in ["aggregator.toml", "agent.toml"] {
            let text = std::fs::read_to_string(pair.bench.path(file)).unwrap();
            let (before, after) = text.split_once("state_dir = '").unwrap();
            let (folder, rest) = after.split_once('\'').unwrap();
            let name = Path::new(folder).file_name().unwrap();
            let folder = dir.join("disk").join(name);
            pair.bench.write(file, &format!("{before}state_dir = '{}'{rest}", folder.display()));
        }
        let random = Random::new(seed, 0);
        Self { daemons: Vec::new(), starts: 0, acknowledged_before: BTreeMap::new(), device, pair, dir, random, tasks }
    }

    fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    fn agent_state(&self) -> PathBuf {
        self.disk().join("agent.toml-state")
    }

    /// The volunteer's cgroup, and what is beside it.
    fn group(&self) -> PathBuf {
        Path::new("/sys/fs/cgroup").join(format!("gleaner-e2e-{}", self.pair.port))
    }

    /// What a daemon says since its last start.
    fn log(&self, which: &str) -> PathBuf {
        self.dir.join(format!("{which}-{}.log", self.starts))
    }

    fn start_one(&mut self, which: &str, more: &[&str]) {
        let config = self.dir.join(format!("{which}.toml")).display().to_string();
        let mut command = self.pair.bench.gleaner(&[&["daemon", which, "--config", &config], more].concat());
        let log = std::fs::File::create(self.log(which)).unwrap();
        command.env("NO_COLOR", "1").env("GLEANER_LOG", "info,gleaner_agent::outbox=debug");
        self.daemons.push(Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap()));
    }

    /// Both daemons. The agent connects when it can.
    fn start(&mut self) {
        self.starts += 1;
        self.start_one("aggregator", &[]);
        self.start_one("agent", &["--act"]);
        until("the aggregator answers", || self.pair.ask(&["job", "list"]).status.success());
    }

    fn submit(&self) {
        let dir = self.dir.display();
        let task = |task| format!("echo {task} >>{dir}/started; [ -e {dir}/enough ] || sleep 0.3\n");
        let list: String = (0..self.tasks).map(task).collect();
        self.pair.bench.write("tasks.txt", &list);
        let arguments = ["job", "submit", "tasks.txt", "--name", "j", "--slots", "3", "--dedicated-slots", "3"];
        let submitted = self.pair.ask(&arguments);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    }

    /// What agents were told to be in the event log.
    fn acknowledged(&self) -> BTreeMap<u64, u64> {
        let mut acknowledged = acknowledged_in(&std::fs::read_to_string(self.log("agent")).unwrap_or_default());
        acknowledged.extend(&self.acknowledged_before);
        acknowledged
    }

    /// Tasks that the aggregator has the good end of.
    fn done(&self) -> BTreeSet<u32> {
        let results = std::fs::read_to_string(self.disk().join("state/jobs/j/results.log")).unwrap_or_default();
        let done = results.lines().filter(|line| line.contains(" done "));
        done.filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    }

    fn started(&self) -> Vec<u32> {
        self.pair.bench.lines("started").iter().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits until tasks have ended and events have been acknowledged since the start.
    fn wait_for_work(&self) {
        let before = self.done().len();
        until("tasks end", || self.done().len() >= before + 3);
        until("events are acknowledged", || self.acknowledged().len() > self.acknowledged_before.len());
    }

    /// Cuts power at a random moment, and mounts what is left.
    fn cut(&mut self, number: usize) -> Cut {
        let fate = if number.is_multiple_of(2) { Fate::Dropped } else { Fate::Refused };
        std::thread::sleep(self.random.pause(LONGEST_PAUSE));
        let held = self.pair.ask(&["host", "hold", &spare(number), "--unknown", "--for", "1h"]);
        assert!(held.status.success(), "{}", text(&held.stderr));
        let control = Control::write(&self.disk(), number);
        let mut promised = Promised { events: self.acknowledged(), done: self.done() };
        self.device.cut(fate);
        if fate == Fate::Refused {
            std::thread::sleep(REFUSING);
        }
        self.kill();
        if fate == Fate::Refused {
            // Whoever was told something since then was told of what the disk had.
            promised.events = self.acknowledged();
        }
        self.acknowledged_before.clone_from(&promised.events);
        let had = self.contents();
        let started = self.started().len();
        self.device.bring_back();
        let mut problems = self.check(&promised);
        problems.extend(control.check());
        Cut { number, fate, promised, started, lost: differing(&had, &self.contents()), problems }
    }

    /// Files of the daemons, by their paths on the disk.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let disk = self.disk();
        let all = [disk.join("state"), self.agent_state()].map(|folder| contents(&folder));
        let named = |(path, content): (PathBuf, Vec<u8>)| (path.strip_prefix(&disk).unwrap().to_owned(), content);
        all.into_iter().flatten().map(named).collect()
    }

    /// Kills the daemons, the keeper and the tasks.
    fn kill(&mut self) {
        let dir = self.dir.display().to_string();
        until("nothing runs any more", || {
            processes(&[&dir]).into_iter().for_each(|pid| kill(pid, "KILL"));
            _ = std::fs::write(self.group().join("cgroup.kill"), "1");
            processes(&[&dir]).is_empty()
        });
        self.daemons.clear();
    }

    /// What is on the disk after a cut. The problems there are.
    fn check(&self, promised: &Promised) -> Vec<String> {
        let mut problems = Vec::new();
        let mut demand = |good: bool, what: String| problems.extend((!good).then_some(what));
        let broken = Ledger::problem(&self.agent_state());
        demand(broken.is_none(), format!("the ledger: {broken:?}"));
        demand(self.agent_state().join("ledger.json").exists(), "the ledger is gone".to_owned());
        let (logged, twice) = logged_in(&self.disk().join("state/events"));
        for (incarnation, through) in &promised.events {
            let have = logged.get(&(HOST.to_owned(), *incarnation));
            let missing: Vec<u64> =
                (1..=*through).filter(|number| !have.is_some_and(|have| have.contains(number))).collect();
            demand(missing.is_empty(), format!("acknowledged events of {incarnation} are not in the log: {missing:?}"));
        }
        demand(twice.is_empty(), format!("events are twice in the log: {twice:?}"));
        let records = contents(&self.agent_state().join("tasks"));
        let records = records.iter().filter(|(path, _)| path.extension().is_some_and(|kind| kind == "run"));
        let of_the_agent = records.filter_map(|(_, record)| good_end(&serde_json::from_slice(record).ok()?));
        let known: BTreeSet<u32> = of_the_agent.chain(self.done()).collect();
        let lost: Vec<&u32> = promised.done.difference(&known).collect();
        demand(lost.is_empty(), format!("reported ends are in no record: {lost:?}"));
        problems
    }

    /// An order that was answered is known to whoever is started again.
    fn check_order(&self, cut: &mut Cut) {
        let released = self.pair.ask(&["host", "release", &spare(cut.number)]);
        if !released.status.success() {
            cut.problems.push(format!("a hold that was answered: {}", text(&released.stderr)));
        }
    }

    /// Has the job finished and ends the daemons. The job's progress.
    fn finish(&mut self) -> Value {
        self.pair.bench.write("enough", "");
        // Each task has its time: how many are left depends on the cuts, and how fast they run on the machine.
        let (mut phase, mut done) = (Value::Null, self.done().len());
        while phase != "completed" {
            until("another task ends, or the job", || {
                phase = self.pair.job("j")["status"]["phase"].clone();
                assert!(phase != "failed" && phase != "cancelled", "{phase}");
                phase == "completed" || self.done().len() > done
            });
            done = self.done().len();
        }
        let progress = self.pair.job("j")["status"]["progress"].clone();
        self.daemons.clear();
        progress
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for which in ["aggregator", "agent"] {
            let log = std::fs::read_to_string(self.log(which)).unwrap_or_default();
            let log: Vec<&str> = log.lines().collect();
            say(&format!("{which}:\n{}", log[log.len().saturating_sub(10)..].join("\n")));
        }
    }
}

/// A host that no cluster has, to be held.
fn spare(number: usize) -> String {
    format!("spare-{number}")
}

/// Two files written right before a cut: one that is synced, and one that is not.
struct Control {
    synced: PathBuf,
    unsynced: PathBuf,
}

impl Control {
    const TEXT: &str = "written before the cut\n";

    fn write(folder: &Path, number: usize) -> Self {
        let [synced, unsynced] = ["synced", "unsynced"].map(|kind| folder.join(format!("{kind}-{number}")));
        std::fs::write(&unsynced, Self::TEXT).unwrap();
        let mut file = std::fs::File::create(&synced).unwrap();
        file.write_all(Self::TEXT.as_bytes()).unwrap();
        file.sync_all().unwrap();
        std::fs::File::open(folder).unwrap().sync_all().unwrap();
        Self { synced, unsynced }
    }

    /// Were the second one still there, a cut would cut nothing.
    fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let holds = |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| text == Self::TEXT);
        if !holds(&self.synced) {
            problems.push("a file that was synced is not there".to_owned());
        }
        if holds(&self.unsynced) {
            problems.push("a file that nobody synced outlived the cut: the device has lost nothing".to_owned());
        }
        problems
    }
}

fn cut_repeatedly(disk: &str) {
    let seed = seed();
    let wanted = cuts_wanted();
    let tasks = wanted.map_or(TASKS, |cuts| cuts * TASKS_PER_CUT + LAST_TASKS);
    let mut site = Site::new(disk, seed, tasks);
    site.start();
    site.submit();
    let (begun, mut cuts) = (Instant::now(), Vec::new());
    let enough_left = |site: &Site| site.done().len() + (LAST_TASKS as usize) < tasks as usize;
    let go_on = |cuts: usize| wanted.map_or_else(|| begun.elapsed() < CUTTING, |wanted| cuts < wanted as usize);
    while cuts.len() < LEAST_CUTS || go_on(cuts.len()) && enough_left(&site) {
        site.wait_for_work();
        let mut cut = site.cut(cuts.len());
        // Before the daemons are started: on what is broken they might not.
        say(&cut.to_string());
        site.start();
        site.check_order(&mut cut);
        cuts.push(cut);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let progress = site.finish();
    let group = site.group();
    judge(&cuts, tasks, &site.started(), &progress, &group);
    let replays = Device::replays();
    assert_eq!(replays, cuts.len(), "every cut leaves a file system whose journal has to be replayed");
    let refused = cuts.iter().filter(|cut| cut.fate == Fate::Refused).count();
    let bitten = cuts.iter().filter(|cut| !cut.lost.is_empty()).count();
    let runs = site.started().len();
    let last = cuts.last().map(|cut| &cut.promised).unwrap();
    say(&format!(
        "{SUMMARY}{} with GLEANER_FAULT_SEED={seed} in {seconds:.0} s, {refused} of them with writes refused, {bitten} with files of \
         the daemons that had not reached the disk; {} events and {} ends of tasks promised by the last one; {tasks} tasks ran \
         {runs} times; 0 problems",
        cuts.len(),
        last.events.values().sum::<u64>(),
        last.done.len(),
    ));
}

/// Fails if anything that had been acknowledged before a cut is not so after it.
fn judge(cuts: &[Cut], tasks: u32, started: &[u32], progress: &Value, group: &Path) {
    for cut in cuts {
        assert!(cut.problems.is_empty(), "cut {}: {:#?}", cut.number, cut.problems);
        assert!(
            !cut.promised.events.is_empty() && !cut.promised.done.is_empty(),
            "cut {}: nothing promised",
            cut.number
        );
        let again: Vec<&u32> = started[cut.started..].iter().filter(|task| cut.promised.done.contains(task)).collect();
        assert!(again.is_empty(), "cut {}: tasks whose good ends were reported ran again: {again:?}", cut.number);
    }
    assert!(cuts.iter().any(|cut| !cut.lost.is_empty()), "no cut took anything from the daemons");
    assert_eq!((&progress["tasks_done"], &progress["tasks_failed"]), (&tasks.into(), &0.into()), "{progress}");
    let ran: BTreeSet<u32> = started.iter().copied().collect();
    assert_eq!(ran.len(), tasks as usize, "every task ran");
    assert!(!group.exists(), "{} stays behind: some ledger did not know it", group.display());
}

/// Past the harness, which would swallow it.
fn say(what: &str) {
    _ = std::io::stderr().write_all(format!("{what}\n").as_bytes());
}
