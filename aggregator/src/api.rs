//! The local API: what operators' tools ask of a running aggregator, over its Unix socket.
//!
//! A client sends one [`Request`] as a line of JSON and reads one [`Response`] as a line of JSON; to
//! [`Request::Events`] the answer is any number of lines, each a line of the event log, then the end of the
//! stream. Who may open the socket file may ask anything: authentication is by file permission.

mod client;
mod server;
mod types;

pub use client::{Client, ClientError, EventLines};
pub use server::SocketError;
pub(crate) use server::{Context, listen, serve};
pub use types::{ApiError, ErrorCode, JobDetail, Overview, Request, Response, SubmitCluster, SubmitJob};
