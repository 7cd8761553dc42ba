//! A hostile aggregator against one host's agent. In: steps of a conversation, from [`steps`](self::steps::steps). Out:
//! how much of it was taken. The agent's real reading of messages, order queue, loop, actor, guard, outbox and runner of
//! tasks run on a simulated machine's files. [`play`] panics where the host suffers: a limit below a floor, a file
//! changed that is no lever, a knob that is not given back, an event that is lost, a queue beyond its bound. Called by
//! the fuzz target `aggregators` and by its own test.

pub mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gleaner_agent::link::{Greeting, Renewal, greeting, receive};
use gleaner_agent::order::{Order, OrderSender, Orders, orders};
use gleaner_agent::outbox::{Batch, Outbox};
use gleaner_agent::tasks::{TaskInput, TaskRunner, TaskSettings};
use gleaner_daemon::clock::Clock;
use gleaner_net::tls::{IdentityFiles, Validity};
use gleaner_simulator::random::Random;
use gleaner_types::command::Outcome;
use gleaner_types::event::EventSource;
use gleaner_types::id::HostId;
use gleaner_types::report::{MAX_WORKLOADS, VolunteerKind};
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAggregator, ProtocolVersion, Unknowns, Welcome, decode, encode};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use self::steps::{MOST_STEPS, Step};
use crate::faults::Time;
use crate::host::{Dial, FLOOR_PERCENT, Host, LIMITS, MEMORY_FLOOR};
use crate::machine::Machine;

/// Foreground workloads of the host.
const WORKLOADS: usize = 2;
/// CPUs of the host.
const CORES: u32 = 4;
/// Least weight an agent lets a foreground workload be limited to.
const WEIGHT_FLOOR: u64 = 50;
/// After so long without a command every lease is over, in milliseconds.
const LONGEST_LEASE: Time = 600_000;
/// The files that limits on a workload are set by.
const KNOBS: [&str; 3] = ["cpu.max", "cpu.weight", "memory.high"];
/// The files that the machine itself writes while it runs.
const MOVING: [&str; 4] = ["cpu.stat", "stat", "meminfo", "loadavg"];

/// What became of a conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames that were taken.
    pub taken: u32,
    /// Frames that ended the connection, or did not begin one.
    pub refused: u32,
    /// Commands that were carried out by their answer.
    pub applied: u32,
    /// Commands that were refused by their answer.
    pub not_applied: u32,
    /// Turns after which some limit was in force.
    pub limited: u32,
    /// Answers about tasks.
    pub tasks: u32,
    /// Events that were acknowledged.
    pub acknowledged: u64,
}

/// Events of the outbox, counted beside it: those that wait are always the last ones without a gap.
#[derive(Debug, Default)]
struct Counted {
    /// All so far.
    queued: u64,
    /// Those of them that wait.
    waiting: u64,
}

struct Scene {
    folder: PathBuf,
    version: ProtocolVersion,
    host: Host,
    outbox: Arc<Outbox>,
    sender: OrderSender,
    orders: Orders,
    tasks: mpsc::Sender<TaskInput>,
    random: Random,
    connected: bool,
    now: Time,
    commanded: Time,
    counted: Counted,
    /// The highest epoch of a command that was carried out.
    epoch: u64,
    found: BTreeMap<PathBuf, Vec<u8>>,
    tally: Tally,
}

