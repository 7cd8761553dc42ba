//! What the tests of several crates share; never linked into a program that ships.
//!
//! In: what a test asks for. Out: a host's facts and reports ([`report`]) and an agent's messages with them
//! ([`synthetic`]), or any message of the protocol ([`generate`]); a folder with the built `gleaner` and the processes
//! it starts ([`mod@bench`]); an aggregator with an agent ([`pair`]); the machine's speed ([`pace`]); CPU time ([`cpu`]); small QEMU guests
//! ([`guest`]); booted hosts ([`lab`]); which of them run ([`beds`]); how one is skipped ([`mod@skip`]); the shape of a type
//! ([`shape`]) and a check of JSON against a schema ([`json_schema`]); kept inputs of fuzz targets ([`kept`]); help of metrics against the docs ([`metrics`]). Called by tests, benches and fuzz
//! targets.
//!
//! What must not be here: an agent's, the aggregator's or the planner's code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

pub mod beds;
pub mod bench;
pub mod cpu;
pub mod generate;
pub mod guest;
pub mod json_schema;
pub mod kept;
pub mod lab;
pub mod metrics;
pub mod pace;
pub mod pair;
pub mod report;
pub mod shape;
pub mod skip;
pub mod synthetic;
