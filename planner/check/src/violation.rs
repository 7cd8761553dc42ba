//! The rules that a plan can break, each with the numbers that show it.
//! Data only: the checker makes them, the controller's gate logs them and holds the output back.

use gleaner_types::command::{Desired, Target};
use gleaner_types::id::{HostId, JobId, WorkloadId};
use gleaner_types::report::Capability;
use gleaner_types::units::CoreShare;

/// A rule that a plan breaks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Violation {
    /// The host never joined.
    #[error("command for unknown host {0}")]
    UnknownHost(HostId),
    /// No agent would receive it.
    #[error("command for host {0}, whose agent is not connected")]
    NotConnected(HostId),
    /// What it sets would never be given back.
    #[error("command for host {0} without a lease")]
    NoLease(HostId),
    /// An operator wants the host left alone.
    #[error("command for host {0}, which an operator holds")]
    Held(HostId),
    /// The volunteer of a host that must not act.
    #[error("host {0} only observes, yet its volunteer should run")]
    VolunteerOfObserver(HostId),
    /// There is nothing to run.
    #[error("host {0} has no volunteer, yet it should run")]
    NoVolunteer(HostId),
    /// More than the host has.
    #[error("volunteer of host {host} capped at {cap}, over its {capacity_percent} %")]
    CapTooHigh {
        /// The host.
        host: HostId,
        /// The cap.
        cap: CoreShare,
        /// CPU of the host, in percent of one core.
        capacity_percent: f64,
    },
    /// A volunteer always has a cap.
    #[error("volunteer of host {0} would run without a cap")]
    NoCap(HostId),
    /// A limit on a host that must not act.
    #[error("host {host} only observes, yet `{workload}` should be limited")]
    LimitByObserver {
        /// The host.
        host: HostId,
        /// The workload.
        workload: WorkloadId,
    },
    /// The host cannot set the limit.
    #[error("host {host} does not offer {capability:?}, yet `{workload}` should be limited by it")]
    NotOffered {
        /// The host.
        host: HostId,
        /// The workload.
        workload: WorkloadId,
        /// What it would take.
        capability: Capability,
    },
    /// Only tiers of applications are limited.
    #[error("`{workload}` on host {host} is no tier of an application, yet it should be limited")]
    NoTier {
        /// The host.
        host: HostId,
        /// The workload.
        workload: WorkloadId,
    },
    /// The operator gave no bounds on the resource.
    #[error("{resource} of `{workload}` should be limited, which nobody asked for")]
    Unbounded {
        /// The resource.
        resource: &'static str,
        /// The workload.
        workload: WorkloadId,
    },
    /// A limit above the operator's ceiling.
    #[error("{resource} of `{workload}` would be {value:.1}, at most {ceiling:.1}")]
    OutOfBounds {
        /// The resource.
        resource: &'static str,
        /// The workload.
        workload: WorkloadId,
        /// The limit, in the unit of the bounds.
        value: f64,
        /// The operator's ceiling.
        ceiling: f64,
    },
    /// A limit below the operator's floor.
    #[error("{resource} of `{workload}` would be {value:.1}, at least {floor:.1}")]
    BelowFloor {
        /// The resource.
        resource: &'static str,
        /// The workload.
        workload: WorkloadId,
        /// The limit, in the unit of the bounds.
        value: f64,
        /// The operator's floor, or its part of the host where the floors there do not fit together.
        floor: f64,
    },
    /// A command that its target cannot carry out.
    #[error("{desired:?} makes no sense for {target:?} of host {host}")]
    Senseless {
        /// The host.
        host: HostId,
        /// The target.
        target: Target,
        /// What is asked of it.
        desired: Box<Desired>,
    },
    /// The job was never submitted.
    #[error("slots for unknown job {0}")]
    UnknownJob(JobId),
    /// A job of engine `local` on another machine than its own.
    #[error("job {job} may only run on {own}, not on {host}")]
    WrongMachine {
        /// The job.
        job: JobId,
        /// Its machine.
        own: HostId,
        /// The other one.
        host: HostId,
    },
    /// More slots than the job may have on its machine.
    #[error("job {job} would get {slots} slots of at most {most}")]
    TooManySlots {
        /// The job.
        job: JobId,
        /// Slots.
        slots: u32,
        /// Most it may have.
        most: u32,
    },
    /// Slots on a host that never joined.
    #[error("slots on unknown host {0}")]
    SlotsOnUnknownHost(HostId),
    /// Slots on a host without a volunteer to run them in.
    #[error("slots on host {0}, which offers no volunteer")]
    SlotsWithoutVolunteer(HostId),
    /// Slots on a host that an operator wants left alone.
    #[error("slots on host {0}, which an operator holds")]
    SlotsOnHeldHost(HostId),
    /// Slots on a host that another job has: jobs would share more hosts than there are.
    #[error("job {job} would get host {host}, which job {other} has")]
    HostOfAnother {
        /// The job.
        job: JobId,
        /// The host.
        host: HostId,
        /// The other job.
        other: JobId,
    },
    /// More slots on a host than the job may have there.
    #[error("{slots} slots on host {host}, at most {most}")]
    TooManySlotsOnHost {
        /// The host.
        host: HostId,
        /// Slots.
        slots: u32,
        /// Most the job may have there.
        most: u32,
    },
    /// A size that nobody considered.
    #[error("job {job} got size {size}, which was no candidate")]
    NoCandidate {
        /// The job.
        job: JobId,
        /// Its size.
        size: u32,
    },
    /// A size that misses the goal although another meets it.
    #[error("job {job} got size {size}, which misses its goal, though another meets it")]
    MissesGoal {
        /// The job.
        job: JobId,
        /// Its size.
        size: u32,
    },
    /// The model of the job's stages takes fewer than its rate.
    #[error("job {job} got size {size} by the model of its stages, though its rate takes {rate_size}")]
    FewerThanByRate {
        /// The job.
        job: JobId,
        /// Its size.
        size: u32,
        /// What the rate takes.
        rate_size: u32,
    },
    /// The hosts selected hold less than the size.
    #[error("job {job} got size {size} but only {slots} slots")]
    TooFewSlots {
        /// The job.
        job: JobId,
        /// Its size.
        size: u32,
        /// Slots of the selection.
        slots: u32,
    },
}
