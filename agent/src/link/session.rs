//! One connection: the greeting, then everything that flows until it is lost.

use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context, bail};
use gleaner_daemon::clock::Clock;
use gleaner_net::stream::{read_message, write_message};
use gleaner_types::report::HostFacts;
use gleaner_wire::{AgentEvents, FromAgent, FromAggregator, Hello, StandsBy, Welcome};

use super::renewal::Renewal;
use crate::order::Order;
use crate::outbox::Outbox;
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
}

/// Longest wait for the handshake and for the welcome.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A connection on which the aggregator has welcomed us.
#[derive(Debug)]
pub(super) struct Session {
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    reports: Option<quinn::SendStream>,
}

/// What an aggregator answers to a hello.
pub(super) enum Answer {
    /// It takes this agent.
    Welcome(Session, Welcome),
    /// Another one does.
    StandsBy(StandsBy),
}

/// Why a session ended.
pub(super) enum SessionEnd {
    /// The rest of the agent no longer takes commands: it is stopping.
    AgentGone,
    /// This host has a new certificate; the connection, with the old one, is still there.
    Renewed,
    /// This aggregator does not lead.
    StandsBy(StandsBy),
    /// The connection could not be made or was lost.
    Lost { welcomed: bool, error: anyhow::Error },
}

/// Says hello and waits for the welcome.
pub(super) async fn greet(
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    introduction: &Introduction,
    clock: Clock,
) -> anyhow::Result<Answer> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let hello = Hello {
        host: introduction.host.clone(),
        incarnation: introduction.incarnation,
        software: env!("CARGO_PKG_VERSION").to_owned(),
        now: clock.now(),
        facts: introduction.facts.clone(),
    };
    write_message(&mut send, &FromAgent::Hello(Box::new(hello))).await?;
    let answer = tokio::time::timeout(PATIENCE, read_message(&mut receive))
        .await
        .context("the aggregator sends no welcome")??;
    match answer {
        Some(FromAggregator::Welcome(welcome)) => {
            Ok(Answer::Welcome(Session { endpoint, connection, send, receive, reports: None }, welcome))
        }
        Some(FromAggregator::StandsBy(stands_by)) => {
            connection.close(0u8.into(), b"bye");
            Ok(Answer::StandsBy(stands_by))
        }
        Some(FromAggregator::Refused(reason)) => bail!("the aggregator refuses this host: {reason}"),
        Some(_) => bail!("the aggregator sends something else than a welcome"),
        None => bail!("the aggregator closed the connection without a welcome"),
    }
}

impl Session {
    /// Moves messages both ways until the connection is lost, or has served its time.
    pub(super) async fn serve(&mut self, outbox: &Outbox, orders: &Sender<Order>, renewal: &Renewal<'_>) -> SessionEnd {
        let Self { connection, send, receive, reports, .. } = self;
        let lost = |error| SessionEnd::Lost { welcomed: true, error };
        tokio::select! {
            result = send_all(connection, send, reports, outbox, renewal) => match result {
                Ok(never) => match never {},
                Err(error) => lost(error),
            },
            result = receive_all(receive, outbox, orders, renewal) => match result {
                Ok(end) => end,
                Err(error) => lost(error),
            },
            error = connection.closed() => lost(error.into()),
        }
    }

    /// Ends the connection.
    pub(super) async fn close(self) {
        self.connection.close(0u8.into(), b"bye");
        self.endpoint.wait_idle().await;
    }
}

async fn send_all(
    connection: &quinn::Connection,
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
                    Ok(request) => write_message(control, &FromAgent::CertificateRequest(request)).await?,
                    Err(error) => outbox.event(Clock::start().now(), renewal.failed(error.to_string())),
                }
                continue;
            }
        };
        for ack in batch.acks {
            write_message(control, &FromAgent::Ack(ack)).await?;
        }
        if !batch.events.is_empty() {
            let events = AgentEvents { events: batch.events };
            write_message(control, &FromAgent::Events(events)).await?;
        }
        if let Some(report) = batch.report {
            write_message(reports, &FromAgent::Report(Box::new(report))).await?;
        }
    }
}

async fn receive_all(
    control: &mut quinn::RecvStream,
    outbox: &Outbox,
    orders: &Sender<Order>,
    renewal: &Renewal<'_>,
) -> anyhow::Result<SessionEnd> {
    loop {
        match read_message(control).await? {
            Some(FromAggregator::Command(command)) => {
                if orders.send(Order::Command(command)).is_err() {
                    return Ok(SessionEnd::AgentGone);
                }
            }
            Some(FromAggregator::EventsThrough(through)) => outbox.acknowledged(through),
            Some(FromAggregator::Certificate(certificate)) => match renewal.accept(certificate) {
                Ok(()) => return Ok(SessionEnd::Renewed),
                Err(error) => {
                    outbox.event(Clock::start().now(), renewal.failed(chain(&error)));
                }
            },
            Some(FromAggregator::CertificateRefused(reason)) => {
                outbox.event(Clock::start().now(), renewal.failed(reason));
            }
            Some(FromAggregator::Refused(reason)) => bail!("the aggregator ends the connection: {reason}"),
            Some(FromAggregator::Welcome(_)) => bail!("the aggregator sends a second welcome"),
            Some(FromAggregator::StandsBy(_)) => bail!("the aggregator stands by now"),
            None => bail!("the aggregator closed the connection"),
        }
    }
}
