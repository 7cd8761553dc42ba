//! Processes and their threads: `/proc/PID/{stat,statm,io,cmdline}`, `/proc/PID/task/TID/{comm,schedstat}`. In: procfs.
//! Out: raw facts and counters. Called by discovery and the sensors, and by acting, to find the processes of the
//! volunteer and what is beside it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use gleaner_types::report::{Absence, Reason};
use gleaner_types::units::Bytes;

use crate::facts::ProcessId;
use crate::kernel_file::{fields, lines, malformed, number, numbers};

/// What `/proc/PID/stat` says that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Process group.
    pub(crate) group: i32,
    /// User and system time of all threads, dead ones included.
    pub(crate) cpu_ns: u64,
    /// Start time in ticks since boot.
    pub(crate) start_ticks: u64,
    /// Memory resident, in pages.
    pub(crate) resident_pages: u64,
}

/// `/proc/PID/stat`. The name in parentheses may hold anything, so fields are counted from its end.
pub(crate) fn parse_stat(bytes: &[u8]) -> Result<Stat, Absence> {
    let bad = || malformed("a process's stat", bytes);
    let end = bytes.iter().rposition(|byte| *byte == b')').ok_or_else(bad)?;
    let mut wanted = [0_u64; 22];
    let mut count = 0;
    for (slot, field) in wanted.iter_mut().zip(fields(&bytes[end + 1..])) {
        // State and the terminal's group are no plain numbers; none of the wanted fields is negative.
        *slot = number(field).unwrap_or(0);
        count += 1;
    }
    if count < wanted.len() {
        return Err(bad());
    }
    Ok(Stat {
        group: i32::try_from(wanted[2]).map_err(|_| bad())?,
        cpu_ns: wanted[11].saturating_add(wanted[12]).saturating_mul(10_000_000),
        start_ticks: wanted[19],
        resident_pages: wanted[21],
    })
}

/// Reads a process's stat once.
pub(crate) fn stat(proc: &Path, pid: i32) -> Result<Stat, Absence> {
    let path = proc.join(format!("{pid}/stat"));
    let bytes = std::fs::read(&path).map_err(|error| crate::kernel_file::absence(&path, &error))?;
    parse_stat(&bytes)
}

/// The process of this number as it is now; `None` if there is none.
pub(crate) fn identify(proc: &Path, pid: i32) -> Option<ProcessId> {
    Some(ProcessId { pid, start_ticks: stat(proc, pid).ok()?.start_ticks })
}

/// Time on a CPU and time waiting for one, of a thread's `schedstat`: "cpu-ns wait-ns timeslices".
pub(crate) fn parse_schedstat(bytes: &[u8]) -> Result<(u64, u64), Absence> {
    let mut fields = fields(bytes).map(number);
    match (fields.next().flatten(), fields.next().flatten()) {
        (Some(cpu), Some(wait)) => Ok((cpu, wait)),
        _ => Err(malformed("a thread's schedstat", bytes)),
    }
}

/// Resident memory of `/proc/PID/statm`.
pub(crate) fn parse_statm(bytes: &[u8]) -> Result<Bytes, Absence> {
    let pages = fields(bytes).nth(1).and_then(number).ok_or_else(|| malformed("a process's statm", bytes))?;
    Ok(Bytes(pages.saturating_mul(rustix::param::page_size() as u64)))
}

/// Bytes read from and written to storage, of `/proc/PID/io`.
pub(crate) fn parse_io(bytes: &[u8]) -> Result<(u64, u64), Absence> {
    let field = |name: &[u8]| lines(bytes).find_map(|line| number(line.strip_prefix(name)?.trim_ascii()));
    match (field(b"read_bytes:"), field(b"write_bytes:")) {
        (Some(read), Some(write)) => Ok((read, write)),
        _ => Err(malformed("a process's io", bytes)),
    }
}

/// A QEMU guest, as its command line tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QemuCommand {
    /// The guest's name, if it has one.
    pub(crate) name: Option<String>,
    /// Socket of its monitor, if it has one that anybody can connect to. A claim: whoever starts the process writes it.
    pub(crate) monitor: Option<PathBuf>,
    /// Its UUID.
    pub(crate) uuid: Option<String>,
    /// Its number at Proxmox, whose QEMU alone has that option.
    pub(crate) vmid: Option<u32>,
}

/// Most of a command line that is read: whoever starts a process chooses its length, and it may be megabytes.
const MAX_CMDLINE: u64 = 128 << 10;

/// What a process's command line says of a QEMU guest; `None` if it is none, or has ended.
pub(crate) fn qemu(proc: &Path, pid: &str) -> Option<QemuCommand> {
    parse_qemu(&command_line(proc, pid)?)
}

