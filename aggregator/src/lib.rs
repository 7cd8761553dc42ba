//! The central daemon: a thin shell of I/O around the planner's controller.
//!
//! In: messages of agents, requests of operators, reports of engines, answers of response-time sources, ticks. Each is an
//! [`shell::Arrival`], which the core loop gives to the controller. Out: commands, engine actions, questions to sources,
//! events. What must not be here: decisions; they all come from `gleaner_planner::controller`.

mod api;
mod applications;
mod arrival;
mod audit;
pub mod config;
mod connection;
mod daemon;
pub mod engine;
pub mod enrolment;
pub mod event_log;
mod formats;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod histories;
mod http;
mod joining;
pub mod journal;
mod line_files;
mod metrics;
pub mod operators;
mod pending;
pub mod response_times;
mod server;
pub mod shell;
pub mod standby;
pub mod store;

pub use daemon::{command_line, main_from_args};
