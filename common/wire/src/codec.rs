//! How values become bytes: bincode with its standard configuration. In: values. Out: bytes, and back. Called by
//! `scalar`, `schema` and `v2::variant` for what has no faster way; by the aggregator's journal, store and standby for
//! what is stored; and by `net::join` for tokens.
//!
//! This module is the only one that knows the encoding crate, which has no maintainer any more. A successor must give
//! the same bytes: unsigned integers in one byte up to 250, else a byte 251, 252 or 253 and two, four or eight bytes,
//! little-endian; signed ones the same after folding (0, −1, 1, −2, … become 0, 1, 2, 3, …); floating-point numbers
//! as eight bytes, little-endian; a truth value as a byte; texts, byte strings and lists as their length and their
//! content; an option as a byte 0, or 1 and the value; a variant as its number in the order of the enum and its fields;
//! structs, tuples and arrays as their fields alone. The files in `golden/` decide: all of them must decode to
//! what they say and be encoded to the same bytes again.

use bincode::enc::write::Writer;
use bincode::error::EncodeError;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde::{Deserialize, Serialize};

use crate::frame::{FrameError, MAX_FRAME};

/// Largest value that is read back from a disk or from etcd: the state of a large fleet with its last reports.
pub const MAX_STORED: usize = 256 << 20;

const fn configuration<const LIMIT: usize>() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<LIMIT>()
}

/// Appends to a vector.
struct Append<'a>(&'a mut Vec<u8>);

impl Writer for Append<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// A value cannot be encoded or decoded: what the encoding says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CodecError(String);

/// Appends a value.
pub(crate) fn append<T: Serialize + ?Sized>(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
    bincode::serde::encode_into_writer(value, Append(into), configuration::<MAX_STORED>())
        .map_err(|error| CodecError(error.to_string()))
}

/// The value at the beginning of some bytes, and how many are its own. It may borrow from them.
pub(crate) fn prefix<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<(T, usize), CodecError> {
    bincode::serde::borrow_decode_from_slice(bytes, configuration::<MAX_FRAME>())
        .map_err(|error| CodecError(error.to_string()))
}

/// Appends `value` in the payload encoding. For what daemons keep.
///
/// # Errors
/// [`FrameError::Unencodable`] if the encoder refuses.
pub fn encode_value<T: Serialize>(tag: u16, value: &T, into: &mut Vec<u8>) -> Result<(), FrameError> {
    append(value, into).map_err(|error| FrameError::Unencodable { tag, detail: error.to_string() })
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

/// The same by a seed. For stored values whose types no longer exist: they are read by their schema.
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
