//! The program that runs in the volunteer (`volunteer.command`). In: the volunteer was activated or stopped. Out: the
//! program, started in the volunteer's cgroup; started again when it ends by itself; ended when the volunteer is
//! stopped. Called by the actor.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::VolunteerKind;
use gleaner_types::time::Timestamp;

use crate::act::settings::VolunteerProgram;
use crate::launch::log::LogPipe;
use crate::launch::restrict::{Identity, Restrictions};
use crate::launch::shell::{self, SHELL};
use crate::launch::tmp::Tmp;
use crate::launch::{self, EnterError, User};

/// From an end to the next start: doubled from the first to the last with every end that comes soon.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A command that ran this long counts as stable: the next pause is the shortest again. (All chosen.)
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// A shell that waits for the go-ahead before it becomes the command. So nothing of the command ever runs outside the
/// cgroup.
const WRAPPER: &str = r#"read -r gleaner_go || exit 0; unset gleaner_go; exec "$@" </dev/null"#;

/// What is weaker than it could be with this program, in sentences.
pub(in crate::act) fn weaknesses(program: &VolunteerProgram, tmp: &Tmp) -> Vec<String> {
    let mut sentences = Vec::new();
    if program.user.is_root() {
        sentences.push(
            "the volunteer's program runs as root (volunteer.user): it can leave the volunteer, lift every bound on it and \
             read the agent's keys; run it as a user of its own if it can"
                .to_owned(),
        );
    }
    if let Tmp::Shared(why) = tmp {
        sentences.push(format!("the volunteer's program shares /tmp with all users of the host, because {why}"));
    }
    sentences
}

/// How this program would run, in sentences.
pub(super) fn foreseen(program: &VolunteerProgram, tmp: &Tmp) -> Vec<String> {
    let VolunteerProgram { user: User { name, uid, .. }, .. } = program;
    let tmp_is = match tmp {
        Tmp::Own => ", with a /tmp of its own",
        Tmp::Unit => ", with the /tmp of the agent's unit",
        Tmp::Shared(_) => "",
    };
    let capabilities = if program.user.is_root() { "with the agent's capabilities" } else { "without capabilities" };
    let mut sentences = vec![format!("the volunteer's program runs as {name} (user {uid}), {capabilities}{tmp_is}")];
    sentences.extend(weaknesses(program, tmp).into_iter().map(|weakness| format!("WARNING: {weakness}")));
    sentences
}

/// The command and its process.
#[derive(Debug)]
pub(in crate::act) struct VolunteerCommand {
    program: VolunteerProgram,
    tmp: Tmp,
    /// What it prints; made with the first start.
    log: Option<LogPipe>,
    running: Option<Running>,
    /// The volunteer runs, with so many whole slots.
    active: Option<u32>,
    next_start: Timestamp,
    pause: Duration,
}

#[derive(Debug)]
struct Running {
    child: Child,
    started: Timestamp,
    /// It never became the command.
    failure: Option<String>,
    /// Its end is wanted.
    stopped: bool,
}

impl VolunteerCommand {
    /// The command of a program, which has that `/tmp`.
    pub(in crate::act) fn new(program: VolunteerProgram, tmp: Tmp) -> Self {
        Self { program, tmp, log: None, running: None, active: None, next_start: Timestamp(0), pause: PAUSE.0 }
    }

    /// The volunteer runs now, with so many whole slots. A command that runs already keeps the number it was told.
    pub(in crate::act) fn activate(&mut self, slots: u32, now: Timestamp) {
        if self.active.is_none() {
            (self.next_start, self.pause) = (now, PAUSE.0);
        }
        self.active = Some(slots);
    }

    /// The volunteer is stopped: the command is not started again. Its process is ended by whoever ends the volunteer's.
    pub(in crate::act) fn deactivate(&mut self) {
        self.active = None;
        if let Some(running) = &mut self.running {
            running.stopped = true;
        }
    }

