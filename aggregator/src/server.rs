//! The acceptor of agents. In: connections, their hellos, then their messages, each an [`Arrival`] for the core loop.
//! Out: welcomes, and the core loop's messages to each agent. Started by the daemon.
//!
//! A bad peer harms only itself. An unknown peer takes no place of an agent. Frames are limited in size. A peer that
//! sends too fast is not read for a while. Any error ends the peer's own connection.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use gleaner_daemon::clock::Clock;
use gleaner_net::stream::{read_counting, write_message};
use gleaner_net::tls::{MAX_REQUEST, Validity};
use gleaner_net::transport;
use gleaner_types::command::{Ack, Outcome};
use gleaner_types::error::chain;
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::HostId;
use gleaner_types::report::MAX_WORKLOADS;
use gleaner_types::task::TaskOrders;
use gleaner_wire::{
    AgentEvents, FromAgent, FromAggregator, GuestNames, Hello, MAX_FRAME, ProtocolVersion, Purpose, TaskStates,
    Unknowns, Welcome,
};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::arrival::{Arrival, Declined, Joined};
use crate::engine::TaskLink;
use crate::pending::{Holder, Places};
use crate::standby::LeaderLease;
use crate::{connection, joining};
use refusal::{MAX_EVENT, MessageRefusal, PeerRefusal};

/// Longest wait for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the hello after it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a peer to take the answer to its hello.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages that wait for an agent; of more the new one is dropped, see `Shell::send`.
const OUTGOING: usize = 256;

/// Messages a host may send per second in the long run, and at once: all the reports and events that its agent keeps by
/// default while it has no connection. All of these rates and numbers are chosen.
const RATE: (f64, f64) = (50.0, 5_000.0);

/// Events of a host per second in the long run, and at once, each counted once and for every KiB that it is longer: what one
/// host says may take hours to push what others said out of the event log, and not minutes.
const EVENTS: (f64, f64) = (5.0, 5_000.0);

/// So many bytes of an event count as one.
const BYTES_PER_EVENT: usize = 1 << 10;

/// Times an agent may connect per second in the long run, and at once. A well-behaved one pauses in between. Each is two
/// events, which count as the host's.
const CONNECTS: (f64, f64) = (0.1, 20.0);

/// Refused peers that are logged as events, per second in the long run, and at once.
const REFUSALS_LOGGED: (f64, f64) = (0.1, 20.0);

/// So many bytes of a message count as one more.
const BYTES_PER_PERMIT: usize = 32 << 10;

/// Longest hello, in bytes: several times what a host has to say of itself. It becomes an event too.
const MAX_HELLO: usize = 32 << 10;

/// With this many pending handshakes, a new peer must first prove that its address is its own.
const ADDRESS_PROOF_FROM: usize = 64;

/// The acceptor: what all connections share.
struct Acceptor {
    /// Places of agents that were welcomed.
    places: Arc<Semaphore>,
    /// Pending handshakes.
    pending: Mutex<Places>,
    /// How often each host has connected of late. Hosts have certificates, so there are no more than were issued.
    connects: Mutex<BTreeMap<HostId, Rate>>,
    /// How much each host has sent of late, over all of its connections.
    sent: Mutex<BTreeMap<HostId, Sent>>,
    /// Refusals that may be logged, and how many were not.
    refusals: Mutex<(Rate, u64)>,
    clock: Clock,
    arrivals: mpsc::Sender<Arrival>,
    leader_lease: LeaderLease,
    /// Takes what this machine's agent says of tasks.
    tasks: TaskLink,
}

/// A connection that has not been welcomed yet. It holds a place until it is dropped.
struct PendingHandshake {
    acceptor: Arc<Acceptor>,
    address: IpAddr,
    holder: Holder,
}

impl PendingHandshake {
    /// It is over, by a welcome.
    fn welcomed(self) {
        self.acceptor.pending().welcomed(self.address);
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.acceptor.pending().give_back(self.holder);
    }
}

impl Acceptor {
    fn pending(&self) -> MutexGuard<'_, Places> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more pending handshake; `None` when there are too many already. Also how many there are.
    fn begin_handshake(self: &Arc<Self>, address: IpAddr) -> (Option<PendingHandshake>, usize) {
        let (holder, all) = self.pending().take(address);
        (holder.map(|holder| PendingHandshake { acceptor: Arc::clone(self), address, holder }), all)
    }

