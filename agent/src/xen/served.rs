//! What this control domain serves to Xen domains: ends of their network interfaces, disks, and the kernel threads that serve the
//! disks (of `xen-blkback`, one for each disk and ring: `3.xvda-0` is domain 3's). In: sysfs and procfs, which only this kernel
//! and its toolstack write: nothing that a domain says of itself in xenstore. Out: interfaces, disks and threads by the number of
//! their domain; threads moved into a cgroup and back. Called by sensing, by the levers on a domain's disks, and by what bounds
//! the volunteer's domains.
//!
//! A disk that a program serves (qdisk), or another domain, has no such thread and is not among these.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::facts::{DeviceNumber, TaskCgroups};
use crate::kernel_file::{names, numbers, read_bounded, write_existing};

/// The devices that this domain serves.
const DEVICES: &str = "bus/xen-backend/devices";
/// Ends the name of an interface of an emulated card.
const EMULATED: &str = "-emu";
/// The parent of every kernel thread.
const KERNEL: &str = "2";
/// Longest file that is read.
const LONGEST: u64 = 4_096;
/// Longest list of the threads of a cgroup that is read. (Chosen: some thousand.)
const LONGEST_LIST: u64 = 64 << 10;

/// The domain whose interface this is: the device behind it says so ("vif-3-0" is of domain 3), whatever its name (`vifname=`). One
/// without a device serves the device model of an HVM domain, and the toolstack names it after the other ("batch0-emu" after
/// "batch0"). Where there is no other, the number in it tells: "vif3.0-emu" is of domain 3.
pub(crate) fn domain_of_interface(sys: &Path, name: &str) -> Option<u32> {
    let by_device = |name: &str| std::fs::read_link(sys.join("class/net").join(name).join("device"));
    let device = by_device(name).ok().or_else(|| by_device(name.strip_suffix(EMULATED)?).ok());
    match device {
        Some(device) => {
            let (kind, domain, _) = device_name(device.file_name()?.to_str()?)?;
            (kind == "vif").then_some(domain)
        }
        None => name.strip_prefix("vif")?.split_once('.')?.0.parse().ok(),
    }
}

/// All interfaces of domains, by the number of the domain.
pub(crate) fn interfaces(sys: &Path) -> BTreeMap<u32, Vec<String>> {
    let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for name in names(&sys.join("class/net")) {
        if let Some(domain) = domain_of_interface(sys, &name) {
            found.entry(domain).or_default().push(name);
        }
    }
    found
}

/// The interfaces of these domains.
pub(crate) fn interfaces_of(sys: &Path, domains: &[u32]) -> Vec<String> {
    if domains.is_empty() {
        return Vec::new();
    }
    let found = interfaces(sys);
    domains.iter().filter_map(|id| found.get(id)).flatten().cloned().collect()
}

/// The whole disks that are served to domains, with the number of the domain. What is served is what the kernel has open.
pub(crate) fn disks(sys: &Path) -> Vec<(u32, DeviceNumber)> {
    let folder = sys.join(DEVICES);
    let disk = |name: String| {
        let (kind, domain, _) = device_name(&name)?;
        let text = read_bounded(&folder.join(&name).join("physical_device"), 64).ok().filter(|_| kind == "vbd")?;
        Some((domain, whole_disk(sys, &number(&text)?.to_string())?))
    };
    names(&folder).into_iter().filter_map(disk).collect()
}

/// The disk that a block device is, or is a partition of; `None` for what is no block device.
pub(crate) fn whole_disk(sys: &Path, number: &str) -> Option<DeviceNumber> {
    let device = sys.join("dev/block").join(number).canonicalize().ok()?;
    let disk = if device.join("partition").exists() { device.parent()? } else { &device };
    read_bounded(&disk.join("dev"), 64).ok()?.trim().parse().ok()
}

/// "vbd-3-51712" is a disk of domain 3, "vif-3-0" an interface.
fn device_name(name: &str) -> Option<(&str, u32, u32)> {
    let (kind, rest) = name.split_once('-')?;
    let (domain, device) = rest.split_once('-')?;
    Some((kind, domain.parse().ok()?, device.parse().ok()?))
}

