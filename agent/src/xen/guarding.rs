//! The guard's way to the hypervisor: a helper of its own, which is asked many times a second and never waits for xenstore.
//! In: the volunteer's domains, looks, settings of CPU. Out: what the volunteer and the others used, how long domains waited,
//! a domain's state, and how often the helper may have paused the volunteer by itself. Called by the meters of the guard and
//! of harm, the levers of domains and the volunteer.
//!
//! The helper pauses the volunteer's domains when no look came for as long as the lease, or when its pipe closes. One that
//! fails is given up, upon which it pauses them, and is replaced at the next question, so that whoever is told of the failure
//! can pause them through the new one at once.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::helper::{self, Helper, PROGRAM, not_of_a_domain, refusal, refused};
use super::memory::MemoryNow;
use super::restarts::Restarts;

/// How long the helper lets the volunteer run without a look, in ms. (Chosen: twenty looks.)
const LEASE_MS: u64 = 1_000;
/// How long no helper is started after one that could not be, or that failed soon after another. (Chosen.)
const REST: Duration = Duration::from_secs(1);
/// One that fails so soon after another is not replaced at once: longer than a start and a question may take. (Chosen.)
const RELAPSE: Duration = Duration::from_secs(5);
const LOOK: &[u8] = b"{\"look\":{}}\n";
const MEMORY: &[u8] = b"{\"memory\":{}}\n";
const WAITS: &[u8] = b"{\"waits\":{}}\n";

static GUARDING: Mutex<Guarding> = Mutex::new(Guarding::new());

/// What the hypervisor alone knows of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct DomainState {
    /// Changes with each start.
    pub(crate) id: u32,
    pub(crate) vcpus: u32,
    /// Since it started.
    pub(crate) cpu_ns: u64,
    pub(crate) paused: bool,
    /// Ceiling in percent of one CPU, 0 is none; `None` where the scheduler has no ceilings.
    pub(crate) cap_percent: Option<u32>,
    pub(crate) weight: Option<u32>,
    /// The hypervisor's bound on its memory.
    pub(crate) memory_most_bytes: u64,
    lapses: u64,
}

/// Where a domain may run, in lists of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct CpuPlacing {
    /// The hard affinity of each virtual CPU; empty for one that does not exist.
    pub(crate) vcpus: Vec<String>,
    /// The CPUs of its pool, core by core.
    pub(crate) cores: Vec<String>,
}

impl CpuPlacing {
    /// The affinity of all its virtual CPUs as one text.
    pub(crate) fn affinity(&self) -> String {
        self.vcpus.join(";")
    }
}

/// How old an answer may be for what is read many times a second. (Chosen.)
const LATELY_FOR: Duration = Duration::from_secs(1);

/// A domain from one start to its end: started anew it has another number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) uuid: String,
    pub(crate) id: u32,
}

/// CPU time since the helper's first look, in ns. It begins anew with another helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Look {
    pub(crate) foreground_ns: u64,
    pub(crate) volunteer_ns: u64,
    lapses: u64,
    /// Where the scheduler does not make the volunteer give way by its weight alone.
    #[serde(default)]
    pub(crate) waits: Option<ForegroundWaits>,
    /// CPUs of the hypervisor.
    #[serde(skip)]
    pub(crate) physical_cpus: u32,
}

/// How long the foreground's domains that have no cap of their own waited for a CPU, together. It begins anew with another
/// helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct ForegroundWaits {
    pub(crate) wait_ns: u64,
    /// The time that the looks stand for.
    pub(crate) looked_ns: u64,
}

/// How long domains waited for a CPU, by looks at drawn moments. It begins anew with another helper.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Waits {
    pub(crate) looks: u64,
    /// The time that they stand for.
    pub(crate) looked_ns: u64,
    /// For how many virtual CPUs each stands that was looked at.
    pub(crate) scale: u64,
    pub(crate) domains: Vec<Waited>,
}

/// The same of one domain, over the time that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Waited {
    pub(crate) id: u32,
    pub(crate) uuid: String,
    pub(crate) cpu_ns: u64,
    pub(crate) wait_ns: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Look(Look),
    Waits(Waits),
    State(DomainState),
    Placing(CpuPlacing),
    Memory(MemoryNow),
    Set {},
    Error { kind: String, message: String },
}

