//! Restores everything that the ledger records. In: a ledger. Out: the volunteer's processes ended, levers set back,
//! cgroups removed, controllers switched off again, and a report. What cannot be restored stays in the ledger for the
//! next try. Called by the actor, by the keeper and by `gleaner-agent restore`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_types::error::chain;
use gleaner_types::event::Event;

use super::cgroup;
use super::execute::execute;
use super::ledger::{Ledger, LedgerError, Record};
use super::managed::ForeignWrite;
use super::plan::{Change, Step, plan};
use super::volunteer::groups;
use crate::hierarchies::CgroupVersion;
use crate::levers::{AnyLever, CgroupFile, DomainKind, Fault, LeverError, LeverValue};
use crate::xen::served;

/// `cpu.weight` of a cgroup on which nobody has set it.
const NORMAL_WEIGHT: u64 = 100;
/// How long killed processes may take to be gone.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Something that could not be put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreFailure {
    /// The lever, or the cgroup.
    pub knob: String,
    /// What it should be.
    pub wanted: String,
    /// Why not.
    pub error: String,
}

/// What was put back and what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Levers set to what was found.
    pub restored: u32,
    /// Cgroups removed.
    pub groups_removed: u32,
    /// Processes of the volunteer that were ended.
    pub processes_ended: u32,
    /// Levers that hold somebody else's value and were left to them.
    pub foreign: Vec<ForeignWrite>,
    /// What could not be put back. An operator must look.
    pub failed: Vec<RestoreFailure>,
}

impl RestoreReport {
    /// The report as events: one for each failure and each lever left to others.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let foreign = self.foreign.iter().map(foreign_event);
        foreign.chain(self.failed.iter().map(failure_event)).collect()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.restored += other.restored;
        self.groups_removed += other.groups_removed;
        self.processes_ended += other.processes_ended;
        self.foreign.extend(other.foreign);
        self.failed.extend(other.failed);
    }

    fn fail(&mut self, lever: impl fmt::Display, wanted: impl Into<String>, error: &dyn std::error::Error) {
        let knob = lever.to_string();
        self.failed.push(RestoreFailure { knob, wanted: wanted.into(), error: chain(error) });
    }
}

pub(crate) fn foreign_event(found: &ForeignWrite) -> Event {
    let ForeignWrite { knob, expected, found } = found.clone();
    Event::ForeignWrite { knob, expected, found }
}

pub(crate) fn failure_event(failure: &RestoreFailure) -> Event {
    let RestoreFailure { knob, wanted, error } = failure.clone();
    Event::RestoreFailed { knob, wanted, error }
}

/// Restores everything that the ledger records, and removes from it what was restored.
///
/// # Errors
/// [`LedgerError`] when the ledger cannot be written; the host is restored all the same.
pub(crate) fn restore_all(ledger: &mut Ledger) -> Result<RestoreReport, LedgerError> {
    let mut report = RestoreReport::default();
    let emptied = end_processes(ledger, &mut report);
    let records = ledger.contents().records.clone();
    let (restored, kept) = put_back(&records);
    report.add(restored);
    let contents = ledger.contents();
    let created = remove_groups(contents.created.clone(), &contents.volunteer, &mut report);
    // A cgroup that could not be removed may hold a task that the next try has to find.
    let gone = emptied && !contents.volunteer.iter().any(|dir| created.contains(dir));
    let mut enabled = ledger.contents().enabled.clone();
    enabled.reverse();
    let ours: Vec<PathBuf> = created.iter().chain(&contents.volunteer).cloned().collect();
    enabled.retain(|enabled| {
        if let Some(theirs) = set_by_others(&enabled.cgroup, &ours) {
            let (cgroup, theirs) = (enabled.cgroup.display(), theirs.display());
            tracing::warn!(%cgroup, %theirs, "a controller stays switched on, because others have set it");
            return false;
        }
        match cgroup::switch_controllers(&enabled.cgroup, '-', &enabled.controllers) {
            Ok(()) => false,
            Err(error) if error.io().is_some_and(|io| Fault::of(io) == Fault::Absent) => false,
            Err(error) => {
                let lever = enabled.cgroup.join("cgroup.subtree_control");
                report.fail(lever.display(), "without these controllers", &error);
                true
            }
        }
    });
    enabled.reverse();
    // Last, and once: a full disk for the ledger must keep nothing from being put back.
    ledger.update(|contents| {
        contents.records.retain(|have| kept.contains(&have.lever));
        contents.created = created;
        contents.enabled = enabled;
        if gone {
            contents.volunteer.clear();
            contents.registry = None;
        }
    })?;
    Ok(report)
}

