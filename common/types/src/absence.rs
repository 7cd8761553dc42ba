//! Why a reading is missing. In: a typed reason, from a sensor. Out: a number on the wire, and a text where a person
//! reads it. Made by the agent and the planner; reports carry it.
//!
//! As JSON, and wherever it is stored, an absence is its kind and that text, so that operators and older releases can
//! read it. Reading it back gives the typed reason where the text is one of the fixed ones.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::counted;
use crate::units::Bytes;

/// Kinds of absence. Callers act differently on them: what is not supported stays so, what is transient
/// comes back by itself, what was denied needs an operator, what is malformed needs a bug report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AbsenceKind {
    /// The kernel, hypervisor or machine does not offer it.
    NotSupported,
    /// It exists, but this process may not read it.
    Denied,
    /// It needs one more sample, or more history.
    NotYet,
    /// Its source disappeared between discovery and reading.
    Vanished,
    /// Its source holds something that cannot be understood.
    Malformed,
    /// The counter is lower than before: its source was reset or replaced.
    WentBack,
    /// The configuration switched it off.
    Disabled,
    /// A kind that only a newer release knows, by its number on the wire.
    Unknown(u16),
}

/// Text of bounded length within a reason: at most [`ReasonText::MAX`] bytes, the rest is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasonText(Box<Content>);

/// Behind a pointer of one word, so that an absence is no larger than it must be: a report has hundreds of readings.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Content(Box<str>);

impl ReasonText {
    /// Most bytes kept.
    pub const MAX: usize = 512;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.0
    }
}

