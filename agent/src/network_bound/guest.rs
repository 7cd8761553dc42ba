//! The network of a volunteer that is a QEMU guest: the taps that its process holds open, and what passes by them. In: the
//! process, its command line and open files. Out: names of interfaces, and words for what no queue on a tap can hold. Called
//! by what holds its interfaces, and by `doctor`.
//!
//! Taps are found as everywhere (`crate::sense::taps`). The command line only says what else there is: nothing is limited by it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::facts::ProcessId;
use crate::kernel_file::names;
use crate::process::{command_line, identify};
use crate::roots::Roots;
use crate::sense::taps::Taps;

/// Between two searches for taps that were plugged or unplugged. (Chosen.)
const SCAN_PERIOD: Duration = Duration::from_secs(5);
/// Every so many searches the rest is looked for anew. (Chosen: a minute.)
const SCANS_BETWEEN: u32 = 12;
/// Most open files of a guest looked at.
const MAX_FILES: usize = 4_096;
/// Most ways that are named.
const MAX_NAMED: usize = 8;
/// The class of network controllers on PCI, as sysfs writes it.
const NETWORK_CLASS: &str = "0x02";

/// A part of a guest's network that no queue of this host holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PassingBy {
    /// QEMU's own sockets, or those of a helper.
    Sockets(String),
    /// Shared memory with another process.
    VhostUser,
    /// A device's own queues.
    Vdpa,
    /// A macvtap interface, by its device file.
    Macvtap(String),
    /// A network device that the guest drives itself, by its address.
    PassedThrough(String),
    /// A tap whose device is elsewhere, or not known to be here.
    Elsewhere(String),
    /// What is open cannot be known.
    FilesUnknown(String),
}

impl fmt::Display for PassingBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sockets(kind) => write!(f, "it has a network of type `{kind}`, which are sockets of a process"),
            Self::VhostUser => {
                f.write_str("it has a network of type `vhost-user`, which is memory shared with another process")
            }
            Self::Vdpa => f.write_str("it has a network of type `vhost-vdpa`, which are queues of the device"),
            Self::Macvtap(file) => write!(f, "it has the macvtap interface `{file}`"),
            Self::PassedThrough(device) => write!(f, "it drives the network device {device} itself"),
            Self::Elsewhere(tap) => {
                write!(f, "its tap `{tap}` is in another network namespace, or where it is cannot be read")
            }
            Self::FilesUnknown(error) => write!(f, "what it has open cannot be read: {error}"),
        }
    }
}

/// A guest's network, as last looked at.
#[derive(Debug)]
pub(crate) struct GuestNetwork {
    roots: Roots,
    process: ProcessId,
    taps: Taps,
    scans: u32,
    scanned: Option<Instant>,
    ended: bool,
    /// Of the command line and of open files that are no taps.
    others: Vec<PassingBy>,
}

impl GuestNetwork {
    /// Of the process that is the guest now; `None` if it has ended.
    pub(crate) fn of(roots: &Roots, pid: i32) -> Option<Self> {
        let process = identify(&roots.proc, pid)?;
        let (taps, others) = (Taps::new(pid), Vec::new());
        Some(Self { roots: roots.clone(), process, taps, scans: 0, scanned: None, ended: false, others })
    }

    /// Names of the taps that may be limited, where it is time to look; none once the guest has ended.
    pub(super) fn taps(&mut self, now: Instant) -> Option<Vec<String>> {
        if self.scanned.is_some_and(|at| now.duration_since(at) < SCAN_PERIOD) {
            return None;
        }
        self.scanned = Some(now);
        let (proc, pid) = (&self.roots.proc, self.process.pid);
        match identify(proc, pid) {
            Some(process) if process == self.process => {}
            // It cannot be told now: what is held stays held.
            None if proc.join(pid.to_string()).exists() => return None,
            _ => {
                self.others.clear();
                self.ended = true;
                self.taps = Taps::new(pid);
                return Some(Vec::new());
            }
        }
        // All of its files: one that was plugged has no ceiling until it is found.
        self.taps = Taps::new(pid);
        self.taps.rescan(proc);
        if self.scans.is_multiple_of(SCANS_BETWEEN) {
            self.others = open_others(&self.roots, pid);
            let line = command_line(proc, &pid.to_string()).unwrap_or_default();
            self.others.extend(named(&line));
            self.others.sort();
            self.others.dedup();
        }
        self.scans = self.scans.wrapping_add(1);
        Some(self.taps.to_limit())
    }

