//! Agents' events in version 2. In: an event. Out: a number and the event's fields behind their length; and back. An
//! event of an unknown number is kept as [`event::Event::UnknownEvent`], so that it is logged and acknowledged. Called
//! by `v2`.

use gleaner_types::event;

use super::absence::AbsenceOf;
use super::command::Version;
use super::variant::{Code, Variant};
use crate::message;
use crate::schema::{Block, List, NotInVersion, Rejected, Rejection, Signed, Travels, named, schema};
use crate::unknown::Unknowns;

schema! {
    /// Events of an agent.
    AgentEvents<'a> = message::AgentEvents { events: List<Block<'a, EventRecord<'a>>> }
}
schema! {
    EventRecord<'a> = event::EventRecord { at: u64, source: Variant<'a>, event: Variant<'a> }
}

impl<'a> Travels<'a, event::EventSource> for Variant<'a> {
    fn of(domain: &'a event::EventSource) -> Result<Self, NotInVersion> {
        Ok(match domain {
            event::EventSource::Aggregator => Self::new(1, &()),
            event::EventSource::Agent { host, incarnation, sequence } => {
                Self::new(2, &(host.as_str(), incarnation, sequence))
            }
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<event::EventSource, Rejected> {
        Ok(match self.code {
            1 => {
                self.content::<()>(unknown)?;
                event::EventSource::Aggregator
            }
            2 => {
                let (host, incarnation, sequence): (&str, u64, u64) = self.content(unknown)?;
                event::EventSource::Agent {
                    host: host.into_domain(unknown)?,
                    incarnation: named("incarnation", incarnation.into_domain(unknown))?,
                    sequence: named("sequence", sequence.into_domain(unknown))?,
                }
            }
            code => return Err(Rejected::unknown("source of an event", code)),
        })
    }
}

macro_rules! events {
    ($($code:literal = $variant:ident { $($field:ident: $type:ty),+ $(,)? })+) => {
        impl<'a> Travels<'a, event::Event> for Variant<'a> {
            fn of(domain: &'a event::Event) -> Result<Self, NotInVersion> {
                Ok(match domain {
                    $(event::Event::$variant { $($field),+ } => {
                        let content: ($($type,)+) = ($(Travels::of($field)?,)+);
                        Self::new($code, &content)
                    })+
                    event::Event::UnknownEvent { code } => Self::new(*code, &()),
                    _ => return Err(NotInVersion::new(2, "an event that no agent sends")),
                })
            }
            fn into_domain(self, unknown: &mut Unknowns) -> Result<event::Event, Rejected> {
                let known = (|| Ok(match self.code {
                    $($code => {
                        let ($($field,)+): ($($type,)+) = self.content(unknown)?;
                        event::Event::$variant {
                            $($field: named(stringify!($field), $field.into_domain(unknown))?),+
                        }
                    })+
                    code => return Err(Rejected::unknown("event", code)),
                }))();
                // Also one about a target that is not known.
                if let Err(rejected) = &known
                    && let Rejection::Unknown { what, code } = rejected.why()
                {
                    unknown.code(what, *code);
                    return Ok(event::Event::UnknownEvent { code: self.code });
                }
                known
            }
        }
    };
}

events! {
    1 = AgentStarted { version: &str, acting: bool, knobs_restored: u32 }
    2 = AgentStopped { knobs_restored: u32 }
    3 = WorkloadAppeared { workload: &str, kind: Code }
    4 = WorkloadVanished { workload: &str }
    5 = WorkloadRenamed { from: &str, to: &str }
    6 = SensorChanged { sensor: &str, absent: Option<AbsenceOf<'_>> }
    7 = GuardActed { foreground: f64, allowance: f64, shrinks: u64, freezes: u64, reaction_ms: f64 }
    8 = VolunteerCommandEnded { how: &str, again_in_s: f64 }
    9 = ForeignWrite { knob: &str, expected: &str, found: &str }
    10 = LeaseExpired { target: Variant<'_>, version: Version }
    11 = RestoreFailed { knob: &str, wanted: &str, error: &str }
    12 = ReportsDropped { count: u64 }
    13 = CertificateNotRenewed { reason: &str, expires: u64 }
    14 = EpochRaised { from: u64, to: u64 }
    15 = OldEpochRefused { epoch: u64, highest: u64 }
    20 = HarmOverBudget { workload: &str, mean_percent: Signed, low_percent: Signed, high_percent: Signed, budget_percent: f64 }
    21 = HarmWithinBudget { workload: &str, mean_percent: Signed, low_percent: Signed, high_percent: Signed, budget_percent: f64 }
    22 = ProtectionChanged { spare_cpus: u32, share_percent: f64, reason: &str }
    30 = KnobContested { knob: &str, first: &str, second: &str }
    31 = LedgerRefused { file: &str, reason: &str }
}
