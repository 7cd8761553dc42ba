//! Versions of the protocol, and how two peers agree on one. In: the versions of both sides. Out: the newest that both
//! have. Called by `net`: by its TLS settings and its endpoints. The daemons pass the agreed version on.
//!
//! In the TLS handshake an agent offers a name (ALPN) for each version it supports, and the aggregator takes the newest
//! that both have. Each release supports two versions, so daemons one version apart can always connect.
//!
//! Peers that share none agree on [`VERSIONS_ALPN`] instead. There each side sends the other its versions, once, in a
//! form that never changes, and the connection ends.

use std::fmt;

/// A version of the protocol between agents and the aggregator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    /// The first: bincode of one schema, where nothing may be added.
    V1,
    /// Numbers for variants and lengths for structs, so that both may be added (see `v2`).
    V2,
}

impl ProtocolVersion {
    /// The newest.
    pub const CURRENT: Self = Self::V2;

    /// All versions that this release supports, newest first.
    pub const SUPPORTED: [Self; 2] = [Self::V2, Self::V1];

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// Its name in the TLS handshake.
    #[must_use]
    pub const fn alpn(self) -> &'static [u8] {
        match self {
            Self::V1 => b"gleaner/1",
            Self::V2 => b"gleaner/2",
        }
    }

    /// The same for a host that has no certificate yet: one `JoinRequest` and its answer on a bidirectional stream.
    #[must_use]
    pub const fn join_alpn(self) -> &'static [u8] {
        match self {
            Self::V1 => b"gleaner-join/1",
            Self::V2 => b"gleaner-join/2",
        }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An agent's, in this version.
    Agent(ProtocolVersion),
    /// That of a host that joins, in this version.
    Join(ProtocolVersion),
    /// To learn each other's versions, because they have none in common.
    Versions,
}

impl Purpose {
    /// The purpose of a connection that agreed on this name.
    #[must_use]
    pub fn of(alpn: &[u8]) -> Option<Self> {
        let spoken = |name: fn(ProtocolVersion) -> &'static [u8]| {
            ProtocolVersion::SUPPORTED.into_iter().find(|version| name(*version) == alpn)
        };
        match alpn == VERSIONS_ALPN {
            true => Some(Self::Versions),
            false => spoken(ProtocolVersion::alpn)
                .map(Self::Agent)
                .or_else(|| spoken(ProtocolVersion::join_alpn).map(Self::Join)),
        }
    }
}

/// Name in the TLS handshake of peers that share no version. It never changes.
pub const VERSIONS_ALPN: &[u8] = b"gleaner-versions";

/// Most versions that are read of a peer's list.
const MOST_VERSIONS: usize = 32;

/// Longest list of versions, in bytes.
pub const MAX_VERSIONS: usize = 2 * MOST_VERSIONS;

/// The list of versions that a peer sends when it shares none with the other: two bytes each, little-endian, until the
/// stream ends. It never changes.
#[must_use]
pub fn encoded_versions() -> Vec<u8> {
    ProtocolVersion::SUPPORTED.iter().flat_map(|version| version.number().to_le_bytes()).collect()
}

/// The versions of such a list, in words.
#[must_use]
pub fn versions_in_words(peer_versions: &[u8]) -> String {
    let numbers = peer_versions.chunks_exact(2).take(MOST_VERSIONS).filter_map(<[u8]>::first_chunk::<2>);
    let mut numbers: Vec<u16> = numbers.map(|bytes| u16::from_le_bytes(*bytes)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.is_empty() {
        return "none".to_owned();
    }
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

/// The versions of this release, in words.
#[must_use]
pub fn own_versions() -> String {
    versions_in_words(&encoded_versions())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_versions() {
        for version in ProtocolVersion::SUPPORTED {
            assert_eq!(Purpose::of(version.alpn()), Some(Purpose::Agent(version)));
            assert_eq!(Purpose::of(version.join_alpn()), Some(Purpose::Join(version)));
        }
        assert_eq!(Purpose::of(b"gleaner/3"), None);
        assert_eq!(ProtocolVersion::SUPPORTED[0], ProtocolVersion::CURRENT);
    }

    #[test]
    fn versions_are_sent_in_a_form_that_never_changes() {
        assert_eq!(encoded_versions(), [2, 0, 1, 0]);
        assert_eq!(versions_in_words(&[9, 0, 10, 0, 9, 0, 7]), "9, 10");
        assert_eq!(versions_in_words(&[]), "none");
        assert_eq!(own_versions(), "1, 2");
    }
}
