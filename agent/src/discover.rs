//! Finds the foreground. In: `/proc`, cgroups and the config's globs. Out: QEMU guests, cgroups, or, where the config
//! names nothing, everything but the volunteer. Called by the sensor at intervals, so that guests may come, go and
//! change their name.

mod glob;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gleaner_types::id::WorkloadId;
use gleaner_types::report::{MAX_WORKLOADS, WorkloadKind};

use crate::facts::WorkloadKey;
use crate::hierarchies::Hierarchies;
use crate::origin::{Origins, scope_of_guest};
use crate::process::{QemuCommand, pids, qemu, stat};
use crate::roots::Roots;
pub(crate) use glob::Glob;
pub use glob::InvalidGlob;

/// A workload as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: WorkloadId,
    /// What it is called, of which the identifier was made: by itself, unless a stranger started it.
    pub(crate) name: String,
    pub(crate) kind: WorkloadKind,
    /// Socket of its monitor, of a guest, as its command line claims it.
    pub(crate) monitor: Option<PathBuf>,
    /// UUID of a guest, as its command line claims it.
    pub(crate) uuid: Option<String>,
    /// Number at Proxmox, as its command line claims it.
    pub(crate) vmid: Option<u32>,
    /// The user of this name started it, of a guest: what its command line says of names does not count.
    pub(crate) stranger: Option<String>,
}

/// A workload as seen, before it has an identifier.
struct Seen {
    key: WorkloadKey,
    name: String,
    kind: WorkloadKind,
    command: QemuCommand,
    stranger: Option<String>,
}

impl Seen {
    fn of(key: WorkloadKey, name: String, kind: WorkloadKind) -> Self {
        Self { key, name, kind, command: QemuCommand::default(), stranger: None }
    }

    /// A guest. One that a stranger started is called by what it is, whatever it calls itself.
    fn guest(pid: i32, start_ticks: u64, mut command: QemuCommand, stranger: Option<String>) -> Self {
        let plain = format!("qemu-{pid}");
        let name = match &stranger {
            Some(user) => format!("{plain} of {user}"),
            None => command.name.take().unwrap_or(plain),
        };
        if stranger.is_some() {
            (command.uuid, command.vmid) = (None, None);
        }
        Self { key: WorkloadKey::Process { pid, start_ticks }, name, kind: WorkloadKind::Qemu, command, stranger }
    }
}

/// What to look for.
#[derive(Debug, Clone)]
pub(crate) struct Discovery {
    pub(crate) roots: Roots,
    pub(crate) hierarchies: Hierarchies,
    pub(crate) globs: Vec<Glob>,
    pub(crate) qemu: bool,
    /// The volunteer's own cgroups (absolute), which are never foreground.
    pub(crate) volunteer: Vec<PathBuf>,
}

/// An identifier no other workload has. Guests choose their names, so two may have the same, or the same once what is
/// not harmless is taken out, or one that looks like a number of ours: the later one gets a free number. `used` holds
/// what is taken, with the number to try next.
fn unique(name: &str, used: &mut BTreeMap<WorkloadId, u32>) -> WorkloadId {
    let first = WorkloadId::from_untrusted(name);
    let Some(mut number) = used.get(&first).copied() else {
        used.insert(first.clone(), 2);
        return first;
    };
    // Room for the number in the longest name.
    let mut end = first.as_str().len().min(240);
    while !first.as_str().is_char_boundary(end) {
        end -= 1;
    }
    loop {
        let id = WorkloadId::from_untrusted(&format!("{}#{number}", &first.as_str()[..end]));
        number += 1;
        if !used.contains_key(&id) {
            used.insert(first, number);
            used.insert(id.clone(), 2);
            return id;
        }
    }
}

/// Where cgroups of the foreground are looked for.
fn of_cgroups(hierarchies: &Hierarchies) -> Option<&PathBuf> {
    hierarchies.v1.get("cpuacct").or(hierarchies.v2.as_ref())
}

/// Those of the globs in a config that match no cgroup now. One that is no glob is none of them: the agent refuses it.
#[must_use]
pub fn unmatched(globs: &[String], hierarchies: &Hierarchies) -> Vec<String> {
    let mount = of_cgroups(hierarchies);
    let is_unmatched = |text: &&String| match Glob::new(text) {
        Ok(glob) => mount.is_none_or(|mount| glob.matches(mount).is_empty()),
        Err(_) => false,
    };
    globs.iter().filter(is_unmatched).cloned().collect()
}

