//! The agent's own loop: once a period sample, predict, check what is applied, report; in between, commands
//! as they come. One thread owns the sensor, the forecaster and the actor; nothing here waits for the network.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use gleaner_common::clock::Clock;
use gleaner_common::command::Command;
use gleaner_common::event::Event;
use gleaner_common::report::{Bounded, HostReport, Reading, VolunteerSample};
use gleaner_common::units::Bytes;
use gleaner_planner::forecast::ResidualForecaster;
use tracing::{debug, error, warn};

use crate::act::{Actor, RestoreReport};
use crate::config::Config;
use crate::hierarchies::Hierarchies;
use crate::keeper::Keeper;
use crate::link::Outbox;
use crate::sense::{Observation, Roots, Sensor};

/// What others ask of the loop.
#[derive(Debug)]
pub enum Order {
    /// A command of the aggregator.
    Command(Command),
    /// Restore the host and end.
    Stop,
}

/// Everything the loop owns.
#[derive(Debug)]
pub struct HostLoop {
    config: Config,
    clock: Clock,
    actor: Actor,
    sensor: Sensor,
    forecaster: ResidualForecaster,
    outbox: Arc<Outbox>,
    sequence: u64,
    drops_told: u64,
}

impl HostLoop {
    /// Opens the sensors for what `actor` set up.
    ///
    /// # Errors
    /// When a sensor the agent cannot do without (`/proc/stat`) is not readable.
    pub fn open(config: &Config, clock: Clock, actor: Actor, outbox: Arc<Outbox>) -> anyhow::Result<Self> {
        let sensor = Sensor::open(config.sense_settings(Roots::default()), actor.volunteer_trace())?;
        let forecaster = ResidualForecaster::new(config.forecast_settings());
        Ok(Self {
            config: config.clone(),
            clock,
            actor,
            sensor,
            forecaster,
            outbox,
            sequence: 0,
            drops_told: 0,
        })
    }

    /// Runs until told to stop, or until nobody is left to give orders; then restores the host.
    pub fn run(mut self, orders: &mpsc::Receiver<Order>, mut keeper: Option<Keeper>) -> RestoreReport {
        let mut next = Instant::now();
        loop {
            match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Order::Command(command)) => self.command(&command),
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // A late tick is skipped, never made up for: rates use the true interval.
                    next = (next + self.config.sample_period).max(Instant::now());
                    let report = self.tick();
                    self.outbox.report(report);
                    if let Some(keeper) = &mut keeper {
                        if let Err(error) = keeper.ensure_alive() {
                            warn!(%error, "the keeper is gone and cannot be started again");
                        }
                    }
                }
            }
        }
        self.stop(keeper)
    }

    fn command(&mut self, command: &Command) {
        let ack = self.actor.apply(command, self.clock.now());
        debug!(?command, ?ack, "command");
        self.outbox.ack(ack);
    }

    fn tick(&mut self) -> HostReport {
        let now = self.clock.now();
        let observation = self.sensor.sample(Instant::now());
        for event in self.actor.tick(now) {
            self.outbox.event(now, event);
        }
        let dropped = self.outbox.reports_dropped();
        if dropped > self.drops_told {
            self.outbox.event(now, Event::ReportsDropped { count: dropped - self.drops_told });
            self.drops_told = dropped;
        }
        self.actor.set_workloads(self.sensor.workload_handles());
        self.assemble(observation, dropped)
    }

    fn assemble(&mut self, observation: Observation, reports_dropped: u64) -> HostReport {
        let now = self.clock.now();
        for event in observation.changes {
            self.outbox.event(now, event);
        }
        let machine = observation.machine;
        // Memory the volunteer holds would be free for it to use, so it counts as available.
        let memory = machine.memory_available.value().map(|available| {
            Bytes(available.0.saturating_add(observation.volunteer_memory.value().map_or(0, |held| held.0)))
        });
        let foreground = machine.cpu_foreground.value().copied();
        if observation.interval_s > 0.0 {
            self.forecaster.observe(machine.cpu_capacity, foreground, memory, observation.interval_s);
        }
        let guard = self.actor.volunteer_status();
        self.sequence += 1;
        HostReport {
            host: self.config.host.clone(),
            sequence: self.sequence,
            at: now,
            interval_s: observation.interval_s,
            machine,
            workloads: observation.workloads,
            volunteer: VolunteerSample {
                state: guard.state,
                cpu: observation.volunteer_cpu,
                allowance: guard.allowance,
                memory: observation.volunteer_memory,
                processes: observation.volunteer_processes,
                guard_shrinks: guard.shrinks,
                guard_freezes: guard.freezes,
            },
            residual: self.forecaster.forecast(),
            reports_dropped,
        }
    }

    fn stop(mut self, keeper: Option<Keeper>) -> RestoreReport {
        let report = self.actor.restore_all();
        for failure in &report.failed {
            error!(knob = %failure.knob, wanted = %failure.wanted, error = %failure.error, "not restored");
            self.outbox.event(self.clock.now(), failure.clone().into_event());
        }
        self.outbox.event(self.clock.now(), Event::AgentStopped { knobs_restored: report.knobs_restored });
        if let Some(keeper) = keeper {
            keeper.dismiss();
        }
        report
    }
}

/// Prints reports without acting and without an aggregator.
///
/// # Errors
/// When a sensor cannot be opened or standard output is closed.
pub fn observe(config: &Config, count: Option<u64>) -> anyhow::Result<()> {
    use std::io::Write;
    let clock = Clock::start();
    let roots = Roots::default();
    let hierarchies = Hierarchies::detect(&roots.proc.join("self"), &roots.root);
    let actor = Actor::observer(&hierarchies);
    let outbox = Arc::new(Outbox::new(
        crate::link::OutboxLimits { reports: 1, events: 1 },
        config.host.clone(),
        clock.now().0,
    ));
    let mut host = HostLoop::open(config, clock, actor, outbox)?;
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        let report = host.tick();
        writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(&report)?)?;
        printed += 1;
        std::thread::sleep(config.sample_period);
    }
    Ok(())
}
