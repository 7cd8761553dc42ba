//! The simulated process of the aggregator. In: arrivals and the time. Out: its real core loop, started, killed, frozen
//! and stopped, with its files on a disk that can fill up. Called by [`crate::world`].

use std::path::PathBuf;

use gleaner_aggregator::engine::{Engines, TaskLink, WorkerShape};
use gleaner_aggregator::enrolment::Enrolment;
use gleaner_aggregator::event_log::{EventLog, EventLogSettings};
use gleaner_aggregator::journal::{Journal, JournalSettings};
use gleaner_aggregator::shell::{Arrival, Audit, Parts, Shell};
use gleaner_aggregator::store::Store;
use gleaner_daemon::clock::ManualClock;
use gleaner_planner::controller::{Controller, DiskCapacities, Settings};
use gleaner_planner::pool::UserShares;
use gleaner_types::application::ResponseTime;
use gleaner_types::engine::EngineName;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::EngineAction;
use tokio::sync::mpsc;

use crate::disk::Disk;
use crate::engine::{self, SimulatedEngine};
use crate::faults::Time;
use crate::host::Dial;

/// The times it works by: those of the packaged config, some ten times faster.
pub const SETTINGS: Settings = Settings {
    evaluation_interval_s: 6.0,
    profile_period_s: 4.0,
    control_interval_s: 4.0,
    response_outage_s: 40.0,
    command_lease_s: 6.0,
    report_stale_after_s: 3.0,
    ended_jobs_kept: 20,
    users: UserShares::EQUAL,
    disks: DiskCapacities::NONE,
};

/// The core loop, while it runs.
#[derive(Debug)]
pub struct Core {
    /// It.
    pub shell: Shell,
    /// What sources answered.
    pub responses: mpsc::Receiver<(ApplicationId, ResponseTime)>,
    /// What the batch system is told.
    pub actions: mpsc::UnboundedReceiver<(JobId, EngineAction)>,
    hand: ManualClock,
    started: Time,
    offset: i64,
}

/// The aggregator.
#[derive(Debug)]
pub struct Aggregator {
    /// Its core loop, if it runs.
    pub core: Option<Core>,
    /// Its clock.
    pub dial: Dial,
    /// It gets no CPU until then.
    pub frozen_until: Time,
    /// Where its files are.
    pub disk: Disk,
    runtime: tokio::runtime::Runtime,
}

impl Aggregator {
    /// An aggregator that is not running.
    ///
    /// # Errors
    /// When no runtime can be made.
    pub fn new(disk: Disk, dial: Dial) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(Self { core: None, dial, frozen_until: 0, disk, runtime })
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.disk.folder().join(name)
    }

    /// Where its event log is.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.folder("events")
    }

    /// Where its journal is.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.folder("journal")
    }

    /// Starts it, as its daemon does.
    ///
    /// # Errors
    /// Why it ends at once, as on a full disk.
    pub fn start(&mut self, now: Time) -> anyhow::Result<()> {
        let hand = ManualClock::new(self.dial.shows(self.dial.offset, now, now));
        let clock = hand.clock();
        let store = Store::open(&self.folder("state.redb"))?;
        let mut controller = store.load()?.unwrap_or_else(|| Controller::new(SETTINGS, clock.now()));
        controller.set_settings(SETTINGS);
        let clock = clock.going_on_from(controller.latest());
        controller.set_epoch(clock.now().0.max(controller.epoch() + 1));
        let (engine_reports, _) = mpsc::channel(1);
        let (answers, responses) = mpsc::channel(1_024);
        let (sender, actions) = mpsc::unbounded_channel();
        let local_host = HostId::new("aggregator")?;
        let mut shell = Shell::new(Parts {
            clock,
            local_host: local_host.clone(),
            controller,
            journal: Journal::new(JournalSettings { folder: self.journal(), max_bytes: 1 << 20, files: 100 }),
            events: EventLog::open(EventLogSettings { folder: self.events(), max_bytes: 1 << 20, files: 100 }),
            store,
            engines: Engines::new(self.folder("jobs"), TaskLink::new(local_host, self.folder("jobs")), engine_reports)
                .with(EngineName::of(engine::NAME), WorkerShape::Hosts, Box::new(SimulatedEngine { actions: sender })),
            responses: answers,
            enrolment: Enrolment::closed(),
            audit: Audit::new(&self.folder("audit"), clock.now()),
        });
        let _entered = self.runtime.enter();
        shell.start();
        self.core = Some(Core { shell, responses, actions, hand, started: now, offset: self.dial.offset });
        Ok(())
    }

    /// Deals with one arrival, if it runs, and lets its sources answer.
    pub fn take(&mut self, now: Time, arrival: Arrival) {
        let Some(core) = &mut self.core else { return };
        core.hand.set(self.dial.shows(core.offset, core.started, now));
        let entered = self.runtime.enter();
        core.shell.take(arrival);
        drop(entered);
        self.let_tasks_run();
    }

    fn let_tasks_run(&self) {
        self.runtime.block_on(async {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Does something with the core loop, if it runs.
    pub fn with<T>(&mut self, now: Time, f: impl FnOnce(&mut Shell) -> T) -> Option<T> {
        let core = self.core.as_mut()?;
        core.hand.set(self.dial.shows(core.offset, core.started, now));
        let _entered = self.runtime.enter();
        Some(f(&mut core.shell))
    }

    /// Kills it: what it had in memory is gone, what it had written stays.
    pub fn kill(&mut self) {
        let entered = self.runtime.enter();
        self.core = None;
        drop(entered);
        self.let_tasks_run();
    }

    /// Stops it in an orderly way.
    pub fn stop(&mut self, now: Time) {
        let entered = self.runtime.enter();
        if let Some(core) = self.core.take() {
            core.hand.set(self.dial.shows(core.offset, core.started, now));
            core.shell.stop();
        }
        drop(entered);
        self.let_tasks_run();
    }
}
