//! Which events a version of the protocol has, so that a peer is not sent one that it cannot read. In: an event. Out: whether
//! it can be sent. An agent's link calls it.

use gleaner_types::event::Event;

use crate::version::ProtocolVersion;
use crate::{v1, v2};

/// A peer of this version can be told of the agent's event.
#[must_use]
pub fn can_say(version: ProtocolVersion, event: &Event) -> bool {
    match version {
        ProtocolVersion::V1 => v1::says(event),
        ProtocolVersion::V2 => v2::says(event),
    }
}
