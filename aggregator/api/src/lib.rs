//! The local API: what operators' tools ask of a running aggregator over its Unix socket.
//!
//! In: a [`Request`] as one line of JSON. Out: a [`Response`] as one line of JSON; to [`Request::Events`] and
//! [`Request::Audit`] any number of lines, each a line of that log, then the end of the stream. The command line calls
//! [`Client`]; the aggregator's server decodes the same types. No daemon is linked here.

mod audit;
mod client;
mod nearest;
mod types;

pub use audit::AuditRecord;
pub use client::{Client, ClientError, EventLines};
pub use nearest::meant;
pub use types::{
    ApiError, ErrorCode, HostGuests, InvitationView, Invited, JobDetail, Leadership, MAX_TASKS, Overview, Request,
    Response, RevocationView, SubmitCluster, SubmitJob, TokenText,
};

/// Where the aggregator listens unless its config says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/gleaner/aggregator.sock";
