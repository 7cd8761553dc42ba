//! Events of agents on a full disk and across restarts; the stored state when the disk or etcd fails; answers to
//! operators and the audit of their orders; joining and revoking with wrong clocks.

use std::time::Duration;

use gleaner_daemon::clock::ManualClock;
use gleaner_net::join::{hash_of, new_secret};
use gleaner_net::tls::{Authority, Validity};
use gleaner_planner::advice::Question;
use gleaner_planner::controller::Settings;
use gleaner_test_support::report;
use gleaner_types::application::{Access, ApplicationSpec, Bounds, Control, ResponseSource, TierSpec, TimeUnit};
use gleaner_types::engine::{EngineName, EngineOptions};
use gleaner_types::id::{TierId, WorkloadId};
use gleaner_types::report::{HostFacts, HostReport, Levers, Reading};
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
                access: Access::default(),
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

/// A new connection of a host that observes only, and what its agent is answered.
fn join(shell: &mut Shell, host: &HostId, connection: u64, certificate: Validity) -> Result<u64, Declined> {
    let ((sender, _), (closer, _), (events_through, mut answer)) =
        (mpsc::channel(1), oneshot::channel(), oneshot::channel());
    let levers = Levers::without_volunteer(false, Vec::new());
    shell.joined(Joined {
        host: host.clone(),
        incarnation: 1,
        facts: Box::new(HostFacts { levers, ..report::facts(false) }),
        tasks_of_root: None,
        connection,
        version: ProtocolVersion::CURRENT,
        certificate,
        sender,
        closer,
        events_through,
    });
    answer.try_recv().unwrap()
}

#[tokio::test]
async fn names_of_guests_are_those_of_the_connection_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let host = HostId::new("h1").unwrap();
    let now = Clock::start().now();
    let certificate = Validity { from: now, until: now.after(Duration::from_secs(86_400)) };
    let name = |text: &str| gleaner_types::guest::GuestName {
        workload: WorkloadId::new("w").unwrap(),
        manager: gleaner_types::guest::Manager::Qemu,
        name: gleaner_types::id::GuestText::new(text).unwrap(),
        title: None,
        instance: None,
        uuid: None,
        pid: None,
    };
    let say = |shell: &mut Shell, connection, text: &str| {
        let unmatched = vec![gleaner_types::id::GuestText::new("web-*.slice").unwrap()];
        let names = GuestNames { guests: vec![name(text)], unmatched };
        shell.take(Arrival::Guests { host: host.clone(), connection, names });
    };
    let names = |shell: &mut Shell| -> Vec<String> {
        match shell.answer(&root(), Request::Guests) {
            Ok(Response::Guests(hosts)) => {
                hosts.into_iter().flat_map(|host| host.guests).map(|own| own.name.to_string()).collect()
            }
            other => panic!("{other:?}"),
        }
    };
    join(&mut shell, &host, 1, certificate).unwrap();
    assert_eq!(names(&mut shell), Vec::<String>::new(), "an agent of an older release says none");
    say(&mut shell, 1, "web");
    assert_eq!(names(&mut shell), ["web"]);
    match shell.answer(&root(), Request::Guests) {
        Ok(Response::Guests(hosts)) => assert_eq!(hosts[0].unmatched[0].as_str(), "web-*.slice"),
        other => panic!("{other:?}"),
    }
    join(&mut shell, &host, 2, certificate).unwrap();
    assert_eq!(names(&mut shell), Vec::<String>::new(), "the next one may be of an older release");
    say(&mut shell, 1, "late");
    assert_eq!(names(&mut shell), Vec::<String>::new(), "what was on its way on the older connection");
    say(&mut shell, 2, "web");
    shell.take(Arrival::Lost { host: host.clone(), connection: 2, reason: String::new(), left: false });
    assert_eq!(names(&mut shell), ["web"], "as the last report, it stays");
    shell.revoke(&host, false).unwrap();
    assert_eq!(names(&mut shell), Vec::<String>::new());
}

