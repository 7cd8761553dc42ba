//! What both daemons are made with: config files, the process's clock, metrics and health pages, and the
//! conversation with systemd.
//!
//! What must not be here: anything that only one daemon needs, the network between them (`gleaner-net`), decisions.

pub mod clock;
pub mod config;
pub mod metrics;
pub mod monitoring;
pub mod service;