#[derive(Debug)]
struct Guarding {
    helper: Option<Helper>,
    restarts: Restarts,
    /// The volunteer is not as it should be: no look is asked for, so that the lease ends.
    withheld: bool,
    /// The volunteer's domains.
    watched: Vec<Run>,
    /// Times that the volunteer may have been paused by a helper.
    lapses: u64,
    /// Of which the helper that runs has told so many.
    told: u64,
}

impl Guarding {
    const fn new() -> Self {
        let restarts = Restarts::new(REST, RELAPSE);
        Self { helper: None, restarts, withheld: false, watched: Vec::new(), lapses: 0, told: 0 }
    }

    fn running(&mut self) -> io::Result<Helper> {
        if let Some(helper) = self.helper.take() {
            return Ok(helper);
        }
        self.restarts.may_start(Instant::now())?;
        self.told = 0;
        let started = Helper::start().and_then(|mut helper| {
            watch_by(&mut helper, &self.watched)?;
            Ok(helper)
        });
        self.restarts.started(Instant::now(), &started);
        started.map_err(not_of_a_domain)
    }

    fn ask(&mut self, question: &[u8]) -> io::Result<(Answer, u32)> {
        let mut helper = self.running()?;
        let parse =
            |line: &[u8]| serde_json::from_slice(line).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e));
        match helper.exchange_line(question).and_then(parse) {
            Ok(answer) => {
                let physical_cpus = helper.physical_cpus;
                self.helper = Some(helper);
                self.take_lapses(&answer);
                match answer {
                    Answer::Error { kind, message } => Err(refusal(&kind, &message)),
                    answer => Ok((answer, physical_cpus)),
                }
            }
            Err(error) => {
                self.broke(Instant::now(), &error);
                Err(not_of_a_domain(io::Error::new(error.kind(), format!("the helper {PROGRAM} failed: {error}"))))
            }
        }
    }

    /// A helper that had been started failed.
    fn broke(&mut self, now: Instant, error: &io::Error) {
        self.restarts.broke(now, format!("the helper {PROGRAM} failed: {error}"));
        // It may have paused the volunteer at its end.
        self.lapses += 1;
    }

    fn take_lapses(&mut self, answer: &Answer) {
        if let Answer::Look(Look { lapses, .. }) | Answer::State(DomainState { lapses, .. }) = answer
            && *lapses != self.told
        {
            self.told = *lapses;
            self.lapses += 1;
        }
    }
}

fn watch_by(helper: &mut Helper, volunteers: &[Run]) -> io::Result<()> {
    // One that fails to say that it was told may pause it all the same.
    if !volunteers.is_empty() {
        helper.watches(true);
    }
    let body = json!({ "volunteers": volunteers, "lease_ms": LEASE_MS });
    refused(helper.exchange(&json!({ "watch": body }))?)?;
    helper.watches(!volunteers.is_empty());
    Ok(())
}

fn with<T>(f: impl FnOnce(&mut Guarding) -> io::Result<T>) -> io::Result<T> {
    f(&mut GUARDING.lock().unwrap_or_else(PoisonError::into_inner))
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the helper answered another question")
}

/// From now on these domains are the volunteer: paused by the helper when it is not asked to look in time.
///
/// # Errors
/// When there is no helper that answers.
pub(crate) fn watch(volunteers: Vec<Run>) -> io::Result<()> {
    helper::end_in_haste(false);
    WATCHING.store(true, Ordering::SeqCst);
    with(|guarding| {
        guarding.watched = volunteers;
        let mut helper = guarding.running()?;
        if let Err(error) = watch_by(&mut helper, &guarding.watched) {
            guarding.broke(Instant::now(), &error);
            return Err(not_of_a_domain(error));
        }
        guarding.helper = Some(helper);
        Ok(())
    })
}

/// There is a volunteer of Xen domains, which only an agent that acts has.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// The same; it never waits.
pub(super) fn is_watching() -> bool {
    WATCHING.load(Ordering::SeqCst)
}

/// The domains that are the volunteer.
pub(crate) fn watched() -> Vec<Run> {
    GUARDING.lock().unwrap_or_else(PoisonError::into_inner).watched.clone()
}

