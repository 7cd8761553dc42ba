//! The engine on real processes, in a real volunteer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gleaner_agent::tasks::{TaskInput, TaskRunner, TaskSettings};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::process;
use gleaner_types::engine::EngineSpec;
use gleaner_types::event::Event;
use gleaner_types::job::{EngineEnd, EngineProgress, Goal, JobSpec, Prices, SlotSpec, Workers};
use gleaner_types::report::VolunteerKind;
use gleaner_types::task::{ROOT_REFUSED, TaskState, TaskUser};
use gleaner_types::units::Bytes;
use gleaner_wire::{FromAggregator, ProtocolVersion};
use tokio::sync::mpsc;

use super::link::TaskLink;
use super::*;
use crate::engine::interface::EngineReport;
use crate::engine::submission::options_of;
use gleaner_api::SubmitJob;

mod faults;

pub(in crate::engine) fn submission(tasks: &[&str]) -> SubmitJob {
    SubmitJob {
        job: None,
        goal: Goal::Cost { budget: None },
        prices: Prices::default(),
        tasks: tasks.iter().map(|task| (*task).to_owned()).collect(),
        environment: BTreeMap::new(),
        working_dir: "/tmp".into(),
        output_dir: None,
        dedicated_slots: 1,
        max_slots: None,
        memory_per_slot: Bytes(0),
        max_attempts: 2,
        task_timeout_s: None,
    }
}

