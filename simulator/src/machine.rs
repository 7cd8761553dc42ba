//! One virtual host on a virtual clock: a foreground that replays a session, a guarded volunteer that runs tasks in the
//! residual, and the production controller. In: [`Scenario`]. Out: [`Simulated`]. There is no policy here.

use gleaner_planner::controller::{Controller, Input, Output, Settings};
use gleaner_planner::forecast::{ForecastSettings, ResidualForecaster};
use gleaner_planner::guard::{Guard, GuardSample, GuardSettings, Yields};
use gleaner_types::command::{Ack, Command, Desired, Limits, Outcome, Quota};
use gleaner_types::engine::EngineSpec;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{
    EngineAction, EngineEnd, EngineProgress, Goal, JobSpec, JobStatus, Prices, SlotSpec, Workers,
};
use gleaner_types::report::HostHarm;
use gleaner_types::report::{
    CgroupMode, HostFacts, HostReport, Levers, MachineSample, Reading, Reason, VolunteerKind, VolunteerSample,
    VolunteerState,
};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use crate::foreground::{Session, SessionTrace};

/// What to simulate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Seed of everything random.
    pub seed: u64,
    /// Name of the host.
    pub host: HostId,
    /// Name of the job.
    pub job: JobId,
    /// CPUs of the host.
    pub cores: u32,
    /// Foreground.
    pub session: Session,
    /// Tasks of the job.
    pub tasks: u32,
    /// CPU time of each, in seconds.
    pub task_cpu_s: f64,
    /// Goal.
    pub goal: Goal,
    /// Controller's times.
    pub settings: Settings,
    /// Longest simulated time, in seconds.
    pub limit_s: u32,
}

/// The result.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// The job at the end.
    pub job: Option<JobStatus>,
    /// Every output of the controller, with its time.
    pub outputs: Vec<(Timestamp, Output)>,
    /// CPU time of the foreground, in core-seconds; all it asked for, as it comes first.
    pub foreground_core_s: f64,
    /// Largest CPU of foreground and volunteer together in any second.
    pub busiest: CoreShare,
}

/// Steps of the guard in a second.
const GUARD_STEPS: u32 = 20;

struct Room<'s> {
    scenario: &'s Scenario,
    now: Timestamp,
    controller: Controller,
    trace: SessionTrace,
    forecaster: ResidualForecaster,
    guard: Guard,
    cap: CoreShare,
    slots: u32,
    done_cpu_s: f64,
    sequence: u64,
    outputs: Vec<(Timestamp, Output)>,
}

/// Runs a scenario to the job's end, or to its time limit.
#[must_use]
pub fn simulate(scenario: &Scenario) -> Simulated {
    let host = scenario.host.clone();
    let job = scenario.job.clone();
    let forecast = ForecastSettings { history_s: 120.0, lookahead_s: 30.0, ..ForecastSettings::default() };
    let mut room = Room {
        scenario,
        now: Timestamp(0),
        controller: Controller::new(scenario.settings.clone(), Timestamp(0)),
        trace: SessionTrace::new(scenario.session, scenario.seed),
        forecaster: ResidualForecaster::new(forecast),
        guard: Guard::new(GuardSettings::default()),
        cap: CoreShare::ZERO,
        slots: 0,
        done_cpu_s: 0.0,
        sequence: 0,
        outputs: Vec::new(),
    };
    // Its volunteer is in the idle class, as its facts say.
    room.guard.set_yields(Yields::Outright);
    room.tell(Input::HostJoined { host, incarnation: 0, facts: Box::new(facts(scenario.cores)) });
    room.tell(Input::JobSubmitted(Box::new(spec(scenario))));
    let (mut foreground_core_s, mut busiest) = (0.0, CoreShare::ZERO);
    for second in 1..=scenario.limit_s {
        room.now = Timestamp(u64::from(second) * 1_000);
        let (foreground, used) = room.second();
        foreground_core_s += foreground.cores();
        busiest = busiest.max(foreground + used);
        let progress = room.progress();
        if progress.tasks_done == scenario.tasks {
            let end = EngineEnd::Completed;
            room.tell(Input::EngineEnded { job: job.clone(), end, progress: Some(progress) });
            break;
        }
        room.tell(Input::Progress { job: job.clone(), progress });
        room.tell(Input::Tick);
    }
    let job = room.controller.job(&scenario.job).cloned();
    Simulated { job, outputs: room.outputs, foreground_core_s, busiest }
}