/// A cgroup right below `parent` on which others have set a ceiling or weight on CPU, memory or processes since the
/// controller was switched on for it: switching it off again would lose their settings. `ours` are Gleaner's.
fn set_by_others(parent: &Path, ours: &[PathBuf]) -> Option<PathBuf> {
    let is_set = |dir: &PathBuf| {
        let read = |kind| AnyLever::new(dir, CgroupVersion::V2, kind).read().ok();
        matches!(read(CgroupFile::Quota), Some(LeverValue::Quota { quota_us: Some(_), .. }))
            || matches!(read(CgroupFile::Weight), Some(LeverValue::Weight(weight)) if weight != NORMAL_WEIGHT)
            || read(CgroupFile::Idle) == Some(LeverValue::Idle(true))
            || [CgroupFile::MemoryMax, CgroupFile::Memory]
                .into_iter()
                .any(|kind| matches!(read(kind), Some(LeverValue::Memory(Some(_)))))
            || matches!(read(CgroupFile::Pids), Some(LeverValue::Count(Some(_))))
    };
    cgroup::children(parent).unwrap_or_default().into_iter().find(|dir| !ours.contains(dir) && is_set(dir))
}

fn count(processes: usize) -> u32 {
    u32::try_from(processes).unwrap_or(u32::MAX)
}

/// Ends whatever runs in the volunteer. True if nothing is left.
fn end_processes(ledger: &Ledger, report: &mut RestoreReport) -> bool {
    let contents = ledger.contents();
    let dirs = &contents.volunteer;
    let mut emptied = true;
    let mut failure = None;
    match cgroup::kill_all(dirs, cgroup::freezer_of(dirs).as_ref(), KILL_DEADLINE, cgroup::MemoryRelease::ByTheProcess)
    {
        Ok(ended) => report.processes_ended += count(ended),
        Err(error) => failure = Some((dirs.first().cloned().unwrap_or_default(), chain(&error))),
    }
    // Cgroups that tasks made below the volunteer's own go with them.
    let below = dirs.iter().flat_map(|dir| cgroup::with_descendants(dir).into_iter().skip(1)).collect();
    if failure.is_none() {
        remove_groups(below, dirs, report);
    }
    if let Some(registry) = &contents.registry {
        match groups::end_registry(registry, KILL_DEADLINE) {
            Ok(ended) => report.processes_ended += count(ended),
            Err(error) => failure = Some((registry.clone(), chain(&error))),
        }
    }
    if let Some((path, error)) = failure {
        emptied = false;
        let knob = path.display().to_string();
        report.failed.push(RestoreFailure { knob, wanted: "no processes".to_owned(), error });
    }
    emptied
}

/// Puts back some of the ledger's levers and takes those out of it that are as they were found.
///
/// # Errors
/// [`LedgerError`] when the ledger cannot be written; the levers are put back all the same.
pub(crate) fn restore_records(ledger: &mut Ledger, records: &[Record]) -> Result<RestoreReport, LedgerError> {
    let (report, kept) = put_back(records);
    ledger.update(|contents| {
        contents.records.retain(|have| kept.contains(&have.lever) || !records.iter().any(|r| r.lever == have.lever));
    })?;
    Ok(report)
}

