//! Version 1 of the protocol, frozen: the schema that the first release sent, byte for byte. In: messages, from
//! `message`. Out: payloads of frames, and back. Called by `frame`.
//!
//! Nothing here changes until the version is dropped. A message must match the schema exactly: an additional variant,
//! field or tag is an error.

mod command;
mod enumeration;
mod event;
mod report;

use crate::frame::{FrameError, Message};
use crate::message::{FromAgent, FromAggregator, FromJoiner, ToJoiner};
use crate::scalar::Input;
use crate::schema::{Raw, Travels};
use crate::unknown::Unknowns;

fn encode<'a, D, S: Travels<'a, D>>(tag: u16, domain: &'a D, into: &mut Vec<u8>) -> Result<(), FrameError> {
    S::write(domain, into).map_err(|error| FrameError::Unencodable { tag, detail: error.to_string() })
}

fn decode<'a, D, S: Travels<'a, D>>(tag: u16, payload: &'a [u8]) -> Result<D, FrameError> {
    let mut input = Input::new(payload);
    let domain = S::read(&mut input, &mut Unknowns::default())
        .map_err(|rejected| FrameError::Malformed { tag, detail: rejected.to_string() })?;
    match input.left() {
        0 => Ok(domain),
        extra => Err(FrameError::Leftover { tag, extra }),
    }
}

/// An agent's event that this version has.
pub(crate) fn has_event(event: &gleaner_types::event::Event) -> bool {
    event::Event::of(event).is_ok()
}

/// The messages of one direction: tag, variant, schema.
macro_rules! messages {
    ($direction:ident, $encode:ident, $decode:ident { $($tag:literal => $variant:ident, $schema:ty $(, $boxed:ident)?;)+ }) => {
        pub(crate) fn $encode(message: &$direction, into: &mut Vec<u8>) -> Result<(), FrameError> {
            match message {
                $($direction::$variant(content) => encode::<_, $schema>($tag, messages!(@inner content $($boxed)?), into),)+
                other => {
                    let detail = "version 1 of the protocol does not know it".to_owned();
                    Err(FrameError::Unencodable { tag: other.tag(), detail })
                }
            }
        }

        pub(crate) fn $decode(tag: u16, payload: &[u8]) -> Result<$direction, FrameError> {
            Ok(match tag {
                $($tag => $direction::$variant(messages!(@outer decode::<_, $schema>($tag, payload)? $(, $boxed)?)),)+
                _ => return Err(FrameError::UnknownTag { tag }),
            })
        }
    };
    (@inner $content:ident) => { $content };
    (@inner $content:ident boxed) => { &**$content };
    (@outer $content:expr) => { $content };
    (@outer $content:expr, boxed) => { Box::new($content) };
}

messages! {
    FromAgent, encode_from_agent, decode_from_agent {
        1 => Hello, report::Hello<'_>, boxed;
        2 => Report, report::HostReport<'_>, boxed;
        3 => Ack, command::Ack<'_>;
        4 => Events, event::AgentEvents<'_>;
        11 => CertificateRequest, Raw<'_>;
    }
}

messages! {
    FromAggregator, encode_from_aggregator, decode_from_aggregator {
        101 => Welcome, command::Welcome<'_>;
        102 => Refused, &str;
        103 => Command, command::Command<'_>;
        104 => EventsThrough, u64;
        105 => StandsBy, command::StandsBy<'_>;
        111 => Certificate, &str;
        112 => CertificateRefused, &str;
    }
}

messages! {
    FromJoiner, encode_from_joiner, decode_from_joiner {
        201 => Join, command::JoinRequest<'_>;
    }
}

messages! {
    ToJoiner, encode_to_joiner, decode_to_joiner {
        301 => Joined, &str;
        302 => Refused, &str;
    }
}
