//! From what levers are and what they should be to the ordered steps that make them so. Pure: no file is
//! touched here.

use std::path::PathBuf;

use gleaner_types::command::{DiskLimit, Limits, NetworkLimit, Quota};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, PerSec};

use crate::hierarchies::CgroupVersion;
use crate::levers::{AnyLever, CgroupFile, LeverValue, MonitorKind, MonitorLever, Throttle};
use crate::rounding::whole;

/// One lever as it is and as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The lever.
    pub lever: AnyLever,
    /// What it is.
    pub observed: LeverValue,
    /// What it should be.
    pub wanted: LeverValue,
}

/// One write, with what undoes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The lever.
    pub lever: AnyLever,
    /// What it is.
    pub from: LeverValue,
    /// What it becomes.
    pub to: LeverValue,
}

/// The steps that make every change, in the order that never lets a target run with more than it had or
/// will have: freeze, then weight, then ceiling, then thaw. Levers that are as wanted give no step.
///
/// The kernel refuses a weight while the idle class is on, so that is left before and entered after it; and
/// leaving it resets the weight, so a weight wanted beside it is written in any case.
#[must_use]
pub fn plan(changes: Vec<Change>) -> Vec<Step> {
    let group = |lever: &AnyLever| lever.as_cgroup().map(|lever| lever.cgroup.clone());
    let leaves_idle = |of: &AnyLever| {
        changes.iter().any(|change| {
            group(&change.lever) == group(of)
                && change.observed == LeverValue::Idle(true)
                && change.wanted == LeverValue::Idle(false)
        })
    };
    let mut steps: Vec<Step> = changes
        .iter()
        .filter(|change| {
            let is_weight = change.lever.as_cgroup().is_some_and(|lever| lever.kind == CgroupFile::Weight);
            let weight_is_reset = is_weight && leaves_idle(&change.lever);
            change.observed != change.wanted || weight_is_reset
        })
        .map(|change| Step { lever: change.lever.clone(), from: change.observed, to: change.wanted })
        .collect();
    steps.sort_by_key(|step| match step.to {
        LeverValue::Frozen(true) => 0,
        LeverValue::Idle(false) => 1,
        LeverValue::Weight(_) => 2,
        LeverValue::Idle(true) => 3,
        LeverValue::Quota { .. }
        | LeverValue::Memory(_)
        | LeverValue::Throttle(_)
        | LeverValue::Rate(_)
        | LeverValue::Share(_) => 4,
        LeverValue::Frozen(false) => 5,
    });
    steps
}

/// What a lever of a workload limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A ceiling on CPU; several share the workload's evenly (one group per virtual CPU).
    Quota,
    /// A share of the CPU.
    Weight,
    /// Memory.
    Memory,
    /// Ceilings on one disk.
    Disk,
    /// A share of the disks.
    DiskWeight,
    /// A ceiling on what it receives; several interfaces each hold it.
    Receive,
    /// A ceiling on what it sends.
    Transmit,
}

impl Role {
    /// For an operator: "there is no lever for …".
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Quota => "a ceiling on CPU",
            Self::Weight => "a weight on the CPU",
            Self::Memory => "memory",
            Self::Disk => "disk traffic",
            Self::DiskWeight => "a weight on the disks",
            Self::Receive => "what it receives from the network",
            Self::Transmit => "what it sends to the network",
        }
    }
}

/// How a foreground workload can be limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadLevers {
    /// Cgroups that must be the workload's alone for the levers to hit nobody else; absolute paths.
    pub own: Vec<PathBuf>,
    /// The ceiling on CPU also holds a QEMU process's emulator and I/O threads.
    pub emulator_inside: bool,
    /// Its levers. With libvirt's per-thread groups the emulator's own group is never limited, so it has none.
    pub levers: Vec<(Role, AnyLever)>,
}

