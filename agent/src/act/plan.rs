//! From levers and the values they should have to ordered steps. Pure: it touches no file. In: changes. Out: steps for
//! [`super::execute`]. Called by the actor and by restoring.

use std::collections::BTreeSet;

use gleaner_types::command::Limits;
use gleaner_types::units::Bytes;

use crate::levers::in_force::InForce;
use crate::levers::plan::Wanted;
use crate::levers::{AnyLever, CgroupFile, LeverValue, Role};

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
        .map(|change| Step { lever: change.lever.clone(), from: change.observed.clone(), to: change.wanted.clone() })
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
        | LeverValue::Share(_)
        | LeverValue::Count(_)
        | LeverValue::KilledWhole(_)
        | LeverValue::OomScore(_)
        | LeverValue::Text(_) => 4,
        LeverValue::Frozen(false) => 5,
    });
    steps
}

/// A lever with what it was found as before Gleaner and what it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// What it limits.
    pub role: Role,
    /// The lever.
    pub lever: AnyLever,
    /// What was found before the first change.
    pub original: LeverValue,
    /// What it is now.
    pub current: LeverValue,
}

/// What the levers of a workload should be under limits, and what of it cannot be had.
///
/// A ceiling on CPU is split evenly over several levers. No ceiling is ever set above the one found, because that one
/// is the operator's. What is not asked for goes back to what was found. `memory` is the memory limit to set
/// now, which may still be on its way to the one asked for.
#[must_use]
pub fn limit_workload(
    emulator_inside: bool,
    observed: &[Observed],
    limits: &Limits,
    memory: Option<Bytes>,
) -> (Vec<Change>, Vec<String>) {
    let sharing = observed.iter().filter(|observed| observed.role == Role::Quota).count().max(1);
    let wanted = Wanted { limits, memory, sharing, emulator_inside };
    let mut shortfalls = BTreeSet::new();
    let changes = observed.iter().map(|observed| {
        let planned = observed.lever.plan(&wanted, &observed.original);
        shortfalls.extend(planned.shortfalls);
        Change { lever: observed.lever.clone(), observed: observed.current.clone(), wanted: planned.value }
    });
    let changes = changes.collect();
    (changes, shortfalls.into_iter().map(|shortfall| shortfall.text().to_owned()).collect())
}

/// What is in force, from what a workload's levers read.
#[must_use]
pub fn in_force(emulator_inside: bool, levers: &[(Role, AnyLever, LeverValue)]) -> Limits {
    let mut in_force = InForce::default();
    for (_, lever, value) in levers {
        lever.add_to(&mut in_force, value);
    }
    in_force.limits(emulator_inside)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gleaner_types::command::Weight;

    use gleaner_types::command::{DiskLimit, Quota};
    use gleaner_types::units::{BytesPerSec, CoreShare};

    use super::*;
    use crate::hierarchies::CgroupVersion;
    use crate::levers::headroom::{with_emulator_headroom, without_emulator_headroom};
    use crate::levers::{Throttle, WorkloadLevers};

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
        let order: Vec<_> = plan(changes.clone()).iter().map(|step| step.to.clone()).collect();
        assert_eq!(order, [LeverValue::Weight(10), quota(Some(20_000)), LeverValue::Frozen(false)]);
        let same = changes.into_iter().map(|c| Change { wanted: c.observed.clone(), ..c }).collect();
        assert!(plan(same).is_empty());
    }

    #[test]
    fn a_weight_is_written_again_after_the_idle_class_is_left() {
        let steps = plan(vec![
            change(CgroupFile::Weight, LeverValue::Weight(500), LeverValue::Weight(500)),
            change(CgroupFile::Idle, LeverValue::Idle(true), LeverValue::Idle(false)),
        ]);
        let to: Vec<_> = steps.iter().map(|step| step.to.clone()).collect();
        assert_eq!(to, [LeverValue::Idle(false), LeverValue::Weight(500)]);
    }

    fn observed(role: Role, kind: CgroupFile, original: LeverValue) -> Observed {
        Observed { role, lever: lever(kind), current: original.clone(), original }
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
            let levers = [observed(Role::Quota, CgroupFile::Quota, quota(None))];
            limit_workload(emulator_inside, &levers, &ceiling(100.0), None).0[0].wanted.clone()
        };
        assert_eq!(limit(true), quota(Some(110_000)));
        assert_eq!(limit(false), quota(Some(100_000)));
    }

    #[test]
    fn several_knobs_share_a_ceiling() {
        let levers = [0, 1].map(|_| observed(Role::Quota, CgroupFile::Quota, quota(None)));
        let (changes, shortfalls) = limit_workload(false, &levers, &ceiling(150.0), None);
        assert!(changes.iter().all(|change| change.wanted == quota(Some(75_000))), "{changes:?}");
        assert!(shortfalls.is_empty());
        let set: Vec<_> =
            changes.iter().map(|change| (Role::Quota, change.lever.clone(), change.wanted.clone())).collect();
        assert_eq!(in_force(false, &set), ceiling(150.0));
        let one_open = [set[0].clone(), (Role::Quota, lever(CgroupFile::Quota), quota(None))];
        assert_eq!(in_force(false, &one_open), Limits::NONE, "one lever without a ceiling is no ceiling");
    }

    #[test]
    fn never_raises_a_ceiling_it_found() {
        let device = CgroupFile::Disk("8:0".parse().unwrap());
        let found = Throttle { write_bytes: Some(100), ..Throttle::default() };
        let levers = [
            observed(Role::Quota, CgroupFile::Quota, quota(Some(50_000))),
            observed(Role::Disk, device, LeverValue::Throttle(found)),
            observed(Role::Memory, CgroupFile::Memory, LeverValue::Memory(Some(1 << 20))),
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
        let levers = [Observed {
            current: LeverValue::Weight(10),
            ..observed(Role::Weight, CgroupFile::Weight, LeverValue::Weight(1024))
        }];
        let wanted =
            |weight| limit_workload(false, &levers, &Limits { weight, ..Limits::NONE }, None).0[0].wanted.clone();
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

    /// A queue of somebody else's at an interface is no reason to refuse a ceiling on the CPU.
    #[test]
    fn a_lever_that_cannot_be_read_is_left_out_unless_it_is_asked_for_or_set() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cpu.weight"), "100").unwrap();
        let of = |kind| AnyLever::new(dir.path(), CgroupVersion::V2, kind);
        let all = vec![(Role::Weight, of(CgroupFile::Weight)), (Role::Quota, of(CgroupFile::Quota))];
        let roles = |limits: Limits, is_set: bool| {
            let mut levers = WorkloadLevers { levers: all.clone(), ..WorkloadLevers::default() };
            levers.leave_out_unreadable(&limits, |_| is_set);
            levers.levers.into_iter().map(|(role, _)| role).collect::<Vec<_>>()
        };
        assert_eq!(roles(Limits::NONE, false), [Role::Weight]);
        assert_eq!(roles(Limits::NONE, true), [Role::Weight, Role::Quota]);
        let asked = Limits { quota: Quota::AtMost(CoreShare::clamped(50.0)), ..Limits::NONE };
        assert_eq!(roles(asked, false), [Role::Weight, Role::Quota]);
    }
}