/// The beginning of a process's command line; `None` if it has ended.
pub(crate) fn command_line(proc: &Path, pid: &str) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    File::open(proc.join(pid).join("cmdline")).ok()?.take(MAX_CMDLINE).read_to_end(&mut line).ok()?;
    Some(line)
}

/// What a command line (`/proc/PID/cmdline`: arguments ended by NUL) says of a QEMU guest; `None` if it is
/// none. The process's short name is of no use: it is cut to 15 characters, or the guest's own. What emulates the devices of a
/// Xen domain is none either: the domain is the guest.
pub(crate) fn parse_qemu(cmdline: &[u8]) -> Option<QemuCommand> {
    let mut arguments = cmdline.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = arguments.next()?;
    let program = program.rsplit('/').next()?;
    if !(program.starts_with("qemu-system-") || ["qemu-kvm", "kvm", "qemu-kvm.real"].contains(&program)) {
        return None;
    }
    let mut command = QemuCommand::default();
    let (mut sockets, mut monitors) = (Vec::new(), Vec::new());
    let mut option = String::new();
    for argument in arguments {
        match option.trim_start_matches('-') {
            "name" => command.name = guest_name(&argument).or(command.name),
            "qmp" | "qmp-pretty" => {
                command.monitor = argument.strip_prefix("unix:").and_then(first_part).map(Into::into)
            }
            "uuid" => command.uuid = Some(argument.to_string()),
            // What the guest sees as its machine's, which is the only one that Proxmox gives.
            "smbios" => command.uuid = command.uuid.or_else(|| part_of(&argument, "uuid=")),
            "id" => command.vmid = argument.parse().ok(),
            "xen-domid" => return None,
            "chardev" => sockets.extend(listening_socket(&argument)),
            "mon" if argument.contains("mode=control") => monitors.extend(part_of(&argument, "chardev=")),
            _ => {}
        }
        option = if argument.starts_with('-') { argument.into_owned() } else { String::new() };
    }
    let of_monitor = |(id, _): &&(String, PathBuf)| monitors.contains(id);
    command.monitor = command.monitor.or_else(|| Some(sockets.iter().find(of_monitor)?.1.clone()));
    command.monitor = command.monitor.filter(|path| path.is_absolute());
    Some(command)
}

fn first_part(argument: &str) -> Option<&str> {
    argument.split(',').next().filter(|part| !part.is_empty())
}

fn part_of(argument: &str, key: &str) -> Option<String> {
    argument.split(',').find_map(|part| part.strip_prefix(key)).map(str::to_owned)
}

/// Id and path of "socket,id=ID,path=PATH,server=on": one that was passed as an open file has no path.
fn listening_socket(argument: &str) -> Option<(String, PathBuf)> {
    argument.starts_with("socket,").then_some(())?;
    Some((part_of(argument, "id=")?, part_of(argument, "path=")?.into()))
}

/// "NAME" or "guest=NAME,debug-threads=on"; a comma in a name is written twice.
fn guest_name(argument: &str) -> Option<String> {
    let unescaped = argument.replace(",,", "\u{0}");
    let mut parts = unescaped.split(',');
    let first = parts.clone().next().filter(|part| !part.contains('='));
    let name = parts.find_map(|part| part.strip_prefix("guest=")).or(first)?;
    Some(name.replace('\u{0}', ",")).filter(|name| !name.is_empty())
}

/// A name the kernel takes for an interface (IFNAMSIZ is 16 with the NUL), so also safe as part of a path.
pub(crate) fn is_interface_name(name: &str) -> bool {
    (1..16).contains(&name.len()) && !name.starts_with('.') && !name.contains(|c: char| c == '/' || c.is_whitespace())
}

/// A process is in this process's network namespace.
pub(crate) fn in_this_network_namespace(proc: &Path, pid: i32) -> bool {
    let namespace = |process: &str| std::fs::read_link(proc.join(process).join("ns/net")).ok();
    namespace("self") == namespace(&pid.to_string())
}

/// Whether a QEMU thread of this name (`comm`) runs a virtual CPU: "CPU 0/KVM", "CPU 3/TCG".
pub(crate) fn is_vcpu_thread(comm: &[u8]) -> bool {
    comm.trim_ascii()
        .strip_prefix(b"CPU ")
        .and_then(|rest| rest.split(|byte| *byte == b'/').next())
        .is_some_and(|index| number(index).is_some())
}

/// The processes of the machine, in the order of their numbers.
pub(crate) fn pids(proc: &Path) -> Vec<i32> {
    numbers(proc)
}

