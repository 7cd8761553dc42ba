//! One seed: a few hosts, an aggregator, a job, an application, and their events in the order of virtual time. In: the
//! seed. Out: what was done and checked, and what failed. Called by `main` and `tests/seeds.rs`.

mod demand;
mod links;
mod processes;
mod step;
mod trials;

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_aggregator::operators::{Operator, Role};
use gleaner_aggregator::shell::Arrival;
use gleaner_api::{Request, Response};
use gleaner_simulator::random::Random;
use gleaner_types::application::ApplicationSpec;
use gleaner_types::command::Desired;
use gleaner_types::job::{EngineAction, JobPhase};
use gleaner_wire::FromAggregator;
use tokio::sync::{mpsc, oneshot};

use crate::aggregator::Aggregator;
use crate::checks::{Checks, Followed};
use crate::disk::Disk;
use crate::faults::{self, CALM, Fault, Time, Weather};
use crate::harm::Harm;
use crate::host::{Dial, Host};
use crate::machine::{Machine, Sensors};
use crate::network::{Client, Down, Link, LinkId, Server, Up};
use demand::{Batch, application, response};
use step::Step;

/// When everything that can finish must have.
const HORIZON: Time = 400_000;
/// An end of a connection that hears nothing gives it up after this.
const IDLE: Time = 5_000;
/// A daemon that ends at once is started again after this.
const RESTART: Time = 2_000;
/// Time between two steps of a guard; ten times the real one, to be quick.
const GUARD: Time = 500;
/// Length of the parent's path up to which the place of a run does not matter.
const PATH_LENGTH: usize = 60;
/// Messages that wait for an agent.
const OUTGOING: usize = 256;

#[derive(Debug)]
enum Happening {
    Fault(Fault),
    StartAgent(usize),
    StartAggregator,
    Keeper(usize),
    /// Of one life of an agent, so that another's goes on alone.
    Tick(usize, u64),
    Guard(usize, u64),
    Trial(usize, u64, Step),
    AggregatorTick,
    Engine,
    Operator,
    Connect(usize),
    /// The time an agent waits for its welcome is over.
    IdleTimeout(LinkId),
    Up(LinkId, Up),
    Down(LinkId, Down),
    ToShell(Arrival),
    Wellagain(usize),
    RelieveAggregator,
    RelieveAgents,
    Calm,
}

/// What came of a seed.
#[derive(Debug)]
pub struct Outcome {
    /// What was broken; empty if all is well.
    pub breaches: Vec<String>,
    /// Checks made.
    pub checks: u64,
    /// What it was to try and did not; a seed counts only if that is nothing.
    pub untried: Vec<String>,
    /// Faults injected, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Messages that were lost, came twice or late are not counted one by one; these many were sent.
    pub messages: u64,
    /// Virtual time, in milliseconds.
    pub lasted: Time,
    /// How volunteers were held by their harm.
    pub followed: Followed,
    /// A number that equal runs share.
    pub digest: u64,
}

/// The world.
pub struct World {
    now: Time,
    random: Random,
    weather: Weather,
    queue: BTreeMap<(Time, u64), Happening>,
    happenings: u64,
    lives: u64,
    hosts: Vec<Host>,
    /// The agents' disk.
    disk: Disk,
    aggregator: Aggregator,
    links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    batch: Batch,
    application: ApplicationSpec,
    applied: bool,
    agents_full: bool,
    /// The aggregator's disk was full at some time.
    was_full: bool,
    /// Looks of each host's guard since its counters were good, and had time to show it.
    good_looks: Vec<u32>,
    /// What is decided next is not sent: the aggregator then is down for this long.
    midway: Option<Time>,
    checks: Checks,
    faults: BTreeMap<&'static str, u64>,
    messages: u64,
    digest: u64,
    trace: bool,
    finished: bool,
}

/// Runs one seed in a folder of its own in `parent`, best one in memory. `trace` prints what happens.
///
/// # Errors
/// When the bed cannot be made; a broken rule is no error but an outcome.
pub fn run(seed: u64, parent: &Path, trace: bool) -> anyhow::Result<Outcome> {
    // Errors with paths are logged, and where a full disk cuts a line depends on its length: equal runs need paths
    // of equal length.
    let padding = "-".repeat(PATH_LENGTH.saturating_sub(parent.as_os_str().len()));
    let folder = tempfile::Builder::new().prefix(&format!("gleaner{padding}")).tempdir_in(parent)?;
    // The disks are unmounted when the world is gone; what is left is plain files.
    World::new(seed, folder.path(), trace)?.play()
}

