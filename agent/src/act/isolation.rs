//! Whether limits on a workload hit it alone. In: its cgroups, those of others, the volunteer's. Out: whom else they
//! would hit. The actor calls it before a limit is set, and when workloads come or go.

use std::path::PathBuf;

use super::cgroup;
use crate::levers::WorkloadLevers;

/// Limits on a workload's cgroup would hit others too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAlone {
    /// Another workload is in it or below it.
    #[error("`{}` also holds the workload in `{}`", dir.display(), other.display())]
    Workload {
        /// The workload's cgroup.
        dir: PathBuf,
        /// The other workload's cgroup.
        other: PathBuf,
    },
    /// The volunteer is in it or below it.
    #[error("`{}` also holds the volunteer", .0.display())]
    Volunteer(PathBuf),
    /// This agent is in it.
    #[error("`{}` also holds this agent", .0.display())]
    Agent(PathBuf),
}

/// Checks that limits on a workload's cgroups hit the workload and nobody else.
///
/// # Errors
/// [`NotAlone`].
pub(super) fn check_exclusive<'a>(
    cgroups: &[PathBuf],
    others: impl IntoIterator<Item = &'a WorkloadLevers>,
    volunteer: &[PathBuf],
) -> Result<(), NotAlone> {
    let others: Vec<_> = others.into_iter().flat_map(|other| &other.cgroups).collect();
    for dir in cgroups {
        if let Some(other) = others.iter().find(|other| other.starts_with(dir)) {
            return Err(NotAlone::Workload { dir: dir.clone(), other: (*other).clone() });
        }
        if volunteer.iter().any(|leaf| leaf.starts_with(dir)) {
            return Err(NotAlone::Volunteer(dir.clone()));
        }
        let agent = rustix::process::getpid().as_raw_nonzero().get();
        if cgroup::processes_of(std::slice::from_ref(dir)).is_ok_and(|pids| pids.contains(&agent)) {
            return Err(NotAlone::Agent(dir.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_workload_itself_may_be_hit() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for name in ["a/child", "b", "own"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        fs::write(path("own/cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        let other = |name| WorkloadLevers { cgroups: vec![path(name)], ..WorkloadLevers::default() };
        assert_eq!(check_exclusive(&[path("b")], &[other("a")], &[path("v")]), Ok(()));
        for (cgroups, others, volunteer) in [
            ("a", vec![other("a/child")], vec![]),
            ("a", vec![other("a")], vec![]),
            ("a", vec![], vec![path("a/volunteer")]),
            ("own", vec![], vec![]),
        ] {
            assert!(check_exclusive(&[path(cgroups)], &others, &volunteer).is_err(), "{cgroups}");
        }
    }
}
