//! The lever on a Xen domain's traffic on one disk. In: ceilings. Out: the kernel threads of the control domain that serve the
//! domain's disks in a cgroup of Gleaner's, made for them and removed with the last ceiling, and `io.max` or `blkio.throttle.*`
//! of it. Called through the catalogue; the actor calls `keep_gathered` once a second.
//!
//! A disk that a program serves (qdisk), or another domain, has no such lever.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_types::report::{Absence, AbsenceKind, Capability, Reason};
use serde::{Deserialize, Serialize};

use super::cgroup::{CgroupFile, CgroupLever};
use super::error::LeverError;
use super::lever::Lever;
use super::offer::{Finding, Host, absent, writable};
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::{LeverValue, Throttle};
use crate::facts::DeviceNumber;
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::kernel_file::read_bounded;
use crate::xen::{self, Run, is_control_domain, served};

/// Begins the name of the cgroup, right below the root of its hierarchy; the domain's number ends it.
const GROUP: &str = "gleaner-domain-";
/// Why domains' disks cannot be limited on version 2, with what to do.
const NOT_SWITCHED_ON: &str = "the controller io is not switched on below the root of the cgroups: echo +io \
                               >/sys/fs/cgroup/cgroup.subtree_control";
/// Longest file that is read.
const LONGEST: u64 = 64 << 10;
/// How often a cgroup is tried to be removed: a thread that ends leaves it a moment later. (Chosen.)
const REMOVE_TRIES: u32 = 5;
const REMOVE_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// One disk of a domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainDiskLever {
    /// The domain: another one may have its number after its end. Empty in a ledger of an older build: then what was set is only
    /// taken away.
    #[serde(default)]
    pub uuid: String,
    /// The domain's number, which the next start changes: the threads of that one are others.
    pub id: u32,
    /// The whole disk behind it.
    pub disk: DeviceNumber,
    /// The cgroup of what serves the domain's disks.
    pub group: PathBuf,
    /// Version of its hierarchy.
    pub version: CgroupVersion,
}

/// Where this host's kernel tells of threads and of what it serves.
const PROC: &str = "/proc";
const SYS: &str = "/sys";

impl DomainDiskLever {
    fn new(run: Run, disk: DeviceNumber, mount: &Path, version: CgroupVersion) -> Self {
        let Run { uuid, id } = run;
        Self { uuid, id, disk, group: mount.join(format!("{GROUP}{id}")), version }
    }

    fn run(&self) -> Run {
        Run { uuid: self.uuid.clone(), id: self.id }
    }

    /// It can only be the cgroup that is made for this domain.
    pub(crate) fn is_in_place(&self) -> bool {
        self.group.file_name().is_some_and(|name| *name == *format!("{GROUP}{}", self.id))
    }

    fn what(&self) -> String {
        format!("the traffic of Xen domain {} on the disk {}", self.id, self.disk)
    }

    /// The same as a lever of the cgroup.
    fn ceiling(&self) -> CgroupLever {
        CgroupLever { cgroup: self.group.clone(), version: self.version, kind: CgroupFile::Disk(self.disk) }
    }

    fn is_served(&self, sys: &Path) -> bool {
        served::disks(sys).contains(&(self.id, self.disk))
    }

