//! Why a host offers a volunteer nothing now.
//! In: what a host last reported. Out: a reason, for `explain` and for events. Called by the owners of hosts, jobs and
//! applications.

use gleaner_types::id::HostId;
use gleaner_types::report::Absence;

use super::held::HeldUntil;

/// A host that offers nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it is {}; `gleaner host release {host}` gives it back", .until.in_words(None))]
    Held { host: HostId, until: HeldUntil },
    #[error("it is {}, as all hosts are; `gleaner host release --all` gives them back", .until.in_words(Some(.by.as_str())))]
    AllHeld { by: String, until: HeldUntil },
    #[error("it has not joined")]
    NotJoined,
    #[error("its agent is not connected")]
    NotConnected,
    #[error("its agent only observes; start it with --act or set act.enabled")]
    ObservesOnly,
    #[error("it has no volunteer")]
    NoVolunteer,
    #[error("it has not reported lately")]
    Silent,
    #[error("its residual {resource} is {absence}")]
    Unknown { resource: &'static str, absence: Absence },
    #[error(transparent)]
    Contended(#[from] Contended),
}

/// Applications with response-time targets ask for more CPU than a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("applications contend for its CPU")]
pub(super) struct Contended;