impl Room<'_> {
    fn tell(&mut self, input: Input) {
        for output in self.controller.handle(input, self.now) {
            match &output {
                Output::Command { command, .. } => self.command(command),
                Output::Engine { action: EngineAction::SetSlots(slots), .. } => {
                    self.slots = slots.get(&self.scenario.host).copied().unwrap_or(0);
                }
                Output::Engine { action: EngineAction::Cancel, .. } => self.slots = 0,
                Output::Event(_) | Output::AskResponseTime { .. } => {}
            }
            self.outputs.push((self.now, output));
        }
    }

    fn command(&mut self, command: &Command) {
        self.cap = match command.desired {
            Desired::Run { cap: Quota::AtMost(cap) } => cap,
            Desired::Run { cap: Quota::Unlimited } => CoreShare::from_cores(self.scenario.cores),
            _ => CoreShare::ZERO,
        };
        let quota = Quota::AtMost(self.cap);
        let limits = Limits { quota, ..Limits::NONE };
        let outcome = Outcome::Applied { limits, shortfalls: Vec::new() };
        let ack = Ack { target: command.target.clone(), version: command.version, outcome };
        // An acknowledgement never makes the controller send another command, so this ends.
        self.tell(Input::Acked { host: self.scenario.host.clone(), ack });
    }

    /// One second: the foreground gets what it asks, the volunteer what guard, cap and slots leave it. The kernel's idle
    /// class gives it no more than the foreground leaves, whatever the guard allows.
    fn second(&mut self) -> (CoreShare, CoreShare) {
        let capacity = CoreShare::from_cores(self.scenario.cores);
        let foreground = capacity * (self.trace.next().unwrap_or(0.0) / 100.0);
        let mut used = CoreShare::ZERO;
        for _ in 0..GUARD_STEPS {
            let verdict = self.guard.step(
                GuardSample { capacity, foreground, waits: None, volunteer_most: None },
                1.0 / f64::from(GUARD_STEPS),
            );
            let most = verdict.allowance.min(self.cap).min(CoreShare::from_cores(self.slots));
            used += most * (1.0 / f64::from(GUARD_STEPS));
        }
        let used = used.min(capacity.saturating_sub(foreground));
        self.done_cpu_s += used.cores();
        let memory = Some(Bytes::from_mib(4_096));
        self.forecaster.observe(capacity, Some(foreground), memory, 1.0);
        self.sequence += 1;
        let report = self.report(capacity, foreground, used);
        self.tell(Input::Report(Box::new(report)));
        (foreground, used)
    }

    fn progress(&self) -> EngineProgress {
        let total = f64::from(self.scenario.tasks);
        let done = (self.done_cpu_s / self.scenario.task_cpu_s).min(total);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the number of tasks")]
        let whole = done as u32;
        EngineProgress {
            fraction_done: Fraction::clamped(done / total),
            tasks_total: self.scenario.tasks,
            tasks_done: whole,
            tasks_failed: 0,
            tasks_retried: 0,
            tasks_running: self.slots.min(self.scenario.tasks - whole),
            task_deviation_s: None,
            mean_task_s: (whole > 0).then_some(self.scenario.task_cpu_s),
            slots_in_use: self.slots,
            workers: std::collections::BTreeMap::new(),
            unusable: std::collections::BTreeSet::new(),
            leases: Vec::new(),
            stages: gleaner_types::stages::Stages::NotTold,
        }
    }

    fn report(&self, capacity: CoreShare, foreground: CoreShare, used: CoreShare) -> HostReport {
        fn none<T>() -> Reading<T> {
            Reading::because(Reason::Simulated)
        }
        HostReport {
            host: self.scenario.host.clone(),
            sequence: self.sequence,
            at: self.now,
            interval_s: 1.0,
            machine: MachineSample {
                cpu_capacity: capacity,
                cpu_busy: Reading::Value(foreground + used),
                cpu_foreground: Reading::Value(foreground),
                cpu_steal: none(),
                load_1min: none(),
                cpu_pressure: none(),
                memory_pressure: none(),
                io_pressure: none(),
                memory_total: none(),
                memory_available: none(),
                disks: Vec::new(),
                network_receive: none(),
                network_transmit: none(),
                cache_occupancy: none(),
                memory_bandwidth: none(),
            },
            workloads: Vec::new(),
            volunteer: VolunteerSample {
                state: VolunteerState::Active,
                cpu: Reading::Value(used),
                allowance: Reading::Value(self.cap),
                memory: none(),
                processes: none(),
                guard_shrinks: 0,
                guard_freezes: 0,
            },
            residual: self.forecaster.forecast(),
            reports_dropped: 0,
            harm: HostHarm::because(Reason::Simulated),
        }
    }
}