/// A domain is there now, under its UUID and number: another one may have the number of one that has ended. False also while that cannot
/// be asked, so that nothing is set then on what may be another's; whoever asks does so again.
pub(crate) fn is_there(run: &Run) -> bool {
    still_there(run).is_ok()
}

/// The same, with why not.
///
/// # Errors
/// `NotFound` where it has ended, or was started anew. Any other error says nothing of the domain.
pub(crate) fn still_there(run: &Run) -> io::Result<()> {
    is_in(run, state(&run.uuid))
}

/// The same as of a second ago at most: for what is read many times a second. It is not for what is set.
///
/// # Errors
/// As [`still_there`].
pub(crate) fn lately_there(run: &Run) -> io::Result<()> {
    static LATELY: Mutex<BTreeMap<Run, Instant>> = Mutex::new(BTreeMap::new());
    let lately = || LATELY.lock().unwrap_or_else(PoisonError::into_inner);
    let is_recent = |at: &Instant| at.elapsed() < LATELY_FOR;
    if lately().get(run).is_some_and(is_recent) {
        return Ok(());
    }
    still_there(run)?;
    let mut lately = lately();
    lately.retain(|_, at| is_recent(at));
    lately.insert(run.clone(), Instant::now());
    Ok(())
}

fn is_in(run: &Run, state: io::Result<DomainState>) -> io::Result<()> {
    if state?.id == run.id {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the domain has another number now"))
}

/// From now on no look is asked for, because the volunteer could not be held, or it is again. Without looks the helper pauses
/// it when the lease ends.
pub(crate) fn withhold(withheld: bool) {
    GUARDING.lock().unwrap_or_else(PoisonError::into_inner).withheld = withheld;
}

/// There is no volunteer any more: nothing pauses its domains. A helper that does not take that is ended.
pub(crate) fn unwatch() {
    helper::end_in_haste(true);
    WATCHING.store(false, Ordering::SeqCst);
    // What fails here leaves no helper, and a new one knows of no volunteer.
    let taken = with(|guarding| {
        guarding.watched = Vec::new();
        guarding.withheld = false;
        if let Some(mut helper) = guarding.helper.take() {
            watch_by(&mut helper, &[])?;
            guarding.helper = Some(helper);
        }
        Ok(())
    });
    if taken.is_err() {
        helper::end_in_haste(true);
    }
}

/// What the volunteer and everybody else used. It is the sign of life that lets the volunteer run on.
///
/// # Errors
/// `NotFound` when the volunteer has no domain; when there is no helper, or it failed.
pub(crate) fn look() -> io::Result<Look> {
    let looked = with(|guarding| {
        if guarding.watched.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the volunteer has no domain"));
        }
        if guarding.withheld {
            return Err(io::Error::other("the volunteer could not be held"));
        }
        guarding.ask(LOOK)
    });
    match looked? {
        (Answer::Look(look), physical_cpus) => Ok(Look { physical_cpus, ..look }),
        _ => Err(unexpected()),
    }
}

/// The hypervisor's memory, and what the volunteer's domains have of it. It is no sign of life.
///
/// # Errors
/// When there is no helper, or it failed.
pub(crate) fn memory() -> io::Result<MemoryNow> {
    match with(|guarding| guarding.ask(MEMORY))? {
        (Answer::Memory(memory), _) => Ok(memory),
        _ => Err(unexpected()),
    }
}

/// How long domains waited for a CPU so far. The helper begins to look, if it does not yet, and goes on for two seconds.
///
/// # Errors
/// When there is no helper, or it failed.
pub(crate) fn waits() -> io::Result<Waits> {
    match with(|guarding| guarding.ask(WAITS))? {
        (Answer::Waits(waits), _) => Ok(waits),
        _ => Err(unexpected()),
    }
}

/// A domain's state.
///
/// # Errors
/// `NotFound` for a domain that is gone; when there is no helper, or it failed.
pub(crate) fn state(uuid: &str) -> io::Result<DomainState> {
    let question = format!("{}\n", json!({ "state": { "uuid": uuid } }));
    match with(|guarding| guarding.ask(question.as_bytes()))? {
        (Answer::State(state), _) => Ok(state),
        _ => Err(unexpected()),
    }
}

