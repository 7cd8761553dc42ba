//! The messages, one enum per direction, as the daemons know them. In: values of the domain's types, from the daemons.
//! Out: the same at the other daemon. Both daemons make and read them; `v1` and `v2` convert them to each version's
//! form.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::frame::{FrameError, Message};
use crate::unknown::Unknowns;
use crate::version::ProtocolVersion;
use crate::{v1, v2};
use gleaner_types::command::{Ack, Command};
use gleaner_types::event::EventRecord;
use gleaner_types::guest::GuestName;
use gleaner_types::id::{GuestText, HostId};
use gleaner_types::report::{HostFacts, HostReport};
use gleaner_types::task::{TaskJob, TaskOrders, TaskState};
use gleaner_types::time::Timestamp;

/// First message of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Its host; must be the one in its certificate.
    pub host: HostId,
    /// When the agent started, in milliseconds since the Unix epoch; tells a restart from a reconnection.
    pub incarnation: u64,
    /// Version of its software.
    pub software: String,
    /// Its clock, for the time check.
    pub now: Timestamp,
    /// What does not change.
    pub facts: HostFacts,
    /// Whether tasks of root's are started there; `None` where the agent does not say, as that of an older release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks_of_root: Option<bool>,
}

/// Answer to a [`Hello`]; only now is the agent connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Version of the aggregator's software.
    pub software: String,
    /// The aggregator's clock.
    pub now: Timestamp,
    /// Sequence number of the last event of this incarnation that is safely in the log; 0 if none.
    pub events_through: u64,
}

/// Answer to a [`Hello`] by an aggregator that does not lead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandsBy {
    /// The aggregator that leads, where one does.
    pub leader: Option<HostId>,
}

/// Events of an agent, oldest first. The agent keeps them until they are acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEvents {
    /// The events; their source is the agent.
    pub events: Vec<EventRecord>,
}

/// How attempts at tasks are, as an agent says it: all it knows when a connection begins, then what changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStates {
    /// The states.
    pub states: Vec<TaskState>,
}

/// What the workloads of a host are called: all of them, when a connection begins and whenever that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNames {
    /// In no order.
    pub guests: Vec<GuestName>,
    /// Globs of `foreground.cgroups` in the agent's config that match no cgroup now.
    #[serde(default)]
    pub unmatched: Vec<GuestText>,
}

/// The secret of an invitation: 128 random bits. Never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinSecret([u8; 16]);

impl JoinSecret {
    /// A secret of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret")
    }
}

/// The only message of a host that joins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The secret of its token.
    pub secret: JoinSecret,
    /// Its request for a certificate (PKCS #10, in DER). Only the key counts; the name is the invitation's.
    pub request: Vec<u8>,
}

macro_rules! messages {
    (
        $(#[$doc:meta])* $name:ident, $encode:ident, $decode:ident {
            $($(#[$vdoc:meta])* $tag:literal => $variant:ident($payload:ty)),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $($(#[$vdoc])* $variant($payload),)+
            /// A message that only a newer release knows, or that is about something only that knows. It is skipped.
            Unknown {
                /// Its tag.
                tag: u16,
            },
        }

        impl Message for $name {
            fn tag(&self) -> u16 {
                match self {
                    $(Self::$variant(_) => $tag,)+
                    Self::Unknown { tag } => *tag,
                }
            }

            fn encode_payload(&self, version: ProtocolVersion, into: &mut Vec<u8>) -> Result<(), FrameError> {
                match version {
                    ProtocolVersion::V1 => v1::$encode(self, into),
                    ProtocolVersion::V2 => v2::$encode(self, into),
                }
            }

            fn decode_payload(
                version: ProtocolVersion,
                tag: u16,
                payload: &[u8],
                unknown: &mut Unknowns,
            ) -> Result<Self, FrameError> {
                match version {
                    ProtocolVersion::V1 => v1::$decode(tag, payload),
                    ProtocolVersion::V2 => v2::$decode(tag, payload, unknown),
                }
            }
        }
    };
}

messages! {
    /// What agents send. Reports go on their own stream; everything else on the control stream.
    FromAgent, encode_from_agent, decode_from_agent {
        /// First message.
        1 => Hello(Box<Hello>),
        /// One second of the host.
        2 => Report(Box<HostReport>),
        /// What came of a command.
        3 => Ack(Ack),
        /// What happened on the host.
        4 => Events(AgentEvents),
        /// How tasks are.
        5 => Tasks(TaskStates),
        /// What its workloads are called.
        6 => Guests(GuestNames),
        /// A request for the next certificate (PKCS #10, in DER).
        11 => CertificateRequest(Vec<u8>),
    }
}

messages! {
    /// What the aggregator sends, all on the control stream.
    FromAggregator, encode_from_aggregator, decode_from_aggregator {
        /// The agent is accepted.
        101 => Welcome(Welcome),
        /// The agent is not accepted; the connection closes.
        102 => Refused(String),
        /// Desired state of a target.
        103 => Command(Command),
        /// Events up to this sequence number are safely in the log.
        104 => EventsThrough(u64),
        /// The agent is not accepted here, but by another aggregator; the connection closes.
        105 => StandsBy(StandsBy),
        /// What a job's tasks have in common.
        106 => TaskJob(Box<TaskJob>),
        /// What is to become of tasks.
        107 => Tasks(TaskOrders),
        /// The next certificate, in PEM.
        111 => Certificate(String),
        /// There is no next certificate now, and why.
        112 => CertificateRefused(String),
    }
}

messages! {
    /// What a host sends that joins.
    FromJoiner, encode_from_joiner, decode_from_joiner {
        /// First and only message.
        201 => Join(JoinRequest),
    }
}

messages! {
    /// What it gets.
    ToJoiner, encode_to_joiner, decode_to_joiner {
        /// Its certificate, in PEM.
        301 => Joined(String),
        /// It may not join, and why.
        302 => Refused(String),
    }
}
