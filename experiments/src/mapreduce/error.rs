//! What stops the test bed of MapReduce. Called by [`scenarios`](super::scenarios) and [`super`].

use gleaner_planner::mapreduce::decide::DecideError;
use gleaner_planner::mapreduce::fit::FitError;
use gleaner_types::id::InvalidId;

/// A test bed that does not work, which is a mistake in it.
#[derive(Debug, thiserror::Error)]
pub enum BedError {
    /// Training.
    #[error("training of the MapReduce models{0}")]
    Fit(#[from] FitError),
    /// A decision.
    #[error(transparent)]
    Decide(#[from] DecideError),
    /// A situation.
    #[error("a situation of the MapReduce plant: {0}")]
    Invalid(String),
    /// A name.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// A job.
    #[error("a job of the MapReduce plant of seed {0} does not end")]
    NeverEnds(u64),
}