/// Puts back levers; answers also those that are not yet as they were found. A lever that is gone has nothing to put
/// back; one with a foreign value is left to whoever set it.
fn put_back(records: &[Record]) -> (RestoreReport, Vec<AnyLever>) {
    let mut report = RestoreReport::default();
    let mut changes = Vec::new();
    let mut kept = Vec::new();
    for record in records {
        match record.lever.read() {
            Ok(current) if record.is_ours(&current) || current == record.original => {
                // An agent may have been killed between its ceiling and its cgroup, or before the ceiling.
                if let AnyLever::DomainDisk(disk) = &record.lever
                    && let Err(error) = disk.remove_empty()
                {
                    report.fail(&record.lever, "its cgroup removed", &error);
                    kept.push(record.lever.clone());
                }
                changes.push(Change {
                    lever: record.lever.clone(),
                    observed: current,
                    wanted: record.original.clone(),
                });
            }
            Ok(current) => report.foreign.push(ForeignWrite {
                knob: record.lever.to_string(),
                expected: record.ours.last().unwrap_or(&record.original).to_string(),
                found: current.to_string(),
            }),
            Err(error) if error.fault() == Fault::Absent => {}
            Err(error) => kept.extend(left_or_failed(&mut report, &record.lever, &record.original, &error)),
        }
    }
    // One by one: a lever that cannot be put back is no reason to undo those that were.
    for step in plan(changes) {
        match execute(std::slice::from_ref(&step)).map_err(|error| error.cause) {
            Ok(()) => {
                report.restored += 1;
                // A guest takes its time to come back; until it has, only the record has what was found.
                if !step.lever.reads_as_set() {
                    kept.push(step.lever);
                }
            }
            Err(error) => kept.extend(not_put_back(&mut report, step, error)),
        }
    }
    (report, kept)
}

/// What becomes of a lever that cannot be read or set: reported, and returned if it has to be tried again. Of an interface's queues
/// one for policing that an agent was killed before it finished is removed, and any other is left to whoever made it.
fn left_or_failed(
    report: &mut RestoreReport,
    lever: &AnyLever,
    wanted: &LeverValue,
    error: &LeverError,
) -> Option<AnyLever> {
    let removed = match (lever, error) {
        (AnyLever::Link(link), LeverError::Malformed { .. }) => link.remove_empty().ok(),
        _ => None,
    };
    match removed {
        Some(true) => report.restored += 1,
        Some(false) => {
            let (knob, expected) = (lever.to_string(), wanted.to_string());
            report.foreign.push(ForeignWrite { knob, expected, found: chain(error) });
        }
        None => {
            report.fail(lever, wanted.to_string(), error);
            return Some(lever.clone());
        }
    }
    None
}

/// A step failed: what of it is reported, and the lever if it has to be tried again.
fn not_put_back(report: &mut RestoreReport, step: Step, error: LeverError) -> Option<AnyLever> {
    match error {
        error if error.fault() == Fault::Absent => None,
        // The hypervisor counts pauses: Gleaner's has ended, and another one holds. To try again would end that too.
        LeverError::NotKept { value, found, .. } if is_end_of_a_pause(&step) => {
            report.foreign.push(ForeignWrite { knob: step.lever.to_string(), expected: value, found });
            None
        }
        // Gleaner's part of a queue was taken away, and what others have added to it is left.
        error => left_or_failed(report, &step.lever, &step.to, &error),
    }
}

fn is_end_of_a_pause(step: &Step) -> bool {
    let is_pause = matches!(&step.lever, AnyLever::Domain(lever) if lever.kind == DomainKind::Paused);
    is_pause && step.to == LeverValue::Frozen(false)
}

/// Removes cgroups, children first, and ends what enters the volunteer meanwhile; returns those that are still there.
fn remove_groups(mut created: Vec<PathBuf>, volunteer: &[PathBuf], report: &mut RestoreReport) -> Vec<PathBuf> {
    let mut ended = 0;
    let mut evict = || {
        // What this round misses, the next one finds; what the last one misses is the failure to remove.
        ended +=
            cgroup::kill_round(volunteer, cgroup::freezer_of(volunteer).as_ref(), cgroup::MemoryRelease::ByTheProcess)
                .unwrap_or_default();
    };
    created.reverse();
    created.iter().for_each(|dir| served::give_back(Path::new("/proc"), dir));
    created.retain(|dir| match cgroup::remove(dir, &mut evict) {
        Ok(removed) => {
            report.groups_removed += u32::from(removed);
            false
        }
        // Another Gleaner, or an operator, has put a cgroup of theirs into it: it is in use, not left over.
        Err(_) if cgroup::children(dir).is_ok_and(|children| !children.is_empty()) => false,
        Err(error) => {
            report.fail(dir.display(), "removed", &error);
            true
        }
    });
    created.reverse();
    report.processes_ended += count(ended);
    created
}

#[cfg(test)]
mod tests {
    use std::fs;

    use gleaner_types::command::Target;
    use gleaner_types::id::WorkloadId;

