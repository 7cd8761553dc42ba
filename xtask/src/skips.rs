//! Tests that skip themselves. In: lines that begin with `SKIPPED: ` (`gleaner_test_support::skip`). Out: the
//! unexpected ones among them. Called by the steps of `ci`. An unexpected skip is named there. Where `ci` runs as root
//! it is a failure, because `ci` has then installed the packages that tests need.

/// What the line of a skipped test begins with.
const MARK: &str = "SKIPPED: ";

/// A part of a line that is expected where the checks run, and why. Only what no package, no root and no change of the tests
/// gives a machine may stand here; a line that is not here is a test that used to run.
const EXPECTED: &[(&str, &str)] = &[
    ("a real bed; `cargo xtask beds` runs it", "beds are steps of their own"),
    ("GLEANER_TRACES names no folder of traces", "recorded traces are not part of the repository"),
    // What the kernel was built with, or how the machine mounted its cgroups. The hosts of the lab have most of it.
    (
        "the disk's scheduler is not bfq",
        "the disk's scheduler is the machine's own; the version 2 host has one with bfq",
    ),
    ("no version 2 memory controller here", "runs on the version 2 host, a bed"),
    ("no unified hierarchy is mounted", "the machine has version 1 alone; the version 2 host has the other"),
    ("the controller cpuset is on no hierarchy of version 1", "the machine has version 2 alone"),
    ("no real cgroup for the volunteer", "the machine has version 2 alone: the test makes version 1 cgroups"),
    ("no hierarchy for perf events", "the machine has version 2 alone"),
    ("no perf events here at all", "the kernel, or the hypervisor below it, has none"),
    ("no hierarchy here throttles disks", "the kernel cannot; the version 2 host can"),
    ("which is no disk", "the machine's files are on no disk of its own; those of the version 2 host are"),
    ("/dev/mapper/control", "no device mapper in this kernel"),
    ("dmsetup cannot make a device here", "no device mapper in this kernel"),
    ("no ceiling here: ", "no BPF programs on cgroups in this kernel"),
    ("the kernel has no process_mrelease", "Linux 5.15 has it"),
    ("no file system that hangs can be mounted", "no FUSE in this kernel"),
    ("can be made here (ip, /dev/net/tun)", "no taps in this kernel; the hosts of the lab have them"),
    ("no taps can be made here", "no taps in this kernel; the hosts of the lab have them"),
    ("no network namespace can be made here", "none in this kernel"),
    ("tc cannot make a queue here", "no such queue in this kernel; the hosts of the lab have them"),
    ("this kernel has no such queue", "the machine's kernel has no policing; the hosts of the lab do"),
    ("no queue can be made here", "the machine's kernel has no policing; the hosts of the lab do"),
    ("this kernel has no policing", "the hosts of the lab have it"),
    ("no policing can be made here", "the machine's kernel has none; the hosts of the lab do"),
    ("a_ceiling_on_what_a_guest_receives_bites: ", "no policing in this kernel; the hosts of the lab have it"),
    ("there is one CPU", "the machine's size"),
    ("it fills the host", "the machine is too large to be filled; the version 2 host is small"),
    ("the volunteer has no bound here", "the kernel has no controller for it; the version 2 host has"),
    ("no file can be made on a disk", "the machine's files are on no disk of its own"),
    ("the helper is installed", "the test is of a host without it"),
    // What others do to the machine, and what is fetched from elsewhere.
    (
        "the machine was not steady: ",
        "a measurement; strangers on the machine are outweighed, those below it cannot be",
    ),
    ("harvesting nodes of a real Slurm cluster: others use", "others use the machine"),
    ("times slower meanwhile", "a measurement that needs the machine to itself"),
    ("kB of free memory are too little", "others use the machine's memory"),
    ("pyspark cannot be fetched", "370 MB that come from no package of Debian's"),
];

/// What the skips of the agent's tests on the version 2 host begin with.
const ON_VERSION_2: &str = "on the version 2 host: ";

