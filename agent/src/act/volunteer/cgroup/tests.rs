//! Where the volunteer's cgroup may be, and what a taken unit keeps, on plain files and on the real hierarchy.

use std::time::Instant;

use gleaner_types::command::Quota;
use gleaner_types::units::CoreShare;

use super::super::hold::WRITE_PAUSE;
use super::*;

fn hierarchies(v1: &[&str], v2: Option<&[&str]>) -> Hierarchies {
    Hierarchies {
        v1: v1.iter().map(|name| ((*name).to_owned(), Path::new("/cg").join(name))).collect(),
        v2: v2.map(|_| "/cg/unified".into()),
        v2_controllers: v2.unwrap_or_default().iter().map(|name| (*name).to_owned()).collect(),
    }
}

fn leaves(v1: &[&str], v2: Option<&[&str]>) -> Result<Vec<String>, PlaceError> {
    let places = places(Path::new("g/v"), &hierarchies(v1, v2), false)?;
    Ok(places.iter().map(|place| format!("{} {}", place.leaf.display(), place.controllers.join("+"))).collect())
}

#[test]
fn spans_the_hierarchies_that_count() {
    assert_eq!(leaves(&[], Some(&["cpu", "io", "pids"])).unwrap(), ["/cg/unified/g/v cpu+io+pids"]);
    assert_eq!(
        leaves(&["cpu", "cpuacct", "freezer", "pids", "cpuset"], Some(&[])).unwrap(),
        [
            "/cg/cpu/g/v cpu",
            "/cg/cpuacct/g/v cpuacct",
            "/cg/freezer/g/v freezer",
            "/cg/pids/g/v pids",
            "/cg/unified/g/v "
        ]
    );
    assert_eq!(
        leaves(&["cpu", "cpuacct"], Some(&["memory"])).unwrap(),
        ["/cg/cpu/g/v cpu", "/cg/cpuacct/g/v cpuacct", "/cg/unified/g/v memory"],
        "the unified hierarchy freezes"
    );
    assert_eq!(leaves(&["cpu", "freezer"], None), Err(PlaceError::Cpuacct));
    assert_eq!(leaves(&["cpu", "cpuacct"], None), Err(PlaceError::Freezer));
    assert_eq!(leaves(&[], None), Err(PlaceError::Cpu));
    // Controllers mounted together share a leaf.
    let mut together = hierarchies(&["cpu", "freezer"], None);
    together.v1.insert("cpuacct".into(), "/cg/cpu".into());
    assert_eq!(places(Path::new("v"), &together, false).unwrap().len(), 2);
    let spare = places(Path::new("v"), &hierarchies(&["cpu", "cpuacct", "freezer", "cpuset"], None), true).unwrap();
    assert_eq!(spare.last().unwrap().leaf, Path::new("/cg/cpuset/v"));
}

#[test]
fn the_configured_path_is_relative_and_plain() {
    assert_eq!(checked("machine.slice/gleaner").unwrap(), Path::new("machine.slice/gleaner"));
    for bad in ["", "/", "/a", "../a", "a/../b", ".", "a/b/c/d/e/f/g/h/i"] {
        assert!(checked(bad).is_err(), "{bad:?}");
    }
}

/// A unit that was there before, of plain files that keep whatever is written.
struct Unit {
    dir: tempfile::TempDir,
    volunteer: CgroupVolunteer,
}

impl Unit {
    const FOUND: [(&str, &str); 3] = [("cpu.max", "max 100000"), ("cpu.idle", "0"), ("cgroup.freeze", "0")];

    fn adopt() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cpu = dir.path().join("unit");
        std::fs::create_dir(&cpu).unwrap();
        for (name, text) in Self::FOUND {
            std::fs::write(cpu.join(name), text).unwrap();
        }
        let version = CgroupVersion::V2;
        let stop = AnyLever::new(&cpu, version, CgroupFile::Freezer);
        let mut ledger = Ledger::open(&dir.path().join("state")).unwrap();
        let found =
            Adopted { cpu, version, cpuacct: None, stop, bounded: [None, None, None], cpuset: None, guest: None };
        let settings = ActSettings::observing(dir.path().join("state"));
        let volunteer = CgroupVolunteer::adopt(found, &settings, &mut ledger).unwrap().0;
        Self { dir, volunteer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("unit").join(name)
    }

    /// Ceiling, idle class and freezer.
    fn reads(&self) -> [String; 3] {
        Self::FOUND.map(|(name, _)| std::fs::read_to_string(self.file(name)).unwrap())
    }

    /// A new cgroup at the same path, after which the agent looks.
    fn start_anew(&mut self) -> usize {
        for (name, text) in Self::FOUND {
            std::fs::write(self.file(name), text).unwrap();
        }
        self.volunteer.foreign_writes().unwrap().len()
    }

