//! The agent's loop. In: once a period the sensor's sample; in between, commands. Out: a forecast, checks of what is
//! applied, a report, events. One thread owns the sensor, the forecaster and the actor. Nothing here waits for the
//! network. Started by the daemon.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_daemon::clock::Clock;
use gleaner_daemon::output::say;
use gleaner_daemon::service::Watchdog;
use gleaner_planner::forecast::ResidualForecaster;
use gleaner_planner::reclaim::MemoryState;
use gleaner_types::command::{Command, Version};
use gleaner_types::event::Event;
use gleaner_types::id::WorkloadId;
use gleaner_types::report::{HostHarm, Protection};
use gleaner_types::report::{
    HostReport, Reading, Reason, VolunteerKind, VolunteerSample, VolunteerState, WorkloadSample,
};
use gleaner_types::units::Bytes;
use tracing::{debug, error};

use crate::act::Actor;
use crate::act::restore::RestoreReport;
use crate::config::Config;
use crate::forecast_record::{ForecastRecord, Resumed};
use crate::guard::{GuardStatus, GuardView, together};
pub use crate::harm::HarmByHand;
use crate::harm::{Circumstances, HarmMeter, Recalled};
use crate::hierarchies::Hierarchies;
use crate::kernel_file::read_short;
use crate::levers::catalogue::levers_of_all;
use crate::metrics::{Status, Tick};
use crate::online_cpus::{CPUS_ONLINE, cpus, cpus_of};
use crate::order::{Order, Orders};
use crate::outbox::{Outbox, OutboxLimits};
use crate::roots::Roots;
use crate::sense::run_queue::{self, RunQueues, VolunteerMark};
use crate::sense::{Observation, Sensor, VolunteerTrace};
use crate::trial_step::{TrialAnswer, TrialStep};

/// Longest pause between two checks of leases and signs of life, however rarely is sampled.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Everything the loop owns.
#[derive(Debug)]
pub struct HostLoop {
    config: Config,
    clock: Clock,
    /// `None` when only observing for a terminal.
    actor: Option<Actor>,
    sensor: Sensor,
    hierarchies: Hierarchies,
    forecaster: ResidualForecaster,
    /// Where the forecaster's history is stored for the next agent, if it is.
    forecast_record: Option<ForecastRecord>,
    outbox: Arc<Outbox>,
    /// The harm meter, or the reason why there is none, for the report.
    harm: Result<HarmMeter, Reason>,
    /// Holds the volunteer by its harm where the guard is stepped by hand.
    harm_by_hand: Option<HarmByHand>,
    /// For metrics; `None` when nobody can ask.
    status: Option<Arc<Status>>,
    /// What an operator tries now.
    trial: Option<Trial>,
    sequence: u64,
    drops_reported: u64,
}

/// A trial that an operator does beside the agent.
#[derive(Debug, Default)]
struct Trial {
    /// What it limited, by the version of its command.
    limited: Vec<(WorkloadId, Version)>,
    /// The workloads of the last sample.
    seen: Vec<WorkloadSample>,
}

