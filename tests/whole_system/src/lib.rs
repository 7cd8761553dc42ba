//! The whole system under faults: the agents' real loops, actors, guards and outboxes and the aggregator's real core
//! loop, controller, journal, event log and store, on one virtual clock, with everything between and below them made
//! up: the kernel's files, the network, the disks that fill up, the batch system, the services. Faults are drawn from a
//! seed, so that every failure comes back with its number.
//!
//! What is checked was not planned by what plans: [`checks`] knows what it saw on the wires and in the kernel's files.
//! What must not be here: real sockets and processes (`tests/end_to_end`, `tests/faults`), and anything the daemons need.

pub mod aggregator;
pub mod checks;
pub mod disk;
pub mod engine;
pub mod faults;
pub mod host;
pub mod machine;
pub mod network;
pub mod world;