impl World {
    fn new(seed: u64, folder: &Path, trace: bool) -> anyhow::Result<Self> {
        let mut random = Random::new(seed);
        let weather = Weather::draw(&mut random);
        let count = 2 + random.below(3);
        let disk = Disk::new(&folder.join("agents"))?;
        let mut dial = || Dial { offset: 0, drift: (random.uniform() * 2.0 - 1.0) * weather.drift };
        let dials: Vec<Dial> = (0..=count).map(|_| dial()).collect();
        let mut hosts = Vec::new();
        for (number, dial) in dials.iter().take(count).enumerate() {
            // The first is the job's dedicated host; of the others one may only observe, and one have no ceilings on CPU.
            let acting = number > 0 && (number == 1 || random.below(6) > 0);
            let quota = number < 2 || random.below(6) > 0;
            // The dedicated host is small, so that most jobs want volunteers.
            let cores = if number == 0 { 2 } else { 2 + u32::try_from(random.below(7))? };
            let machine = Machine::new(&folder.join(format!("h{number}")), cores, 2, quota)?;
            hosts.push(Host::new(number, machine, acting, disk.folder(), *dial, Harm::draw(seed, number))?);
        }
        let aggregator = Aggregator::new(Disk::new(&folder.join("aggregator"))?, dials[count])?;
        let batch = Batch::new(&hosts[0].id, &mut random)?;
        let application = application(&hosts, &mut random)?;
        let drawn = faults::draw(&mut random, count);
        if trace {
            eprintln!("{weather:?}\n{drawn:?}");
        }
        let mut world = Self {
            now: 0,
            random,
            weather,
            queue: BTreeMap::new(),
            happenings: 0,
            lives: 0,
            hosts,
            disk,
            aggregator,
            links: BTreeMap::new(),
            next_link: 0,
            batch,
            application,
            applied: false,
            agents_full: false,
            was_full: false,
            good_looks: vec![0; count],
            midway: None,
            checks: Checks::new(count),
            faults: BTreeMap::new(),
            messages: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            trace,
            finished: false,
        };
        world.at(0, Happening::StartAggregator);
        for number in 0..count {
            let start = world.random.below(2_000) as Time;
            world.at(start, Happening::StartAgent(number));
        }
        world.at(500, Happening::AggregatorTick);
        world.at(700, Happening::Engine);
        world.at(1_500, Happening::Operator);
        for (at, fault) in drawn {
            world.at(at, Happening::Fault(fault));
        }
        world.at(CALM, Happening::Calm);
        Ok(world)
    }

    fn at(&mut self, time: Time, happening: Happening) {
        self.happenings += 1;
        self.queue.insert((time, self.happenings), happening);
    }