impl WorkloadLevers {
    /// Roles that a limit asks for and that no lever plays.
    #[must_use]
    pub fn missing(&self, limits: &Limits) -> Vec<Role> {
        let asked = [
            (Role::Quota, limits.quota != Quota::Unlimited),
            (Role::Weight, limits.weight.is_some()),
            (Role::Memory, limits.memory.is_some()),
            (Role::Disk, limits.disk != DiskLimit::default()),
            (Role::DiskWeight, limits.disk_weight.is_some()),
            (Role::Receive, limits.network.receive.is_some()),
            (Role::Transmit, limits.network.transmit.is_some()),
        ];
        let played = |role| self.levers.iter().any(|(own, _)| *own == role);
        asked.into_iter().filter(|(role, asked)| *asked && !played(*role)).map(|(role, _)| role).collect()
    }
}

/// A lever with what it was found as before Gleaner and what it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What it limits.
    pub role: Role,
    /// The lever.
    pub lever: AnyLever,
    /// What was found before the first change.
    pub original: LeverValue,
    /// What it is now.
    pub current: LeverValue,
}

impl Seen {
    /// All the memory a guest has, where the lever sets that and not what is used of it.
    pub(crate) fn whole_memory(&self) -> Option<Bytes> {
        match (&self.lever, self.current) {
            (AnyLever::Cgroup(_), _) => None,
            (_, LeverValue::Memory(Some(bytes))) => Some(Bytes(bytes)),
            (AnyLever::Monitor(MonitorLever { kind: MonitorKind::Balloon { whole }, .. }), _) => Some(Bytes(*whole)),
            _ => None,
        }
    }
}

/// CPU a QEMU process gets on top of a ceiling asked for its guest, for the emulator and I/O threads in the
/// same cgroup: 5 % of the ceiling, at least 10 % of a core (chosen). Without it a guest at its ceiling
/// would starve its own disk and network.
#[must_use]
pub fn with_emulator_headroom(ceiling: CoreShare) -> CoreShare {
    ceiling + (ceiling * 0.05).max(CoreShare::clamped(10.0))
}

/// The lower of two ceilings, and whether the one found was the lower. Lower than an operator's is ours to set,
/// higher is not.
fn lower(found: Option<u64>, wanted: Option<u64>) -> (Option<u64>, bool) {
    match (found, wanted) {
        (Some(found), Some(wanted)) if wanted > found => (Some(found), true),
        (found, None) => (found, false),
        (_, wanted) => (wanted, false),
    }
}

