//! Why the acceptor refuses a peer or a message. In: a failure on a connection. Out: errors, whose texts go to the peer
//! and into events. Only `server` makes them.

use gleaner_net::stream::ReadError;
use gleaner_net::tls::MAX_REQUEST;
use gleaner_net::transport::PeerError;
use gleaner_types::event::EventSource;
use gleaner_types::id::HostId;
use gleaner_types::report::MAX_WORKLOADS;

/// Longest event that is taken from an agent, in bytes of its line; an answer to a command may become one.
pub(super) const MAX_EVENT: usize = gleaner_types::event::LONGEST;

/// A peer was not welcomed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerRefusal {
    /// The handshake failed, or the connection before the hello.
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    /// The peer speaks no version of the protocol that this aggregator speaks, and not the exchange of versions either.
    #[error("{0}; this aggregator speaks versions {own}", own = gleaner_wire::own_versions())]
    NoCommonProtocol(quinn::ConnectionError),
    /// The versions were exchanged and none is common; the text names both sides'.
    #[error("{0}")]
    NoCommonVersion(String),
    /// The handshake took too long.
    #[error("no handshake in time")]
    HandshakeTimeout,
    /// The handshake ended without a protocol.
    #[error("no protocol was agreed on")]
    NoProtocol,
    /// The certificate names no host.
    #[error(transparent)]
    Certificate(#[from] PeerError),
    /// The host has connected too often of late.
    #[error("host {0} connects too often")]
    TooOften(HostId),
    /// The hello took too long.
    #[error("host {0} sends no hello")]
    HelloTimeout(HostId),
    /// The hello is no message of the protocol.
    #[error("the hello of host {host} cannot be read")]
    HelloUnreadable {
        /// Whose.
        host: HostId,
        /// Why.
        source: ReadError,
    },
    /// The first message is another one.
    #[error("host {0} does not begin with a hello")]
    NotHello(HostId),
    /// The hello is of another host than the certificate.
    #[error("the certificate is of host {certificate}, the hello of host {hello}")]
    OtherHost {
        /// The certificate's host.
        certificate: HostId,
        /// The hello's host.
        hello: HostId,
    },
    /// As many agents are connected as the config allows.
    #[error("there is no place for host {0}: max_agents is reached")]
    NoPlace(HostId),
    /// The core loop does not take it, for this reason.
    #[error("{0}")]
    Declined(String),
    /// The core loop is gone.
    #[error("the aggregator is stopping")]
    Stopping,
}

/// A message of a welcomed agent is refused, which ends its connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessageRefusal {
    /// An agent reports for its own host only.
    #[error("a report for host {of} from host {from}")]
    ReportOfAnother {
        /// The report's host.
        of: HostId,
        /// The agent's host.
        from: HostId,
    },
    /// A report is too large.
    #[error("a report with {0} workloads; at most {MAX_WORKLOADS} are taken")]
    ManyWorkloads(usize),
    /// The stream of reports carries nothing else.
    #[error("something else than a report on the stream of reports")]
    NotReport,
    /// An answer to a command is too long for an event.
    #[error("an answer to a command of more than {MAX_EVENT} bytes")]
    LongAck,
    /// An agent sends its own events only.
    #[error("an event of another source: {0:?}")]
    EventOfAnother(EventSource),
    /// An event is too long.
    #[error("an event of more than {MAX_EVENT} bytes")]
    LongEvent,
    /// A certificate request is too long.
    #[error("a request for a certificate of {0} bytes; at most {MAX_REQUEST} are taken")]
    LongCertificateRequest(usize),
    /// A connection has one hello.
    #[error("a second hello")]
    SecondHello,
    /// Reports have a stream of their own.
    #[error("a report on the control stream")]
    ReportOnControl,
}
