//! Messages on byte streams. In: a QUIC stream's bytes, and the version of the protocol that the connection agreed on.
//! Out: messages of `gleaner-wire`, and the reverse. Both daemons' connections call it.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use gleaner_wire::{FrameError, MAX_FRAME, Message, ProtocolVersion, Unknowns, body_length, decode_body, encode};

/// A message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream failed, or ended inside a frame.
    #[error("the stream failed")]
    Io(#[from] std::io::Error),
    /// The peer sent something that is not a frame of this protocol.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads the next message; `None` when the peer ended the stream between two frames.
///
/// Not safe to cancel: use it in a task of its own.
///
/// # Errors
/// [`ReadError`]; the stream is of no further use after one.
pub async fn read_message<M: Message, R: AsyncRead + Unpin>(
    stream: &mut R,
    version: ProtocolVersion,
) -> Result<Option<M>, ReadError> {
    read_short_message(stream, version, MAX_FRAME).await
}

/// The same from a peer that may send no more than `most` bytes.
///
/// # Errors
/// [`ReadError`]; the stream is of no further use after one.
pub async fn read_short_message<M: Message, R: AsyncRead + Unpin>(
    stream: &mut R,
    version: ProtocolVersion,
    most: usize,
) -> Result<Option<M>, ReadError> {
    read_counting(stream, version, most, &mut Unknowns::default()).await
}

/// The same, counting what only a newer release knows.
///
/// # Errors
/// [`ReadError`]; the stream is of no further use after one.
pub async fn read_counting<M: Message, R: AsyncRead + Unpin>(
    stream: &mut R,
    version: ProtocolVersion,
    most: usize,
    unknown: &mut Unknowns,
) -> Result<Option<M>, ReadError> {
    let mut field = [0; 4];
    let first = stream.read(&mut field).await?;
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut field[first..]).await?;
    let length = body_length(field)?;
    if length > most {
        return Err(FrameError::TooLong { length, most }.into());
    }
    let mut body = Vec::new();
    // Grows with what really arrives, so that a length field alone costs the reader nothing.
    let got = (&mut *stream).take(length as u64).read_to_end(&mut body).await?;
    if got < length {
        return Err(FrameError::Truncated { have: got, want: length }.into());
    }
    Ok(Some(decode_body(version, &body, unknown)?))
}

/// Writes one message.
///
/// # Errors
/// [`ReadError::Frame`] if the message cannot be encoded, [`ReadError::Io`] if the stream failed.
pub async fn write_message<M: Message, W: AsyncWrite + Unpin>(
    stream: &mut W,
    version: ProtocolVersion,
    message: &M,
) -> Result<(), ReadError> {
    stream.write_all(&encode(version, message)?).await?;
    Ok(())
}
