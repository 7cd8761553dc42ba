//! The runner on real processes, in a real volunteer.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_types::report::Reason;
use gleaner_types::task::{ROOT_REFUSED, TaskUser};
use tokio::task::JoinHandle;

use super::*;

/// A runner in a folder of its own, and what it tells. Commands may use `$D` for the folder.
struct Bench {
    folder: tempfile::TempDir,
    volunteer: VolunteerKind,
    cgroups: Vec<PathBuf>,
    epoch: u64,
    scratch: Scratch,
    inputs: mpsc::Sender<TaskInput>,
    states: mpsc::UnboundedReceiver<TaskState>,
    running: JoinHandle<()>,
}

const LONG: Duration = Duration::from_secs(600);
/// Longer than one poll of the tasks.
const SHORT: Duration = Duration::from_millis(500);

fn start(
    folder: &Path,
    volunteer: &VolunteerKind,
    lease: Duration,
    begin_limit: Duration,
    scratch: &Scratch,
) -> (mpsc::Sender<TaskInput>, mpsc::UnboundedReceiver<TaskState>, JoinHandle<()>) {
    let settings = TaskSettings::new(true, folder.join("tasks"), volunteer.clone());
    let settings = TaskSettings {
        root: !folder.join("no-root").exists(),
        lease,
        begin_limit,
        scratch: scratch.clone(),
        ..settings
    };
    let (tell, states) = mpsc::unbounded_channel();
    let (inputs, receiver) = mpsc::channel(16);
    let runner = TaskRunner::open(settings, Clock::start(), move |state| _ = tell.send(state)).unwrap();
    (inputs, states, tokio::spawn(runner.run(receiver)))
}

impl Bench {
    fn new() -> Self {
        Self::with_lease(LONG)
    }

    fn with_lease(lease: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = folder.path().join("volunteer");
        std::fs::create_dir(&registry).unwrap();
        let volunteer = VolunteerKind::ProcessGroups { registry: registry.display().to_string() };
        let scratch = Scratch::default();
        let (inputs, states, running) = start(folder.path(), &volunteer, lease, LONG, &scratch);
        Self { folder, volunteer, cgroups: Vec::new(), epoch: Clock::start().now().0, scratch, inputs, states, running }
    }

    /// The agent is killed, and started again: its tasks run on.
    async fn restart(&mut self) {
        self.restart_with(LONG).await;
    }

    /// The same, and tasks may take so long to begin.
    async fn restart_with(&mut self, begin_limit: Duration) {
        self.running.abort();
        _ = (&mut self.running).await;
        let parts = start(self.folder.path(), &self.volunteer, LONG, begin_limit, &self.scratch);
        (self.inputs, self.states, self.running) = parts;
    }

