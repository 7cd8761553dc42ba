//! What workloads are called by whoever manages them. In: what discovery found, and run-time files of libvirt and
//! Proxmox, below a root. Out: names for reports to people; nothing that acts uses them. Called by the sensor, once for
//! each new workload.
//!
//! Names are claims of whoever starts a process. They count where [`crate::origin`] says so; another process is called by its
//! number, its user and its cgroup. A title, a display name of OpenStack and a VMID count only where the manager's own file
//! does not name another process. A scope is libvirt's, and a unit the system's, only where no user can make one. `/etc/pve` is not read: it is a file system in user space, which
//! can hang, and Proxmox puts number and name on the command line.

mod libvirt;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use gleaner_types::guest::{GuestName, Manager};
use gleaner_types::id::GuestText;

use crate::discover::Found;
use crate::facts::{TaskCgroups, WorkloadKey};
use crate::origin::user_of_cgroup;
use crate::roots::Roots;
use libvirt::Domain;

/// Most of a manager's file that is read. libvirt's have some 20 KB.
const MAX_FILE: u64 = 1 << 20;

/// What a workload is called, and whether that is all there will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: GuestName,
    /// libvirt writes its file some time after it has started the process, so it is worth to look again.
    pub(crate) may_change: bool,
}

/// What this workload is called.
pub(crate) fn named(roots: &Roots, key: &WorkloadKey, found: &Found) -> Named {
    let plain = |manager, name: &str| GuestName {
        workload: found.id.clone(),
        manager,
        name: GuestText::from_untrusted(name).unwrap_or_else(|| unnamed(found)),
        title: None,
        instance: None,
        uuid: None,
        pid: None,
    };
    match key {
        WorkloadKey::Domain(uuid) => {
            let name = GuestName { uuid: GuestText::from_untrusted(uuid), ..plain(Manager::Xen, &found.name) };
            Named { name, may_change: false }
        }
        WorkloadKey::Cgroup(path) => of_cgroup(roots, path, &plain),
        WorkloadKey::Process { pid, .. } if found.stranger.is_some() => {
            let cgroup = TaskCgroups::read(&roots.proc, &pid.to_string()).of_systemd();
            let instance = cgroup.and_then(|path| GuestText::from_untrusted(&path));
            let pid = u32::try_from(*pid).ok();
            Named { name: GuestName { instance, pid, ..plain(Manager::Qemu, &found.name) }, may_change: false }
        }
        WorkloadKey::Process { pid, .. } => {
            let domain = domain(&roots.root, &found.name).filter(|domain| domain.pid == Some(*pid));
            let own = |manager| GuestName {
                uuid: found.uuid.as_deref().and_then(GuestText::from_untrusted),
                pid: u32::try_from(*pid).ok(),
                ..plain(manager, &found.name)
            };
            let vmid = found.vmid.filter(|vmid| !is_anothers(&roots.root, *vmid, *pid));
            match (domain, vmid) {
                (Some(domain), _) => Named { name: of_domain(own(Manager::Libvirt), domain), may_change: false },
                (None, Some(vmid)) => {
                    let instance = GuestText::from_untrusted(&vmid.to_string());
                    Named { name: GuestName { instance, ..own(Manager::Proxmox) }, may_change: false }
                }
                (None, None) => Named { name: own(Manager::Qemu), may_change: true },
            }
        }
    }
}

/// The name of one that has none.
fn unnamed(found: &Found) -> GuestText {
    // An identifier is harmless and short enough.
    GuestText::from_untrusted(found.id.as_str()).unwrap_or_else(GuestText::unnamed)
}

/// The names that libvirt's file adds.
fn of_domain(mut name: GuestName, domain: Domain) -> GuestName {
    let text = |text: Option<String>| text.as_deref().and_then(GuestText::from_untrusted);
    let own = text(domain.name);
    name.title = text(domain.title);
    name.uuid = text(domain.uuid).or(name.uuid);
    match text(domain.nova_name) {
        Some(display) => {
            name.manager = Manager::Openstack;
            name.name = display;
            name.instance = own;
        }
        None => {
            name.manager = Manager::Libvirt;
            name.name = own.unwrap_or(name.name);
        }
    }
    name
}

