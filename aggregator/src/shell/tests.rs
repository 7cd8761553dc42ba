//! Events of agents on a full disk and across restarts; the stored state when the disk or etcd fails; answers to
//! operators and the audit of their orders; joining and revoking with wrong clocks.

use std::time::Duration;

use gleaner_daemon::clock::ManualClock;
use gleaner_net::join::{hash_of, new_secret};
use gleaner_net::tls::{Authority, Validity};
use gleaner_planner::controller::Settings;
use gleaner_test_support::report;
use gleaner_types::application::{ApplicationSpec, Bounds, Control, ResponseSource, TierSpec, TimeUnit};
use gleaner_types::engine::{EngineName, EngineOptions};
use gleaner_types::id::{TierId, WorkloadId};
use gleaner_types::report::{HostFacts, Levers};
use gleaner_wire::{JoinRequest, ProtocolVersion};
use serde_json::{Value, json};

use super::*;
use crate::engine::{Engine, Job, Prepared, Problems, SubmissionError, TaskLink, WorkerShape};
use crate::enrolment::{Admissions, Credentials};
use crate::event_log::{EventLogSettings, EventReader};
use crate::journal::JournalSettings;
use crate::operators::{Operator, Role};
use crate::standby::Replica;
use gleaner_api::{ErrorCode, Request, SubmitCluster};

fn shell(folder: &std::path::Path) -> Shell {
    shell_with(folder, Clock::start(), Enrolment::closed())
}

fn shell_with(folder: &std::path::Path, clock: Clock, enrolment: Enrolment) -> Shell {
    let local_host = HostId::new("here").unwrap();
    let (reports, _) = mpsc::channel(1);
    let (responses, _) = mpsc::channel(1);
    Shell::new(Parts {
        clock,
        local_host: local_host.clone(),
        controller: Controller::new(Settings::default(), clock.now()),
        journal: Journal::new(JournalSettings { folder: folder.join("journal"), max_bytes: 1 << 20, files: 1 }),
        events: EventLog::open(EventLogSettings { folder: folder.join("events"), max_bytes: 1 << 20, files: 1 }),
        store: Store::open(&folder.join("state.redb")).unwrap(),
        engines: Engines::new(folder.join("jobs"), TaskLink::new(local_host, folder.join("jobs")), reports),
        responses,
        enrolment,
        audit: Audit::new(&folder.join("audit"), clock.now()),
    })
}

fn records(incarnation: u64, sequences: std::ops::RangeInclusive<u64>) -> Vec<EventRecord> {
    let host = HostId::new("h1").unwrap();
    sequences
        .map(|sequence| EventRecord {
            at: Timestamp(sequence),
            source: EventSource::Agent { host: host.clone(), incarnation, sequence },
            event: Event::AgentStopped { knobs_restored: 0 },
        })
        .collect()
}

/// What a connection's task has: what is sent to the agent, and why it is to end.
type Task = (mpsc::Receiver<FromAggregator>, oneshot::Receiver<String>);

fn connect(shell: &mut Shell, id: u64, incarnation: u64) -> Task {
    let (sender, outgoing) = mpsc::channel(16);
    let (closer, closed) = oneshot::channel();
    let connection = Connection { id, incarnation, sender, closer, renewed: false };
    shell.connections.insert(HostId::new("h1").unwrap(), connection);
    (outgoing, closed)
}

fn through(outgoing: &mut mpsc::Receiver<FromAggregator>) -> Vec<u64> {
    std::iter::from_fn(|| outgoing.try_recv().ok())
        .filter_map(|message| match message {
            FromAggregator::EventsThrough(through) => Some(through),
            _ => None,
        })
        .collect()
}

fn logged(folder: &std::path::Path) -> usize {
    let mut reader = EventReader::open(&folder.join("events"), None);
    reader.next_lines(1_000).unwrap().iter().filter(|line| line.contains("agent_stopped")).count()
}

