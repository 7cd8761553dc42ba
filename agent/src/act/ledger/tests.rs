//! The ledger: records are written and read back; a ledger that is broken, foreign, too long or newer is refused.

use std::collections::BTreeSet;
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
fn a_record_of_a_resctrl_group_that_cannot_be_gleaners_is_refused() {
    use crate::levers::ResctrlLever;
    let (root, state) = (Path::new("/simulated"), Path::new("/simulated/state"));
    let why = |sys: &str, original: &str| {
        let lever = AnyLever::Resctrl(ResctrlLever::new(Path::new(sys)));
        let original = LeverValue::Text(original.to_owned());
        let record = Record { target: Target::Volunteer, lever, original, ours: Vec::new() };
        Contents { records: vec![record], ..Contents::default() }.out_of_place(state, root)
    };
    assert_eq!(why("/simulated/sys", ""), None);
    for forged in ["/simulated/elsewhere", "/sys", "sys", "/simulated/sys/../tmp"] {
        assert!(why(forged, "").unwrap().contains("not of this host's sysfs"), "{forged}");
    }
    assert!(why("/simulated/sys", "L3:0=7ff").unwrap().contains("not one that Gleaner made"));
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
    let mut ledger = Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap();
    ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
    drop(ledger);
    assert!(!Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap().contents().is_empty());
    fs::write(&boot, "two\n").unwrap();
    assert!(Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap().contents().is_empty());
}

#[test]
fn one_process_at_a_time_and_the_error_names_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let _held = Ledger::open(dir.path()).unwrap();
    let error = Ledger::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
}

/// Ledgers of this boot that cannot be used: cut off, of no known format, or naming what is not Gleaner's.
fn bad_ledgers() -> Vec<String> {
    let valid = {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        ledger.update(|contents| contents.volunteer.push("/cg/v".into())).unwrap();
        fs::read_to_string(dir.path().join(LEDGER)).unwrap()
    };
    let registry = |path: &str| valid.replace("\"registry\": null", &format!("\"registry\": \"{path}\""));
    let bad = vec![
        String::new(),
        valid[..valid.len() / 2].to_owned(),
        valid.replace("\"format\": 2", "\"format\": 1"),
        valid.replace("\"format\": 2", "\"format\": -9"),
        valid.replace("/cg/v", "cg/v"),
        valid.replace("/cg/v", "/sys/fs/cgroup/../../../etc"),
        valid.replace("/cg/v", "/etc"),
        valid.replace("\"created\"", "\"creates\""),
        registry("/etc"),
        registry("/tmp/volunteer"),
        "\u{0}".repeat(100),
    ];
    assert!(bad.iter().all(|bad| *bad != valid));
    bad
}

#[test]
fn a_broken_ledger_of_this_boot_stays_until_an_operator_resolves_it() {
    for bad in bad_ledgers() {
        let dir = tempfile::tempdir().unwrap();
        drop(Ledger::open(dir.path()).unwrap());
        let path = dir.path().join(LEDGER);
        fs::write(&path, &bad).unwrap();
        // However often it is started.
        for _ in 0..3 {
            let error = Ledger::open(dir.path()).unwrap_err();
            assert!(matches!(error, LedgerError::Broken { .. }) && error.source().is_some(), "{bad:?}: {error}");
            assert!(error.to_string().contains("restore --adopt"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), bad);
            assert!(Ledger::problem(dir.path()).unwrap().contains("restore --discard"));
        }
        let mut refused = Ledger::open_or_refuse(dir.path(), Path::new("/")).unwrap();
        assert!(refused.refused().is_some());
        assert!(refused.update(|contents| contents.created.push("/cg/a".into())).is_err());
        drop(refused);
        assert_eq!(fs::read_to_string(&path).unwrap(), bad, "nothing is written over it");

        fs::write(dir.path().join("ledger.json.broken-1"), "of another day").unwrap();
        let kept = Ledger::resolve(dir.path(), Resolution::Adopt).unwrap().unwrap();
        assert_eq!(kept, dir.path().join("ledger.json.broken-2"));
        assert_eq!(fs::read_to_string(kept).unwrap(), bad);
        assert!(Ledger::open(dir.path()).unwrap().contents().is_empty());
        assert_eq!(Ledger::resolve(dir.path(), Resolution::Adopt).unwrap(), None, "there is nothing to resolve");

        fs::write(&path, &bad).unwrap();
        assert_eq!(Ledger::resolve(dir.path(), Resolution::Discard).unwrap(), None);
        assert!(!path.exists() && Ledger::open(dir.path()).unwrap().contents().is_empty());
    }
}

