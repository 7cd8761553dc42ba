//! One connection to the aggregator. In: the outbox, and messages of the aggregator. Out: the hello, then reports,
//! events and acknowledgements; commands and task orders to the rest of the agent. Called by the link; what reads messages
//! ([`greeting`], [`receive`]) also by the fuzz target of a hostile aggregator.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gleaner_daemon::clock::Clock;
use gleaner_net::stream::{ReadError, read_counting, write_message};
use gleaner_net::transport;
use gleaner_types::report::HostFacts;
use gleaner_wire::{
    AgentEvents, FromAgent, FromAggregator, Hello, MAX_FRAME, ProtocolVersion, Purpose, StandsBy, TaskStates, Unknowns,
    Welcome, can_encode,
};

use tokio::io::AsyncRead;
use tokio::sync::mpsc;

use super::renewal::Renewal;
use crate::order::OrderSender;
use crate::outbox::Outbox;
use crate::tasks::TaskInput;
use gleaner_types::error::chain;

/// What an agent says about itself in its hello.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Its host.
    pub host: gleaner_types::id::HostId,
    /// When the agent started, in milliseconds since the Unix epoch.
    pub incarnation: u64,
    /// Static facts.
    pub facts: HostFacts,
    /// Whether it starts tasks of root's, where that can be said.
    pub tasks_of_root: Option<bool>,
}

/// Longest wait for the handshake and for the welcome.
pub(super) const WELCOME_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection on which the aggregator has welcomed us.
#[derive(Debug)]
pub(super) struct Session {
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    version: ProtocolVersion,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    reports: Option<quinn::SendStream>,
    /// What the welcome said that only a newer release knows.
    unknown: Unknowns,
}

/// What an aggregator answers to a hello.
pub(super) enum Answer {
    /// It takes this agent.
    Welcome(Box<Session>, Welcome),
    /// Another one does.
    StandsBy(StandsBy),
}

/// The same, as it was sent.
#[derive(Debug)]
pub enum Greeting {
    /// It takes this agent.
    Welcome(Welcome),
    /// Another one does.
    StandsBy(StandsBy),
}

/// Why a session ended.
#[derive(Debug)]
pub enum SessionEnd {
    /// The agent was stopped.
    Leaving,
    /// This host has a new certificate; the connection, with the old one, is still there.
    Renewed,
    /// This aggregator does not lead.
    StandsBy(StandsBy),
    /// The connection could not be made or was lost.
    Lost {
        /// There was a welcome.
        welcomed: bool,
        /// Why.
        error: anyhow::Error,
    },
}

/// Says hello and waits for the welcome.
pub(super) async fn hello(
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    introduction: &Introduction,
    clock: Clock,
) -> anyhow::Result<Answer> {
    let Some(Purpose::Agent(version)) = transport::purpose(&connection) else {
        let reason = transport::learn_versions(&connection).await;
        connection.close(0u8.into(), b"bye");
        bail!(reason);
    };
    let (mut send, mut receive) = connection.open_bi().await?;
    let hello = Hello {
        host: introduction.host.clone(),
        incarnation: introduction.incarnation,
        software: env!("CARGO_PKG_VERSION").to_owned(),
        now: clock.now(),
        facts: introduction.facts.clone(),
        tasks_of_root: introduction.tasks_of_root,
    };
    write_message(&mut send, version, &FromAgent::Hello(Box::new(hello))).await?;
    let mut unknown = Unknowns::default();
    let answer = greeting(&mut receive, version, &mut unknown);
    let answer = tokio::time::timeout(WELCOME_TIMEOUT, answer).await.context("the aggregator sends no welcome")??;
    match answer {
        Greeting::Welcome(welcome) => {
            let session = Session { endpoint, connection, version, send, receive, reports: None, unknown };
            Ok(Answer::Welcome(Box::new(session), welcome))
        }
        Greeting::StandsBy(stands_by) => {
            connection.close(0u8.into(), b"bye");
            Ok(Answer::StandsBy(stands_by))
        }
    }
}