/// "fd:3" is written in hexadecimal.
fn number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.trim().split_once(':')?;
    let decimal = |digits: &str| u32::from_str_radix(digits, 16).ok();
    Some(DeviceNumber { major: decimal(major)?, minor: decimal(minor)? })
}

/// The threads that serve disks, by the number of the domain.
pub(crate) fn threads(proc: &Path) -> BTreeMap<u32, Vec<i32>> {
    let mut found: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
    for pid in numbers(proc) {
        if let Some(domain) = stat_of(proc, pid).and_then(|stat| domain_served(&stat)) {
            found.entry(domain).or_default().push(pid);
        }
    }
    found
}

fn stat_of(proc: &Path, pid: i32) -> Option<String> {
    read_bounded(&proc.join(pid.to_string()).join("stat"), LONGEST).ok()
}

/// The name in a line of `/proc/PID/stat`, if it is a kernel thread's: a program may have any name, but another parent.
fn kernel_thread(stat: &str) -> Option<&str> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    (after.split_whitespace().nth(1)? == KERNEL).then_some(name)
}

/// The domain whose disk a thread serves: "3.xvda-0", or "blkback.3.xvda" of an older kernel.
fn domain_served(stat: &str) -> Option<u32> {
    let name = kernel_thread(stat)?;
    let (domain, disk) = name.strip_prefix("blkback.").unwrap_or(name).split_once('.')?;
    let id = domain.parse().ok()?;
    disk.starts_with(|first: char| first.is_ascii_lowercase()).then_some(id)
}

/// Moves threads that are at the root of the hierarchy into a cgroup right below it. One that somebody else has put into a cgroup
/// of theirs stays there. Answers how many of them are in it now.
///
/// # Errors
/// The first that cannot be moved; the others are.
pub(crate) fn gather(proc: &Path, group: &Path, threads: &[i32]) -> io::Result<usize> {
    let there = members(group);
    let root = group.parent();
    let (mut held, mut failed) = (0, None);
    for thread in threads {
        let is_free =
            || TaskCgroups::read(proc, &thread.to_string()).on("blkio", root.unwrap_or(group)).as_deref() == root;
        let entered = match there.contains(thread) {
            true => Ok(true),
            // It may have ended since, and a program may have its number.
            false if is_free() && stat_of(proc, *thread).is_some_and(|stat| domain_served(&stat).is_some()) => {
                enter(group, *thread)
            }
            false => Ok(false),
        };
        match entered {
            Ok(is_in) => held += usize::from(is_in),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(held), Err)
}

/// True unless it has ended since.
fn enter(group: &Path, thread: i32) -> io::Result<bool> {
    match write_existing(&group.join("cgroup.procs"), &thread.to_string()) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        entered => entered.map(|()| true),
    }
}