/// Where a domain may run, while it has this number.
///
/// # Errors
/// As [`state`].
pub(crate) fn placing(uuid: &str, id: u32) -> io::Result<CpuPlacing> {
    let question = format!("{}\n", json!({ "placing": { "uuid": uuid, "id": id } }));
    match with(|guarding| guarding.ask(question.as_bytes()))? {
        (Answer::Placing(placing), _) => Ok(placing),
        _ => Err(unexpected()),
    }
}

/// Sets a cap, a weight, a pause, an affinity or the hypervisor's bound on memory, by the name of the protocol's field; with a number only while the domain has that one.
///
/// # Errors
/// As [`state`], and the helper's refusal.
pub(super) fn set(uuid: &str, id: Option<u32>, key: &str, value: &Value) -> io::Result<()> {
    let question = format!("{}\n", json!({ "set": { "uuid": uuid, "id": id, key: value } }));
    match with(|guarding| guarding.ask(question.as_bytes()))? {
        (Answer::Set {}, _) => Ok(()),
        _ => Err(unexpected()),
    }
}

/// Times that a helper may have paused the volunteer by itself, as of the last answer.
pub(crate) fn lapses() -> u64 {
    GUARDING.lock().unwrap_or_else(PoisonError::into_inner).lapses + helper::ended()
}

/// A helper may have paused the volunteer since there were so many lapses, or may do so now.
pub(crate) fn has_lapsed_since(lapses: u64) -> bool {
    helper::is_one_ending() || self::lapses() != lapses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Answer {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_lapse_is_noticed_once_by_whatever_answer_tells_it_first() {
        let mut guarding = Guarding::new();
        let look = r#"{"look":{"foreground_ns":5,"volunteer_ns":3,"lapses":0}}"#;
        let state = r#"{"state":{"id":3,"vcpus":1,"cpu_ns":1,"paused":true,"cap_percent":0,"weight":1,"memory_most_bytes":4096,"lapses":1}}"#;
        for (text, lapses) in [(look, 0), (state, 1), (&look.replace(":0}}", ":1}}"), 1)] {
            guarding.take_lapses(&parse(text));
            assert_eq!(guarding.lapses, lapses, "{text}");
        }
    }

    #[test]
    fn a_helper_that_fails_is_replaced_at_once_but_not_again_and_again() {
        let (mut guarding, error) = (Guarding::new(), io::Error::other("no answer"));
        let start = Instant::now();
        guarding.broke(start, &error);
        guarding.restarts.may_start(start).unwrap();
        let again = start + RELAPSE / 2;
        guarding.broke(again, &error);
        let why = guarding.restarts.may_start(again).unwrap_err().to_string();
        assert_eq!(why, "the helper gleaner-agent-xen failed: no answer");
        guarding.restarts.may_start(again + REST).unwrap();
        assert_eq!(guarding.lapses, 2, "each may have paused the volunteer");
    }

    #[test]
    fn a_domain_that_was_started_anew_or_lost_its_number_to_another_is_not_there_any_more() {
        // As the helper tells it of one that is paused.
        let told = r#"{"state":{"id":3,"vcpus":1,"cpu_ns":1,"paused":true,"cap_percent":0,"weight":1,"memory_most_bytes":4096,"lapses":0}}"#;
        let Answer::State(state) = parse(told) else { panic!() };
        let run = Run { uuid: "u".to_owned(), id: 3 };
        is_in(&run, Ok(state)).unwrap();
        let started_anew = is_in(&run, Ok(DomainState { id: 4, ..state })).unwrap_err();
        assert_eq!(started_anew.kind(), io::ErrorKind::NotFound);
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::TimedOut] {
            assert_eq!(is_in(&run, Err(kind.into())).unwrap_err().kind(), kind);
        }
    }

    #[test]
    fn without_a_domain_nothing_is_looked_at() {
        assert_eq!(look().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        for bad in
            [r#"{"look":{}}"#, r#"{"look":{"foreground_ns":-1,"volunteer_ns":0,"lapses":0}}"#, "[]", r#"{"x":1}"#]
        {
            assert!(serde_json::from_str::<Answer>(bad).is_err(), "{bad}");
        }
        let Answer::Error { kind, message } = parse(r#"{"error":{"kind":"absent","message":"no such domain"}}"#) else {
            panic!()
        };
        assert_eq!(refusal(&kind, &message).kind(), io::ErrorKind::NotFound);
    }
}
