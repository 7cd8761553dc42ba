//! What is wrong with a workload, a situation or with shares. Called by what checks them.

/// A number in few digits, for a message.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size > 0.0 && !(1e-4..1e15).contains(&size) => format!("{value:e}"),
        _ => value.to_string(),
    }
}

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

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn numbers_are_short() {
        let said = [0.0, -1.5, 1e12, 1e308, -3e-300, f64::NAN, f64::INFINITY].map(short);
        assert_eq!(said, ["0", "-1.5", "1000000000000", "1e308", "-3e-300", "NaN", "inf"]);
    }
}
