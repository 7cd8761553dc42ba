//! A partition's nodes, from `sinfo`. In: its lines. Out: nodes with their CPUs and states. Called by the session.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::ReservationId;

use super::tools::SlurmError;

/// The fields of a line, for `sinfo -N -o`: node, state, CPUs (allocated/idle/other/all), features that are active, reason. A
/// reason may hold anything.
pub(super) const FORMAT: &str = "%N|%T|%C|%b|%E";
/// What the reason of a node begins with that Gleaner drains. Nodes that were drained for another reason are left alone.
pub(super) const REASON: &str = "gleaner: not harvested now";
/// The same of a node that is drained for a user's lease, before its name.
pub(super) const LEASE_REASON: &str = "gleaner: leased, or soon to be: ";

/// How Slurm shows that there are none.
const NO_FEATURES: &str = "(null)";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    /// It gets no new tasks.
    pub(super) drains: bool,
    /// Gleaner drained it.
    pub(super) is_ours: bool,
    /// It did so for a user's lease.
    pub(super) is_for_lease: bool,
    /// Its slurmd answers, and it is up, apart from draining.
    pub(super) is_up: bool,
    pub(super) allocated: u32,
    /// CPUs that tasks could have now.
    pub(super) idle: u32,
    pub(super) cpus: u32,
    /// Its features that are active.
    pub(super) features: BTreeSet<String>,
    /// As Slurm has it.
    pub(super) state: String,
}

/// Reads the lines of `sinfo`.
///
/// # Errors
/// [`SlurmError::Line`] naming the line and the field.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Node>, SlurmError> {
    let mut nodes = BTreeMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: String| SlurmError::Line { program: "sinfo", line: index + 1, why };
        let fields: Vec<&str> = line.splitn(5, '|').map(str::trim).collect();
        let &[name, state, cpus, features, reason] = fields.as_slice() else {
            return Err(wrong(format!("has {} fields instead of 5", fields.len())));
        };
        let counts: Option<Vec<u32>> = cpus.split('/').map(|count| count.parse().ok()).collect();
        let Some(&[allocated, idle, _, cpus]) = counts.as_deref() else {
            let cpus: String = cpus.chars().take(40).collect();
            return Err(wrong(format!("CPUs: {cpus:?} is not of the form 1/1/0/2")));
        };
        let word = state.trim_end_matches(|sign: char| !sign.is_ascii_alphabetic());
        let is_up = !state.ends_with('*')
            && matches!(word, "idle" | "mixed" | "allocated" | "completing" | "planned" | "draining" | "drained");
        let drains = word.starts_with("drain");
        let is_for_lease = drains && reason.starts_with(LEASE_REASON.trim_end());
        let is_ours = is_for_lease || drains && reason.starts_with(REASON);
        let idle = if is_up && !drains { idle } else { 0 };
        let features =
            features.split(',').filter(|name| !matches!(*name, "" | NO_FEATURES)).map(str::to_owned).collect();
        let node =
            Node { drains, is_ours, is_for_lease, is_up, allocated, idle, cpus, features, state: state.to_owned() };
        nodes.insert(name.to_owned(), node);
    }
    Ok(nodes)
}

/// Whose a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The job wants its host.
    Wanted,
    /// The job does not want its host, which is interactive.
    Unwanted,
    /// Slurm has it for itself, or it is dedicated.
    Slurms,
}

/// What is to be done about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// It should be open, and somebody else drained it.
    Foreign,
    Resume,
    /// With the reason.
    Drain(String),
}