    /// Uses a cgroup as the volunteer; `false`, with a word why, where none can be made.
    async fn use_cgroup(&mut self, name: &str) -> bool {
        let mut procs_files = Vec::new();
        for controller in ["cpu", "freezer"] {
            let group =
                PathBuf::from(format!("/sys/fs/cgroup/{controller}/gleaner-tasks-{name}-{}", std::process::id()));
            if let Err(error) = std::fs::create_dir(&group) {
                gleaner_test_support::skipped!("no real cgroup for the volunteer: {}: {error}", group.display());
                return false;
            }
            procs_files.push(group.join("cgroup.procs").display().to_string());
            self.cgroups.push(group);
        }
        self.volunteer = VolunteerKind::Cgroup { procs_files };
        self.restart().await;
        true
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn send(&self, input: TaskInput) {
        self.inputs.send(input).await.unwrap();
    }

    async fn describe(&self, user: TaskUser, timeout_ms: Option<u64>) {
        self.describe_in(self.folder.path(), user, timeout_ms).await;
    }

    async fn describe_in(&self, working_dir: &Path, user: TaskUser, timeout_ms: Option<u64>) {
        let folder = self.folder.path().display().to_string();
        let job = TaskJob {
            epoch: self.epoch,
            job: job(),
            user,
            working_dir: working_dir.display().to_string(),
            output_dir: self.path("out").display().to_string(),
            environment: vec![("D".to_owned(), folder)],
            timeout_ms,
            tasks: 10,
        };
        self.send(TaskInput::Job(Box::new(job))).await;
    }

    async fn order(&self, task: u32, number: u64, desired: TaskDesired) {
        let orders = vec![TaskOrder { attempt: self.attempt(task, number), desired }];
        self.send(TaskInput::Orders(TaskOrders { epoch: self.epoch, orders })).await;
    }

    async fn run(&self, task: u32, number: u64, command: &str) {
        self.order(task, number, TaskDesired::Run { attempt: 1, command: command.to_owned() }).await;
    }

    fn attempt(&self, task: u32, number: u64) -> TaskAttempt {
        TaskAttempt { job: job(), task, version: Version { epoch: self.epoch, number } }
    }

    async fn next(&mut self) -> TaskState {
        tokio::time::timeout(Duration::from_secs(60), self.states.recv()).await.expect("a state in time").unwrap()
    }

    /// The end of the next attempt that ends.
    async fn end(&mut self) -> TaskStatus {
        loop {
            match self.next().await.status {
                TaskStatus::Running { .. } => {}
                ended => return ended,
            }
        }
    }

    async fn until(&self, condition: impl Fn(&Path) -> bool) {
        let waiting = async {
            while !condition(self.folder.path()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the condition in time");
    }

    fn lines(&self, file: &str) -> usize {
        std::fs::read_to_string(self.path(file)).unwrap_or_default().lines().count()
    }

    /// One that was ended before it could write its number is gone as well.
    async fn gone(&self, file: &str) {
        let Ok(text) = std::fs::read_to_string(self.path(file)) else { return };
        let Ok(pid) = text.trim().parse() else { return };
        self.until(|_| process::start_ticks(pid).is_none()).await;
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.running.abort();
        for group in &self.cgroups {
            for _ in 0..100 {
                for pid in std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
                    if let Some(pid) = rustix::process::Pid::from_raw(pid.parse().unwrap_or_default()) {
                        _ = rustix::process::kill_process(pid, Signal::KILL);
                    }
                }
                if std::fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn job() -> JobId {
    JobId::new("j").unwrap()
}

fn own() -> TaskUser {
    TaskUser { uid: geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn written(folder: &Path, file: &str) -> bool {
    std::fs::read_to_string(folder.join(file)).is_ok_and(|text| text.ends_with('\n'))
}

const WAITS: &str = "echo $$ >\"$D/pid\"; while [ ! -e \"$D/go\" ]; do sleep 0.02; done";

#[tokio::test]
async fn a_task_runs_once_however_often_it_is_ordered_and_its_end_is_kept_until_it_is_stored() {
    let mut bench = Bench::new();
    bench.describe(own(), None).await;
    let command = "echo x >>\"$D/log\"; echo $GLEANER_JOB.$GLEANER_TASK.$GLEANER_ATTEMPT; echo oops >&2; exit 3";
    bench.run(6, 1, command).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Running { .. }));
    assert!(matches!(bench.end().await, TaskStatus::Exited { status: 3, .. }));
    assert_eq!(std::fs::read_to_string(bench.path("out/07.out")).unwrap(), "j.7.1\n");
    assert_eq!(std::fs::read_to_string(bench.path("out/07.err")).unwrap(), "oops\n");
    bench.run(6, 1, command).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Exited { status: 3, .. }));
    // Neither a lost connection nor a restart of the agent loses the end or runs the task again.
    bench.restart().await;
    bench.send(TaskInput::Connected).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Exited { status: 3, .. }));
    bench.describe(own(), None).await;
    bench.run(6, 1, command).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Exited { status: 3, .. }));
    assert_eq!(bench.lines("log"), 1, "it ran once");
    bench.order(6, 1, TaskDesired::Forget).await;
    bench.until(|folder| std::fs::read_dir(folder.join("tasks")).unwrap().count() == 1).await;
    assert_eq!(std::fs::read_dir(bench.path("volunteer")).unwrap().count(), 0, "nothing is left of it");
}

