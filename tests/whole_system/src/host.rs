//! A host. In: the time, and what [`crate::world`] does to it. Out: its machine, and the simulated process of its
//! agent, which can be started, killed, frozen and stopped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_agent::act::{ActSettings, Actor, VolunteerChoice, restore_state_dir_on};
use gleaner_agent::config::Config;
use gleaner_agent::host_loop::{HarmByHand, HostLoop};
use gleaner_agent::outbox::{Outbox, OutboxLimits};
use gleaner_agent::probe;
use gleaner_daemon::clock::ManualClock;
use gleaner_daemon::config::Source;
use gleaner_planner::protecting::Posture;
use gleaner_simulator::random::Random;
use gleaner_types::event::Event;
use gleaner_types::id::{HostId, WorkloadId};
use gleaner_types::report::{CgroupMode, HostFacts, VolunteerState};
use gleaner_types::time::Timestamp;
use gleaner_types::units::Bytes;

use crate::faults::Time;
use crate::harm::Harm;
use crate::machine::Machine;
use crate::network::LinkId;

/// Where virtual time begins on the wall, in milliseconds since the Unix epoch.
pub const BEGINNING: u64 = 1_700_000_000_000;
/// Least CPU an agent lets a foreground workload be limited to, in percent of a core.
pub const FLOOR_PERCENT: f64 = 30.0;
/// The same of memory, in bytes.
pub const MEMORY_FLOOR: u64 = 512 << 20;
/// What an agent keeps while it cannot send.
pub const LIMITS: OutboxLimits = OutboxLimits { reports: 20, events: 4_096 };

/// A machine's clock: how far it is off, and how much faster it runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dial {
    /// What the wall is off by, in milliseconds; a process sees it when it starts.
    pub offset: i64,
    /// Seconds it gains per second.
    pub drift: f64,
}

impl Dial {
    /// The monotonic clock at a time.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "minutes in milliseconds")]
    fn elapsed(self, now: Time) -> Time {
        (now as f64 * (1.0 + self.drift)) as Time
    }

    /// What a process's clock shows that started at `started`, when the wall was off by `offset`.
    #[must_use]
    pub fn shows(self, offset: i64, started: Time, now: Time) -> Timestamp {
        let passed = self.elapsed(now) - self.elapsed(started);
        Timestamp((BEGINNING + started + passed).saturating_add_signed(offset))
    }
}

/// The agent, while it runs.
#[derive(Debug)]
pub struct Agent {
    /// Its loop.
    pub host_loop: HostLoop,
    /// What waits to be sent.
    pub outbox: Arc<Outbox>,
    /// When it started, by its own clock.
    pub incarnation: u64,
    /// What it says of its host.
    pub facts: HostFacts,
    /// The connection it is on.
    pub link: Option<LinkId>,
    hand: ManualClock,
    started: Time,
    offset: i64,
}

/// What an agent that stopped leaves.
#[derive(Debug, Default)]
pub struct Stopped {
    /// The connection it was on.
    pub link: Option<LinkId>,
    /// What could not be restored.
    pub failed: Vec<String>,
    /// The posture at its guard.
    pub posture: Option<Posture>,
}

/// The host.
#[derive(Debug)]
pub struct Host {
    /// Its name.
    pub id: HostId,
    /// What it runs on.
    pub machine: Machine,
    /// Its agent, if it runs.
    pub agent: Option<Agent>,
    /// Its clock.
    pub dial: Dial,
    /// Its agent gets no CPU until then.
    pub frozen_until: Time,
    /// It is cut off until then.
    pub cut_until: Time,
    /// An operator holds it until then.
    pub held_until: Time,
    /// Its agent may act.
    pub acting: bool,
    /// Which life of its agent this is; unique in a world.
    pub life: u64,
    /// What its volunteer does to its foreground, if its agent follows the harm.
    pub harm: Option<Harm>,
    config: Config,
    state: PathBuf,
    base: Instant,
    advanced: Time,
}

impl Host {
    /// A host with its machine's files in `folder` and its agent's state on `disk`.
    ///
    /// # Errors
    /// When a file cannot be written or the config is wrong.
    pub fn new(
        number: usize,
        machine: Machine,
        acting: bool,
        disk: &Path,
        dial: Dial,
        harm: Option<Harm>,
    ) -> anyhow::Result<Self> {
        let id = HostId::new(format!("h{number}"))?;
        let state = disk.join(id.as_str());
        let text = format!(
            "state_dir = '{}'\n[host]\nname = '{id}'\n[act]\nenabled = {acting}\nrequire = []\n[foreground]\nqemu = false\n\
             cgroups = ['machine/*']\nfloor_percent = {FLOOR_PERCENT}\nmemory_floor_mib = {}\n[volunteer]\nkind = \
             'process-groups'\n[sense]\nmonitors = false\ncounters = false\nscan_period_s = 2\n[forecast]\nhistory_s = \
             20\nlookahead_s = 10\n[guard]\nfollow_harm = {}\npause_share = {}\n",
            state.display(),
            MEMORY_FLOOR >> 20,
            harm.is_some(),
            harm.as_ref().map_or(0.0, |harm| harm.pause_share),
        );
        let config = Config::from_source(&Source::from_text(Path::new("agent.toml"), &text))?;
        let (agent, base) = (None, Instant::now());
        Ok(Self {
            id,
            machine,
            agent,
            dial,
            frozen_until: 0,
            cut_until: 0,
            held_until: 0,
            acting,
            life: 0,
            harm,
            config,
            state,
            base,
            advanced: 0,
        })
    }

