//! What every kind of connection needs. In: a message and a stream. Out: the message is sent, or the connection ended.
//! Called by the acceptors of agents and of joining hosts.

use std::time::Duration;

use gleaner_net::stream::write_message;
use gleaner_wire::{Message, ProtocolVersion};

/// Sends a message, unless the connection fails, which shows again soon. One to a peer that takes nothing is ended: the
/// peer would keep its place for ever.
pub(crate) async fn send<M: Message>(
    connection: &quinn::Connection,
    version: ProtocolVersion,
    stream: &mut quinn::SendStream,
    message: &M,
    timeout: Duration,
) {
    if tokio::time::timeout(timeout, write_message(stream, version, message)).await.is_err() {
        connection.close(1u8.into(), b"the peer does not take what it is sent");
    }
}
