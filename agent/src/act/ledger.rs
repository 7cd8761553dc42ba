//! The record on disk of what was found before each lever was first changed, and of every cgroup Gleaner
//! made. It is written, and on the disk, before the change it speaks of, so that whatever dies, the next
//! run can put everything back. It holds for one boot: a reboot undoes all of it by itself.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gleaner_types::command::Target;
use gleaner_types::format::UnknownFormat;
use serde::{Deserialize, Serialize};

use super::cgroup::hold;
use crate::kernel_file::read_bounded;
use crate::levers::{AnyLever, LeverValue};

const LEDGER: &str = "ledger.json";
const LOCK: &str = "lock";
/// Format that this agent writes. It reads that one: format 1 was never released. A change of what the ledger holds
/// raises it, and [`Ledger::understand`] then converts the one before.
const FORMAT: u32 = 2;
/// A ledger of 4,096 workloads with two levers each is about 3 MB.
const LONGEST: u64 = 16 << 20;
/// Values of our own a record remembers: the one before and the one about to be set, because a crash
/// between writing the ledger and setting the lever leaves the former in place.
const OURS_KEPT: usize = 2;

/// The state folder or the ledger in it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another process uses the folder.
    #[error(
        "the state folder `{dir}` is in use by another gleaner-agent ({holder}); stop it first or choose another folder"
    )]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// Who, as far as known.
        holder: String,
    },
    /// The ledger cannot be understood. It was moved aside.
    #[error(
        "the record of what must be restored cannot be read, and was kept as `{kept}`. Levers changed by an earlier run \
         may still be set: compare the limits of the cgroups it names with what you expect, then start the agent \
         again; it will begin with an empty record"
    )]
    Broken {
        /// Where the broken file is now.
        kept: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A newer agent wrote the ledger. It was left as it is.
    #[error(
        "what must be restored is recorded in `{path}` by a newer agent; restore the host with that agent \
         (`gleaner-agent restore`), or reboot it, which undoes everything by itself, and move the file away"
    )]
    Newer {
        /// The ledger.
        path: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
    /// A file could not be read or written.
    #[error("failed to {action} `{path}`")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| LedgerError::Io { action, path, source }
}

/// What is known of one changed lever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Whose it is.
    pub target: Target,
    /// The lever. Written as "knob", the word of format 2.
    #[serde(rename = "knob")]
    pub lever: AnyLever,
    /// What was found.
    pub original: LeverValue,
    /// What Gleaner set or was about to set, oldest first. Empty for a lever the guard writes many times a
    /// second, and for one that does not read as it was set: there every value counts as Gleaner's own.
    pub ours: Vec<LeverValue>,
}

impl Record {
    /// Whether a value read from the lever can be Gleaner's doing. A lever of several files, left by a crash between two
    /// of them, holds a part of one value and a part of another.
    #[must_use]
    pub fn is_ours(&self, value: &LeverValue) -> bool {
        let mixed = || {
            let known: Vec<&LeverValue> = self.ours.iter().chain([&self.original]).collect();
            self.lever.is_written_in_parts() && value.is_mixture_of(&known)
        };
        self.ours.is_empty() || self.ours.contains(value) || mixed()
    }
}

/// Controllers that were switched on for the children of a version 2 cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enabled {
    /// The cgroup.
    pub cgroup: PathBuf,
    /// The controllers.
    pub controllers: Vec<String>,
}

/// What the ledger holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    format: u32,
    boot_id: String,
    /// Levers.
    pub records: Vec<Record>,
    /// Cgroups made, parents first.
    pub created: Vec<PathBuf>,
    /// Controllers switched on, parents first.
    pub enabled: Vec<Enabled>,
    /// Cgroups of the volunteer: whatever runs in them is Gleaner's to end.
    pub volunteer: Vec<PathBuf>,
    /// Folder of registered process groups, whose members are Gleaner's to end.
    pub registry: Option<PathBuf>,
}

impl Contents {
    /// Nothing is left to restore.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.created.is_empty()
            && self.enabled.is_empty()
            && self.volunteer.is_empty()
            && self.registry.is_none()
    }
}

/// The state folder, held by this process alone, and the ledger in it.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    boot_id: String,
    contents: Contents,
    /// The lock ends with the file.
    _lock: File,
}