#[test]
fn a_broken_ledger_of_an_earlier_boot_is_kept_aside_by_itself() {
    let valid = |dir: &Path, boot: &Path| {
        let mut ledger = Ledger::open_in_boot(dir, Path::new("/"), boot).unwrap();
        ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
    };
    // With and without a word of the boot that is left in it.
    for damaged in ["{\"format\": 2, \"boot_id\": \"one\", \"rec", "\0\0\0\0"] {
        let dir = tempfile::tempdir().unwrap();
        let (boot, state) = (dir.path().join("boot_id"), dir.path().join("state"));
        fs::write(&boot, "one\n").unwrap();
        valid(&state, &boot);
        fs::write(state.join(LEDGER), damaged).unwrap();
        assert!(Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap().refused().is_some());
        fs::write(&boot, "two\n").unwrap();
        let ledger = Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap();
        assert!(ledger.refused().is_none() && ledger.contents().is_empty());
        assert_eq!(fs::read_to_string(state.join("ledger.json.broken-1")).unwrap(), damaged);
    }
}

/// A bit of the boot's number is another than was written.
#[test]
fn a_ledger_of_this_boot_that_says_otherwise_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (boot, state) = (dir.path().join("boot_id"), dir.path().join("state"));
    let open = || Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap();
    fs::write(&boot, "one\n").unwrap();
    open().update(|contents| contents.created.push("/cg/a".into())).unwrap();
    let kept = state.join(OF_ANOTHER_BOOT);
    // A restart of the machine.
    fs::write(&boot, "two\n").unwrap();
    assert!(open().contents().is_empty() && !kept.exists());
    open().update(|contents| contents.created.push("/cg/b".into())).unwrap();
    let damaged = fs::read_to_string(state.join(LEDGER)).unwrap().replace("two", "twp");
    fs::write(state.join(LEDGER), &damaged).unwrap();
    let mut ledger = open();
    assert!(ledger.contents().is_empty());
    ledger.update(|contents| contents.created.push("/cg/c".into())).unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), damaged);
}

#[test]
fn a_ledger_that_others_can_write_or_that_is_a_link_is_not_read() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let (state, path) = (dir.path().join("state"), dir.path().join("state").join(LEDGER));
    let mut ledger = Ledger::open(&state).unwrap();
    ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
    drop(ledger);
    let refused = || match Ledger::open(&state).unwrap_err() {
        error @ LedgerError::Untrusted { .. } => error.source().unwrap().to_string(),
        other => panic!("{other}"),
    };
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&path, 0o620);
    assert!(refused().contains("its mode is 620"));
    mode(&path, 0o600);
    mode(&state, 0o770);
    assert!(refused().contains("its mode is 770"));
    mode(&state, 0o700);
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert!(refused().contains("symbolic link"));
    fs::remove_file(&path).unwrap();
    let linked = dir.path().join("linked");
    symlink(&state, &linked).unwrap();
    assert!(matches!(Ledger::open(&linked), Err(LedgerError::Untrusted { .. })));
}

#[test]
fn no_ledger_is_written_that_could_not_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
    let long = format!("/cg/{}", "a".repeat(usize::try_from(LONGEST).unwrap()));
    let error = ledger.update(|contents| contents.created.push(long.into())).unwrap_err();
    assert!(matches!(error, LedgerError::TooLong { most: LONGEST, .. }), "{error}");
    assert_eq!(ledger.contents().created.len(), 1);
    drop(ledger);
    assert_eq!(Ledger::open(dir.path()).unwrap().contents().created.len(), 1);
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

