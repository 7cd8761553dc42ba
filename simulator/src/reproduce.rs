//! Experiments of the papers on the simulated test beds, paper beside ours.

pub mod jobs;
pub mod pool;
pub mod rhic;

use serde::Serialize;

/// One figure of a paper and what we get.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Its name, which stays the same for ever.
    pub id: &'static str,
    /// What the paper reports; `None` where it gives no number.
    pub paper: Option<f64>,
    /// What this run measured; `None` when it could not, with the reason in `note`.
    pub ours: Option<f64>,
    /// Unit of both.
    pub unit: &'static str,
    /// What we hold ourselves to, in words.
    pub target: String,
    /// Ours is within the target.
    pub holds: bool,
    /// What is in the figure, in a sentence.
    pub note: String,
}