    /// The next look is a search.
    pub(super) const fn scan_soon(&mut self) {
        self.scanned = None;
    }

    /// It has this tap open, though that may not be one to limit.
    pub(super) fn has(&self, tap: &str) -> bool {
        self.taps.names().iter().any(|name| name == tap)
    }

    /// Why something passes by the taps, or will; `None` where nothing is known to.
    pub(super) fn passing_by(&self) -> Option<String> {
        if self.ended {
            // A guest that is started anew is another process, in another cgroup.
            return Some("the guest has ended, and no other is held; restart the agent once it runs again".to_owned());
        }
        let here = self.taps.to_limit();
        let elsewhere = self.taps.names().into_iter().filter(|tap| !here.contains(tap)).map(PassingBy::Elsewhere);
        let all: Vec<String> =
            self.others.iter().cloned().chain(elsewhere).take(MAX_NAMED).map(|way| way.to_string()).collect();
        let all = all.join("; ");
        (!all.is_empty()).then(|| {
            format!("not all of the guest's network is taps of this host: {all}; give the guest a tap instead")
        })
    }
}

/// Open files that are a network, and no taps.
fn open_others(roots: &Roots, pid: i32) -> Vec<PassingBy> {
    let folder = roots.proc.join(pid.to_string()).join("fd");
    if let Err(error) = std::fs::read_dir(&folder) {
        return vec![PassingBy::FilesUnknown(error.to_string())];
    }
    let links =
        names(&folder).into_iter().take(MAX_FILES).filter_map(|file| std::fs::read_link(folder.join(file)).ok());
    links.flat_map(|link| other(&roots.sys, &link)).collect()
}

fn other(sys: &Path, link: &Path) -> Vec<PassingBy> {
    let Some(file) = link.strip_prefix("/dev").ok().and_then(Path::to_str) else { return Vec::new() };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if file.strip_prefix("tap").is_some_and(is_number) {
        return vec![PassingBy::Macvtap(link.display().to_string())];
    }
    if file.strip_prefix("vhost-vdpa-").is_some_and(is_number) {
        return vec![PassingBy::Vdpa];
    }
    let devices: Vec<PathBuf> = match file.strip_prefix("vfio/") {
        Some(group) if is_number(group) => {
            let folder = sys.join("kernel/iommu_groups").join(group).join("devices");
            names(&folder).into_iter().map(|name| folder.join(name)).collect()
        }
        Some(device) => match device.strip_prefix("devices/vfio").filter(|number| is_number(number)) {
            Some(number) => {
                let link = sys.join(format!("class/vfio-dev/vfio{number}/device"));
                vec![std::fs::canonicalize(&link).unwrap_or(link)]
            }
            None => Vec::new(),
        },
        None => Vec::new(),
    };
    let is_network = |device: &PathBuf| {
        std::fs::read_to_string(device.join("class")).is_ok_and(|class| class.starts_with(NETWORK_CLASS))
    };
    let address = |device: PathBuf| device.file_name().map(|name| name.to_string_lossy().into_owned());
    devices.into_iter().filter(is_network).filter_map(address).map(PassingBy::PassedThrough).collect()
}

/// Networks that a command line (arguments ended by NUL) asks for, and which are no taps. Without a word of any, QEMU makes one
/// of type `user`.
fn named(line: &[u8]) -> Vec<PassingBy> {
    let mut found = Vec::new();
    let (mut by_default, mut option) = (true, String::new());
    for argument in line.split(|byte| *byte == 0).skip(1).map(String::from_utf8_lossy) {
        if matches!(option.trim_start_matches('-'), "netdev" | "nic" | "net") {
            by_default = false;
            found.extend(network_type(&argument).and_then(|kind| of_type(&kind)));
        }
        by_default &= argument.trim_start_matches('-') != "nodefaults";
        option = if argument.starts_with('-') { argument.into_owned() } else { String::new() };
    }
    if by_default {
        found.push(PassingBy::Sockets("user".to_owned()));
    }
    found
}

/// The type in "TYPE,…", "type=TYPE,…" or JSON.
fn network_type(argument: &str) -> Option<String> {
    if argument.starts_with('{') {
        let json: serde_json::Value = serde_json::from_str(argument).ok()?;
        return Some(json.get("type")?.as_str()?.to_owned());
    }
    let first = argument.split(',').next()?;
    Some(first.strip_prefix("type=").unwrap_or(first).to_owned())
}

