//! The steps of a trial, as events of the world. Data only.

use std::time::Instant;

use gleaner_planner::harm::{RunTime, Trial};

/// Where a trial is.
#[derive(Debug)]
pub(super) enum Step {
    /// The next one is drawn.
    Draw,
    /// The window with the volunteer begins.
    Begin(Trial),
    /// It ends, and the volunteer is held. With how often the guard had frozen it.
    Hold(Trial, u64),
    /// The window without the volunteer ends.
    End(Windows),
}

/// What is known at the end of a trial.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) trial: Trial,
    pub(super) freezes: u64,
    pub(super) until: Instant,
    pub(super) with: Vec<RunTime>,
    pub(super) cores: f64,
}
