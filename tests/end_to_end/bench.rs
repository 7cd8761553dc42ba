//! What the tests share: a folder, the binary, processes found by what they run, cgroups left behind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A folder of a test, and the binary.
pub(crate) struct Bench {
    pub(crate) folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    pub(crate) fn gleaner(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        // No aggregator of the machine the tests run on.
        command.env("GLEANER_SOCKET", self.path("no.sock"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.gleaner(arguments).output().unwrap()
    }

    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for a condition, or fails saying what was waited for.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A child that does not outlive its test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn kill(&self, pid: u32) {
        kill(pid, "KILL");
    }

    pub(crate) fn output(mut self) -> Output {
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

pub(crate) fn kill(pid: u32, signal: &str) {
    _ = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Living processes whose command line holds all the words.
pub(crate) fn processes(words: &[&str]) -> Vec<u32> {
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
pub(crate) fn daemon_of(owner: u32, which: &str) -> Option<u32> {
    processes(&["daemon", which, "--config", &format!("gleaner-private-{owner}/")]).first().copied()
}

/// Cgroups of the private pair of a `gleaner run` with this process id.
pub(crate) fn cgroups_of(owner: u32) -> Vec<PathBuf> {
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
pub(crate) fn cgroups_writable(test: &str) -> bool {
    let probe = Path::new("/sys/fs/cgroup/cpu").join(format!("gleaner-probe-{}", std::process::id()));
    let unified = Path::new("/sys/fs/cgroup").join(format!("gleaner-probe-{}", std::process::id()));
    let writable = [probe, unified].iter().any(|folder| {
        let made = std::fs::create_dir(folder).is_ok();
        _ = std::fs::remove_dir(folder);
        made
    });
    if !writable {
        eprintln!("SKIPPED: {test}: no cgroup can be made here (not root, or read-only)");
    }
    writable
}
