//! End to end: the real `gleaner` binary, real daemons over real QUIC, real tasks in a real volunteer. Each test
//! checks at its end that the machine is as before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod access;
mod answers;
mod daemons;
mod docs;
mod guests;
mod jobs;
mod kills;
mod learnt;
mod leaving;
mod mistakes;
mod monitoring;
mod openmetrics;
mod plans;
mod runs;
mod screen;
mod service;
mod sharing;
mod slots;
mod slurm;
mod stages;