fn of_cgroup(roots: &Roots, path: &Path, plain: &dyn Fn(Manager, &str) -> GuestName) -> Named {
    let last = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let unit = [".service", ".scope", ".slice"].iter().any(|kind| last.ends_with(kind));
    let instance = GuestText::from_untrusted(&path.to_string_lossy());
    if !unit {
        return Named {
            name: GuestName { instance: None, ..plain(Manager::Cgroup, &path.to_string_lossy()) },
            may_change: false,
        };
    }
    let unit = unescaped(&last);
    let parent = path.parent().unwrap_or(Path::new(""));
    let machine = machine_of(&unit).filter(|_| parent == Path::new("machine.slice"));
    let domain = machine.and_then(|(id, name)| domain(&roots.root, name).filter(|domain| domain.id == Some(id)));
    let name = match user_of_cgroup(&roots.root, parent) {
        Some(user) => format!("{unit} of {user}"),
        // Below a container or a delegated unit somebody else names what looks like a unit of this host.
        None if !parent.iter().all(|part| part.to_string_lossy().ends_with(".slice")) => path.to_string_lossy().into(),
        None => unit.clone(),
    };
    let name = GuestName { instance, ..plain(Manager::Systemd, &name) };
    match domain {
        Some(domain) => {
            let pid = domain.pid.and_then(|pid| u32::try_from(pid).ok());
            Named { name: GuestName { pid, ..of_domain(name, domain) }, may_change: false }
        }
        None => Named { name, may_change: machine.is_some() },
    }
}

