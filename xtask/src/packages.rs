//! The Debian packages that the real beds and the fuzz targets need. In: what dpkg has. Out: the missing ones
//! installed, where `ci` runs as root. Called by `ci`. Where one is missing all the same, its test is skipped and says
//! so.

use std::process::{Command, Stdio};

use crate::steps::{Steps, is_root, program};

const WANTED: [&str; 25] = [
    "qemu-system-x86",
    "busybox-static",
    "cpio",
    "g++",
    "dmsetup",
    "iproute2",
    "e2fsprogs",
    "binutils",
    "gcc",
    "libc6-dev",
    "xz-utils",
    "sysstat",
    "strace",
    "bash",
    "dash",
    "default-jre-headless",
    "python3-venv",
    "python3-prometheus-client",
    "postgresql",
    "etcd-server",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "mariadb-client-core",
    "mariadb-server-core",
];

/// Installs what is missing, as root; otherwise packages stay as they are.
pub(crate) fn install(steps: &mut Steps) {
    let here = program("dpkg-query").arg("-W").args(WANTED).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if here.is_ok_and(|status| status.success()) {
        return;
    }
    if !is_root() {
        println!("not root: packages stay as they are");
        return;
    }
    steps.run("package lists", apt(&["update", "-qq"]));
    steps.run("packages", apt(&["install", "-y", "-qq", "--no-install-recommends"]).args(WANTED));
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = program("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    command
}