    /// Whether this host may connect once more now.
    fn may_connect(&self, host: &HostId) -> bool {
        let mut connects = self.connects.lock().unwrap_or_else(PoisonError::into_inner);
        connects.entry(host.clone()).or_insert_with(|| Rate::new(CONNECTS)).take()
    }

    /// What this host may send.
    fn sent(&self, host: &HostId) -> Sent {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.entry(host.clone()).or_default().clone()
    }

    /// Logs a refused peer, unless there were many of late.
    async fn refused(&self, peer: String, mut reason: String) {
        {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            let (rate, unlogged) = &mut *refusals;
            if !rate.take() {
                *unlogged += 1;
                return;
            }
            if std::mem::take(unlogged) > 0 {
                reason.push_str(" (and others before, too many to tell of each)");
            }
        }
        // The shell is gone only while the aggregator stops.
        _ = self.arrivals.send(Arrival::Noticed(Event::PeerRefused { peer, reason })).await;
    }
}

/// Accepts agents until the endpoint is closed.
pub(crate) async fn serve(
    endpoint: quinn::Endpoint,
    max_agents: usize,
    clock: Clock,
    arrivals: mpsc::Sender<Arrival>,
    leader_lease: LeaderLease,
    tasks: TaskLink,
) {
    let acceptor = Arc::new(Acceptor {
        places: Arc::new(Semaphore::new(max_agents)),
        pending: Mutex::default(),
        connects: Mutex::default(),
        sent: Mutex::default(),
        refusals: Mutex::new((Rate::new(REFUSALS_LOGGED), 0)),
        clock,
        arrivals,
        leader_lease,
        tasks,
    });
    let joining = joining::Places::new();
    let connections = AtomicU64::new(0);
    while let Some(incoming) = endpoint.accept().await {
        let (handshake, all_pending) = acceptor.begin_handshake(incoming.remote_address().ip());
        let Some(handshake) = handshake else {
            incoming.refuse();
            continue;
        };
        if all_pending >= ADDRESS_PROOF_FROM && !incoming.remote_address_validated() && incoming.may_retry() {
            // It comes again with a token, which is no error.
            _ = incoming.retry();
            continue;
        }
        let (acceptor, id) = (Arc::clone(&acceptor), connections.fetch_add(1, Ordering::Relaxed));
        let joining = joining.clone();
        tokio::spawn(async move {
            let peer = incoming.remote_address().to_string();
            if let Err(refusal) = accept(incoming, id, &acceptor, &joining, handshake).await {
                acceptor.refused(peer, chain(&refusal)).await;
            }
        });
    }
}

