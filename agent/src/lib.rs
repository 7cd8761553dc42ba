//! The per-host daemon: it senses the host, reports to the aggregator, and carries out its commands. Beside that runs
//! the guard, which protects the foreground without the aggregator.
//!
//! In: the kernel's files, monitors of guests, the helper on Xen; the aggregator's commands. Out: reports, events and
//! acknowledgements to the aggregator; limits on workloads and on the volunteer. The programs `gleaner-agent` and
//! `gleaner` call [`main_from_args`]; tests call the parts.
//!
//! This crate holds everything that reads or changes a host. What must not be here: decisions about jobs or other hosts
//! (`gleaner_planner`, driven by the aggregator).

pub mod act;
mod bpf;
pub mod config;
mod control;
mod daemon;
mod device_mapper;
pub mod discover;
mod disk_capacity;
pub mod doctor;
pub mod facts;
mod forecast_record;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guard;
mod harm;
pub mod hierarchies;
pub mod host_loop;
mod join;
pub mod keeper;
mod kernel_file;
pub mod launch;
pub mod levers;
pub mod link;
pub mod made_domains;
pub mod metrics;
mod names;
mod netlink;
pub mod network_bound;
mod online_cpus;
pub mod order;
mod origin;
pub mod outbox;
pub mod probe;
mod process;
mod qmp;
pub mod roots;
mod rounding;
pub mod scratch;
pub mod sense;
mod state_file;
pub mod tasks;
pub mod trial;
pub mod trial_step;
#[cfg(test)]
mod version_2_tests;
mod xen;

pub use daemon::{command_line, main_from_args};