/// Plays a conversation to an agent whose host's files are made in `folder`, which is empty. Panics where the host
/// suffers.
///
/// # Errors
/// When a file of the simulated machine cannot be written, or the agent cannot start.
pub fn play(folder: &Path, version: ProtocolVersion, steps: &[Step]) -> anyhow::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for part in ["state", "outside"] {
        fs::create_dir(folder.join(part))?;
    }
    for knob in KNOBS {
        fs::write(folder.join("outside").join(knob), "not Gleaner's\n")?;
    }
    let mut random = Random::new(1);
    let machine = Machine::new(&folder.join("host"), CORES, WORKLOADS, true)?;
    let mut host = Host::new(1, machine, true, &folder.join("state"), Dial::default(), None)?;
    host.start(0, &mut random)?;
    let Some(outbox) = host.agent.as_ref().map(|agent| Arc::clone(&agent.outbox)) else {
        anyhow::bail!("the agent does not run");
    };
    let (sender, orders) = orders();
    // Every step sends at most one input, and one more; so the link never waits for the runner, which follows at the end.
    let (tasks, inputs) = mpsc::channel(2 * MOST_STEPS + 2);
    let found = contents(folder)?;
    let counted = Counted { queued: outbox.queued().events as u64, waiting: outbox.queued().events as u64 };
    let mut scene = Scene {
        folder: folder.to_owned(),
        version,
        host,
        outbox,
        sender,
        orders,
        tasks,
        random,
        connected: false,
        now: 0,
        commanded: 0,
        counted,
        epoch: 0,
        found,
        tally: Tally::default(),
    };
    scene.turn(1_000)?;
    let files = IdentityFiles { ca: folder.join("ca"), certificate: folder.join("crt"), key: folder.join("key") };
    let id = HostId::new("h1")?;
    let renewal = Renewal::new(&files, &id, Validity { from: Timestamp(0), until: Timestamp(u64::MAX / 2) });
    renewal.ask()?;
    for step in steps.iter().take(MOST_STEPS) {
        match step {
            Step::Frame(frame) => scene.frame(&runtime, frame, &renewal),
            Step::Connect(_) if scene.connected => {}
            Step::Connect(events_through) => scene.connect(&runtime, *events_through, &renewal)?,
            Step::Turn(ms) => scene.turn(*ms)?,
            Step::Send => scene.send(),
            Step::Lose => scene.lose(),
        }
    }
    if !scene.connected {
        scene.connect(&runtime, 0, &renewal)?;
    }
    scene.end(&runtime, inputs)
}

impl Scene {
    fn connect(&mut self, runtime: &Runtime, events_through: u64, renewal: &Renewal<'_>) -> anyhow::Result<()> {
        let (software, now) = ("hostile".to_owned(), Timestamp(1));
        let welcome = FromAggregator::Welcome(Welcome { software, now, events_through });
        self.frame(runtime, &encode(self.version, &welcome)?, renewal);
        Ok(())
    }

    /// One frame, on the connection if there is one, else as the answer to a hello.
    fn frame(&mut self, runtime: &Runtime, frame: &[u8], renewal: &Renewal<'_>) {
        // What it acknowledges, read apart from the agent.
        let message = decode::<FromAggregator>(self.version, frame, &mut Unknowns::default());
        let through = match message {
            Ok(Some((FromAggregator::EventsThrough(through), _))) if self.connected => through,
            Ok(Some((FromAggregator::Welcome(welcome), _))) if !self.connected => welcome.events_through,
            _ => 0,
        };
        let Self { version, outbox, sender, tasks, .. } = &*self;
        let mut control = frame;
        let goes_on = runtime.block_on(async {
            if self.connected {
                return matches!(receive(&mut control, *version, outbox, sender, tasks, renewal).await, Ok(None));
            }
            match greeting(&mut control, *version, &mut Unknowns::default()).await {
                Ok(Greeting::Welcome(welcome)) => {
                    outbox.connected(welcome.events_through);
                    tasks.send(TaskInput::Connected).await.is_ok()
                }
                Ok(Greeting::StandsBy(_)) | Err(_) => false,
            }
        });
        self.count(through);
        if goes_on {
            self.tally.taken += 1;
            self.connected = true;
        } else {
            self.tally.refused += 1;
            self.lose();
        }
    }

