//! Claims on a process's command line against the facts: monitors and taps of other processes.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gleaner_test_support::skip;
use gleaner_types::id::WorkloadId;

use super::*;
use crate::levers::catalogue::levers_of_all;
use crate::levers::{AnyLever, WorkloadLevers};

/// Ends a child process whatever happens.
struct Kill(Child);

impl Drop for Kill {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn quiet(command: &mut Command) -> Option<Kill> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().ok().map(Kill)
}

/// Passes an open file to a process that is to be started, and to no other that a test starts meanwhile.
#[expect(unsafe_code, reason = "only between fork and exec can a file be passed to one process alone")]
fn pass<'c>(command: &'c mut Command, file: &OwnedFd) -> &'c mut Command {
    let number = file.as_raw_fd();
    let inherit = move || {
        // SAFETY: fcntl may be called between fork and exec; the caller keeps the file open until the process is started.
        let done = unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(inherit) }
}

/// A real guest, stopped before its first instruction.
fn guest(name: &str, options: &[&str], file: Option<&OwnedFd>) -> Option<Kill> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-display", "none", "-accel", "tcg", "-m", "64", "-nodefaults", "-S", "-name", name]).args(options);
    file.map(|file| pass(&mut command, file));
    quiet(&mut command)
}

/// A process that is no guest but calls itself one, with a guest's options.
fn impostor(name: &str, options: &[&str], file: Option<&OwnedFd>) -> Kill {
    let mut command = Command::new("sh");
    // It ends with its standard input, and so with the test.
    command.arg0("qemu-system-x86_64").args(["-c", "read line; :", "x", "-name", name]).args(options);
    file.map(|file| pass(&mut command, file));
    Kill(command.stdin(Stdio::piped()).spawn().unwrap())
}

/// Follows the machine's guests until something is true of the levers that they have.
fn until(what: &str, condition: impl Fn(&BTreeMap<WorkloadId, WorkloadLevers>, &Observation) -> bool) {
    let hierarchies = Hierarchies::of_this_machine();
    let settings = SenseSettings {
        roots: Roots::default(),
        foreground_cgroups: Vec::new(),
        qemu: true,
        monitors: true,
        counters: false,
        scan_period_s: 0.0,
    };
    let mut sensor = Sensor::open(settings, &hierarchies, VolunteerTrace::None, &[]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let observation = sensor.sample(Instant::now());
        let levers = levers_of_all(&sensor.foreground(), &hierarchies, None);
        if condition(&levers, &observation) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: not in 60 s: {levers:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn id(name: &str) -> WorkloadId {
    WorkloadId::new(name).unwrap()
}

fn monitors(levers: &WorkloadLevers) -> usize {
    levers.levers.iter().filter(|(_, lever)| matches!(lever, AnyLever::Monitor(_))).count()
}

fn taps(levers: &WorkloadLevers) -> Vec<&str> {
    let tap = |lever: &'_ AnyLever| match lever {
        AnyLever::Link(link) => Some(link.interface.clone()),
        _ => None,
    };
    let mut names: Vec<String> = levers.levers.iter().filter_map(|(_, lever)| tap(lever)).collect();
    names.dedup();
    names.into_iter().map(|name| &*name.leak()).collect()
}

/// A balloon shrank a guest when another process named its socket and was limited.
#[test]
fn a_process_that_names_anothers_monitor_gets_none_of_its_levers() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp");
    let claim = format!("unix:{},server=on,wait=off", socket.display());
    let number = std::process::id();
    let (victim, thief) = (format!("claims-victim-{number}"), format!("claims-thief-{number}"));
    let Some(_guest) = guest(&victim, &["-device", "virtio-balloon-pci", "-qmp", &claim], None) else {
        skip!("qemu-system-x86_64 is not installed");
    };
    let _thief = impostor(&thief, &["-qmp", &claim], None);
    until("the victim's own balloon", |levers, observation| {
        let (Some(own), Some(stolen)) = (levers.get(&id(&victim)), levers.get(&id(&thief))) else { return false };
        assert_eq!(monitors(stolen), 0, "{stolen:?}");
        // Its counters tell that all monitors were asked twice.
        let sample = observation.workloads.iter().find(|workload| workload.id == id(&victim));
        monitors(own) == 1 && sample.is_some_and(|sample| sample.disk_operations.value().is_some())
    });
}

#[expect(unsafe_code, reason = "rustix has no ioctl for taps")]
pub(crate) fn open_tap(name: &str) -> std::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let tap = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: all zeros is a valid value of this plain structure of integers and unions of such.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::try_from(byte).unwrap();
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_TAP | libc::IFF_NO_PI).unwrap();
    // SAFETY: the descriptor is open and `request` outlives the call, which reads and writes no more than it.
    match unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(tap),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Of three processes that say a tap is theirs only the one that holds it open, here, has its levers: it was passed to a
/// real guest as an open file, as libvirt does. The second only names it; the third holds one of the same name that is in
/// another network namespace.
#[test]
fn a_tap_is_whose_process_holds_it_open_in_this_namespace() {
    let number = std::process::id();
    let name = format!("glc{}", number % 1_000_000);
    let elsewhere = std::thread::spawn({
        let name = name.clone();
        move || crate::netlink::own_namespace().and_then(|()| open_tap(&name))
    });
    let (here, elsewhere) = match (open_tap(&name), elsewhere.join().unwrap()) {
        (Ok(here), Ok(elsewhere)) => (here, elsewhere),
        (Err(error), _) | (_, Err(error)) => skip!("no taps can be made here: {error}"),
    };
    let [holder, namer, elsewhere_id] =
        ["holder", "namer", "elsewhere"].map(|what| id(&format!("claims-{what}-{number}")));
    let netdev = format!("tap,id=n0,fd={}", here.as_raw_fd());
    let options = ["-netdev", &netdev, "-device", "virtio-net-pci,netdev=n0,romfile="];
    let Some(_guest) = guest(holder.as_str(), &options, Some(&here)) else {
        skip!("qemu-system-x86_64 is not installed")
    };
    drop(here);
    let named = format!("tap,id=n0,ifname={name},script=no");
    let _elsewhere = impostor(elsewhere_id.as_str(), &["-netdev", &named], Some(&elsewhere));
    drop(elsewhere);
    let _namer = impostor(namer.as_str(), &["-netdev", &named], None);
    until("the tap of the guest that holds it", |levers, _| {
        let [Some(holder), Some(namer), Some(elsewhere)] = [&holder, &namer, &elsewhere_id].map(|id| levers.get(id))
        else {
            return false;
        };
        assert!(taps(namer).is_empty() && taps(elsewhere).is_empty(), "{namer:?} {elsewhere:?}");
        taps(holder) == [name.as_str()]
    });
    assert!(std::path::Path::new("/sys/class/net").join(&name).exists(), "the guest holds it");
}
