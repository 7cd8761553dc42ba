//! How two Gleaner processes connect and authenticate each other: TLS identities and the authority that issues them,
//! QUIC endpoints, messages on streams, and the tokens with which a host joins.
//!
//! In: certificates and keys, addresses, messages. Out: authenticated connections with the host at the other end, its
//! messages, and certificates for hosts that join. The agent's link and `gleaner-agent join`, the aggregator's server
//! and enrolment, and `gleaner pki` call it.
//!
//! What must not be here: what the messages say (`gleaner-wire`), and what a daemon does about them.

pub mod join;
pub mod stream;
pub mod tls;
pub mod transport;
