//! Leases that have one node at the same time. In: which lease has which nodes. Out: the first two that cannot both be right. Called by
//! [`super`] for a file, and by [`super::blazar`]. Not for Slurm, whose reservations may overlap by their flags (`MAINT`, `OVERLAP`).

use gleaner_planner::reservations::partition::NodeLease;
use gleaner_types::id::ReservationId;

/// Longest name of a node that a message has, in characters.
const LONGEST: usize = 64;
const RULE: &str = "leases of one host must not overlap";

/// A node of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeasedNode<'a> {
    pub(super) node: &'a str,
    pub(super) lease: &'a NodeLease,
    /// The lease has a part of it. Others may have parts too.
    pub(super) is_part: bool,
}

/// Two leases have one node at the same time.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{node} has lease {first} until {until_s} and lease {second} from {from_s} on; {RULE}")]
pub(crate) struct Overlap {
    node: String,
    /// The one that begins first.
    first: ReservationId,
    until_s: f64,
    second: ReservationId,
    from_s: f64,
}

/// Checks leases that are not over at `now_s`. One may begin when another ends.
///
/// # Errors
/// The first overlap, by the names of nodes.
pub(super) fn check<'a>(leased: impl Iterator<Item = LeasedNode<'a>>, now_s: f64) -> Result<(), Overlap> {
    let mut leased: Vec<LeasedNode<'_>> = leased.filter(|own| own.lease.end_s > now_s).collect();
    leased.sort_by(|a, b| a.node.cmp(b.node).then(a.lease.start_s.total_cmp(&b.lease.start_s)));
    for of_node in leased.chunk_by(|a, b| a.node == b.node) {
        // The last to end before this place in the list: of the whole node, and of a part.
        let mut last: [Option<&NodeLease>; 2] = [None; 2];
        for LeasedNode { node, lease, is_part } in of_node {
            let others = if *is_part { &last[..1] } else { &last[..] };
            let mut others = others.iter().flatten();
            if let Some(other) = others.find(|other| !std::ptr::eq(**other, *lease) && lease.start_s < other.end_s) {
                return Err(Overlap {
                    node: node.chars().take(LONGEST).collect(),
                    first: other.lease.clone(),
                    until_s: other.end_s,
                    second: lease.lease.clone(),
                    from_s: lease.start_s,
                });
            }
            let last = &mut last[usize::from(*is_part)];
            if last.is_none_or(|other| other.end_s < lease.end_s) {
                *last = Some(*lease);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of leases of `n1` from and to a time, which have a part of it or all.
    fn said(leases: &[(f64, f64, bool)]) -> Option<String> {
        let of = |(place, (start_s, end_s, _)): (usize, &(f64, f64, bool))| NodeLease {
            lease: ReservationId::new(format!("l{place}")).unwrap(),
            nodes: ["n1".to_owned()].into(),
            start_s: *start_s,
            end_s: *end_s,
        };
        let own: Vec<NodeLease> = leases.iter().enumerate().map(of).collect();
        let parts = leases.iter().map(|(_, _, is_part)| *is_part);
        let leased = own.iter().zip(parts).map(|(lease, is_part)| LeasedNode { node: "n1", lease, is_part });
        check(leased, 100.0).err().map(|overlap| overlap.to_string())
    }

    #[test]
    fn leases_of_one_node_follow_each_other_or_have_parts() {
        let first = "n1 has lease l1 until 300 and lease l0 from 200 on; leases of one host must not overlap";
        assert_eq!(said(&[(200.0, 400.0, false), (150.0, 300.0, false)]).as_deref(), Some(first));
        assert_eq!(said(&[(300.0, 400.0, false), (150.0, 300.0, false)]), None, "one begins when the other ends");
        assert_eq!(said(&[(10.0, 100.0, false), (50.0, 90.0, false), (20.0, 300.0, false)]), None, "over");
        let parts = (200.0, 400.0, true);
        assert_eq!(said(&[parts, (150.0, 300.0, true), parts]), None);
        for whole in [(150.0, 201.0, false), (250.0, 260.0, false)] {
            assert!(said(&[parts, whole, (150.0, 160.0, true)]).is_some(), "a part and all of it");
        }
    }
}
