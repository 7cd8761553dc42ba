//! How many nodes a MapReduce job needs to end in time, while it runs: gray-box models (Gandhi, Thota, Dube, Kochut, Zhang:
//! "Autoscaling for Hadoop Clusters"). In: what a controller sees of a job and its nodes, and training runs. Out: how long
//! the rest takes on this cluster or another, and which nodes to add or to remove.
//!
//! [`equations`] has the models as printed; [`fit`] finds their coefficients from training runs, and [`refit`] corrects
//! them by finished tasks. [`estimate`] applies them to a job that is partly done, on nodes that differ, that come later or
//! that several jobs share; on equal nodes and from the start it gives what the equations give. [`decide`] tries
//! changes of the cluster. [`stages`] makes the situation of a running job of what its engine tells; [`crate::sizing::stages`]
//! asks these models beside the rate. [`scale_out`] is for runs of which nothing is known but how long they took on how many nodes.

pub mod decide;
pub mod equations;
pub mod estimate;
pub mod fit;
mod leaving;
pub mod refit;
pub mod scale_out;
pub mod sharing;
pub mod situation;
pub mod slots;
pub mod stages;

#[cfg(test)]
pub(crate) mod tests;