    fn enforce(&mut self, percent: f64, frozen: bool) -> Result<Vec<ForeignWrite>, LeverError> {
        self.volunteer.hold.enforce(Quota::AtMost(CoreShare::clamped(percent)), frozen, Instant::now())
    }
}

#[test]
fn a_unit_that_was_started_anew_is_held_again() {
    let mut unit = Unit::adopt();
    assert_eq!(unit.reads(), ["1000 20000", "1", "1"]);
    assert_eq!(unit.start_anew(), 3, "that somebody else set them is told");
    unit.enforce(0.0, true).unwrap();
    assert_eq!(unit.reads(), ["1000 20000", "1", "1"], "latent");

    unit.enforce(50.0, false).unwrap();
    unit.start_anew();
    unit.enforce(50.0, false).unwrap();
    assert_eq!(unit.reads(), ["10000 20000", "1", "0"], "at work");

    // A command that comes before the guard's next look takes everything back.
    unit.start_anew();
    unit.volunteer.hold.take_back();
    unit.enforce(50.0, false).unwrap();
    assert_eq!(unit.reads(), ["10000 20000", "1", "0"]);
}

#[test]
fn without_a_limit_there_is_no_quota_but_the_one_found() {
    let mut unit = Unit::adopt();
    let later = Instant::now() + WRITE_PAUSE * 2;
    let open = |unit: &mut Unit| unit.volunteer.hold.enforce(Quota::Unlimited, false, later).unwrap();
    open(&mut unit);
    assert_eq!(unit.reads(), ["max 20000", "1", "0"]);
    unit.enforce(50.0, false).unwrap();
    assert_eq!(unit.reads()[0], "10000 20000");
    unit.volunteer.hold.quota.original = LeverValue::Quota { quota_us: Some(70_000), period_us: 100_000 };
    open(&mut unit);
    assert_eq!(unit.reads()[0], "14000 20000", "an operator's own ceiling stays");
    unit.enforce(90.0, false).unwrap();
    assert_eq!(unit.reads()[0], "14000 20000");
}

#[test]
fn what_cannot_be_frozen_gets_the_least_ceiling() {
    let mut unit = Unit::adopt();
    unit.enforce(400.0, false).unwrap();
    assert_eq!(unit.reads()[0], "80000 20000");
    std::fs::remove_file(unit.file("cgroup.freeze")).unwrap();
    assert!(unit.enforce(400.0, true).is_err());
    assert_eq!(std::fs::read_to_string(unit.file("cpu.max")).unwrap(), "1000 20000");
}

#[test]
fn under_a_foreign_ceiling_it_is_frozen_until_that_is_given_back() {
    let mut unit = Unit::adopt();
    unit.enforce(100.0, false).unwrap();
    std::fs::write(unit.file("cpu.max"), "90000 100000").unwrap();
    assert_eq!(unit.volunteer.foreign_writes().unwrap().len(), 1);
    unit.enforce(99.0, false).unwrap();
    assert_eq!(unit.reads(), ["90000 100000", "1", "1"]);
    assert!(unit.volunteer.hold.has_foreign_ceiling());
    std::fs::write(unit.file("cpu.max"), "max 100000").unwrap();
    unit.enforce(50.0, false).unwrap();
    assert_eq!(unit.reads(), ["10000 20000", "1", "0"]);
}

#[test]
fn what_is_not_dead_in_time_is_frozen_again() {
    let mut unit = Unit::adopt();
    unit.volunteer.adopted = false;
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    // The list stays, as that of a cgroup with a process that takes long to exit.
    std::fs::write(unit.file("cgroup.procs"), child.id().to_string()).unwrap();
    let error = unit.volunteer.end_processes(Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("still there"), "{error}");
    assert_eq!(unit.reads()[2], "1");
    child.wait().unwrap();
}

#[test]
fn what_was_made_before_a_refusal_goes_again() {
    // A folder that takes cgroups but has no levers stands for a kernel that refuses.
    let root = tempfile::tempdir().unwrap();
    let mount = root.path().join("cg");
    std::fs::create_dir(&mount).unwrap();
    std::fs::write(mount.join("cgroup.controllers"), "cpu io\n").unwrap();
    std::fs::write(mount.join("cgroup.subtree_control"), "io\n").unwrap();
    let hierarchies =
        Hierarchies { v2: Some(mount.clone()), v2_controllers: vec!["cpu".into()], ..Hierarchies::default() };
    let mut ledger = Ledger::open(&root.path().join("state")).unwrap();
    let settings =
        ActSettings { volunteer_cgroup: "g/v".to_owned(), ..ActSettings::observing(root.path().join("state")) };
    let result = CgroupVolunteer::open(&settings, &hierarchies, &mut ledger);
    assert!(matches!(result, Err(OpenError::Unavailable(_))), "{result:?}");
    assert!(!mount.join("g").exists());
    assert_eq!(std::fs::read_to_string(mount.join("cgroup.subtree_control")).unwrap(), "-cpu", "switched off again");
    assert!(ledger.contents().is_empty());
}
