//! The protocol between agents and the aggregator: messages, the frames they travel in, and its versions.
//!
//! In: messages of the daemons, and the version that two of them agreed on in the handshake. Out: frames, and back.
//! Called by `net::stream`; the daemons make and read the messages. It also has the encoding of values that the
//! aggregator stores.
//!
//! What must not be here: sockets and connections (`gleaner-net`), the domain's types and their rules
//! (`gleaner-types`), decisions.
//!
//! One bidirectional QUIC stream carries control messages, one unidirectional stream the reports. Each release speaks
//! two versions (`version`); each version has a schema of its own (`v1`, frozen, and `v2`, which says how it grows).
//! `golden/` has the bytes of every message of every version.

mod codec;
mod encodable;
mod frame;
mod message;
mod rejected;
mod scalar;
mod schema;
mod unknown;
mod v1;
mod v2;
mod version;

pub use codec::{MAX_STORED, decode_beginning, decode_stored, decode_stored_as, decode_value, encode_value};
pub use encodable::can_encode;
pub use frame::{FrameError, MAX_FRAME, Message, body_length, decode, decode_body, encode};
pub use message::{
    AgentEvents, FromAgent, FromAggregator, FromJoiner, GuestNames, Hello, JoinRequest, JoinSecret, StandsBy,
    TaskStates, ToJoiner, Welcome,
};
pub use unknown::Unknowns;
pub use version::{
    MAX_VERSIONS, ProtocolVersion, Purpose, VERSIONS_ALPN, encoded_versions, own_versions, versions_in_words,
};

/// Longest message of the joining protocol, in bytes.
pub const MAX_JOIN_MESSAGE: usize = 8 << 10;
