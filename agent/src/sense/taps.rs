//! Which tap interfaces a guest's process holds open: the descriptors of `/dev/net/tun` among its own, and their `iff:`
//! in `/proc/PID/fdinfo`. Its command line is not read, because whoever starts a process writes that. In: procfs. Out:
//! names, and whether a tap may be limited. Called by the reader of a guest at every scan.
//!
//! A name says nothing of where its device is: one of the same name in another network namespace, handed over as an
//! open file, reads alike. So a tap counts as the guest's to limit only when the kernel says, of a duplicate of that
//! very descriptor, that the device is in this network namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::kernel_file::names;
use crate::process::is_interface_name;

/// Scans in which a new guest's files are all looked at: libvirt passes it its taps as open files, some time after its
/// start.
const FIRST_SCANS: u32 = 3;
/// Every so many scans all files are looked at, because an interface may be plugged at any time. (Chosen: a minute.)
const SCANS_BETWEEN: u32 = 12;
/// Most open files of a guest looked at.
const MAX_FILES: usize = 4_096;
/// `TUNGETDEVNETNS` of linux/if_tun.h: `_IO('T', 227)`.
const GET_NAMESPACE: libc::Ioctl = 0x54e3;

/// A tap as one descriptor shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tap {
    /// Number of the descriptor in the guest's process.
    file: i32,
    name: String,
    /// The device is in this network namespace.
    here: bool,
}

/// The taps of one process.
#[derive(Debug)]
pub(crate) struct Taps {
    pid: i32,
    scans: u32,
    taps: Vec<Tap>,
}

impl Taps {
    pub(crate) const fn new(pid: i32) -> Self {
        Self { pid, scans: 0, taps: Vec::new() }
    }

    /// Finds the taps anew. True if they have changed.
    pub(crate) fn rescan(&mut self, proc: &Path) -> bool {
        let kept: Vec<Tap> = self.taps.iter().filter_map(|tap| open_tap(proc, self.pid, tap.file)).collect();
        let all = kept != self.taps || self.scans < FIRST_SCANS || self.scans.is_multiple_of(SCANS_BETWEEN);
        self.scans = self.scans.wrapping_add(1);
        let now = if all { open_taps(proc, self.pid) } else { kept };
        let changed = now != self.taps;
        self.taps = now;
        changed
    }

    /// Names of all of them. One with several queues is open several times.
    pub(crate) fn names(&self) -> Vec<String> {
        unique(self.taps.iter())
    }

    /// Names of those whose devices are in this network namespace.
    pub(crate) fn to_limit(&self) -> Vec<String> {
        unique(self.taps.iter().filter(|tap| tap.here))
    }
}

fn unique<'t>(taps: impl Iterator<Item = &'t Tap>) -> Vec<String> {
    let mut names: Vec<String> = taps.map(|tap| tap.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

fn open_taps(proc: &Path, pid: i32) -> Vec<Tap> {
    let files = names(&proc.join(pid.to_string()).join("fd"));
    let mut files: Vec<i32> = files.iter().take(MAX_FILES).filter_map(|name| name.parse().ok()).collect();
    files.sort_unstable();
    files.into_iter().filter_map(|file| open_tap(proc, pid, file)).collect()
}

/// The tap behind a descriptor of a process, if it is one.
fn open_tap(proc: &Path, pid: i32, file: i32) -> Option<Tap> {
    let folder = proc.join(pid.to_string());
    let link = std::fs::read_link(folder.join("fd").join(file.to_string())).ok()?;
    let name = (link == Path::new("/dev/net/tun")).then(|| interface(&folder, file)).flatten()?;
    let here = match in_this_namespace(proc, pid, file) {
        Ok(own) => own.as_deref() == Some(name.as_str()),
        Err(error) => {
            tracing::debug!(pid, tap = name, %error, "where the device of a tap is cannot be told; it is not limited");
            false
        }
    };
    Some(Tap { file, name, here })
}

/// The interface in the descriptor's `fdinfo`.
fn interface(process: &Path, file: i32) -> Option<String> {
    let info = std::fs::read_to_string(process.join("fdinfo").join(file.to_string())).ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    is_interface_name(name).then(|| name.to_owned())
}

/// The name of the tap behind a descriptor of a process, if its device is in this network namespace. Both are read
/// through one duplicate, so that no process can put another file under the number in between.
fn in_this_namespace(proc: &Path, pid: i32, file: i32) -> io::Result<Option<String>> {
    let process = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    let tap = pidfd_getfd(pidfd_open(process, PidfdFlags::empty())?, file, PidfdGetfdFlags::empty())?;
    let namespace = fstat(device_namespace(&tap)?)?;
    let own = rustix::fs::stat(proc.join("self/ns/net"))?;
    let here = (namespace.st_dev, namespace.st_ino) == (own.st_dev, own.st_ino);
    Ok(if here { interface(&proc.join("self"), tap.as_raw_fd()) } else { None })
}

/// The network namespace that a tap's device is in. The kernel says it only to a process that may administrate that
/// namespace.
#[expect(unsafe_code, reason = "rustix has no such ioctl")]
fn device_namespace(tap: &impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open as long as `tap` is borrowed; this ioctl takes no argument and writes no memory.
    let namespace = unsafe { libc::ioctl(tap.as_fd().as_raw_fd(), GET_NAMESPACE) };
    if namespace < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for this process, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}