/// Leaves out what would be counted twice and is covered otherwise: the scope that its manager made for a guest, which is found by itself, and
/// the guest that a stranger started in a cgroup that is found. A cgroup with more in it stays, whatever is within.
fn without_doubles(mut cgroups: BTreeSet<PathBuf>, mut guests: Vec<(Seen, PathBuf)>) -> (BTreeSet<PathBuf>, Vec<Seen>) {
    for scope in guests.iter().filter_map(|(_, within)| scope_of_guest(&Path::new("/").join(within))) {
        cgroups.remove(scope.strip_prefix("/").unwrap_or(&scope));
    }
    guests.retain(|(seen, within)| seen.stranger.is_none() || !within.ancestors().any(|path| cgroups.contains(path)));
    (cgroups, guests.into_iter().map(|(seen, _)| seen).collect())
}

impl Discovery {
    /// Everything there is now, at most [`MAX_WORKLOADS`]; the number left out comes second, and third the places of the globs
    /// that match no cgroup. `domains` are Xen's, with UUID and name. A workload that was found before keeps its identifier,
    /// also when another one of the same name has come since.
    pub(crate) fn scan<'d>(
        &self,
        before: &BTreeMap<&WorkloadKey, &Found>,
        domains: impl Iterator<Item = (&'d str, &'d str)>,
    ) -> (BTreeMap<WorkloadKey, Found>, usize, Vec<usize>) {
        let domain = |(uuid, name): (&str, &str)| {
            Seen::of(WorkloadKey::Domain(uuid.into()), name.into(), WorkloadKind::XenDomain)
        };
        let mut named: Vec<Seen> = domains.map(domain).collect();
        let (cgroups, unmatched) = self.cgroups();
        let guests = if self.qemu { self.guests() } else { Vec::new() };
        let (cgroups, guests) = without_doubles(cgroups, guests);
        named.extend(cgroups.into_iter().map(|path| {
            let name = path.display().to_string();
            Seen::of(WorkloadKey::Cgroup(path), name, WorkloadKind::Cgroup)
        }));
        named.extend(guests);
        // What users start comes last: it takes no name and no place from what the host's management has started.
        named.sort_by(|a, b| (a.stranger.is_some(), &a.key).cmp(&(b.stranger.is_some(), &b.key)));
        let left_out = named.len().saturating_sub(MAX_WORKLOADS);
        named.truncate(MAX_WORKLOADS);
        let kept = |key: &WorkloadKey, name: &str| {
            before.get(key).filter(|found| found.name == name).map(|found| found.id.clone())
        };
        let mut used: BTreeMap<WorkloadId, u32> =
            named.iter().filter_map(|seen| Some((kept(&seen.key, &seen.name)?, 2))).collect();
        let mut found = BTreeMap::new();
        for Seen { key, name, kind, command: QemuCommand { monitor, uuid, vmid, .. }, stranger } in named {
            let id = kept(&key, &name).unwrap_or_else(|| unique(&name, &mut used));
            found.insert(key, Found { id, name, kind, monitor, uuid, vmid, stranger });
        }
        (found, left_out, unmatched)
    }

    /// Paths of matching cgroups below their hierarchy's root, but the volunteer's; and the places of globs without any.
    fn cgroups(&self) -> (BTreeSet<PathBuf>, Vec<usize>) {
        let Some(mount) = of_cgroups(&self.hierarchies) else {
            return (BTreeSet::new(), (0..self.globs.len()).collect());
        };
        let (mut paths, mut unmatched) = (BTreeSet::new(), Vec::new());
        for (place, glob) in self.globs.iter().enumerate() {
            let matches = glob.matches(mount);
            if matches.is_empty() {
                unmatched.push(place);
            }
            paths.extend(matches);
        }
        paths.retain(|path| !self.volunteer.iter().any(|own| mount.join(path).starts_with(own)));
        (paths, unmatched)
    }

    /// Guests, each with the cgroup that it is in.
    fn guests(&self) -> Vec<(Seen, PathBuf)> {
        let origins = Origins::new(&self.roots);
        let guest = |pid: i32| {
            // A process that ends in the middle of this is no guest any more.
            let command = qemu(&self.roots.proc, &pid.to_string())?;
            let stat = stat(&self.roots.proc, pid).ok()?;
            let groups = std::fs::read_to_string(self.roots.proc.join(format!("{pid}/cgroup"))).unwrap_or_default();
            let seen = || Seen::guest(pid, stat.start_ticks, command, origins.stranger(pid));
            (!self.is_volunteers(&groups)).then(|| (seen(), self.cgroup_in(&groups)))
        };
        pids(&self.roots.proc).into_iter().filter_map(guest).collect()
    }

    /// The path, by the lines of `/proc/PID/cgroup`, in the hierarchy where cgroups of the foreground are looked for.
    fn cgroup_in(&self, groups: &str) -> PathBuf {
        let is_version_1 = self.hierarchies.v1.contains_key("cpuacct");
        let path = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let wanted = match is_version_1 {
                true => controllers.split(',').any(|own| own == "cpuacct"),
                false => controllers.is_empty(),
            };
            wanted.then_some(path)
        });
        PathBuf::from(path.unwrap_or_default().trim_start_matches('/'))
    }

    fn is_volunteers(&self, groups: &str) -> bool {
        groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
            let inside = |own: &PathBuf| own.ends_with(Path::new(path.trim_start_matches('/')));
            path != "/" && self.volunteer.iter().any(inside)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(roots: &Roots, pid: i32, cmdline: &str) {
        process_of(roots, pid, cmdline, 0);
    }

    fn process_of(roots: &Roots, pid: i32, cmdline: &str, uid: u32) {
        let folder = roots.proc.join(pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("cmdline"), cmdline.replace(' ', "\0")).unwrap();
        let stat = format!("{pid} (x) S 1 {pid} 1 0 -1 0 0 0 0 0 10 5 0 0 20 0 1 0 {} 1 7 0", pid * 10);
        std::fs::write(folder.join("stat"), stat).unwrap();
        std::fs::write(folder.join("status"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
    }

    fn discovery(folder: &Path, globs: &[&str]) -> Discovery {
        let roots = Roots { proc: folder.join("proc"), sys: folder.join("sys"), root: folder.to_owned() };
        let mount = folder.join("cg");
        std::fs::create_dir_all(&mount).unwrap();
        std::fs::create_dir_all(&roots.proc).unwrap();
        Discovery {
            roots,
            hierarchies: Hierarchies { v2: Some(mount.clone()), ..Hierarchies::default() },
            globs: globs.iter().map(|glob| Glob::new(glob).unwrap()).collect(),
            qemu: true,
            volunteer: vec![mount.join("gleaner/volunteer")],
        }
    }

    /// A guest that libvirt put into a scope of its own, one in a container with others, and a stranger's.
    #[test]
    fn what_is_within_one_another_is_found_once() {
        let folder = tempfile::tempdir().unwrap();
        let globs = ["machine.slice/*", "shop.slice", "shop.slice/*/db.service", "user.slice/*"];
        let discovery = discovery(folder.path(), &globs);
        let mount = folder.path().join("cg");
        for path in [
            "machine.slice/machine-qemu-1-vm1.scope",
            "machine.slice/nspawn.scope",
            "shop.slice/eu/db.service",
            "user.slice/u7",
        ] {
            std::fs::create_dir_all(mount.join(path)).unwrap();
        }
        let users = "root:x:0:0::/:/bin/sh\nann:x:7:7::/:/bin/sh\n";
        std::fs::create_dir_all(folder.path().join("etc")).unwrap();
        std::fs::write(folder.path().join("etc/passwd"), users).unwrap();
        for (pid, uid, group) in
            [(11, 0, "machine.slice/machine-qemu-1-vm1.scope"), (12, 7, "user.slice/u7/app.scope"), (13, 7, "x")]
        {
            process_of(&discovery.roots, pid, &format!("qemu-system-x86_64 -name g{pid}"), uid);
            std::fs::write(discovery.roots.proc.join(format!("{pid}/cgroup")), format!("0::/{group}\n")).unwrap();
        }
        let (found, ..) = discovery.scan(&BTreeMap::new(), std::iter::empty());
        let mut names: Vec<&str> = found.values().map(|own| own.id.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "g11",
                "machine.slice/nspawn.scope",
                "qemu-13 of ann",
                "shop.slice",
                "shop.slice/eu/db.service",
                "user.slice/u7"
            ]
        );
    }

    #[test]
    fn guests_with_the_same_name_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let discovery = discovery(folder.path(), &[]);
        process(&discovery.roots, 7, "/usr/bin/qemu-system-x86_64 -name lab");
        process(&discovery.roots, 9, "/usr/bin/qemu-system-x86_64 -name guest=lab");
        process(&discovery.roots, 11, "/usr/bin/vim lab");
        process(&discovery.roots, 13, "kvm -m 4");
        let (found, left_out, _) = discovery.scan(&BTreeMap::new(), std::iter::empty());
        let names: Vec<_> = found.values().map(|found| found.id.as_str()).collect();
        assert_eq!((names, left_out), (vec!["lab", "lab#2", "qemu-13"], 0));
        assert!(found.contains_key(&WorkloadKey::Process { pid: 7, start_ticks: 70 }));
    }

    #[test]
    fn no_name_is_another_workloads_identifier() {
        let folder = tempfile::tempdir().unwrap();
        let discovery = discovery(folder.path(), &[]);
        let long = "é".repeat(300);
        let hostile =
            ["a\u{1b}[2J", "a\u{7}[2J", "db#2", "db", "db", "db", long.as_str(), long.as_str(), "\u{202e}", "x\ny"];
        let domains: Vec<(String, &str)> =
            hostile.iter().enumerate().map(|(number, name)| (format!("{number:02}"), *name)).collect();
        let (found, ..) = discovery.scan(&BTreeMap::new(), domains.iter().map(|(uuid, name)| (uuid.as_str(), *name)));
        let names: Vec<_> = found.values().map(|found| found.id.as_str()).collect();
        assert_eq!(names[..6], ["a?[2J", "a?[2J#2", "db#2", "db", "db#3", "db#4"]);
        assert_eq!(names[8..], ["?", "x?y"]);
        assert!(names[6] != names[7] && names.iter().all(|name| name.len() <= 256));
    }

    #[test]
    fn a_later_guest_takes_no_used_identifier() {
        let folder = tempfile::tempdir().unwrap();
        let discovery = discovery(folder.path(), &[]);
        let mut found = BTreeMap::new();
        let mut ids = |domains: &[(&str, &str)]| {
            let before = found.iter().collect();
            found = discovery.scan(&before, domains.iter().copied()).0;
            found.values().map(|found: &Found| found.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&[("05", "db"), ("06", "db")]), ["db", "db#2"]);
        // Their UUIDs come first in the order of keys, and one asks for the number itself.
        let renamed = [("01", "db"), ("02", "db#2"), ("05", "db"), ("06", "db")];
        assert_eq!(ids(&renamed), ["db#3", "db#2#2", "db", "db#2"]);
        assert_eq!(ids(&renamed), ["db#3", "db#2#2", "db", "db#2"]);
        // A name that changes is a new one, and what nobody has any more is free.
        assert_eq!(ids(&[("01", "db"), ("02", "web"), ("07", "db")]), ["db#3", "web", "db"]);
    }

    #[test]
    fn a_user_takes_no_name_and_no_place_from_a_guest() {
        let folder = tempfile::tempdir().unwrap();
        let discovery = discovery(folder.path(), &[]);
        std::fs::create_dir_all(folder.path().join("etc")).unwrap();
        std::fs::write(folder.path().join("etc/passwd"), "alice:x:1001:1001::/:\n").unwrap();
        let roots = &discovery.roots;
        let claims = "kvm -id 100 -name db -smbios type=1,uuid=4d-e2 -qmp unix:/home/alice/q,server=on";
        process_of(roots, 7, claims, 1_001);
        process(roots, 9, "kvm -id 100 -name db");
        process(roots, 11, "kvm -name qemu-7");
        let (found, ..) = discovery.scan(&BTreeMap::new(), std::iter::empty());
        let of = |pid: i32| &found[&WorkloadKey::Process { pid, start_ticks: u64::from(pid.unsigned_abs()) * 10 }];
        let shown = |found: &Found| (found.id.to_string(), found.vmid, found.uuid.clone());
        assert_eq!(shown(of(7)), ("qemu-7 of alice".into(), None, None), "visible, by what it is");
        assert!(of(7).monitor.is_some(), "whose socket that is shows when it is asked");
        assert_eq!(shown(of(9)), ("db".into(), Some(100), None));
        assert_eq!(of(11).id.as_str(), "qemu-7");
        // More than are followed, with the lowest numbers.
        for pid in 100..(100 + i32::try_from(MAX_WORKLOADS).unwrap()) {
            process_of(roots, pid, "kvm -name db", 1_001);
        }
        process(roots, 9_999, "kvm -name last");
        let (found, left_out, _) = discovery.scan(&BTreeMap::new(), std::iter::empty());
        assert_eq!(left_out, 4);
        assert!(["db", "qemu-7", "last"].iter().all(|name| found.values().any(|found| found.id.as_str() == *name)));
    }

    #[test]
    fn cgroups_by_glob_without_the_volunteer() {
        let folder = tempfile::tempdir().unwrap();
        let globs = ["machine.slice/*.scope", "gleaner/*", "web-*.slice"];
        let discovery = discovery(folder.path(), &globs);
        for group in ["machine.slice/a.scope", "machine.slice/b.scope", "machine.slice/c", "gleaner/volunteer"] {
            std::fs::create_dir_all(folder.path().join("cg").join(group)).unwrap();
        }
        let (found, _, without) = discovery.scan(&BTreeMap::new(), std::iter::empty());
        let names: Vec<_> = found.values().map(|found| found.id.as_str()).collect();
        assert_eq!((names, without), (vec!["machine.slice/a.scope", "machine.slice/b.scope"], vec![2]));
        let globs = globs.map(str::to_owned);
        assert_eq!(unmatched(&globs, &discovery.hierarchies), ["web-*.slice"]);
        assert_eq!(unmatched(&globs, &Hierarchies::default()), globs, "no cgroups at all");
    }
}