impl HostLoop {
    /// Opens the sensors for what `actor` set up. `roots` are where the kernel's interfaces are.
    ///
    /// # Errors
    /// When a sensor the agent cannot do without (`/proc/stat`) is not readable.
    pub fn open(
        config: &Config,
        clock: Clock,
        hierarchies: &Hierarchies,
        mut actor: Option<Actor>,
        outbox: Arc<Outbox>,
        roots: Roots,
    ) -> anyhow::Result<Self> {
        let kind = actor.as_ref().map_or(&VolunteerKind::None, Actor::volunteer_kind);
        let groups = actor.as_ref().map_or(&[][..], Actor::volunteer_cgroups);
        let domains = actor.as_ref().and_then(Actor::volunteer_domains);
        let trace = match kind {
            _ if domains.is_some() => VolunteerTrace::Domains(domains.unwrap_or_default().to_vec()),
            VolunteerKind::None | VolunteerKind::Unknown(_) => VolunteerTrace::None,
            VolunteerKind::Cgroup { .. } => VolunteerTrace::Cgroup(config.volunteer_cgroup.clone().into()),
            VolunteerKind::ProcessGroups { registry } => VolunteerTrace::ProcessGroups { registry: registry.into() },
            VolunteerKind::Guest { .. } | VolunteerKind::Unit { .. } => {
                let mount = hierarchies.of("cpu").map(|(mount, _)| mount);
                let below = mount.zip(groups.first()).and_then(|(mount, group)| group.strip_prefix(mount).ok());
                below.map_or(VolunteerTrace::None, |path| VolunteerTrace::Cgroup(path.to_owned()))
            }
        };
        let mark = VolunteerMark {
            groups: groups.to_vec(),
            registry: match kind {
                VolunteerKind::ProcessGroups { registry } => Some(registry.into()),
                _ => None,
            },
        };
        let count_work = if config.counters { run_queue::by_hardware } else { run_queue::unused };
        let queues = RunQueues::new(&roots.proc, hierarchies, mark).counting(count_work);
        let online = roots.sys.join(CPUS_ONLINE);
        let sensor = Sensor::open(config.sense_settings(roots), hierarchies, trace, groups)?;
        let harm = start_harm_meter(config, actor.as_mut(), queues, clock.now().0);
        let stepped = actor.as_ref().and_then(Actor::guard_view).filter(GuardView::is_stepped_by_hand);
        let harm_by_hand = stepped
            .filter(|_| config.follow_harm)
            .map(|guard| HarmByHand::new(config.harm_settings(), guard, cpus_of(&online)));
        let forecaster = ResidualForecaster::new(config.forecast_settings());
        let (config, hierarchies, status) = (config.clone(), hierarchies.clone(), None);
        Ok(Self {
            config,
            clock,
            actor,
            sensor,
            hierarchies,
            forecaster,
            forecast_record: None,
            outbox,
            harm,
            harm_by_hand,
            status,
            trial: None,
            sequence: 0,
            drops_reported: 0,
        })
    }

    /// Goes on with the forecast of the agent before this one, and stores its history for the next.
    #[must_use]
    pub fn remembering(mut self) -> Self {
        let resumed = Resumed::open(&self.config.state_dir, &self.config.host, self.config.forecast_settings());
        (self.forecaster, self.forecast_record) = (resumed.forecaster, resumed.record);
        let now = self.clock.now();
        resumed.warning.into_iter().for_each(|event| self.outbox.event(now, event));
        self
    }

    /// Leaves what metrics need here, once a period.
    #[must_use]
    pub fn telling(mut self, status: Option<Arc<Status>>) -> Self {
        self.status = status;
        self
    }

    /// Runs until a stop is requested, or until nobody is left to give orders; then restores the host.
    /// `each_turn` is called once a period, and at least once a second, while the volunteer is guarded.
    pub fn run(mut self, orders: &Orders, mut each_turn: impl FnMut()) -> RestoreReport {
        let mut next = Instant::now();
        let mut watchdog = Watchdog::of_this_process();
        let mut watched = next;
        loop {
            // A loop that hangs, or a guard that is gone, is for systemd or the keeper to end: that restores the host.
            let works = self.actor.as_ref().is_none_or(Actor::is_guarded);
            if works {
                watchdog.works();
            }
            let mut each_turn = || {
                if works {
                    each_turn()
                }
            };
            let now = Instant::now();
            if now >= next {
                // A late tick is skipped, never made up for: rates use the true interval.
                next = (next + self.config.sample_period).max(now);
                self.tick(now);
                if let Some(status) = &self.status {
                    status.superseded(orders.superseded());
                }
                each_turn();
                watched = now;
            } else if now.duration_since(watched) >= WATCH_PERIOD {
                self.tick_actor();
                each_turn();
                watched = now;
            }
            let wait = next.min(watched + WATCH_PERIOD).saturating_duration_since(Instant::now());
            match orders.next(watchdog.pause().map_or(wait, |pause| pause.min(wait))) {
                Some(Order::Command(command)) => self.command(&command),
                Some(Order::Reload(config)) => self.reload(&config),
                Some(Order::Trial(order)) => {
                    let answer = self.trial_step(&order.step);
                    // Its connection may have ended meanwhile; the end of the trial follows then.
                    _ = order.answer.send(answer);
                }
                Some(Order::Stop) => return self.stop(),
                None => {}
            }
        }
    }

