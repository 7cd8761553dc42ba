//! How much slower the foreground is with the volunteer than without. The volunteer is held still for short windows at
//! random moments. In: what the foreground ran and waited in each such window and in one of equal length just
//! before it, and what the CPU's counters say of both. Out: when the next window is, and the harm in percent with its 95 % confidence interval. The agent's harm
//! meter calls it; `protecting` acts on the trials.
//!
//! One window without the volunteer and the one before it with the volunteer are a *trial*. Both see the same minute of
//! the same workload, and the moment is drawn, not chosen, so whatever else differs between the two does so by chance.

mod budgets;
mod estimate;
mod schedule;
#[cfg(test)]
mod tests;
mod tracker;

pub use budgets::Budgets;
pub use estimate::{Comparison, Estimate, LEAST_TRIALS, MOST_TRIALS, RunTime, Trials, Work, Worked};
pub use schedule::{LARGEST_PAUSE_SHARE, SETTLING_TIME, Schedule, Trial};
pub use tracker::{Compared, Crossing, Edge, HISTORY, HarmTracker, Skipped};
