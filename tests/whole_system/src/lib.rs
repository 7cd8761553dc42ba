//! The whole system under faults: the agents' real loops, actors, guards and outboxes and the aggregator's real core
//! loop, controller, journal, event log and store, on one virtual clock, with everything between and below them
//! simulated: the kernel's files, the network, the disks that fill up, the batch system, the services. Faults are drawn
//! from a seed, so that the same seed repeats a failure.
//!
//! In: a seed. Out: what was checked, and the first check that failed. `cargo xtask seeds` and this crate's tests call
//! it.
//!
//! The checks share no code with what makes the plans: [`checks`] reads the messages and the kernel's files. What must
//! not be here: real sockets and processes (`tests/end_to_end`, `tests/faults`), and anything the daemons need.

pub mod aggregator;
pub mod checks;
pub mod disk;
pub mod engine;
pub mod faults;
pub mod harm;
pub mod host;
pub mod hostile;
pub mod machine;
pub mod network;
pub mod world;
