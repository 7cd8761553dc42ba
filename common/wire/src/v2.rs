//! Version 2 of the protocol, the current one: the schema, apart from the domain's types, and how it grows. In:
//! messages, from `message`. Out: payloads of frames, and back. Called by `frame`.
//!
//! A later release of this version may add three things, and an older release ignores them:
//!
//! - **A variant.** Plain enumerations travel as a number (`code`). Enums that carry data travel as a number and
//!   their content behind its length. An unknown number becomes the domain's `Unknown`, an event an `UnknownEvent`; a
//!   message about an unknown target, desired state or outcome is skipped, and so is one element of a list. A number is
//!   never used for anything else.
//! - **A field, at the end of a message or of a struct in a `Block`,** which travels behind its length: the older
//!   release skips the bytes behind those it knows. In the code the field goes into the `More` of the block or the message
//!   (`appended!`), behind those that are there, and stays at its default when an older peer sends none. The small structs without a block (`Version`,
//!   `Bounded`, …) never grow.
//! - **A message.** An unknown tag is skipped.
//!
//! Everything unknown is counted ([`Unknowns`]). Any other change needs a new version. Every length is checked against
//! the bytes that are there before memory is allocated for it.

mod absence;
mod command;
mod event;
mod guest;
mod report;
mod task;
mod variant;

use crate::frame::FrameError;
use crate::message::{FromAgent, FromAggregator, FromJoiner, ToJoiner};
use crate::scalar::Input;
use crate::schema::{Appended, Nothing, Raw, Rejection, Travels};
use crate::unknown::Unknowns;

fn encode<'a, D, S: Travels<'a, D>, More: Appended<'a, D>>(
    tag: u16,
    domain: &'a D,
    into: &mut Vec<u8>,
) -> Result<(), FrameError> {
    S::write(domain, into)
        .and_then(|()| More::write(domain, into))
        .map_err(|error| FrameError::Unencodable { tag, detail: error.to_string() })
}

/// The content of a message; `None` if it is about something unknown.
fn decode<'a, D, S: Travels<'a, D>, More: Appended<'a, D>>(
    tag: u16,
    payload: &'a [u8],
    unknown: &mut Unknowns,
) -> Result<Option<D>, FrameError> {
    let mut input = Input::new(payload);
    let read = S::read(&mut input, unknown).and_then(|mut domain| {
        More::read(&mut input, &mut domain, unknown)?;
        Ok(domain)
    });
    match read {
        Ok(domain) => {
            if input.left() > 0 {
                unknown.fields(input.left());
            }
            Ok(Some(domain))
        }
        Err(rejected) => match rejected.why() {
            Rejection::Invalid { .. } => Err(FrameError::Malformed { tag, detail: rejected.to_string() }),
            Rejection::Unknown { what, code } => {
                unknown.message(what, *code);
                Ok(None)
            }
        },
    }
}

/// An agent's event that this version has.
pub(crate) fn has_event(event: &gleaner_types::event::Event) -> bool {
    variant::Variant::of(event).is_ok()
}

/// The messages of one direction: tag, variant, schema, and in brackets the fields that were appended to the message.
macro_rules! messages {
    ($direction:ident, $encode:ident, $decode:ident {
        $($tag:literal => $variant:ident, $schema:ty $([$more:ty])? $(, $boxed:ident)?;)+
    }) => {
        pub(crate) fn $encode(message: &$direction, into: &mut Vec<u8>) -> Result<(), FrameError> {
            match message {
                $($direction::$variant(content) => {
                    encode::<_, $schema, messages!(@more $($more)?)>($tag, messages!(@inner content $($boxed)?), into)
                })+
                $direction::Unknown { tag } => {
                    Err(FrameError::Unencodable { tag: *tag, detail: "it is not known".to_owned() })
                }
            }
        }

        pub(crate) fn $decode(tag: u16, payload: &[u8], unknown: &mut Unknowns) -> Result<$direction, FrameError> {
            Ok(match tag {
                $($tag => match decode::<_, $schema, messages!(@more $($more)?)>($tag, payload, unknown)? {
                    Some(content) => $direction::$variant(messages!(@outer content $(, $boxed)?)),
                    None => $direction::Unknown { tag },
                },)+
                _ => {
                    unknown.message("message tag", tag);
                    $direction::Unknown { tag }
                }
            })
        }
    };
    (@more) => { Nothing };
    (@more $more:ty) => { $more };
    (@inner $content:ident) => { $content };
    (@inner $content:ident boxed) => { &**$content };
    (@outer $content:expr) => { $content };
    (@outer $content:expr, boxed) => { Box::new($content) };
}