/// Reads what answers a hello.
///
/// # Errors
/// When it is a refusal, anything else than an answer to a hello, or not readable.
pub async fn greeting<R: AsyncRead + Unpin>(
    control: &mut R,
    version: ProtocolVersion,
    unknown: &mut Unknowns,
) -> anyhow::Result<Greeting> {
    match read_counting(control, version, MAX_FRAME, unknown).await? {
        Some(FromAggregator::Welcome(welcome)) => Ok(Greeting::Welcome(welcome)),
        Some(FromAggregator::StandsBy(stands_by)) => Ok(Greeting::StandsBy(stands_by)),
        Some(FromAggregator::Refused(reason)) => bail!("the aggregator refuses this host: {reason}"),
        Some(_) => bail!("the aggregator sends something else than a welcome"),
        None => bail!("the aggregator closed the connection without a welcome"),
    }
}

impl Session {
    /// Moves messages both ways until the connection is lost, has served its time, or the agent is to leave.
    pub(super) async fn serve(
        &mut self,
        outbox: &Outbox,
        orders: &OrderSender,
        tasks: &mpsc::Sender<TaskInput>,
        renewal: &Renewal<'_>,
        leave: impl Future<Output = ()>,
    ) -> SessionEnd {
        let Self { connection, version, send, receive, reports, unknown, .. } = self;
        let version = *version;
        outbox.not_understood(std::mem::take(unknown));
        let lost = |error| SessionEnd::Lost { welcomed: true, error };
        tokio::select! {
            result = send_all(connection, version, send, reports, outbox, renewal) => match result {
                Ok(never) => match never {},
                Err(error) => lost(error),
            },
            result = receive_all(receive, version, outbox, orders, tasks, renewal) => match result {
                Ok(end) => end,
                Err(error) => lost(error),
            },
            error = connection.closed() => lost(error.into()),
            () = leave => SessionEnd::Leaving,
        }
    }

    /// Ends the connection; the aggregator hears whether the agent leaves. When this returns, it was told.
    pub(super) async fn close(self, leaving: bool) {
        match leaving {
            true => transport::leave(&self.connection),
            false => self.connection.close(0u8.into(), b"bye"),
        }
        self.endpoint.wait_idle().await;
    }
}

async fn send_all(
    connection: &quinn::Connection,
    version: ProtocolVersion,
    control: &mut quinn::SendStream,
    reports: &mut Option<quinn::SendStream>,
    outbox: &Outbox,
    renewal: &Renewal<'_>,
) -> anyhow::Result<std::convert::Infallible> {
    let reports = reports.insert(connection.open_uni().await?);
    loop {
        let batch = tokio::select! {
            batch = outbox.next() => batch,
            () = renewal.due() => {
                match renewal.ask() {
                    Ok(request) => write_message(control, version, &FromAgent::CertificateRequest(request)).await?,
                    Err(error) => outbox.event(Clock::start().now(), renewal.failed(error.to_string())),
                }
                continue;
            }
        };
        for ack in batch.acks {
            write_message(control, version, &FromAgent::Ack(ack)).await?;
        }
        // An aggregator that speaks version 1 orders no tasks and understands no states.
        if !batch.tasks.is_empty() && version != ProtocolVersion::V1 {
            write_message(control, version, &FromAgent::Tasks(TaskStates { states: batch.tasks })).await?;
        }
        // Version 1 has no names but those in reports.
        if let Some(names) = batch.guests.filter(|_| version != ProtocolVersion::V1) {
            write_message(control, version, &FromAgent::Guests(names)).await?;
        }
        // What an older peer cannot be told stays queued for a newer one, until a later event is acknowledged.
        let (events, untold): (Vec<_>, Vec<_>) =
            batch.events.into_iter().partition(|record| can_encode(version, &record.event));
        for record in untold {
            tracing::warn!(event = record.event.name(), %version, "the aggregator's version of the protocol lacks an event");
        }
        if !events.is_empty() {
            let events = AgentEvents { events };
            write_message(control, version, &FromAgent::Events(events)).await?;
        }
        if let Some(report) = batch.report {
            match write_message(reports, version, &FromAgent::Report(Box::new(report))).await {
                // Nothing of it was written, and it would be too long for any other connection too.
                Err(ReadError::Frame(error)) => {
                    tracing::warn!(%error, "a report is dropped");
                    outbox.report_dropped();
                }
                written => written?,
            }
        }
    }
}