#[tokio::test]
async fn events_do_not_overtake_those_that_wait_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let (mut outgoing, _closed) = connect(&mut shell, 1, 5);
    let host = HostId::new("h1").unwrap();
    // A file where the log's folder should be stands for a disk that takes nothing.
    std::fs::write(folder.path().join("events"), "").unwrap();
    shell.agent_events(host.clone(), 1, records(5, 1..=3));
    assert_eq!(through(&mut outgoing), Vec::<u64>::new(), "nothing is in the log");
    std::fs::remove_file(folder.path().join("events")).unwrap();
    shell.agent_events(host, 1, records(5, 4..=5));
    shell.acknowledge_events();
    assert_eq!(through(&mut outgoing), [5], "4 and 5 come after 1 to 3");
    assert_eq!(logged(folder.path()), 5);
}

#[tokio::test]
async fn a_number_of_an_older_incarnation_acknowledges_nothing_of_the_newer() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let host = HostId::new("h1").unwrap();
    let (mut outgoing, _closed) = connect(&mut shell, 2, 6);
    // What the killed agent had sent is still on its way when its successor has joined.
    shell.agent_events(host.clone(), 1, records(5, 1..=9));
    shell.acknowledge_events();
    assert_eq!(through(&mut outgoing), Vec::<u64>::new());
    shell.agent_events(host.clone(), 2, records(6, 1..=2));
    shell.agent_events(host, 1, records(5, 10..=10));
    shell.acknowledge_events();
    assert_eq!(through(&mut outgoing), [2]);
    assert_eq!(logged(folder.path()), 12);
}

#[tokio::test]
async fn events_are_acknowledged_once_a_sync_has_reached_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let (mut outgoing, _closed) = connect(&mut shell, 1, 5);
    let host = HostId::new("h1").unwrap();
    shell.agent_events(host.clone(), 1, records(5, 1..=3));
    assert_eq!((through(&mut outgoing), logged(folder.path())), (vec![], 3), "they are written");
    assert_eq!(shell.events.through(&host, 5), 0, "a new connection would be told the same");
    shell.agent_events(host.clone(), 1, records(5, 4..=5));
    shell.take(Arrival::Tick);
    assert_eq!(through(&mut outgoing), [5], "one sync for all");
    // The disk does not take the next ones.
    shell.events.write_to(&std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap());
    shell.agent_events(host.clone(), 1, records(5, 6..=7));
    shell.take(Arrival::Tick);
    assert_eq!((through(&mut outgoing), logged(folder.path())), (vec![], 5));
    shell.take(Arrival::Tick);
    assert_eq!((through(&mut outgoing), logged(folder.path())), (vec![7], 7), "they were written again");
}

fn root() -> Operator {
    Operator { uid: 0, gid: 0, user: "root".to_owned(), pid: None, role: Role::Acting }
}

#[tokio::test]
async fn response_times_handed_in_after_the_audit_log_failed_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let audit = folder.path().join("audit");
    let respond = || Request::Respond { application: ApplicationId::new("shop").unwrap(), mean_ms: 5.0 };
    // A file where the log's folder should be stands for a disk that takes nothing.
    std::fs::write(&audit, "").unwrap();
    for _ in 0..2 {
        assert_eq!(
            shell.api(&root(), respond()).unwrap_err().code,
            ErrorCode::Unavailable,
            "nothing is done unaudited"
        );
    }
    std::fs::remove_file(&audit).unwrap();
    for _ in 0..2 {
        assert_eq!(shell.api(&root(), respond()).unwrap_err().code, ErrorCode::NotFound);
    }
    let lines = crate::audit::lines(&audit, None).filter(|line| line.contains("app respond shop")).count();
    assert_eq!(lines, 2, "asked, and what came of it, once for all");
}

