//! Every decision Gleaner takes, as pure functions and state machines: no I/O, no async, no clock, no global
//! state, no randomness but from a seed passed in. `clippy.toml` beside this crate enforces it.
//!
//! In: observations and the caller's time. Out: decisions with their reasons. The callers are the agent, the
//! aggregator's shell and the simulator; they read, write, wait and log, and carry out the decisions.
//!
//! One module per decision, named for what it decides. What must not be here: anything that reads, writes, waits or logs.

pub mod advice;
pub mod balance;
pub mod broken_promises;
pub mod controller;
pub mod disk_bound;
pub mod disk_floor;
pub mod forecast;
pub mod goal;
pub mod guard;
mod half_life;
pub mod harm;
pub mod idle_buffer;
pub mod io_model;
pub mod mapreduce;
pub mod memory_bound;
pub mod network_bound;
pub mod policy;
pub mod pool;
pub mod power;
pub mod productivity;
pub mod progress;
pub mod protecting;
pub mod queue;
pub mod reclaim;
pub mod reservations;
pub mod sampling;
pub mod search;
pub mod selection;
pub mod sharing;
pub mod single_resource;
pub mod sizing;
pub mod snapshot;
