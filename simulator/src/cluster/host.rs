//! A host of the cluster and its foreground: users come, work in bursts, and leave. In: its class and seeds. Out: what its
//! agent would report. Called by the cluster.

use gleaner_planner::forecast::{ForecastSettings, ResidualForecaster};
use gleaner_types::id::HostId;
use gleaner_types::report::{
    AbsenceKind, CgroupMode, DiskSample, HostFacts, HostHarm, HostReport, Levers, MachineSample, Reading, Reason,
    VolunteerKind, VolunteerSample, VolunteerState,
};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare, Fraction};

use crate::foreground::{Session, SessionTrace};
use crate::random::Random;
use crate::scenario::{ClusterScenario, HostClass};

/// Foreground simulated before the job begins, in seconds: as long as the forecasts' history.
const WARM_UP_S: u32 = 600;
/// Shortest stay of a user, in seconds. Chosen.
const SHORTEST_STAY_S: f64 = 60.0;
/// How long an interactive host stays away after its user has left, as a part of how long they stay. Chosen.
const AWAY: f64 = 0.5;

/// The class name of hosts of one speed.
#[must_use]
pub fn class_name(speed: f64) -> String {
    format!("simulated, speed {speed}")
}

/// A host.
pub(super) struct SimulatedHost {
    pub(super) id: HostId,
    pub(super) class: HostClass,
    pub(super) facts: HostFacts,
    dedicated: bool,
    /// Foreground; none on dedicated hosts.
    trace: Option<(Session, SessionTrace)>,
    forecaster: ResidualForecaster,
    /// Foreground's memory.
    memory: Bytes,
    /// When it comes or goes next.
    pub(super) changes_at: f64,
    pub(super) present: bool,
    /// What the volunteer may use, by command.
    pub(super) cap: CoreShare,
    pub(super) foreground: CoreShare,
    pub(super) used: CoreShare,
    random: Random,
}

impl SimulatedHost {
    pub(super) fn new<S>(
        scenario: &ClusterScenario<S>,
        id: HostId,
        class: &HostClass,
        dedicated: bool,
        number: usize,
    ) -> Self {
        let sessions = &scenario.sessions;
        let session = (!dedicated && !sessions.is_empty()).then(|| sessions[(number - 1) % sessions.len()]);
        let part = number as u64 + if dedicated { 1 << 32 } else { 0 };
        let mut random = Random::part(scenario.foreground_seed, part);
        let trace = session.map(|session| (session, SessionTrace::new(session, random.seed())));
        let mut host = Self {
            id,
            class: class.clone(),
            facts: facts(class, !dedicated),
            dedicated,
            trace,
            forecaster: ResidualForecaster::new(ForecastSettings::default()),
            memory: Bytes(0),
            changes_at: f64::INFINITY,
            present: true,
            cap: if dedicated { CoreShare::from_cores(class.cores) } else { CoreShare::ZERO },
            foreground: CoreShare::ZERO,
            used: CoreShare::ZERO,
            random,
        };
        host.changes_at = host.next_stay_s(scenario.churn);
        host.draw_memory(scenario);
        for _ in 0..WARM_UP_S {
            host.next_foreground();
            host.observe();
        }
        host
    }

    /// How long it stays as it is now.
    pub(super) fn next_stay_s(&mut self, churn: f64) -> f64 {
        let Some((session, _)) = &self.trace else { return f64::INFINITY };
        if churn <= 0.0 {
            return f64::INFINITY;
        }
        let (mean, deviation) = session.statistics().reservation_s;
        let part = if self.present { 1.0 } else { AWAY };
        let (mean, deviation) = (mean / churn * part, deviation / churn * part);
        self.random.normal_at_least(mean, deviation, SHORTEST_STAY_S / churn)
    }

