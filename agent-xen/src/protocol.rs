//! The messages between the agent and this helper, as PROTOCOL.md documents them. In: one JSON line for each question.
//! Out: the question, checked; and the types that each answer is written from. `main` and `domains` call it; the other
//! modules use its types.

use std::io;

use serde::{Deserialize, Serialize};

/// Version of the messages.
pub(crate) const VERSION: u64 = 4;

/// A question.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Hello {
        version: u64,
    },
    Sample {
        /// Domains may be attached to cache monitoring.
        #[serde(default)]
        attach: bool,
    },
    Set(Set),
    State {
        uuid: String,
    },
    Placing {
        uuid: String,
        id: Option<u16>,
    },
    Watch {
        volunteers: Vec<Volunteer>,
        lease_ms: u64,
    },
    Look {},
    Memory {},
    Target {
        uuid: String,
    },
    Waits {},
    Cache {},
    Elsewhere {
        id: u16,
    },
}

/// A domain of the volunteer, while it has this number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Volunteer {
    pub(crate) uuid: String,
    pub(crate) id: u16,
}

/// Something to set of a domain; exactly one of it. With `id` only while the domain has that number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Set {
    pub(crate) uuid: String,
    pub(crate) id: Option<u16>,
    pub(crate) cap_percent: Option<u16>,
    pub(crate) weight: Option<u16>,
    pub(crate) memory_target_bytes: Option<u64>,
    pub(crate) memory_most_bytes: Option<u64>,
    pub(crate) paused: Option<bool>,
    pub(crate) affinity: Option<Vec<String>>,
}

/// What is to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting<'a> {
    Cap(u16),
    Weight(u16),
    MemoryTarget(u64),
    MemoryMost(u64),
    Paused(bool),
    /// A list of CPUs for each virtual CPU.
    Affinity(&'a [String]),
}

impl Set {
    pub(crate) fn setting(&self) -> Result<Setting<'_>, Failure> {
        let all = [
            self.cap_percent.map(Setting::Cap),
            self.weight.map(Setting::Weight),
            self.memory_target_bytes.map(Setting::MemoryTarget),
            self.memory_most_bytes.map(Setting::MemoryMost),
            self.paused.map(Setting::Paused),
            self.affinity.as_deref().map(Setting::Affinity),
        ];
        let mut asked = all.into_iter().flatten();
        match (asked.next(), asked.next()) {
            (Some(setting), None) => Ok(setting),
            _ => Err(Failure::malformed("a `set` must name exactly one setting".into())),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Hello(Hello),
    Sample { domains: Vec<Domain>, memory: HostMemory },
    Set {},
    State(State),
    Placing(Placing),
    Watch {},
    Look(Look),
    Memory(MemoryNow),
    Target(Target),
    Waits(Waits),
    Cache(Cache),
    Elsewhere(Elsewhere),
    Error(Failure),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Hello {
    pub(crate) version: u64,
    pub(crate) xen: String,
    pub(crate) scheduler: &'static str,
    pub(crate) physical_cpus: u32,
}

/// What the hypervisor alone knows of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct State {
    pub(crate) id: u16,
    pub(crate) vcpus: u32,
    pub(crate) cpu_ns: u64,
    pub(crate) paused: bool,
    pub(crate) cap_percent: Option<u16>,
    pub(crate) weight: Option<u16>,
    pub(crate) memory_most_bytes: u64,
    pub(crate) lapses: u64,
}

/// Where a domain runs, in lists of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Placing {
    /// What each virtual CPU may run on; empty for one that does not exist.
    pub(crate) vcpus: Vec<String>,
    /// The CPUs of its pool, core by core.
    pub(crate) cores: Vec<String>,
}

/// What everybody but the volunteer, and what the volunteer used, since the first look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Look {
    pub(crate) foreground_ns: u64,
    pub(crate) volunteer_ns: u64,
    pub(crate) lapses: u64,
    /// Where the volunteer's scheduler does not make it give way by its weight alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<ForeignWaits>,
}

/// How long the domains that are not the volunteer's, and have no cap of their own, waited for a CPU, by looks at their virtual
/// CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct ForeignWaits {
    pub(crate) wait_ns: u64,
    /// The time that the looks stand for.
    pub(crate) looked_ns: u64,
}

/// The hypervisor's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct HostMemory {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    /// What the domains that are not the volunteer's may still take, and have not.
    pub(crate) wanted_bytes: u64,
}

/// The hypervisor's memory, and what the volunteer's domains have of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryNow {
    #[serde(flatten)]
    pub(crate) host: HostMemory,
    pub(crate) volunteers: Vec<VolunteerMemory>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct VolunteerMemory {
    pub(crate) uuid: String,
    pub(crate) id: u16,
    pub(crate) memory_bytes: u64,
}

/// What xenstore says now of a domain's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Target {
    pub(crate) id: u16,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_target_bytes: Option<u64>,
    pub(crate) static_most_bytes: Option<u64>,
}

/// What the hypervisor can do with the last-level cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Cache {
    pub(crate) monitoring: CacheFeature,
    pub(crate) allocation: CacheFeature,
}

/// One of these, and what the hypervisor answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CacheFeature {
    pub(crate) there: bool,
    pub(crate) answer: String,
}

/// What of a domain this one's kernel does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Elsewhere {
    /// Interfaces that another domain serves.
    pub(crate) interfaces: u32,
    /// Disks that another domain serves, or a program of this one.
    pub(crate) disks: u32,
    /// Disks that its device model has open to emulate them.
    pub(crate) emulated_disks: u32,
}

/// How long the domains waited for a CPU, over the time that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Waits {
    pub(crate) looks: u64,
    pub(crate) looked_ns: u64,
    pub(crate) scale: u64,
    pub(crate) domains: Vec<Waited>,
}