#[tokio::test]
async fn who_asks_for_applications_gets_no_secrets_of_their_sources() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    for (name, response_time) in [
        ("shop", ResponseSource::Postgres { connection: "host=/run user=gleaner password=hunter2 dbname=s".into() }),
        (
            "page",
            ResponseSource::Http {
                url: "http://10.0.0.1/stats?key=hunter2".into(),
                pointer: "/mean".into(),
                unit: TimeUnit::Milliseconds,
            },
        ),
    ] {
        let tier = TierSpec {
            name: TierId::new("only").unwrap(),
            host: HostId::new("h1").unwrap(),
            workload: WorkloadId::new(name).unwrap(),
            cpu_percent: Some(Bounds { floor: 10.0, ceiling: 200.0 }),
            memory_mib: None,
            disk_mb_s: None,
        };
        let (name, control) = (ApplicationId::new(name).unwrap(), Control::Balance);
        let spec = ApplicationSpec { name, target_ms: 100.0, response_time, control, tiers: vec![tier] };
        let spec = Box::new(spec);
        assert!(matches!(shell.api(&root(), Request::Apply(spec.clone())), Ok(Response::Applied)));
        let one = shell.api(&root(), Request::Application { application: spec.name.clone() }).unwrap();
        let all = shell.api(&root(), Request::Applications).unwrap();
        for answer in [one, all] {
            let text = serde_json::to_string(&answer).unwrap();
            assert!(text.contains("(withheld)") && !text.contains("hunter2"), "{text}");
        }
        assert_eq!(shell.controller.application(&spec.name).unwrap().spec, *spec, "who asks the source has it whole");
    }
}

#[tokio::test]
async fn a_certificate_dated_ahead_is_revoked_with_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let host = HostId::new("h1").unwrap();
    // Signed while the clock was an hour ahead.
    let from = Clock::start().now().after(Duration::from_secs(3_600));
    let certificate = Validity { from, until: from.after(Duration::from_secs(86_400)) };
    let facts = HostFacts { levers: Levers::without_volunteer(false, Vec::new()), ..report::facts(false) };
    let join = |shell: &mut Shell, connection| {
        let ((sender, _), (closer, _), (events_through, mut answer)) =
            (mpsc::channel(1), oneshot::channel(), oneshot::channel());
        let facts = Box::new(facts.clone());
        let (host, incarnation) = (host.clone(), 1);
        let version = ProtocolVersion::CURRENT;
        let joined = Joined {
            host,
            incarnation,
            facts,
            tasks_of_root: None,
            connection,
            version,
            certificate,
            sender,
            closer,
            events_through,
        };
        shell.joined(joined);
        answer.try_recv().unwrap()
    };
    assert!(join(&mut shell, 1).is_ok());
    let reported = |shell: &Shell| shell.hosts()[0].report.is_some();
    shell.take(Arrival::Report(Box::new(report::report(&host, 1))));
    assert!(reported(&shell));
    assert!(matches!(shell.revoke(&host), Ok(Response::Revoked { was_connected: true, through }) if through >= from));
    // What it said is shown no more, and what of it was still on its way is not taken.
    assert!(!reported(&shell));
    shell.take(Arrival::Report(Box::new(report::report(&host, 2))));
    assert!(!reported(&shell));
    let again = join(&mut shell, 2);
    assert!(matches!(&again, Err(Declined::Refused(reason)) if reason.contains("were revoked")), "{again:?}");
}

#[tokio::test]
async fn a_token_expires_while_the_aggregators_machine_is_suspended() {
    let folder = tempfile::tempdir().unwrap();
    let (hour, host) = (Duration::from_secs(3_600), HostId::new("h1").unwrap());
    // The machine was suspended for a day, which its processes' clocks do not count.
    let asleep = ManualClock::new(Timestamp(Clock::start().now().0 - 86_400_000)).clock();
    let (old, mut admissions) = (new_secret().unwrap(), Admissions::default());
    admissions.invite(&host, hash_of(&old), asleep.now(), asleep.now().after(hour)).unwrap();
    let own = Validity { from: Timestamp(0), until: Timestamp(u64::MAX) };
    let authority = Authority::create().unwrap();
    let credentials =
        Credentials { authority: Some(authority), no_authority: String::new(), roots: vec![vec![1]], validity: own };
    let mut shell = shell_with(folder.path(), asleep, Enrolment::new(admissions, credentials, hour, Vec::new()));
    let (answer, mut answered) = oneshot::channel();
    let request = JoinRequest { secret: old, request: Vec::new() };
    shell.joining(Joining { peer: "10.0.0.2:7".to_owned(), request, answer });
    assert!(answered.try_recv().unwrap().unwrap_err().to_string().contains("expired at"));
    // One that is made now serves for its hour.
    let invited = shell.invite(&host, 3_600.0, vec!["10.0.0.1:7441".to_owned()]);
    let Ok(Response::Invited(invited)) = invited else { panic!("{invited:?}") };
    assert!(invited.expires > Clock::start().now().after(hour / 2));
}

