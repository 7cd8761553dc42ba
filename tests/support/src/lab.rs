//! The scripts of tests/lab, for tests. In: a script and files. Out: images, built once into the target folder; hosts
//! booted from them, and what they print. Called by the beds that boot hosts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// A script of the lab.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab").join(name)
}

/// This process runs inside a booted host.
#[must_use]
pub fn inside() -> bool {
    std::env::var_os("GLEANER_INSIDE_LAB").is_some()
}

/// One bed at a time: two would measure each other.
pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    static BED: std::sync::Mutex<()> = std::sync::Mutex::new(());
    // A test that failed has taken its bed away with it.
    BED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A folder for images in the build's own target folder, so that they are built once and go with `cargo clean`.
#[must_use]
pub fn cache(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("lab").join(name)
}

/// A program without what a debugger needs, which a host need not be brought, in the build's own target folder.
#[must_use]
pub fn stripped(name: &str, program: &Path) -> PathBuf {
    let small = cache(name);
    let done = Command::new("strip").arg("-o").args([&small, program]).status();
    assert!(done.is_ok_and(|status| status.success()), "strip of {}", program.display());
    small
}

fn build(script_name: &str, name: &str, programs: &[&str]) -> Result<PathBuf, String> {
    let here =
        |program: &&&str| Command::new("which").arg(program).stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    if let Some(missing) = programs.iter().find(|program| !here(program)) {
        return Err(format!("there is no {missing} here"));
    }
    let folder = cache(name);
    std::fs::create_dir_all(&folder).unwrap();
    let built = Command::new(script(script_name)).arg(&folder).output().unwrap();
    if built.status.success() {
        return Ok(folder);
    }
    Err(format!("{script_name} failed: {}", String::from_utf8_lossy(&built.stderr).trim()))
}

/// Images of guests and of the version 2 host; without what it takes to build them, says loudly that `test` is
/// skipped.
#[must_use]
pub fn images(test: &str) -> Option<PathBuf> {
    if let Some(images) = std::env::var_os("GLEANER_LAB_IMAGES") {
        return Some(images.into());
    }
    static IMAGES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let programs = ["qemu-system-x86_64", "busybox", "cpio", "apt-get", "as"];
    let images = IMAGES.get_or_init(|| build("kvm/images.sh", "kvm", &programs));
    images.as_ref().map_err(|why| crate::skipped!("{test}: {why}")).ok().cloned()
}

/// Xen, a control domain and guests.
#[must_use]
pub fn xen_images(test: &str) -> Option<PathBuf> {
    let programs = ["qemu-system-x86_64", "busybox", "cpio", "apt-get", "gcc", "xz"];
    build("xen/images.sh", "xen", &programs).map_err(|why| crate::skipped!("{test}: {why}")).ok()
}

/// The agent's helper for Xen, built by itself because nothing else may link it.
///
/// # Errors
/// Why it does not build.
pub fn build_xen_helper() -> Result<PathBuf, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agent-xen/Cargo.toml");
    let target = cache("agent-xen");
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--release", "--quiet", "--locked", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target);
    let built = command.output().map_err(|error| format!("cargo cannot be run: {error}"))?;
    if built.status.success() {
        return Ok(target.join("release/gleaner-agent-xen"));
    }
    Err(format!("agent-xen does not build: {}", String::from_utf8_lossy(&built.stderr).trim()))
}

/// What a test in a booted host says of a guest of its own that nobody ended.
pub const GUEST_DIED: &str = "a guest of the bed ended by itself";

/// How often a host is booted at most.
const BOOTS: u32 = 3;

/// Boots a version 2 host and runs a script of the lab in it. Emulation is not reliable, least of all with virtualisation
/// inside: a guest's QEMU ends by itself, the host ends, or it stands still. It is booted again then, and what it printed
/// is shown; a host that died each time is a failure for the caller to see. So that a product which hangs is no host that
/// stands still, the time limit has to be longer than what the test itself waits for.
#[must_use]
pub fn on_host(images: &Path, options: &[&str], script_name: &str, files: &[&Path]) -> Output {
    let boot = || {
        let mut command = Command::new(script("kvm/host.sh"));
        command.args(options).arg(images).arg(script(script_name)).args(files);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let mut output = boot();
    for _ in 1..BOOTS {
        if !host_died(&output) {
            break;
        }
        eprintln!("{}\n{}the emulated host died: once more", output.status, quoted(&output));
        output = boot();
    }
    output
}

/// All that a booted host printed, for a test that failed by it. Each line is marked: the host runs tests of its own, and
/// whoever reads the outer run must not take theirs that failed, or their counts, for its own.
#[must_use]
pub fn quoted(output: &Output) -> String {
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    said.iter().flat_map(|said| said.lines()).map(|line| format!("| {line}\n")).collect()
}

/// The host, or a guest in it, ended by itself or stood still: nothing was tested. The exit codes are those of
/// `kvm/host.sh`.
#[must_use]
pub fn host_died(output: &Output) -> bool {
    matches!(output.status.code(), Some(124 | 125)) || String::from_utf8_lossy(&output.stdout).contains(GUEST_DIED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn nothing_that_a_host_printed_reads_as_the_outer_run() {
        let output = Output {
            status: ExitStatus::from_raw(0),
            stdout: b"failures:\n    one\n\ntest result: FAILED. 1 passed; 1 failed\r\nno end".to_vec(),
            stderr: b"host.sh: the end of its console:\n".to_vec(),
        };
        let expected = "| failures:\n|     one\n| \n| test result: FAILED. 1 passed; 1 failed\n| no end\n\
                        | host.sh: the end of its console:\n";
        assert_eq!(quoted(&output), expected);
    }
}