/// One connection from handshake to end. An error means that the peer was never welcomed.
async fn accept(
    incoming: quinn::Incoming,
    id: u64,
    acceptor: &Acceptor,
    joining: &joining::Places,
    handshake: PendingHandshake,
) -> Result<(), PeerRefusal> {
    let arrivals = &acceptor.arrivals;
    let peer = incoming.remote_address().to_string();
    let connecting = incoming.accept().map_err(handshake_failure)?;
    let connection = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting)
        .await
        .map_err(|_| PeerRefusal::HandshakeTimeout)?
        .map_err(handshake_failure)?;
    let version = match transport::purpose(&connection) {
        Some(Purpose::Agent(version)) => version,
        Some(Purpose::Join(version)) => {
            joining.serve(&connection, version, &peer, arrivals).await;
            return Ok(());
        }
        Some(Purpose::Versions) => {
            return Err(PeerRefusal::NoCommonVersion(transport::tell_versions(&connection).await));
        }
        None => return Err(PeerRefusal::NoProtocol),
    };
    // The handshake lets a peer without a certificate through; it ends here.
    let (host, certificate) =
        transport::peer(&connection).inspect_err(|error| connection.close(1u8.into(), error.to_string().as_bytes()))?;
    if !acceptor.may_connect(&host) {
        connection.close(1u8.into(), b"too many connections of this host");
        return Err(PeerRefusal::TooOften(host));
    }
    let mut unknown = Unknowns::default();
    let receive_hello = async {
        let (send, mut receive) = connection.accept_bi().await?;
        let message = read_counting(&mut receive, version, MAX_HELLO, &mut unknown).await.map_err(|source| {
            connection.close(1u8.into(), source.to_string().as_bytes());
            PeerRefusal::HelloUnreadable { host: host.clone(), source }
        })?;
        Ok::<_, PeerRefusal>((send, receive, message))
    };
    let (mut send, receive, message) = tokio::time::timeout(HELLO_TIMEOUT, receive_hello)
        .await
        .map_err(|_| PeerRefusal::HelloTimeout(host.clone()))??;
    let hello = match message {
        Some(FromAgent::Hello(hello)) if hello.host == host => hello,
        Some(FromAgent::Hello(hello)) => {
            let refusal = PeerRefusal::OtherHost { certificate: host, hello: hello.host };
            return Err(refuse(&connection, version, &mut send, refusal).await);
        }
        _ => return Err(refuse(&connection, version, &mut send, PeerRefusal::NotHello(host)).await),
    };
    let sent = acceptor.sent(&host);
    sent.count_events(weight_of_hello(&hello));
    let Ok(_place) = Arc::clone(&acceptor.places).try_acquire_owned() else {
        return Err(refuse(&connection, version, &mut send, PeerRefusal::NoPlace(host)).await);
    };
    let incarnation = hello.incarnation;
    let handshake_peer = HandshakePeer { hello: *hello, id, version, certificate };
    let (outgoing, closed) = match handshake_peer.welcome(acceptor.clock, arrivals, &connection, &mut send).await? {
        Ok(welcomed) => welcomed,
        Err(Declined::Refused(reason)) => {
            return Err(refuse(&connection, version, &mut send, PeerRefusal::Declined(reason)).await);
        }
        Err(Declined::StandsBy(stands_by)) => {
            // It goes to another aggregator, once it has read where.
            connection::send(&connection, version, &mut send, &FromAggregator::StandsBy(stands_by), ANSWER_TIMEOUT)
                .await;
            _ = send.finish();
            _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
            return Ok(());
        }
    };
    handshake.welcomed();
    if !unknown.is_empty() {
        _ = arrivals.send(Arrival::NotUnderstood(unknown)).await;
    }
    let peer = Peer {
        host: host.clone(),
        incarnation,
        connection: id,
        version,
        arrivals: arrivals.clone(),
        leader_lease: acceptor.leader_lease.clone(),
        tasks: acceptor.tasks.clone(),
        sent,
    };
    let reason = tokio::select! {
        // First, because who requests it also drops the channel of messages, which ends the conversation as well.
        biased;
        reason = close_requested(closed) => reason,
        reason = peer.converse(&connection, send, receive, outgoing) => reason,
        () = expired(certificate) => format!("the certificate of host {host} has expired"),
    };
    let left = transport::has_left(&connection);
    connection.close(0u8.into(), reason.as_bytes());
    _ = arrivals.send(Arrival::Lost { host, connection: id, reason, left }).await;
    Ok(())
}

/// Why a handshake failed. Where no version of the protocol is common, with those there are here.
fn handshake_failure(error: quinn::ConnectionError) -> PeerRefusal {
    match transport::shares_no_protocol(&error) {
        true => PeerRefusal::NoCommonProtocol(error),
        false => PeerRefusal::Connection(error),
    }
}

/// Tells a peer why it is refused, and ends its connection. Returns the refusal.
async fn refuse(
    connection: &quinn::Connection,
    version: ProtocolVersion,
    send: &mut quinn::SendStream,
    refusal: PeerRefusal,
) -> PeerRefusal {
    let reason = refusal.to_string();
    // Best effort: the peer learns why, if it still listens.
    connection::send(connection, version, send, &FromAggregator::Refused(reason.clone()), ANSWER_TIMEOUT).await;
    _ = send.finish();
    _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
    connection.close(1u8.into(), reason.as_bytes());
    refusal
}

/// Waits until the core loop ends the connection for a reason. That it merely forgets it shows elsewhere.
async fn close_requested(closed: oneshot::Receiver<String>) -> String {
    match closed.await {
        Ok(reason) => reason,
        Err(_) => std::future::pending().await,
    }
}

/// Waits until a certificate has expired, by the wall clock.
async fn expired(certificate: Validity) {
    loop {
        let left = certificate.until.since(Clock::start().now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_secs(600))).await;
    }
}

/// What a welcomed agent is sent, and the request to close its connection.
type Welcomed = (mpsc::Receiver<FromAggregator>, oneshot::Receiver<String>);

/// The other side of a pending handshake, once its hello has arrived.
struct HandshakePeer {
    hello: Hello,
    id: u64,
    version: ProtocolVersion,
    certificate: Validity,
}

