//! Readings and why they are missing, in version 2. In: a reason. Out: a number and, where it has details, those; and
//! back. Called by `report` and `event`.

use std::borrow::Cow;

use gleaner_types::absence::{Absence, AbsenceKind, Reason};
use gleaner_types::report;
use serde::{Deserialize, Serialize};

use super::variant::{Code, Variant, codes};
use crate::scalar::{Input, Scalar};
use crate::schema::{AnyCount, NotInVersion, Raw, Rejected, Travels, schema};
use crate::unknown::Unknowns;

/// A reading.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a, T: Deserialize<'de>"))]
pub(crate) enum Reading<'a, T> {
    Value(T),
    Absent(AbsenceOf<'a>),
}

// Always inlined: a report has hundreds of readings, and each is handed over in registers rather than through memory.
impl<'a, D, S: Travels<'a, D>> Travels<'a, report::Reading<D>> for Reading<'a, S> {
    #[inline(always)]
    fn of(domain: &'a report::Reading<D>) -> Result<Self, NotInVersion> {
        Ok(match domain {
            report::Reading::Value(value) => Self::Value(S::of(value)?),
            report::Reading::Absent(absence) => Self::Absent(AbsenceOf::of(absence)?),
        })
    }
    #[inline(always)]
    fn into_domain(self, unknown: &mut Unknowns) -> Result<report::Reading<D>, Rejected> {
        Ok(match self {
            Self::Value(value) => report::Reading::Value(value.into_domain(unknown)?),
            Self::Absent(absence) => report::Reading::Absent(absence.into_domain(unknown)?),
        })
    }
    #[inline(always)]
    fn write(domain: &'a report::Reading<D>, into: &mut Vec<u8>) -> Result<(), NotInVersion> {
        match domain {
            report::Reading::Value(value) => {
                into.push(0);
                S::write(value, into)
            }
            report::Reading::Absent(absence) => {
                into.push(1);
                AbsenceOf::write(absence, into)
            }
        }
    }
    #[inline(always)]
    fn read(input: &mut Input<'a>, unknown: &mut Unknowns) -> Result<report::Reading<D>, Rejected> {
        Ok(match input.unsigned::<4>()? {
            0 => report::Reading::Value(S::read(input, unknown)?),
            1 => report::Reading::Absent(AbsenceOf::read(input, unknown)?),
            other => return Err(Rejected::invalid(format_args!("{other} is neither a value nor an absence"))),
        })
    }
}

schema! {
    /// A missing reading. The kind goes beside the reason, so that it is known even where the reason is not.
    AbsenceOf<'a> = Absence { kind: Code, reason: Variant<'a> }
}

codes! {
    AbsenceKind, "kind of absence" {
        1 = NotSupported, 2 = Denied, 3 = NotYet, 4 = Vanished, 5 = Malformed, 6 = WentBack, 7 = Disabled,
    }
}

macro_rules! reasons {
    (
        fixed { $($fixed:literal = $plain:ident),+ $(,)? }
        detailed { $($code:literal = $variant:ident { $($field:ident: $type:ty),+ $(,)? })+ }
    ) => {
        impl<'a> Travels<'a, Reason> for Variant<'a> {
            fn of(domain: &'a Reason) -> Result<Self, NotInVersion> {
                Ok(match domain {
                    $(Reason::$plain => Self::plain($fixed),)+
                    $(Reason::$variant { $($field),+ } => {
                        let content: ($($type,)+) = ($(Travels::of($field)?,)+);
                        Self::new($code, &content)
                    })+
                    Reason::Described(text) => Self::new(DESCRIBED, &text.as_str()),
                    Reason::Unknown(code) => Self::plain(*code),
                })
            }
            fn into_domain(self, unknown: &mut Unknowns) -> Result<Reason, Rejected> {
                Ok(match self.code {
                    $($fixed => {
                        if !self.content.0.is_empty() {
                            unknown.fields(self.content.0.len());
                        }
                        Reason::$plain
                    })+
                    $($code => {
                        let ($($field,)+): ($($type,)+) = self.content(unknown)?;
                        Reason::$variant { $($field: $field.into_domain(unknown)?),+ }
                    })+
                    DESCRIBED => Reason::Described(self.content::<&str>(unknown)?.into()),
                    code => {
                        unknown.code("reason of an absence", code);
                        Reason::Unknown(code)
                    }
                })
            }
            fn write(domain: &'a Reason, into: &mut Vec<u8>) -> Result<(), NotInVersion> {
                Self::of(domain)?.append(into);
                Ok(())
            }
            fn read(input: &mut Input<'a>, unknown: &mut Unknowns) -> Result<Reason, Rejected> {
                let variant = <Self as Scalar>::read(input)?;
                Travels::<Reason>::into_domain(variant, unknown)
            }
        }

        #[cfg(test)]
        const FIXED: &[(u16, Reason)] = &[$(($fixed, Reason::$plain)),+];
    };
}