fn facts(cores: u32) -> HostFacts {
    HostFacts {
        cpu_model: "simulated".into(),
        cores,
        memory: Bytes::from_mib(8_192),
        kernel: "simulated".into(),
        cgroups: CgroupMode::V2,
        offers: Vec::new(),
        levers: Levers {
            acting: true,
            volunteer: VolunteerKind::Cgroup { procs_files: Vec::new() },
            quota: true,
            weight: true,
            idle: true,
            freeze: true,
            weaknesses: Vec::new(),
        },
    }
}

fn spec(scenario: &Scenario) -> JobSpec {
    JobSpec {
        id: scenario.job.clone(),
        engine: EngineSpec::without_options("simulated"),
        workers: Workers::Slots(SlotSpec {
            host: scenario.host.clone(),
            tasks: scenario.tasks,
            dedicated_slots: 1,
            max_slots: None,
        }),
        goal: scenario.goal,
        prices: Prices::default(),
        memory_per_slot: Bytes(0),
        set_up_s: 0.0,
        power: None,
        user: None,
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::event::Event;
    use gleaner_types::job::JobPhase;

    use super::*;

    fn scenario(seed: u64, session: Session, goal: Goal) -> Scenario {
        Scenario {
            seed,
            host: HostId::new("simulated").unwrap(),
            job: JobId::new("job").unwrap(),
            cores: 8,
            session,
            tasks: 600,
            task_cpu_s: 4.0,
            goal,
            settings: Settings { evaluation_interval_s: 20.0, profile_period_s: 20.0, ..Settings::default() },
            limit_s: 4_000,
        }
    }

    #[test]
    fn deadlines_are_met_and_hugged_under_every_foreground() {
        let mut late = 0;
        for session in Session::ALL {
            for seed in 1..=10 {
                // 2,400 core-seconds; alone the dedicated slot needs 40 minutes, the whole host some five.
                let simulated = simulate(&scenario(seed, session, Goal::Deadline { within_s: 900.0 }));
                let job = simulated.job.unwrap();
                let elapsed_s = job.ended.unwrap().seconds_since(job.submitted);
                assert_eq!(job.phase, JobPhase::Completed, "{session:?}, seed {seed}");
                // A burst that takes the whole machine just before the deadline, for up to minutes with
                // `Development`, cannot be compensated on a single host.
                assert!(elapsed_s <= 927.0, "{session:?}, seed {seed}: {elapsed_s} s is late by more than 3 %");
                late += u32::from(elapsed_s > 900.0);
                assert!(elapsed_s > 600.0, "{session:?}, seed {seed}: {elapsed_s} s is far too early");
                assert!(simulated.busiest <= CoreShare::from_cores(8), "{session:?}, seed {seed}");
                let rejected = simulated
                    .outputs
                    .iter()
                    .find(|(_, output)| matches!(output, Output::Event(Event::PlanRejected { .. })));
                assert_eq!(rejected, None, "{session:?}, seed {seed}");
            }
        }
        assert!(late <= 3, "{late} of 40 runs were late");
    }

    #[test]
    fn the_cheapest_way_uses_volunteers_when_they_are_cheaper() {
        let simulated = simulate(&scenario(3, Session::Office, Goal::Cost { budget: None }));
        let job = simulated.job.unwrap();
        // Dedicated alone: 2,400 s at $1/h.
        assert!(job.cost.amount() < 2_400.0 / 3_600.0, "{}", job.cost);
        assert_eq!(job.phase, JobPhase::Completed);
    }

    #[test]
    fn a_simulation_is_repeatable() {
        let scenario = scenario(5, Session::Matlab, Goal::Deadline { within_s: 900.0 });
        assert_eq!(simulate(&scenario), simulate(&scenario));
    }
}