/// The user that runs the tests.
pub(in crate::engine) fn own() -> TaskUser {
    TaskUser { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// This machine's agent, as far as it runs tasks: the real one, without a network in between.
struct Agent {
    inputs: mpsc::Sender<TaskInput>,
    /// Takes what it tells.
    states: Arc<Mutex<Option<mpsc::UnboundedSender<TaskState>>>>,
    /// The end of the connection that there is.
    connection: Option<mpsc::Sender<FromAggregator>>,
    connections: u64,
}

impl Agent {
    fn start(folder: &Path, root: bool) -> Self {
        let registry = folder.join("volunteer");
        std::fs::create_dir(&registry).unwrap();
        let volunteer = VolunteerKind::ProcessGroups { registry: registry.display().to_string() };
        let settings = TaskSettings {
            lease: Duration::from_secs(600),
            root,
            ..TaskSettings::new(true, folder.join("tasks"), volunteer)
        };
        let states: Arc<Mutex<Option<mpsc::UnboundedSender<TaskState>>>> = Arc::default();
        let tell = Arc::clone(&states);
        let tell = move |state| {
            if let Some(to) = &*tell.lock().unwrap() {
                _ = to.send(state);
            }
        };
        let (inputs, receiver) = mpsc::channel(256);
        tokio::spawn(TaskRunner::open(settings, Clock::start(), tell).unwrap().run(receiver));
        Self { inputs, states, connection: None, connections: 0 }
    }

    fn connect(&mut self, link: &TaskLink) {
        self.connections += 1;
        let (sender, mut outgoing) = mpsc::channel(256);
        link.set_epoch(Clock::start().now().0 + self.connections);
        link.connected(self.connections, ProtocolVersion::CURRENT, None, &sender);
        self.connection = Some(sender);
        let (tell, mut states) = mpsc::unbounded_channel();
        *self.states.lock().unwrap() = Some(tell);
        let (inputs, link) = (self.inputs.clone(), link.clone());
        tokio::spawn(async move {
            while let Some(state) = states.recv().await {
                link.states(vec![state]).await;
            }
        });
        tokio::spawn(async move {
            _ = inputs.send(TaskInput::Connected).await;
            while let Some(message) = outgoing.recv().await {
                let input = match message {
                    FromAggregator::TaskJob(job) => TaskInput::Job(job),
                    FromAggregator::Tasks(orders) => TaskInput::Orders(orders),
                    other => panic!("{other:?}"),
                };
                _ = inputs.send(input).await;
            }
        });
    }
}

/// An engine with a job in a folder of its own; tasks may use `$D` for the folder.
struct Bench {
    folder: tempfile::TempDir,
    agent: Agent,
    link: TaskLink,
    reports: mpsc::Receiver<EngineReport>,
    engine: LocalEngine,
    spec: JobSpec,
    seen: Vec<EngineReport>,
}

impl Bench {
    fn new(submit: SubmitJob) -> Self {
        Self::within(tempfile::tempdir().unwrap(), submit)
    }

    fn within(folder: tempfile::TempDir, submit: SubmitJob) -> Self {
        let mut bench = Self::unconnected(folder, submit);
        bench.agent.connect(&bench.link);
        bench
    }

    fn unconnected(folder: tempfile::TempDir, submit: SubmitJob) -> Self {
        Self::with_agent(folder, submit, true)
    }

    /// `root`: the agent's config allows tasks of root.
    fn with_agent(folder: tempfile::TempDir, mut submit: SubmitJob, root: bool) -> Self {
        submit.environment.insert("D".into(), folder.path().display().to_string());
        let agent = Agent::start(folder.path(), root);
        let (link, reports, mut engine) = Self::engine(folder.path());
        let spec = take(&mut engine, folder.path(), "j", submit).unwrap();
        Self { folder, agent, link, reports, engine, spec, seen: vec![] }
    }

    fn engine(folder: &Path) -> (TaskLink, mpsc::Receiver<EngineReport>, LocalEngine) {
        let (reports, receiver) = mpsc::channel(64);
        let tasks = TaskLink::new(host(), folder.join("jobs"));
        (tasks.clone(), receiver, LocalEngine::open(&Setting { host: host(), reports, tasks }))
    }

    /// An aggregator that starts again, with what is on the disk.
    fn restart(&mut self) {
        (self.link, self.reports, self.engine) = Self::engine(self.folder.path());
        self.agent.connect(&self.link);
    }

    fn prepare(&mut self, job: &str, submit: SubmitJob) -> Result<JobSpec, SubmissionError> {
        take(&mut self.engine, self.folder.path(), job, submit)
    }

    fn act(&mut self, action: impl FnOnce(&mut LocalEngine, &Job<'_>)) {
        let folder = self.folder.path().join("jobs/j");
        action(&mut self.engine, &Job { spec: &self.spec, folder: &folder, epoch: 0 });
    }

    async fn stop(&mut self) {
        for task in self.engine.stop() {
            task.await.unwrap();
        }
    }

    fn slots(&mut self, slots: u32) {
        self.act(|engine, job| engine.set_slots(job, BTreeMap::from([(host(), slots)])));
    }

    async fn next(&mut self) -> EngineReport {
        let report = tokio::time::timeout(Duration::from_secs(30), self.reports.recv()).await;
        let report = report.expect("a report within 30 s").expect("engines are there");
        self.seen.push(report.clone());
        report
    }

    async fn end(&mut self) -> (EngineEnd, EngineProgress) {
        loop {
            if let EngineReport::Ended { end, progress, .. } = self.next().await {
                return (end, progress.unwrap());
            }
        }
    }

    async fn until(&mut self, condition: impl Fn(&Path) -> bool) {
        let folder = self.folder.path().to_owned();
        let waiting = async {
            while !condition(&folder) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the condition within 30 s");
    }

    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn a_job_of_root_ends_with_what_to_do_where_no_task_runs_as_root() {
    if own().uid != 0 {
        gleaner_test_support::skip!("only root can submit as root");
    }
    // As submitted, and as stored by a release that kept no user.
    for stored_user in [true, false] {
        let tasks = ["echo x >>\"$D/log\"", "echo y >>\"$D/log\""];
        let mut bench = Bench::with_agent(tempfile::tempdir().unwrap(), submission(&tasks), false);
        if !stored_user {
            let mut options: Value = bench.spec.engine.options.read().unwrap();
            options.as_object_mut().unwrap().remove("user").unwrap();
            bench.spec.engine.options = gleaner_types::engine::EngineOptions::new(&options).unwrap();
        }
        bench.agent.connect(&bench.link);
        bench.slots(2);
        let reason = loop {
            if let EngineReport::Ended { end: EngineEnd::Broken { reason }, .. } = bench.next().await {
                break reason;
            }
        };
        assert!(reason.contains("another user") && reason.contains("`tasks.root`"), "{reason}");
        assert!(bench.log().is_empty());
    }
}

#[test]
fn a_job_of_root_is_refused_at_once_where_the_agent_has_said_that_it_starts_none() {
    let folder = tempfile::tempdir().unwrap();
    let (link, _reports, engine) = Bench::engine(folder.path());
    let (sender, _outgoing) = mpsc::channel(1);
    let problems = |uid: u32, gid: u32| {
        let mut problems = Problems::default();
        engine.check(&options_of(submission(&["true"]), TaskUser { uid, gid }), &mut problems);
        problems.none().err().map(|error| error.to_string())
    };
    // Not known before it is connected, nor of an older release.
    assert_eq!(problems(0, 0), None);
    for says in [None, Some(true)] {
        link.connected(1, ProtocolVersion::CURRENT, says, &sender);
        assert_eq!(problems(0, 0), None, "{says:?}");
    }
    link.connected(2, ProtocolVersion::CURRENT, Some(false), &sender);
    for (uid, gid) in [(0, 0), (0, 1_000), (1_000, 0)] {
        assert_eq!(problems(uid, gid), Some(format!("user: {ROOT_REFUSED}")), "{uid}:{gid}");
    }
    assert_eq!(problems(1_000, 1_000), None);
    link.disconnected(2);
    assert_eq!(problems(0, 0), None);
}

/// A submission as the shell hands it in.
fn take(engine: &mut LocalEngine, folder: &Path, job: &str, submit: SubmitJob) -> Result<JobSpec, SubmissionError> {
    let id = JobId::new(job).unwrap();
    let (dedicated_slots, max_slots, options) = (submit.dedicated_slots, submit.max_slots, options_of(submit, own()));
    let mut problems = Problems::default();
    engine.check(&options, &mut problems);
    problems.none()?;
    let Prepared { options, tasks } = engine.prepare(&id, &folder.join("jobs").join(job), &options)?;
    Ok(JobSpec {
        id,
        engine: EngineSpec { options, ..EngineSpec::without_options("local") },
        workers: Workers::Slots(SlotSpec { host: host(), tasks, dedicated_slots, max_slots }),
        goal: Goal::Cost { budget: None },
        prices: Prices::default(),
        memory_per_slot: Bytes(0),
        set_up_s: 0.0,
        power: None,
        user: None,
    })
}

fn host() -> HostId {
    HostId::new("h1").unwrap()
}

fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn lines(path: &Path, file: &str) -> usize {
    std::fs::read_to_string(path.join(file)).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn tasks_keep_their_output() {
    let mut bench = Bench::new(submission(&["echo $GLEANER_JOB.$GLEANER_TASK; echo oops >&2"]));
    bench.slots(1);
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_done), (EngineEnd::Completed, 1));
    let output = bench.folder.path().join("output/j");
    assert_eq!(std::fs::read_to_string(output.join("1.out")).unwrap(), "j.1\n");
    assert_eq!(std::fs::read_to_string(output.join("1.err")).unwrap(), "oops\n");
}

#[tokio::test]
async fn without_a_cgroup_tasks_run_in_the_idle_class_and_register() {
    let mut bench = Bench::new(submission(&["ls \"$D/volunteer\" | wc -l; cut -d' ' -f41 /proc/self/stat"]));
    bench.slots(1);
    assert_eq!(bench.end().await.0, EngineEnd::Completed);
    let out = std::fs::read_to_string(bench.folder.path().join("output/j/1.out")).unwrap();
    // One group was registered; field 41 of stat is the policy: SCHED_IDLE is 5.
    assert_eq!(out.split_whitespace().collect::<Vec<_>>(), ["1", "5"]);
    assert_eq!(std::fs::read_dir(bench.folder.path().join("volunteer")).unwrap().count(), 0);
}

#[tokio::test]
async fn failures_are_tried_again_and_then_given_up() {
    let mut bench = Bench::new(submission(&["true", "echo x >>\"$D/log\"; exit 3", "[ $GLEANER_ATTEMPT = 2 ]"]));
    bench.slots(3);
    let (end, progress) = bench.end().await;
    assert_eq!(end, EngineEnd::CompletedWithFailures { failed: 1 });
    assert_eq!((progress.tasks_done, progress.tasks_failed, progress.tasks_retried), (2, 1, 2));
    assert_eq!(bench.log().len(), 2);
    let given_up = bench.seen.iter().any(|report| {
        matches!(report, EngineReport::Event(Event::TaskFailed { task: 2, attempt: 2, how, retried: false, .. }) if how == "exited with 3")
    });
    assert!(given_up, "{:?}", bench.seen);
}

#[tokio::test]
async fn a_task_that_never_ends_runs_out_of_time() {
    let mut submit = submission(&["trap '' TERM; while :; do sleep 0.05; done", "true"]);
    (submit.task_timeout_s, submit.max_attempts) = (Some(0.3), 1);
    let mut bench = Bench::new(submit);
    bench.slots(2);
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_done), (EngineEnd::CompletedWithFailures { failed: 1 }, 1));
}

#[tokio::test]
async fn a_task_killed_from_outside_has_lost_its_slot_and_runs_again() {
    // The first attempt kills its own process group, as the end of a volunteer does.
    let mut bench =
        Bench::new(submission(&["[ -e \"$D/log\" ] || { echo x >>\"$D/log\"; kill -9 -$PPID; sleep 60; }"]));
    bench.slots(1);
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_done, progress.tasks_retried), (EngineEnd::Completed, 1, 1));
}

