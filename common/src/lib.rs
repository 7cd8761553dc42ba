//! What every part of Gleaner shares: units, identifiers, time, the report an agent makes, the commands it
//! takes, jobs and decisions, events, the wire protocol, TLS identity, and the loading of config files.
//!
//! Here live data types and the two boundaries every process has (peers, config files). What must not be here:
//! decisions (they are `planner`'s), anything that senses or acts on a host (`agent`'s), daemons.

pub mod application;
pub mod clock;
pub mod command;
pub mod config;
pub mod event;
pub mod id;
pub mod job;
pub mod join;
pub mod metrics;
pub mod monitoring;
pub mod report;
pub mod service;
pub mod text;
pub mod tls;
pub mod transport;
pub mod units;
pub mod wire;
