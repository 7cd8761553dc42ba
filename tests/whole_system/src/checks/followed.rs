//! What is known of volunteers held by their harm. In: trials. Out: what the checks of [`super::harm`] keep of them. Data only.

use std::time::Instant;

use gleaner_planner::harm::Compared;
use gleaner_planner::protecting::{Evidence, Posture};

/// What was seen of the machine of one agent.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) evidence: Evidence,
    pub(super) over_since: Option<Instant>,
    /// Its agent's first instant.
    pub(super) began: Option<Instant>,
}

/// How often what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Followed {
    /// Trials of volunteers held by their harm.
    pub trials: u64,
    /// Changes of posture.
    pub changes: u64,
    /// Those that tightened.
    pub tightened: u64,
    /// Those that the log tells of.
    pub logged: u64,
}

/// A trial, and the posture before and after.
#[derive(Debug)]
pub struct Tried<'a> {
    /// The agent's time.
    pub now: Instant,
    /// What its counters said.
    pub compared: &'a [Compared],
    /// CPUs that the volunteer used.
    pub cores: f64,
    /// The posture it was made under.
    pub before: Posture,
    /// The posture from now on.
    pub after: Posture,
}