#[tokio::test]
async fn shrinking_drains() {
    let tasks: Vec<String> =
        (0..6).map(|i| format!("echo {i} >>\"$D/log\"; while [ ! -e \"$D/go\" ]; do sleep 0.02; done")).collect();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut bench = Bench::new(submission(&tasks));
    bench.slots(3);
    bench.until(|folder| lines(folder, "log") == 3).await;
    bench.slots(1);
    loop {
        if let EngineReport::Progress { progress, .. } = bench.next().await
            && progress.tasks_running == 3
        {
            assert_eq!(progress.slots_in_use, 3, "draining slots are in use");
            break;
        }
    }
    assert_eq!(bench.log().len(), 3, "no new task while more run than there are slots");
    std::fs::write(bench.folder.path().join("go"), "").unwrap();
    assert_eq!(bench.end().await.1.tasks_done, 6);
}

#[tokio::test]
async fn without_an_agent_that_runs_tasks_the_job_waits_and_says_why() {
    let mut bench = Bench::unconnected(tempfile::tempdir().unwrap(), submission(&["echo ran >>\"$D/log\""]));
    bench.slots(1);
    let mut waiting = Vec::new();
    while waiting.len() < 2 {
        let EngineReport::Event(Event::JobWaiting { reason, .. }) = bench.next().await else { continue };
        waiting.push(reason);
        let (old, _) = mpsc::channel(1);
        bench.link.connected(7, ProtocolVersion::V1, None, &old);
    }
    assert!(waiting[0].contains("the agent of this machine, host h1, is not connected"), "{waiting:?}");
    assert!(waiting[1].contains("speaks version 1 of the protocol, in which it runs no tasks"), "{waiting:?}");
    assert!(bench.log().is_empty());
    bench.agent.connect(&bench.link);
    assert_eq!(bench.end().await.0, EngineEnd::Completed);
    assert_eq!(bench.log(), ["ran"]);
}