#[tokio::test]
async fn a_certificate_dated_ahead_is_revoked_with_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let host = HostId::new("h1").unwrap();
    // Signed while the clock was an hour ahead.
    let from = Clock::start().now().after(Duration::from_secs(3_600));
    let certificate = Validity { from, until: from.after(Duration::from_secs(86_400)) };
    let join = |shell: &mut Shell, connection| join(shell, &host, connection, certificate);
    assert!(join(&mut shell, 1).is_ok());
    let reported = |shell: &Shell| shell.hosts()[0].report.is_some();
    shell.take(Arrival::Report(Box::new(report::report(&host, 1))));
    assert!(reported(&shell));
    let advised = |shell: &Shell| shell.advice(Question { for_s: 60.0, risk: 0.1 }).hosts.len();
    assert_eq!(advised(&shell), 1);
    assert!(
        matches!(shell.revoke(&host, true), Ok(Response::Revoked { was_connected: true, through }) if through >= from)
    );
    // What it said is shown no more, and what of it was still on its way is not taken.
    assert!(!reported(&shell));
    shell.take(Arrival::Report(Box::new(report::report(&host, 2))));
    assert!(!reported(&shell));
    assert_eq!(advised(&shell), 0, "it can give nothing");
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
    let error = shell.revoke(&host, true).unwrap_err();
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
    shell.cancel(&job).unwrap();
    assert!(outgoing.try_recv().is_err());
}

#[tokio::test]
async fn a_name_cancels_the_run_that_goes_on_and_the_answer_says_whose_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (mut shell, _outgoing) = shell_with_recorder(folder.path());
    let accept = |shell: &mut Shell, id: &str, user: &str| {
        let spec = shell.engines.prepare_cluster(&JobId::new(id).unwrap(), &submission(folder.path())).unwrap();
        let user = Some(gleaner_types::id::UserName::new(user).unwrap());
        shell.accept(gleaner_types::job::JobSpec { user, ..spec }).unwrap();
    };
    let cancel = |shell: &mut Shell, called: &str| match shell.cancel(&JobId::new(called).unwrap()) {
        Ok(Response::Cancelled { job, user }) => Ok((job.to_string(), user.unwrap().to_string())),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.message),
    };
    accept(&mut shell, "tiles", "ann");
    accept(&mut shell, "tiles.run-2", "bob");
    assert_eq!(cancel(&mut shell, "tiles"), Ok(("tiles.run-2".into(), "bob".into())));
    assert_eq!(
        cancel(&mut shell, "tiles"),
        Ok(("tiles".into(), "ann".into())),
        "the newest has ended, and this one goes on"
    );
    assert!(cancel(&mut shell, "tiles").unwrap_err().contains("job tiles.run-2 has ended"), "none goes on");
    accept(&mut shell, "tiles.run-3", "ann");
    assert!(cancel(&mut shell, "tiles.run-1").unwrap_err().contains("job tiles has ended"), "that one and no other");
}

