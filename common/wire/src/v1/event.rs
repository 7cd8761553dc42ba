//! Agents' events in version 1. In: domain types. Out: their schemas, and back. Only the variants that agents send are
//! here. The others keep their numbers, and are refused. Called by `v1`.

use gleaner_types::event;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::command::{Target, Version};
use super::enumeration::VERSION;
use super::report::{Absence, Workload};
use crate::message;
use crate::schema::{List, NotInVersion, Rejected, Travels, named, schema};
use crate::unknown::Unknowns;

schema! {
    /// Events of an agent.
    AgentEvents<'a> = message::AgentEvents { events: List<EventRecord<'a>> }
}
schema! {
    EventRecord<'a> = event::EventRecord { at: u64, source: Source<'a>, event: Event<'a> }
}

/// Who noticed an event.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Source<'a> {
    Aggregator,
    Agent {
        #[serde(borrow)]
        host: &'a str,
        incarnation: u64,
        sequence: u64,
    },
}

impl<'a> Travels<'a, event::EventSource> for Source<'a> {
    fn of(domain: &'a event::EventSource) -> Result<Self, NotInVersion> {
        Ok(match domain {
            event::EventSource::Aggregator => Self::Aggregator,
            event::EventSource::Agent { host, incarnation, sequence } => {
                Self::Agent { host: host.as_str(), incarnation: *incarnation, sequence: *sequence }
            }
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<event::EventSource, Rejected> {
        Ok(match self {
            Self::Aggregator => event::EventSource::Aggregator,
            Self::Agent { host, incarnation, sequence } => event::EventSource::Agent {
                host: host.into_domain(unknown)?,
                incarnation: named("incarnation", incarnation.into_domain(unknown))?,
                sequence: named("sequence", sequence.into_domain(unknown))?,
            },
        })
    }
}

/// The content of an event that no agent sends.
#[derive(Debug, Serialize)]
pub(crate) enum NoAgents {}

impl<'de> Deserialize<'de> for NoAgents {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("an event that no agent sends"))
    }
}

macro_rules! events {
    (
        before { $($before:ident),+ $(,)? }
        agents { $($variant:ident { $($field:ident: $type:ty),+ $(,)? })+ }
        between { $($between:ident),+ $(,)? }
        agents { $($late:ident { $($late_field:ident: $late_type:ty),+ $(,)? })+ }
        between { $($other:ident),+ $(,)? }
        agents { $($last:ident { $($last_field:ident: $last_type:ty),+ $(,)? })+ }
    ) => {
        /// What happened.
        #[derive(Debug, Serialize, Deserialize)]
        #[serde(bound(deserialize = "'de: 'a"))]
        #[expect(clippy::enum_variant_names, reason = "they are named as the domain's events")]
        pub(crate) enum Event<'a> {
            $($before(NoAgents),)+
            $($variant { $($field: $type),+ },)+
            $($between(NoAgents),)+
            $($late { $($late_field: $late_type),+ },)+
            $($other(NoAgents),)+
            $($last { $($last_field: $last_type),+ },)+
        }

        impl<'a> Travels<'a, event::Event> for Event<'a> {
            fn of(domain: &'a event::Event) -> Result<Self, NotInVersion> {
                Ok(match domain {
                    $(event::Event::$variant { $($field),+ } => Self::$variant { $($field: Travels::of($field)?),+ },)+
                    $(event::Event::$late { $($late_field),+ } => Self::$late { $($late_field: Travels::of($late_field)?),+ },)+
                    $(event::Event::$last { $($last_field),+ } => Self::$last { $($last_field: Travels::of($last_field)?),+ },)+
                    // What came later, by what is nearest to it.
                    event::Event::KnobContested { knob, first, second } => {
                        Self::ForeignWrite { knob, expected: first.as_str(), found: second.as_str() }
                    }
                    event::Event::LedgerRefused { file, reason } => {
                        Self::RestoreFailed { knob: file, wanted: "a record that can be used", error: reason }
                    }
                    _ => return Err(NotInVersion::new(VERSION, "an event that no agent sends")),
                })
            }
            fn into_domain(self, unknown: &mut Unknowns) -> Result<event::Event, Rejected> {
                Ok(match self {
                    $(Self::$variant { $($field),+ } => event::Event::$variant {
                        $($field: named(stringify!($field), $field.into_domain(unknown))?),+
                    },)+
                    $(Self::$late { $($late_field),+ } => event::Event::$late {
                        $($late_field: named(stringify!($late_field), $late_field.into_domain(unknown))?),+
                    },)+
                    $(Self::$last { $($last_field),+ } => event::Event::$last {
                        $($last_field: named(stringify!($last_field), $last_field.into_domain(unknown))?),+
                    },)+
                    $(Self::$before(never) => match never {},)+
                    $(Self::$between(never) => match never {},)+
                    $(Self::$other(never) => match never {},)+
                })
            }
        }
    };
}

events! {
    before {
        AggregatorStarted, AggregatorStopped, EventLogRecovered, PeerRefused, MessageRefused, HostJoined, HostLost,
        HostHeld, HostReleased, JobSubmitted, JobWaiting, JobProfiling, JobSized, GoalAtRisk, GoalBackInReach,
        JobEnded, ApplicationApplied, ApplicationRemoved, ResponseTimeChanged, SharesMoved, TargetMissed, TargetMet,
        TaskFailed, PlanRejected, CommandRefused, CommandShortfall,
    }
    agents {
        AgentStarted { version: &'a str, acting: bool, knobs_restored: u32 }
        AgentStopped { knobs_restored: u32 }
        WorkloadAppeared { workload: &'a str, kind: Workload }
        WorkloadVanished { workload: &'a str }
        WorkloadRenamed { from: &'a str, to: &'a str }
        SensorChanged { sensor: &'a str, absent: Option<Absence<'a>> }
        GuardActed { foreground: f64, allowance: f64, shrinks: u64, freezes: u64, reaction_ms: f64 }
        VolunteerCommandEnded { how: &'a str, again_in_s: f64 }
        ForeignWrite { knob: &'a str, expected: &'a str, found: &'a str }
        LeaseExpired { target: Target<'a>, version: Version }
        RestoreFailed { knob: &'a str, wanted: &'a str, error: &'a str }
        ReportsDropped { count: u64 }
    }
    between { HostInvited, InvitationWithdrawn, HostEnrolled, JoinRefused, CertificateRenewed }
    agents { CertificateNotRenewed { reason: &'a str, expires: u64 } }
    between { HostRevoked, CertificatesReloaded, OperatorRequest, CertificateExpiring }
    agents {
        EpochRaised { from: u64, to: u64 }
        OldEpochRefused { epoch: u64, highest: u64 }
    }
}
