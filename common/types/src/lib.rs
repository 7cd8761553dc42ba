//! Gleaner's vocabulary: units, identifiers, time stamps, the report an agent makes, the commands it takes, jobs,
//! applications, decisions and events.
//!
//! In: values of other crates, and documents of operators and stored files through serde. Out: the same values,
//! checked: a value that cannot be is refused when it is made. Almost every other crate uses these.
//!
//! Only data types, their validation and their serde form belong here. What must not be here: how they travel
//! (`gleaner-wire`), I/O, clocks, runtimes, decisions.

pub mod absence;
pub mod application;
pub mod command;
pub mod engine;
pub mod error;
pub mod event;
pub mod format;
pub mod guest;
pub mod harm;
pub mod id;
pub mod job;
pub mod method;
pub mod report;
pub mod stages;
pub mod task;
pub mod text;
pub mod time;
pub mod units;