#[tokio::test]
async fn orders_about_hosts_want_one_that_is_known_and_a_removed_one_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = shell(folder.path());
    let host = HostId::new("rack-1").unwrap();
    let hold = |name: &str, unknown| Request::Hold { host: HostId::new(name).unwrap(), for_s: None, unknown };
    let remove = || Request::RemoveHost { host: host.clone() };
    let refused = |answer: Result<Response, gleaner_api::ApiError>, code, says: &str| {
        let error = answer.unwrap_err();
        assert!(error.code == code && error.message.contains(says), "{error:?}");
    };
    refused(shell.api(&root(), hold("rack-1", false)), ErrorCode::NotFound, "there is no host rack-1 (");
    shell.decide(Input::HostJoined { host: host.clone(), incarnation: 1, facts: Box::new(report::facts(true)) });
    shell.take(Arrival::Report(Box::new(report::report(&host, 1))));
    refused(shell.api(&root(), hold("rack1", false)), ErrorCode::NotFound, "no host rack1; did you mean rack-1?");
    assert!(matches!(shell.api(&root(), hold("rack-1", false)), Ok(Response::Held { .. })));
    assert!(matches!(shell.api(&root(), hold("rack-9", true)), Ok(Response::Held { .. })));
    refused(shell.api(&root(), remove()), ErrorCode::Conflict, "is connected");
    shell.decide(Input::HostLost { host: host.clone(), reason: "test".into() });
    assert!(shell.histories.of_hosts().contains_key(&host));
    assert!(matches!(shell.api(&root(), remove()), Ok(Response::HostRemoved)));
    assert!(shell.hosts().is_empty() && shell.histories.of_hosts().is_empty());
    refused(shell.api(&root(), remove()), ErrorCode::NotFound, "there is no host rack-1; did you mean rack-9?");

    let all = |for_s| Request::HoldAll { for_s };
    refused(shell.api(&root(), all(Some(0.5))), ErrorCode::Invalid, "for_s: is 0.5");
    refused(shell.api(&root(), Request::ReleaseAll), ErrorCode::NotFound, "not held all together");
    assert!(matches!(shell.api(&root(), all(None)), Ok(Response::Held { .. })));
    let Ok(Response::Overview(overview)) = shell.api(&root(), Request::Overview) else { panic!("no overview") };
    assert_eq!(overview.all_held.unwrap().by, root().user);
    assert!(matches!(shell.api(&root(), Request::ReleaseAll), Ok(Response::Released)));
}

#[tokio::test]
async fn advice_rests_on_what_was_seen_before_the_aggregator_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new(Timestamp(1_700_000_040_000));
    let host = HostId::new("h1").unwrap();
    let shell_of = |name: &str| {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        let shell = shell_with(&folder.path().join(name), hand.clock(), Enrolment::closed());
        shell.with_histories(Histories::kept_in(folder.path().join("advice.jsonl")))
    };
    let promised = |shell: &mut Shell| {
        let question = Question { for_s: 60.0, risk: 0.1 };
        let facts = Box::new(report::facts(true));
        shell.take(Arrival::Joined(joined(&host, facts)));
        let now = hand.clock().now();
        shell.take(Arrival::Report(Box::new(seen(&host, now))));
        shell.advice(question).hosts[0].promise.clone()
    };
    let mut first = shell_of("first");
    first.start();
    assert!(matches!(promised(&mut first), Reading::Absent(_)), "nothing is known yet");
    for second in 0..10 * 60 {
        hand.set(Timestamp(1_700_000_040_000 + second * 1_000));
        first.take(Arrival::Report(Box::new(seen(&host, hand.clock().now()))));
        first.take(Arrival::Tick);
    }
    let before = promised(&mut first);
    assert!(matches!(before, Reading::Value(_)), "{before:?}");
    first.histories.settle();
    // Killed: nothing is stored at its end.
    drop(first);
    let mut second = shell_of("second");
    second.start();
    assert!(matches!(promised(&mut second), Reading::Value(_)), "what was seen is still known");
}

/// A report of a host whose foreground uses one core of four, with a forecast.
fn seen(host: &HostId, at: Timestamp) -> HostReport {
    let mut report = HostReport { at, residual: report::residual(250.0, 200.0), ..report::report(host, at.0) };
    report.machine.cpu_foreground = report::share(100.0);
    report
}

fn joined(host: &HostId, facts: Box<HostFacts>) -> Joined {
    let ((sender, _), (closer, _), (events_through, _)) = (mpsc::channel(16), oneshot::channel(), oneshot::channel());
    let now = Clock::start().now();
    Joined {
        host: host.clone(),
        incarnation: 1,
        facts,
        tasks_of_root: None,
        connection: 1,
        version: ProtocolVersion::CURRENT,
        certificate: Validity { from: now, until: now.after(Duration::from_secs(86_400)) },
        sender,
        closer,
        events_through,
    }
}
