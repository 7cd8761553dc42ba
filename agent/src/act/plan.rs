//! From what knobs are and what they should be to the ordered steps that make them so. Pure: no file is
//! touched here.

use std::path::{Path, PathBuf};

use gleaner_common::command::{Quota, Weight};
use gleaner_common::units::CoreShare;

use super::knob::{CgroupVersion, Knob, KnobKind, KnobValue};

/// One knob as it is and as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The knob.
    pub knob: Knob,
    /// What it is.
    pub observed: KnobValue,
    /// What it should be.
    pub wanted: KnobValue,
}

/// One write, with what undoes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The knob.
    pub knob: Knob,
    /// What it is.
    pub from: KnobValue,
    /// What it becomes.
    pub to: KnobValue,
}

/// The steps that make every change, in the order that never lets a target run with more than it had or
/// will have: freeze, then weight, then ceiling, then thaw. Knobs that are as wanted give no step.
///
/// The kernel refuses a weight while the idle class is on, so that is left before and entered after it; and
/// leaving it resets the weight, so a weight wanted beside it is written in any case.
#[must_use]
pub fn plan(changes: Vec<Change>) -> Vec<Step> {
    let leaves_idle = |cgroup: &Path| {
        changes.iter().any(|change| {
            change.knob.cgroup == cgroup
                && change.observed == KnobValue::Idle(true)
                && change.wanted == KnobValue::Idle(false)
        })
    };
    let mut steps: Vec<Step> = changes
        .iter()
        .filter(|change| {
            let weight_is_reset = change.knob.kind == KnobKind::Weight && leaves_idle(&change.knob.cgroup);
            change.observed != change.wanted || weight_is_reset
        })
        .map(|change| Step { knob: change.knob.clone(), from: change.observed, to: change.wanted })
        .collect();
    steps.sort_by_key(|step| match step.to {
        KnobValue::Frozen(true) => 0,
        KnobValue::Idle(false) => 1,
        KnobValue::Weight(_) => 2,
        KnobValue::Idle(true) => 3,
        KnobValue::Quota { .. } => 4,
        KnobValue::Frozen(false) => 5,
    });
    steps
}

/// The cgroups of a foreground workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadGroups {
    /// The workload's own cgroup on the hierarchy of the `cpu` controller; absolute path.
    pub cgroup: PathBuf,
    /// It holds a QEMU process.
    pub qemu: bool,
    /// With libvirt's per-thread groups: the cgroup of each vCPU. The emulator's own group beside them is
    /// never limited, so it need not be named.
    pub vcpus: Vec<PathBuf>,
}

/// A knob with what it was found as before Gleaner and what it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The knob.
    pub knob: Knob,
    /// What was found before the first change.
    pub original: KnobValue,
    /// What it is now.
    pub current: KnobValue,
}

/// CPU a QEMU process gets on top of a ceiling asked for its guest, for the emulator and I/O threads in the
/// same cgroup: 5 % of the ceiling, at least 10 % of a core (chosen). Without it a guest at its ceiling
/// would starve its own disk and network.
#[must_use]
pub fn with_emulator_headroom(ceiling: CoreShare) -> CoreShare {
    ceiling + (ceiling * 0.05).max(CoreShare::clamped(10.0))
}

/// The knobs a limit on a workload needs: its weight, and its ceiling or those of its vCPUs.
#[must_use]
pub fn workload_knobs(groups: &WorkloadGroups, version: CgroupVersion) -> Vec<Knob> {
    let mut knobs = vec![Knob::new(&groups.cgroup, version, KnobKind::Weight)];
    if groups.vcpus.is_empty() {
        knobs.push(Knob::new(&groups.cgroup, version, KnobKind::Quota));
    }
    knobs.extend(groups.vcpus.iter().map(|vcpu| Knob::new(vcpu, version, KnobKind::Quota)));
    knobs
}

