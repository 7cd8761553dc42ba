//! What tests of real processes share. In: arguments, files and conditions of a test. Out: a folder, the built
//! `gleaner` run or started in it, waits with a deadline, and processes and cgroups found by what they belong to.
//! Called by the tests that start processes, and by [`crate::pair`].

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Longest pause between two checks of what is waited for. Chosen.
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// The built `gleaner`. Cargo builds it for the tests of its own package and lays it beside their folder.
fn program() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("gleaner")
}

/// A folder of a test, and the binary.
#[derive(Debug)]
pub struct Bench {
    /// Gone when this is dropped.
    pub folder: tempfile::TempDir,
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench {
    /// An empty folder.
    #[must_use]
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A file in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// `gleaner` in the folder, with no input.
    #[must_use]
    pub fn gleaner(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        // No aggregator of the machine the tests run on.
        command.env("GLEANER_SOCKET", self.path("no.sock"));
        command
    }

    /// Runs `gleaner` to its end.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.gleaner(arguments).output().unwrap()
    }

    /// The lines of a file in the folder; none if there is no file.
    #[must_use]
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// What a program said.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for a condition, or fails saying what was waited for.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    let mut pause = Duration::from_millis(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in {} s", TIMEOUT.as_secs());
        std::thread::sleep(pause);
        // Most conditions start a program, which takes CPU from what is waited for.
        pause = LONGEST_PAUSE.min(pause * 3 / 2);
    }
}

/// A child that does not outlive its test.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Starts a command; its output is kept for [`Self::output`].
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Kills a process.
    pub fn kill(&self, pid: u32) {
        kill(pid, "KILL");
    }

    /// Waits for the end, and what was said until then.
    #[must_use]
    pub fn output(mut self) -> Output {
        use std::io::Read;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        self.0.stdout.take().unwrap().read_to_end(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut err).unwrap();
        Output { status: self.0.wait().unwrap(), stdout: out, stderr: err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        kill(self.0.id(), "TERM");
        let deadline = Instant::now() + Duration::from_secs(15);
        while Instant::now() < deadline {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Sends a signal by its name.
pub fn kill(pid: u32, signal: &str) {
    _ = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Living processes whose command line holds all the words.
#[must_use]
pub fn processes(words: &[&str]) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let cmdline = text(&cmdline).replace('\0', " ");
        if !cmdline.is_empty() && words.iter().all(|word| cmdline.contains(word)) {
            found.push(pid);
        }
    }
    found
}

/// A daemon of the private pair of a `gleaner run` with this process id.
#[must_use]
pub fn daemon_of(owner: u32, which: &str) -> Option<u32> {
    processes(&["daemon", which, "--config", &format!("gleaner-private-{owner}/")]).first().copied()
}

/// Cgroups of the private pair of a `gleaner run` with this process id.
#[must_use]
pub fn cgroups_of(owner: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    for hierarchy in hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]) {
        let group = hierarchy.join(format!("gleaner-{owner}"));
        if group.exists() {
            found.push(group);
        }
    }
    found
}

/// The volunteer can be a cgroup here; says loudly if not.
#[must_use]
pub fn cgroups_writable(test: &str) -> bool {
    let probe = Path::new("/sys/fs/cgroup/cpu").join(format!("gleaner-probe-{}", std::process::id()));
    let unified = Path::new("/sys/fs/cgroup").join(format!("gleaner-probe-{}", std::process::id()));
    let writable = [probe, unified].iter().any(|folder| {
        let made = std::fs::create_dir(folder).is_ok();
        _ = std::fs::remove_dir(folder);
        made
    });
    if !writable {
        crate::skipped!("{test}: no cgroup can be made here (not root, or read-only)");
    }
    writable
}