/// The number of a reason in words.
const DESCRIBED: u16 = 100;

reasons! {
    fixed {
        1 = NeedsTwoSamples, 2 = NeedsTwoDiskSamples, 3 = NoCounters, 4 = CountersNotUsed, 5 = CountersWaiting,
        6 = CountersNeedCgroups, 7 = TooManyOpenFiles, 8 = ThreadEnded, 9 = ProcessEnded, 10 = NotByCgroups,
        11 = WaitNotByCgroups, 12 = NoBlkio, 13 = NoCgroupOfItsOwn, 14 = SystemCallsOnly, 15 = NoTap,
        16 = NoNetworkInterface, 17 = NoCacheMonitoring, 18 = NoVolunteer, 19 = NoGuest, 20 = VolunteerNotApart,
        21 = NotByHypervisor, 22 = NoVirtualDisk, 23 = NoVirtualInterface, 24 = MonitorSilent, 25 = DiskUnplugged,
        26 = NoMemorySample, 27 = NotTried, 28 = NoBandwidthControl, 29 = KernelTooOld, 30 = NoFreezer,
        31 = NoDiskWeights, 32 = NoGuests, 33 = NoControlDomain, 34 = NoXenHelper, 35 = PressureSwitchedOff,
        36 = NoPressure, 37 = ResctrlNotMounted, 38 = NoCacheMonitor, 39 = NoIoband, 40 = DeviceMapperDenied,
        41 = Simulated, 50 = PausesSwitchedOff, 51 = VolunteerNeverRan, 52 = VolunteerHeldByGuard, 53 = VolunteerNotHeld,
        54 = TooLittleActivity, 55 = OlderAgent, 56 = NoForegroundWorkload,
    }
    detailed {
        101 = CounterWentBack { before: AnyCount, now: AnyCount }
        102 = Unreadable { file: &str, errno: i32 }
        103 = Unexpected { what: &str, shown: &str }
        104 = MonitorFailed { socket: &str, error: &str }
        105 = HypervisorFailed { error: &str }
        106 = CountersDenied { paranoid: Option<i32> }
        107 = CountersRefused { errno: i32 }
        108 = TooManyWorkloads { left_out: u64 }
        109 = OverCapacity { used_percent: AnyCount, capacity_percent: AnyCount }
        110 = NoHierarchy { controller: &str }
        111 = NoController { controller: &str }
        112 = NotWritable { folder: &str, errno: Option<i32> }
        113 = QueueRefused { error: &str }
        114 = DeviceMapperFailed { error: &str }
        115 = MoreSamplesNeeded { taken: u64, needed: u64 }
        120 = MoreTrialsNeeded { taken: u32, needed: u32 }
        121 = TooManyThreads { most: u32 }
        130 = MemoryShort { available: AnyCount, floor: AnyCount }
        131 = DiskShort { folder: &str, available_mib: u32, floor_mib: u32 }
        132 = InodesShort { folder: &str, available: u32, floor: u32 }
    }
}

impl Variant<'_> {
    /// A variant without content.
    const fn plain(code: u16) -> Self {
        Self { code, content: Raw(Cow::Borrowed(&[])) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fixed_reason_has_a_number_of_its_own() {
        let mut known: Vec<&Reason> = FIXED.iter().map(|(_, reason)| reason).collect();
        for (reason, ..) in Reason::FIXED {
            let place = known.iter().position(|other| *other == reason);
            known.remove(place.expect("a number"));
        }
        assert!(known.is_empty());
        assert!(FIXED.windows(2).all(|two| two[0].0 < two[1].0));
    }
}