    use super::*;
    use crate::act::ledger::Enabled;
    use crate::act::tests::scene::{Burner, Scene, eventually};
    use crate::act::volunteer::Volunteer;
    use crate::facts::DeviceNumber;
    use crate::levers::{DomainLever, LinkLever, ResctrlLever, Throttle};
    use crate::netlink::Direction;

    fn record(lever: AnyLever, original: LeverValue, ours: LeverValue) -> Record {
        Record { target: Target::Volunteer, lever, original, ours: vec![ours] }
    }

    #[test]
    fn queues_of_others_on_an_interface_are_left_and_unfinished_ones_of_gleaners_removed() {
        const TEST: &str = "queues_of_others_on_an_interface_are_left_and_unfinished_ones_of_gleaners_removed";
        let run = |line: &str| std::process::Command::new("sh").args(["-c", line]).status().unwrap().success();
        let records = [Direction::Receive, Direction::Transmit].map(|direction| {
            let lever = AnyLever::Link(LinkLever { interface: "lo".to_owned(), direction, domain: None });
            Record { target: Target::Volunteer, lever, original: LeverValue::Rate(None), ours: Vec::new() }
        });
        let work = move || {
            if let Err(error) = crate::netlink::own_namespace() {
                gleaner_test_support::skipped!("{TEST}: no network namespace can be made here: {error}");
                return;
            }
            let police = "tc filter add dev lo parent ffff: protocol all prio 1 u32 match u32 0 0 classid 1:1";
            if !run("tc qdisc add dev lo root handle 1: tbf rate 1mbit burst 10kb latency 50ms")
                || !run("tc qdisc add dev lo ingress")
                || !run(police)
            {
                gleaner_test_support::skipped!("{TEST}: tc cannot make a queue here");
                return;
            }
            let (report, kept) = put_back(&records);
            assert_eq!((report.failed.len(), report.foreign.len(), kept.len()), (0, 2, 0), "{report:?}");
            assert!(run("tc filter show dev lo parent ffff: | grep -q 'pref 1 '"), "theirs stays");
            // As after an agent that was killed between its queue and its filter.
            assert!(run("tc qdisc del dev lo ingress && tc qdisc add dev lo ingress"));
            let (report, kept) = put_back(&records[1..]);
            assert_eq!((report.failed.len(), report.foreign.len(), kept.len()), (0, 0, 0), "{report:?}");
            assert_eq!(records[1].lever.read().unwrap(), LeverValue::Rate(None));
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn what_was_limited_is_put_back_whatever_it_is() {
        let disk = DeviceNumber { major: 8, minor: 16 };
        let quota = |quota_us| LeverValue::Quota { quota_us: Some(quota_us), period_us: 100_000 };
        let throttle = |[read_bytes, write_bytes, read_operations, write_operations]: [u64; 4]| {
            let [read_bytes, write_bytes, read_operations, write_operations] =
                [Some(read_bytes), Some(write_bytes), Some(read_operations), Some(write_operations)];
            LeverValue::Throttle(Throttle { read_bytes, write_bytes, read_operations, write_operations })
        };
        let (found, bytes, operations) =
            (throttle([70, 80, 90, 100]), throttle([7, 8, 90, 100]), throttle([70, 80, 9, 10]));
        let weights = (LeverValue::Weight(200), LeverValue::Weight(50));
        let memory = (LeverValue::Memory(Some(1 << 30)), LeverValue::Memory(Some(1 << 29)));
        use CgroupVersion::{V1, V2};
        let kinds = [
            (V2, CgroupFile::Quota, &["cpu.max"][..], (quota(80_000), quota(20_000))),
            (V2, CgroupFile::Weight, &["cpu.weight"], weights.clone()),
            (V2, CgroupFile::Memory, &["memory.high"], memory),
            (V2, CgroupFile::DiskWeight, &["io.weight"], weights.clone()),
            (V2, CgroupFile::BfqWeight, &["io.bfq.weight"], weights.clone()),
            (V1, CgroupFile::DiskWeight, &["blkio.weight"], weights.clone()),
            (V1, CgroupFile::BfqWeight, &["blkio.bfq.weight"], weights),
            (V2, CgroupFile::Disk(disk), &["io.max"], (found.clone(), bytes.clone())),
            (V2, CgroupFile::Disk(disk), &["io.max"], (found.clone(), operations.clone())),
            (V1, CgroupFile::Disk(disk), &V1_FILES, (found.clone(), bytes)),
            (V1, CgroupFile::Disk(disk), &V1_FILES, (found, operations)),
        ];
        const V1_FILES: [&str; 4] = [
            "blkio.throttle.read_bps_device",
            "blkio.throttle.write_bps_device",
            "blkio.throttle.read_iops_device",
            "blkio.throttle.write_iops_device",
        ];
        let root = tempfile::tempdir().unwrap();
        let mut records = Vec::new();
        for (number, (version, kind, files, (found, ours))) in kinds.into_iter().enumerate() {
            let dir = root.path().join(number.to_string());
            fs::create_dir(&dir).unwrap();
            files.iter().for_each(|file| fs::write(dir.join(file), "").unwrap());
            let lever = AnyLever::new(&dir, version, kind);
            lever.write(ours.clone()).unwrap();
            assert_eq!(lever.read().unwrap(), ours, "{lever}");
            records.push(record(lever, found, ours));
        }
        let (report, kept) = put_back(&records);
        for record in &records {
            assert_eq!(record.lever.read().unwrap(), record.original, "{}", record.lever);
        }
        assert_eq!((report.restored, kept), (11, vec![]), "{report:?}");
    }

    #[test]
    fn a_ceiling_on_a_link_is_put_back_in_both_directions() {
        const TEST: &str = "a_ceiling_on_a_link_is_put_back_in_both_directions";
        let work = || {
            if let Err(error) = crate::netlink::own_namespace() {
                gleaner_test_support::skipped!("{TEST}: no network namespace can be made here: {error}");
                return;
            }
            let tap = "ip tuntap add gl-tap mode tap && ip link set gl-tap up";
            if !std::process::Command::new("sh").args(["-c", tap]).status().unwrap().success() {
                gleaner_test_support::skipped!("{TEST}: no tap can be made here (ip, /dev/net/tun)");
                return;
            }
            for direction in [Direction::Receive, Direction::Transmit] {
                let lever = AnyLever::Link(LinkLever { interface: "gl-tap".into(), direction, domain: None });
                let ours = LeverValue::Rate(Some(125_000));
                match lever.set(ours.clone()) {
                    Err(error) if error.fault() == Fault::Denied => {
                        gleaner_test_support::skipped!("{TEST}: {direction:?}: this kernel has no such queue");
                        continue;
                    }
                    set => set.unwrap(),
                }
                let (report, kept) = put_back(&[record(lever.clone(), LeverValue::Rate(None), ours)]);
                assert_eq!((report.restored, kept), (1, vec![]), "{direction:?}: {report:?}");
                assert_eq!(lever.read().unwrap(), LeverValue::Rate(None), "{direction:?}");
            }
        };
        std::thread::spawn(work).join().unwrap();
    }

    /// After a kill between making and writing it, after somebody else wrote it, after a cache went offline.
    #[test]
    fn a_resctrl_group_that_was_made_is_removed_whatever_it_holds() {
        let (sys, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let lever = ResctrlLever::new(sys.path());
        let (group, schemata) = (lever.group(), lever.group().join("schemata"));
        let mut ledger = Ledger::open(state.path()).unwrap();
        let text = |text: &str| LeverValue::Text(text.to_owned());
        let about = [(AnyLever::Resctrl(lever), text(""), text("L3:0=3;1=3"))];
        ledger.about_to_set(&Target::Volunteer, &about).unwrap();
        fs::create_dir_all(&group).unwrap();
        for found in ["L3:0=7ff;1=7ff\n", "L3:0=3\n"] {
            // A folder with files in it cannot be removed, unlike a group of the kernel's.
            fs::write(&schemata, found).unwrap();
            let report = restore_all(&mut ledger).unwrap();
            assert!(report.foreign.is_empty() && report.failed.len() == 1, "{report:?}");
            assert_eq!(ledger.contents().records.len(), 1, "it is tried again");
        }
        fs::remove_file(&schemata).unwrap();
        let report = restore_all(&mut ledger).unwrap();
        assert_eq!(report, RestoreReport { restored: 1, ..RestoreReport::default() });
        assert!(!group.exists() && ledger.contents().is_empty());
    }

    #[test]
    fn a_controller_that_others_use_by_now_stays_switched_on() {
        for (file, text, used) in [
            ("cpu.weight", "100\n", false),
            ("cpu.weight", "500\n", true),
            ("cpu.max", "max 100000\n", false),
            ("cpu.max", "50000 100000\n", true),
            ("cpu.idle", "1\n", true),
        ] {
            let root = tempfile::tempdir().unwrap();
            let parent = root.path().join("cg");
            fs::create_dir_all(parent.join("theirs")).unwrap();
            fs::write(parent.join("theirs").join(file), text).unwrap();
            fs::write(parent.join("cgroup.subtree_control"), "cpu\n").unwrap();
            let mut ledger = Ledger::open(&root.path().join("state")).unwrap();
            let enabled = Enabled { cgroup: parent.clone(), controllers: vec!["cpu".to_owned()] };
            ledger.update(|contents| contents.enabled.push(enabled)).unwrap();
            assert_eq!(restore_all(&mut ledger).unwrap(), RestoreReport::default());
            let written = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap();
            assert_eq!(written, if used { "cpu\n" } else { "-cpu" }, "{file} {text}");
            assert!(ledger.contents().is_empty());
        }
    }

    #[test]
    fn a_pause_that_outlasts_gleaners_own_is_left_to_whoever_made_it() {
        let step = |kind, to: LeverValue| Step {
            lever: AnyLever::Domain(DomainLever { uuid: "u".to_owned(), id: Some(3), kind }),
            from: LeverValue::Frozen(true),
            to,
        };
        let not_kept =
            || LeverError::NotKept { value: "running".to_owned(), what: "u".to_owned(), found: "paused".to_owned() };
        let mut report = RestoreReport::default();
        let running = step(DomainKind::Paused, LeverValue::Frozen(false));
        assert_eq!(not_put_back(&mut report, running, not_kept()), None, "trying again would end it");
        assert_eq!((report.foreign.len(), report.failed.len()), (1, 0), "{report:?}");
        for other in [step(DomainKind::Paused, LeverValue::Frozen(true)), step(DomainKind::Cap, LeverValue::Weight(1))]
        {
            assert_eq!(not_put_back(&mut report, other.clone(), not_kept()), Some(other.lever));
        }
        assert_eq!((report.foreign.len(), report.failed.len()), (1, 2), "{report:?}");
    }

    #[test]
    fn a_domain_is_not_forgotten_because_the_helper_is_missing() {
        if crate::xen::helper_program().is_some() {
            gleaner_test_support::skipped!(
                "a_domain_is_not_forgotten_because_the_helper_is_missing: the helper is installed"
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        let lever = AnyLever::Domain(DomainLever { uuid: "u".to_owned(), id: None, kind: DomainKind::Weight });
        let target = Target::Workload(WorkloadId::new("db").unwrap());
        ledger.about_to_set(&target, &[(lever, LeverValue::Weight(256), LeverValue::Weight(128))]).unwrap();
        let report = restore_all(&mut ledger).unwrap();
        assert!(report.failed[0].error.contains("not installed"), "{report:?}");
        assert_eq!(ledger.contents().records.len(), 1, "it is tried again");
    }

    /// An engine goes on starting tasks until it hears that the agent stops: into cgroups that were just found
    /// empty, in a freezer that is frozen.
    #[test]
    fn a_task_that_enters_while_the_volunteer_is_removed_goes_too() {
        let Some(scene) = Scene::open("a_task_that_enters_while_the_volunteer_is_removed_goes_too") else { return };
        let settings = scene.settings();
        let mut ledger = Ledger::open(&settings.state_dir).unwrap();
        let volunteer = Volunteer::open(&settings, &scene.hierarchies, &mut ledger).unwrap();
        let dirs = volunteer.dirs();
        drop(volunteer);
        let mut report = RestoreReport::default();
        assert!(end_processes(&ledger, &mut report));

        let procs_files: Vec<_> = dirs.iter().map(|dir| dir.join("cgroup.procs")).collect();
        let mut task = Burner::start(&procs_files);
        let freezer = cgroup::freezer_of(&dirs).unwrap();
        assert_eq!(freezer.read().unwrap(), LeverValue::Frozen(true));
        let left = remove_groups(ledger.contents().created.clone(), &dirs, &mut report);
        assert!(left.is_empty() && report.failed.is_empty(), "{left:?} {report:?}");
        assert!(report.processes_ended > 0);
        eventually("the task has ended", || task.ended());
    }
}