/// The threads of a process.
pub(crate) fn threads(proc: &Path, pid: i32) -> Vec<i32> {
    numbers(&proc.join(format!("{pid}/task")))
}

/// Absence of something whose process ended.
pub(crate) fn gone() -> Absence {
    Absence::because(Reason::ProcessEnded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_hostile_name() {
        let text = b"7 (a) R 1) S 1 42 3 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 9999 1000 77 18446744073709551615";
        assert_eq!(
            parse_stat(text).unwrap(),
            Stat { group: 42, cpu_ns: 2_000_000_000, start_ticks: 9999, resident_pages: 77 }
        );
        assert!(parse_stat(b"7 (a) S 1").is_err());
        let own = stat(Path::new("/proc"), i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.start_ticks > 0 && own.resident_pages > 0);
    }

    #[test]
    fn qemu_command_lines() {
        let parse = |text: &str| parse_qemu(text.replace(' ', "\0").as_bytes());
        let bare =
            parse("/usr/bin/qemu-system-x86_64 -m 64 -name lab-3 -netdev tap,id=n0,ifname=tap7,script=no").unwrap();
        assert_eq!(bare, QemuCommand { name: Some("lab-3".into()), ..QemuCommand::default() });
        let proxmox =
            parse("/usr/bin/kvm -id 101 -name web,debug-threads=on -smbios type=1,uuid=4d-e2 -daemonize").unwrap();
        let named =
            QemuCommand { name: Some("web".into()), uuid: Some("4d-e2".into()), vmid: Some(101), monitor: None };
        assert_eq!(proxmox, named);
        assert_eq!(parse("kvm -smbios uuid=a -uuid b -id x").unwrap().uuid.as_deref(), Some("b"));
        assert_eq!(parse("/usr/bin/qemu-system-i386 -xen-domid 3 -name batch-1 -M xenfv"), None);
        let libvirt = parse("/usr/bin/kvm -name guest=win,,10,debug-threads=on -S").unwrap();
        assert_eq!(libvirt.name.as_deref(), Some("win,10"));
        let monitor = |text: &str| parse(text).unwrap().monitor.map(|path| path.display().to_string());
        assert_eq!(monitor("kvm -qmp unix:/run/a.qmp,server=on,wait=off").as_deref(), Some("/run/a.qmp"));
        let other =
            "kvm -chardev socket,id=ch,path=/run/b,server=on -chardev socket,id=x,path=/c -mon chardev=ch,mode=control";
        assert_eq!(monitor(other).as_deref(), Some("/run/b"));
        assert_eq!(monitor("kvm -chardev socket,id=m,fd=7,server=on -mon chardev=m,mode=control"), None);
        assert_eq!(monitor("kvm -qmp unix:relative,server=on"), None);
        assert_eq!(monitor("kvm -qmp stdio"), None);
        let other_order = parse("qemu-kvm --name process=x,guest=y").unwrap();
        assert_eq!(other_order.name.as_deref(), Some("y"));
        assert_eq!(parse("qemu-system-arm -m 1").unwrap().name, None);
        assert_eq!(parse("/usr/bin/qemu-img convert"), None);
        assert_eq!(parse("vim qemu-system-x86_64"), None);
        let hostile = parse("kvm -netdev tap,ifname=../../etc -name debug-threads=on").unwrap();
        assert_eq!(hostile, QemuCommand::default());
    }

    #[test]
    fn vcpu_threads_are_distinguished_from_the_others() {
        for vcpu in ["CPU 0/KVM\n", "CPU 12/TCG"] {
            assert!(is_vcpu_thread(vcpu.as_bytes()), "{vcpu}");
        }
        for other in ["qemu-system-x86", "IO mon_iothread", "worker", "CPU x/KVM", "vnc_worker"] {
            assert!(!is_vcpu_thread(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn small_files() {
        assert_eq!(parse_schedstat(b"123 45 6\n"), Ok((123, 45)));
        assert!(parse_schedstat(b"123\n").is_err());
        assert_eq!(
            parse_io(b"rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"),
            Ok((4096, 8192))
        );
        assert!(parse_io(b"").is_err());
        assert_eq!(parse_statm(b"9 2 1 1 0 1 0\n").unwrap().0, 2 * rustix::param::page_size() as u64);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            _ = parse_stat(&bytes);
            _ = parse_schedstat(&bytes);
            _ = parse_statm(&bytes);
            _ = parse_io(&bytes);
            _ = parse_qemu(&bytes);
            let mut qemu = b"kvm\0-name\0".to_vec();
            qemu.extend(bytes);
            _ = parse_qemu(&qemu);
        }
    }
}
