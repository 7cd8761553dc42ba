//! Which nodes an array of a batch system's queue can use, by features that it asks for. In: what it asks for and the features of
//! nodes, in Slurm's words. Out: nodes that nothing in the queue can use, and how many tasks of an array the nodes that are there
//! have room for. Called by engine `slurm`.
//!
//! Of Slurm's expressions those are read whose meaning is sure: one feature, several that a node must all have (`a&b`), and several
//! of which one is enough (`a|b`). By any other an array is taken to run on every node, as by none.

use std::collections::{BTreeMap, BTreeSet};

/// What an array asks of its nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Constraint {
    /// Nothing, or what is not understood.
    #[default]
    Any,
    /// A node with all of these features.
    All(Vec<String>),
    /// A node with one of these features.
    One(Vec<String>),
}

/// A name that cannot be an expression.
fn is_feature(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'=' | b'/');
    !name.is_empty() && name.bytes().all(good)
}

impl Constraint {
    /// Reads what Slurm shows of an array: `(null)` or nothing without a constraint.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let names = |sign: char| -> Option<Vec<String>> {
            text.split(sign).map(|name| is_feature(name).then(|| name.to_owned())).collect()
        };
        if let Some(all) = names('&') {
            Self::All(all)
        } else if let Some(one) = names('|') {
            Self::One(one)
        } else {
            Self::Any
        }
    }

    /// A node with these features can run it.
    #[must_use]
    pub fn accepts(&self, features: &BTreeSet<String>) -> bool {
        match self {
            Self::Any => true,
            Self::All(all) => all.iter().all(|name| features.contains(name)),
            Self::One(one) => one.iter().any(|name| features.contains(name)),
        }
    }
}

/// A node of the partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeaturedNode {
    /// What it has.
    pub features: BTreeSet<String>,
    /// CPUs that tasks can have or have on it now; none while it drains or is down.
    pub cpus: u32,
    /// Tasks run on it.
    pub is_busy: bool,
}

/// Nodes on which no task runs and none of those that wait could. Where nothing waits that could start, that is not known of any.
#[must_use]
pub fn unusable<'n>(nodes: &'n BTreeMap<String, FeaturedNode>, waiting: &[&Constraint]) -> BTreeSet<&'n str> {
    let is_unusable =
        |node: &FeaturedNode| !node.is_busy && !waiting.iter().any(|constraint| constraint.accepts(&node.features));
    let nodes = nodes.iter().filter(|(_, node)| !waiting.is_empty() && is_unusable(node));
    nodes.map(|(name, _)| name.as_str()).collect()
}

/// Tasks of so many CPUs that can run at once on the nodes that are there; `None` where every node is as good.
#[must_use]
pub fn most_at_once(constraint: &Constraint, cpus: u32, nodes: &BTreeMap<String, FeaturedNode>) -> Option<u32> {
    if *constraint == Constraint::Any {
        return None;
    }
    let good = nodes.values().filter(|node| constraint.accepts(&node.features));
    Some(good.map(|node| node.cpus / cpus.max(1)).fold(0, u32::saturating_add))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn nodes() -> BTreeMap<String, FeaturedNode> {
        let node = |features: &[&str], cpus, is_busy| FeaturedNode { features: set(features), cpus, is_busy };
        [
            ("d1", node(&[], 4, false)),
            ("i1", node(&["gpu", "rack1"], 0, false)),
            ("i2", node(&["rack2"], 5, true)),
            ("i3", node(&[], 0, false)),
        ]
        .map(|(name, node)| (name.to_owned(), node))
        .into()
    }

    /// As Slurm 22.05 shows them.
    #[test]
    fn what_is_sure_is_read_and_the_rest_runs_anywhere() {
        let all = |names: &[&str]| Constraint::All(names.iter().map(|&name| name.to_owned()).collect());
        let one = |names: &[&str]| Constraint::One(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(Constraint::of("gpu"), all(&["gpu"]));
        assert_eq!(Constraint::of("rack1&gpu"), all(&["rack1", "gpu"]));
        assert_eq!(Constraint::of("rack2|rack1"), one(&["rack2", "rack1"]));
        for text in ["(null)", "", "(gpu|rack2)&rack1", "[rack1|rack2]", "gpu*1", "a&b|c", "a,b", "!a", "a&", "|"] {
            assert_eq!(Constraint::of(text), Constraint::Any, "{text:?}");
        }
    }

    #[test]
    fn nodes_that_nothing_can_use_are_named() {
        let of = |texts: &[&str]| -> Vec<String> {
            let waiting: Vec<Constraint> = texts.iter().map(|text| Constraint::of(text)).collect();
            let waiting: Vec<&Constraint> = waiting.iter().collect();
            unusable(&nodes(), &waiting).into_iter().map(str::to_owned).collect()
        };
        assert_eq!(of(&["gpu"]), ["d1", "i3"], "i2 has tasks");
        assert_eq!(of(&["rack2", "gpu&rack2"]), ["d1", "i1", "i3"]);
        assert!(of(&["gpu", "(null)"]).is_empty());
        assert!(of(&[]).is_empty(), "nothing waits");
    }

    #[test]
    fn an_array_has_room_on_the_nodes_that_it_can_use() {
        let most = |text: &str, cpus| most_at_once(&Constraint::of(text), cpus, &nodes());
        assert_eq!(
            [most("rack2", 2), most("gpu", 1), most("rack1|rack2", 1), most("(null)", 1)],
            [Some(2), Some(0), Some(5), None]
        );
    }

    proptest! {
        /// A node is unusable only if no array accepts it, and one that accepts all arrays' nodes makes none unusable.
        #[test]
        fn no_node_that_an_array_accepts_is_unusable(
            features in prop::collection::vec(prop::collection::btree_set("[ab]", 0..3), 1..6),
            asked in prop::collection::vec(prop::sample::select(vec!["a", "b", "a&b", "a|b", "c"]), 1..4),
        ) {
            let nodes: BTreeMap<String, FeaturedNode> = features.into_iter().enumerate()
                .map(|(number, features)| (format!("n{number}"), FeaturedNode { features, cpus: 1, is_busy: false })).collect();
            let asked: Vec<Constraint> = asked.into_iter().map(Constraint::of).collect();
            let waiting: Vec<&Constraint> = asked.iter().collect();
            let useless = unusable(&nodes, &waiting);
            for (name, node) in &nodes {
                let accepted = asked.iter().any(|constraint| constraint.accepts(&node.features));
                prop_assert_eq!(useless.contains(name.as_str()), !accepted);
            }
            for constraint in &asked {
                let room = most_at_once(constraint, 1, &nodes).unwrap_or(0) as usize;
                prop_assert!(room <= nodes.len() - useless.len());
            }
        }
    }
}
