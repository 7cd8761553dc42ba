//! The answer of `gleaner plan fill`. In: what was decided. Out: a document.

use gleaner_types::id::{HostId, JobId, ReservationId};
use serde::{Deserialize, Serialize};

use super::question::{FillPolicy, NoticeGiven};
use crate::reservations::Unknown;

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FillAnswer {
    /// [`VERSION`](crate::snapshot::VERSION).
    pub version: u32,
    /// The policy that was asked for.
    pub policy: FillPolicy,
    /// Nodes that should have notice now.
    pub wanted: usize,
    /// Why there is no forecast; then only leases that are known count.
    pub unknown: Option<Unknown>,
    /// The hosts that leases get now.
    pub leases: Vec<LeaseHosts>,
    /// Nodes whose jobs end, now or when a lease begins.
    pub preempt: Vec<Preempted>,
    /// Nodes that have notice from now on.
    pub notices: Vec<Noticed>,
    /// Hosts whose notice is taken back.
    pub withdrawn: Vec<HostId>,
    /// Jobs that start now.
    pub start: Vec<Started>,
}

/// Hosts of a lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseHosts {
    /// The lease.
    pub lease: ReservationId,
    /// Its hosts.
    pub hosts: Vec<HostId>,
    /// Nodes that it wants and does not get.
    pub missing: u32,
    /// How many of these are there, but named by leases that begin before this one ends.
    pub booked: u32,
}

/// A node whose jobs end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preempted {
    /// The host.
    pub host: HostId,
    /// The jobs, which wait again.
    pub jobs: Vec<JobId>,
    /// When they end.
    pub at_s: f64,
    /// How long before they had word of it; 0 is without notice.
    pub notice_s: f64,
    /// Core seconds of work that are lost.
    pub lost_core_s: f64,
    /// Why.
    pub reason: String,
}

/// A node with notice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Noticed {
    /// The host.
    pub host: HostId,
    /// The notice; give it back in the next question.
    pub notice: NoticeGiven,
    /// The node is held without jobs until then; give this back too.
    pub reserved: bool,
    /// Why.
    pub reason: String,
}

/// A job that starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The job.
    pub job: JobId,
    /// Where.
    pub host: HostId,
    /// Core seconds that are lost in expectation.
    pub waste_core_s: f64,
}