#[tokio::test]
async fn a_task_that_outlives_its_agent_is_adopted() {
    let mut bench = Bench::new();
    bench.describe(own(), None).await;
    bench.run(0, 1, WAITS).await;
    bench.until(|folder| written(folder, "pid")).await;
    bench.restart().await;
    bench.send(TaskInput::Connected).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Running { .. }));
    std::fs::write(bench.path("go"), "").unwrap();
    assert!(matches!(bench.end().await, TaskStatus::Exited { status: 0, .. }));
    // One that was killed while nobody looked is lost, and stays so.
    std::fs::remove_file(bench.path("go")).unwrap();
    bench.describe(own(), None).await;
    std::fs::remove_file(bench.path("pid")).unwrap();
    bench.run(1, 2, WAITS).await;
    bench.until(|folder| written(folder, "pid")).await;
    bench.running.abort();
    let pid: i32 = std::fs::read_to_string(bench.path("pid")).unwrap().trim().parse().unwrap();
    let group = rustix::process::getpgid(rustix::process::Pid::from_raw(pid)).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    bench.gone("pid").await;
    bench.restart().await;
    assert!(matches!(bench.end().await, TaskStatus::Lost { .. }));
}

#[tokio::test]
async fn tasks_end_by_order_and_when_their_time_is_up_and_without_the_aggregator() {
    let mut bench = Bench::with_lease(Duration::from_millis(2_000));
    bench.describe(own(), None).await;
    bench.run(0, 1, WAITS).await;
    bench.until(|folder| written(folder, "pid")).await;
    bench.order(0, 1, TaskDesired::End).await;
    assert!(matches!(bench.end().await, TaskStatus::Lost { .. }));
    bench.gone("pid").await;
    bench.describe(own(), Some(300)).await;
    std::fs::remove_file(bench.path("pid")).unwrap();
    bench.run(0, 2, &format!("trap '' TERM; {WAITS}")).await;
    // As an aggregator that has nothing to order does.
    let end = loop {
        bench.send(TaskInput::Orders(TaskOrders { epoch: bench.epoch, orders: vec![] })).await;
        match tokio::time::timeout(Duration::from_millis(100), bench.states.recv()).await {
            Ok(Some(TaskState { status: TaskStatus::Running { .. }, .. })) | Err(_) => {}
            Ok(state) => break state.unwrap().status,
        }
    };
    assert!(matches!(end, TaskStatus::TimedOut { .. }), "{end:?}");
    bench.gone("pid").await;
    bench.describe(own(), None).await;
    bench.run(0, 3, WAITS).await;
    let end = bench.end().await;
    assert!(matches!(end, TaskStatus::Lost { ran_ms } if ran_ms >= 1_000), "the lease is over: {end:?}");
    bench.gone("pid").await;
}

#[tokio::test]
async fn orders_of_an_older_aggregator_are_refused() {
    let mut bench = Bench::new();
    bench.describe(own(), None).await;
    bench.epoch -= 1;
    bench.run(0, 1, "echo x >>\"$D/log\"").await;
    bench.epoch += 1;
    bench.run(0, 2, "echo x >>\"$D/log\"").await;
    assert_eq!(bench.next().await.attempt, bench.attempt(0, 2));
    bench.end().await;
    assert_eq!(bench.lines("log"), 1);
}

