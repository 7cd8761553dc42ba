//! Why a scenario cannot be run. Data only.

use gleaner_types::id::InvalidId;

/// A scenario that cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// Fields that are out of range.
    #[error("{}", .0.join("\n"))]
    Fields(Vec<String>),
    /// An invalid name.
    #[error(transparent)]
    Name(#[from] InvalidId),
}
