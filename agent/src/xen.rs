//! Xen domains, through the helper `gleaner-agent-xen`. In: questions of sensing and acting. Out: the helper's answers.
//! Called by the sensor, the levers of domains and the probe. The helper is a separate program, under another licence,
//! that talks to the hypervisor. It is started on a control domain only. Questions and answers are one JSON line each
//! over its standard input and output.
//!
//! There are two helpers per process: one for sensing and memory targets, which may have to wait for xenstore, and one for
//! the guard and the levers on CPU (`guarding`), which never does. A helper that misses an answer's deadline is ended, and
//! another is started when it is asked again: that of sensing after a while.

mod guarding;
mod helper;
mod memory;
pub(crate) mod served;

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

#[cfg(test)]
pub(crate) use self::guarding::Waited;
pub(crate) use self::guarding::{CpuPlacing, DomainState, ForegroundWaits, Run, Waits};
pub(crate) use self::guarding::{
    has_lapsed_since, lapses, look, memory, placing, state, unwatch, waits, watch, watched, withhold,
};
pub(crate) use self::helper::helper_program;
use self::helper::{Helper, PROGRAM, not_of_a_domain, refused};
pub(crate) use self::memory::{HostMemory, MemoryNow, MemoryTarget, VolunteerMemory};

/// How long a helper that failed is not started again. (Chosen.)
const REST: Duration = Duration::from_secs(10);

static HELPER: Mutex<State> = Mutex::new(State::Idle);

#[derive(Debug)]
enum State {
    Idle,
    Running(Helper),
    Failed(Instant, String),
}

/// One domain at one moment. Counters count from its start.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Domain {
    pub(crate) id: u32,
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// It is the control domain, which is never a workload.
    pub(crate) control: bool,
    pub(crate) cpu_ns: u64,
    /// How long its virtual CPUs waited for a CPU, by looks; `None` before the first.
    pub(crate) wait_ns: Option<u64>,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_most_bytes: u64,
    pub(crate) memory_target_bytes: Option<u64>,
    pub(crate) paused: bool,
    /// Ceiling in percent of one CPU; 0 is none.
    pub(crate) cap_percent: Option<u32>,
    pub(crate) weight: Option<u32>,
    pub(crate) disk: Option<DomainDisk>,
    pub(crate) network: Option<DomainNetwork>,
}

/// Traffic of a domain's virtual disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct DomainDisk {
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) operations: u64,
}

/// Traffic of a domain's virtual interfaces, as it sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct DomainNetwork {
    pub(crate) receive_bytes: u64,
    pub(crate) transmit_bytes: u64,
}

/// Something of a domain that can be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Ceiling in percent of one CPU; 0 is none.
    Cap(u32),
    Weight(u32),
    MemoryTarget(u64),
    /// The hypervisor's own bound on its memory.
    MemoryMost(u64),
    Paused(bool),
    /// A list of CPUs for each virtual CPU.
    Affinity(Vec<String>),
}

/// This is a control domain.
pub(crate) fn is_control_domain(proc: &Path) -> bool {
    std::fs::read_to_string(proc.join("xen/capabilities")).is_ok_and(|text| text.contains("control_d"))
}

/// The domain whose interface this is, of this machine.
pub(crate) fn domain_of_interface(name: &str) -> Option<u32> {
    served::domain_of_interface(Path::new("/sys"), name)
}

/// The hypervisor at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hypervisor {
    pub(crate) physical_cpus: u32,
    pub(crate) memory: HostMemory,
    pub(crate) domains: Vec<Domain>,
}

/// All domains.
///
/// # Errors
/// When there is no helper, or it failed now or lately; never `NotFound`.
pub(crate) fn sample() -> io::Result<Hypervisor> {
    let (answer, physical_cpus) = ask(&json!({ "sample": {} }))?;
    let memory = answer.get("sample").and_then(|sample| sample.get("memory")).cloned().unwrap_or_default();
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("memory that cannot be read: {error}"));
    let sampled: HostMemory = serde_json::from_value(memory).map_err(invalid)?;
    // Only the helper that watches over the volunteer knows which domains are not everybody else's. Without its answer, all are
    // taken for those, which leaves less: the safe way.
    let watching = (!watched().is_empty()).then(guarding::memory).and_then(Result::ok);
    let memory = watching.map_or(sampled, |now| now.host);
    Ok(Hypervisor { physical_cpus, memory, domains: parse_sample(&answer)? })
}

/// The memory target of a domain. It waits for xenstore.
///
/// # Errors
/// `NotFound` for a domain that is gone; as [`sample`].
pub(crate) fn target(uuid: &str) -> io::Result<MemoryTarget> {
    let (answer, _) = ask(&json!({ "target": { "uuid": uuid } }))?;
    let target = answer.get("target").cloned().unwrap_or_default();
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("a target that cannot be read: {error}"));
    serde_json::from_value(target).map_err(invalid)
}

