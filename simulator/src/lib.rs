//! Virtual hosts on a virtual clock, driving the production controller unchanged: what a simulation shows is
//! what an operator gets.
//!
//! Here live generators of foreground demand and models of hosts and jobs. What must not be here: policy. Every
//! decision comes out of `gleaner_planner`, and nothing here reads a real clock.

mod batch;
pub mod cluster;
pub mod foreground;
pub mod machine;
pub mod random;
pub mod scenario;
pub mod service;
pub mod traces;