messages! {
    FromAgent, encode_from_agent, decode_from_agent {
        1 => Hello, report::Hello<'_> [report::HelloAppended], boxed;
        2 => Report, report::HostReport<'_>, boxed;
        3 => Ack, command::Ack<'_>;
        4 => Events, event::AgentEvents<'_>;
        5 => Tasks, task::TaskStates<'_>;
        6 => Guests, guest::GuestNames<'_> [guest::GuestNamesAppended];
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
        106 => TaskJob, task::TaskJob<'_>, boxed;
        107 => Tasks, task::TaskOrders<'_>;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Welcome;
    use crate::schema::{appended, schema};

    schema! {
        /// A welcome as a release sent it before its last field came.
        Before<'a> = Welcome { software: &'a str, now: u64 } lacks { events_through: 0 }
    }
    appended! {
        After<'a> = Welcome { events_through: u64 }
    }

    fn sent<'a, More: Appended<'a, Welcome>>(welcome: &'a Welcome) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode::<_, Before<'_>, More>(101, welcome, &mut bytes).unwrap();
        bytes
    }

    fn received<'a, More: Appended<'a, Welcome>>(bytes: &'a [u8]) -> (Welcome, Unknowns) {
        let mut unknown = Unknowns::default();
        let welcome = decode::<_, Before<'_>, More>(101, bytes, &mut unknown).unwrap().unwrap();
        (welcome, unknown)
    }

    #[test]
    fn an_agent_of_an_older_release_does_not_say_whether_it_starts_tasks_of_root() {
        let said = |tasks_of_root| {
            let mut hello = crate::message::Hello {
                host: gleaner_types::id::HostId::new("h1").unwrap(),
                incarnation: 1,
                software: "0.1.0".to_owned(),
                now: gleaner_types::time::Timestamp(7),
                facts: gleaner_types::report::HostFacts {
                    cpu_model: String::new(),
                    cores: 1,
                    memory: gleaner_types::units::Bytes(1),
                    kernel: String::new(),
                    cgroups: gleaner_types::report::CgroupMode::V2,
                    offers: Vec::new(),
                    levers: gleaner_types::report::Levers::without_volunteer(false, Vec::new()),
                },
                tasks_of_root,
            };
            let mut bytes = Vec::new();
            encode::<_, report::Hello<'_>, report::HelloAppended>(1, &hello, &mut bytes).unwrap();
            let mut unknown = Unknowns::default();
            let read = decode::<_, report::Hello<'_>, report::HelloAppended>(1, &bytes, &mut unknown).unwrap().unwrap();
            assert_eq!((&read, unknown), (&hello, Unknowns::default()));
            // An older release reads the rest.
            let older = decode::<_, report::Hello<'_>, Nothing>(1, &bytes, &mut unknown).unwrap().unwrap();
            hello.tasks_of_root = None;
            assert_eq!(older, hello);
            bytes
        };
        let silent = said(None);
        for says in [false, true] {
            assert!(said(Some(says)).starts_with(&silent), "what an older release sends is only added to");
        }
    }

    #[test]
    fn a_message_that_got_a_field_is_read_by_older_and_by_newer_releases() {
        let known = Unknowns::default();
        let at_default =
            Welcome { software: "0.1.0".to_owned(), now: gleaner_types::time::Timestamp(7), events_through: 0 };
        let with = Welcome { events_through: 9, ..at_default.clone() };
        let older = sent::<Nothing>(&with);
        assert_eq!(received::<After>(&older), (at_default.clone(), known), "the older release sends no such field");
        assert_eq!(sent::<After>(&at_default), older, "at its default it is not sent");
        let newer = sent::<After>(&with);
        assert_eq!(received::<After>(&newer), (with, known));
        let (read, unknown) = received::<Nothing>(&newer);
        assert_eq!((read, unknown.fields), (at_default, 1));
    }
}