#[tokio::test]
async fn what_cannot_be_started_says_why_and_leaves_nothing() {
    let mut bench = Bench::new();
    let reason = |state: TaskState| match state.status {
        TaskStatus::NotStarted { reason } => reason,
        other => panic!("{other:?}"),
    };
    bench.run(0, 1, "true").await;
    assert!(reason(bench.next().await).contains("does not know what the tasks of job j have in common"));
    bench.describe(own(), None).await;
    bench.run(0, 1, WAITS).await;
    assert!(reason(bench.next().await).contains("does not know"), "an attempt is refused for good");
    bench.run(0, 2, WAITS).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Running { .. }));
    bench.run(0, 3, "true").await;
    assert!(reason(bench.next().await).contains("an earlier attempt at task 1 still runs"));
    bench.order(0, 2, TaskDesired::Forget).await;
    bench.until(|folder| std::fs::read_dir(folder.join("tasks")).unwrap().count() == 1).await;
    bench.volunteer =
        VolunteerKind::Cgroup { procs_files: vec![bench.path("gone/cgroup.procs").display().to_string()] };
    bench.restart().await;
    bench.describe(own(), None).await;
    bench.run(0, 4, "echo x >>\"$D/log\"").await;
    let why = reason(bench.next().await);
    assert!(why.contains("gone/cgroup.procs"), "{why}");
    bench.volunteer = VolunteerKind::Cgroup { procs_files: Vec::new() };
    bench.restart().await;
    bench.describe(own(), None).await;
    bench.run(0, 6, "echo x >>\"$D/log\"").await;
    assert!(reason(bench.next().await).contains("no volunteer"), "no task runs where nothing holds it");
    bench.send(TaskInput::Stop).await;
    bench.run(0, 5, "echo x >>\"$D/log\"").await;
    assert!(reason(bench.next().await).contains("the agent stops"));
    assert_eq!(bench.lines("log"), 0, "no task runs outside the volunteer");
    // All that is left is the epoch.
    bench.until(|folder| std::fs::read_dir(folder.join("tasks")).unwrap().count() == 1).await;
}

#[tokio::test]
async fn no_task_is_started_while_a_disk_is_short_and_folders_of_running_tasks_are_reported() {
    let mut bench = Bench::new();
    bench.describe(own(), None).await;
    bench.run(0, 1, WAITS).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Running { .. }));
    let out = bench.path("out");
    let scratch = bench.scratch.clone();
    bench.until(|_| scratch.folders().contains(&out)).await;
    // What changes nothing of them reports nothing.
    let mark = PathBuf::from("/mark");
    scratch.set_folders(std::iter::once(mark.clone()));
    bench.send(TaskInput::Orders(TaskOrders { epoch: bench.epoch, orders: vec![] })).await;
    bench.order(5, 9, TaskDesired::End).await;
    assert!(matches!(bench.end().await, TaskStatus::Lost { .. }));
    bench.send(TaskInput::Orders(TaskOrders { epoch: bench.epoch, orders: vec![] })).await;
    tokio::time::sleep(SHORT).await;
    assert!(scratch.folders().contains(&mark), "{:?}", scratch.folders());
    let short = Reason::DiskShort { folder: "/srv".into(), available_mib: 1, floor_mib: 2 };
    scratch.set_short(Some(short));
    bench.run(1, 2, "echo x >>\"$D/log\"").await;
    let TaskStatus::NotStarted { reason } = bench.next().await.status else { panic!("it was started") };
    assert!(reason.contains("1.0 MiB are free on the file system of `/srv`, and 2.0 MiB are kept free"), "{reason}");
    scratch.set_short(None);
    bench.run(1, 3, "echo x >>\"$D/log\"").await;
    bench.end().await;
    assert_eq!(bench.lines("log"), 1);
    bench.order(0, 1, TaskDesired::End).await;
    bench.end().await;
    bench.until(|_| scratch.folders().is_empty()).await;
}