impl HandshakePeer {
    /// Announces it to the core loop and sends the welcome. The inner error is why it is not taken.
    async fn welcome(
        self,
        clock: Clock,
        arrivals: &mpsc::Sender<Arrival>,
        connection: &quinn::Connection,
        send: &mut quinn::SendStream,
    ) -> Result<Result<Welcomed, Declined>, PeerRefusal> {
        let (sender, outgoing) = mpsc::channel(OUTGOING);
        let (events_through, answer) = oneshot::channel();
        let (closer, closed) = oneshot::channel();
        let Self { hello, id, version, certificate } = self;
        let joined = Joined {
            host: hello.host,
            incarnation: hello.incarnation,
            facts: Box::new(hello.facts),
            tasks_of_root: hello.tasks_of_root,
            connection: id,
            version,
            certificate,
            sender,
            closer,
            events_through,
        };
        arrivals.send(Arrival::Joined(joined)).await.map_err(|_| PeerRefusal::Stopping)?;
        let events_through = match answer.await.map_err(|_| PeerRefusal::Stopping)? {
            Ok(through) => through,
            Err(reason) => return Ok(Err(reason)),
        };
        let software = env!("CARGO_PKG_VERSION").to_owned();
        let welcome = FromAggregator::Welcome(Welcome { software, now: clock.now(), events_through });
        connection::send(connection, version, send, &welcome, ANSWER_TIMEOUT).await;
        Ok(Ok((outgoing, closed)))
    }
}

/// An agent that was welcomed.
struct Peer {
    host: HostId,
    incarnation: u64,
    connection: u64,
    version: ProtocolVersion,
    arrivals: mpsc::Sender<Arrival>,
    leader_lease: LeaderLease,
    tasks: TaskLink,
    /// What its host may send, on both streams and also after it has connected anew.
    sent: Sent,
}

/// What a host may send.
#[derive(Clone)]
struct Sent {
    messages: Arc<Mutex<Rate>>,
    events: Arc<Mutex<SentEvents>>,
}

impl Default for Sent {
    fn default() -> Self {
        let events = SentEvents { rate: Rate::new(EVENTS), incarnation: 0, through: 0 };
        Self { messages: Arc::new(Mutex::new(Rate::new(RATE))), events: Arc::new(Mutex::new(events)) }
    }
}

impl Sent {
    fn messages(&self) -> MutexGuard<'_, Rate> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what will be in the event log. Returns how long the host has to wait for it.
    fn count(&self, arrival: &Arrival) -> Duration {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let weight = match arrival {
            Arrival::Events { records, .. } => records.iter().filter_map(|record| events.weight(record)).sum(),
            Arrival::Acked { ack, .. } => weight_of_ack(ack),
            // A certificate, and a refusal of one more, is an event.
            Arrival::CertificateRequest { .. } => 1,
            _ => 0,
        };
        events.count(weight)
    }

    /// Counts events of the aggregator's own that the host has caused.
    fn count_events(&self, weight: usize) -> Duration {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).count(weight)
    }
}

/// Events that a host has sent.
struct SentEvents {
    rate: Rate,
    /// Up to this number of this incarnation they are counted: what is sent again is logged once.
    incarnation: u64,
    through: u64,
}

impl SentEvents {
    fn count(&mut self, weight: usize) -> Duration {
        self.rate.refill();
        self.rate.spend(weight);
        self.rate.owed()
    }

    fn weight(&mut self, record: &EventRecord) -> Option<usize> {
        let EventSource::Agent { incarnation, sequence, .. } = record.source else { return None };
        if incarnation == self.incarnation && sequence <= self.through {
            return None;
        }
        (self.incarnation, self.through) = (incarnation, sequence);
        Some(weight(line_length(record).unwrap_or(MAX_EVENT)))
    }
}

/// What a line of so many bytes in the event log counts.
const fn weight(bytes: usize) -> usize {
    1 + bytes / BYTES_PER_EVENT
}

/// The event that a host has joined names its weaknesses; that it is lost is another.
fn weight_of_hello(hello: &Hello) -> usize {
    1 + weight(hello.facts.levers.weaknesses.iter().map(String::len).sum())
}

/// A refusal and a shortfall become events.
fn weight_of_ack(ack: &Ack) -> usize {
    match &ack.outcome {
        Outcome::Applied { shortfalls, .. } if shortfalls.is_empty() => 0,
        Outcome::Applied { .. } | Outcome::Refused { .. } => {
            weight(serde_json::to_vec(ack).map_or(MAX_EVENT, |text| text.len()))
        }
    }
}

