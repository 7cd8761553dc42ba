//! The protocol between agents and the aggregator: messages, and the frames they travel in.
//!
//! One bidirectional QUIC stream carries control messages, one unidirectional stream the reports. The ALPN
//! names the protocol version. A released message never changes: a new field is a new message with a new tag.

mod codec;
mod message;
mod stream;

pub use codec::{FrameError, MAX_FRAME, Message, decode, decode_value, encode, encode_value};
pub use message::{AgentEvents, FromAgent, FromAggregator, Hello, Welcome};
pub use stream::{ReadError, read_message, write_message};

/// Name and version of the protocol in the TLS handshake.
pub const ALPN: &[u8] = b"gleaner/1";
