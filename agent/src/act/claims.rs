//! Levers that two workloads claim. A limit on such a lever would affect both, so neither workload has it. In: the
//! levers of all workloads. Out: the same without the contested levers, and who contests what. The actor calls it
//! whenever workloads come or go.
//!
//! Levers of a cgroup stay in the list: `isolation` refuses limits on a shared cgroup, and names the other workload.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::WorkloadId;

use crate::levers::{AnyLever, WorkloadLevers};

/// A lever or a cgroup that two workloads claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Contested {
    /// What it is.
    pub(super) knob: String,
    /// Who claims it, by name.
    pub(super) claimants: [WorkloadId; 2],
}

/// Takes from all workloads the levers that more than one of them has.
pub(super) fn withhold_contested(workloads: &mut BTreeMap<WorkloadId, WorkloadLevers>) -> BTreeSet<Contested> {
    let mut contested = BTreeSet::new();
    let mut claim = |claims: &mut BTreeMap<String, WorkloadId>, resource: String, knob: String, id: &WorkloadId| {
        let first = claims.insert(resource.clone(), id.clone())?;
        contested.insert(Contested { knob, claimants: [first, id.clone()] });
        Some(resource)
    };
    let (mut of_cgroups, mut of_levers, mut taken) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for (id, levers) in &*workloads {
        for dir in &levers.cgroups {
            let knob = dir.display().to_string();
            claim(&mut of_cgroups, knob.clone(), knob, id);
        }
        for lever in levers.levers.iter().map(|(_, lever)| lever).filter(|lever| lever.as_cgroup().is_none()) {
            taken.extend(claim(&mut of_levers, identity(lever), lever.to_string(), id));
        }
    }
    if !taken.is_empty() {
        for levers in workloads.values_mut() {
            levers.levers.retain(|(_, lever)| !taken.contains(&identity(lever)));
        }
    }
    contested
}

/// All that tells a lever from others, not only what people are shown.
fn identity(lever: &AnyLever) -> String {
    format!("{lever:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::{LinkLever, Role};
    use crate::netlink::Direction;

    #[test]
    fn what_two_claim_is_neithers_and_both_are_named() {
        let link = |interface: &str, direction| {
            (Role::Receive, AnyLever::Link(LinkLever { interface: interface.to_owned(), direction, domain: None }))
        };
        let levers = |list: &[(Role, AnyLever)], cgroup: &str| WorkloadLevers {
            levers: list.to_vec(),
            cgroups: vec![cgroup.into()],
            ..WorkloadLevers::default()
        };
        let id = |name| WorkloadId::new(name).unwrap();
        let (shared, alone) = (link("tap0", Direction::Receive), link("tap0", Direction::Transmit));
        let mut workloads = BTreeMap::from([
            (id("a"), levers(&[shared.clone(), alone.clone()], "/cg/a")),
            (id("b"), levers(std::slice::from_ref(&shared), "/cg/b")),
            (id("c"), levers(&[link("tap1", Direction::Receive)], "/cg/b")),
        ]);
        let contested: Vec<Contested> = withhold_contested(&mut workloads).into_iter().collect();
        assert_eq!(workloads[&id("a")].levers, [alone]);
        assert!(workloads[&id("b")].levers.is_empty());
        assert_eq!(workloads[&id("c")].levers.len(), 1);
        let expected = [("/cg/b".to_owned(), ["b", "c"]), (shared.1.to_string(), ["a", "b"])];
        let expected = expected.map(|(knob, claimants)| Contested { knob, claimants: claimants.map(id) });
        assert_eq!(contested, expected);
    }
}
