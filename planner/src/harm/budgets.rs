//! The most harm there should be. In: the config. Out: the budget of each workload.

use std::collections::BTreeMap;

use gleaner_types::id::WorkloadId;

/// Budgets, in percent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Budgets {
    /// Of all workloads together, and of each that has none of its own.
    pub all_percent: f64,
    /// Of workloads with a budget of their own.
    pub own_percent: BTreeMap<WorkloadId, f64>,
}

impl Budgets {
    /// The budget of a workload.
    #[must_use]
    pub fn of(&self, workload: &WorkloadId) -> f64 {
        self.own_percent.get(workload).copied().unwrap_or(self.all_percent)
    }
}