/// A unit's name with systemd's `\xNN` as the bytes they stand for.
fn unescaped(unit: &str) -> String {
    let mut bytes = Vec::with_capacity(unit.len());
    let mut rest = unit.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let hex = rest.strip_prefix(br"\x").and_then(|digits| std::str::from_utf8(digits.get(..2)?).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Number and name of libvirt's domain whose scope this is: `machine-qemu-7-web1.scope`.
fn machine_of(unit: &str) -> Option<(u32, &str)> {
    let (id, name) = unit.strip_prefix("machine-qemu-")?.strip_suffix(".scope")?.split_once('-')?;
    Some((id.parse().ok()?, name))
}

/// The run-time file of libvirt's domain of this name, if it has one.
fn domain(root: &Path, name: &str) -> Option<Domain> {
    // libvirt allows neither in a name.
    if name.is_empty() || name.contains('/') || name.starts_with('.') || name.contains('\0') {
        return None;
    }
    libvirt::parse(&read(&root.join("run/libvirt/qemu").join(format!("{name}.xml")))?)
}

/// Proxmox says that this machine is another process.
fn is_anothers(root: &Path, vmid: u32, pid: i32) -> bool {
    let file = root.join(format!("run/qemu-server/{vmid}.pid"));
    read(&file).is_some_and(|text| text.trim().parse() != Ok(pid))
}

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// For the fuzz target.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    _ = libvirt::parse(&text);
    _ = unescaped(&text);
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use gleaner_types::id::WorkloadId;
    use gleaner_types::report::WorkloadKind;

    use super::*;

    struct Host {
        folder: tempfile::TempDir,
        roots: Roots,
    }

    impl Host {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let roots = Roots { proc: "/proc".into(), sys: "/sys".into(), root: folder.path().to_owned() };
            Self { folder, roots }
        }

        fn write(&self, path: &str, text: &str) {
            let file = self.folder.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }

        fn domain(&self, name: &str, pid: i32, more: &str) {
            let xml = format!(
                "<domstatus state='running' pid='{pid}'><domain id='7'><name>{name}</name><uuid>u-1</uuid>{more}</domain>\
                 </domstatus>"
            );
            self.write(&format!("run/libvirt/qemu/{name}.xml"), &xml);
        }

        fn guest(&self, pid: i32, name: &str, vmid: Option<u32>) -> Named {
            let id = WorkloadId::from_untrusted(name);
            let found = Found {
                id,
                name: name.to_owned(),
                kind: WorkloadKind::Qemu,
                monitor: None,
                uuid: Some("claimed".to_owned()),
                vmid,
                stranger: None,
            };
            named(&self.roots, &WorkloadKey::Process { pid, start_ticks: 1 }, &found)
        }

        /// A guest that this user has started, as discovery calls it.
        fn users_guest(&self, pid: i32, user: &str) -> Named {
            let name = format!("qemu-{pid} of {user}");
            let found = Found {
                id: WorkloadId::from_untrusted(&name),
                name,
                kind: WorkloadKind::Qemu,
                monitor: None,
                uuid: None,
                vmid: None,
                stranger: Some(user.to_owned()),
            };
            let roots = Roots { proc: self.folder.path().join("proc"), ..self.roots.clone() };
            named(&roots, &WorkloadKey::Process { pid, start_ticks: 1 }, &found)
        }

        fn cgroup(&self, path: &str) -> Named {
            let found = Found {
                id: WorkloadId::from_untrusted(path),
                name: path.to_owned(),
                kind: WorkloadKind::Cgroup,
                monitor: None,
                uuid: None,
                vmid: None,
                stranger: None,
            };
            named(&self.roots, &WorkloadKey::Cgroup(PathBuf::from(path)), &found)
        }
    }

    fn shown(named: &Named) -> (Manager, &str, Option<&str>, Option<&str>, Option<&str>) {
        let GuestName { manager, name, title, instance, uuid, .. } = &named.name;
        (
            *manager,
            name.as_str(),
            title.as_ref().map(GuestText::as_str),
            instance.as_ref().map(GuestText::as_str),
            uuid.as_ref().map(GuestText::as_str),
        )
    }

    #[test]
    fn libvirts_title_counts_for_its_own_process_alone() {
        let host = Host::new();
        host.domain("web1", 41, "<title>The shop</title>");
        let own = host.guest(41, "web1", None);
        assert_eq!(shown(&own), (Manager::Libvirt, "web1", Some("The shop"), None, Some("u-1")));
        assert!(!own.may_change);
        let other = host.guest(42, "web1", None);
        assert_eq!(shown(&other), (Manager::Qemu, "web1", None, None, Some("claimed")));
        assert!(other.may_change, "libvirt's file may come later");
    }

    #[test]
    fn openstacks_display_name_comes_first() {
        let host = Host::new();
        let nova =
            "<metadata><nova:instance xmlns:nova='x'><nova:name>db of shop</nova:name></nova:instance></metadata>";
        host.domain("instance-0000002a", 41, nova);
        let own = host.guest(41, "instance-0000002a", None);
        assert_eq!(shown(&own), (Manager::Openstack, "db of shop", None, Some("instance-0000002a"), Some("u-1")));
    }

    #[test]
    fn proxmox_has_numbers_unless_they_are_anothers() {
        let host = Host::new();
        let own = host.guest(41, "web", Some(101));
        assert_eq!(shown(&own), (Manager::Proxmox, "web", None, Some("101"), Some("claimed")));
        host.write("run/qemu-server/101.pid", "41\n");
        assert_eq!(host.guest(41, "web", Some(101)), own);
        assert_eq!(shown(&host.guest(42, "web", Some(101))).0, Manager::Qemu);
    }

    #[test]
    fn cgroups_are_units_domains_or_paths() {
        let host = Host::new();
        host.domain("web-1", 41, "<title>Shop</title>");
        let scope = r"machine.slice/machine-qemu\x2d7\x2dweb\x2d1.scope";
        let own = host.cgroup(scope);
        assert_eq!(shown(&own), (Manager::Libvirt, "web-1", Some("Shop"), Some(scope), Some("u-1")));
        assert_eq!(own.name.pid, Some(41));
        let other = r"machine.slice/machine-qemu\x2d8\x2dweb\x2d1.scope";
        assert_eq!(
            shown(&host.cgroup(other)),
            (Manager::Systemd, "machine-qemu-8-web-1.scope", None, Some(other), None)
        );
        assert_eq!(
            shown(&host.cgroup("system.slice/nginx.service")),
            (Manager::Systemd, "nginx.service", None, Some("system.slice/nginx.service"), None)
        );
        assert_eq!(shown(&host.cgroup("shop/web")), (Manager::Cgroup, "shop/web", None, None, None));
        assert_eq!(unescaped(r"a\x2db\xzz\x2"), r"a-b\xzz\x2");
    }

    #[test]
    fn a_users_scope_is_no_guest_of_libvirts() {
        let host = Host::new();
        host.domain("web-1", 41, "<title>Shop</title>");
        host.write("etc/passwd", "alice:x:1001:1001::/:\n");
        let scope = r"machine-qemu\x2d7\x2dweb\x2d1.scope";
        let session = "user.slice/user-1001.slice/user@1001.service";
        for (folder, called) in [
            (format!("{session}/app.slice"), "machine-qemu-7-web-1.scope of alice".to_owned()),
            (format!("{session}/machine.slice"), "machine-qemu-7-web-1.scope of alice".to_owned()),
            ("user.slice/user-7.slice".into(), "machine-qemu-7-web-1.scope of user 7".to_owned()),
            (
                "system.slice/docker-1.scope/machine.slice".into(),
                format!("system.slice/docker-1.scope/machine.slice/{scope}"),
            ),
            ("system.slice".into(), "machine-qemu-7-web-1.scope".to_owned()),
            ("machine.slice/machine.slice".into(), "machine-qemu-7-web-1.scope".to_owned()),
        ] {
            let path = format!("{folder}/{scope}");
            let own = host.cgroup(&path);
            assert_eq!(shown(&own), (Manager::Systemd, called.as_str(), None, Some(path.as_str()), None));
            assert!(!own.may_change, "{path}");
        }
        let names = ["user.slice/user-1001.slice", "lxc/1/system.slice/nginx.service"].map(|path| host.cgroup(path));
        assert_eq!(names[0].name.name.as_str(), "user-1001.slice");
        assert_eq!(names[1].name.name.as_str(), "lxc/1/system.slice/nginx.service");
    }

    #[test]
    fn a_users_guest_is_shown_by_its_number_its_user_and_its_cgroup() {
        let host = Host::new();
        // libvirt's file of a guest that has this name says nothing of another process.
        host.domain("qemu-41 of alice", 41, "<title>The shop</title>");
        let group = "/user.slice/user-1001.slice/user@1001.service/app.slice/vm.scope";
        host.write("proc/41/cgroup", &format!("0::{group}\n"));
        let own = host.users_guest(41, "alice");
        assert_eq!(shown(&own), (Manager::Qemu, "qemu-41 of alice", None, Some(group), None));
        assert_eq!((own.name.pid, own.may_change), (Some(41), false));
        assert_eq!(shown(&host.users_guest(42, "user 7")), (Manager::Qemu, "qemu-42 of user 7", None, None, None));
    }

    proptest::proptest! {
        #[test]
        fn no_command_line_makes_a_name_panic_or_act(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400),
            shape in 0..6_u8,
            pid in 1..1_000_i32,
        ) {
            use proptest::prop_assert;

            use crate::process::parse_qemu;
            let host = Host::new();
            host.domain("web", 41, "<title>t</title>");
            let mut line = match shape {
                0 => Vec::new(),
                1 => b"kvm".to_vec(),
                2 => b"kvm\0-name\0".to_vec(),
                3 => b"kvm\0-name\0guest=web,\0-uuid\0".to_vec(),
                4 => b"kvm\0-id\x00100\0-name\0web\0-smbios\0type=1,uuid=".to_vec(),
                // Cut within an option, as a process that overwrites its own arguments leaves it.
                _ => b"/usr/bin/qemu-system-x86_64\0-chardev\0socket,id=m,path=/\0-mon\0chardev=m,mode=control\0-na".to_vec(),
            };
            line.extend(&bytes);
            let Some(command) = parse_qemu(&line) else { return Ok(()) };
            prop_assert!(command.monitor.iter().all(|socket| socket.is_absolute()));
            let name = command.name.unwrap_or_else(|| format!("qemu-{pid}"));
            let GuestName { workload, name, title, instance, uuid, .. } = host.guest(pid, &name, command.vmid).name;
            let texts = [Some(name), title, instance, uuid];
            let texts = texts.iter().flatten().map(GuestText::as_str).chain([workload.as_str()]);
            for text in texts {
                prop_assert!(text.len() <= 256 && !text.is_empty() && text.chars().all(gleaner_types::text::is_harmless));
            }
        }
    }

    #[test]
    fn a_command_line_of_any_length_is_read_to_its_bound() {
        use crate::process::qemu;
        let host = Host::new();
        let proc = host.folder.path().join("proc");
        let line = |pid: &str, bytes: &[u8]| {
            std::fs::create_dir_all(proc.join(pid)).unwrap();
            std::fs::write(proc.join(pid).join("cmdline"), bytes).unwrap();
            qemu(&proc, pid)
        };
        // One argument of 128 KiB, the longest that Linux takes, is the name itself.
        let long = [b"kvm\0-name\0".as_slice(), &vec![b'x'; 128 << 10], b"\0-id\x00100\0"].concat();
        let cut = line("1", &long).unwrap();
        assert_eq!(
            (cut.name.map(|name| name.len()), cut.vmid),
            (Some((128 << 10) - 10), None),
            "what is behind it is not read"
        );
        let name = host.guest(1, &"x".repeat(128 << 10), None).name.name;
        assert_eq!(name.as_str().len(), 256);
        // Before the name: it is not reached, and the guest is called by its number.
        let hidden = [b"kvm\0-append\0".as_slice(), &vec![b'x'; 128 << 10], b"\0-name\0web\0"].concat();
        assert_eq!(line("2", &hidden).unwrap().name, None);
        for (bytes, name) in [
            (&b"kvm\0-name\0we"[..], Some("we")),
            (b"kvm -name web", None),
            (b"kvm\0-name\0\xff\xfeweb\0", Some("\u{fffd}\u{fffd}web")),
            (b"kvm\0-name\0", None),
            (b"kvm\0-name\0\0\0\0", None),
            (b"kvm\0\0\0-name\0web", Some("web")),
        ] {
            let read = line("3", bytes);
            assert_eq!(read.and_then(|command| command.name).as_deref(), name, "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(line("4", b""), None);
        assert_eq!(line("4", b"\0kvm\0-name\0web"), None);
    }

    #[test]
    fn hostile_names_read_no_other_file_and_are_harmless() {
        let host = Host::new();
        host.write("run/libvirt/secret.xml", "<domstatus pid='41'><domain><title>secret</title></domain></domstatus>");
        for name in ["../secret", "", ".", "a/../../secret", "x\0y"] {
            assert_eq!(host.guest(41, name, None).name.title, None, "{name:?}");
        }
        let long = format!("{}\u{1b}[2J", "é".repeat(10_000));
        let name = host.guest(41, &long, None).name.name;
        assert!(name.as_str().len() <= 256);
        assert_eq!(shown(&host.guest(41, "web\u{1b}]0;x\u{7}\u{202e}", None)).1, "web?]0;x??");
        let blank = host.guest(41, "  ", None).name.name;
        assert!(!blank.as_str().trim().is_empty());
        // What libvirt has written is a user's text too.
        host.domain("web1", 41, "<title>a&#27;[2J&#x202e;b</title>");
        assert_eq!(shown(&host.guest(41, "web1", None)).2, Some("a?[2J?b"));
        host.write("run/libvirt/qemu/web2.xml", "<domstatus pid='41'");
        assert_eq!(shown(&host.guest(41, "web2", None)).0, Manager::Qemu);
    }
}