fn of_type(kind: &str) -> Option<PassingBy> {
    match kind {
        "user" | "passt" | "socket" | "stream" | "dgram" | "l2tpv3" | "vde" | "af-xdp" | "netmap" => {
            Some(PassingBy::Sockets(kind.to_owned()))
        }
        "vhost-user" => Some(PassingBy::VhostUser),
        "vhost-vdpa" => Some(PassingBy::Vdpa),
        // A tap is found by its open file; the others join what there is, or are none.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn words(line: &str) -> String {
        let line: Vec<u8> = line.split(' ').flat_map(|word| word.bytes().chain([0])).collect();
        let mut found: Vec<String> = named(&line).iter().map(ToString::to_string).collect();
        found.sort();
        found.join("; ")
    }

    #[test]
    fn networks_that_are_no_taps_are_told_by_the_command_line() {
        assert_eq!(words("qemu-kvm -nodefaults -m 64"), "");
        assert_eq!(words("qemu-kvm -nodefaults -netdev tap,id=n0,ifname=t0 -nic none -net nic"), "");
        assert!(words("qemu-kvm -m 64").contains("`user`"), "QEMU makes one by itself");
        assert!(words("qemu-kvm --nic user,model=e1000").contains("`user`"));
        assert!(words("qemu-kvm -netdev {\"type\":\"vhost-user\",\"id\":\"a\"}").contains("`vhost-user`"));
        assert!(words("qemu-kvm -netdev type=stream,id=a").contains("`stream`"));
        let two = words("qemu-kvm -netdev vhost-vdpa,id=a -netdev tap,id=b -netdev user,id=c");
        assert!(two.contains("`vhost-vdpa`") && two.contains("`user`") && !two.contains("tap"), "{two}");
        assert_eq!(words("qemu-kvm -nodefaults -netdev {broken -netdev"), "");
    }

    #[test]
    fn macvtap_and_devices_that_are_passed_through_are_told_by_open_files() {
        let root = tempfile::tempdir().unwrap();
        let roots =
            Roots { proc: root.path().join("proc"), sys: root.path().join("sys"), root: root.path().to_owned() };
        let of = |pid: i32| open_others(&roots, pid).iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        assert!(of(7).contains("cannot be read"), "{}", of(7));
        let fd = roots.proc.join("7/fd");
        fs::create_dir_all(&fd).unwrap();
        for (number, to) in
            ["/dev/net/tun", "/dev/tap12", "/dev/vfio/3", "/dev/vfio/vfio", "socket:[1]", "/dev/vfio/devices/vfio1"]
                .iter()
                .enumerate()
        {
            symlink(to, fd.join(number.to_string())).unwrap();
        }
        for (device, class) in [("0000:01:10.0", "0x020000"), ("0000:02:00.0", "0x030000")] {
            let folder = roots.sys.join("kernel/iommu_groups/3/devices").join(device);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("class"), format!("{class}\n")).unwrap();
        }
        let found = of(7);
        assert!(
            found.contains("`/dev/tap12`") && found.contains("0000:01:10.0") && !found.contains("02:00.0"),
            "{found}"
        );
    }

    #[test]
    fn a_guest_that_has_ended_has_no_taps() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots { proc: root.path().to_owned(), sys: root.path().to_owned(), root: root.path().to_owned() };
        assert!(GuestNetwork::of(&roots, 7).is_none());
        fs::create_dir_all(root.path().join("7/fd")).unwrap();
        let stat = |start| format!("7 (q) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {start} 1 7 0");
        fs::write(root.path().join("7/stat"), stat(5)).unwrap();
        fs::write(root.path().join("7/cmdline"), "qemu-kvm\0").unwrap();
        let mut guest = GuestNetwork::of(&roots, 7).unwrap();
        let now = Instant::now();
        assert_eq!(guest.taps(now), Some(Vec::new()));
        assert!(guest.passing_by().unwrap().contains("`user`"));
        assert_eq!(guest.taps(now), None, "not looked at yet");
        fs::write(root.path().join("7/stat"), stat(6)).unwrap();
        assert_eq!(guest.taps(now + SCAN_PERIOD), Some(Vec::new()));
        let told = guest.passing_by().unwrap();
        assert!(told.contains("has ended") && !told.contains("`user`"), "another process of that number: {told}");
    }
}