/// The same for that host: what an emulated host with a kernel of its own and no packages cannot have. All of it runs on the
/// machine itself.
const EXPECTED_ON_VERSION_2: &[(&str, &str)] = &[
    ("there is no strace that can follow a program here", "no package is installed there"),
    ("there is no chrt here", "no package is installed there"),
    ("qemu-system-x86_64 is not installed", "nothing is emulated within an emulated host"),
    ("the controller cpuset is on no hierarchy of version 1", "it has version 2 alone"),
    (
        "no real cgroup for the volunteer: /sys/fs/cgroup/cpu/",
        "it has version 2 alone: the test makes version 1 cgroups",
    ),
    ("no file system that hangs can be mounted: /dev/fuse", "no FUSE in its kernel"),
    ("an emulated host is too slow beside its other tests", "a measurement"),
    ("an emulated host says nothing of harm", "a measurement"),
    ("no flood fills a link under emulation", "a measurement"),
];

/// The text of a skip, if a line of output is about one.
pub(crate) fn of_line(line: &str) -> Option<&str> {
    // The harness may have begun the line with a test's name.
    let (before, skip) = line.split_once(MARK)?;
    (before.is_empty() || before.starts_with("test ")).then(|| skip.trim_end())
}

/// Why a skip is expected; `None` if it is not.
pub(crate) fn expected(skip: &str) -> Option<&'static str> {
    let (skip, expected) = match skip.split_once(ON_VERSION_2) {
        Some((_, skip)) => (skip, EXPECTED_ON_VERSION_2),
        None => (skip, EXPECTED),
    };
    expected.iter().find(|(part, _)| skip.contains(part)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_or_a_package_gives_is_not_expected_to_be_missing() {
        for skip in [
            "unit: b: it takes root to start programs as others",
            "unit: b: cannot make a cgroup: Read-only file system (os error 30)",
            "unit: b: no cgroup can be made here (not root, or read-only)",
            "unit: no full disk to test on: a tmpfs cannot be mounted here",
            "unit: b: there is no etcd here (Debian's package etcd-server)",
            "unit: b: qemu-system-x86_64 is not installed",
            "unit: a real PostgreSQL: there is no initdb here; apt-get install postgresql",
            "unit: a real PostgreSQL: this machine was busy for a minute: the test needs it for itself",
            "faults: b: there is no strace that can follow a program here",
            "lab: b: kvm/images.sh failed: ",
        ] {
            assert_eq!(expected(skip), None, "{skip}");
        }
        assert!(EXPECTED.iter().chain(EXPECTED_ON_VERSION_2).all(|(part, why)| part.len() > 10 && why.len() > 7));
    }

    #[test]
    fn the_version_2_host_may_lack_only_what_it_cannot_have() {
        for skip in [
            "b: there is no strace that can follow a program here",
            "c: qemu-system-x86_64 is not installed",
            "no real cgroup for the volunteer: /sys/fs/cgroup/cpu/gleaner-tasks-user-127: No such file or directory",
        ] {
            assert!(expected(&format!("unit: on the version 2 host: {skip}")).is_some(), "{skip}");
        }
        // What it was booted for, and what another machine may lack.
        for skip in [
            "a: no version 2 memory controller here",
            "a_ceiling_on_a_link_is_put_back_in_both_directions: Transmit: this kernel has no such queue",
            "the disk's scheduler is not bfq",
            "b: it takes root to start programs as others",
            "no real cgroup for the volunteer: cannot make one",
        ] {
            assert_eq!(expected(&format!("on the version 2 host: {skip}")), None, "{skip}");
        }
    }

    #[test]
    fn a_skip_is_distinguished_from_other_output() {
        let bed = "SKIPPED: spark: a real bed; `cargo xtask beds` runs it\n";
        assert_eq!(of_line(bed), Some("spark: a real bed; `cargo xtask beds` runs it"));
        assert_eq!(of_line("test a::b ... SKIPPED: b: no root"), Some("b: no root"));
        assert_eq!(of_line("on the version 2 host: [\"SKIPPED: x\"]"), None);
        assert_eq!(of_line("test a::b ... ok"), None);
        assert!(expected(of_line(bed).unwrap()).is_some());
        assert_eq!(expected("b: no root"), None);
    }
}