impl From<&str> for ReasonText {
    fn from(text: &str) -> Self {
        let mut end = text.len().min(Self::MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(Box::new(Content(text.get(..end).unwrap_or_default().into())))
    }
}

impl From<String> for ReasonText {
    fn from(text: String) -> Self {
        if text.len() <= Self::MAX { Self(Box::new(Content(text.into_boxed_str()))) } else { Self::from(text.as_str()) }
    }
}

impl fmt::Display for ReasonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! reasons {
    ($($variant:ident: $kind:ident, $text:literal;)+) => {
        /// The reason of an absence.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Reason {
            $(#[doc = concat!("Not available, because ", $text, ".")] $variant,)+
            /// A counter is lower than it was.
            CounterWentBack {
                /// Before.
                before: u64,
                /// Now.
                now: u64,
            },
            /// A file of the kernel cannot be read.
            Unreadable {
                /// The file.
                file: ReasonText,
                /// The error's number.
                errno: i32,
            },
            /// A file of the kernel holds something else than it should.
            Unexpected {
                /// Which.
                what: ReasonText,
                /// The beginning of what it holds.
                shown: ReasonText,
            },
            /// A guest's monitor gives no answer.
            MonitorFailed {
                /// Its socket.
                socket: ReasonText,
                /// The error.
                error: ReasonText,
            },
            /// The hypervisor gives no answer.
            HypervisorFailed {
                /// The error.
                error: ReasonText,
            },
            /// The kernel does not let this process count.
            CountersDenied {
                /// `kernel.perf_event_paranoid`, where it could be read.
                paranoid: Option<i32>,
            },
            /// The kernel refuses a counter.
            CountersRefused {
                /// The error's number.
                errno: i32,
            },
            /// More workloads than are followed.
            TooManyWorkloads {
                /// Those left out.
                left_out: u64,
            },
            /// Workloads use more than the machine has.
            OverCapacity {
                /// Their CPU, in percent of one core.
                used_percent: u64,
                /// The machine's.
                capacity_percent: u64,
            },
            /// A hierarchy of version 1 cgroups is missing.
            NoHierarchy {
                /// Its controller.
                controller: ReasonText,
            },
            /// No hierarchy has a controller.
            NoController {
                /// The controller.
                controller: ReasonText,
            },
            /// A folder cannot be written.
            NotWritable {
                /// The folder.
                folder: ReasonText,
                /// The error's number, where there is one.
                errno: Option<i32>,
            },
            /// The kernel refuses a queue for network traffic.
            QueueRefused {
                /// The error.
                error: ReasonText,
            },
            /// The device mapper cannot be asked.
            DeviceMapperFailed {
                /// The error.
                error: ReasonText,
            },
            /// A forecast needs more samples.
            MoreSamplesNeeded {
                /// Taken.
                taken: u64,
                /// Needed.
                needed: u64,
            },
            /// Harm needs more trials.
            MoreTrialsNeeded {
                /// Taken.
                taken: u32,
                /// Needed.
                needed: u32,
            },
            /// A workload has more threads than are read.
            TooManyThreads {
                /// The most that are read in a trial.
                most: u32,
            },
            /// The volunteer is held, because memory is short.
            MemoryShort {
                /// Available on the host, in bytes.
                available: u64,
                /// What stays free.
                floor: u64,
            },
            /// The volunteer is held, because a file system that it can write is almost full.
            DiskShort {
                /// A folder on it.
                folder: ReasonText,
                /// Free.
                available_mib: u32,
                /// What stays free.
                floor_mib: u32,
            },
            /// The volunteer is held, because a file system that it can write has few inodes left.
            InodesShort {
                /// A folder on it.
                folder: ReasonText,
                /// Free ones.
                available: u32,
                /// What stays free.
                floor: u32,
            },
            /// In words, completing the sentence "not available, because …": from a peer or a record that has words only.
            Described(ReasonText),
            /// A reason that only a newer release knows, by its number on the wire.
            Unknown(u16),
        }

        impl Reason {
            /// Every reason without details, with its kind and its text.
            pub const FIXED: &[(Self, AbsenceKind, &'static str)] =
                &[$((Self::$variant, AbsenceKind::$kind, $text),)+];

            const fn fixed(&self) -> Option<(AbsenceKind, &'static str)> {
                match self {
                    $(Self::$variant => Some((AbsenceKind::$kind, $text)),)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    NeedsTwoSamples: NotYet, "it takes two samples";
    NeedsTwoDiskSamples: NotYet, "it takes two samples of every disk";
    NoCounters: NotSupported, "this machine has no such counters (usual inside virtual machines)";
    CountersNotUsed: Disabled, "the machine's counters are not in use";
    CountersWaiting: NotYet, "the counters have not had their turn on the machine yet";
    CountersNeedCgroups: NotSupported, "neither version 2 cgroups nor the perf_event hierarchy are mounted";
    TooManyOpenFiles: Denied, "the agent has too many open files; raise LimitNOFILE";
    ThreadEnded: Vanished, "its thread has ended";
    ProcessEnded: Vanished, "its process has ended";
    NotByCgroups: NotSupported, "cgroups do not account it";
    WaitNotByCgroups: NotSupported, "version 1 cgroups do not account the time spent waiting for a CPU";
    NoBlkio: NotSupported, "no blkio hierarchy is mounted";
    NoCgroupOfItsOwn: NotSupported, "the guest has no version 2 cgroup of its own";
    SystemCallsOnly: NotSupported, "the kernel counts a process's system calls, not its disk operations";
    NoTap: NotSupported, "the guest has no tap interface on its command line";
    NoNetworkInterface: NotSupported, "the machine has no network interface of its own";
    NoCacheMonitoring: NotSupported, "no resctrl file system with monitoring is mounted";
    NoVolunteer: NotSupported, "the host has no volunteer";
    NoGuest: NotSupported, "it is no guest";
    VolunteerNotApart: NotSupported, "the machine's own figure does not tell the volunteer apart; name cgroups to have it";
    NotByHypervisor: NotSupported, "the hypervisor does not tell it";
    NoVirtualDisk: NotSupported, "the domain has no virtual disk served from here";
    NoVirtualInterface: NotSupported, "the domain has no virtual interface served from here";
    MonitorSilent: NotYet, "its monitor has not answered yet";
    DiskUnplugged: WentBack, "its disks' counters went back: a disk was unplugged";
    NoMemorySample: NotYet, "no sample of available memory has been taken";
    NotTried: Disabled, "it is only tried where acting is switched on";
    NoBandwidthControl: NotSupported, "the kernel was built without CONFIG_CFS_BANDWIDTH";
    KernelTooOld: NotSupported, "the kernel is older than 5.15";
    NoFreezer: NotSupported, "no mounted cgroup hierarchy can freeze";
    NoDiskWeights: NotSupported, "no disk has io.cost enabled or uses the bfq scheduler";
    NoGuests: NotSupported, "there is no /dev/kvm and no QEMU guest runs";
    NoControlDomain: NotSupported, "this is no control domain (dom0) of Xen";
    NoXenHelper: Denied, "the helper gleaner-agent-xen is not installed";
    PressureSwitchedOff: Disabled, "the kernel was started with psi=0";
    NoPressure: NotSupported, "the kernel has no pressure stall information";
    ResctrlNotMounted: Disabled, "the CPU has it, but no resctrl file system is mounted";
    NoCacheMonitor: NotSupported, "the CPU does not monitor its cache (no cqm_occup_llc)";
    NoIoband: NotSupported, "the kernel's device-mapper has no target `ioband`";
    DeviceMapperDenied: Denied, "device-mapper is for root alone";
    Simulated: NotSupported, "the simulation has no such thing";
    PausesSwitchedOff: Disabled, "guard.pause_share is 0";
    VolunteerNeverRan: NotYet, "the volunteer was not running at the moments drawn to compare";
    VolunteerHeldByGuard: NotYet, "the guard held the volunteer frozen whenever it was to be compared";
    VolunteerNotHeld: NotSupported, "the volunteer went on running in the pauses";
    NoForegroundWorkload: NotYet, "there was no foreground workload to compare: no guest, and no cgroup that foreground.cgroups names";
    TooLittleActivity: NotYet, "the foreground used too little CPU to be compared";
    OlderAgent: NotSupported, "the agent is of a release that does not measure it";
}

impl Reason {
    /// The text, completing the sentence "not available, because …".
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        if let Some((_, text)) = self.fixed() {
            return Cow::Borrowed(text);
        }
        match self {
            Self::Described(text) => Cow::Borrowed(text.as_str()),
            other => Cow::Owned(other.composed()),
        }
    }

    fn composed(&self) -> String {
        let error = |errno: i32| std::io::Error::from_raw_os_error(errno);
        match self {
            Self::CounterWentBack { before, now } => format!("its counter went back from {before} to {now}"),
            Self::Unreadable { file, errno } => format!("{file} cannot be read: {}", error(*errno)),
            Self::Unexpected { what, shown } => format!("{what} holds {:?}", shown.as_str()),
            Self::MonitorFailed { socket, error } => format!("its monitor `{socket}`: {error}"),
            Self::HypervisorFailed { error } => format!("the hypervisor cannot be asked: {error}"),
            Self::CountersDenied { paranoid } => {
                let level = paranoid.map_or_else(|| "unreadable".to_owned(), |level| level.to_string());
                match paranoid {
                    // Debian's kernels have a level 3, which no other capability passes.
                    Some(3..) => format!(
                        "kernel.perf_event_paranoid is {level}, which takes CAP_SYS_ADMIN; set it to 2, and give the agent CAP_PERFMON as its unit does"
                    ),
                    _ => format!("kernel.perf_event_paranoid is {level}; give the agent CAP_PERFMON, as its unit does"),
                }
            }
            Self::CountersRefused { errno } => format!("perf_event_open fails: {}", error(*errno)),
            Self::TooManyWorkloads { left_out } => format!("{left_out} workloads are more than can be followed"),
            Self::OverCapacity { used_percent, capacity_percent } => {
                format!("together they use {used_percent} % of {capacity_percent} %: globs that overlap count twice")
            }
            Self::NoHierarchy { controller } => format!("no {controller} hierarchy is mounted"),
            Self::NoController { controller } => {
                format!("no mounted cgroup hierarchy has the controller `{controller}`")
            }
            Self::NotWritable { folder, errno: Some(errno) } => {
                format!("`{folder}` cannot be written: {}", error(*errno))
            }
            Self::NotWritable { folder, errno: None } => format!("`{folder}` cannot be written"),
            Self::QueueRefused { error } => format!("the kernel refuses the queue: {error}"),
            Self::DeviceMapperFailed { error } => format!("device-mapper cannot be asked: {error}"),
            Self::MoreSamplesNeeded { taken, needed } => {
                format!("the foreground's CPU was sampled {}; {needed} are needed", counted(taken, "time"))
            }
            Self::MoreTrialsNeeded { taken, needed } => {
                let were = if *taken == 1 { "was" } else { "were" };
                format!("{} of the volunteer {were} compared; {needed} are needed", counted(taken, "pause"))
            }
            Self::TooManyThreads { most } => format!("the foreground has more than {most} threads"),
            Self::MemoryShort { available, floor } => {
                format!(
                    "{} of memory are available on this host, and {} are kept free",
                    Bytes(*available),
                    Bytes(*floor)
                )
            }
            Self::DiskShort { folder, available_mib, floor_mib } => {
                let (available, floor) =
                    (Bytes::from_mib(u64::from(*available_mib)), Bytes::from_mib(u64::from(*floor_mib)));
                format!("{available} are free on the file system of `{folder}`, and {floor} are kept free")
            }
            Self::InodesShort { folder, available, floor } => {
                format!("{available} inodes are free on the file system of `{folder}`, and {floor} are kept free")
            }
            Self::Unknown(code) => format!("of a reason that only a newer release knows (number {code})"),
            fixed => fixed.fixed().map_or_else(String::new, |(_, text)| text.to_owned()),
        }
    }

    /// The usual kind of an absence for this reason; the code that makes the absence may give another.
    #[must_use]
    pub const fn kind(&self) -> AbsenceKind {
        if let Some((kind, _)) = self.fixed() {
            return kind;
        }
        match self {
            Self::CounterWentBack { .. } => AbsenceKind::WentBack,
            Self::Unexpected { .. } | Self::OverCapacity { .. } => AbsenceKind::Malformed,
            Self::CountersDenied { .. } | Self::NotWritable { .. } => AbsenceKind::Denied,
            Self::MoreSamplesNeeded { .. }
            | Self::MoreTrialsNeeded { .. }
            | Self::MemoryShort { .. }
            | Self::DiskShort { .. }
            | Self::InodesShort { .. } => AbsenceKind::NotYet,
            _ => AbsenceKind::NotSupported,
        }
    }
}

/// That a reading is missing, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("not available, because {}", .reason.text())]
#[serde(from = "InWords", into = "InWords")]
pub struct Absence {
    /// The kind, for programs.
    pub kind: AbsenceKind,
    /// The reason.
    pub reason: Reason,
}

impl Absence {
    /// An absence for this reason.
    #[must_use]
    pub const fn because(reason: Reason) -> Self {
        Self { kind: reason.kind(), reason }
    }

    /// An absence for a reason in words; the typed one where there is one with these words.
    pub fn described(kind: AbsenceKind, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let known = Reason::FIXED.iter().find(|(_, of_kind, text)| *of_kind == kind && *text == detail);
        let reason = known.map_or_else(|| Reason::Described(detail.into()), |(reason, ..)| reason.clone());
        Self { kind, reason }
    }

    /// The reason, completing the sentence "not available, because …".
    #[must_use]
    pub fn detail(&self) -> Cow<'_, str> {
        self.reason.text()
    }
}

impl From<Reason> for Absence {
    fn from(reason: Reason) -> Self {
        Self::because(reason)
    }
}

/// An absence as operators and records have it.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Absence")]
struct InWords {
    kind: AbsenceKind,
    detail: String,
}

impl From<Absence> for InWords {
    fn from(absence: Absence) -> Self {
        Self { kind: absence.kind, detail: absence.detail().into_owned() }
    }
}

impl From<InWords> for Absence {
    fn from(words: InWords) -> Self {
        Self::described(words.kind, words.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_is_json_of_a_kind_and_a_text() {
        let absence = Absence::because(Reason::NoCounters);
        let json = serde_json::json!({
            "kind": "not_supported",
            "detail": "this machine has no such counters (usual inside virtual machines)"
        });
        assert_eq!(serde_json::to_value(&absence).unwrap(), json);
        assert_eq!(serde_json::from_value::<Absence>(json).unwrap(), absence);
        let back = Absence::because(Reason::CounterWentBack { before: 9, now: 5 });
        assert_eq!(
            serde_json::to_string(&back).unwrap(),
            r#"{"kind":"went_back","detail":"its counter went back from 9 to 5"}"#
        );
        assert_eq!(back.to_string(), "not available, because its counter went back from 9 to 5");
    }

    #[test]
    fn fixed_reasons_are_found_again_by_their_words() {
        for (reason, kind, text) in Reason::FIXED {
            assert_eq!(Absence::described(*kind, *text).reason, *reason, "{text}");
            assert_eq!((reason.kind(), &*reason.text()), (*kind, *text));
        }
        // Words of another kind are no such reason.
        let other = Absence::described(AbsenceKind::Denied, "it takes two samples");
        assert_eq!(other.reason, Reason::Described("it takes two samples".into()));
    }

    #[test]
    fn an_error_reads_as_the_system_words_it() {
        let reason = Reason::Unreadable { file: "/proc/stat".into(), errno: 2 };
        assert_eq!(reason.text(), "/proc/stat cannot be read: No such file or directory (os error 2)");
    }

    #[test]
    fn an_absence_is_four_words() {
        assert_eq!(size_of::<Absence>(), 32);
    }

    #[test]
    fn a_text_is_bounded() {
        let text = ReasonText::from("é".repeat(ReasonText::MAX));
        assert_eq!(text.as_str(), "é".repeat(ReasonText::MAX / 2));
        assert_eq!(ReasonText::from("x".repeat(513)).as_str().len(), 512);
    }
}