/// How often it is asked who serves the volunteer's domains. (Chosen: it changes with their devices alone.)
const ELSEWHERE_PERIOD: Duration = Duration::from_secs(5);
/// When that was last asked, and which of them have how many interfaces that others serve.
static ELSEWHERE: Mutex<Elsewhere> = Mutex::new((None, Vec::new()));
type Elsewhere = (Option<Instant>, Vec<(u32, u32)>);

/// Asks from time to time which interfaces of the volunteer's domains other domains serve. It waits for xenstore.
pub(crate) fn look_elsewhere() {
    let known = || ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = {
        let mut known = known();
        if known.0.is_some_and(|at| at.elapsed() < ELSEWHERE_PERIOD) {
            return;
        }
        known.0 = Some(Instant::now());
        known.1.clone()
    };
    // Not while it is locked: others read it many times a second.
    let mut now = Vec::new();
    for id in watched().iter().map(|run| run.id) {
        let count = |answer: &Value| answer.get("elsewhere")?.get("interfaces")?.as_u64();
        let was = || before.iter().find(|(of, _)| *of == id).map_or(0, |(_, count)| *count);
        // What cannot be asked now is as it was.
        let answer = ask(&json!({ "elsewhere": { "id": id } })).ok();
        let interfaces = answer
            .and_then(|(answer, _)| count(&answer))
            .map_or_else(was, |count| u32::try_from(count).unwrap_or(u32::MAX));
        if interfaces > 0 {
            now.push((id, interfaces));
        }
    }
    known().1 = now;
}

/// Domains of the volunteer with interfaces that others serve, and how many, as last asked.
pub(crate) fn served_elsewhere() -> Vec<(u32, u32)> {
    ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
}

/// What the hypervisor can do with the last-level cache.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Cache {
    pub(crate) monitoring: CacheFeature,
    pub(crate) allocation: CacheFeature,
}

/// One of these, and what the hypervisor answered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct CacheFeature {
    pub(crate) there: bool,
    pub(crate) answer: String,
}

/// What the hypervisor can do with the last-level cache.
///
/// # Errors
/// As [`sample`].
pub(crate) fn cache() -> io::Result<Cache> {
    let (mut answer, _) = ask(&json!({ "cache": {} }))?;
    let cache = answer.get_mut("cache").map(Value::take).unwrap_or_default();
    serde_json::from_value(cache).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sets something of a domain; with a number only while it has that one.
///
/// # Errors
/// `NotFound` for a domain that is gone; the helper's refusal; as [`sample`].
pub(crate) fn set(uuid: &str, id: Option<u32>, setting: Setting) -> io::Result<()> {
    let (key, value): (&str, Value) = match setting {
        Setting::MemoryTarget(bytes) => {
            let body = json!({ "uuid": uuid, "id": id, "memory_target_bytes": bytes });
            return ask(&json!({ "set": body })).map(drop);
        }
        Setting::Cap(percent) => ("cap_percent", percent.into()),
        Setting::Weight(weight) => ("weight", weight.into()),
        Setting::MemoryMost(bytes) => ("memory_most_bytes", bytes.into()),
        Setting::Paused(paused) => ("paused", paused.into()),
        Setting::Affinity(lists) => ("affinity", lists.into()),
    };
    guarding::set(uuid, id, key, &value)
}

/// The answer, and how many CPUs the hypervisor has.
fn ask(request: &Value) -> io::Result<(Value, u32)> {
    let mut state = HELPER.lock().unwrap_or_else(PoisonError::into_inner);
    if let State::Failed(at, why) = &*state
        && at.elapsed() < REST
    {
        return Err(io::Error::other(format!("{why} (tried again every {} s)", REST.as_secs())));
    }
    let mut helper = match std::mem::replace(&mut *state, State::Idle) {
        State::Running(helper) => helper,
        State::Idle | State::Failed(..) => match Helper::start().map_err(not_of_a_domain) {
            Ok(helper) => helper,
            Err(error) => {
                *state = State::Failed(Instant::now(), error.to_string());
                return Err(error);
            }
        },
    };
    match helper.exchange(request) {
        // What it refuses it has understood; it stays.
        Ok(answer) => {
            let physical_cpus = helper.physical_cpus;
            *state = State::Running(helper);
            refused(answer).map(|answer| (answer, physical_cpus))
        }
        Err(error) => {
            *state = State::Failed(Instant::now(), format!("the helper {PROGRAM} failed: {error}"));
            Err(error)
        }
    }
}

/// The domains in an answer, without those that make no sense.
pub(crate) fn parse_sample(answer: &Value) -> io::Result<Vec<Domain>> {
    let domains = answer.get("sample").and_then(|sample| sample.get("domains")).cloned().unwrap_or_default();
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("domains that cannot be read: {error}"));
    serde_json::from_value(domains).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::helper::refused;
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "(\\{|\\}|\"sample\"|\"domains\"|\"id\"|:|,|\\[|\\]|[0-9a-z-]){0,50}") {
            if let Ok(answer) = serde_json::from_str::<Value>(&text) {
                _ = parse_sample(&answer);
                _ = refused(answer);
            }
        }
    }
}