    /// Carries out a command and queues the answer.
    pub fn command(&mut self, command: &Command) {
        let Some(actor) = &mut self.actor else { return };
        let ack = actor.apply(command, self.clock.now());
        debug!(?command, ?ack, "command");
        self.outbox.ack(ack);
    }

    /// One step of a trial beside this agent.
    fn trial_step(&mut self, step: &TrialStep) -> TrialAnswer {
        let trial = self.trial.get_or_insert_default();
        let (workload, outcome) = match step {
            TrialStep::Look { workload } => (Some(workload), None),
            TrialStep::Limit { workload, limits } => {
                let outcome = self.actor.as_mut().map(|actor| {
                    let version = trial.limited.iter().find(|(id, _)| id == workload).map(|(_, version)| *version);
                    let (given, outcome) = actor.try_limits(workload, *limits, version, self.clock.now());
                    if version.is_none() {
                        tracing::info!(%workload, ?limits, ?outcome, "an operator tries limits");
                        trial.limited.extend(given.map(|version| (workload.clone(), version)));
                    }
                    outcome
                });
                (Some(workload), outcome)
            }
            TrialStep::End => {
                let ended = self.trial.take().unwrap_or_default();
                for (workload, version) in ended.limited {
                    tracing::info!(%workload, "the trial is over");
                    self.actor.iter_mut().for_each(|actor| actor.end_trial(&workload, version));
                }
                (None, None)
            }
        };
        let seen = self.trial.as_ref().map_or(&[][..], |trial| &trial.seen);
        let sample = seen.iter().find(|sample| Some(&sample.id) == workload).cloned();
        let others = if sample.is_some() { Vec::new() } else { seen.iter().map(|sample| sample.id.clone()).collect() };
        TrialAnswer { sequence: self.sequence, sample, others, unknown: self.sensor.domains_unknown(), outcome }
    }

    fn reload(&mut self, new: &Config) {
        self.config.take_over(new);
        self.forecaster.set_settings(self.config.forecast_settings());
        self.sensor.set_scan_period(self.config.scan_period_s);
        if let Ok(meter) = &self.harm {
            meter.set_settings(self.config.harm_settings());
        }
        if let Some(actor) = &mut self.actor {
            actor.set_settings(&self.config.act_settings());
        }
    }

    /// One sampling period: samples at `instant`, checks what is applied, queues a report.
    pub fn tick(&mut self, instant: Instant) {
        let report = self.sample(instant);
        self.outbox.report(report);
        if let Some(record) = &mut self.forecast_record {
            record.save_when_due(&self.forecaster, self.config.forecast_settings(), instant);
        }
    }

    /// One step of a guard that has no thread of its own.
    pub fn step_guard(&mut self, now: Instant) {
        if let Some(actor) = &mut self.actor {
            actor.step_guard(now);
        }
    }

    /// What holds the volunteer by its harm, where `guard.follow_harm` is set and the guard has no thread of its own.
    #[must_use]
    pub const fn harm_by_hand(&self) -> Option<&HarmByHand> {
        self.harm_by_hand.as_ref()
    }

    /// The same to change.
    pub const fn harm_by_hand_mut(&mut self) -> Option<&mut HarmByHand> {
        self.harm_by_hand.as_mut()
    }

    /// What acts, if anything does.
    #[must_use]
    pub const fn actor(&self) -> Option<&Actor> {
        self.actor.as_ref()
    }

