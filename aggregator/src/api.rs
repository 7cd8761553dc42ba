//! The local API: what operators' tools ask of a running aggregator, over its Unix socket.
//!
//! A client sends one [`Request`] as a line of JSON and reads one [`Response`] as a line of JSON; to
//! [`Request::Events`] the answer is any number of lines, each a line of the event log, then the end of the
//! stream. Who may open the socket file may ask; who may order is decided by who the
//! kernel says the client is ([`crate::operators`]), and every order is audited ([`crate::audit`]).

mod client;
mod server;
mod types;

pub use client::{Client, ClientError, EventLines};
pub use server::SocketError;
pub(crate) use server::{Context, listen, serve};
pub use types::{
    ApiError, ErrorCode, InvitationView, Invited, JobDetail, Leadership, Overview, Request, Response, RevocationView,
    SubmitCluster, SubmitJob, TokenText,
};