#[tokio::test]
async fn nothing_is_acknowledged_that_comes_after_events_that_were_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let (_receiver, mut closed) = connect(&mut shell, 1, 5);
    let host = HostId::new("h1").unwrap();
    let last = MAX_UNLOGGED as u64 + 1;
    std::fs::write(folder.path().join("events"), "").unwrap();
    shell.agent_events(host.clone(), 1, records(5, 1..=last));
    assert_eq!(shell.unlogged(), 0, "too many to wait");
    assert!(closed.try_recv().unwrap().contains("cannot be logged"), "a peer that does not read ends too");
    std::fs::remove_file(folder.path().join("events")).unwrap();
    // The next ones were on their way already; they come before and after the agent has connected anew.
    shell.agent_events(host.clone(), 1, records(5, last + 1..=last + 3));
    let (mut outgoing, _closed) = connect(&mut shell, 2, 5);
    shell.agent_events(host.clone(), 1, records(5, last + 4..=last + 6));
    assert_eq!((shell.events.through(&host, 5), logged(folder.path())), (0, 0));
    // The agent sends everything again.
    shell.agent_events(host, 2, records(5, 1..=7));
    shell.acknowledge_events();
    assert_eq!((through(&mut outgoing), logged(folder.path())), (vec![7], 7));
}

/// Makes it one of several aggregators, with an etcd that never answers; counts the states that etcd would have got.
fn lead(shell: &mut Shell) -> impl Fn() -> usize + use<> {
    let (replica, waiting) = Replica::unattended();
    shell.leading = Some(Leading { name: HostId::new("a").unwrap(), epoch: 1, state_from: "etcd", replica });
    move || waiting.try_iter().count()
}

fn submission(folder: &std::path::Path) -> SubmitCluster {
    serde_json::from_value(json!({
        "name": "j",
        "program": ["/bin/true"],
        "working_dir": folder,
        "goal": { "deadline": { "within_s": 60.0 } },
        "dedicated": [{ "host": "d1", "disk": 1.0 }],
    }))
    .unwrap()
}

#[tokio::test]
async fn a_new_leader_stores_here_whom_the_last_one_shut_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    shell.enrolment.admissions.revoke(&HostId::new("h1").unwrap(), Timestamp(7)).unwrap();
    _ = lead(&mut shell);
    shell.start();
    assert_eq!(shell.store.load_admissions().unwrap(), shell.enrolment.admissions);
}

#[tokio::test]
async fn a_disk_that_fails_keeps_nothing_from_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let sent = lead(&mut shell);
    shell.store = Store::broken(folder.path());
    shell.save(false);
    assert_eq!(sent(), 1);
    assert!(
        shell.store_error.as_ref().is_some_and(|error| error.contains("cannot be opened")),
        "{:?}",
        shell.store_error
    );
    shell.save(true);
    let error = shell.store_error.clone().unwrap();
    assert!(error.contains("cannot be opened") && error.contains("etcd takes too long"), "{error}");
}

