//! The agent's own loop: once a period sample, predict, check what is applied, report; in between, commands
//! as they come. One thread owns the sensor, the forecaster and the actor; nothing here waits for the network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use gleaner_common::clock::Clock;
use gleaner_common::command::Command;
use gleaner_common::event::Event;
use gleaner_common::id::WorkloadId;
use gleaner_common::report::{
    AbsenceKind, HostReport, Reading, VolunteerKind, VolunteerSample, VolunteerState, WorkloadSample,
};
use gleaner_common::units::Bytes;
use gleaner_planner::forecast::ResidualForecaster;
use gleaner_planner::reclaim::MemoryState;
use tracing::{debug, error};

use crate::act::Actor;
use crate::act::restore::RestoreReport;
use crate::config::Config;
use crate::hierarchies::Hierarchies;
use crate::link::Outbox;
use crate::sense::{Observation, Roots, Sensor, VolunteerTrace};

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
    /// `None` when only observing for a terminal.
    actor: Option<Actor>,
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
    pub fn open(
        config: &Config,
        clock: Clock,
        hierarchies: &Hierarchies,
        actor: Option<Actor>,
        outbox: Arc<Outbox>,
    ) -> anyhow::Result<Self> {
        let kind = actor.as_ref().map_or(&VolunteerKind::None, Actor::volunteer_kind);
        let groups = actor.as_ref().map_or(&[][..], Actor::volunteer_cgroups);
        let trace = match kind {
            VolunteerKind::None => VolunteerTrace::None,
            VolunteerKind::Cgroup { .. } => VolunteerTrace::Cgroup(config.volunteer_cgroup.clone().into()),
            VolunteerKind::ProcessGroups { registry } => VolunteerTrace::ProcessGroups { registry: registry.into() },
            VolunteerKind::Guest { .. } | VolunteerKind::Unit { .. } => {
                let mount = hierarchies.of("cpu").map(|(mount, _)| mount);
                let below = mount.zip(groups.first()).and_then(|(mount, group)| group.strip_prefix(mount).ok());
                below.map_or(VolunteerTrace::None, |path| VolunteerTrace::Cgroup(path.to_owned()))
            }
        };
        let sensor = Sensor::open(config.sense_settings(Roots::default()), hierarchies, trace, groups)?;
        let forecaster = ResidualForecaster::new(config.forecast_settings());
        Ok(Self { config: config.clone(), clock, actor, sensor, forecaster, outbox, sequence: 0, drops_told: 0 })
    }

    /// Runs until told to stop, or until nobody is left to give orders; then restores the host.
    /// `each_tick` is called once a period.
    pub fn run(mut self, orders: &mpsc::Receiver<Order>, mut each_tick: impl FnMut()) -> RestoreReport {
        let mut next = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next {
                // A late tick is skipped, never made up for: rates use the true interval.
                next = (next + self.config.sample_period).max(now);
                let report = self.tick();
                self.outbox.report(report);
                each_tick();
            }
            match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Order::Command(command)) => self.command(&command),
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return self.stop(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn command(&mut self, command: &Command) {
        let Some(actor) = &mut self.actor else { return };
        let ack = actor.apply(command, self.clock.now());
        debug!(?command, ?ack, "command");
        self.outbox.ack(ack);
    }

    fn tick(&mut self) -> HostReport {
        let now = self.clock.now();
        let observation = self.sensor.sample(Instant::now());
        if let Some(actor) = &mut self.actor {
            actor.set_memory(memory_states(&observation));
            for event in actor.tick(now) {
                self.outbox.event(now, event);
            }
            let told_anew = self.sensor.guests_told_anew();
            if self.config.act && (told_anew || observation.changes.iter().any(is_of_a_workload)) {
                actor.set_workloads(self.sensor.workload_knobs());
            }
        }
        let dropped = self.outbox.reports_dropped();
        if dropped > self.drops_told {
            self.outbox.event(now, Event::ReportsDropped { count: dropped - self.drops_told });
            self.drops_told = dropped;
        }
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
        let guard = self.actor.as_ref().and_then(Actor::guard_status);
        self.sequence += 1;
        HostReport {
            host: self.config.host.clone(),
            sequence: self.sequence,
            at: now,
            interval_s: observation.interval_s,
            machine,
            workloads: observation.workloads,
            volunteer: VolunteerSample {
                state: guard.as_ref().map_or(VolunteerState::Latent, |guard| guard.state),
                cpu: observation.volunteer_cpu,
                allowance: match &guard {
                    Some(guard) => Reading::Value(guard.allowance),
                    None => Reading::absent(AbsenceKind::NotSupported, "the host has no volunteer"),
                },
                memory: observation.volunteer_memory,
                processes: observation.volunteer_processes,
                guard_shrinks: guard.as_ref().map_or(0, |guard| guard.shrinks),
                guard_freezes: guard.as_ref().map_or(0, |guard| guard.freezes),
            },
            residual: self.forecaster.forecast(),
            reports_dropped,
        }
    }

    fn stop(mut self) -> RestoreReport {
        let Some(mut actor) = self.actor.take() else { return RestoreReport::default() };
        let report = actor.restore_all();
        for failure in &report.failed {
            error!(knob = %failure.knob, wanted = %failure.wanted, error = %failure.error, "not restored");
        }
        let now = self.clock.now();
        for event in actor.tick(now).into_iter().chain(report.events()) {
            self.outbox.event(now, event);
        }
        self.outbox.event(now, Event::AgentStopped { knobs_restored: report.restored });
        report
    }
}

/// Memory of each workload; its pressure is the machine's where the kernel does not tell the workload's own.
pub(crate) fn memory_states(observation: &Observation) -> BTreeMap<WorkloadId, MemoryState> {
    let of_machine = observation.machine.memory_pressure.value().copied();
    let state = |workload: &WorkloadSample| {
        let pressure = workload.memory_pressure.value().copied().or(of_machine);
        Some((workload.id.clone(), MemoryState { used: *workload.memory.value()?, pressure }))
    };
    observation.workloads.iter().filter_map(state).collect()
}

/// What a workload's limits may be set on may have changed.
fn is_of_a_workload(event: &Event) -> bool {
    matches!(event, Event::WorkloadAppeared { .. } | Event::WorkloadVanished { .. } | Event::WorkloadRenamed { .. })
}

/// Prints reports without acting and without an aggregator.
///
/// # Errors
/// When a sensor cannot be opened or standard output is closed.
pub fn observe(config: &Config, count: Option<u64>) -> anyhow::Result<()> {
    use std::io::Write;
    let clock = Clock::start();
    let hierarchies = Hierarchies::of_this_machine();
    let outbox =
        Arc::new(Outbox::new(crate::link::OutboxLimits { reports: 1, events: 1 }, config.host.clone(), clock.now().0));
    let mut host = HostLoop::open(config, clock, &hierarchies, None, outbox)?;
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        let report = host.tick();
        writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(&report)?)?;
        printed += 1;
        std::thread::sleep(config.sample_period);
    }
    Ok(())
}