/// What is to be done about a node that a lease closes now or not. Nothing is resumed while leases are unknown: any node might be leased.
pub(super) fn change(node: &Node, whose: Whose, lease: Option<&ReservationId>, leases_unknown: bool) -> Change {
    let kept = node.is_ours && leases_unknown;
    match (lease, whose) {
        _ if kept => Change::None,
        // What is down, or whatever else, is somebody's or Slurm's business until it is up.
        (Some(lease), _) if !node.drains && node.is_up => Change::Drain(format!("{LEASE_REASON}{lease}")),
        (Some(_), _) => Change::None,
        (None, Whose::Unwanted) if node.is_for_lease || !node.drains && node.is_up => Change::Drain(REASON.to_owned()),
        (None, Whose::Unwanted) => Change::None,
        (None, Whose::Wanted) if node.is_ours => Change::Resume,
        (None, Whose::Wanted) if node.drains => Change::Foreign,
        (None, Whose::Slurms) if node.is_for_lease => Change::Resume,
        (None, Whose::Wanted | Whose::Slurms) => Change::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_drained_for_a_lease_and_resumed_after_it() {
        let text = "up|idle|0/2/0/2|(null)|none\nours|drained|0/2/0/2|(null)|gleaner: not harvested now\n\
                    leased|drained|0/2/0/2|(null)|gleaner: leased, or soon to be: a\nbroken|drained|0/2/0/2|(null)|disk\n\
                    down|down*|0/0/2/2|(null)|none\n";
        let nodes = parse(text).unwrap();
        let lease = ReservationId::new("a").unwrap();
        let drain = |reason: &str| Change::Drain(reason.to_owned());
        let of = |name: &str, whose, closed: bool| change(&nodes[name], whose, closed.then_some(&lease), false);
        let all = [Whose::Wanted, Whose::Unwanted, Whose::Slurms];
        for whose in all {
            assert_eq!(of("up", whose, true), drain("gleaner: leased, or soon to be: a"));
            for name in ["ours", "leased", "broken", "down"] {
                assert_eq!(of(name, whose, true), Change::None, "{name}");
            }
            assert_eq!(change(&nodes["leased"], whose, None, true), Change::None, "it may be leased still");
        }
        let none = Change::None;
        for (name, expected) in [
            ("up", [none.clone(), drain(REASON), none.clone()]),
            ("ours", [Change::Resume, none.clone(), none.clone()]),
            ("leased", [Change::Resume, drain(REASON), Change::Resume]),
            ("broken", [Change::Foreign, none.clone(), none.clone()]),
            ("down", [none.clone(), none.clone(), none.clone()]),
        ] {
            assert_eq!(all.map(|whose| of(name, whose, false)), expected, "{name}");
        }
    }

    #[test]
    fn a_node_is_up_drains_or_is_gone() {
        let text = "h1|mixed|1/1/0/2|(null)|none\nh2|draining|2/0/0/2|gpu,rack1|gleaner: not harvested now\n\
                    h3|drained*|0/0/2/2|(null)|disk | broken\nh4|idle*|0/0/2/2|(null)|none\nh5|down|0/0/2/2|(null)|Not responding\n";
        let nodes = parse(text).unwrap();
        let of = |name: &str| (nodes[name].is_up, nodes[name].drains, nodes[name].is_ours, nodes[name].allocated);
        assert_eq!(of("h1"), (true, false, false, 1));
        assert_eq!(["h1", "h2", "h4"].map(|name| nodes[name].idle), [1, 0, 0]);
        assert_eq!(of("h2"), (true, true, true, 2));
        assert_eq!(of("h3"), (false, true, false, 0));
        assert_eq!(of("h4"), (false, false, false, 0));
        assert_eq!(of("h5"), (false, false, false, 0));
        assert_eq!(nodes["h2"].features, ["gpu", "rack1"].map(str::to_owned).into());
        assert!(nodes["h1"].features.is_empty());
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        for (text, why) in [
            ("h1|idle", "sinfo: line 1: has 2 fields instead of 5"),
            ("h1|idle|0/2/0|(null)|none", "CPUs: \"0/2/0\""),
            ("\nh1|idle|a/b/c/d|(null)|none", "line 2: CPUs: \"a/b/c/d\""),
        ] {
            assert!(parse(text).unwrap_err().to_string().contains(why), "{text}");
        }
    }
}
