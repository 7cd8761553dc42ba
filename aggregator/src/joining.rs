//! A host that joins. In: one request on one stream of a connection without a certificate. Out: one answer, from the
//! shell; then the connection ends. The acceptor calls it.

use std::sync::Arc;
use std::time::Duration;

use gleaner_net::stream::read_short_message;
use gleaner_wire::{FromJoiner, JoinRequest, MAX_JOIN_MESSAGE, ProtocolVersion, ToJoiner};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::arrival::{Arrival, Joining};
use crate::connection::send as send_message;

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
            Ok(Err(reason)) => fail(connection, peer, reason, arrivals).await,
            Err(_) => fail(connection, peer, "no request in time".to_owned(), arrivals).await,
        }
    }
}

async fn request(
    connection: &quinn::Connection,
    version: ProtocolVersion,
) -> Result<(quinn::SendStream, JoinRequest), String> {
    let (send, mut receive) = connection.accept_bi().await.map_err(|e| e.to_string())?;
    let message = read_short_message(&mut receive, version, MAX_JOIN_MESSAGE).await.map_err(|e| e.to_string())?;
    match message {
        Some(FromJoiner::Join(request)) => Ok((send, request)),
        Some(FromJoiner::Unknown { tag }) => Err(format!("message tag {tag} is unknown in this direction")),
        None => Err("the stream ends without a request".to_owned()),
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
    let stopping = || Err("the aggregator is stopping".to_owned());
    let answer = match arrivals.send(Arrival::Joining(joining)).await {
        Ok(()) => answer.await.unwrap_or_else(|_| stopping()),
        Err(_) => stopping(),
    };
    let message = answer.map_or_else(ToJoiner::Refused, ToJoiner::Joined);
    // A peer that does not read its answer in time loses it.
    send_message(connection, version, &mut send, &message, ANSWER_TIMEOUT).await;
    _ = send.finish();
    _ = tokio::time::timeout(ANSWER_TIMEOUT, connection.closed()).await;
    connection.close(0u8.into(), b"done");
}

async fn fail(connection: &quinn::Connection, peer: &str, reason: String, arrivals: &mpsc::Sender<Arrival>) {
    connection.close(1u8.into(), reason.as_bytes());
    // The shell is gone only while the aggregator stops.
    _ = arrivals.send(Arrival::JoinFailed { peer: peer.to_owned(), reason }).await;
}
