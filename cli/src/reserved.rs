//! Nodes that a lease has or will have, in words. In: a node. Out: a line, or what tasks may do on it. Called where jobs are shown:
//! `format`, `gleaner explain` and `gleaner top`.

use gleaner_types::job::{ReservedNode, ReservedStage};
use gleaner_types::text::{counted, harmless};

/// A node, its lease, and what fills it until then.
pub(crate) fn line(node: &ReservedNode) -> String {
    let (tasks, said) = (counted(node.tasks, "task"), meanwhile(node.stage));
    let stage = match node.stage {
        ReservedStage::Open | ReservedStage::Draining => format!("{tasks} on it, and {said}"),
        ReservedStage::Vacating => format!("{tasks} on it, {said}"),
        ReservedStage::Leased => format!("{said}, {tasks} on it"),
    };
    format!("{} for {} from {} to {}: {stage}", node.node, harmless(node.lease.as_str()), node.begins, node.ends)
}

/// What tasks may do on a node meanwhile.
pub(crate) const fn meanwhile(stage: ReservedStage) -> &'static str {
    match stage {
        ReservedStage::Open => "others start",
        ReservedStage::Draining => "none starts any more",
        ReservedStage::Vacating => "being ended",
        ReservedStage::Leased => "has begun",
    }
}