#[tokio::test]
async fn a_lost_connection_loses_and_doubles_nothing() {
    let tasks: Vec<String> = (0..40).map(|i| format!("echo {i} >>\"$D/log\"; sleep 0.02")).collect();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut bench = Bench::new(submission(&tasks));
    bench.slots(3);
    for number in 1..12 {
        bench.until(|folder| lines(folder, "log") >= 3 * number).await;
        bench.link.disconnected(bench.agent.connections);
        bench.agent.connect(&bench.link);
    }
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_done, progress.tasks_retried), (EngineEnd::Completed, 40, 0));
    assert_eq!(bench.log().len(), 40);
    // The agent keeps nothing but the epoch.
    bench.until(|folder| std::fs::read_dir(folder.join("tasks")).unwrap().count() == 1).await;
}

#[tokio::test]
async fn a_killed_aggregator_runs_no_finished_task_twice() {
    let tasks: Vec<String> = (0..8)
        .map(|i| format!("echo {i} >>\"$D/log\"; [ {i} -lt 3 ] || sleep 0.4; echo {i} >>\"$D/finished\""))
        .collect();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut bench = Bench::new(submission(&tasks));
    bench.slots(2);
    bench.until(|folder| lines(folder, "log") >= 4).await;
    // What kill -9 leaves: the engine is gone without a word, its tasks run on.
    for running in bench.engine.running.values() {
        running.task.abort();
    }
    bench.restart();
    bench.slots(2);
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_done), (EngineEnd::Completed, 8));
    let mut started = bench.log();
    started.sort();
    assert_eq!(started, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(lines(bench.folder.path(), "finished"), 8);
}

/// Other jobs on the machine may have all slots then.
#[tokio::test]
async fn a_job_without_slots_hears_of_what_ran_before_a_restart_and_starts_nothing() {
    let mut bench = Bench::new(submission(&["echo >>\"$D/log\"; sleep 0.4", "echo >>\"$D/log\"", "echo >>\"$D/log\""]));
    bench.slots(1);
    bench.until(|folder| lines(folder, "log") == 1).await;
    bench.engine.running.values().for_each(|running| running.task.abort());
    bench.restart();
    bench.slots(0);
    loop {
        let EngineReport::Progress { progress, .. } = bench.next().await else { panic!("it has ended") };
        if progress.tasks_done == 1 {
            assert_eq!((progress.tasks_running, progress.slots_in_use), (0, 0));
            break;
        }
    }
    assert_eq!(bench.log().len(), 1);
    bench.slots(1);
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_done), (EngineEnd::Completed, 3));
}

#[tokio::test]
async fn an_orderly_stop_ends_tasks_and_so_does_cancelling() {
    let mut bench = Bench::new(submission(&["echo $$ >>\"$D/log\"; sleep 60"]));
    bench.slots(1);
    bench.until(|folder| lines(folder, "log") == 1).await;
    bench.stop().await;
    let pid = |bench: &Bench, line: usize| bench.log()[line].parse::<i32>().unwrap();
    let first = pid(&bench, 0);
    bench.until(|_| process::start_ticks(first).is_none()).await;

    bench.restart();
    bench.slots(1);
    bench.until(|folder| lines(folder, "log") == 2).await;
    bench.act(|engine, job| engine.cancel(job));
    let second = pid(&bench, 1);
    bench.until(|_| process::start_ticks(second).is_none()).await;
}