    /// A workload's name, as the agent gives it.
    ///
    /// # Errors
    /// Never for the names used here.
    pub fn workload(&self, number: usize) -> anyhow::Result<WorkloadId> {
        Ok(WorkloadId::new(format!("machine/vm{number}"))?)
    }

    /// The agent's monotonic clock at a time.
    #[must_use]
    pub fn instant(&self, now: Time) -> Instant {
        self.base + Duration::from_millis(self.dial.elapsed(now))
    }

    /// Starts the agent, as its daemon does.
    ///
    /// # Errors
    /// Why it ends at once, as on a full disk.
    pub fn start(&mut self, now: Time, random: &mut Random) -> anyhow::Result<()> {
        self.advance(now, 0, random)?;
        let hand = ManualClock::new(self.dial.shows(self.dial.offset, now, now));
        let (clock, roots, hierarchies) = (hand.clock(), self.machine.roots(), self.machine.hierarchies());
        let volunteer = if self.acting { VolunteerChoice::ProcessGroups } else { VolunteerChoice::None };
        let settings =
            ActSettings { roots: roots.clone(), guard_by_hand: true, volunteer, ..self.config.act_settings() };
        let (actor, leftovers) = Actor::open(settings, &hierarchies)?;
        let facts = HostFacts {
            cpu_model: "simulated".to_owned(),
            cores: self.machine.cores,
            memory: Bytes::from_mib(16 << 10),
            kernel: "6.1.0".to_owned(),
            cgroups: CgroupMode::V2,
            offers: probe::offers(&roots, &hierarchies, false),
            levers: actor.levers().clone(),
        };
        let incarnation = clock.now().0;
        let outbox = Arc::new(Outbox::new(LIMITS, self.id.clone(), incarnation));
        let started = Event::AgentStarted {
            version: "simulated".to_owned(),
            acting: self.acting,
            knobs_restored: leftovers.restored,
        };
        for event in std::iter::once(started).chain(leftovers.events()) {
            outbox.event(clock.now(), event);
        }
        let host_loop = HostLoop::open(&self.config, clock, &hierarchies, Some(actor), Arc::clone(&outbox), roots)?;
        let offset = self.dial.offset;
        self.agent = Some(Agent { host_loop, outbox, incarnation, facts, link: None, hand, started: now, offset });
        Ok(())
    }

    /// Moves the agent's clock to now and gives the agent.
    pub fn awake(&mut self, now: Time) -> Option<&mut Agent> {
        let agent = self.agent.as_mut()?;
        agent.hand.set(self.dial.shows(agent.offset, agent.started, now));
        Some(agent)
    }

    /// What the agent's clock shows.
    #[must_use]
    pub fn agent_time(&self, now: Time) -> Option<Timestamp> {
        self.agent.as_ref().map(|agent| self.dial.shows(agent.offset, agent.started, now))
    }

    /// What the volunteer may use now, in percent of a core.
    #[must_use]
    pub fn allowance(&self) -> f64 {
        let status = self.agent.as_ref().and_then(|agent| agent.host_loop.actor()).and_then(Actor::guard_status);
        status.filter(|guard| guard.state == VolunteerState::Active).map_or(0.0, |guard| guard.allowance.percent())
    }

    /// What holds the volunteer by its harm, if that is so.
    #[must_use]
    pub fn harm_by_hand(&self) -> Option<&HarmByHand> {
        self.agent.as_ref()?.host_loop.harm_by_hand()
    }

    /// The volunteer is not held latent.
    #[must_use]
    pub fn volunteer_runs(&self) -> bool {
        let status = self.agent.as_ref().and_then(|agent| agent.host_loop.actor()).and_then(Actor::guard_status);
        status.is_some_and(|guard| guard.state != VolunteerState::Latent)
    }

    /// The machine goes on to now; its volunteer has work for `slots` slots.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn advance(&mut self, now: Time, slots: u32, random: &mut Random) -> std::io::Result<()> {
        let seconds = (now - self.advanced) as f64 / 1e3;
        self.advanced = now;
        let volunteer = self.allowance().min(f64::from(slots) * 100.0);
        self.machine.advance(seconds, volunteer, random)
    }

    /// The agent's period: sample, look after what is applied, report.
    pub fn tick(&mut self, now: Time) {
        let instant = self.instant(now);
        if let Some(agent) = self.awake(now) {
            agent.host_loop.tick(instant);
        }
    }

    /// A step of the guard.
    pub fn guard(&mut self, now: Time) {
        let instant = self.instant(now);
        if let Some(agent) = self.awake(now) {
            agent.host_loop.step_guard(instant);
        }
    }

    /// Kills the agent: what it had in memory is gone, what it had changed stays.
    pub fn kill(&mut self) -> Option<LinkId> {
        self.agent.take()?.link
    }

    /// Stops the agent in an orderly way.
    pub fn stop(&mut self, now: Time) -> Stopped {
        self.awake(now);
        let Some(agent) = self.agent.take() else { return Stopped::default() };
        let guard = agent.host_loop.actor().and_then(Actor::guard_view);
        let failed = agent.host_loop.stop().failed;
        let failed = failed.into_iter().map(|failure| format!("{}: {}", failure.knob, failure.error)).collect();
        Stopped { link: agent.link, failed, posture: guard.map(|guard| guard.status().posture) }
    }

    /// What the keeper does when its agent is gone.
    ///
    /// # Errors
    /// When the agent's record cannot be read or written.
    pub fn keeper(&self) -> anyhow::Result<()> {
        let report = restore_state_dir_on(&self.state, &self.machine.roots().root)?;
        match report.failed.first() {
            None => Ok(()),
            Some(failure) => anyhow::bail!("{}: {}", failure.knob, failure.error),
        }
    }
}
