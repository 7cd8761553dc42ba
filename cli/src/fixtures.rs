//! What several of this crate's tests show: a host and a job as an aggregator sees them. In: its report, or a name and a phase.
//! Out: its view. Called by tests.

use gleaner_planner::controller::HostView;
use gleaner_types::application::{ApplicationSpec, ApplicationStatus, Control, ResponseSource, ResponseTime};
use gleaner_types::engine::EngineSpec;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{EngineProgress, Goal, JobPhase, JobSpec, JobStatus, Prices, SlotSpec, Workers};
use gleaner_types::report::HostReport;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, Dollars, Fraction};

/// A connected host that acts, with a report and nothing else.
pub(crate) fn host_view(report: HostReport) -> HostView {
    HostView {
        host: report.host.clone(),
        connected: true,
        left: false,
        silent: false,
        revoked: false,
        incarnation: 1,
        facts: gleaner_test_support::report::facts(true),
        reported: None,
        report: Some(report),
        targets: Vec::new(),
        job: None,
        held_until: None,
        unreadable: None,
    }
}

/// A job on one machine, with three volunteers.
pub(crate) fn job(name: &str, phase: JobPhase) -> JobStatus {
    let slots = SlotSpec { host: HostId::new("host-1").unwrap(), tasks: 10, dedicated_slots: 1, max_slots: None };
    JobStatus {
        spec: JobSpec {
            id: JobId::new(name).unwrap(),
            engine: EngineSpec::without_options("local"),
            workers: Workers::Slots(slots),
            goal: Goal::Deadline { within_s: 600.0 },
            prices: Prices::default(),
            memory_per_slot: Bytes(0),
            set_up_s: 0.0,
            power: None,
            user: None,
        },
        phase,
        submitted: Timestamp(0),
        started: None,
        ended: None,
        progress: None,
        volunteers: 3,
        completion_estimate: None,
        deadline: Some(Timestamp(300_000)),
        cost: Dollars::ZERO,
        harvested_core_s: 0.0,
        idle_core_s: 0.0,
        harm: None,
        energy_wh: None,
        decisions: 0,
        share: None,
    }
}

/// How far a job of ten tasks is, of which some failed and the others are done.
pub(crate) fn progress(tasks_failed: u32) -> EngineProgress {
    EngineProgress {
        fraction_done: Fraction::clamped(1.0),
        tasks_total: 10,
        tasks_done: 10 - tasks_failed,
        tasks_failed,
        tasks_retried: 0,
        tasks_running: 0,
        mean_task_s: None,
        task_deviation_s: None,
        slots_in_use: 0,
        workers: std::collections::BTreeMap::new(),
        unusable: std::collections::BTreeSet::new(),
        leases: Vec::new(),
        stages: gleaner_types::stages::Stages::NotTold,
    }
}

/// An application that misses its target.
pub(crate) fn application() -> ApplicationStatus {
    ApplicationStatus {
        spec: ApplicationSpec {
            name: ApplicationId::new("shop").unwrap(),
            target_ms: 100.0,
            response_time: ResponseSource::Push,
            control: Control::Balance,
            tiers: Vec::new(),
        },
        response: Some((Timestamp(0), ResponseTime::Mean { mean_ms: 250.0 })),
        missed: 2,
        decision: None,
    }
}
