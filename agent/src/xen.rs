//! Xen domains, through the helper `gleaner-agent-xen`. In: questions of sensing and acting. Out: the helper's answers.
//! Called by the sensor, the levers of domains and the probe. The helper is a separate program, under another licence,
//! that talks to the hypervisor. It is started on a control domain only. Questions and answers are one JSON line each
//! over its standard input and output.
//!
//! There are two helpers per process: one for sensing and memory targets, which may have to wait for xenstore, and one for
//! the guard and the levers on CPU (`guarding`), which never does. A helper that misses an answer's deadline is ended, and
//! another is started when it is asked again, or after a while where one had failed shortly before (`restarts`).

mod guarding;
mod helper;
mod memory;
mod restarts;
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
    has_lapsed_since, is_there, lapses, lately_there, look, memory, placing, state, still_there, unwatch, waits, watch,
    watched, withhold,
};
pub(crate) use self::helper::helper_program;
use self::helper::{Helper, PROGRAM, not_of_a_domain, refused};
pub(crate) use self::memory::{HostMemory, MemoryNow, MemoryTarget, VolunteerMemory};
use self::restarts::Restarts;

/// How long no helper is started after one that could not be, or that failed soon after another. (Chosen.)
const REST: Duration = Duration::from_secs(10);
/// One that fails so soon after another is not replaced at once. (Chosen: twice the rest, so that one that fails each time
/// rests each time.)
const RELAPSE: Duration = Duration::from_secs(20);

static SENSING: Mutex<Sensing> = Mutex::new(Sensing::new());

/// The helper for sensing and memory targets.
#[derive(Debug)]
struct Sensing {
    helper: Option<Helper>,
    restarts: Restarts,
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
    /// `None` from a helper that does not tell it.
    pub(crate) cache_occupancy: Option<CacheOccupancy>,
}

/// How much of the last-level cache holds data of a domain, or why that is not known: a kind of error and a message.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheOccupancy {
    Bytes(u64),
    Error { kind: String, message: String },
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
    // An agent that does not act changes nothing, not even who is monitored.
    let (answer, physical_cpus) = ask(&json!({ "sample": { "attach": guarding::is_watching() } }))?;
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
/// How long the answers may take together: leases are renewed on this thread. (Chosen.)
const ELSEWHERE_PATIENCE: Duration = Duration::from_secs(1);
/// When that was last asked, and what of each of them others serve.
type Asked = (Option<Instant>, Vec<(Run, Elsewhere)>);
static ELSEWHERE: Mutex<Asked> = Mutex::new((None, Vec::new()));

/// What of a domain this control domain's kernel does not serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Elsewhere {
    #[serde(skip)]
    pub(crate) id: u32,
    /// Interfaces that another domain serves.
    pub(crate) interfaces: u32,
    /// Disks that another domain serves, or QEMU here (qdisk).
    pub(crate) disks: u32,
    /// Disks that its device model has open to emulate them.
    pub(crate) emulated_disks: u32,
}

/// What of a domain others serve. It waits for xenstore.
///
/// # Errors
/// As [`sample`].
fn elsewhere(id: u32) -> io::Result<Elsewhere> {
    let (mut answer, _) = ask(&json!({ "elsewhere": { "id": id } }))?;
    let found = answer.get_mut("elsewhere").map(Value::take).unwrap_or_default();
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    serde_json::from_value(found).map(|found| Elsewhere { id, ..found }).map_err(invalid)
}

/// What of a domain others serve: as answered now, or as before where it cannot be asked now. Of another domain that has its number by
/// now nothing was known before.
fn now_or_before(run: &Run, answer: io::Result<Elsewhere>, before: &[(Run, Elsewhere)]) -> Elsewhere {
    let was = || before.iter().find(|(of, _)| of == run).map(|(_, found)| *found);
    answer.ok().or_else(was).unwrap_or_default()
}

/// Asks from time to time what of the volunteer's domains others serve. It waits for xenstore.
pub(crate) fn look_elsewhere() {
    let known = || ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner);
    // Nobody is asked while it is locked: others read it many times a second.
    let runs = watched();
    let before = {
        let mut known = known();
        let is_known = |run: &Run| known.1.iter().any(|(of, _)| of == run);
        if runs.iter().all(is_known) && known.0.is_some_and(|at| at.elapsed() < ELSEWHERE_PERIOD) {
            return;
        }
        known.0 = Some(Instant::now());
        known.1.clone()
    };
    let until = Instant::now() + ELSEWHERE_PATIENCE;
    let asked = |run: Run| {
        let late = || Err(io::ErrorKind::TimedOut.into());
        let answer = if Instant::now() < until { elsewhere(run.id) } else { late() };
        let found = now_or_before(&run, answer, &before);
        (run, found)
    };
    let now = runs.into_iter().map(asked).collect();
    known().1 = now;
}

