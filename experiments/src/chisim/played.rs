//! What was played, and what came of it. Data only.

use gleaner_planner::reservations::forecast::Forecaster;
use gleaner_planner::reservations::preemption::Preemption;
use gleaner_simulator::leases::CloudTrace;

use super::plant::Outcome;

/// One way to fill, and what came of it.
pub(super) struct Cell {
    pub(super) forecaster: Option<Forecaster>,
    pub(super) preemption: Preemption,
    pub(super) name: String,
    pub(super) outcome: Outcome,
}

/// Everything that was played.
pub(super) struct Played {
    pub(super) generated: bool,
    pub(super) seed: u64,
    pub(super) trace: CloudTrace,
    pub(super) leases: Outcome,
    pub(super) greedy: Vec<Cell>,
    pub(super) predictive: Vec<Cell>,
    pub(super) ours: Outcome,
    /// Ours when estimates of run times are wrong by a third and by all of it (coefficients of variation).
    pub(super) ours_with_wrong_estimates: Vec<(f64, Outcome)>,
}
