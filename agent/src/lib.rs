//! The per-host daemon: discover → sense → window → predict → report, and commands → plan → execute, with
//! the guard beside them that protects the foreground without asking anybody.
//!
//! Here lives everything that reads or changes a host. What must not be here: decisions about jobs or other
//! hosts (`gleaner_planner`, driven by the aggregator).

pub mod act;
pub mod guard;
pub mod hierarchies;
pub mod keeper;
