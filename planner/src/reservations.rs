//! Filling the gaps between reservations of a cloud with high-throughput jobs (CHISim: Kang, Zhen, Keahey, "Yin and Yang"). In: the
//! requests for nodes so far, the nodes with the jobs on them, and a strategy. Out: which nodes to give notice to, which to take for a
//! lease, and which job to start where. `gleaner plan fill` and the simulated cloud call it.
//!
//! Times are in seconds from any zero that all inputs share. A forecast that the record does not allow is a typed [`Unknown`],
//! and nothing is preempted on it.

pub mod fill;
pub mod forecast;
pub mod history;
pub mod learnt;
pub mod node;
pub mod outlook;
pub mod partition;
pub mod preemption;
pub mod queue;
mod scale;
pub mod surviving;

pub use history::Unknown;