impl Peer {
    /// Moves messages both ways until the connection ends; says why it did.
    async fn converse(
        &self,
        connection: &quinn::Connection,
        mut send: quinn::SendStream,
        receive: quinn::RecvStream,
        mut outgoing: mpsc::Receiver<FromAggregator>,
    ) -> String {
        let write = async {
            while let Some(message) = outgoing.recv().await {
                // It may have waited here for long.
                let orders = matches!(
                    message,
                    FromAggregator::Command(_) | FromAggregator::TaskJob(_) | FromAggregator::Tasks(_)
                );
                if orders && !self.leader_lease.holds() {
                    return "this aggregator lost leadership".to_owned();
                }
                if let FromAggregator::Tasks(TaskOrders { orders, .. }) = &message {
                    // What answers an order, its beginning and its end, costs the host nothing.
                    self.sent.messages().permits += 2.0 * orders.len() as f64;
                }
                if let Err(error) = write_message(&mut send, self.version, &message).await {
                    return error.to_string();
                }
            }
            "the aggregator stops, or leads no more".to_owned()
        };
        let reports = async {
            match connection.accept_uni().await {
                Ok(stream) => self.read(stream, Self::report_stream).await,
                Err(error) => error.to_string(),
            }
        };
        tokio::select! {
            reason = write => reason,
            reason = reports => reason,
            reason = self.read(receive, Self::control_stream) => reason,
            error = connection.closed() => error.to_string(),
        }
    }

    /// Reads a stream to its end, or to the first message that is refused.
    async fn read(
        &self,
        stream: quinn::RecvStream,
        sort: fn(&Self, FromAgent) -> Result<Option<Arrival>, MessageRefusal>,
    ) -> String {
        let mut stream = Counted { stream, bytes: 0 };
        let mut all = Unknowns::default();
        // What an earlier connection has left, and what this one began with.
        let mut owed = self.sent.count_events(0);
        loop {
            let wait = {
                let mut rate = self.sent.messages();
                rate.spend(std::mem::take(&mut stream.bytes) / BYTES_PER_PERMIT);
                rate.claim().max(owed)
            };
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let mut unknown = Unknowns::default();
            let refusal = match read_counting(&mut stream, self.version, MAX_FRAME, &mut unknown).await {
                // Straight to the jobs' runners, which go on while the core loop ends. Other hosts were ordered nothing.
                Ok(Some(FromAgent::Tasks(TaskStates { states }))) => {
                    if self.host == *self.tasks.host() {
                        self.tasks.states(states).await;
                    }
                    match self.pass_on(self.not_understood(unknown, &mut all).into_iter()).await {
                        true => continue,
                        false => return "the aggregator is stopping".to_owned(),
                    }
                }
                Ok(Some(message)) => match sort(self, message) {
                    Ok(arrival) => {
                        owed = arrival.as_ref().map_or(Duration::ZERO, |arrival| self.sent.count(arrival));
                        let unknown = self.not_understood(unknown, &mut all);
                        match self.pass_on(unknown.into_iter().chain(arrival)).await {
                            true => continue,
                            false => return "the aggregator is stopping".to_owned(),
                        }
                    }
                    Err(refusal) => refusal.to_string(),
                },
                Ok(None) => return "the agent closed the connection".to_owned(),
                Err(gleaner_net::stream::ReadError::Io(error)) => return error.to_string(),
                Err(gleaner_net::stream::ReadError::Frame(error)) => error.to_string(),
            };
            self.sent.count_events(weight(refusal.len()));
            let event = Event::MessageRefused { host: self.host.clone(), reason: refusal.clone() };
            _ = self.arrivals.send(Arrival::Noticed(event)).await;
            return format!("a message was refused: {refusal}");
        }
    }

    /// Hands arrivals to the core loop; false when that is gone.
    async fn pass_on(&self, arrivals: impl Iterator<Item = Arrival>) -> bool {
        for arrival in arrivals {
            if self.arrivals.send(arrival).await.is_err() {
                return false;
            }
        }
        true
    }

    /// What a message held that only a newer release knows, if anything. Logged the first time on a stream, the second,
    /// the fourth and so on.
    fn not_understood(&self, unknown: Unknowns, all: &mut Unknowns) -> Option<Arrival> {
        if unknown.is_empty() {
            return None;
        }
        all.add(unknown);
        if all.total().is_power_of_two() {
            let (host, last) = (&self.host, unknown.last);
            tracing::warn!(%host, all = all.total(), ?last, "the agent is of a newer release: parts of messages are skipped");
        }
        Some(Arrival::NotUnderstood(unknown))
    }

