//! Frames. A frame is a 4-byte little-endian length of what follows, a 2-byte little-endian tag that names
//! the message, and the message in the bincode format (standard configuration). Nothing may be left over.
//!
//! This module is the only one that knows the encoding crate.

use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed};

/// Largest frame accepted, length field not counted. Bounds what a peer can make us allocate.
pub const MAX_FRAME: usize = 4 << 20;

/// Largest value that is read back from a disk or from etcd: the state of a large fleet with its last reports.
pub const MAX_STORED: usize = 256 << 20;

/// Bytes before a frame's payload: length and tag.
const HEADER: usize = 6;

/// A set of messages that travel on one stream in one direction.
pub trait Message: Sized {
    /// The tag of this message.
    fn tag(&self) -> u16;
    /// Appends the payload.
    ///
    /// # Errors
    /// [`FrameError::Unencodable`] if the encoder refuses.
    fn encode_payload(&self, into: &mut Vec<u8>) -> Result<(), FrameError>;
    /// The message of a tag and its payload.
    ///
    /// # Errors
    /// [`FrameError`] when the tag is unknown or the payload is not exactly one such message.
    fn decode_payload(tag: u16, payload: &[u8]) -> Result<Self, FrameError>;
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

const fn configuration<const LIMIT: usize>() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<LIMIT>()
}

/// Appends `value` in the payload encoding. For implementations of [`Message`] and for the journal.
///
/// # Errors
/// [`FrameError::Unencodable`] if the encoder refuses.
pub fn encode_value<T: Serialize>(tag: u16, value: &T, into: &mut Vec<u8>) -> Result<(), FrameError> {
    bincode::serde::encode_into_std_write(value, into, configuration::<MAX_STORED>())
        .map(|_| ())
        .map_err(|e| FrameError::Unencodable { tag, detail: e.to_string() })
}

/// Reads exactly one value written by [`encode_value`].
///
/// # Errors
/// [`FrameError`] unless `payload` is exactly one such value.
pub fn decode_value<T: DeserializeOwned>(tag: u16, payload: &[u8]) -> Result<T, FrameError> {
    decode_within::<T, MAX_FRAME>(tag, payload)
}

/// The same of a value that Gleaner stored itself, which may be larger than any frame.
///
/// # Errors
/// As [`decode_value`].
pub fn decode_stored<T: DeserializeOwned>(tag: u16, payload: &[u8]) -> Result<T, FrameError> {
    decode_within::<T, MAX_STORED>(tag, payload)
}

/// The same by a seed: for stored values whose types are gone, and which are read by their schema.
///
/// # Errors
/// As [`decode_value`].
pub fn decode_stored_as<'de, S: DeserializeSeed<'de>>(
    tag: u16,
    seed: S,
    payload: &'de [u8],
) -> Result<S::Value, FrameError> {
    let (value, used) = bincode::serde::seed_decode_from_slice(seed, payload, configuration::<MAX_STORED>())
        .map_err(|e| FrameError::Malformed { tag, detail: e.to_string() })?;
    if used == payload.len() { Ok(value) } else { Err(FrameError::Leftover { tag, extra: payload.len() - used }) }
}

/// The value at the beginning of a payload, whatever follows: for the part of a stored value that no format changes.
///
/// # Errors
/// [`FrameError::Malformed`] when it does not begin with such a value.
pub fn decode_beginning<T: DeserializeOwned>(tag: u16, payload: &[u8]) -> Result<T, FrameError> {
    let (value, _) = bincode::serde::decode_from_slice(payload, configuration::<MAX_STORED>())
        .map_err(|e| FrameError::Malformed { tag, detail: e.to_string() })?;
    Ok(value)
}

fn decode_within<T: DeserializeOwned, const LIMIT: usize>(tag: u16, payload: &[u8]) -> Result<T, FrameError> {
    let (value, used) = bincode::serde::decode_from_slice(payload, configuration::<LIMIT>())
        .map_err(|e| FrameError::Malformed { tag, detail: e.to_string() })?;
    if used == payload.len() { Ok(value) } else { Err(FrameError::Leftover { tag, extra: payload.len() - used }) }
}

/// The whole frame of a message, length field included.
///
/// # Errors
/// [`FrameError::Unencodable`] if it would exceed [`MAX_FRAME`].
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, FrameError> {
    let tag = message.tag();
    let mut frame = Vec::with_capacity(512);
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&tag.to_le_bytes());
    message.encode_payload(&mut frame)?;
    let length = frame.len() - 4;
    match u32::try_from(length) {
        Ok(short) if length <= MAX_FRAME => frame[..4].copy_from_slice(&short.to_le_bytes()),
        _ => return Err(FrameError::Unencodable { tag, detail: format!("{length} bytes are over the limit") }),
    }
    Ok(frame)
}

/// The message of the frame at the start of `bytes` and the frame's length, or `None` if more bytes are needed.
///
/// # Errors
/// [`FrameError`] for anything no honest peer of this version sends.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<Option<(M, usize)>, FrameError> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = body_length(*length)?;
    match rest.get(..length) {
        Some(body) => Ok(Some((decode_body(body)?, length + 4))),
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
pub fn decode_body<M: Message>(body: &[u8]) -> Result<M, FrameError> {
    match body.split_first_chunk::<2>() {
        Some((tag, payload)) => M::decode_payload(u16::from_le_bytes(*tag), payload),
        None => Err(FrameError::Truncated { have: body.len(), want: HEADER - 4 }),
    }
}
