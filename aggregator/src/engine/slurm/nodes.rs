//! A partition's nodes, from `sinfo`. In: its lines. Out: nodes with their CPUs and states. Called by the session.

use std::collections::{BTreeMap, BTreeSet};

use super::tools::SlurmError;

/// The fields of a line, for `sinfo -N -o`: node, state, CPUs (allocated/idle/other/all), features that are active, reason. A
/// reason may hold anything.
pub(super) const FORMAT: &str = "%N|%T|%C|%b|%E";
/// What the reason of a node begins with that Gleaner drains. Nodes that were drained for another reason are left alone.
pub(super) const REASON: &str = "gleaner: not harvested now";

/// How Slurm shows that there are none.
const NO_FEATURES: &str = "(null)";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    /// It gets no new tasks.
    pub(super) drains: bool,
    /// Gleaner drained it.
    pub(super) is_ours: bool,
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
        let is_ours = drains && reason.starts_with(REASON);
        let idle = if is_up && !drains { idle } else { 0 };
        let features =
            features.split(',').filter(|name| !matches!(*name, "" | NO_FEATURES)).map(str::to_owned).collect();
        let node = Node { drains, is_ours, is_up, allocated, idle, cpus, features, state: state.to_owned() };
        nodes.insert(name.to_owned(), node);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
