//! The central daemon: a thin shell of I/O around the planner's controller.
//!
//! Here live the connections to agents, the journal, the event log, the store, the engines and the local API.
//! What must not be here: decisions. Whatever is decided comes out of `gleaner_planner::controller`.

pub mod api;
mod applications;
pub mod config;
mod daemon;
pub mod engine;
pub mod event_log;
pub mod journal;
pub mod response_times;
mod server;
mod shell;
pub mod store;

pub use daemon::main_from_args;
