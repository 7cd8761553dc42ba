//! The protocol between agents and the aggregator: messages, and the frames they travel in.
//!
//! One bidirectional QUIC stream carries control messages, one unidirectional stream the reports. The ALPN
//! names the protocol version. A released message never changes: a new field is a new message with a new tag.

mod codec;
mod message;

pub use codec::{
    FrameError, MAX_FRAME, MAX_STORED, Message, body_length, decode, decode_beginning, decode_body, decode_stored,
    decode_stored_as, decode_value, encode, encode_value,
};
pub use message::{
    AgentEvents, FromAgent, FromAggregator, FromJoiner, Hello, JoinRequest, JoinSecret, StandsBy, ToJoiner, Welcome,
};

/// Name and version of the protocol in the TLS handshake.
pub const ALPN: &[u8] = b"gleaner/1";

/// The same for a host that has no certificate yet: one [`JoinRequest`] and its answer on a bidirectional stream.
pub const JOIN_ALPN: &[u8] = b"gleaner-join/1";

/// Longest message of the joining protocol, in bytes.
pub const MAX_JOIN_MESSAGE: usize = 8 << 10;
