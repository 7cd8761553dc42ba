//! Commands, acknowledgements and the messages of the handshake in version 2. In: domain types. Out: their schemas, and
//! back. Called by `v2`.

use gleaner_types::command;
use gleaner_types::command::{Quota, Refusal};
use serde::{Deserialize, Serialize};

use super::variant::{Code, Variant, codes};
use crate::message;
use crate::schema::{Block, List, NotInVersion, Raw, Rejected, Travels, named, schema};
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
        quota: Ceiling,
        weight: Option<u32>,
        memory: Option<u64>,
        disk: DiskLimit,
        disk_weight: Option<u32>,
        network: NetworkLimit,
    }
}
schema! {
    /// A desired state of one target.
    Command<'a> = command::Command { target: Variant<'a>, version: Version, lease_ms: u32, desired: Variant<'a> }
}
schema! {
    /// Answer to a command.
    Ack<'a> = command::Ack { target: Variant<'a>, version: Version, outcome: Variant<'a> }
}
schema! {
    /// The agent is accepted.
    Welcome<'a> = message::Welcome { software: &'a str, now: u64, events_through: u64 }
}
schema! {
    /// Another aggregator leads.
    StandsBy<'a> = message::StandsBy { leader: Option<&'a str> }
}

codes! {
    Refusal, "reason of a refusal" {
        1 = ObserveOnly, 2 = Stale, 3 = UnknownTarget, 4 = NoLever, 5 = ForeignWrite, 6 = Forbidden, 7 = Failed,
    }
}

/// A ceiling on CPU; `None` is none.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ceiling(Option<f64>);

impl<'a> Travels<'a, Quota> for Ceiling {
    fn of(domain: &'a Quota) -> Result<Self, NotInVersion> {
        Ok(Self(match domain {
            Quota::Unlimited => None,
            Quota::AtMost(share) => Some(share.percent()),
        }))
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<Quota, Rejected> {
        Ok(match self.0 {
            None => Quota::Unlimited,
            Some(share) => Quota::AtMost(share.into_domain(unknown)?),
        })
    }
}

impl<'a> Travels<'a, command::Target> for Variant<'a> {
    fn of(domain: &'a command::Target) -> Result<Self, NotInVersion> {
        Ok(match domain {
            command::Target::Volunteer => Self::new(1, &()),
            command::Target::Workload(id) => Self::new(2, &id.as_str()),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<command::Target, Rejected> {
        Ok(match self.code {
            1 => {
                self.content::<()>(unknown)?;
                command::Target::Volunteer
            }
            2 => command::Target::Workload(self.content::<&str>(unknown)?.into_domain(unknown)?),
            code => return Err(Rejected::unknown("target", code)),
        })
    }
}

impl<'a> Travels<'a, command::Desired> for Variant<'a> {
    fn of(domain: &'a command::Desired) -> Result<Self, NotInVersion> {
        Ok(match domain {
            command::Desired::Run { cap } => Self::new(1, &Ceiling::of(cap)?),
            command::Desired::Stop => Self::new(2, &()),
            command::Desired::Limit(limits) => Self::new(3, &Limits::of(limits)?),
            command::Desired::Release => Self::new(4, &()),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<command::Desired, Rejected> {
        Ok(match self.code {
            1 => command::Desired::Run { cap: named("cap", self.content::<Ceiling>(unknown)?.into_domain(unknown))? },
            2 => {
                self.content::<()>(unknown)?;
                command::Desired::Stop
            }
            3 => command::Desired::Limit(self.content::<Limits>(unknown)?.into_domain(unknown)?),
            4 => {
                self.content::<()>(unknown)?;
                command::Desired::Release
            }
            code => return Err(Rejected::unknown("desired state", code)),
        })
    }
}

impl<'a> Travels<'a, command::Outcome> for Variant<'a> {
    fn of(domain: &'a command::Outcome) -> Result<Self, NotInVersion> {
        Ok(match domain {
            command::Outcome::Applied { limits, shortfalls } => {
                let limits: Block<'_, Limits> = Block::of(limits)?;
                Self::new(1, &(limits, shortfalls))
            }
            command::Outcome::Refused { reason, detail } => Self::new(2, &(Code::of(reason)?, detail)),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<command::Outcome, Rejected> {
        Ok(match self.code {
            1 => {
                let (limits, shortfalls): (Block<'_, Limits>, List<&str>) = self.content(unknown)?;
                let (limits, shortfalls) = (limits.into_domain(unknown)?, shortfalls.into_domain(unknown)?);
                command::Outcome::Applied { limits, shortfalls }
            }
            2 => {
                let (reason, detail): (Code, String) = self.content(unknown)?;
                command::Outcome::Refused { reason: reason.into_domain(unknown)?, detail }
            }
            code => return Err(Rejected::unknown("outcome of a command", code)),
        })
    }
}

/// The only message of a host that joins.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct JoinRequest<'a> {
    secret: [u8; 16],
    request: Raw<'a>,
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