impl Ledger {
    /// Takes the state folder for this process, making it if need be, and reads its ledger. The ledger of
    /// an earlier boot counts as empty.
    ///
    /// # Errors
    /// [`LedgerError`]: in use by another process, broken, or not to be read.
    pub fn open(dir: &Path) -> Result<Self, LedgerError> {
        Self::open_in_boot(dir, Path::new("/proc/sys/kernel/random/boot_id"))
    }

    fn open_in_boot(dir: &Path, boot_id: &Path) -> Result<Self, LedgerError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed("create the state folder", dir))?;
        let lock = Self::lock(dir)?;
        let boot_id = read_bounded(boot_id, 256).map_err(failed("read the boot id", boot_id))?.trim().to_owned();
        let path = dir.join(LEDGER);
        let contents = match read_bounded(&path, LONGEST) {
            Ok(text) => match newer(&text) {
                Some(source) => return Err(LedgerError::Newer { path, source }),
                None => Self::understand(&text).map_err(|error| Self::put_aside(&path, error))?,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(Self::put_aside(&path, error)),
            Err(error) => return Err(failed("read the ledger", &path)(error)),
        };
        let contents = if contents.boot_id == boot_id { contents } else { Contents::default() };
        Ok(Self { dir: dir.to_owned(), boot_id, contents, _lock: lock })
    }

    fn lock(dir: &Path) -> Result<File, LedgerError> {
        let path = dir.join(LOCK);
        // The folder itself is locked: a lock file could be deleted, and two processes each hold their own.
        let Some(lock) = hold(dir).map_err(failed("lock the state folder", dir))? else {
            let holder = read_bounded(&path, 32).map(|pid| format!("pid {}", pid.trim()));
            let holder = holder.unwrap_or_else(|_| "its pid is not known".to_owned());
            return Err(LedgerError::InUse { dir: dir.to_owned(), holder });
        };
        let told = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .and_then(|mut file| writeln!(file, "{}", std::process::id()));
        if let Err(error) = told {
            // Only an error message elsewhere is the poorer for it; on a full disk the host must be restored all the same.
            tracing::warn!(%error, file = %path.display(), "the pid cannot be written");
        }
        Ok(lock)
    }

    fn understand(text: &str) -> io::Result<Contents> {
        let contents: Contents = serde_json::from_str(text).map_err(io::Error::from)?;
        if contents.format != FORMAT {
            let message = format!("its format is {}, this agent knows format {FORMAT}", contents.format);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let paths = contents.created.iter().chain(&contents.volunteer).chain(&contents.registry);
        let levers = contents.records.iter().filter_map(|record| record.lever.as_cgroup());
        let paths = paths.chain(levers.map(|lever| &lever.cgroup));
        match paths.chain(contents.enabled.iter().map(|enabled| &enabled.cgroup)).find(|path| !path.is_absolute()) {
            None => Ok(contents),
            Some(path) => {
                let message = format!("the path `{}` in it is not absolute", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
    }

    fn put_aside(path: &Path, source: io::Error) -> LedgerError {
        let kept = (1..1_000)
            .map(|number| path.with_extension(format!("json.broken-{number}")))
            .find(|kept| !kept.exists())
            .unwrap_or_else(|| path.with_extension("json.broken"));
        match fs::rename(path, &kept) {
            Ok(()) => LedgerError::Broken { kept, source },
            Err(error) => failed("move aside the broken ledger", path)(error),
        }
    }

    /// The state folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is recorded.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Changes what is recorded, and returns once it is safely on the disk. If that fails the record is as
    /// it was, and the caller must not go on with what it was about to change.
    ///
    /// # Errors
    /// [`LedgerError::Io`] when it cannot be written.
    pub fn update(&mut self, change: impl FnOnce(&mut Contents)) -> Result<(), LedgerError> {
        let mut next = self.contents.clone();
        change(&mut next);
        next.format = FORMAT;
        next.boot_id.clone_from(&self.boot_id);
        if next != self.contents {
            self.save(&next)?;
            self.contents = next;
        }
        Ok(())
    }

    /// Records that levers are about to be set: `(lever, found, about to be set)`. What was found first stays.
    ///
    /// # Errors
    /// As [`Ledger::update`].
    pub fn about_to_set(
        &mut self,
        target: &Target,
        levers: &[(AnyLever, LeverValue, LeverValue)],
    ) -> Result<(), LedgerError> {
        self.update(|contents| {
            for (lever, found, next) in levers {
                let next = lever.reads_as_set().then_some(next);
                if let Some(record) = contents.records.iter_mut().find(|record| record.lever == *lever) {
                    if next.is_some() && record.is_ours(found) {
                        // What is in force, which need not be what was to be set last: that may have failed.
                        record.ours = vec![found.clone()];
                    }
                    record.ours.retain(|value| Some(value) != next);
                    record.ours.extend(next.cloned());
                    let surplus = record.ours.len().saturating_sub(OURS_KEPT);
                    record.ours.drain(..surplus);
                } else {
                    let ours = next.into_iter().cloned().collect();
                    contents.records.push(Record {
                        target: target.clone(),
                        lever: lever.clone(),
                        original: found.clone(),
                        ours,
                    });
                }
            }
        })
    }

    fn save(&self, contents: &Contents) -> Result<(), LedgerError> {
        let path = self.dir.join(LEDGER);
        let text = serde_json::to_vec_pretty(contents).map_err(|e| failed("encode the ledger", &path)(e.into()))?;
        put_in_place(&self.dir, LEDGER, &text)
    }
}

/// That a newer agent wrote a ledger. Looks only at what no format changes.
fn newer(text: &str) -> Option<UnknownFormat> {
    #[derive(Deserialize)]
    struct Common {
        format: u64,
        software: Option<String>,
    }
    let Common { format, software } = serde_json::from_str(text).ok()?;
    let known = u64::from(FORMAT);
    let found = UnknownFormat::unless_within("ledger", known..=known, format, software.as_deref());
    found.err().filter(UnknownFormat::is_newer)
}

/// Replaces a file of the state folder in one step; when this returns it is on the disk.
pub(super) fn put_in_place(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), LedgerError> {
    let (path, temporary) = (dir.join(name), dir.join(format!("{name}.new")));
    let mut file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("write", &temporary))?;
    fs::rename(&temporary, &path).map_err(failed("put in place", &path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync the state folder", dir))
}

/// The parser of the ledger, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        _ = newer(text);
        _ = Ledger::understand(text);
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::facts::DeviceNumber;
    use crate::hierarchies::CgroupVersion;
    use crate::levers::{CgroupFile, Throttle};

    fn lever() -> AnyLever {
        AnyLever::new(Path::new("/cg/a"), CgroupVersion::V2, CgroupFile::Weight)
    }

    #[test]
    fn reads_back_what_was_recorded_before_the_change() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        let set = |ledger: &mut Ledger, found, next| {
            let change = [(lever(), LeverValue::Weight(found), LeverValue::Weight(next))];
            ledger.about_to_set(&Target::Volunteer, &change).unwrap();
        };
        set(&mut ledger, 100, 50);
        set(&mut ledger, 50, 40);
        set(&mut ledger, 40, 30);
        drop(ledger);
        let ledger = Ledger::open(dir.path()).unwrap();
        let record = &ledger.contents().records[0];
        assert_eq!(record.original, LeverValue::Weight(100), "the first value found stays");
        assert_eq!(record.ours, [LeverValue::Weight(40), LeverValue::Weight(30)]);
        assert!(!record.is_ours(&LeverValue::Weight(50)) && record.is_ours(&LeverValue::Weight(30)));
    }

    #[test]
    fn what_is_in_force_stays_ours_however_many_changes_fail() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        for (found, next) in [(100, 50), (50, 40), (50, 30), (50, 20)] {
            let change = [(lever(), LeverValue::Weight(found), LeverValue::Weight(next))];
            ledger.about_to_set(&Target::Volunteer, &change).unwrap();
        }
        let record = &ledger.contents().records[0];
        assert_eq!(record.ours, [LeverValue::Weight(50), LeverValue::Weight(20)]);
        // A value of others does not become ours.
        let change = [(lever(), LeverValue::Weight(77), LeverValue::Weight(10))];
        ledger.about_to_set(&Target::Volunteer, &change).unwrap();
        assert!(!ledger.contents().records[0].is_ours(&LeverValue::Weight(77)));
    }

    #[test]
    fn what_a_crash_between_two_files_leaves_is_ours() {
        let disk = CgroupFile::Disk(DeviceNumber { major: 8, minor: 0 });
        let throttle =
            |read_bytes, write_bytes| LeverValue::Throttle(Throttle { read_bytes, write_bytes, ..Throttle::default() });
        let record = |version| Record {
            target: Target::Volunteer,
            lever: AnyLever::new(Path::new("/cg/a"), version, disk),
            original: throttle(None, Some(7)),
            ours: vec![throttle(Some(1), Some(2)), throttle(Some(3), Some(4))],
        };
        let old = record(CgroupVersion::V1);
        assert!(old.is_ours(&throttle(Some(3), Some(2))) && old.is_ours(&throttle(None, Some(4))));
        assert!(!old.is_ours(&throttle(Some(9), Some(2))), "nobody of ours wrote 9");
        assert!(!record(CgroupVersion::V2).is_ours(&throttle(Some(3), Some(2))), "one write there");
    }

    #[test]
    fn a_reboot_empties_it() {
        let dir = tempfile::tempdir().unwrap();
        let boot = dir.path().join("boot_id");
        fs::write(&boot, "one\n").unwrap();
        let state = dir.path().join("state");
        let mut ledger = Ledger::open_in_boot(&state, &boot).unwrap();
        ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
        drop(ledger);
        assert!(!Ledger::open_in_boot(&state, &boot).unwrap().contents().is_empty());
        fs::write(&boot, "two\n").unwrap();
        assert!(Ledger::open_in_boot(&state, &boot).unwrap().contents().is_empty());
    }

    #[test]
    fn one_process_at_a_time_and_the_error_names_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let _held = Ledger::open(dir.path()).unwrap();
        let error = Ledger::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    }

    #[test]
    fn a_broken_ledger_is_kept_aside_and_explained() {
        let valid = {
            let dir = tempfile::tempdir().unwrap();
            let mut ledger = Ledger::open(dir.path()).unwrap();
            ledger.update(|contents| contents.volunteer.push("/cg/v".into())).unwrap();
            fs::read_to_string(dir.path().join(LEDGER)).unwrap()
        };
        let bad_inputs = [
            String::new(),
            valid[..valid.len() / 2].to_owned(),
            valid.replace("\"format\": 2", "\"format\": 1"),
            valid.replace("\"format\": 2", "\"format\": -9"),
            valid.replace("/cg/v", "cg/v"),
            valid.replace("\"created\"", "\"creates\""),
            "\u{0}".repeat(100),
        ];
        for bad in bad_inputs {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(LEDGER), &bad).unwrap();
            let error = Ledger::open(dir.path()).unwrap_err();
            assert!(matches!(error, LedgerError::Broken { .. }) && error.source().is_some(), "{bad:?}: {error}");
            let kept = dir.path().join("ledger.json.broken-1");
            assert!(error.to_string().contains(&kept.display().to_string()), "{error}");
            assert_eq!(fs::read_to_string(kept).unwrap(), bad);
            assert!(Ledger::open(dir.path()).unwrap().contents().is_empty());
        }
    }

    #[test]
    fn a_ledger_of_a_newer_agent_is_refused_and_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LEDGER);
        let newer = r#"{"format": 99, "software": "9.9.9", "boots": [{"id": "x", "undo": "of another kind"}]}"#;
        fs::write(&path, newer).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let error = Ledger::open(dir.path()).unwrap_err();
        assert!(matches!(&error, LedgerError::Newer { source, .. } if source.found == 99), "{error:?}");
        let said = error.source().unwrap().to_string();
        assert!(said.contains("the ledger has format 99, written by version 9.9.9; this program"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = names.filter(|name| name != LOCK).collect();
        assert_eq!(names, [LEDGER], "nothing was moved aside");
    }

    /// One record of every kind of lever and value.
    fn golden() -> Contents {
        use crate::levers::{DomainKind, DomainLever, IobandLever, IobandPolicy, LinkLever, MonitorKind, MonitorLever};
        use crate::netlink::Direction;
        let cgroup = |version, kind| AnyLever::new(Path::new("/cg/a"), version, kind);
        let domain = |kind| AnyLever::Domain(DomainLever { uuid: "5f6c".into(), kind });
        let monitor = |kind| AnyLever::Monitor(MonitorLever { socket: "/run/vm.sock".into(), kind });
        let link = |direction| AnyLever::Link(LinkLever { interface: "tap0".into(), direction });
        let throttle = Throttle { read_bytes: Some(1), write_operations: Some(2), ..Throttle::default() };
        let quota = |quota_us| LeverValue::Quota { quota_us, period_us: 100_000 };
        let disk = DeviceNumber { major: 8, minor: 16 };
        let records = [
            (cgroup(CgroupVersion::V1, CgroupFile::Quota), quota(None), vec![quota(Some(50_000)), quota(Some(60_000))]),
            (cgroup(CgroupVersion::V2, CgroupFile::Weight), LeverValue::Weight(100), vec![LeverValue::Weight(1)]),
            (cgroup(CgroupVersion::V2, CgroupFile::Idle), LeverValue::Idle(false), vec![LeverValue::Idle(true)]),
            (cgroup(CgroupVersion::V2, CgroupFile::Freezer), LeverValue::Frozen(false), vec![]),
            (
                cgroup(CgroupVersion::V2, CgroupFile::Memory),
                LeverValue::Memory(None),
                vec![LeverValue::Memory(Some(9))],
            ),
            (
                cgroup(CgroupVersion::V1, CgroupFile::Disk(disk)),
                LeverValue::Throttle(Throttle::default()),
                vec![LeverValue::Throttle(throttle)],
            ),
            (link(Direction::Receive), LeverValue::Rate(None), vec![LeverValue::Rate(Some(7))]),
            (link(Direction::Transmit), LeverValue::Rate(Some(8)), vec![LeverValue::Rate(Some(7))]),
            (monitor(MonitorKind::Running), LeverValue::Frozen(false), vec![LeverValue::Frozen(true)]),
            (
                monitor(MonitorKind::Balloon { whole: 1 << 31 }),
                LeverValue::Memory(Some(1 << 30)),
                vec![LeverValue::Memory(Some(1 << 29))],
            ),
            (
                monitor(MonitorKind::Disk { device: "/machine/peripheral/vd0".into() }),
                LeverValue::Throttle(Throttle::default()),
                vec![LeverValue::Throttle(throttle)],
            ),
            (domain(DomainKind::Cap), quota(None), vec![quota(Some(1_000))]),
            (domain(DomainKind::Weight), LeverValue::Weight(256), vec![LeverValue::Weight(1)]),
            (domain(DomainKind::Memory), LeverValue::Memory(Some(5)), vec![LeverValue::Memory(Some(4))]),
            (domain(DomainKind::Paused), LeverValue::Frozen(true), vec![LeverValue::Frozen(false)]),
            (
                AnyLever::Ioband(IobandLever { device: "share1".into(), pid: 77, policy: IobandPolicy::Weight }),
                LeverValue::Share(None),
                vec![LeverValue::Share(Some(3))],
            ),
        ];
        let workload = gleaner_types::id::WorkloadId::new("vm-1").unwrap();
        let targets = [Target::Volunteer, Target::Workload(workload)].into_iter().cycle();
        let records = records.into_iter().zip(targets);
        Contents {
            format: 2,
            boot_id: "3d8e1a52-golden".into(),
            records: records
                .map(|((lever, original, ours), target)| Record { target, lever, original, ours })
                .collect(),
            created: vec!["/cg/g".into(), "/cg/g/v".into()],
            enabled: vec![Enabled { cgroup: "/cg".into(), controllers: vec!["cpu".into(), "io".into()] }],
            volunteer: vec!["/cg/g/v".into()],
            registry: Some("/run/groups".into()),
        }
    }

    /// The file of format 2 is read, and what is written is still that file: the format cannot change unnoticed.
    #[test]
    fn the_golden_ledger_of_format_2_is_read_and_written() {
        // In the program: the tests also run where there is no source.
        let committed = include_str!("../../tests/golden/format-2/ledger.json");
        let written = serde_json::to_string_pretty(&golden()).unwrap();
        if std::env::var_os("GLEANER_WRITE_GOLDEN").is_some() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-2/ledger.json");
            fs::write(path, &written).unwrap();
        }
        assert_eq!(Ledger::understand(committed).unwrap(), golden());
        assert_eq!(written, committed);
    }

    #[test]
    fn a_record_that_cannot_be_written_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("ledger.json.new")).unwrap();
        let change = [(lever(), LeverValue::Weight(100), LeverValue::Weight(1))];
        assert!(ledger.about_to_set(&Target::Volunteer, &change).is_err());
        assert!(ledger.contents().is_empty());
    }
}