    fn report_stream(&self, message: FromAgent) -> Result<Option<Arrival>, MessageRefusal> {
        match message {
            FromAgent::Report(report) if report.host != self.host => {
                Err(MessageRefusal::ReportOfAnother { of: report.host, from: self.host.clone() })
            }
            FromAgent::Report(report) if report.workloads.len() > MAX_WORKLOADS => {
                Err(MessageRefusal::ManyWorkloads(report.workloads.len()))
            }
            FromAgent::Report(report) => Ok(Some(Arrival::Report(report))),
            FromAgent::Unknown { .. } => Ok(None),
            _ => Err(MessageRefusal::NotReport),
        }
    }

    /// What a message on the control stream is; nothing, if only a newer release knows it.
    fn control_stream(&self, message: FromAgent) -> Result<Option<Arrival>, MessageRefusal> {
        match message {
            FromAgent::Ack(ack) if !serde_json::to_vec(&ack).is_ok_and(|text| text.len() <= MAX_EVENT) => {
                Err(MessageRefusal::LongAck)
            }
            FromAgent::Ack(ack) => Ok(Some(Arrival::Acked { host: self.host.clone(), ack })),
            FromAgent::Events(AgentEvents { events }) => {
                let own = |source: &EventSource| {
                    matches!(source, EventSource::Agent { host, incarnation, .. }
                        if *host == self.host && *incarnation == self.incarnation)
                };
                match events.iter().find(|record| !own(&record.source)) {
                    Some(record) => Err(MessageRefusal::EventOfAnother(record.source.clone())),
                    None if events.iter().any(|record| !fits(record)) => Err(MessageRefusal::LongEvent),
                    None => {
                        let (host, connection) = (self.host.clone(), self.connection);
                        Ok(Some(Arrival::Events { host, connection, records: events }))
                    }
                }
            }
            FromAgent::CertificateRequest(request) if request.len() > MAX_REQUEST => {
                Err(MessageRefusal::LongCertificateRequest(request.len()))
            }
            FromAgent::CertificateRequest(request) => {
                let (host, connection) = (self.host.clone(), self.connection);
                Ok(Some(Arrival::CertificateRequest { host, connection, request }))
            }
            FromAgent::Guests(GuestNames { guests, unmatched })
                if guests.len().max(unmatched.len()) > MAX_WORKLOADS =>
            {
                Err(MessageRefusal::ManyWorkloads(guests.len().max(unmatched.len())))
            }
            FromAgent::Guests(names) => {
                let (host, connection) = (self.host.clone(), self.connection);
                Ok(Some(Arrival::Guests { host, connection, names }))
            }
            // They were taken before.
            FromAgent::Tasks(_) => Ok(None),
            FromAgent::Hello(_) => Err(MessageRefusal::SecondHello),
            FromAgent::Report(_) => Err(MessageRefusal::ReportOnControl),
            FromAgent::Unknown { .. } => Ok(None),
        }
    }
}

/// A stream that counts what it has given.
struct Counted {
    stream: quinn::RecvStream,
    bytes: usize,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = AsyncRead::poll_read(Pin::new(&mut self.stream), context, into);
        self.bytes += into.filled().len() - before;
        polled
    }
}

/// Bytes of an event in the event log; `None` if it cannot be written there.
fn line_length(record: &EventRecord) -> Option<usize> {
    record.to_json_line().ok().map(|line| line.len())
}

fn fits(record: &EventRecord) -> bool {
    line_length(record).is_some_and(|length| length <= MAX_EVENT)
}

/// A bucket of permits: so many a second in the long run, and at once.
struct Rate {
    per_s: f64,
    most: f64,
    permits: f64,
    last: Instant,
}

impl Rate {
    fn new((per_s, most): (f64, f64)) -> Self {
        Self { per_s, most, permits: most, last: Instant::now() }
    }

    fn refill(&mut self) {
        let elapsed = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        self.permits = (self.permits + elapsed * self.per_s).min(self.most);
    }

    /// Takes a permit if there is one.
    fn take(&mut self) -> bool {
        self.refill();
        let left = self.permits >= 1.0;
        self.permits -= f64::from(u8::from(left));
        left
    }

    /// Takes a permit, which is there after this time.
    fn claim(&mut self) -> Duration {
        self.refill();
        self.permits -= 1.0;
        self.owed()
    }

    /// Until the permits that were taken are there.
    fn owed(&self) -> Duration {
        Duration::from_secs_f64((-self.permits / self.per_s).max(0.0))
    }

    /// Takes more permits, which the next claim makes up for.
    fn spend(&mut self, permits: usize) {
        self.permits -= permits as f64;
    }
}
