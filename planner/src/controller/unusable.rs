//! Why a host offers a volunteer nothing now.
//! In: what a host last reported. Out: a reason, for `explain` and for events. Called by the owners of hosts, jobs and
//! applications.

use gleaner_types::id::HostId;
use gleaner_types::report::Absence;

use super::held::HeldUntil;

/// A host that offers nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("an operator holds it until {until}; `gleaner host release {host}` gives it back")]
    Held { host: HostId, until: HeldUntil },
    #[error("{by} holds all hosts until {}; `gleaner host release --all` gives them back", all_until(.until))]
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

fn all_until(until: &HeldUntil) -> String {
    match until {
        HeldUntil::Time(at) => at.to_string(),
        HeldUntil::Released => "they are released".to_owned(),
    }
}

/// Applications with response-time targets ask for more CPU than a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("applications contend for its CPU")]
pub(super) struct Contended;