/// What the levers of a workload should be under limits, and what of it cannot be had.
///
/// A ceiling on CPU is split evenly over several levers. No ceiling is ever set above the one found, because that one
/// is the operator's. What is not asked for goes back to what was found. `memory` is the memory limit to set
/// now, which may still be on its way to the one asked for.
#[must_use]
pub fn limit_workload(
    emulator_inside: bool,
    seen: &[Seen],
    limits: &Limits,
    memory: Option<Bytes>,
) -> (Vec<Change>, Vec<String>) {
    let mut shortfalls = Vec::new();
    let mut raised = false;
    let mut bound_by_found = false;
    let quotas = seen.iter().filter(|seen| seen.role == Role::Quota).count().max(1);
    let per_lever = |ceiling: CoreShare| {
        let whole = if emulator_inside { with_emulator_headroom(ceiling) } else { ceiling };
        whole * (1.0 / quotas as f64)
    };
    let mut most = |found, wanted| {
        let (limit, bound) = lower(found, wanted);
        bound_by_found |= bound;
        limit
    };
    // A ceiling of less than one a second would be none at all.
    let bytes = |rate: Option<BytesPerSec>| rate.map(|rate| whole(rate.per_sec()).max(1));
    let changes = seen
        .iter()
        .map(|seen| {
            let wanted = match (seen.role, seen.original) {
                (Role::Quota, LeverValue::Quota { quota_us: found, period_us }) => {
                    let wanted = match limits.quota {
                        Quota::AtMost(ceiling) => {
                            let (wanted, was_raised) = LeverValue::at_most(per_lever(ceiling), period_us);
                            raised |= was_raised;
                            match wanted {
                                LeverValue::Quota { quota_us, .. } => quota_us,
                                _ => None,
                            }
                        }
                        Quota::Unlimited => None,
                    };
                    LeverValue::Quota { quota_us: most(found, wanted), period_us }
                }
                (Role::Weight, original) => limits.weight.map_or(original, |weight| seen.lever.weight(weight)),
                (Role::DiskWeight, original) => limits.disk_weight.map_or(original, |weight| seen.lever.weight(weight)),
                (Role::Memory, LeverValue::Memory(found)) => {
                    LeverValue::Memory(most(found, memory.map(|bytes| bytes.0)))
                }
                (Role::Disk, LeverValue::Throttle(found)) => {
                    let DiskLimit { read, write, read_operations, write_operations } = limits.disk;
                    let operations = |rate: Option<PerSec>| rate.map(|rate| whole(rate.per_sec()).max(1));
                    LeverValue::Throttle(Throttle {
                        read_bytes: most(found.read_bytes, bytes(read)),
                        write_bytes: most(found.write_bytes, bytes(write)),
                        read_operations: most(found.read_operations, operations(read_operations)),
                        write_operations: most(found.write_operations, operations(write_operations)),
                    })
                }
                (Role::Receive, LeverValue::Rate(found)) => {
                    LeverValue::Rate(most(found, bytes(limits.network.receive)))
                }
                (Role::Transmit, LeverValue::Rate(found)) => {
                    LeverValue::Rate(most(found, bytes(limits.network.transmit)))
                }
                (_, other) => other,
            };
            Change { lever: seen.lever.clone(), observed: seen.current, wanted: seen.lever.nearest(wanted) }
        })
        .collect();
    let throttles_writes = |seen: &Seen| {
        let version_1 = seen.lever.as_cgroup().is_some_and(|lever| lever.version == CgroupVersion::V1);
        seen.role == Role::Disk && version_1 && (limits.disk.write.is_some() || limits.disk.write_operations.is_some())
    };
    if seen.iter().any(throttles_writes) {
        shortfalls.push("version 1 cgroups do not see buffered writes: only direct ones are held".to_owned());
    }
    if raised {
        shortfalls.push("the ceiling on CPU was raised to 1 ms per period, the least the kernel takes".to_owned());
    }
    if bound_by_found {
        shortfalls.push("a ceiling stays at the one found on the workload, which is lower".to_owned());
    }
    (changes, shortfalls)
}

/// What is in force, from what a workload's levers read: the sum of ceilings that share one, the lowest of those
/// that each hold by themselves.
#[must_use]
pub fn in_force(emulator_inside: bool, levers: &[(Role, AnyLever, LeverValue)]) -> Limits {
    let mut limits = Limits::NONE;
    let quotas: Vec<_> = levers.iter().filter(|(role, ..)| *role == Role::Quota).map(|k| k.2.ceiling()).collect();
    let total = quotas.iter().try_fold(CoreShare::ZERO, |sum, part| part.map(|part| sum + part));
    if let Some(total) = total.filter(|_| !quotas.is_empty()) {
        limits.quota = Quota::AtMost(if emulator_inside { without_emulator_headroom(total) } else { total });
    }
    let least = |found: &mut Option<f64>, limit: Option<u64>| {
        if let Some(limit) = limit {
            *found = Some(found.map_or(limit as f64, |found| found.min(limit as f64)));
        }
    };
    let mut disk = [None; 4];
    let mut network = [None; 2];
    for (role, lever, value) in levers {
        match (role, value) {
            (Role::Weight, value) => limits.weight = lever.as_weight(*value),
            (Role::DiskWeight, value) => limits.disk_weight = lever.as_weight(*value),
            (Role::Memory, LeverValue::Memory(limit)) => limits.memory = limit.map(Bytes),
            (Role::Disk, LeverValue::Throttle(throttle)) => {
                least(&mut disk[0], throttle.read_bytes);
                least(&mut disk[1], throttle.write_bytes);
                least(&mut disk[2], throttle.read_operations);
                least(&mut disk[3], throttle.write_operations);
            }
            (Role::Receive, LeverValue::Rate(limit)) => least(&mut network[0], *limit),
            (Role::Transmit, LeverValue::Rate(limit)) => least(&mut network[1], *limit),
            _ => {}
        }
    }
    limits.network =
        NetworkLimit { receive: network[0].map(BytesPerSec::clamped), transmit: network[1].map(BytesPerSec::clamped) };
    let [read, write, read_operations, write_operations] = disk;
    limits.disk = DiskLimit {
        read: read.map(BytesPerSec::clamped),
        write: write.map(BytesPerSec::clamped),
        read_operations: read_operations.map(PerSec::clamped),
        write_operations: write_operations.map(PerSec::clamped),
    };
    limits
}