    /// The cgroup has no ceiling on any disk.
    fn is_empty(&self) -> bool {
        let files: &[&str] = match self.version {
            CgroupVersion::V1 => &super::cgroup::V1_THROTTLE,
            CgroupVersion::V2 => &["io.max"],
        };
        files.iter().all(|file| match read_bounded(&self.group.join(file), LONGEST) {
            Ok(text) => text.trim().is_empty(),
            // The controller has been switched off.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        })
    }

    /// The cgroup is Gleaner's whoever has the number now. Without it the lever is gone where `there` says that the domain is.
    fn current(&self, sys: &Path, there: impl Fn(&Run) -> io::Result<()>) -> Result<LeverValue, LeverError> {
        if self.ceiling().exists() {
            return self.ceiling().read();
        }
        let none = LeverValue::Throttle(Throttle::default());
        if self.group.exists() {
            return Ok(none);
        }
        let source = if self.is_served(sys) {
            match there(&self.run()) {
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => gone,
                _ => return Ok(none),
            }
        } else {
            io::Error::new(io::ErrorKind::NotFound, "the control domain's kernel serves no such disk to it")
        };
        Err(LeverError::Read { what: self.what(), source })
    }

    fn hold(
        &self,
        value: &LeverValue,
        (proc, sys): (&Path, &Path),
        there: impl Fn(&Run) -> io::Result<()>,
    ) -> Result<(), LeverError> {
        let failed = |source| LeverError::Write { value: value.to_string(), what: self.what(), source };
        if !self.is_served(sys) {
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no such disk any more")));
        }
        let threads = served::threads(proc).remove(&self.id).unwrap_or_default();
        // Asked after the threads were found: those of another domain may bear the number of one that has ended.
        there(&self.run()).map_err(failed)?;
        match std::fs::create_dir(&self.group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        self.ceiling().write(value.clone())?;
        match served::gather(proc, &self.group, &threads).map_err(failed)? {
            0 => Err(failed(io::Error::other("no thread of the kernel serves its disks now"))),
            _ => Ok(()),
        }
    }

    /// Takes the ceiling away, and the cgroup with the last one.
    fn release(&self, proc: &Path) -> io::Result<()> {
        if !self.group.exists() {
            return Ok(());
        }
        let none = LeverValue::Throttle(Throttle::default());
        // A disk that is gone has taken its ceiling with it, and cannot be named any more.
        if let Err(error) = self.ceiling().write(none.clone())
            && self.ceiling().read().is_ok_and(|left| left != none)
        {
            return Err(io::Error::other(gleaner_types::error::chain(&error)));
        }
        if !self.is_empty() {
            return Ok(());
        }
        served::give_back(proc, &self.group);
        let mut tries = 1;
        loop {
            match std::fs::remove_dir(&self.group) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries < REMOVE_TRIES => {
                    std::thread::sleep(REMOVE_PAUSE);
                    served::give_back(proc, &self.group);
                    tries += 1;
                }
                removed => return removed,
            }
        }
    }

    /// Removes a cgroup without ceilings, which an agent was killed beside. True if there was one.
    pub(crate) fn remove_empty(&self) -> io::Result<bool> {
        let is_there = self.group.exists() && self.is_empty();
        if is_there {
            self.release(Path::new(PROC))?;
        }
        Ok(is_there)
    }
}

/// Takes in threads that have come since: a domain whose driver connects anew has others, and so has a disk that is plugged. Those of
/// another domain, which has the number now, are left where they are.
///
/// # Errors
/// The first that cannot be moved; the others are.
pub(crate) fn keep_gathered<'a>(levers: impl IntoIterator<Item = &'a DomainDiskLever>) -> io::Result<()> {
    keep(levers, Path::new(PROC), xen::is_there)
}

fn keep<'a>(
    levers: impl IntoIterator<Item = &'a DomainDiskLever>,
    proc: &Path,
    is_there: impl Fn(&Run) -> bool,
) -> io::Result<()> {
    let mut levers = levers.into_iter().filter(|lever| lever.group.exists()).peekable();
    if levers.peek().is_none() {
        return Ok(());
    }
    let mut result = Ok(());
    let threads = served::threads(proc);
    // One question per domain, which may have several disks, after its threads were found.
    let mut there: BTreeMap<Run, bool> = BTreeMap::new();
    for lever in levers {
        let Some(own) = threads.get(&lever.id) else { continue };
        if *there.entry(lever.run()).or_insert_with_key(&is_there) {
            result = result.and(served::gather(proc, &lever.group, own).map(drop));
        }
    }
    result
}