#[tokio::test]
async fn an_attempt_that_was_ended_or_forgotten_is_not_started_after_all() {
    let mut bench = Bench::new();
    bench.describe(own(), None).await;
    bench.run(0, 1, WAITS).await;
    bench.until(|folder| written(folder, "pid")).await;
    bench.order(0, 1, TaskDesired::Forget).await;
    bench.run(0, 1, "echo x >>\"$D/log\"").await;
    let why = not_started(bench.end().await);
    assert!(why.contains("forgotten by order"), "{why}");
    bench.gone("pid").await;
    // The next attempt at the same task is another.
    bench.run(0, 2, "echo x >>\"$D/log\"").await;
    assert!(matches!(bench.end().await, TaskStatus::Exited { status: 0, .. }));
    bench.order(1, 3, TaskDesired::End).await;
    assert!(matches!(bench.end().await, TaskStatus::Lost { ran_ms: 0 }));
    bench.run(1, 3, "echo x >>\"$D/log\"").await;
    let why = not_started(bench.end().await);
    assert!(why.contains("before it began"), "{why}");
    assert_eq!(bench.lines("log"), 1);
}

/// As after a slow sync: the shell of a task was killed meanwhile, and the order to forget the task comes first.
#[tokio::test]
async fn what_a_killed_shell_leaves_is_ended_when_its_task_is_forgotten() {
    // By the number of its group, and by the volunteer's cgroup.
    let mut bench = Bench::new();
    let has_cgroup = bench.use_cgroup("remains").await;
    for (waited_for, in_cgroup) in [(false, false), (true, false), (false, true), (true, true)] {
        if in_cgroup && !has_cgroup {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let registry = folder.path().join("volunteer");
        std::fs::create_dir(&registry).unwrap();
        let volunteer = match in_cgroup {
            true => bench.volunteer.clone(),
            false => VolunteerKind::ProcessGroups { registry: registry.display().to_string() },
        };
        let settings = TaskSettings { root: true, ..TaskSettings::new(true, folder.path().join("tasks"), volunteer) };
        let mut runner = TaskRunner::open(settings, Clock::start(), |_| ()).unwrap();
        let (epoch, here) = (Clock::start().now().0, folder.path().display().to_string());
        let described = TaskJob {
            epoch,
            job: job(),
            user: own(),
            working_dir: here.clone(),
            output_dir: here,
            environment: Vec::new(),
            timeout_ms: None,
            tasks: 1,
        };
        runner.take(TaskInput::Job(Box::new(described))).await;
        let attempt = TaskAttempt { job: job(), task: 0, version: Version { epoch, number: 1 } };
        let mut order = async |desired| {
            let orders = vec![TaskOrder { attempt: attempt.clone(), desired }];
            runner.take(TaskInput::Orders(TaskOrders { epoch, orders })).await;
            runner.attempts.get(&attempt).map(|phase| match phase {
                Phase::Running(running) => running.run.pid,
                Phase::Ended(status) => panic!("{status:?}"),
            })
        };
        // Nothing here yields, so nobody waits for the shell.
        let until = |condition: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !condition() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            condition()
        };
        let command = "echo $$ >pid; exec sleep 600".to_owned();
        let shell = order(TaskDesired::Run { attempt: 1, command }).await.unwrap();
        assert!(until(&|| written(folder.path(), "pid")));
        let pid: i32 = std::fs::read_to_string(folder.path().join("pid")).unwrap().trim().parse().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(shell).unwrap(), Signal::KILL).unwrap();
        assert!(until(&|| process::start_ticks(shell).is_none()) && process::start_ticks(pid).is_some());
        while waited_for && Path::new(&format!("/proc/{shell}")).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(order(TaskDesired::Forget).await, None);
        let ended = until(&|| process::start_ticks(pid).is_none());
        if !ended {
            _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        assert!(ended, "process {pid} of a task that nobody knows runs on");
    }
}

