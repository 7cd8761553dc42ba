//! Commands, acknowledgements and the messages of the handshake in version 1. In: domain types. Out: their schemas, and
//! back. Called by `v1`.

use gleaner_types::command;
use gleaner_types::command::Refusal;
use serde::{Deserialize, Serialize};

use super::enumeration::variants;
use crate::message;
use crate::schema::{List, NotInVersion, Rejected, Travels, named, schema};
use crate::unknown::Unknowns;

schema! {
    Version = command::Version { epoch: u64, number: u64 }
}
schema! {
    DiskLimit = command::DiskLimit {
        read: Option<f64>,
        write: Option<f64>,
        read_operations: Option<f64>,
        write_operations: Option<f64>,
    }
}
schema! {
    NetworkLimit = command::NetworkLimit { receive: Option<f64>, transmit: Option<f64> }
}
schema! {
    Limits = command::Limits {
        quota: Quota,
        weight: Option<u32>,
        memory: Option<u64>,
        disk: DiskLimit,
        disk_weight: Option<u32>,
        network: NetworkLimit,
    }
}
schema! {
    /// A desired state of one target.
    Command<'a> = command::Command { target: Target<'a>, version: Version, lease_ms: u32, desired: Desired }
}
schema! {
    /// Answer to a command.
    Ack<'a> = command::Ack { target: Target<'a>, version: Version, outcome: Outcome<'a> }
}
schema! {
    /// The agent is accepted.
    Welcome<'a> = message::Welcome { software: &'a str, now: u64, events_through: u64 }
}
schema! {
    /// Another aggregator leads.
    StandsBy<'a> = message::StandsBy { leader: Option<&'a str> }
}

variants! {
    Reason = Refusal { ObserveOnly, Stale, UnknownTarget, NoLever, ForeignWrite, Forbidden, Failed }
}

/// What a command is about.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Target<'a> {
    Volunteer,
    #[serde(borrow)]
    Workload(&'a str),
}

impl<'a> Travels<'a, command::Target> for Target<'a> {
    fn of(domain: &'a command::Target) -> Result<Self, NotInVersion> {
        Ok(match domain {
            command::Target::Volunteer => Self::Volunteer,
            command::Target::Workload(id) => Self::Workload(id.as_str()),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<command::Target, Rejected> {
        Ok(match self {
            Self::Volunteer => command::Target::Volunteer,
            Self::Workload(id) => command::Target::Workload(id.into_domain(unknown)?),
        })
    }
}

/// A ceiling on CPU.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Quota {
    Unlimited,
    AtMost(f64),
}

impl<'a> Travels<'a, command::Quota> for Quota {
    fn of(domain: &'a command::Quota) -> Result<Self, NotInVersion> {
        Ok(match domain {
            command::Quota::Unlimited => Self::Unlimited,
            command::Quota::AtMost(share) => Self::AtMost(share.percent()),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<command::Quota, Rejected> {
        Ok(match self {
            Self::Unlimited => command::Quota::Unlimited,
            Self::AtMost(share) => command::Quota::AtMost(share.into_domain(unknown)?),
        })
    }
}

/// The state a target should be in.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Desired {
    Run { cap: Quota },
    Stop,
    Limit(Limits),
    Release,
}

impl<'a> Travels<'a, command::Desired> for Desired {
    fn of(domain: &'a command::Desired) -> Result<Self, NotInVersion> {
        Ok(match domain {
            command::Desired::Run { cap } => Self::Run { cap: Quota::of(cap)? },
            command::Desired::Stop => Self::Stop,
            command::Desired::Limit(limits) => Self::Limit(Limits::of(limits)?),
            command::Desired::Release => Self::Release,
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<command::Desired, Rejected> {
        Ok(match self {
            Self::Run { cap } => command::Desired::Run { cap: named("cap", cap.into_domain(unknown))? },
            Self::Stop => command::Desired::Stop,
            Self::Limit(limits) => command::Desired::Limit(limits.into_domain(unknown)?),
            Self::Release => command::Desired::Release,
        })
    }
}

/// What came of a command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) enum Outcome<'a> {
    Applied { limits: Limits, shortfalls: List<&'a str> },
    Refused { reason: Reason, detail: &'a str },
}

impl<'a> Travels<'a, command::Outcome> for Outcome<'a> {
    fn of(domain: &'a command::Outcome) -> Result<Self, NotInVersion> {
        Ok(match domain {
            command::Outcome::Applied { limits, shortfalls } => {
                Self::Applied { limits: Limits::of(limits)?, shortfalls: Travels::of(shortfalls)? }
            }
            command::Outcome::Refused { reason, detail } => Self::Refused { reason: Reason::of(reason)?, detail },
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<command::Outcome, Rejected> {
        Ok(match self {
            Self::Applied { limits, shortfalls } => command::Outcome::Applied {
                limits: limits.into_domain(unknown)?,
                shortfalls: shortfalls.into_domain(unknown)?,
            },
            Self::Refused { reason, detail } => {
                command::Outcome::Refused { reason: reason.into_domain(unknown)?, detail: detail.to_owned() }
            }
        })
    }
}

/// The only message of a host that joins.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct JoinRequest<'a> {
    secret: [u8; 16],
    request: crate::schema::Raw<'a>,
}

impl<'a> Travels<'a, message::JoinRequest> for JoinRequest<'a> {
    fn of(domain: &'a message::JoinRequest) -> Result<Self, NotInVersion> {
        Ok(Self { secret: *domain.secret.as_bytes(), request: Travels::of(&domain.request)? })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<message::JoinRequest, Rejected> {
        let secret = message::JoinSecret::from_bytes(self.secret);
        Ok(message::JoinRequest { secret, request: self.request.into_domain(unknown)? })
    }
}
