//! How two Gleaner processes connect and authenticate each other: TLS identities and the authority that issues them, QUIC
//! endpoints, messages on streams, and the tokens with which a host joins.
//!
//! In: certificates and keys, addresses, messages. Out: authenticated connections with the host that is at the other end,
//! messages of it, certificates for hosts that join. The agent's link and the aggregator's server call it.
//!
//! What must not be here: what the messages say (`gleaner-wire`), and what a daemon does about them.

pub mod join;
pub mod stream;
pub mod tls;
pub mod transport;