    /// Starts it if it should run and does not, and reports one that ended by itself. Call it once a second.
    pub(in crate::act) fn tick(&mut self, kind: &VolunteerKind, now: Timestamp) -> Option<Event> {
        let event = self.reap(now);
        let slots = self.active?;
        if self.running.is_some() || now < self.next_start {
            return event;
        }
        match self.spawn(slots) {
            Ok(mut child) => {
                let failure = admit(&mut child, kind).err().map(|error| chain(&error));
                self.running = Some(Running { child, started: now, failure, stopped: false });
                event
            }
            Err(error) => Some(self.ended(chain(&error), now)),
        }
    }

    /// Takes note of an end.
    fn reap(&mut self, now: Timestamp) -> Option<Event> {
        let status = self.running.as_mut()?.child.try_wait().ok().flatten()?;
        let running = self.running.take()?;
        if now.since(running.started) >= STABLE_AFTER {
            self.pause = PAUSE.0;
        }
        let how = running.failure.unwrap_or_else(|| status.to_string());
        (!running.stopped).then(|| self.ended(how, now))
    }

    fn ended(&mut self, how: String, now: Timestamp) -> Event {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE.1);
        self.next_start = now.after(pause);
        Event::VolunteerCommandEnded { how, again_in_s: pause.as_secs_f64() }
    }

    fn spawn(&mut self, slots: u32) -> Result<Child, StartError> {
        let failed = |action: &'static str| move |source| StartError::Failed { action, source };
        let log = match self.log.take() {
            Some(log) => log,
            None => LogPipe::open().map_err(failed("make a pipe for what it prints"))?,
        };
        let log = self.log.insert(log);
        let mut command = Command::new(shell::program(self.program.user.uid));
        command
            .arg0(SHELL)
            .args(["-c", WRAPPER, "sh"])
            .args(&self.program.words)
            .current_dir("/")
            .stdin(Stdio::piped());
        let printed = || log.writer().map_err(failed("make a pipe for what it prints"));
        command.stdout(printed()?).stderr(printed()?);
        let user = &self.program.user;
        command.env_clear().env("PATH", launch::PATH).env("LANG", "C.UTF-8").env("SHELL", "/bin/sh");
        command.env("HOME", &user.home).env("USER", &user.name).env("LOGNAME", &user.name);
        command.env("GLEANER_SLOTS", slots.to_string());
        let mut steps = self.restrictions().put_on(&mut command).map_err(failed("start a shell for it"))?;
        command.spawn().map_err(|source| failed(steps.failed().unwrap_or("start a shell for it"))(source))
    }

    fn restrictions(&self) -> Restrictions {
        let User { uid, gid, groups, .. } = &self.program.user;
        // An agent that is not root cannot become anybody, and need not: the config names no other user.
        let own_user = rustix::process::geteuid().as_raw() != 0;
        let identity = (!own_user).then(|| Identity { uid: *uid, gid: *gid, groups: groups.clone() });
        let own_tmp = self.tmp == Tmp::Own;
        Restrictions { identity, keeps_capabilities: self.program.user.is_root(), own_tmp }
    }
}

/// Moves the waiting shell into the volunteer and lets it become the command. Otherwise it ends by itself.
fn admit(child: &mut Child, kind: &VolunteerKind) -> Result<(), StartError> {
    let failed = |action: &'static str| move |source| StartError::Failed { action, source };
    let stdin = child.stdin.take();
    let VolunteerKind::Cgroup { procs_files } = kind else {
        return Err(failed("find its cgroup")(io::ErrorKind::Unsupported.into()));
    };
    launch::enter(i32::try_from(child.id()).unwrap_or_default(), procs_files)?;
    let mut stdin = stdin.ok_or_else(|| failed("speak to it")(io::ErrorKind::BrokenPipe.into()))?;
    stdin.write_all(b"go\n").map_err(failed("speak to it"))
}