    fn sample(&mut self, instant: Instant) -> HostReport {
        let now = self.clock.now();
        let began = Instant::now();
        if let Some(domains) = self.actor.as_ref().and_then(Actor::volunteer_domains) {
            self.sensor.set_volunteer_domains(domains);
        }
        let observation = self.sensor.sample(instant);
        if let Some(status) = &self.status {
            status.sampled(began.elapsed());
        }
        if let Some(actor) = &mut self.actor {
            actor.set_memory(memory_states(&observation));
        }
        self.tick_actor();
        if let Some(actor) = &mut self.actor {
            let news = self.sensor.facts_have_news();
            if self.config.act && (news || observation.changes.iter().any(is_of_a_workload)) {
                let facts = self.sensor.foreground();
                actor.set_workloads(levers_of_all(&facts, &self.hierarchies, self.config.foreground_ioband.as_deref()));
            }
        }
        if let Ok(meter) = &self.harm
            && (self.sequence == 0 || observation.changes.iter().any(is_of_a_workload))
        {
            meter.set_sources(self.sensor.queue_sources());
        }
        let dropped = self.outbox.reports_dropped();
        if dropped > self.drops_reported {
            self.outbox.event(now, Event::ReportsDropped { count: dropped - self.drops_reported });
            self.drops_reported = dropped;
        }
        if let Some(names) = self.sensor.guest_names() {
            self.outbox.guests(names);
        }
        let report = self.assemble(observation, dropped);
        if let Some(status) = &self.status {
            status.ticked(Tick::of(&report, self.actor.as_ref()));
        }
        report
    }

    /// Ends leases that are over, and the like.
    fn tick_actor(&mut self) {
        let now = self.clock.now();
        for event in self.harm_events() {
            self.outbox.event(now, event);
        }
        for event in self.actor.iter_mut().flat_map(|actor| actor.tick(now)) {
            if let (Some(status), Event::RestoreFailed { .. }) = (&self.status, &event) {
                status.restore_failed(1);
            }
            self.outbox.event(now, event);
        }
        if let Ok(meter) = &self.harm
            && self.has_lost_cpus()
        {
            meter.check_holder();
        }
    }

    fn harm_events(&mut self) -> Vec<Event> {
        match (&self.harm, &mut self.harm_by_hand) {
            (Ok(meter), _) => meter.take_events(),
            (Err(_), Some(by_hand)) => by_hand.take_events(),
            (Err(_), None) => Vec::new(),
        }
    }

    /// CPUs are to be kept free of the volunteer and are not, which the harm meter is about to see.
    fn has_lost_cpus(&self) -> bool {
        self.actor.as_ref().and_then(Actor::guard_view).is_some_and(|guard| guard.has_lost_cpus())
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
        if let Some(trial) = &mut self.trial {
            trial.seen.clone_from(&observation.workloads);
        }
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
                    Some(GuardStatus { held: Some(reason), .. }) => Reading::because(reason.clone()),
                    Some(guard) => Reading::Value(guard.allowance),
                    None => Reading::because(Reason::NoVolunteer),
                },
                memory: observation.volunteer_memory,
                processes: observation.volunteer_processes,
                guard_shrinks: guard.as_ref().map_or(0, |guard| guard.shrinks),
                guard_freezes: guard.as_ref().map_or(0, |guard| guard.freezes),
            },
            residual: self.forecaster.forecast(),
            reports_dropped,
            harm: self.harm_beside(guard),
        }
    }

    /// The harm, with what the guard itself tells of how it holds the volunteer.
    fn harm_beside(&self, guard: Option<GuardStatus>) -> HostHarm {
        let mut harm = self.harm();
        if let Some(guard) = guard {
            harm.scheduling_points = guard.scheduling_points;
            harm.protection = together(harm.protection, guard.idle_buffer);
        }
        harm
    }

    fn harm(&self) -> HostHarm {
        match &self.harm {
            Ok(meter) => {
                let mut harm = meter.harm();
                if self.has_lost_cpus() {
                    harm.protection = harm.protection.map(without_lost_cpus);
                }
                harm
            }
            Err(reason) => {
                let by_hand = self.harm_by_hand.as_ref().map(HarmByHand::harm);
                by_hand.unwrap_or_else(|| HostHarm::because(reason.clone()))
            }
        }
    }

    /// Restores the host, as an orderly stop does.
    #[must_use]
    pub fn stop(mut self) -> RestoreReport {
        // First of all: it holds the volunteer.
        self.harm = Err(Reason::NoVolunteer);
        self.harm_by_hand = None;
        let Some(mut actor) = self.actor.take() else {
            self.store_forecast();
            return RestoreReport::default();
        };
        let report = actor.restore_all();
        for failure in &report.failed {
            error!(knob = %failure.knob, wanted = %failure.wanted, error = %failure.error, "not restored");
        }
        let now = self.clock.now();
        for event in actor.tick(now).into_iter().chain(report.events()) {
            self.outbox.event(now, event);
        }
        self.outbox.event(now, Event::AgentStopped { knobs_restored: report.restored });
        // Last, as it waits for the disk.
        self.store_forecast();
        report
    }

    fn store_forecast(&mut self) {
        if let Some(record) = self.forecast_record.take() {
            record.finish(&self.forecaster, self.config.forecast_settings());
        }
    }
}

