//! The agents' side: accepts connections, greets, reads, writes. A bad peer costs itself only: its frames are
//! limited, its rate is throttled by not reading on, and whatever is wrong ends its own connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gleaner_common::clock::Clock;
use gleaner_common::event::{Event, EventSource};
use gleaner_common::id::HostId;
use gleaner_common::report::MAX_WORKLOADS;
use gleaner_common::transport;
use gleaner_common::wire::{AgentEvents, FromAgent, FromAggregator, Hello, Welcome, read_message, write_message};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::shell::{Arrival, Joined};

/// Longest wait for a handshake and for a hello.
const PATIENCE: Duration = Duration::from_secs(5);

/// Messages that wait for an agent; of more the new one is dropped, see `Shell::send`.
const OUTGOING: usize = 256;

/// Messages an agent may send per second in the long run, and at once (a backlog after an outage).
const RATE: (f64, f64) = (50.0, 2_000.0);

/// Accepts agents until the endpoint is closed.
pub(crate) async fn serve(endpoint: quinn::Endpoint, max_agents: usize, clock: Clock, arrivals: mpsc::Sender<Arrival>) {
    let places = Arc::new(Semaphore::new(max_agents));
    let connections = Arc::new(AtomicU64::new(0));
    while let Some(incoming) = endpoint.accept().await {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let (arrivals, id) = (arrivals.clone(), connections.fetch_add(1, Ordering::Relaxed));
        tokio::spawn(async move {
            let peer = incoming.remote_address().to_string();
            if let Err(reason) = connection(incoming, id, clock, &arrivals).await {
                // The shell is gone only while the aggregator stops.
                _ = arrivals.send(Arrival::Noticed(Event::PeerRefused { peer, reason })).await;
            }
            drop(place);
        });
    }
}

/// One connection from handshake to end. An error means that the peer was never welcomed.
async fn connection(
    incoming: quinn::Incoming,
    id: u64,
    clock: Clock,
    arrivals: &mpsc::Sender<Arrival>,
) -> Result<(), String> {
    let connecting = incoming.accept().map_err(|e| e.to_string())?;
    let connection = tokio::time::timeout(PATIENCE, connecting)
        .await
        .map_err(|_| "no handshake in time".to_owned())?
        .map_err(|e| e.to_string())?;
    let host = transport::peer_host(&connection).map_err(|e| e.to_string())?;
    let greeting = async {
        let (send, mut receive) = connection.accept_bi().await.map_err(|e| e.to_string())?;
        let message = read_message(&mut receive).await.map_err(|e| e.to_string())?;
        Ok::<_, String>((send, receive, message))
    };
    let (mut send, receive, message) =
        tokio::time::timeout(PATIENCE, greeting).await.map_err(|_| format!("host {host} sends no hello"))??;
    let hello = match message {
        Some(FromAgent::Hello(hello)) if hello.host == host => hello,
        Some(FromAgent::Hello(hello)) => {
            let reason = format!("the certificate is of host {host}, the hello of host {}", hello.host);
            return Err(refuse(&connection, &mut send, reason).await);
        }
        _ => return Err(refuse(&connection, &mut send, format!("host {host} does not begin with a hello")).await),
    };
    let incarnation = hello.incarnation;
    let outgoing = welcome(*hello, id, clock, arrivals, &mut send).await?;
    let peer = Peer { host: host.clone(), incarnation, arrivals: arrivals.clone() };
    let reason = peer.converse(&connection, send, receive, outgoing).await;
    connection.close(0u8.into(), reason.as_bytes());
    _ = arrivals.send(Arrival::Lost { host, connection: id, reason }).await;
    Ok(())
}

async fn refuse(connection: &quinn::Connection, send: &mut quinn::SendStream, reason: String) -> String {
    // Best effort: the peer learns why, if it still listens.
    _ = write_message(send, &FromAggregator::Refused(reason.clone())).await;
    _ = send.finish();
    _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
    connection.close(1u8.into(), reason.as_bytes());
    reason
}