#[tokio::test]
async fn what_may_be_in_etcd_is_not_called_undone() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let sent = lead(&mut shell);
    let error = shell.submit_cluster(&root(), &submission(folder.path())).unwrap_err();
    assert!(error.message.contains("not known") && error.message.contains("for j "), "{}", error.message);

    let host = HostId::new("h1").unwrap();
    let error = shell.revoke(&host).unwrap_err();
    assert!(error.message.contains("not known"), "{}", error.message);
    assert_eq!(shell.enrolment.admissions, Admissions::default());
    assert_ne!(shell.store.load_admissions().unwrap(), Admissions::default(), "here it was stored");
    // The next state says everywhere that it was not done.
    sent();
    shell.save(false);
    assert_eq!((sent(), shell.store.load_admissions().unwrap()), (1, Admissions::default()));
}

#[tokio::test]
async fn without_etcd_a_job_that_cannot_be_stored_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    shell.store = Store::broken(folder.path());
    let error = shell.submit_cluster(&root(), &submission(folder.path())).unwrap_err();
    assert!(error.message.starts_with("the job is not taken: "), "{}", error.message);
}

#[tokio::test]
async fn a_new_job_takes_over_no_records_of_an_older_one_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let records = folder.path().join("jobs/j");
    std::fs::create_dir_all(&records).unwrap();
    std::fs::write(records.join("spark.json"), "{}").unwrap();
    shell.submit_cluster(&root(), &submission(folder.path())).unwrap();
    assert!(!records.exists());
}

/// An engine that passes on what it is asked.
#[derive(Debug)]
struct Recorder(mpsc::UnboundedSender<EngineAction>);

impl Engine for Recorder {
    fn check(&self, _: &Value, _: &mut Problems) {}

    fn prepare(&mut self, _: &JobId, folder: &std::path::Path, options: &Value) -> Result<Prepared, SubmissionError> {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("prepared"), "").unwrap();
        Ok(Prepared { options: EngineOptions::new(options)?, tasks: 0 })
    }

    fn set_slots(&mut self, _: &Job<'_>, slots: BTreeMap<HostId, u32>) {
        self.0.send(EngineAction::SetSlots(slots)).unwrap();
    }

    fn cancel(&mut self, _: &Job<'_>) {
        self.0.send(EngineAction::Cancel).unwrap();
    }

    fn stop(&mut self) -> Vec<tokio::task::JoinHandle<()>> {
        Vec::new()
    }
}

/// A shell whose engine `exec` passes on what it is asked.
fn shell_with_recorder(folder: &std::path::Path) -> (Shell, mpsc::UnboundedReceiver<EngineAction>) {
    let mut shell = shell(folder);
    let (actions, outgoing) = mpsc::unbounded_channel();
    let (reports, _) = mpsc::channel(1);
    let tasks = TaskLink::new(HostId::new("here").unwrap(), folder.join("jobs"));
    let recorder = Box::new(Recorder(actions));
    let engines = Engines::new(folder.join("jobs"), tasks, reports);
    shell.engines = engines.with(EngineName::of("exec"), WorkerShape::Hosts, recorder);
    (shell, outgoing)
}

#[tokio::test]
async fn what_an_engine_stores_of_a_new_job_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (mut shell, _outgoing) = shell_with_recorder(folder.path());
    let records = folder.path().join("jobs/j");
    std::fs::create_dir_all(&records).unwrap();
    std::fs::write(records.join("of_an_older_job"), "").unwrap();
    shell.submit_cluster(&root(), &submission(folder.path())).unwrap();
    let kept: Vec<_> = std::fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(kept, ["prepared"]);
}

#[tokio::test]
async fn a_batch_system_gets_no_end_of_a_job_it_never_had() {
    let folder = tempfile::tempdir().unwrap();
    let (mut shell, mut outgoing) = shell_with_recorder(folder.path());
    let job = JobId::new("j").unwrap();
    let spec = shell.engines.prepare_cluster(&job, &submission(folder.path())).unwrap();
    shell.accept(spec).unwrap();
    assert!(shell.controller.job(&job).is_some_and(|status| status.started.is_none()), "its host is not there");
    shell.cancel(job).unwrap();
    assert!(outgoing.try_recv().is_err());
}
