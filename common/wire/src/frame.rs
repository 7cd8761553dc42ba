//! Frames. A frame is a 4-byte little-endian length of what follows, a 2-byte little-endian tag that names
//! the message, and the message as its version of the protocol has it. Frames are the same in every version.
//!
//! In: messages, and the version that was negotiated. Out: bytes, and back. Called by `net::stream`.

use crate::unknown::Unknowns;
use crate::version::ProtocolVersion;

/// Largest frame accepted, length field not counted. Bounds what a peer can make us allocate.
pub const MAX_FRAME: usize = 4 << 20;

/// Bytes before a frame's payload: length and tag.
const HEADER: usize = 6;

/// A set of messages that travel on one stream in one direction.
pub trait Message: Sized {
    /// The tag of this message.
    fn tag(&self) -> u16;
    /// Appends the payload as a version has it.
    ///
    /// # Errors
    /// [`FrameError::Unencodable`] if the encoder refuses, or that version has no form for it.
    fn encode_payload(&self, version: ProtocolVersion, into: &mut Vec<u8>) -> Result<(), FrameError>;
    /// The message of a tag and its payload. What only a newer release knows is counted.
    ///
    /// # Errors
    /// [`FrameError`] when the payload is no such message and, in version 1, when the tag is unknown.
    fn decode_payload(
        version: ProtocolVersion,
        tag: u16,
        payload: &[u8],
        unknown: &mut Unknowns,
    ) -> Result<Self, FrameError>;
}

/// A frame cannot be understood, or a message cannot be put into one.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length field exceeds [`MAX_FRAME`].
    #[error("frame of {length} bytes is over the limit of {MAX_FRAME}")]
    Oversized {
        /// What the length field says.
        length: usize,
    },
    /// The length field exceeds what this peer may send.
    #[error("frame of {length} bytes is over the limit of {most} for this peer")]
    TooLong {
        /// What the length field says.
        length: usize,
        /// The limit.
        most: usize,
    },
    /// Too short to hold a tag, or cut off.
    #[error("frame is truncated: {have} bytes of {want}")]
    Truncated {
        /// Bytes there.
        have: usize,
        /// Bytes announced.
        want: usize,
    },
    /// No message has this tag in this direction.
    #[error("message tag {tag} is unknown in this direction")]
    UnknownTag {
        /// The tag.
        tag: u16,
    },
    /// The payload is not a valid message of its tag.
    #[error("payload of message tag {tag} is malformed: {detail}")]
    Malformed {
        /// The tag.
        tag: u16,
        /// What the decoder says.
        detail: String,
    },
    /// The payload goes on after the message.
    #[error("payload of message tag {tag} has {extra} bytes too many")]
    Leftover {
        /// The tag.
        tag: u16,
        /// How many.
        extra: usize,
    },
    /// The message does not fit the encoding or the frame limit.
    #[error("message tag {tag} cannot be sent: {detail}")]
    Unencodable {
        /// The tag.
        tag: u16,
        /// Why.
        detail: String,
    },
}

/// The whole frame of a message, length field included.
///
/// # Errors
/// [`FrameError::Unencodable`] if it would exceed [`MAX_FRAME`], or the version has no form for it.
pub fn encode<M: Message>(version: ProtocolVersion, message: &M) -> Result<Vec<u8>, FrameError> {
    let tag = message.tag();
    // Holds the report of a host with ten workloads.
    let mut frame = Vec::with_capacity(2048);
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&tag.to_le_bytes());
    message.encode_payload(version, &mut frame)?;
    let length = frame.len() - 4;
    match u32::try_from(length) {
        Ok(short) if length <= MAX_FRAME => frame[..4].copy_from_slice(&short.to_le_bytes()),
        _ => return Err(FrameError::Unencodable { tag, detail: format!("{length} bytes are over the limit") }),
    }
    Ok(frame)
}

/// The message of the frame at the start of `bytes` and the frame's length, or `None` if more bytes are needed.
///
/// # Errors [`FrameError`] for anything that the protocol does not allow in this version.
pub fn decode<M: Message>(
    version: ProtocolVersion,
    bytes: &[u8],
    unknown: &mut Unknowns,
) -> Result<Option<(M, usize)>, FrameError> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = body_length(*length)?;
    match rest.get(..length) {
        Some(body) => Ok(Some((decode_body(version, body, unknown)?, length + 4))),
        None => Ok(None),
    }
}

/// Checks a frame's length field.
pub fn body_length(field: [u8; 4]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(field) as usize;
    if length > MAX_FRAME {
        Err(FrameError::Oversized { length })
    } else if length < HEADER - 4 {
        Err(FrameError::Truncated { have: length, want: HEADER - 4 })
    } else {
        Ok(length)
    }
}

/// The message of a frame without its length field.
pub fn decode_body<M: Message>(version: ProtocolVersion, body: &[u8], unknown: &mut Unknowns) -> Result<M, FrameError> {
    match body.split_first_chunk::<2>() {
        Some((tag, payload)) => M::decode_payload(version, u16::from_le_bytes(*tag), payload, unknown),
        None => Err(FrameError::Truncated { have: body.len(), want: HEADER - 4 }),
    }
}