async fn welcome(
    hello: Hello,
    connection: u64,
    clock: Clock,
    arrivals: &mpsc::Sender<Arrival>,
    send: &mut quinn::SendStream,
) -> Result<mpsc::Receiver<FromAggregator>, String> {
    let stopping = || "the aggregator is stopping".to_owned();
    let (sender, outgoing) = mpsc::channel(OUTGOING);
    let (events_through, answer) = oneshot::channel();
    let joined = Joined {
        host: hello.host,
        incarnation: hello.incarnation,
        facts: Box::new(hello.facts),
        connection,
        sender,
        events_through,
    };
    arrivals.send(Arrival::Joined(joined)).await.map_err(|_| stopping())?;
    let events_through = answer.await.map_err(|_| stopping())?;
    let software = env!("CARGO_PKG_VERSION").to_owned();
    let welcome = FromAggregator::Welcome(Welcome { software, now: clock.now(), events_through });
    // A failure shows again as soon as the connection is read.
    _ = write_message(send, &welcome).await;
    Ok(outgoing)
}

/// An agent that was welcomed.
struct Peer {
    host: HostId,
    incarnation: u64,
    arrivals: mpsc::Sender<Arrival>,
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
                if let Err(error) = write_message(&mut send, &message).await {
                    return error.to_string();
                }
            }
            "replaced by a newer connection, or the aggregator stops".to_owned()
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
        mut stream: quinn::RecvStream,
        sort: fn(&Self, FromAgent) -> Result<Arrival, String>,
    ) -> String {
        let mut rate = Rate::new();
        loop {
            rate.wait().await;
            let refusal = match read_message(&mut stream).await {
                Ok(Some(message)) => match sort(self, message) {
                    Ok(arrival) => match self.arrivals.send(arrival).await {
                        Ok(()) => continue,
                        Err(_) => return "the aggregator is stopping".to_owned(),
                    },
                    Err(reason) => reason,
                },
                Ok(None) => return "the agent closed the connection".to_owned(),
                Err(gleaner_common::wire::ReadError::Io(error)) => return error.to_string(),
                Err(gleaner_common::wire::ReadError::Frame(error)) => error.to_string(),
            };
            let event = Event::MessageRefused { host: self.host.clone(), reason: refusal.clone() };
            _ = self.arrivals.send(Arrival::Noticed(event)).await;
            return format!("a message was refused: {refusal}");
        }
    }

    fn report_stream(&self, message: FromAgent) -> Result<Arrival, String> {
        match message {
            FromAgent::Report(report) if report.host != self.host => {
                Err(format!("a report for host {} from host {}", report.host, self.host))
            }
            FromAgent::Report(report) if report.workloads.len() > MAX_WORKLOADS => {
                Err(format!("a report with {} workloads; at most {MAX_WORKLOADS} are taken", report.workloads.len()))
            }
            FromAgent::Report(report) => Ok(Arrival::Report(report)),
            _ => Err("something else than a report on the stream of reports".to_owned()),
        }
    }

    fn control_stream(&self, message: FromAgent) -> Result<Arrival, String> {
        match message {
            FromAgent::Ack(ack) => Ok(Arrival::Acked { host: self.host.clone(), ack }),
            FromAgent::Events(AgentEvents { events }) => {
                let own = |source: &EventSource| {
                    matches!(source, EventSource::Agent { host, incarnation, .. }
                        if *host == self.host && *incarnation == self.incarnation)
                };
                match events.iter().find(|record| !own(&record.source)) {
                    Some(record) => Err(format!("an event of another source: {:?}", record.source)),
                    None => Ok(Arrival::Events { host: self.host.clone(), records: events }),
                }
            }
            FromAgent::Hello(_) => Err("a second hello".to_owned()),
            FromAgent::Report(_) => Err("a report on the control stream".to_owned()),
        }
    }
}

/// A bucket of permits to read a message.
struct Rate {
    permits: f64,
    last: Instant,
}

impl Rate {
    fn new() -> Self {
        Self { permits: RATE.1, last: Instant::now() }
    }

    async fn wait(&mut self) {
        let elapsed = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        self.permits = (self.permits + elapsed * RATE.0).min(RATE.1) - 1.0;
        if self.permits < 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(-self.permits / RATE.0)).await;
        }
    }
}
