//! The acceptor of a joining host. In: one request on one stream of a connection without a certificate. Out: one
//! answer, from the shell; then the connection ends. Called by the acceptor of agents.

use std::sync::Arc;
use std::time::Duration;

use gleaner_net::stream::{ReadError, read_short_message};
use gleaner_types::error::chain;
use gleaner_wire::{FromJoiner, JoinRequest, MAX_JOIN_MESSAGE, ProtocolVersion, ToJoiner};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::arrival::{Arrival, Joining};
use crate::connection::send as send_message;
use crate::enrolment::EnrolError;

/// Most hosts that may be joining at once; more are refused.
const MOST_JOINING: usize = 8;

/// Longest wait for the request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the peer to read the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Places for hosts that join.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Semaphore>);

impl Places {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MOST_JOINING)))
    }

    /// One host, from its request to the end of its connection.
    pub(crate) async fn serve(
        &self,
        connection: &quinn::Connection,
        version: ProtocolVersion,
        peer: &str,
        arrivals: &mpsc::Sender<Arrival>,
    ) {
        let Ok(_place) = self.0.try_acquire() else {
            connection.close(1u8.into(), b"too many hosts join at once; try again in a moment");
            return;
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, request(connection, version)).await {
            Ok(Ok((send, request))) => answer(connection, version, send, request, peer, arrivals).await,
            Ok(Err(error)) => fail(connection, peer, &error, arrivals).await,
            Err(_) => fail(connection, peer, &RequestError::Timeout, arrivals).await,
        }
    }
}

/// A peer that would join makes no request.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    /// Its connection failed.
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    /// What it sends is no message of the protocol.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Only a newer release knows its message.
    #[error("message tag {0} is unknown in this direction")]
    UnknownTag(u16),
    /// It sends nothing.
    #[error("the stream ends without a request")]
    Ended,
    /// It takes too long.
    #[error("no request in time")]
    Timeout,
}

async fn request(
    connection: &quinn::Connection,
    version: ProtocolVersion,
) -> Result<(quinn::SendStream, JoinRequest), RequestError> {
    let (send, mut receive) = connection.accept_bi().await?;
    let message = read_short_message(&mut receive, version, MAX_JOIN_MESSAGE).await?;
    match message {
        Some(FromJoiner::Join(request)) => Ok((send, request)),
        Some(FromJoiner::Unknown { tag }) => Err(RequestError::UnknownTag(tag)),
        None => Err(RequestError::Ended),
    }
}

async fn answer(
    connection: &quinn::Connection,
    version: ProtocolVersion,
    mut send: quinn::SendStream,
    request: JoinRequest,
    peer: &str,
    arrivals: &mpsc::Sender<Arrival>,
) {
    let (sender, answer) = oneshot::channel();
    let joining = Joining { peer: peer.to_owned(), request, answer: sender };
    let answer = match arrivals.send(Arrival::Joining(joining)).await {
        Ok(()) => answer.await.unwrap_or(Err(EnrolError::Stopping)),
        Err(_) => Err(EnrolError::Stopping),
    };
    let message = answer.map_or_else(|error| ToJoiner::Refused(chain(&error)), ToJoiner::Joined);
    // A peer that does not read its answer in time loses it.
    send_message(connection, version, &mut send, &message, ANSWER_TIMEOUT).await;
    _ = send.finish();
    _ = tokio::time::timeout(ANSWER_TIMEOUT, connection.closed()).await;
    connection.close(0u8.into(), b"done");
}

async fn fail(connection: &quinn::Connection, peer: &str, error: &RequestError, arrivals: &mpsc::Sender<Arrival>) {
    let reason = chain(error);
    connection.close(1u8.into(), reason.as_bytes());
    // The shell is gone only while the aggregator stops.
    _ = arrivals.send(Arrival::JoinFailed { peer: peer.to_owned(), reason }).await;
}