#[test]
fn a_ledger_with_a_lever_of_a_newer_agent_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LEDGER);
    let mut newer = serde_json::to_value(golden()).unwrap();
    newer["records"][3]["knob"] = serde_json::json!({ "of_tomorrow": { "cgroup": "/cg/a" } });
    let newer = newer.to_string();
    fs::write(&path, &newer).unwrap();
    let error = Ledger::open(dir.path()).unwrap_err();
    assert!(matches!(&error, LedgerError::UnknownLever { name, .. } if name == "of_tomorrow"), "{error:?}");
    assert!(matches!(Ledger::resolve(dir.path(), Resolution::Discard), Err(LedgerError::UnknownLever { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
}

/// Which kind of lever a record names. A new kind of one of these levers does not compile here: give it a number and the
/// golden ledger a record of it, raise [`FORMAT`], and have [`Contents::understand`] take the format before. An older
/// agent then says that a newer one wrote the ledger, and does not offer to do without its record. That it says of a new
/// lever by itself.
fn kind_of(lever: &AnyLever) -> u32 {
    use crate::levers::{DomainKind, IobandPolicy, MonitorKind};
    use crate::netlink::Direction;
    match lever {
        AnyLever::Cgroup(lever) => match lever.kind {
            CgroupFile::Quota => 0,
            CgroupFile::Weight => 1,
            CgroupFile::Idle => 2,
            CgroupFile::Freezer => 3,
            CgroupFile::Memory => 4,
            CgroupFile::Disk(_) => 5,
            CgroupFile::DiskWeight => 6,
            CgroupFile::BfqWeight => 7,
            CgroupFile::MemoryMax => 8,
            CgroupFile::SwapMax => 9,
            CgroupFile::OomGroup => 10,
            CgroupFile::Pids => 11,
            CgroupFile::Cpus => 12,
        },
        AnyLever::Monitor(lever) => match lever.kind {
            MonitorKind::Running => 13,
            MonitorKind::Balloon { .. } => 14,
            MonitorKind::Disk { .. } => 15,
        },
        AnyLever::Ioband(lever) => match lever.policy {
            IobandPolicy::Weight => 16,
            IobandPolicy::Bandwidth => 17,
        },
        AnyLever::Link(lever) => match lever.direction {
            Direction::Receive => 18,
            Direction::Transmit => 19,
        },
        AnyLever::Domain(lever) => match lever.kind {
            DomainKind::Cap => 20,
            DomainKind::Weight => 21,
            DomainKind::Memory => 22,
            DomainKind::Paused => 23,
        },
        AnyLever::Process(_) => 24,
        AnyLever::Resctrl(_) => 25,
        #[allow(unreachable_patterns, reason = "none was added since format 2")]
        _ => 26,
    }
}

/// The same of values.
const fn kind_of_value(value: &LeverValue) -> u32 {
    match value {
        LeverValue::Quota { .. } => 0,
        LeverValue::Weight(_) => 1,
        LeverValue::Idle(_) => 2,
        LeverValue::Frozen(_) => 3,
        LeverValue::Memory(_) => 4,
        LeverValue::Throttle(_) => 5,
        LeverValue::Rate(_) => 6,
        LeverValue::Share(_) => 7,
        LeverValue::Count(_) => 8,
        LeverValue::KilledWhole(_) => 9,
        LeverValue::OomScore(_) => 10,
        LeverValue::Text(_) => 11,
    }
}

#[test]
fn the_golden_ledger_has_every_kind_of_lever_and_value() {
    let records = golden().records;
    let kinds: BTreeSet<u32> = records.iter().map(|record| kind_of(&record.lever)).collect();
    assert_eq!(kinds, (0..26).collect());
    let values = records.iter().flat_map(|record| record.ours.iter().chain([&record.original]));
    assert_eq!(values.map(kind_of_value).collect::<BTreeSet<_>>(), (0..12).collect());
}

/// One record of every kind of lever and value.
fn golden() -> Contents {
    use crate::levers::{DomainKind, DomainLever, IobandLever, IobandPolicy, LinkLever, MonitorKind, MonitorLever};
    use crate::levers::{ProcessLever, ResctrlLever};
    use crate::netlink::Direction;
    let cgroup = |version, kind| AnyLever::new(Path::new("/cg/a"), version, kind);
    let domain = |kind| AnyLever::Domain(DomainLever { uuid: "5f6c".into(), id: None, kind });
    let owner = crate::facts::ProcessId { pid: 77, start_ticks: 4_711 };
    let monitor = |kind| AnyLever::Monitor(MonitorLever { socket: "/run/vm.sock".into(), owner, kind });
    let link = |direction| AnyLever::Link(LinkLever { interface: "tap0".into(), direction, domain: None });
    let throttle = Throttle { read_bytes: Some(1), write_operations: Some(2), ..Throttle::default() };
    let quota = |quota_us| LeverValue::Quota { quota_us, period_us: 100_000 };
    let disk = DeviceNumber { major: 8, minor: 16 };
    let records = [
        (cgroup(CgroupVersion::V1, CgroupFile::Quota), quota(None), vec![quota(Some(50_000)), quota(Some(60_000))]),
        (cgroup(CgroupVersion::V2, CgroupFile::Weight), LeverValue::Weight(100), vec![LeverValue::Weight(1)]),
        (cgroup(CgroupVersion::V2, CgroupFile::Idle), LeverValue::Idle(false), vec![LeverValue::Idle(true)]),
        (cgroup(CgroupVersion::V2, CgroupFile::Freezer), LeverValue::Frozen(false), vec![]),
        (cgroup(CgroupVersion::V2, CgroupFile::Memory), LeverValue::Memory(None), vec![LeverValue::Memory(Some(9))]),
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
        (
            AnyLever::Ioband(IobandLever { device: "share1".into(), pid: 78, policy: IobandPolicy::Bandwidth }),
            LeverValue::Throttle(Throttle::default()),
            vec![LeverValue::Throttle(Throttle { read_bytes: Some(1), write_bytes: Some(1), ..Throttle::default() })],
        ),
        (cgroup(CgroupVersion::V2, CgroupFile::DiskWeight), LeverValue::Weight(100), vec![LeverValue::Weight(10)]),
        (cgroup(CgroupVersion::V1, CgroupFile::BfqWeight), LeverValue::Weight(100), vec![LeverValue::Weight(1)]),
        (cgroup(CgroupVersion::V2, CgroupFile::MemoryMax), LeverValue::Memory(None), vec![]),
        (cgroup(CgroupVersion::V1, CgroupFile::SwapMax), LeverValue::Memory(None), vec![LeverValue::Memory(Some(0))]),
        (
            cgroup(CgroupVersion::V2, CgroupFile::OomGroup),
            LeverValue::KilledWhole(false),
            vec![LeverValue::KilledWhole(true)],
        ),
        (cgroup(CgroupVersion::V2, CgroupFile::Pids), LeverValue::Count(None), vec![LeverValue::Count(Some(4_096))]),
        (
            cgroup(CgroupVersion::V2, CgroupFile::Cpus),
            LeverValue::Text(String::new()),
            vec![LeverValue::Text("0-2".into())],
        ),
        (
            AnyLever::Process(ProcessLever { pid: 79, start_ticks: 4_712 }),
            LeverValue::OomScore(-17),
            vec![LeverValue::OomScore(1_000)],
        ),
        (AnyLever::Resctrl(ResctrlLever::new(Path::new("/sys"))), LeverValue::Text(String::new()), vec![]),
    ];
    let workload = gleaner_types::id::WorkloadId::new("vm-1").unwrap();
    let targets = [Target::Volunteer, Target::Workload(workload)].into_iter().cycle();
    let records = records.into_iter().zip(targets);
    Contents {
        format: 2,
        boot_id: "3d8e1a52-golden".into(),
        records: records.map(|((lever, original, ours), target)| Record { target, lever, original, ours }).collect(),
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
    let committed = include_str!("../../../tests/golden/format-2/ledger.json");
    let written = serde_json::to_string_pretty(&golden()).unwrap();
    if std::env::var_os("GLEANER_WRITE_GOLDEN").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-2/ledger.json");
        fs::write(path, &written).unwrap();
    }
    assert_eq!(Contents::understand(committed).unwrap(), golden());
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

/// What is promised to survive a loss of power is on the disk: the file before it gets its name, its name afterwards.
#[test]
fn a_ledger_is_synced_before_and_after_it_gets_its_name() {
    const TEST: &str = "act::ledger::tests::a_ledger_is_synced_before_and_after_it_gets_its_name";
    const STATE: &str = "GLEANER_TRACED_LEDGER";
    if let Some(state) = std::env::var_os(STATE) {
        let mut ledger = Ledger::open(Path::new(&state)).unwrap();
        ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (state, trace) = (dir.path().join("state"), dir.path().join("trace"));
    let calls = "trace=fsync,fdatasync,rename,renameat,renameat2";
    let mut command = std::process::Command::new("strace");
    command.args(["-f", "-y", "-qq", "-e", calls, "-o"]).arg(&trace).arg(std::env::current_exe().unwrap());
    let traced = command.args(["--exact", TEST]).env(STATE, &state).output();
    if !traced.is_ok_and(|output| output.status.success()) {
        gleaner_test_support::skip!("there is no strace that can follow a program here");
    }
    let text = fs::read_to_string(&trace).unwrap();
    let state = state.display().to_string();
    let calls: Vec<&str> = text.lines().filter(|line| line.contains(&state)).collect();
    let [.., file, name, folder] = calls[..] else { panic!("{text}") };
    assert!(file.contains("sync(") && file.contains("/ledger.json.new>"), "{text}");
    assert!(name.contains("rename") && name.contains("/ledger.json\""), "{text}");
    assert!(folder.contains("fsync(") && folder.contains(&format!("{state}>")), "{text}");
}

#[test]
fn a_ledger_of_the_greatest_length_is_written_and_read_and_a_longer_one_is_neither() {
    let dir = tempfile::tempdir().unwrap();
    let (path, longest) = (dir.path().join(LEDGER), usize::try_from(LONGEST).unwrap());
    let mut ledger = Ledger::open(dir.path()).unwrap();
    let mut record = |text: String| {
        let original = LeverValue::Text(text);
        let record = Record { target: Target::Volunteer, lever: lever(), original, ours: Vec::new() };
        ledger.update(|contents| contents.records = vec![record])
    };
    record(String::new()).unwrap();
    let fill = "a".repeat(longest - fs::read(&path).unwrap().len());
    let error = record(format!("{fill}a")).unwrap_err();
    assert!(matches!(error, LedgerError::TooLong { bytes, .. } if bytes == LONGEST + 1), "{error}");
    record(fill.clone()).unwrap();
    drop(ledger);
    assert_eq!(fs::metadata(&path).unwrap().len(), LONGEST);
    assert_eq!(Ledger::open(dir.path()).unwrap().contents().records[0].original, LeverValue::Text(fill));
    let mut text = fs::read_to_string(&path).unwrap();
    text.push('\n');
    fs::write(&path, &text).unwrap();
    let error = Ledger::open(dir.path()).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("longer than 16777216 bytes"), "{error:?}");
}

#[test]
fn a_problem_is_found_without_taking_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Ledger::problem(&dir.path().join("none")), None, "nothing is recorded there");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Ledger::problem(&file.join("state")).is_some(), "that folder can never be");
    let state = dir.path().join("state");
    let mut ledger = Ledger::open(&state).unwrap();
    ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
    assert_eq!(Ledger::problem(&state), None, "it can be used, and another process uses it");
    drop(ledger);

    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = fs::read_to_string(state.join(LEDGER)).unwrap();
    let broken = text.replace("\"created\"", "\"creates\"");
    let of_another_boot = broken.replace(boot.trim(), "another");
    assert!(broken != text && of_another_boot != broken);
    let lock = |boot: &str| format!("1\n{boot}\n");
    for (ledger, lock, is_problem) in [
        (&broken, lock(boot.trim()), true),
        (&broken, String::new(), true),
        (&broken, lock(""), true),
        // A reboot has undone what it speaks of: the next start keeps it aside.
        (&broken, lock("another"), false),
        (&of_another_boot, lock(boot.trim()), false),
        (&of_another_boot, String::new(), false),
        (&String::new(), lock("another"), false),
    ] {
        fs::write(state.join(LEDGER), ledger).unwrap();
        fs::write(state.join(LOCK), &lock).unwrap();
        assert_eq!(Ledger::problem(&state).is_some(), is_problem, "lock {lock:?}, ledger {ledger}");
        let started = Ledger::open_or_refuse(&state, Path::new("/")).unwrap();
        assert_eq!(started.refused().is_some(), is_problem, "lock {lock:?}, ledger {ledger}");
    }
}

#[test]
fn a_text_says_of_which_boot_it_is() {
    for (text, is_other) in [
        (r#"{"format": 2, "boot_id": "one", "rec"#, true),
        (r#"{"format": 2, "boot_id": "two", "rec"#, false),
        (r#"{"format": 2, "boot_id": "", "rec"#, false),
        (r#"{"format": 2, "boot_id": "on"#, false),
        ("", false),
    ] {
        assert_eq!(is_of_another_boot(text, "two"), is_other, "{text}");
    }
}

#[test]
fn the_folder_of_process_groups_is_the_one_beside_it() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(other.path().join(REGISTRY)).unwrap();
    for (registry, is_refused) in [
        (dir.path().join(REGISTRY), false),
        (dir.path().join("groups"), true),
        (other.path().join(REGISTRY), true),
        (other.path().join("groups"), true),
    ] {
        let contents = Contents { registry: Some(registry.clone()), ..Contents::default() };
        let why = contents.out_of_place(dir.path(), Path::new("/"));
        assert_eq!(why.is_some(), is_refused, "{}: {why:?}", registry.display());
    }
}

#[test]
fn contents_are_empty_when_no_part_is_left() {
    let part = |change: fn(&mut Contents)| {
        let mut contents = Contents::default();
        change(&mut contents);
        contents
    };
    let original = LeverValue::Weight(1);
    let record = Record { target: Target::Volunteer, lever: lever(), original, ours: Vec::new() };
    let mut recorded = Contents::default();
    recorded.records.push(record);
    let parts = [
        recorded,
        part(|contents| contents.created.push("/cg".into())),
        part(|contents| contents.enabled.push(Enabled { cgroup: "/cg".into(), controllers: Vec::new() })),
        part(|contents| contents.volunteer.push("/cg".into())),
        part(|contents| contents.registry = Some("/run".into())),
    ];
    assert!(Contents::default().is_empty());
    for part in parts {
        assert!(!part.is_empty(), "{part:?}");
    }
}

#[test]
fn what_cannot_be_moved_aside_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LEDGER);
    let kind = |error: &LedgerError| match error {
        LedgerError::Io { source, .. } => source.kind(),
        other => panic!("{other}"),
    };
    assert_eq!(kind(&keep_aside(&path).unwrap_err()), io::ErrorKind::NotFound);
    fs::write(&path, "broken").unwrap();
    for number in 1..=MOST_KEPT {
        fs::write(dir.path().join(format!("ledger.json.broken-{number}")), "kept").unwrap();
    }
    let error = keep_aside(&path).unwrap_err();
    assert_eq!(kind(&error), io::ErrorKind::AlreadyExists);
    assert!(error.source().unwrap().to_string().contains("100 broken ledgers are kept"), "{error:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "broken");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 101);
}

#[test]
fn denied_access_is_distinguished_from_untrusted_files() {
    let path = Path::new("/state");
    let denied = trusted("open the ledger", path)(io::Error::from_raw_os_error(libc::EACCES));
    assert!(matches!(denied, LedgerError::Io { .. }), "{denied}");
    let distrusted = trusted("open the ledger", path)(io::Error::new(io::ErrorKind::PermissionDenied, "others'"));
    assert!(matches!(distrusted, LedgerError::Untrusted { .. }), "{distrusted}");
    let other = trusted("open the ledger", path)(io::Error::new(io::ErrorKind::InvalidData, "no text"));
    assert!(matches!(other, LedgerError::Io { .. }), "{other}");
}