    fn after(&mut self, delay: Time, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:8.3} {}", self.now as f64 / 1e3, text());
        }
    }

    fn play(mut self) -> anyhow::Result<Outcome> {
        while let Some(((time, _), happening)) = self.queue.pop_first() {
            self.now = time;
            if time > HORIZON {
                let phase =
                    self.aggregator.core.as_ref().and_then(|core| core.shell.controller().job(&self.batch.spec.id));
                let phase = phase.map(|status| status.phase.clone());
                self.say(|| {
                    format!(
                        "{:?}",
                        self.hosts
                            .iter()
                            .map(|host| (host.id.clone(), host.agent.as_ref().map(|own| own.link), host.cut_until))
                            .collect::<Vec<_>>()
                    )
                });
                self.say(|| format!("{:?}", self.links));
                let done = self.batch.done / self.batch.work;
                self.checks
                    .demand(false, || format!("not all is done in the end: the job is {phase:?}, {done:.2} done"));
                break;
            }
            self.happen(happening)?;
            if self.finished || !self.checks.breaches.is_empty() {
                break;
            }
        }
        if self.checks.breaches.is_empty() {
            self.end();
        }
        self.aggregator.disk.relieve()?;
        self.aggregator.kill();
        // Memory is limited only where the application says so.
        let memory = self.application.tiers.iter().any(|tier| tier.memory_mib.is_some());
        let knobs: &[&str] = if memory { &["cpu.max", "memory.high"] } else { &["cpu.max"] };
        let outcome = Outcome {
            untried: self.checks.untried(knobs),
            breaches: self.checks.breaches,
            checks: self.checks.made,
            followed: self.checks.followed,
            faults: self.faults,
            messages: self.messages,
            lasted: self.now,
            digest: self.digest,
        };
        Ok(outcome)
    }

    /// Everything stops in an orderly way, or half of it dies; then nothing may be left.
    fn end(&mut self) {
        let orderly = self.random.below(2) == 0;
        self.say(|| format!("the end, {}", if orderly { "in order" } else { "the aggregator dies" }));
        if orderly {
            self.aggregator.stop(self.now);
            for number in 0..self.hosts.len() {
                self.stop_agent(number);
            }
        } else {
            self.aggregator.kill();
            // A lease later nothing is limited, although every agent goes on.
            for _ in 0..9 {
                self.now += 1_000;
                for host in &mut self.hosts {
                    host.tick(self.now);
                }
            }
        }
        for host in &self.hosts {
            self.checks.untouched(host, "in the end");
            let runs = host.volunteer_runs();
            self.checks.demand(!runs, || format!("{}: its volunteer runs in the end", host.id));
        }
        let place = self.aggregator.disk.folder().parent().map(|place| place.display().to_string()).unwrap_or_default();
        for line in self.checks.log(&self.aggregator.events()) {
            // Where it happened is in some errors' texts, and is another place each time.
            self.digest(&line.replace(&place, ""));
        }
        self.checks.journal(&self.aggregator.journal(), self.was_full);
    }

    fn happen(&mut self, happening: Happening) -> anyhow::Result<()> {
        match happening {
            Happening::Fault(fault) => self.fault(fault)?,
            Happening::StartAgent(number) => self.start_agent(number),
            Happening::StartAggregator => self.start_aggregator(),
            Happening::Keeper(number) => self.keeper(number),
            Happening::Tick(number, life) => self.tick(number, life)?,
            Happening::Guard(number, life) => self.guard(number, life)?,
            Happening::Trial(number, life, step) => self.trial(number, life, step)?,
            Happening::AggregatorTick => {
                self.tell_shell(Arrival::Tick);
                let late = self.lateness();
                self.after(1_000 + late, Happening::AggregatorTick);
                self.look_for_the_end();
            }
            Happening::Engine => {
                self.work();
                self.after(1_000, Happening::Engine);
            }
            Happening::Operator => self.operator(),
            Happening::Connect(number) => self.connect(number),
            Happening::IdleTimeout(link) => {
                if self.links.get(&link).is_some_and(|link| link.client == Client::Waiting) {
                    self.end_client(link);
                }
            }
            Happening::Up(link, message) => self.up(link, message),
            Happening::Down(link, message) => self.down(link, message),
            Happening::ToShell(arrival) => self.tell_shell(arrival),
            Happening::Wellagain(number) => self.hosts[number].machine.sensors = Sensors::Good,
            Happening::RelieveAggregator => self.aggregator.disk.relieve()?,
            Happening::RelieveAgents => self.relieve_agents()?,
            Happening::Calm => {
                self.say(|| "calm".to_owned());
                self.weather = self.weather.calm();
                for host in &mut self.hosts {
                    host.machine.sensors = Sensors::Good;
                }
                self.aggregator.disk.relieve()?;
                self.relieve_agents()?;
            }
        }
        Ok(())
    }

    fn relieve_agents(&mut self) -> std::io::Result<()> {
        self.agents_full = false;
        self.disk.relieve()
    }

    fn lateness(&mut self) -> Time {
        match self.random.uniform() < self.weather.late {
            true => self.random.below(3_000) as Time,
            false => self.random.below(50) as Time,
        }
    }

    // What agents do.

    fn slots_on(&self, number: usize) -> u32 {
        self.batch.slots.get(&self.hosts[number].id).copied().unwrap_or(0)
    }

    fn lives(&self, number: usize, life: u64) -> bool {
        self.hosts[number].agent.is_some() && self.hosts[number].life == life
    }

    fn tick(&mut self, number: usize, life: u64) -> anyhow::Result<()> {
        let late = self.lateness();
        if !self.lives(number, life) {
            return Ok(());
        }
        if let Some(until) = self.frozen(number) {
            self.at(until, Happening::Tick(number, life));
            return Ok(());
        }
        let slots = self.slots_on(number);
        self.hosts[number].advance(self.now, slots, &mut self.random)?;
        self.hosts[number].tick(self.now);
        if let Some(time) = self.hosts[number].agent_time(self.now) {
            self.checks.leases(number, &self.hosts[number], time);
            self.checks.reported(number, &self.hosts[number], time.0);
        }
        self.checks.floors(&self.hosts[number]);
        self.send_reports(number);
        self.checks.queues(&self.hosts[number]);
        self.after(1_000 + late, Happening::Tick(number, life));
        Ok(())
    }

    fn frozen(&self, number: usize) -> Option<Time> {
        Some(self.hosts[number].frozen_until).filter(|until| *until > self.now)
    }

    fn guard(&mut self, number: usize, life: u64) -> anyhow::Result<()> {
        if !self.lives(number, life) {
            return Ok(());
        }
        let next = self.frozen(number).unwrap_or(self.now + GUARD);
        if self.frozen(number).is_none() {
            let slots = self.slots_on(number);
            self.hosts[number].advance(self.now, slots, &mut self.random)?;
            self.hosts[number].guard(self.now);
            self.checks.protected(&self.hosts[number]);
            let good = self.hosts[number].machine.sensors == Sensors::Good;
            self.good_looks[number] = if good { self.good_looks[number] + 1 } else { 0 };
            // Two samples of counters that were bad before have to pass.
            if self.good_looks[number] > 10 {
                self.checks.leaves(&self.hosts[number]);
            }
            self.hosts[number].machine.stepped();
        } else {
            // The step after it is of all the time in which it was frozen.
            self.good_looks[number] = 0;
        }
        self.at(next, Happening::Guard(number, life));
        Ok(())
    }

    fn send_reports(&mut self, number: usize) {
        loop {
            let Some(agent) = &self.hosts[number].agent else { return };
            let is_open = |id: &LinkId| self.links.get(id).is_some_and(|link| link.client == Client::Open);
            let Some(link) = agent.link.filter(is_open) else { return };
            let batch = agent.outbox.take();
            if batch.is_empty() {
                return;
            }
            for ack in batch.acks {
                self.send_up(link, Up::Ack(ack));
            }
            if !batch.events.is_empty() {
                let sent = self.links.get_mut(&link).map(|link| &mut link.events.0);
                let number = sent.map_or(0, |sent| std::mem::replace(sent, *sent + 1));
                self.send_up(link, Up::Events(number, batch.events));
            }
            if let Some(report) = batch.report {
                self.send_up(link, Up::Report(Box::new(report)));
            }
        }
    }

    // The aggregator.

    fn tell_shell(&mut self, arrival: Arrival) {
        self.tell_shell_quietly(arrival);
        self.pump();
    }

    fn tell_shell_quietly(&mut self, arrival: Arrival) {
        if self.aggregator.frozen_until > self.now {
            // Ticks are not made up for.
            if !matches!(arrival, Arrival::Tick) {
                self.at(self.aggregator.frozen_until, Happening::ToShell(arrival));
            }
            return;
        }
        self.aggregator.take(self.now, arrival);
        let waiting = self.aggregator.core.as_ref().map_or(0, |core| core.shell.unlogged());
        self.checks.unlogged(waiting);
    }

    /// Sends what the core loop wants sent.
    fn pump(&mut self) {
        if let Some(down) = self.midway.take() {
            self.after(down, Happening::StartAggregator);
            self.say(|| "the aggregator dies before it sends".to_owned());
            self.kill_aggregator();
            return;
        }
        let mut outgoing = Vec::new();
        let mut closed = Vec::new();
        for (id, link) in &mut self.links {
            let Server::Open(receiver) = &mut link.server else { continue };
            loop {
                match receiver.try_recv() {
                    Ok(message) => outgoing.push((*id, message)),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => {
                        closed.push(*id);
                        break;
                    }
                }
            }
        }
        for (id, message) in outgoing {
            self.note(&message);
            self.heed_hold(id, &message);
            self.send_down(id, Down::Message(Box::new(message)));
        }
        for id in closed {
            // Replaced by a newer connection, or let go.
            self.end_server(id);
        }
        let Some(core) = &mut self.aggregator.core else { return };
        let (mut actions, mut asked) = (Vec::new(), Vec::new());
        while let Ok(action) = core.actions.try_recv() {
            actions.push(action);
        }
        while let Ok((application, _)) = core.responses.try_recv() {
            asked.push(application);
        }
        for (_, action) in actions {
            match action {
                EngineAction::SetSlots(slots) => self.batch.slots = slots,
                EngineAction::Cancel => self.batch.slots.clear(),
            }
        }
        for application in asked {
            let (response, delay) = response(&self.hosts[1], &self.weather, &mut self.random);
            self.after(delay, Happening::ToShell(Arrival::Responded { application, response }));
        }
    }

    /// The batch system works while there is an aggregator to report to.
    fn work(&mut self) {
        if self.aggregator.core.is_none() {
            return;
        }
        if let Some(report) = self.batch.advance(&self.hosts, &self.weather, &mut self.random) {
            self.tell_shell(Arrival::Engine(report));
        }
    }

    /// A host that an operator holds is told to do nothing.
    fn heed_hold(&mut self, id: LinkId, message: &FromAggregator) {
        let FromAggregator::Command(command) = message else { return };
        let Some(host) = self.links.get(&id).map(|link| &self.hosts[link.host]) else { return };
        // A hold is until a time on the wall: with another wall it is another time.
        let held = host.held_until > self.now && self.aggregator.dial.offset == 0;
        let id = host.id.clone();
        let gives_back = matches!(command.desired, Desired::Stop | Desired::Release);
        self.checks.demand(!held || gives_back, || format!("{id} is held and told {:?}", command.desired));
    }

    /// Equal runs send equal messages.
    fn note(&mut self, message: &FromAggregator) {
        self.digest(&self.now.to_string());
        match message {
            FromAggregator::Command(command) => {
                self.digest(&format!("{} {:?}", command.version.number, command.desired));
            }
            FromAggregator::EventsThrough(through) => self.digest(&through.to_string()),
            FromAggregator::Refused(_)
            | FromAggregator::Welcome(_)
            | FromAggregator::StandsBy(_)
            | FromAggregator::TaskJob(_)
            | FromAggregator::Tasks(_)
            | FromAggregator::Certificate(_)
            | FromAggregator::CertificateRefused(_)
            | FromAggregator::Unknown { .. } => {}
        }
    }

    /// FNV-1a.
    fn digest(&mut self, text: &str) {
        for byte in text.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn ask(&mut self, request: Request) -> Option<Response> {
        if self.aggregator.frozen_until > self.now {
            return None;
        }
        let (answer, mut answered) = oneshot::channel();
        let operator = Operator { uid: 0, gid: 0, user: "root".to_owned(), pid: None, role: Role::Acting };
        self.tell_shell(Arrival::Api { operator, request, answer });
        answered.try_recv().ok()
    }

    /// An operator wants the job and the application there, and asks until they are.
    fn operator(&mut self) {
        if !self.batch.accepted && self.aggregator.frozen_until <= self.now {
            let spec = self.batch.spec.clone();
            let taken = self.aggregator.with(self.now, |shell| match shell.controller().job(&spec.id) {
                // It was stored, but the answer never came.
                Some(_) => true,
                None => shell.accept(spec).is_ok(),
            });
            self.pump();
            // Killed on the way back, it may or may not have it; the next time shows.
            self.batch.accepted = taken == Some(true) && self.aggregator.core.is_some();
        }
        if !self.applied {
            let response = self.ask(Request::Apply(Box::new(self.application.clone())));
            self.applied = matches!(response, Some(Response::Applied));
            if !self.applied {
                self.say(|| format!("the application is not applied: {response:?}"));
            }
        }
        self.after(2_000, Happening::Operator);
    }

    /// All is done when it is calm, everybody is connected and the job has ended.
    fn look_for_the_end(&mut self) {
        if self.now < CALM + 10_000 {
            return;
        }
        let Some(core) = &self.aggregator.core else { return };
        let controller = core.shell.controller();
        let phase = controller.job(&self.batch.spec.id).map(|status| status.phase.clone());
        let connected = self.hosts.iter().all(|host| controller.host_facts(&host.id).is_some_and(|(_, there)| there));
        let ended = phase.as_ref().is_some_and(JobPhase::is_final);
        if ended {
            let completed = phase == Some(JobPhase::Completed);
            self.checks.demand(completed, || format!("the job ended as {phase:?}"));
        }
        self.finished = ended && connected && self.applied;
    }
}