#[tokio::test]
async fn a_task_runs_as_root_only_where_the_config_says_so() {
    if !geteuid().is_root() {
        gleaner_test_support::skip!("only an agent that is root can run tasks as root");
    }
    let mut bench = Bench::new();
    std::fs::write(bench.path("no-root"), "").unwrap();
    bench.restart().await;
    std::fs::set_permissions(bench.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // An aggregator may name any group with it.
    for (number, gid) in [(1, 0), (2, 65_534)] {
        bench.describe(TaskUser { uid: 0, gid }, None).await;
        bench.run(0, number, "echo x >>\"$D/log\"").await;
        assert_eq!(not_started(bench.end().await), ROOT_REFUSED);
    }
    // Nor by the numbers that leave user and group as they are.
    for (number, uid, gid) in [(11, u32::MAX, 65_534), (12, 65_534, u32::MAX)] {
        bench.describe(TaskUser { uid, gid }, None).await;
        bench.run(0, number, "echo x >>\"$D/log\"").await;
        let why = not_started(bench.end().await);
        assert!(why.contains("make it its user's"), "{why}");
    }
    assert_eq!(bench.lines("log"), 0);
    bench.describe(TaskUser { uid: 65_534, gid: 65_534 }, None).await;
    bench.run(0, 3, "echo x >>\"$D/log\"").await;
    assert!(matches!(bench.end().await, TaskStatus::Exited { status: 0, .. }));
    std::fs::remove_file(bench.path("no-root")).unwrap();
    bench.restart().await;
    bench.describe(TaskUser { uid: 0, gid: 0 }, None).await;
    bench.run(0, 4, "echo x >>\"$D/log\"").await;
    assert!(matches!(bench.end().await, TaskStatus::Exited { status: 0, .. }));
    assert_eq!(bench.lines("log"), 2);
}

#[tokio::test]
async fn tasks_run_in_the_volunteers_cgroup_as_the_user_who_submitted_them() {
    if !geteuid().is_root() {
        gleaner_test_support::skip!("tasks of another user need root");
    }
    let mut bench = Bench::new();
    if !bench.use_cgroup("user").await {
        return;
    }
    let user = TaskUser { uid: 65_534, gid: 65_533 };
    bench.describe(user, None).await;
    bench.run(0, 1, "true").await;
    let TaskStatus::NotStarted { reason } = bench.end().await else { panic!("it may not write there") };
    assert!(reason.contains("failed to make the folder") && reason.contains("ermission denied"), "{reason}");
    std::fs::set_permissions(bench.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    bench.run(0, 2, "id -u; id -G; cat /proc/self/cgroup /proc/self/status; ls \"$D/tasks\"").await;
    let end = bench.end().await;
    assert!(matches!(end, TaskStatus::Exited { .. }), "{end:?}");
    let output = std::fs::read_to_string(bench.path("out/01.out")).unwrap();
    assert!(output.starts_with("65534\n65533\n"), "{output}");
    assert!(output.contains("cpu:/gleaner-tasks-user-") && output.contains("freezer:/gleaner-tasks-user-"), "{output}");
    let says = |line: &str| output.lines().any(|own| own.split_whitespace().eq(line.split(' ')));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(says(&format!("{set}: 0000000000000000")), "{output}");
    }
    assert!(says("NoNewPrivs: 1"), "{output}");
    assert!(std::fs::read_to_string(bench.path("out/01.err")).unwrap().contains("ermission denied"), "the records");
    let owner = std::fs::metadata(bench.path("out/01.out")).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (65_534, 65_533));
}