    /// Events leave the outbox only when they are acknowledged, and none is dropped.
    fn count(&mut self, through: u64) {
        let Counted { queued, waiting } = &mut self.counted;
        // Only what was there can be acknowledged.
        let kept = (*waiting).min(queued.saturating_sub(through));
        let now = self.outbox.queued();
        let events = now.events as u64;
        assert!(events >= kept, "{} events are gone that nobody has acknowledged", kept - events);
        self.tally.acknowledged += *waiting - kept;
        *queued += events - kept;
        *waiting = events;
        assert_eq!(now.events_dropped, 0, "a conversation fills the outbox");
        assert!(now.reports <= LIMITS.reports && now.acks <= MAX_WORKLOADS + 1, "{now:?}");
    }

    fn lose(&mut self) {
        self.connected = false;
        self.outbox.disconnected();
        assert_eq!(self.outbox.queued().acks, 0);
    }

    /// The agent's loop: what waits for it, then its periods, of a second and at most five.
    fn turn(&mut self, ms: u64) -> anyhow::Result<()> {
        let mut taken = 0;
        while let Some(order) = self.orders.next(std::time::Duration::ZERO) {
            let Order::Command(command) = order else { anyhow::bail!("no command: {order:?}") };
            taken += 1;
            assert!(taken <= MAX_WORKLOADS + 1, "more orders wait than a host has targets");
            if let Some(agent) = self.host.awake(self.now) {
                agent.host_loop.command(&command);
            }
            self.commanded = self.now;
        }
        let periods = (ms / 1_000).clamp(1, 5);
        for _ in 0..periods {
            self.now += ms / periods;
            self.host.advance(self.now, CORES, &mut self.random)?;
            self.host.guard(self.now);
            self.host.tick(self.now);
        }
        self.count(0);
        if self.connected && self.outbox.queued().acks > 0 {
            self.send();
        }
        self.check()
    }

    /// The link takes what waits, one message of each kind.
    fn send(&mut self) {
        let Batch { acks, events, tasks, .. } = self.outbox.take();
        let targets: BTreeSet<_> = acks.iter().map(|ack| &ack.target).collect();
        assert_eq!(targets.len(), acks.len(), "two answers about one target wait");
        for ack in &acks {
            match &ack.outcome {
                Outcome::Applied { .. } => {
                    assert!(ack.version.epoch >= self.epoch, "{ack:?} follows a command of epoch {}", self.epoch);
                    self.epoch = ack.version.epoch;
                    self.tally.applied += 1;
                }
                Outcome::Refused { .. } => self.tally.not_applied += 1,
            }
        }
        assert!(events.is_sorted_by_key(|record| sequence(&record.source)), "{events:?}");
        self.tally.tasks += u32::try_from(tasks.len()).unwrap_or(u32::MAX);
    }

    /// What is in force stays within the floors and the host's own levers.
    fn check(&mut self) -> anyhow::Result<()> {
        let mut limited = false;
        for workload in 0..WORKLOADS {
            let machine = &self.host.machine;
            limited |= !machine.limited_by(workload).is_empty();
            let quota = machine.quota(workload).unwrap_or(f64::INFINITY);
            assert!(quota >= FLOOR_PERCENT, "a workload's ceiling is {quota} %");
            let memory = machine.memory_limit(workload).unwrap_or(u64::MAX);
            assert!(memory >= MEMORY_FLOOR, "a workload may keep {memory} bytes");
            let file = self.folder.join(format!("host/cg/machine/vm{workload}/cpu.weight"));
            let weight: u64 = fs::read_to_string(file)?.trim().parse()?;
            assert!((WEIGHT_FLOOR..=10_000).contains(&weight), "a workload's weight is {weight}");
        }
        self.tally.limited += u32::from(limited);
        let allowance = self.host.allowance();
        assert!((0.0..=f64::from(CORES) * 100.0).contains(&allowance), "the volunteer may use {allowance} %");
        if self.now > self.commanded + LONGEST_LEASE {
            assert_eq!(self.host.machine.changed(), [""; 0], "every lease is over");
            assert!(!self.host.volunteer_runs(), "the volunteer's lease is over");
        }
        for (file, now) in contents(&self.folder)? {
            let is_knob = KNOBS.iter().any(|knob| file.ends_with(knob)) && file.starts_with("host/cg/machine");
            let before = self.found.get(&file);
            assert!(before.is_some_and(|before| is_knob || *before == now), "{} was changed or made", file.display());
        }
        Ok(())
    }