/// The hierarchy on which such a cgroup has ceilings, if there is one: Gleaner does not switch a controller on at the root.
pub(crate) fn hierarchy(hierarchies: &Hierarchies) -> Option<(&Path, CgroupVersion)> {
    let (mount, unified) = hierarchies.of("blkio").or_else(|| hierarchies.of("io"))?;
    if !unified {
        return Some((mount, CgroupVersion::V1));
    }
    let switched_on = read_bounded(&mount.join("cgroup.subtree_control"), LONGEST).unwrap_or_default();
    switched_on.split_whitespace().any(|controller| controller == "io").then_some((mount, CgroupVersion::V2))
}

/// Kinds of this lever.
const KINDS: &[Kind] = &[Kind {
    name: "disk ceilings of a Xen domain",
    does: "bytes and operations per second on each disk: the kernel threads of the control domain that serve its disks (`xen-blkback`) are put into the cgroup `gleaner-domain-DOMID`, which has `io.max` or `blkio.throttle.*`",
    exists: "a control domain whose kernel serves the disk (`phy:`; not qdisk, nor one that another domain serves), controller `blkio`, or `io` switched on in `cgroup.subtree_control` of the root",
    restored: "the cgroup removed, the threads back at the root",
    capability: Some(Capability::DiskLimit),
}];

impl fmt::Display for DomainDiskLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())
    }
}

impl Lever for DomainDiskLever {
    const KINDS: &'static [Kind] = KINDS;

    /// On a control domain in the place of what cgroups say: there it takes the controller right below the root.
    fn offers(host: &Host<'_>) -> Vec<(Capability, Finding)> {
        if !is_control_domain(&host.roots.proc) {
            return Vec::new();
        }
        let finding =
            match (host.hierarchies.of("blkio").or_else(|| host.hierarchies.of("io")), hierarchy(host.hierarchies)) {
                (None, _) => absent(Reason::NoController { controller: "io".into() }),
                (_, None) => Err(Absence::described(AbsenceKind::NotSupported, NOT_SWITCHED_ON)),
                (_, Some((mount, CgroupVersion::V1))) => {
                    writable(mount, "blkio.throttle of what serves Xen domains' disks")
                }
                (_, Some((mount, CgroupVersion::V2))) => writable(mount, "io.max of what serves Xen domains' disks"),
            };
        vec![(Capability::DiskLimit, finding)]
    }

    fn find(place: &Place<'_>) -> Vec<Found<Self>> {
        let (Some(domain), Some((mount, version))) = (place.domain(), hierarchy(place.hierarchies)) else {
            return Vec::new();
        };
        let run = || Run { uuid: domain.uuid.clone(), id: domain.id };
        let of = |disk: &DeviceNumber| Found::alone(Self::new(run(), *disk, mount, version));
        domain.disks.iter().map(of).collect()
    }

    fn role(&self) -> Option<Role> {
        Some(Role::Disk)
    }

    fn exists(&self) -> bool {
        self.is_served(Path::new(SYS))
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        self.current(Path::new(SYS), xen::still_there)
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        match &value {
            LeverValue::Throttle(none) if *none == Throttle::default() => self
                .release(Path::new(PROC))
                .map_err(|source| LeverError::Write { value: value.to_string(), what: self.what(), source }),
            LeverValue::Throttle(_) => self.hold(&value, (Path::new(PROC), Path::new(SYS)), xen::still_there),
            _ => {
                let (what, text) = (self.what(), value.to_string());
                Err(LeverError::Malformed { what, text, expected: "ceilings" })
            }
        }
    }

    fn is_written_in_parts(&self) -> bool {
        true
    }

    /// A domain that is gone has no disk to read; its cgroup is removed all the same.
    fn set(&self, value: LeverValue) -> Result<(), LeverError> {
        let is_released = value == LeverValue::Throttle(Throttle::default());
        self.write(value.clone())?;
        if is_released {
            return Ok(());
        }
        let found = self.read()?;
        if found == value {
            return Ok(());
        }
        Err(LeverError::NotKept { value: value.to_string(), what: self.what(), found: found.to_string() })
    }

