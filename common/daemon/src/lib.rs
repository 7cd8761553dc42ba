//! What both daemons share: config files, files that survive a loss of power, the process's clock, metrics and health
//! pages, what commands print, and notifications to systemd. In: files, the system's clocks, HTTP requests. Out: validated configs, time
//! stamps, pages. Both daemons call it; the command `gleaner` uses the clock, the output and the keys of the
//! configs.
//!
//! What must not be here: anything that only one daemon needs, the network between them (`gleaner-net`), decisions.

pub mod clock;
pub mod config;
pub mod durable;
pub mod metrics;
pub mod monitoring;
pub mod output;
pub mod process;
pub mod service;