#[tokio::test]
async fn the_user_of_a_task_cannot_trace_the_shell_that_waits_for_its_word() {
    use std::os::unix::process::CommandExt;
    if !geteuid().is_root() {
        gleaner_test_support::skip!("tasks of another user need root");
    }
    let (folder, user) = (tempfile::tempdir().unwrap(), TaskUser { uid: 65_534, gid: 65_533 });
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (said, done) = (folder.path().join("said"), folder.path().join("done"));
    let mut child = launch::spawn(Launch {
        command: &format!("echo $$ >{}; exec sleep 600", said.display()),
        user,
        groups: vec![user.gid],
        environment: &[],
        working_dir: folder.path(),
        output_dir: folder.path(),
        stdout: &folder.path().join("out"),
        stderr: &folder.path().join("err"),
        exit: std::fs::File::create(&done).unwrap(),
        variables: ["A", "B", "C"].map(|name| (name, String::new())),
    })
    .unwrap();
    // The kernel tells whoever may trace a process which program it runs.
    let sees = |pid: u32| {
        let mut look = std::process::Command::new("readlink");
        look.arg(format!("/proc/{pid}/exe")).uid(user.uid).gid(user.gid).output().unwrap().status.success()
    };
    let shell = child.id().unwrap();
    let before = sees(shell);
    launch::release(&mut child, &[]).await.unwrap();
    let waiting = async {
        while !written(folder.path(), "said") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let began = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    let command = std::fs::read_to_string(said).unwrap_or_default().trim().parse().ok();
    let own = command.is_some_and(sees);
    let group = rustix::process::Pid::from_raw(i32::try_from(shell).unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    child.wait().await.unwrap();
    assert!(began.is_ok() && own, "its command is a program like any other of its user's");
    assert!(!before, "its user can trace the shell that waits outside of the volunteer");
}

#[tokio::test]
async fn a_stranger_with_a_recorded_number_is_neither_adopted_nor_ended() {
    use std::os::unix::process::CommandExt;
    let mut bench = Bench::new();
    let mut stranger = std::process::Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
    let pid = i32::try_from(stranger.id()).unwrap();
    let ticks = process::start_ticks(pid).unwrap();
    let records = Records::open(&bench.path("tasks")).unwrap();
    // The first has another start time; the second the same one, of another boot.
    for (number, start_ticks, boot) in [(1, ticks + 1, process::boot()), (2, ticks, process::boot() ^ 1)] {
        let run = Run { pid, start_ticks, boot, started_ms: 1, timeout_ms: None };
        records.write(&Record { attempt: bench.attempt(0, number), run, ended: None }).unwrap();
    }
    bench.restart().await;
    let ends = [bench.end().await, bench.end().await];
    let spared = process::start_ticks(pid) == Some(ticks);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert!(spared, "somebody else's process was ended");
    assert!(ends.iter().all(|end| matches!(end, TaskStatus::Lost { .. })), "{ends:?}");
}

#[tokio::test]
async fn a_task_that_finished_while_the_agent_was_away_took_only_its_own_time() {
    let mut bench = Bench::new();
    let records = Records::open(&bench.path("tasks")).unwrap();
    // Started an hour ago by a process that is gone, over two seconds later.
    let started_ms = Clock::start().now().0 - 3_600_000;
    let run = Run { pid: i32::MAX, start_ticks: 1, boot: 1, started_ms, timeout_ms: None };
    let attempt = bench.attempt(0, 1);
    let mut exit = records.create_exit(attempt.version).unwrap();
    records.write(&Record { attempt, run, ended: None }).unwrap();
    exit.write_all(b"0\n").unwrap();
    exit.set_modified(std::time::UNIX_EPOCH + Duration::from_millis(started_ms + 2_000)).unwrap();
    bench.restart().await;
    assert_eq!(bench.end().await, TaskStatus::Exited { ran_ms: 2_000, status: 0 });
}

#[tokio::test]
async fn a_frozen_task_delays_no_other() {
    let mut bench = Bench::new();
    if !bench.use_cgroup("frozen").await {
        return;
    }
    bench.describe(own(), None).await;
    bench.run(0, 1, WAITS).await;
    bench.until(|folder| written(folder, "pid")).await;
    let state = bench.cgroups.iter().find(|group| group.to_string_lossy().contains("/freezer/")).unwrap();
    let state = state.join("freezer.state");
    std::fs::write(&state, "FROZEN").unwrap();
    bench.until(|_| std::fs::read_to_string(&state).is_ok_and(|text| text.trim() == "FROZEN")).await;
    bench.order(0, 1, TaskDesired::End).await;
    // The next order is answered while the frozen one is still there.
    bench.run(1, 2, "true").await;
    while bench.next().await.attempt.task != 1 {}
    std::fs::write(&state, "THAWED").unwrap();
    bench.gone("pid").await;
}

fn not_started(status: TaskStatus) -> String {
    match status {
        TaskStatus::NotStarted { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn folders_and_files_that_cannot_be_used_are_named() {
    let mut bench = Bench::new();
    bench.describe_in(&bench.path("nowhere"), own(), None).await;
    bench.run(0, 1, "true").await;
    let why = not_started(bench.end().await);
    assert!(why.contains("failed to start in the folder") && why.contains("o such file or directory"), "{why}");
    bench.run(0, 1, "true").await;
    assert_eq!(not_started(bench.end().await), why, "an attempt is refused for good");
    // A pipe that nobody reads would keep whoever opens it waiting.
    let made = std::process::Command::new("mkfifo").arg(bench.path("out/02.out")).status().unwrap();
    assert!(made.success());
    bench.describe(own(), None).await;
    bench.run(1, 2, "true").await;
    let why = not_started(bench.end().await);
    assert!(why.contains("02.out: it is there and no regular file"), "{why}");
    bench.until(|folder| std::fs::read_dir(folder.join("tasks")).unwrap().count() == 1).await;
    assert_eq!(std::fs::read_dir(bench.path("volunteer")).unwrap().count(), 0, "nothing is left of them");
}

/// A mounted file system of which nobody answers a question.
struct Hung {
    folder: tempfile::TempDir,
    _server: std::fs::File,
}

impl Hung {
    fn mount() -> Result<Self, String> {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let server = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let server = server.map_err(|error| format!("/dev/fuse: {error}"))?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount(
            "hung",
            folder.path(),
            "fuse",
            rustix::mount::MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .map_err(|error| format!("mount: {error}"))?;
        Ok(Self { folder, _server: server })
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        _ = rustix::mount::unmount(self.folder.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_folder_that_does_not_answer_holds_only_its_own_task_up() {
    let hung = match Hung::mount() {
        Ok(hung) => hung,
        Err(why) => gleaner_test_support::skip!("no file system that hangs can be mounted: {why}"),
    };
    let mut bench = Bench::new();
    bench.describe_in(&hung.folder.path().join("work"), own(), None).await;
    bench.run(0, 1, "true").await;
    assert!(matches!(bench.next().await.status, TaskStatus::Running { .. }));
    // The runner does everything else meanwhile.
    bench.describe(own(), None).await;
    bench.run(1, 2, "exit 4").await;
    let end = loop {
        let state = bench.next().await;
        if !matches!(state.status, TaskStatus::Running { .. }) {
            break state;
        }
    };
    assert!(end.attempt.task == 1 && matches!(end.status, TaskStatus::Exited { status: 4, .. }), "{end:?}");
    bench.restart_with(SHORT).await;
    let reason = not_started(bench.end().await);
    assert!(reason.contains("did not answer for"), "{reason}");
    // What ended is left; the other is forgotten.
    bench.until(|folder| std::fs::read_dir(folder.join("tasks")).unwrap().count() == 3).await;
}

#[tokio::test]
async fn a_task_that_is_held_before_it_begins_is_waited_for() {
    let mut bench = Bench::new();
    if !bench.use_cgroup("held").await {
        return;
    }
    let state = bench.cgroups.iter().find(|group| group.to_string_lossy().contains("/freezer/")).unwrap();
    let state = state.join("freezer.state");
    std::fs::write(&state, "FROZEN").unwrap();
    bench.describe(own(), None).await;
    bench.run(0, 1, "exit 5").await;
    assert!(matches!(bench.next().await.status, TaskStatus::Running { .. }));
    bench.restart_with(SHORT).await;
    tokio::time::sleep(4 * SHORT).await;
    bench.send(TaskInput::Connected).await;
    assert!(matches!(bench.next().await.status, TaskStatus::Running { .. }));
    bench.restart().await;
    std::fs::write(&state, "THAWED").unwrap();
    assert!(matches!(bench.end().await, TaskStatus::Exited { status: 5, .. }));
}
