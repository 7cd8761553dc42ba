//! One connection: the greeting, then everything that flows until it is lost.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context, bail};
use gleaner_common::clock::Clock;
use gleaner_common::transport;
use gleaner_common::wire::{AgentEvents, FromAgent, FromAggregator, Hello, Welcome, read_message, write_message};

use super::{Introduction, Outbox};
use crate::host_loop::Order;

/// Longest wait for the handshake and for the welcome.
const PATIENCE: Duration = Duration::from_secs(5);

/// Both directions of the control stream.
pub(super) struct Control {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
}

/// A connection on which the aggregator has welcomed us.
pub(super) struct Greeting {
    pub(super) connection: quinn::Connection,
    pub(super) control: Control,
    pub(super) welcome: Welcome,
}

/// Why a session ended.
pub(super) enum SessionEnd {
    /// The rest of the agent no longer takes commands: it is stopping.
    AgentGone,
    /// The connection could not be made or was lost.
    Lost { welcomed: bool, error: anyhow::Error },
}

/// Connects, says hello and waits for the welcome.
pub(super) async fn greet(
    endpoint: &quinn::Endpoint,
    address: SocketAddr,
    introduction: &Introduction,
    clock: Clock,
) -> anyhow::Result<Greeting> {
    let connection = tokio::time::timeout(PATIENCE, transport::connect(endpoint, address)?)
        .await
        .context("the aggregator does not answer")??;
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
            Ok(Greeting { connection, control: Control { send, receive }, welcome })
        }
        Some(FromAggregator::Refused(reason)) => bail!("the aggregator refuses this host: {reason}"),
        Some(_) => bail!("the aggregator sends something else than a welcome"),
        None => bail!("the aggregator closed the connection without a welcome"),
    }
}

/// Moves messages both ways until the connection is lost.
pub(super) async fn serve(
    connection: &quinn::Connection,
    control: Control,
    outbox: &Outbox,
    orders: &Sender<Order>,
) -> SessionEnd {
    let Control { send, receive } = control;
    let lost = |error| SessionEnd::Lost { welcomed: true, error };
    tokio::select! {
        result = send_all(connection, send, outbox) => match result {
            Ok(never) => match never {},
            Err(error) => lost(error),
        },
        result = receive_all(receive, outbox, orders) => match result {
            Ok(end) => end,
            Err(error) => lost(error),
        },
        error = connection.closed() => lost(error.into()),
    }
}

async fn send_all(
    connection: &quinn::Connection,
    mut control: quinn::SendStream,
    outbox: &Outbox,
) -> anyhow::Result<std::convert::Infallible> {
    let mut reports = connection.open_uni().await?;
    loop {
        let batch = outbox.next().await;
        for ack in batch.acks {
            write_message(&mut control, &FromAgent::Ack(ack)).await?;
        }
        if !batch.events.is_empty() {
            let events = AgentEvents { events: batch.events };
            write_message(&mut control, &FromAgent::Events(events)).await?;
        }
        if let Some(report) = batch.report {
            write_message(&mut reports, &FromAgent::Report(Box::new(report))).await?;
        }
    }
}

async fn receive_all(
    mut control: quinn::RecvStream,
    outbox: &Outbox,
    orders: &Sender<Order>,
) -> anyhow::Result<SessionEnd> {
    loop {
        match read_message(&mut control).await? {
            Some(FromAggregator::Command(command)) => {
                if orders.send(Order::Command(command)).is_err() {
                    return Ok(SessionEnd::AgentGone);
                }
            }
            Some(FromAggregator::EventsThrough(through)) => outbox.acknowledged(through),
            Some(FromAggregator::Refused(reason)) => bail!("the aggregator ends the connection: {reason}"),
            Some(FromAggregator::Welcome(_)) => bail!("the aggregator sends a second welcome"),
            None => bail!("the aggregator closed the connection"),
        }
    }
}
