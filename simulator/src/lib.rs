//! Virtual hosts on a virtual clock, driving the production controller unchanged. In: a scenario and seeds. Out: decisions,
//! costs, energies and times. `gleaner simulate`, the reproductions and tests call it.
//!
//! Here are generators of foreground demand and models of hosts, jobs and services. What must not be here: policy. Every
//! decision comes from `gleaner_planner`, and nothing here reads a real clock.

mod batch;
pub mod cluster;
pub mod foreground;
pub mod leases;
pub mod machine;
pub mod protection;
pub mod random;
pub mod scenario;
pub mod service;
pub mod traces;