/// The same of one domain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Waited {
    pub(crate) id: u16,
    pub(crate) uuid: String,
    pub(crate) cpu_ns: u64,
    pub(crate) wait_ns: u64,
}

/// One domain at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Domain {
    pub(crate) id: u16,
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) control: bool,
    pub(crate) vcpus: u32,
    pub(crate) cpu_ns: u64,
    pub(crate) wait_ns: Option<u64>,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_most_bytes: u64,
    pub(crate) memory_target_bytes: Option<u64>,
    pub(crate) paused: bool,
    pub(crate) cap_percent: Option<u16>,
    pub(crate) weight: Option<u16>,
    pub(crate) disk: Option<Disk>,
    pub(crate) network: Option<Network>,
    pub(crate) cache_occupancy: CacheOccupancy,
}

/// How much of the last-level cache holds data of a domain, or why that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheOccupancy {
    Bytes(u64),
    Error(Failure),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Disk {
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) operations: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Network {
    pub(crate) receive_bytes: u64,
    pub(crate) transmit_bytes: u64,
}

/// Kinds of failure: callers act differently on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Absent,
    Denied,
    Malformed,
    Unsupported,
    Forbidden,
    Transient,
}

/// A failure, with what was being done to what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn io(what: String, error: &io::Error) -> Self {
        let kind = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::ENXIO) => Kind::Absent,
            Some(libc::EPERM | libc::EACCES) => Kind::Denied,
            Some(libc::EINVAL) => Kind::Malformed,
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => Kind::Unsupported,
            _ if error.kind() == io::ErrorKind::NotFound => Kind::Absent,
            _ => Kind::Transient,
        };
        Self { kind, message: format!("{what}: {error}") }
    }

    pub(crate) fn malformed(message: String) -> Self {
        Self { kind: Kind::Malformed, message }
    }

    pub(crate) fn unsupported(message: String) -> Self {
        Self { kind: Kind::Unsupported, message }
    }

    pub(crate) fn absent(message: String) -> Self {
        Self { kind: Kind::Absent, message }
    }

    pub(crate) fn forbidden(message: String) -> Self {
        Self { kind: Kind::Forbidden, message }
    }
}

/// Reads a question.
pub(crate) fn parse(line: &[u8]) -> Result<Request, Failure> {
    serde_json::from_slice(line).map_err(|error| Failure::malformed(format!("a question that cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions() {
        assert_eq!(parse(br#"{"hello":{"version":4}}"#), Ok(Request::Hello { version: 4 }));
        assert_eq!(parse(br#"{"sample":{}}"#), Ok(Request::Sample { attach: false }));
        assert_eq!(parse(br#"{"sample":{"attach":true}}"#), Ok(Request::Sample { attach: true }));
        let Ok(Request::Set(set)) = parse(br#"{"set":{"uuid":"u","cap_percent":30}}"#) else { panic!() };
        assert_eq!(set.setting(), Ok(Setting::Cap(30)));
        assert_eq!(parse(br#"{"look":{}}"#), Ok(Request::Look {}));
        assert_eq!(parse(br#"{"memory":{}}"#), Ok(Request::Memory {}));
        assert_eq!(parse(br#"{"waits":{}}"#), Ok(Request::Waits {}));
        assert_eq!(parse(br#"{"elsewhere":{"id":3}}"#), Ok(Request::Elsewhere { id: 3 }));
        let volunteers = vec![Volunteer { uuid: "u".to_owned(), id: 3 }];
        let watch = Request::Watch { volunteers, lease_ms: 1_000 };
        assert_eq!(parse(br#"{"watch":{"volunteers":[{"uuid":"u","id":3}],"lease_ms":1000}}"#), Ok(watch));
        for bad in [
            "",
            "x",
            "[]",
            "{}",
            r#"{"set":{}}"#,
            r#"{"set":{"uuid":"u","cap_percent":-1}}"#,
            r#"{"sample":{},"hello":{"version":1}}"#,
            r#"{"sample":{"x":1}}"#,
            r#"{"watch":{"volunteers":[]}}"#,
            r#"{"watch":{"volunteers":["u"],"lease_ms":1}}"#,
            r#"{"watch":{"volunteers":[{"uuid":"u","id":65536}],"lease_ms":1}}"#,
            r#"{"look":{"x":1}}"#,
        ] {
            assert_eq!(parse(bad.as_bytes()).unwrap_err().kind, Kind::Malformed, "{bad}");
        }
        for bad in [r#"{"set":{"uuid":"u"}}"#, r#"{"set":{"uuid":"u","cap_percent":1,"paused":true}}"#] {
            let Ok(Request::Set(set)) = parse(bad.as_bytes()) else { panic!("{bad}") };
            assert_eq!(set.setting().unwrap_err().kind, Kind::Malformed);
        }
    }

    #[test]
    fn answers() {
        let json = |answer: &Answer| serde_json::to_string(answer).unwrap();
        assert_eq!(json(&Answer::Set {}), r#"{"set":{}}"#);
        let error = Failure::io("failed to pause domain 3".into(), &io::Error::from_raw_os_error(libc::ESRCH));
        assert!(
            json(&Answer::Error(error))
                .starts_with(r#"{"error":{"kind":"absent","message":"failed to pause domain 3: "#)
        );
        let occupancy = |occupancy: CacheOccupancy| serde_json::to_string(&occupancy).unwrap();
        assert_eq!(occupancy(CacheOccupancy::Bytes(65_536)), r#"{"bytes":65536}"#);
        let none = occupancy(CacheOccupancy::Error(Failure::unsupported("none".into())));
        assert_eq!(none, r#"{"error":{"kind":"unsupported","message":"none"}}"#);
    }
}
