//! `xl`, Xen's toolstack, as a program that may hang, refuse, or say anything. In: a question, and how long it may take. Out: the
//! host's domains; one made or destroyed. Called by making and destroying domains.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

use super::config_file::DomainConfig;
use crate::launch::PATH;

const PROGRAM: &str = "xl";
/// Bytes of what it prints that are read: some thousand domains.
const MOST_OUTPUT: usize = 1 << 18;
/// Bytes of its complaints that are told.
const MOST_TOLD: usize = 600;
/// The same of what is looked at.
const MOST_COMPLAINTS: usize = 1 << 16;
/// How often it is looked whether it has ended.
const STEP: Duration = Duration::from_millis(10);
/// How long a killed one may take to be gone.
const KILLED: Duration = Duration::from_secs(2);

/// The toolstack did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolstackError {
    #[error("there is no program `{PROGRAM}` in {PATH}; install xen-utils, and boot as a control domain of Xen")]
    Missing,
    #[error("`{0}` cannot be run")]
    Io(String, #[source] io::Error),
    #[error(
        "`{words}` did not end within {seconds:.0} s and was ended; look which xl holds the toolstack's lock (`fuser -v /run/lock/xl`), \
         and whether xenstored answers (`xenstore-read /`), then try again"
    )]
    Hung { words: String, seconds: f64 },
    #[error("`{words}` failed ({status}): {said}")]
    Failed { words: String, status: ExitStatus, said: String },
}

/// A domain, as it lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) uuid: String,
    pub(super) id: u32,
    pub(super) name: String,
}

#[derive(Debug)]
pub(super) struct Toolstack {
    program: PathBuf,
}

impl Toolstack {
    pub(super) fn find() -> Result<Self, ToolstackError> {
        let programs = PATH.split(':').map(|folder| Path::new(folder).join(PROGRAM));
        let program = programs.into_iter().find(|program| program.is_file()).ok_or(ToolstackError::Missing)?;
        Ok(Self { program })
    }

    /// Another program in its place.
    #[cfg(test)]
    pub(super) fn of(program: &Path) -> Self {
        Self { program: program.to_owned() }
    }

    /// All domains of the host.
    pub(super) fn domains(&self, within: Duration) -> Result<Vec<Listed>, ToolstackError> {
        Ok(parse(&self.run(&["vm-list"], within)?))
    }

    /// Makes a domain of this UUID, whatever the file says of that. Without a weight in the file it has the least.
    pub(super) fn create(&self, config: &DomainConfig, uuid: &str, within: Duration) -> Result<(), ToolstackError> {
        let file = config.real.to_string_lossy();
        let (name, uuid) = (format!("name=\"{}\"", config.name), format!("uuid=\"{uuid}\""));
        let mut words = vec!["create", "-q", &*file, &name, &uuid];
        if !config.has_weight {
            words.push("cpu_weight=1");
        }
        self.run(&words, within).map(drop)
    }

    pub(super) fn destroy(&self, id: u32, within: Duration) -> Result<(), ToolstackError> {
        self.run(&["destroy", &id.to_string()], within).map(drop)
    }

    /// What it prints. Whatever it leaves running, such as the process that waits for a domain's end, has a group of its own.
    fn run(&self, words: &[&str], within: Duration) -> Result<String, ToolstackError> {
        let called = || format!("{PROGRAM} {}", words.join(" "));
        let failed = |error: io::Error| ToolstackError::Io(called(), error);
        // Files, not pipes: nobody who keeps one open can hold this up.
        let file = || memfd_create("xl", MemfdFlags::CLOEXEC).map(File::from).map_err(|error| failed(error.into()));
        let (output, complaints) = (file()?, file()?);
        let mut command = Command::new(&self.program);
        command.args(words).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(failed)?);
        let mut child = command.stderr(complaints.try_clone().map_err(failed)?).spawn().map_err(failed)?;
        let Some(status) = wait(&mut child, within).map_err(failed)? else {
            kill(&mut child);
            return Err(ToolstackError::Hung { words: called(), seconds: within.as_secs_f64() });
        };
        let text = |file: &File, most: usize| -> io::Result<String> {
            let mut bytes = vec![0; most];
            let read = file.read_at(&mut bytes, 0)?;
            bytes.truncate(read);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        if !status.success() {
            let said = told(&text(&complaints, MOST_COMPLAINTS).map_err(failed)?);
            return Err(ToolstackError::Failed { words: called(), status, said });
        }
        text(&output, MOST_OUTPUT).map_err(failed)
    }
}