/// Most messages that are taken of an aggregator in a second. Chosen: twice what renewing the commands of every target of
/// the largest host at once comes to. Of more no further one is read for the rest of the second, and the aggregator has to
/// wait.
const MOST_A_SECOND: u32 = 8_192;

/// How many messages were taken in a second.
struct Pace {
    began: Instant,
    taken: u32,
}

impl Pace {
    fn new() -> Self {
        Self { began: Instant::now(), taken: 0 }
    }

    /// Waits until the next message may be read. It may never wait for a message itself, as it comes before each.
    async fn keep(&mut self) {
        const SECOND: Duration = Duration::from_secs(1);
        self.taken += 1;
        let elapsed = self.began.elapsed();
        if elapsed < SECOND && self.taken <= MOST_A_SECOND {
            return;
        }
        tokio::time::sleep(SECOND.saturating_sub(elapsed)).await;
        *self = Self::new();
    }
}

async fn receive_all(
    control: &mut quinn::RecvStream,
    version: ProtocolVersion,
    outbox: &Outbox,
    orders: &OrderSender,
    tasks: &mpsc::Sender<TaskInput>,
    renewal: &Renewal<'_>,
) -> anyhow::Result<SessionEnd> {
    let mut pace = Pace::new();
    loop {
        pace.keep().await;
        if let Some(end) = receive(control, version, outbox, orders, tasks, renewal).await? {
            return Ok(end);
        }
    }
}

/// Reads the next message of an aggregator that has welcomed this agent, and gives it to whom it is for. `Some` ends the
/// session.
///
/// # Errors
/// When the message cannot be read or ends the connection.
pub async fn receive<R: AsyncRead + Unpin>(
    control: &mut R,
    version: ProtocolVersion,
    outbox: &Outbox,
    orders: &OrderSender,
    tasks: &mpsc::Sender<TaskInput>,
    renewal: &Renewal<'_>,
) -> anyhow::Result<Option<SessionEnd>> {
    let mut unknown = Unknowns::default();
    let message = read_counting(control, version, MAX_FRAME, &mut unknown).await?;
    outbox.not_understood(unknown);
    match message {
        // One that finds the agent's loop ended is not answered: the agent leaves when its last events are in the log.
        Some(FromAggregator::Command(command)) => _ = orders.command(command),
        Some(FromAggregator::EventsThrough(through)) => outbox.acknowledged(through),
        Some(FromAggregator::Certificate(certificate)) => match renewal.accept(certificate).await {
            Ok(()) => return Ok(Some(SessionEnd::Renewed)),
            Err(error) => {
                outbox.event(Clock::start().now(), renewal.failed(chain(&*error)));
            }
        },
        Some(FromAggregator::CertificateRefused(reason)) => {
            outbox.event(Clock::start().now(), renewal.failed(reason));
        }
        Some(FromAggregator::Refused(reason)) => bail!("the aggregator ends the connection: {reason}"),
        Some(FromAggregator::Welcome(_)) => bail!("the aggregator sends a second welcome"),
        Some(FromAggregator::StandsBy(_)) => bail!("the aggregator stands by now"),
        // Without a runner of tasks, while the agent ends, their orders are not carried out and not answered.
        Some(FromAggregator::TaskJob(job)) => _ = tasks.send(TaskInput::Job(job)).await,
        Some(FromAggregator::Tasks(orders)) => _ = tasks.send(TaskInput::Orders(orders)).await,
        // Skipped, and counted above. A command among them is not answered, so the aggregator knows it is not done.
        Some(FromAggregator::Unknown { .. }) => {}
        None => bail!("the aggregator closed the connection"),
    }
    Ok(None)
}