    fn draw_memory<S>(&mut self, scenario: &ClusterScenario<S>) {
        let (mean, deviation) = scenario.foreground_memory_mib;
        let mib = if self.dedicated { 0.0 } else { self.random.normal_at_least(mean, deviation, 128.0) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let mib = (mib as u64).min(self.class.memory_mib);
        self.memory = Bytes::from_mib(mib);
    }

    /// A new user with a new session.
    pub(super) fn arrive<S>(&mut self, scenario: &ClusterScenario<S>) {
        let seed = self.random.seed();
        if let Some((session, trace)) = &mut self.trace {
            *trace = SessionTrace::new(*session, seed);
        }
        self.draw_memory(scenario);
        self.forecaster = ResidualForecaster::new(ForecastSettings::default());
        for _ in 0..3 {
            self.next_foreground();
            self.observe();
        }
    }

    fn capacity(&self) -> CoreShare {
        CoreShare::from_cores(self.class.cores)
    }

    pub(super) fn next_foreground(&mut self) {
        let capacity = self.capacity();
        let percent = self.trace.as_mut().and_then(|(_, trace)| trace.next()).unwrap_or(0.0);
        self.foreground = capacity * (percent / 100.0);
    }

    /// CPU that tasks may use in this second, in cores: what the foreground leaves, within the cap.
    pub(super) fn allowed(&self) -> f64 {
        if self.present { self.capacity().saturating_sub(self.foreground).min(self.cap).cores() } else { 0.0 }
    }

    /// CPU that the foreground leaves in this second, in cores.
    pub(super) fn free_cores(&self) -> f64 {
        self.capacity().saturating_sub(self.foreground).cores()
    }

    /// A share of its CPU as a part of all.
    pub(super) fn part(&self, share: CoreShare) -> f64 {
        share.percent() / (100.0 * f64::from(self.class.cores))
    }

    pub(super) const fn is_dedicated(&self) -> bool {
        self.dedicated
    }

    pub(super) fn free_memory(&self) -> Bytes {
        Bytes::from_mib(self.class.memory_mib).saturating_sub(self.memory)
    }

    pub(super) fn observe(&mut self) {
        let (capacity, memory) = (self.capacity(), self.free_memory());
        self.forecaster.observe(capacity, Some(self.foreground), Some(memory), 1.0);
    }

    pub(super) fn report(&self, sequence: u64, at: Timestamp, disk: Option<f64>) -> HostReport {
        fn none<T>() -> Reading<T> {
            Reading::absent(AbsenceKind::NotSupported, "")
        }
        let disks = disk.map(|used| DiskSample {
            name: "disk".into(),
            read: none(),
            write: none(),
            operations: none(),
            utilisation: Reading::Value(Fraction::clamped(used)),
        });
        HostReport {
            host: self.id.clone(),
            sequence,
            at,
            interval_s: 1.0,
            machine: MachineSample {
                cpu_capacity: self.capacity(),
                cpu_busy: Reading::Value(self.foreground + self.used),
                cpu_foreground: Reading::Value(self.foreground),
                cpu_steal: none(),
                load_1min: none(),
                cpu_pressure: none(),
                memory_pressure: none(),
                io_pressure: none(),
                memory_total: none(),
                memory_available: none(),
                disks: disks.into_iter().collect(),
                network_receive: none(),
                network_transmit: none(),
                cache_occupancy: none(),
                memory_bandwidth: none(),
            },
            workloads: Vec::new(),
            volunteer: VolunteerSample {
                state: VolunteerState::Active,
                cpu: Reading::Value(self.used),
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

fn facts(class: &HostClass, acting: bool) -> HostFacts {
    HostFacts {
        cpu_model: class_name(class.speed),
        cores: class.cores,
        memory: Bytes::from_mib(class.memory_mib),
        kernel: "simulated".into(),
        cgroups: CgroupMode::V2,
        offers: Vec::new(),
        levers: Levers {
            acting,
            volunteer: VolunteerKind::Cgroup { procs_files: Vec::new() },
            quota: true,
            weight: true,
            idle: true,
            freeze: true,
            weaknesses: Vec::new(),
        },
    }
}