/// The harm meter of a volunteer that is guarded by a thread; otherwise why there is none.
fn start_harm_meter(
    config: &Config,
    actor: Option<&mut Actor>,
    queues: RunQueues,
    seed: u64,
) -> Result<HarmMeter, Reason> {
    let actor = actor.ok_or(Reason::NoVolunteer)?;
    if actor.guard_status().is_none() {
        return Err(Reason::NoVolunteer);
    }
    let held = actor.take_held_volunteer().ok_or(Reason::Simulated)?;
    let recalled = recall(config, actor.volunteer_kind());
    HarmMeter::start(config.harm_settings(), Box::new(held), queues, seed, recalled).map_err(|error| {
        error!(error = %error, "harm is not measured: its thread cannot be started");
        Reason::Described(format!("the meter's thread cannot be started: {error}").into())
    })
}

/// What an earlier agent learnt of this volunteer's harm in this boot.
fn recall(config: &Config, volunteer: &VolunteerKind) -> Recalled {
    let boot_id = match read_short(Path::new("/proc/sys/kernel/random/boot_id")) {
        Ok(text) => text.trim().to_owned(),
        Err(error) => {
            tracing::warn!(%error, "the boot cannot be told, so what is learnt of the volunteer's harm is not stored");
            return Recalled::default();
        }
    };
    let circumstances = Circumstances {
        boot_id,
        cpus: cpus(),
        volunteer: format!("{volunteer:?}"),
        budgets: Circumstances::text_of(&config.harm_settings().budgets),
        scheduling_points: config.scheduling_points,
    };
    Recalled::open(&config.state_dir, circumstances)
}

/// What is in force where the CPUs to be kept free are not.
fn without_lost_cpus(chosen: Protection) -> Protection {
    let Protection { spare_cpus, share_percent, reason } = chosen;
    match spare_cpus {
        0 => Protection { spare_cpus, share_percent, reason },
        _ => Protection {
            spare_cpus: 0,
            share_percent: 100.0,
            reason: "all that the guard's law allows, as its CPUs cannot be set any more; a share follows".to_owned(),
        },
    }
}

/// Memory of each workload; its pressure is the machine's where the kernel does not give the workload's own.
pub(crate) fn memory_states(observation: &Observation) -> BTreeMap<WorkloadId, MemoryState> {
    let of_machine = observation.machine.memory_pressure.value().copied();
    let state = |workload: &WorkloadSample| {
        let pressure = workload.memory_pressure.value().copied().or(of_machine);
        let used = observation.charged.get(&workload.id).or(workload.memory.value());
        Some((workload.id.clone(), MemoryState { used: *used?, pressure }))
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
    let clock = Clock::start();
    let hierarchies = Hierarchies::of_this_machine();
    let outbox = Arc::new(Outbox::new(OutboxLimits { reports: 1, events: 1_024 }, config.host.clone(), clock.now().0));
    let mut host = HostLoop::open(config, clock, &hierarchies, None, Arc::clone(&outbox), Roots::default())?;
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        let report = host.sample(Instant::now());
        // There is no aggregator to take them.
        outbox.forget_events();
        say(serde_json::to_string(&report)?)?;
        printed += 1;
        std::thread::sleep(config.sample_period);
    }
    Ok(())
}
