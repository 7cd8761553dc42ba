//! What arrives at the core loop. In: from agents and joining hosts (the servers), operators, engines, sources of response
//! times, signals and the clock. Out: one [`Arrival`] each, in one channel, which the core loop takes in order.

use gleaner_daemon::metrics::Page;
use gleaner_net::tls::Validity;
use gleaner_net::transport::TransportError;
use gleaner_planner::controller::Settings;
use gleaner_types::application::ResponseTime;
use gleaner_types::command::Ack;
use gleaner_types::event::{Event, EventRecord};
use gleaner_types::id::{ApplicationId, HostId};
use gleaner_types::report::{HostFacts, HostReport};
use gleaner_wire::{FromAggregator, GuestNames, JoinRequest, ProtocolVersion, StandsBy, Unknowns};
use tokio::sync::{mpsc, oneshot};

use crate::engine::EngineReport;
use crate::enrolment::{Credentials, EnrolError};
use crate::event_log::EventLogSettings;
use crate::journal::JournalSettings;
use crate::operators::Operator;
use gleaner_api::{Request, Response};

/// Something that arrived.
#[derive(Debug)]
pub enum Arrival {
    /// An agent said hello.
    Joined(Joined),
    /// A connection ended.
    Lost {
        /// Whose.
        host: HostId,
        /// Which.
        connection: u64,
        /// Why.
        reason: String,
        /// Its agent was stopped, and said so.
        left: bool,
    },
    /// An agent's message held something that only a newer release knows.
    NotUnderstood(Unknowns),
    /// A report.
    Report(Box<HostReport>),
    /// What an agent's workloads are called.
    Guests {
        /// Whose.
        host: HostId,
        /// On which connection.
        connection: u64,
        /// All of them.
        names: GuestNames,
    },
    /// An answer to a command.
    Acked {
        /// Whose.
        host: HostId,
        /// The answer.
        ack: Ack,
    },
    /// Events of an agent; acknowledged on its connection once they are in the log, to last.
    Events {
        /// Whose.
        host: HostId,
        /// On which connection.
        connection: u64,
        /// Oldest first.
        records: Vec<EventRecord>,
    },
    /// An agent wants its next certificate.
    CertificateRequest {
        /// Whose.
        host: HostId,
        /// On which connection.
        connection: u64,
        /// PKCS #10, in DER.
        request: Vec<u8>,
    },
    /// A host that has no certificate wants to join.
    Joining(Joining),
    /// One got no further than that.
    JoinFailed {
        /// Its address.
        peer: String,
        /// Why.
        reason: String,
    },
    /// Certificates and keys were read anew, or could not be.
    Reloaded(Result<Box<Credentials>, TransportError>),
    /// Something the server noticed.
    Noticed(Event),
    /// An engine's report.
    Engine(EngineReport),
    /// What a source said of an application.
    Responded {
        /// Whose.
        application: ApplicationId,
        /// What.
        response: ResponseTime,
    },
    /// A request of an operator's tool.
    Api {
        /// Who asks.
        operator: Operator,
        /// What is asked.
        request: Request,
        /// Who waits for the answer.
        answer: oneshot::Sender<Response>,
    },
    /// A monitoring system asks how things are.
    Scraped {
        /// Who waits for the answer.
        answer: oneshot::Sender<Page>,
    },
    /// The config was read again; these parts of it can change now.
    Configured {
        /// Times the controller works by.
        settings: Settings,
        /// How much the event log keeps.
        event_log: EventLogSettings,
        /// How much the journal keeps.
        journal: JournalSettings,
    },
    /// A second passed.
    Tick,
    /// End in an orderly way.
    Stop,
    /// End, because this aggregator lost leadership, for this reason.
    Deposed(String),
}

/// A new connection of an agent.
#[derive(Debug)]
pub struct Joined {
    /// Its host.
    pub host: HostId,
    /// When the agent started.
    pub incarnation: u64,
    /// What the host is and offers.
    pub facts: Box<HostFacts>,
    /// Whether it starts tasks of root's, if its agent says.
    pub tasks_of_root: Option<bool>,
    /// Unique among connections.
    pub connection: u64,
    /// The version of the protocol that it speaks.
    pub version: ProtocolVersion,
    /// From when until when its certificate holds.
    pub certificate: Validity,
    /// Takes what is sent to the agent.
    pub sender: mpsc::Sender<FromAggregator>,
    /// Ends the connection at once, for a reason.
    pub closer: oneshot::Sender<String>,
    /// Receives the number through which the agent's events are in the log, or why the host is not taken.
    pub events_through: oneshot::Sender<Result<u64, Declined>>,
}

/// Why an agent is not taken.
#[derive(Debug)]
pub enum Declined {
    /// It is refused, for this reason.
    Refused(String),
    /// This aggregator does not lead.
    StandsBy(StandsBy),
}

/// A host without a certificate that wants one.
#[derive(Debug)]
pub struct Joining {
    /// Its address.
    pub peer: String,
    /// What it asks with.
    pub request: JoinRequest,
    /// Receives the certificate, or why there is none.
    pub answer: oneshot::Sender<Result<String, EnrolError>>,
}