    /// A failed attempt may have left the cgroup. One that let the disk go and could not remove the cgroup, because somebody else
    /// uses it, is not undone: the domain would stay limited for as long.
    fn undo(&self, found: &LeverValue) -> Result<(), LeverError> {
        let was_let_go = self.group.exists() && self.is_empty();
        if was_let_go && *found != LeverValue::Throttle(Throttle::default()) {
            return Ok(());
        }
        self.set(found.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::facts::{DomainFacts, WorkloadFacts};
    use crate::levers::Fault;

    /// Threads 5 and 6 of domains 3 and 4, whose disks are partitions of 8:0, and the cgroup of domain 3.
    fn scene() -> (tempfile::TempDir, DomainDiskLever) {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        for (pid, domain) in [(5, 3), (6, 4)] {
            put(&format!("proc/{pid}/stat"), &format!("{pid} ({domain}.xvda-0) S 2 0"));
            put(&format!("proc/{pid}/cgroup"), "0::/\n");
            put(&format!("sys/bus/xen-backend/devices/vbd-{domain}-51712/physical_device"), "8:1\n");
        }
        put("sys/devices/sda/dev", "8:0\n");
        put("sys/devices/sda/sda1/dev", "8:1\n");
        put("sys/devices/sda/sda1/partition", "1\n");
        fs::create_dir_all(root.path().join("sys/dev/block")).unwrap();
        symlink(root.path().join("sys/devices/sda/sda1"), root.path().join("sys/dev/block/8:1")).unwrap();
        put("cg/gleaner-domain-3/io.max", "");
        put("cg/gleaner-domain-3/cgroup.procs", "");
        let run = Run { uuid: "u".to_owned(), id: 3 };
        let lever = DomainDiskLever::new(run, "8:0".parse().unwrap(), &root.path().join("cg"), CgroupVersion::V2);
        (root, lever)
    }

    fn there(run: &Run) -> io::Result<()> {
        assert_eq!((run.uuid.as_str(), run.id), ("u", 3));
        Ok(())
    }

    fn gone(_: &Run) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn writes(bytes: u64) -> LeverValue {
        LeverValue::Throttle(Throttle { write_bytes: Some(bytes), ..Throttle::default() })
    }

    #[test]
    fn a_release_that_left_its_cgroup_is_not_undone() {
        let (_root, lever) = scene();
        fs::create_dir(lever.group.join("theirs")).unwrap();
        lever.undo(&writes(7)).unwrap();
        assert_eq!(fs::read_to_string(lever.group.join("io.max")).unwrap(), "");
    }

    #[test]
    fn the_threads_of_one_domain_are_held_and_no_others() {
        let (root, lever) = scene();
        let (proc, sys) = (root.path().join("proc"), root.path().join("sys"));
        assert_eq!(lever.current(&sys, there).unwrap(), LeverValue::Throttle(Throttle::default()));
        lever.hold(&writes(7), (&proc, &sys), there).unwrap();
        let read = |file: &str| fs::read_to_string(lever.group.join(file)).unwrap();
        assert_eq!(
            (read("io.max").as_str(), read("cgroup.procs").as_str()),
            ("8:0 rbps=max wbps=7 riops=max wiops=max", "5")
        );
        assert_eq!(lever.current(&sys, there).unwrap(), writes(7));
        assert!(!lever.is_empty());

        // Its threads are gone, or in a cgroup of somebody else: nothing would be held.
        fs::write(lever.group.join("cgroup.procs"), "").unwrap();
        fs::write(proc.join("5/cgroup"), "0::/theirs\n").unwrap();
        assert!(lever.hold(&writes(8), (&proc, &sys), there).unwrap_err().to_string().contains("failed to write"));
        fs::remove_dir_all(sys.join("bus/xen-backend/devices/vbd-3-51712")).unwrap();
        assert_eq!(lever.hold(&writes(9), (&proc, &sys), there).unwrap_err().fault(), Fault::Absent);
    }

    /// The domain has ended, and another one has its number, the same disk and threads of the same names.
    #[test]
    fn another_domain_that_has_the_number_now_gets_no_ceiling() {
        let (root, lever) = scene();
        let (proc, sys) = (root.path().join("proc"), root.path().join("sys"));
        let threads = || fs::read_to_string(lever.group.join("cgroup.procs")).unwrap();
        fs::remove_dir_all(&lever.group).unwrap();
        assert_eq!(lever.hold(&writes(7), (&proc, &sys), gone).unwrap_err().fault(), Fault::Absent);
        assert!(!lever.group.exists());
        assert_eq!(lever.current(&sys, gone).unwrap_err().fault(), Fault::Absent);
        let unknown = |_: &Run| Err(io::ErrorKind::TimedOut.into());
        assert_eq!(lever.current(&sys, unknown).unwrap(), LeverValue::Throttle(Throttle::default()));
        assert_ne!(lever.hold(&writes(7), (&proc, &sys), unknown).unwrap_err().fault(), Fault::Absent);
        // It had been limited before it ended: its threads are gone, and those of the other are left where they are.
        fs::create_dir(&lever.group).unwrap();
        fs::write(lever.group.join("io.max"), "8:0 rbps=max wbps=7 riops=max wiops=max\n").unwrap();
        fs::write(lever.group.join("cgroup.procs"), "").unwrap();
        keep([&lever], &proc, |_| false).unwrap();
        assert_eq!(threads(), "");
        assert_eq!(lever.current(&sys, gone).unwrap(), writes(7), "it is Gleaner's, and can be taken away");
        keep([&lever], &proc, |run| there(run).is_ok()).unwrap();
        assert_eq!(threads(), "5");
    }

    #[test]
    fn without_its_cgroup_it_reads_by_whether_the_disk_is_served() {
        let (root, lever) = scene();
        let sys = root.path().join("sys");
        fs::remove_dir_all(&lever.group).unwrap();
        assert_eq!(lever.current(&sys, there).unwrap(), LeverValue::Throttle(Throttle::default()));
        lever.release(&root.path().join("proc")).unwrap();
        fs::remove_dir_all(sys.join("bus")).unwrap();
        assert_eq!(lever.current(&sys, there).unwrap_err().fault(), Fault::Absent);
        // A cgroup that lost the controller has no ceiling, and is removed.
        fs::create_dir_all(&lever.group).unwrap();
        assert!(lever.is_empty());
        assert_eq!(lever.current(&sys, gone).unwrap(), LeverValue::Throttle(Throttle::default()));
        lever.release(&root.path().join("proc")).unwrap();
        assert!(!lever.group.exists());
    }

    #[test]
    fn on_version_2_the_controller_must_be_on_below_the_root() {
        let (root, lever) = scene();
        let mount = root.path().join("cg");
        let hierarchies =
            Hierarchies { v2: Some(mount.clone()), v2_controllers: vec!["io".to_owned()], ..Hierarchies::default() };
        let domain = DomainFacts { uuid: "u".to_owned(), id: 3, disks: vec![lever.disk], ..DomainFacts::default() };
        let (workload, disks) = (WorkloadFacts::Domain(domain), crate::facts::Disks::default());
        let find = || DomainDiskLever::find(&Place::new(&workload, &hierarchies, &disks, None));
        assert!(find().is_empty());
        fs::write(mount.join("cgroup.subtree_control"), "cpu io\n").unwrap();
        assert_eq!(find(), [Found::alone(lever.clone())]);
        assert!(lever.is_in_place());
        assert!(!DomainDiskLever { id: 4, ..lever.clone() }.is_in_place());
        let read: DomainDiskLever = serde_json::from_str(&serde_json::to_string(&lever).unwrap()).unwrap();
        assert_eq!(read, lever);
        let without = r#"{"id":3,"disk":{"major":8,"minor":0},"group":"/cg/gleaner-domain-3","version":"v2"}"#;
        assert_eq!(serde_json::from_str::<DomainDiskLever>(without).unwrap().uuid, "");
    }
}
