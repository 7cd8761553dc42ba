//! Which events a version of the protocol has, so that a peer gets none that it cannot read. In: an event and a
//! version. Out: whether the event can be sent. Called by the agent's link.

use gleaner_types::event::Event;

use crate::version::ProtocolVersion;
use crate::{v1, v2};

/// Whether a peer of this version can be sent the agent's event.
#[must_use]
pub fn can_encode(version: ProtocolVersion, event: &Event) -> bool {
    match version {
        ProtocolVersion::V1 => v1::has_event(event),
        ProtocolVersion::V2 => v2::has_event(event),
    }
}