/// What of the volunteer's domains others serve, as last asked.
pub(crate) fn served_elsewhere() -> Vec<Elsewhere> {
    let watched = watched();
    let known = ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner);
    known.1.iter().filter(|(run, _)| watched.contains(run)).map(|(_, found)| *found).collect()
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
    SENSING.lock().unwrap_or_else(PoisonError::into_inner).ask(request, Helper::start)
}

impl Sensing {
    const fn new() -> Self {
        Self { helper: None, restarts: Restarts::new(REST, RELAPSE) }
    }

    /// Asks the helper that runs, or one that is started for it.
    fn ask(&mut self, request: &Value, start: impl FnOnce() -> io::Result<Helper>) -> io::Result<(Value, u32)> {
        let mut helper = match self.helper.take() {
            Some(helper) => helper,
            None => self.start(start)?,
        };
        match helper.exchange(request) {
            // What it refuses it has understood; it stays.
            Ok(answer) => {
                let physical_cpus = helper.physical_cpus;
                self.helper = Some(helper);
                refused(answer).map(|answer| (answer, physical_cpus))
            }
            Err(error) => {
                self.restarts.broke(Instant::now(), format!("the helper {PROGRAM} failed: {error}"));
                Err(error)
            }
        }
    }

    fn start(&mut self, start: impl FnOnce() -> io::Result<Helper>) -> io::Result<Helper> {
        let resting = |why: io::Error| io::Error::other(format!("{why} (tried again every {} s)", REST.as_secs()));
        self.restarts.may_start(Instant::now()).map_err(resting)?;
        let started = start().map_err(not_of_a_domain);
        self.restarts.started(Instant::now(), &started);
        started
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
    use std::process::Command;

    use super::helper::refused;
    use super::*;

    /// Starts a helper that answers the first question so; then, if at all, too late.
    fn answering(answer: &str) -> io::Result<Helper> {
        let hello = r#"read l; echo '{"hello":{"version":4,"physical_cpus":2}}'"#;
        Helper::run(Command::new("sh").args(["-c", &format!("{hello}; read l; {answer}; read l; exec sleep 9")]))
    }

    #[test]
    fn a_late_answer_of_sensing_costs_one_answer_and_only_the_next_a_rest() {
        let (mut sensing, request) = (Sensing::new(), json!({ "sample": {} }));
        let late = sensing.ask(&request, || answering("exec sleep 9")).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let (answer, cpus) = sensing.ask(&request, || answering(r#"echo '{"sample":{}}'"#)).unwrap();
        assert_eq!((answer, cpus), (json!({ "sample": {} }), 2), "another helper answers at once");
        let late = sensing.ask(&request, || panic!("one runs")).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let resting = sensing.ask(&request, || panic!("two in a row have failed")).unwrap_err().to_string();
        assert!(resting.contains("no answer within") && resting.contains("tried again every 10 s"), "{resting}");
    }

    #[test]
    fn what_others_serve_of_a_domain_is_not_another_ones_that_has_its_number_now() {
        let run = |uuid: &str| Run { uuid: uuid.to_owned(), id: 3 };
        let of = |interfaces| Elsewhere { id: 3, interfaces, ..Elsewhere::default() };
        let before = [(run("u"), of(2))];
        let late = || Err(io::ErrorKind::TimedOut.into());
        assert_eq!(now_or_before(&run("u"), Ok(of(1)), &before), of(1));
        assert_eq!(now_or_before(&run("u"), late(), &before), of(2), "as it was");
        assert_eq!(now_or_before(&run("v"), late(), &before), Elsewhere::default());
    }

    #[test]
    fn what_others_serve_of_a_domain_is_read_also_where_less_is_told() {
        let read = |answer: Value| serde_json::from_value::<Elsewhere>(answer).unwrap();
        let all = read(json!({ "interfaces": 1, "disks": 2, "emulated_disks": 3 }));
        assert_eq!(all, Elsewhere { id: 0, interfaces: 1, disks: 2, emulated_disks: 3 });
        assert_eq!(read(json!({ "interfaces": 1 })), Elsewhere { interfaces: 1, ..Elsewhere::default() });
    }

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