/// How it ended, unless that takes longer.
fn wait(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        match child.try_wait()? {
            None if began.elapsed() < within => thread::sleep(STEP),
            ended => return Ok(ended),
        }
    }
}

/// Ends it with what it waits for, such as a script. It is this process's own child and not waited for yet, so that nobody else
/// has its number.
fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Gone already is as good.
        _ = kill_process_group(group, Signal::KILL);
    }
    // One that the kernel holds cannot be waited for without end.
    _ = wait(child, KILLED);
}

/// Complaints in one line, the last of them where they are many.
fn told(complaints: &str) -> String {
    let lines: Vec<&str> = complaints.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = lines.join("; ");
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let first = line.char_indices().rev().nth(MOST_TOLD).map_or(0, |(at, _)| at);
    match line.get(first..).filter(|line| !line.is_empty()) {
        Some(line) => line.to_owned(),
        None => "it does not say why".to_owned(),
    }
}

/// The lines of `xl vm-list`: UUID, number and name. Its heading is no domain.
fn parse(text: &str) -> Vec<Listed> {
    let of_line = |line: &str| {
        let (uuid, rest) = line.trim().split_once(char::is_whitespace)?;
        let (id, name) = rest.trim_start().split_once(char::is_whitespace)?;
        Some(Listed { uuid: uuid.to_owned(), id: id.parse().ok()?, name: name.trim().to_owned() })
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn stand_in(script: &str) -> (tempfile::TempDir, Toolstack) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("xl");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let toolstack = Toolstack::of(&program);
        (folder, toolstack)
    }

    #[test]
    fn its_list_is_read() {
        let text = "UUID                                  ID    name\n\
                    00000000-0000-0000-0000-000000000000  0    Domain-0                      \n\
                    aaaaaaaa-2222-3333-4444-555555555555  12    a name of words     \nnonsense\n\n u 1\n";
        let listed = parse(text);
        assert_eq!(listed.len(), 2, "{listed:?}");
        assert_eq!((listed[1].id, listed[1].name.as_str()), (12, "a name of words"));
        assert_eq!(listed[1].uuid, "aaaaaaaa-2222-3333-4444-555555555555");
    }

    #[test]
    fn one_that_hangs_is_ended_with_what_it_waits_for() {
        let (folder, toolstack) = stand_in("sleep 100 & echo $! >\"$(dirname \"$0\")/pid\"; wait");
        let error = toolstack.destroy(3, Duration::from_millis(300)).unwrap_err().to_string();
        assert!(error.starts_with("`xl destroy 3` did not end within 0 s"), "{error}");
        assert!(error.contains("lock"), "{error}");
        let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
        let stat = || fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let began = Instant::now();
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(began.elapsed() < Duration::from_secs(20), "it lives on: {}", stat());
            thread::sleep(STEP);
        }
    }

    #[test]
    fn one_that_refuses_is_told_in_its_own_words() {
        let (_folder, toolstack) = stand_in("printf 'libxl: error: one\\n\\n  two \\033[1m\\n' >&2; exit 3");
        let error = toolstack.domains(Duration::from_secs(20)).unwrap_err().to_string();
        assert_eq!(error, "`xl vm-list` failed (exit status: 3): libxl: error: one; two  [1m");
        let (_folder, toolstack) = stand_in("exit 1");
        let error = toolstack.domains(Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.ends_with("it does not say why"), "{error}");
        let long = format!("{}é{}", "a".repeat(70), "b".repeat(MOST_TOLD));
        assert!(told(&long).starts_with('é') && told(&long).len() <= MOST_TOLD + 2, "the last of it");
    }
}