fn members(group: &Path) -> Vec<i32> {
    let text = read_bounded(&group.join("cgroup.procs"), LONGEST_LIST).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Puts kernel threads in a cgroup of Gleaner's back where they were, above it: it cannot be removed with them, and they
/// cannot be ended. One that cannot be moved keeps the cgroup, which is told.
pub(crate) fn give_back(proc: &Path, group: &Path) {
    let Some(above) = group.parent() else { return };
    for pid in members(group) {
        if stat_of(proc, pid).is_some_and(|stat| kernel_thread(&stat).is_some()) {
            // What removing the cgroup then meets says it.
            _ = enter(above, pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn threads_are_told_by_their_name_and_their_parent() {
        let of = |name: &str, parent: u32| domain_served(&format!("154 ({name}) S {parent} 0 0 0 -1 2129984"));
        assert_eq!(of("1.xvda-0", 2), Some(1));
        assert_eq!(of("12.sda1-3", 2), Some(12));
        assert_eq!(of("blkback.7.xvdb", 2), Some(7));
        assert_eq!(of("1.xvda-0", 1), None, "a program of that name");
        for other in ["kworker/0:1", "vif1.0-q0-guest", "x.xvda-0", "1.", "3.0", ") (1.xvda-0"] {
            assert_eq!(of(other, 2), None, "{other}");
        }
        assert_eq!(domain_served("garbage"), None);
    }

    #[test]
    fn threads_of_domains_are_found_gathered_and_given_back() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = [(5, "0::/"), (8, "0::/theirs"), (6, "0::/"), (7, "0::/")];
        for ((pid, stat), (of, cgroup)) in
            [(5, "5 (3.xvda-0) S 2 0"), (8, "8 (3.xvdb-0) S 2 0"), (6, "6 (4.xvda-0) S 2 0"), (7, "7 (3.xvda-0) S 1 0")]
                .into_iter()
                .zip(cgroups)
        {
            assert_eq!(pid, of);
            fs::create_dir_all(root.path().join(pid.to_string())).unwrap();
            fs::write(root.path().join(pid.to_string()).join("stat"), stat).unwrap();
            fs::write(root.path().join(pid.to_string()).join("cgroup"), cgroup).unwrap();
        }
        let found = threads(root.path());
        assert_eq!(found, BTreeMap::from([(3, vec![5, 8]), (4, vec![6])]));
        let group = root.path().join("cg/g");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        assert_eq!(gather(root.path(), &group, &found[&3]).unwrap(), 1, "one is in a cgroup of somebody else");
        assert_eq!(fs::read_to_string(group.join("cgroup.procs")).unwrap(), "5");
        fs::write(group.join("cgroup.procs"), "5\n7\n").unwrap();
        fs::write(root.path().join("cg/cgroup.procs"), "").unwrap();
        give_back(root.path(), &group);
        assert_eq!(fs::read_to_string(root.path().join("cg/cgroup.procs")).unwrap(), "5", "a program is none of them");
    }

    #[test]
    fn disks_that_are_served_are_known_by_their_number() {
        let sys = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let file = sys.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        for (name, text) in
            [("vbd-1-51712", "fd:1a\n"), ("vbd-2-51712", "garbage"), ("vif-1-0", "8:0"), ("vbd-3-51713", "8:1\n")]
        {
            put(&format!("{DEVICES}/{name}/physical_device"), text);
        }
        put("devices/dm/dev", "253:26\n");
        put("devices/sda/dev", "8:0\n");
        put("devices/sda/sda1/dev", "8:1\n");
        put("devices/sda/sda1/partition", "1\n");
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        for (number, device) in [("253:26", "dm"), ("8:1", "sda/sda1")] {
            symlink(sys.path().join("devices").join(device), sys.path().join("dev/block").join(number)).unwrap();
        }
        let number = |text: &str| text.parse::<DeviceNumber>().unwrap();
        assert_eq!(disks(sys.path()), [(1, number("253:26")), (3, number("8:0"))], "the whole disk of a partition");
    }

    #[test]
    fn interfaces_are_of_the_domain_whose_device_they_are_whatever_their_name() {
        let sys = tempfile::tempdir().unwrap();
        for (name, device) in [
            ("vif3.0", Some("vif-3-0")),
            ("batch0", Some("vif-3-1")),
            ("vif3.0-emu", None),
            ("batch0-emu", None),
            ("eth0-emu", None),
            ("vif3.9", Some("vif-4-0")),
            ("vif4.7", Some("0000:01:00.0")),
            ("eth0", Some("0000:02:00.0")),
            ("br0", None),
        ] {
            let folder = sys.path().join("class/net").join(name);
            fs::create_dir_all(&folder).unwrap();
            if let Some(device) = device {
                symlink(Path::new("../../..").join(device), folder.join("device")).unwrap();
            }
        }
        assert_eq!(interfaces_of(sys.path(), &[3]), ["batch0", "batch0-emu", "vif3.0", "vif3.0-emu"]);
        assert_eq!(interfaces_of(sys.path(), &[4]), ["vif3.9"]);
        assert!(interfaces_of(sys.path(), &[]).is_empty());
        let of = ["vif12.1-emu", "vif3", "vif.0", "vifx.0", "tap3.0"].map(|name| domain_of_interface(sys.path(), name));
        assert_eq!(of, [Some(12), None, None, None, None]);
    }
}