/// What a guest's ceiling was asked to be, from what was set with [`with_emulator_headroom`].
fn without_emulator_headroom(set: CoreShare) -> CoreShare {
    // The headroom is a tenth of a core up to a ceiling of two cores, and 5 % from there on.
    if set.percent() <= 210.0 { set.saturating_sub(CoreShare::clamped(10.0)) } else { set * (1.0 / 1.05) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gleaner_types::command::Weight;

    use super::*;

    const PERIOD: u64 = 100_000;

    fn lever(kind: CgroupFile) -> AnyLever {
        AnyLever::new(Path::new("/cg/w"), CgroupVersion::V1, kind)
    }

    fn quota(quota_us: Option<u64>) -> LeverValue {
        LeverValue::Quota { quota_us, period_us: PERIOD }
    }

    fn share(percent: f64) -> CoreShare {
        CoreShare::new(percent).unwrap()
    }

    fn change(kind: CgroupFile, observed: LeverValue, wanted: LeverValue) -> Change {
        Change { lever: lever(kind), observed, wanted }
    }

    #[test]
    fn orders_steps_and_leaves_out_what_is_already_so() {
        let changes = vec![
            change(CgroupFile::Freezer, LeverValue::Frozen(true), LeverValue::Frozen(false)),
            change(CgroupFile::Quota, quota(None), quota(Some(20_000))),
            change(CgroupFile::Weight, LeverValue::Weight(1024), LeverValue::Weight(10)),
        ];
        let order: Vec<_> = plan(changes.clone()).iter().map(|step| step.to).collect();
        assert_eq!(order, [LeverValue::Weight(10), quota(Some(20_000)), LeverValue::Frozen(false)]);
        let same = changes.into_iter().map(|c| Change { wanted: c.observed, ..c }).collect();
        assert!(plan(same).is_empty());
    }

    #[test]
    fn a_weight_is_written_again_after_the_idle_class_is_left() {
        let steps = plan(vec![
            change(CgroupFile::Weight, LeverValue::Weight(500), LeverValue::Weight(500)),
            change(CgroupFile::Idle, LeverValue::Idle(true), LeverValue::Idle(false)),
        ]);
        let to: Vec<_> = steps.iter().map(|step| step.to).collect();
        assert_eq!(to, [LeverValue::Idle(false), LeverValue::Weight(500)]);
    }

    fn seen(role: Role, kind: CgroupFile, original: LeverValue) -> Seen {
        Seen { role, lever: lever(kind), original, current: original }
    }

    fn ceiling(percent: f64) -> Limits {
        Limits { quota: Quota::AtMost(share(percent)), ..Limits::NONE }
    }

    #[test]
    fn a_guest_gets_headroom_for_its_emulator_and_other_cgroups_do_not() {
        // 100 % + max(10, 5) = 110 %; 400 % + max(10, 20) = 420 %.
        assert_eq!(with_emulator_headroom(share(400.0)), share(420.0));
        for percent in [20.0, 200.0, 400.0] {
            let back = without_emulator_headroom(with_emulator_headroom(share(percent)));
            assert!((back - share(percent)).abs() < 1e-9, "{percent}: {back}");
        }
        let limit = |emulator_inside| {
            let levers = [seen(Role::Quota, CgroupFile::Quota, quota(None))];
            limit_workload(emulator_inside, &levers, &ceiling(100.0), None).0[0].wanted
        };
        assert_eq!(limit(true), quota(Some(110_000)));
        assert_eq!(limit(false), quota(Some(100_000)));
    }

    #[test]
    fn several_knobs_share_a_ceiling() {
        let levers = [0, 1].map(|_| seen(Role::Quota, CgroupFile::Quota, quota(None)));
        let (changes, shortfalls) = limit_workload(false, &levers, &ceiling(150.0), None);
        assert!(changes.iter().all(|change| change.wanted == quota(Some(75_000))), "{changes:?}");
        assert!(shortfalls.is_empty());
        let set: Vec<_> = changes.iter().map(|change| (Role::Quota, change.lever.clone(), change.wanted)).collect();
        assert_eq!(in_force(false, &set), ceiling(150.0));
        let one_open = [set[0].clone(), (Role::Quota, lever(CgroupFile::Quota), quota(None))];
        assert_eq!(in_force(false, &one_open), Limits::NONE, "one lever without a ceiling is no ceiling");
    }

    #[test]
    fn never_raises_a_ceiling_it_found() {
        let device = CgroupFile::Disk("8:0".parse().unwrap());
        let found = Throttle { write_bytes: Some(100), ..Throttle::default() };
        let levers = [
            seen(Role::Quota, CgroupFile::Quota, quota(Some(50_000))),
            seen(Role::Disk, device, LeverValue::Throttle(found)),
            seen(Role::Memory, CgroupFile::Memory, LeverValue::Memory(Some(1 << 20))),
        ];
        let writes = |rate| DiskLimit { write: Some(BytesPerSec::clamped(rate)), ..DiskLimit::default() };
        let limits = Limits { disk: writes(200.0), ..ceiling(80.0) };
        let (changes, shortfalls) = limit_workload(false, &levers, &limits, Some(Bytes(1 << 30)));
        assert!(changes.iter().all(|change| change.wanted == change.observed), "{changes:?}");
        assert_eq!(shortfalls.len(), 2, "{shortfalls:?}");
        assert!(shortfalls[0].contains("buffered writes") && shortfalls[1].contains("which is lower"));
        let limits = Limits { disk: writes(30.0), ..ceiling(20.0) };
        let (changes, shortfalls) = limit_workload(false, &levers, &limits, Some(Bytes(4097)));
        assert_eq!(changes[0].wanted, quota(Some(20_000)));
        assert_eq!(changes[1].wanted, LeverValue::Throttle(Throttle { write_bytes: Some(30), ..found }));
        assert_eq!(changes[2].wanted, LeverValue::Memory(Some(4096)), "whole pages");
        assert_eq!(shortfalls.len(), 1, "{shortfalls:?}");
        let (changes, _) = limit_workload(false, &levers, &Limits::NONE, None);
        assert!(changes.iter().all(|change| change.wanted == change.observed), "nothing asked, nothing changed");
    }

    #[test]
    fn a_weight_not_asked_for_goes_back_to_what_was_found() {
        let levers = [Seen {
            current: LeverValue::Weight(10),
            ..seen(Role::Weight, CgroupFile::Weight, LeverValue::Weight(1024))
        }];
        let wanted = |weight| limit_workload(false, &levers, &Limits { weight, ..Limits::NONE }, None).0[0].wanted;
        assert_eq!(wanted(None), LeverValue::Weight(1024));
        assert_eq!(wanted(Some(Weight::new(200).unwrap())), LeverValue::Weight(2048));
    }

    #[test]
    fn says_what_there_is_no_lever_for() {
        let levers =
            WorkloadLevers { levers: vec![(Role::Quota, lever(CgroupFile::Quota))], ..WorkloadLevers::default() };
        assert!(levers.missing(&ceiling(10.0)).is_empty());
        let limits = Limits { memory: Some(Bytes(1)), disk_weight: Some(Weight::LEAST), ..ceiling(10.0) };
        assert_eq!(levers.missing(&limits), [Role::Memory, Role::DiskWeight]);
    }
}