    /// An orderly end: all knobs are as they were found, and every event that was not acknowledged is sent once more.
    fn end(mut self, runtime: &Runtime, inputs: mpsc::Receiver<TaskInput>) -> anyhow::Result<Tally> {
        self.turn(1_000)?;
        let settings = TaskSettings::new(true, self.folder.join("state/tasks"), VolunteerKind::None);
        let outbox = Arc::clone(&self.outbox);
        let runner = TaskRunner::open(settings, Clock::start(), move |state| outbox.task(state))?;
        // The runner ends when nobody can send it anything.
        (self.tasks, _) = mpsc::channel(1);
        runtime.block_on(runner.run(inputs));
        self.count(0);
        self.send();
        let stopped = self.host.stop(self.now);
        self.count(0);
        assert_eq!(stopped.failed, [""; 0], "not given back");
        assert_eq!(self.host.machine.changed(), [""; 0], "not given back");
        self.host.keeper()?;
        self.check()?;
        self.outbox.disconnected();
        self.outbox.connected(0);
        let batches = std::iter::from_fn(|| Some(self.outbox.take()).filter(|batch| !batch.is_empty()));
        let sent: Vec<u64> = batches.flat_map(|batch| batch.events).map(|record| sequence(&record.source)).collect();
        let Counted { queued, waiting } = self.counted;
        let wanted: Vec<u64> = (queued - waiting + 1..=queued).collect();
        assert_eq!(sent, wanted, "events that nobody has acknowledged");
        Ok(self.tally)
    }
}

fn sequence(source: &EventSource) -> u64 {
    match source {
        EventSource::Agent { sequence, .. } => *sequence,
        EventSource::Aggregator => 0,
    }
}

/// All files below a folder with what is in them, but for the agent's state and what the machine itself writes.
fn contents(folder: &Path) -> std::io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            let name = path.strip_prefix(folder).unwrap_or(&path).to_owned();
            if path.is_dir() {
                if name != Path::new("state") {
                    folders.push(path);
                }
            } else if !MOVING.iter().any(|moving| name.ends_with(moving)) {
                found.insert(name, fs::read(&path)?);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where it fails")]
mod tests {
    use gleaner_test_support::generate::Entropy;

    use super::*;

    /// Hundreds of conversations of both versions, and none of them in vain.
    #[test]
    fn whatever_an_aggregator_says_the_host_is_safe() {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let mut all = Tally::default();
        for (seed, spoken) in (0..200).zip((0..2).cycle()) {
            let version = ProtocolVersion::SUPPORTED[spoken];
            let steps = steps::steps(version, &mut Entropy::of_seed(seed));
            let own = tempfile::tempdir_in(&folder).unwrap();
            let tally = play(own.path(), version, &steps).unwrap();
            all = Tally {
                taken: all.taken + tally.taken,
                refused: all.refused + tally.refused,
                applied: all.applied + tally.applied,
                not_applied: all.not_applied + tally.not_applied,
                limited: all.limited + tally.limited,
                tasks: all.tasks + tally.tasks,
                acknowledged: all.acknowledged + tally.acknowledged,
            };
        }
        println!("{all:?}");
        assert!(all.taken > 1_000 && all.refused > 200, "{all:?}");
        assert!(all.applied > 50 && all.not_applied > 50 && all.limited > 50, "{all:?}");
        assert!(all.tasks > 20 && all.acknowledged > 20, "{all:?}");
    }
}