/// What the knobs of a workload should be under a limit, and what of it cannot be had.
///
/// A ceiling is split evenly over vCPU groups where there are any. A ceiling is never set above the one
/// found, because that one is the operator's. A weight not asked for goes back to what was found.
#[must_use]
pub fn limit_workload(
    groups: &WorkloadGroups,
    seen: &[Seen],
    quota: Quota,
    weight: Option<Weight>,
) -> (Vec<Change>, Vec<String>) {
    let mut shortfalls = Vec::new();
    let mut raised = false;
    let mut bound_by_found = false;
    let per_group = |ceiling: CoreShare| match groups.vcpus.len() {
        0 if groups.qemu => with_emulator_headroom(ceiling),
        0 => ceiling,
        vcpus => ceiling * (1.0 / vcpus as f64),
    };
    let changes = seen
        .iter()
        .map(|seen| {
            let wanted = match (seen.original, quota) {
                (KnobValue::Quota { period_us, .. }, Quota::AtMost(ceiling)) => {
                    let (wanted, was_raised) = KnobValue::at_most(per_group(ceiling), period_us);
                    raised |= was_raised;
                    let above = seen.original.ceiling().is_some_and(|found| wanted.ceiling() > Some(found));
                    bound_by_found |= above;
                    if above { seen.original } else { wanted }
                }
                (KnobValue::Quota { quota_us, .. }, Quota::Unlimited) => {
                    bound_by_found |= quota_us.is_some();
                    seen.original
                }
                (KnobValue::Weight(_), _) => {
                    weight.map_or(seen.original, |weight| KnobValue::weight(weight, seen.knob.version))
                }
                (other, _) => other,
            };
            Change { knob: seen.knob.clone(), observed: seen.current, wanted }
        })
        .collect();
    if raised {
        shortfalls.push("the ceiling was raised to 1 ms per period, the least the kernel takes".to_owned());
    }
    if bound_by_found {
        shortfalls.push("the ceiling stays at the one found on the workload, which is lower".to_owned());
    }
    (changes, shortfalls)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100_000;

    fn knob(kind: KnobKind) -> Knob {
        Knob::new(Path::new("/cg/w"), CgroupVersion::V1, kind)
    }

    fn quota(quota_us: Option<u64>) -> KnobValue {
        KnobValue::Quota { quota_us, period_us: PERIOD }
    }

    fn share(percent: f64) -> CoreShare {
        CoreShare::new(percent).unwrap()
    }

    fn change(kind: KnobKind, observed: KnobValue, wanted: KnobValue) -> Change {
        Change { knob: knob(kind), observed, wanted }
    }

    #[test]
    fn orders_steps_and_leaves_out_what_is_already_so() {
        let changes = vec![
            change(KnobKind::Freezer, KnobValue::Frozen(true), KnobValue::Frozen(false)),
            change(KnobKind::Quota, quota(None), quota(Some(20_000))),
            change(KnobKind::Weight, KnobValue::Weight(1024), KnobValue::Weight(10)),
        ];
        let kinds: Vec<_> = plan(changes.clone()).iter().map(|step| step.knob.kind).collect();
        assert_eq!(kinds, [KnobKind::Weight, KnobKind::Quota, KnobKind::Freezer]);
        let same = changes.into_iter().map(|c| Change { wanted: c.observed, ..c }).collect();
        assert!(plan(same).is_empty());
    }

    #[test]
    fn a_weight_is_written_again_after_the_idle_class_is_left() {
        let steps = plan(vec![
            change(KnobKind::Weight, KnobValue::Weight(500), KnobValue::Weight(500)),
            change(KnobKind::Idle, KnobValue::Idle(true), KnobValue::Idle(false)),
        ]);
        let to: Vec<_> = steps.iter().map(|step| step.to).collect();
        assert_eq!(to, [KnobValue::Idle(false), KnobValue::Weight(500)]);
    }

    fn seen(kind: KnobKind, original: KnobValue) -> Seen {
        Seen { knob: knob(kind), original, current: original }
    }

    fn plain(qemu: bool) -> WorkloadGroups {
        WorkloadGroups { cgroup: "/cg/w".into(), qemu, vcpus: vec![] }
    }

    #[test]
    fn a_guest_gets_headroom_for_its_emulator_and_other_cgroups_do_not() {
        // 100 % + max(10, 5) = 110 %; 400 % + max(10, 20) = 420 %.
        assert_eq!(with_emulator_headroom(share(400.0)), share(420.0));
        let limit = |qemu| {
            let knobs = [seen(KnobKind::Quota, quota(None))];
            limit_workload(&plain(qemu), &knobs, Quota::AtMost(share(100.0)), None).0[0].wanted
        };
        assert_eq!(limit(true), quota(Some(110_000)));
        assert_eq!(limit(false), quota(Some(100_000)));
    }

    #[test]
    fn vcpu_groups_share_the_ceiling_and_the_emulator_has_none() {
        let groups = WorkloadGroups {
            cgroup: "/cg/w".into(),
            qemu: true,
            vcpus: vec!["/cg/w/vcpu0".into(), "/cg/w/vcpu1".into()],
        };
        let knobs = workload_knobs(&groups, CgroupVersion::V1);
        let paths: Vec<_> = knobs.iter().map(|knob| knob.path().display().to_string()).collect();
        assert_eq!(paths, ["/cg/w/cpu.shares", "/cg/w/vcpu0/cpu.cfs_quota_us", "/cg/w/vcpu1/cpu.cfs_quota_us"]);
        let seen: Vec<_> = knobs[1..]
            .iter()
            .map(|knob| Seen { knob: knob.clone(), original: quota(None), current: quota(None) })
            .collect();
        let (changes, shortfalls) = limit_workload(&groups, &seen, Quota::AtMost(share(150.0)), None);
        assert!(changes.iter().all(|change| change.wanted == quota(Some(75_000))), "{changes:?}");
        assert!(shortfalls.is_empty());
    }

    #[test]
    fn never_raises_a_ceiling_it_found() {
        let knobs = [seen(KnobKind::Quota, quota(Some(50_000)))];
        for wanted in [Quota::Unlimited, Quota::AtMost(share(80.0))] {
            let (changes, shortfalls) = limit_workload(&plain(false), &knobs, wanted, None);
            assert_eq!(changes[0].wanted, quota(Some(50_000)));
            assert_eq!(shortfalls.len(), 1, "{wanted:?}");
        }
        let (changes, shortfalls) = limit_workload(&plain(false), &knobs, Quota::AtMost(share(20.0)), None);
        assert_eq!((changes[0].wanted, shortfalls.len()), (quota(Some(20_000)), 0));
    }

    #[test]
    fn a_weight_not_asked_for_goes_back_to_what_was_found() {
        let knobs =
            [Seen { knob: knob(KnobKind::Weight), original: KnobValue::Weight(1024), current: KnobValue::Weight(10) }];
        let wanted = |weight| limit_workload(&plain(false), &knobs, Quota::Unlimited, weight).0[0].wanted;
        assert_eq!(wanted(None), KnobValue::Weight(1024));
        assert_eq!(wanted(Some(Weight::new(200).unwrap())), KnobValue::Weight(2048));
    }
}
