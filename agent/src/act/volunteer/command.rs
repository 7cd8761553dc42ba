//! A command that is the volunteer: started in its cgroup when the volunteer is activated, started again when it ends by
//! itself, and ended with everything else in there when the volunteer has been stopped.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::VolunteerKind;
use gleaner_types::time::Timestamp;

/// From an end to the next start: doubled from the first to the last with every end that comes soon.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A command that ran this long was sound. (All chosen.)
const SOUND: Duration = Duration::from_secs(60);

/// Waits for a word before it becomes the command, so that nothing of it ever runs outside the cgroup.
const WRAPPER: &str = r#"read -r gleaner_go || exit 0; unset gleaner_go; exec "$@" </dev/null"#;

/// The command and its process.
#[derive(Debug)]
pub(in crate::act) struct VolunteerCommand {
    words: Vec<String>,
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
    /// The command of `words`, the first of which is the program.
    pub(in crate::act) fn new(words: Vec<String>) -> Self {
        Self { words, running: None, active: None, next_start: Timestamp(0), pause: PAUSE.0 }
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

    /// Starts it if it should run and does not; tells of one that ended by itself. Call it once a second.
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
            Err(source) => Some(self.ended(chain(&StartError { action: "start a shell for it", source }), now)),
        }
    }

    /// Takes note of an end.
    fn reap(&mut self, now: Timestamp) -> Option<Event> {
        let status = self.running.as_mut()?.child.try_wait().ok().flatten()?;
        let running = self.running.take()?;
        if now.since(running.started) >= SOUND {
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

    fn spawn(&self, slots: u32) -> io::Result<Child> {
        Command::new("/bin/sh")
            .args(["-c", WRAPPER, "sh"])
            .args(&self.words)
            .env("GLEANER_SLOTS", slots.to_string())
            .stdin(Stdio::piped())
            // Its words belong in the agent's log, not among what the agent prints.
            .stdout(io::stderr())
            .spawn()
    }
}

/// Moves the waiting shell into the volunteer and lets it become the command. Otherwise it ends by itself.
fn admit(child: &mut Child, kind: &VolunteerKind) -> Result<(), StartError> {
    let failed = |action: &'static str| move |source| StartError { action, source };
    let stdin = child.stdin.take();
    let VolunteerKind::Cgroup { procs_files } = kind else {
        return Err(failed("find its cgroup")(io::ErrorKind::Unsupported.into()));
    };
    let pid = child.id().to_string();
    procs_files.iter().try_for_each(|file| std::fs::write(file, &pid)).map_err(failed("move it into the volunteer"))?;
    let mut stdin = stdin.ok_or_else(|| failed("speak to it")(io::ErrorKind::BrokenPipe.into()))?;
    stdin.write_all(b"go\n").map_err(failed("speak to it"))
}

/// The command cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action}")]
struct StartError {
    action: &'static str,
    source: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(folder: &std::path::Path) -> VolunteerKind {
        let file = folder.join("cgroup.procs");
        std::fs::write(&file, "").unwrap();
        VolunteerKind::Cgroup { procs_files: vec![file.display().to_string()] }
    }

    /// Ticks, a second of its own clock at a time, until something is told.
    fn last_end(command: &mut VolunteerCommand, kind: &VolunteerKind, now: &mut Timestamp) -> (String, f64) {
        for _ in 0..2_000 {
            *now = now.after(Duration::from_secs(1));
            if let Some(Event::VolunteerCommandEnded { how, again_in_s }) = command.tick(kind, *now) {
                return (how, again_in_s);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("nothing was told of {command:?}");
    }

    #[test]
    fn it_enters_the_volunteer_is_told_its_slots_and_started_again_ever_later() {
        let folder = tempfile::tempdir().unwrap();
        let (kind, mut now) = (kind(folder.path()), Timestamp(0));
        let said = folder.path().join("said");
        let script = format!(
            "cat {}/cgroup.procs >>{1}; echo \" $$ $GLEANER_SLOTS\" >>{1}; exit 3",
            folder.path().display(),
            said.display()
        );
        let mut command = VolunteerCommand::new(vec!["/bin/sh".into(), "-c".into(), script]);
        assert_eq!(command.tick(&kind, now), None, "not before the volunteer runs");
        assert!(command.running.is_none());
        command.activate(2, now);
        let pauses: Vec<(String, f64)> = (0..8).map(|_| last_end(&mut command, &kind, &mut now)).collect();
        assert!(pauses.iter().all(|(how, _)| how == "exit status: 3"), "{pauses:?}");
        assert_eq!(
            pauses.iter().map(|(_, pause)| *pause).collect::<Vec<_>>(),
            [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        );
        let said = std::fs::read_to_string(said).unwrap();
        let words: Vec<&str> = said.lines().next().unwrap().split_whitespace().collect();
        assert!(words[0] == words[1] && words[2] == "2", "its own number is in the cgroup before it begins: {said}");
    }

    #[test]
    fn an_end_that_was_wanted_is_not_told() {
        let folder = tempfile::tempdir().unwrap();
        let (kind, now) = (kind(folder.path()), Timestamp(0));
        let mut command = VolunteerCommand::new(vec!["/bin/sleep".into(), "600".into()]);
        command.activate(1, now);
        assert_eq!(command.tick(&kind, now), None);
        command.deactivate();
        command.running.as_mut().unwrap().child.kill().unwrap();
        for _ in 0..1_000 {
            assert_eq!(command.tick(&kind, now), None);
            if command.running.is_none() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it is still there");
    }

    #[test]
    fn what_cannot_enter_the_volunteer_never_runs() {
        let folder = tempfile::tempdir().unwrap();
        let kind = VolunteerKind::Cgroup { procs_files: vec!["/nowhere/cgroup.procs".into()] };
        let ran = folder.path().join("ran");
        let mut now = Timestamp(0);
        let mut command = VolunteerCommand::new(vec!["/usr/bin/touch".into(), ran.display().to_string()]);
        command.activate(1, now);
        let (how, _) = last_end(&mut command, &kind, &mut now);
        assert!(how.contains("failed to move it into the volunteer"), "{how}");
        assert!(!ran.exists());
    }
}
