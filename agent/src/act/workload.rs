//! Limits on foreground workloads: whether a workload's cgroups may be touched at all, and what is in force
//! on them.

use std::path::{Component, Path, PathBuf};

use gleaner_common::command::{Quota, Weight};
use gleaner_common::units::CoreShare;

use super::cgroup;
use super::knob::{CgroupVersion, KnobError, KnobKind};
use super::plan::{WorkloadGroups, workload_knobs};

/// Where the `cpu` controller is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuHierarchy {
    pub(crate) mount: PathBuf,
    pub(crate) version: CgroupVersion,
}

/// Checks that a limit on the cgroups hits the workload and nobody else.
///
/// # Errors
/// Who else it would hit, in a sentence.
pub(crate) fn check_own<'a>(
    groups: &WorkloadGroups,
    cpu: &CpuHierarchy,
    others: impl IntoIterator<Item = &'a WorkloadGroups>,
    volunteer: &[PathBuf],
) -> Result<(), String> {
    let dir = &groups.cgroup;
    let inside = |path: &Path| {
        path.starts_with(&cpu.mount) && path.components().all(|part| !matches!(part, Component::ParentDir))
    };
    if !inside(dir) || *dir == cpu.mount {
        return Err(format!("`{}` is not a cgroup below `{}`", dir.display(), cpu.mount.display()));
    }
    if let Some(stray) = groups.vcpus.iter().find(|vcpu| !inside(vcpu) || !vcpu.starts_with(dir)) {
        return Err(format!("`{}` is not below the workload's cgroup `{}`", stray.display(), dir.display()));
    }
    if let Some(other) = others.into_iter().find(|other| other.cgroup.starts_with(dir)) {
        return Err(format!("`{}` also holds the workload in `{}`", dir.display(), other.cgroup.display()));
    }
    if volunteer.iter().any(|leaf| leaf.starts_with(dir)) {
        return Err(format!("`{}` also holds the volunteer", dir.display()));
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let dirs = std::slice::from_ref(dir);
    if cgroup::processes_of(dirs).is_ok_and(|pids| pids.contains(&own)) {
        return Err(format!("`{}` also holds this agent", dir.display()));
    }
    Ok(())
}

/// Ceiling and weight in force on a workload, read from its knobs.
pub(crate) fn in_force(
    groups: &WorkloadGroups,
    version: CgroupVersion,
) -> Result<(Option<Quota>, Option<Weight>), KnobError> {
    let mut ceilings = Vec::new();
    let mut weight = None;
    for knob in workload_knobs(groups, version) {
        let value = knob.read()?;
        match knob.kind {
            KnobKind::Weight => weight = value.as_weight(version),
            _ => ceilings.push(value.ceiling()),
        }
    }
    let total = ceilings.into_iter().try_fold(CoreShare::ZERO, |sum, part| part.map(|part| sum + part));
    Ok((Some(total.map_or(Quota::Unlimited, Quota::AtMost)), weight))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn workload(cgroup: &Path) -> WorkloadGroups {
        WorkloadGroups { cgroup: cgroup.to_owned(), qemu: false, vcpus: vec![] }
    }

    #[test]
    fn only_the_workload_itself_may_be_hit() {
        let root = tempfile::tempdir().unwrap();
        let cpu = CpuHierarchy { mount: root.path().to_owned(), version: CgroupVersion::V2 };
        let path = |name: &str| root.path().join(name);
        for name in ["a/child", "b", "own"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        fs::write(path("own/cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        let check = |groups: &WorkloadGroups, others: &[WorkloadGroups], volunteer: &[PathBuf]| {
            check_own(groups, &cpu, others, volunteer)
        };
        assert_eq!(check(&workload(&path("b")), &[workload(&path("a"))], &[path("v")]), Ok(()));
        for (groups, others, volunteer) in [
            (workload(root.path()), vec![], vec![]),
            (workload(Path::new("/elsewhere")), vec![], vec![]),
            (workload(&path("b/../a")), vec![], vec![]),
            (workload(&path("a")), vec![workload(&path("a/child"))], vec![]),
            (workload(&path("a")), vec![workload(&path("a"))], vec![]),
            (workload(&path("a")), vec![], vec![path("a/volunteer")]),
            (workload(&path("own")), vec![], vec![]),
            (WorkloadGroups { vcpus: vec![path("b")], ..workload(&path("a")) }, vec![], vec![]),
        ] {
            assert!(check(&groups, &others, &volunteer).is_err(), "{groups:?}");
        }
    }

    #[test]
    fn what_is_in_force_is_the_sum_over_vcpus() {
        let root = tempfile::tempdir().unwrap();
        let vcpus = vec![root.path().join("vcpu0"), root.path().join("vcpu1")];
        fs::write(root.path().join("cpu.weight"), "200\n").unwrap();
        for vcpu in &vcpus {
            fs::create_dir(vcpu).unwrap();
            fs::write(vcpu.join("cpu.max"), "50000 100000\n").unwrap();
        }
        let groups = WorkloadGroups { cgroup: root.path().to_owned(), qemu: true, vcpus };
        let expected = (Some(Quota::AtMost(CoreShare::from_cores(1))), Weight::new(200).ok());
        assert_eq!(in_force(&groups, CgroupVersion::V2).unwrap(), expected);
        fs::write(root.path().join("vcpu1/cpu.max"), "max 100000\n").unwrap();
        assert_eq!(in_force(&groups, CgroupVersion::V2).unwrap().0, Some(Quota::Unlimited));
    }
}
