//! What is wrong with a workload or with shares. Called by what checks them.

/// A field is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: is {value}; it must be {rule}")]
pub struct Invalid {
    /// Where it is; it names the job.
    pub field: String,
    /// What it is.
    pub value: String,
    /// What is allowed.
    pub rule: String,
}