/// The command cannot be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// Something before it runs.
    #[error("failed to {action}")]
    Failed { action: &'static str, source: io::Error },
    /// It is not in the volunteer.
    #[error(transparent)]
    Enter(#[from] EnterError),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::act::ledger::Ledger;
    use crate::act::tests::scene::{Scene, eventually};
    use crate::act::volunteer::Volunteer;
    use crate::act::{cgroup, restore_state_dir};

    fn program(user: User, words: &[&str]) -> VolunteerProgram {
        VolunteerProgram { words: words.iter().map(|word| (*word).to_owned()).collect(), user }
    }

    /// A user without rights where there is one to become.
    fn nobody() -> User {
        if User::own().is_root() { User::named("nobody").unwrap().unwrap() } else { User::own() }
    }

    fn with_hosts_tmp(user: User, words: &[&str]) -> VolunteerCommand {
        VolunteerCommand::new(program(user, words), Tmp::Shared("the test reads it".to_owned()))
    }

    /// A volunteer that runs, in cgroups of its own, and a folder that everybody can write to.
    struct Bed {
        scene: Scene,
        volunteer: Volunteer,
        folder: tempfile::TempDir,
    }

    impl Bed {
        fn open(test: &str) -> Option<Self> {
            let scene = Scene::open(test)?;
            let settings = scene.settings();
            let mut ledger = Ledger::open(&settings.state_dir).unwrap();
            let mut volunteer = Volunteer::open(&settings, &scene.hierarchies, &mut ledger).unwrap();
            volunteer.enforce(gleaner_types::command::Quota::Unlimited, false, Instant::now()).unwrap();
            let folder = tempfile::tempdir().unwrap();
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
            Some(Self { scene, volunteer, folder })
        }

        fn path(&self, name: &str) -> String {
            self.folder.path().join(name).display().to_string()
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).unwrap_or_default()
        }

        /// Runs a script to its end and gives what it wrote to `$1`.
        fn output(&self, user: User, script: &str) -> String {
            let mut command = with_hosts_tmp(user, &["/bin/sh", "-c", script, "sh", &self.path("out")]);
            command.activate(2, Timestamp(0));
            last_end(&mut command, &self.volunteer.kind(), &mut Timestamp(0));
            self.read("out")
        }

        fn processes(&self) -> usize {
            cgroup::processes_of(&self.volunteer.dirs()).unwrap().len()
        }
    }

    /// Ticks until an end is reported. The clock stands still while the program runs, so that a busy machine makes no
    /// program a sound one.
    fn last_end(command: &mut VolunteerCommand, kind: &VolunteerKind, now: &mut Timestamp) -> (String, f64) {
        for _ in 0..6_000 {
            if command.running.is_none() {
                *now = now.after(Duration::from_secs(1));
            }
            if let Some(Event::VolunteerCommandEnded { how, again_in_s }) = command.tick(kind, *now) {
                return (how, again_in_s);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("nothing was told of {command:?}");
    }

    #[test]
    fn it_enters_the_volunteer_gets_its_slots_and_is_restarted_with_growing_pauses() {
        let Some(bed) = Bed::open("it_enters_the_volunteer_gets_its_slots_and_is_restarted_with_growing_pauses") else {
            return;
        };
        let (kind, mut now) = (bed.volunteer.kind(), Timestamp(0));
        let script =
            format!("cat /proc/self/cgroup >>{0}; echo \"slots $GLEANER_SLOTS\" >>{0}; exit 3", bed.path("sentences"));
        let mut command = with_hosts_tmp(nobody(), &["/bin/sh", "-c", &script]);
        assert_eq!(command.tick(&kind, now), None, "not before the volunteer runs");
        assert!(command.running.is_none());
        command.activate(2, now);
        let pauses: Vec<(String, f64)> = (0..8).map(|_| last_end(&mut command, &kind, &mut now)).collect();
        assert!(pauses.iter().all(|(how, _)| how == "exit status: 3"), "{pauses:?}");
        assert_eq!(
            pauses.iter().map(|(_, pause)| *pause).collect::<Vec<_>>(),
            [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        );
        let sentences = bed.read("sentences");
        assert!(
            sentences.contains(&format!("/{}/volunteer\n", bed.scene.name)) && sentences.contains("slots 2\n"),
            "{sentences}"
        );
    }

    #[test]
    fn an_intended_end_is_not_reported() {
        let Some(bed) = Bed::open("an_intended_end_is_not_reported") else { return };
        let (kind, now) = (bed.volunteer.kind(), Timestamp(0));
        let mut command = with_hosts_tmp(nobody(), &["/bin/sleep", "600"]);
        command.activate(1, now);
        assert_eq!(command.tick(&kind, now), None);
        command.deactivate();
        command.running.as_mut().unwrap().child.kill().unwrap();
        eventually("it is gone", || {
            assert_eq!(command.tick(&kind, now), None);
            command.running.is_none()
        });
    }

    #[test]
    fn what_cannot_enter_the_volunteer_never_runs() {
        let folder = tempfile::tempdir().unwrap();
        let kind = VolunteerKind::Cgroup { procs_files: vec!["/nowhere/cgroup.procs".into()] };
        let ran = folder.path().join("ran");
        let mut now = Timestamp(0);
        let mut command = with_hosts_tmp(User::own(), &["/usr/bin/touch", ran.to_str().unwrap()]);
        command.activate(1, now);
        let (how, _) = last_end(&mut command, &kind, &mut now);
        assert!(how.contains("failed to move it into the volunteer"), "{how}");
        assert!(!ran.exists());
    }

    #[test]
    fn its_user_cannot_trace_it_before_it_is_in_the_volunteer() {
        if !User::own().is_root() {
            gleaner_test_support::skip!("it takes root to start programs as others");
        }
        let user = nobody();
        let mut waiting = with_hosts_tmp(user.clone(), &["/bin/sleep", "600"]).spawn(1).unwrap();
        // The kernel tells whoever may trace a process which program it runs.
        let sees = |pid: u32| {
            let mut look = Command::new("readlink");
            look.arg(format!("/proc/{pid}/exe")).uid(user.uid).gid(user.gid).output().unwrap().status.success()
        };
        let seen = sees(waiting.id());
        waiting.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let pid = waiting.id();
        eventually("the program itself is traced as usual", || sees(pid));
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        assert!(!seen, "its user can trace the shell that waits outside of the volunteer");
    }

    #[test]
    fn it_has_no_more_rights_than_its_user_and_a_short_environment() {
        let Some(bed) = Bed::open("it_has_no_more_rights_than_its_user_and_a_short_environment") else { return };
        if !User::own().is_root() {
            gleaner_test_support::skip!("it takes root to start programs as others");
        }
        let nobody = nobody();
        let status = bed.output(nobody.clone(), "cat /proc/$$/status >$1");
        let is = |key: &str, value: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.is_some_and(|line| line.split_whitespace().all(|word| word == value))
        };
        assert!(is("Uid", &nobody.uid.to_string()) && is("Gid", &nobody.gid.to_string()), "{status}");
        assert!(is("NoNewPrivs", "1"), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(is(set, "0000000000000000"), "{set}: {status}");
        }
        let environment = bed.output(nobody.clone(), "tr '\\0' '\\n' </proc/$$/environ | sort | cut -d= -f1 >$1");
        // The shell's own are not the agent's.
        let names: Vec<&str> =
            environment.lines().filter(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name)).collect();
        assert_eq!(names, ["GLEANER_SLOTS", "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"]);
        let printed =
            bed.output(nobody.clone(), "echo printed >/proc/self/fd/1 && echo warned >/proc/self/fd/2 && echo yes >$1");
        assert_eq!(printed, "yes\n", "it may open its own output by name");
        // As whoever started the agent may have left one open.
        let left = fs::File::open("/proc/self/stat").unwrap();
        rustix::io::fcntl_setfd(&left, rustix::io::FdFlags::empty()).unwrap();
        let open = bed.output(nobody, "ls /proc/$$/fd | tr '\\n' ' ' >$1");
        // The shell keeps one of its own above 9.
        assert!(
            open.split_whitespace().all(|fd| fd.parse::<u32>().unwrap() <= 10),
            "nothing of the agent's is open: {open}"
        );
    }

    #[test]
    fn it_writes_neither_cgroups_nor_the_agents_files() {
        let Some(bed) = Bed::open("it_writes_neither_cgroups_nor_the_agents_files") else { return };
        if !User::own().is_root() {
            gleaner_test_support::skip!("it takes root to start programs as others");
        }
        let etc = Path::new("/etc/gleaner");
        let made = fs::create_dir(etc).is_ok();
        let files: Vec<String> =
            bed.volunteer.dirs().iter().map(|dir| dir.join("cgroup.procs").display().to_string()).collect();
        let folders: Vec<String> =
            bed.volunteer.dirs().iter().map(|dir| dir.join("made").display().to_string()).collect();
        let script = format!(
            "for file in {} /sys/fs/cgroup/cpu/cgroup.procs /sys/fs/cgroup/cgroup.procs; do\n\
             [ ! -e $file ] || {{ echo $$ >$file && echo wrote $file >>$1; }}; done 2>/dev/null\n\
             for folder in {}; do mkdir $folder && echo made $folder >>$1; done 2>/dev/null\n\
             for file in /etc/gleaner/x {}/x; do touch $file && echo made $file >>$1; done 2>/dev/null\n\
             echo tried >>$1",
            files.join(" "),
            folders.join(" "),
            bed.scene.state.path().display(),
        );
        let tried = bed.output(nobody(), &script);
        if made {
            fs::remove_dir(etc).unwrap();
        }
        assert_eq!(tried, "tried\n");
    }

    /// Leaves its session, its process group and its parent.
    const DAEMON: &str =
        "for i in 1 2 3; do setsid sh -c '(setsid sleep 600 &) & exit 0' & done; wait; echo left >$1; exec sleep 600";

    #[test]
    fn a_daemon_in_a_session_of_its_own_ends_with_the_volunteer() {
        let Some(mut bed) = Bed::open("a_daemon_in_a_session_of_its_own_ends_with_the_volunteer") else { return };
        let mut command = with_hosts_tmp(nobody(), &["/bin/sh", "-c", DAEMON, "sh", &bed.path("out")]);
        command.activate(1, Timestamp(0));
        assert_eq!(command.tick(&bed.volunteer.kind(), Timestamp(0)), None);
        eventually("its children have left it", || bed.read("out") == "left\n");
        eventually("three daemons and the program", || bed.processes() == 4);
        // More, where one of the shells between them was still there.
        assert!(bed.volunteer.end_processes(Duration::from_secs(60)).unwrap() >= 4);
        assert_eq!(bed.processes(), 0);
    }

    #[test]
    fn a_daemon_in_a_session_of_its_own_ends_with_a_restore() {
        let Some(bed) = Bed::open("a_daemon_in_a_session_of_its_own_ends_with_a_restore") else { return };
        let mut command = with_hosts_tmp(nobody(), &["/bin/sh", "-c", DAEMON, "sh", &bed.path("out")]);
        command.activate(1, Timestamp(0));
        assert_eq!(command.tick(&bed.volunteer.kind(), Timestamp(0)), None);
        eventually("its children have left it", || bed.read("out") == "left\n");
        eventually("three daemons and the program", || bed.processes() == 4);
        let Bed { scene, volunteer, folder: _folder } = bed;
        let dirs = volunteer.dirs();
        // As after the agent was killed.
        drop(volunteer);
        let report = restore_state_dir(scene.state.path()).unwrap();
        assert!(report.failed.is_empty() && report.processes_ended >= 4, "{report:?}");
        assert!(dirs.iter().all(|dir| !dir.exists()), "{dirs:?}");
    }

    #[test]
    fn root_and_a_shared_tmp_are_reported() {
        let user = |name: &str, uid| User { name: name.into(), uid, gid: uid, groups: vec![uid], home: "/".into() };
        let root = program(user("root", 0), &["/bin/true"]);
        let other = program(user("worker", 990), &["/bin/true"]);
        assert_eq!(weaknesses(&other, &Tmp::Own), Vec::<String>::new());
        assert_eq!(
            foreseen(&other, &Tmp::Unit),
            [
                "the volunteer's program runs as worker (user 990), without capabilities, with the /tmp of the agent's unit"
            ]
        );
        let sentences = foreseen(&root, &Tmp::Shared("of a test".to_owned()));
        assert!(sentences[1].starts_with("WARNING: the volunteer's program runs as root"), "{sentences:?}");
        assert!(sentences[2].contains("shares /tmp with all users of the host, because of a test"), "{sentences:?}");
    }
}
