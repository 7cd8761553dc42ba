//! Formats of what the aggregator stores. A stored document is a format number and a payload. This module knows the
//! format that this program writes, and for every older one what its bytes mean (a committed schema) and how it becomes
//! the next (a converter). Callers are the store and the standby's replica; both refuse what is newer, untouched.
//!
//! In: a payload and its format. Out: a type of today. A payload of the current format is decoded directly; an older one
//! is read by its schema into a value with names, changed by one converter per format, and then made a type of today.
//! What is stored cannot change unnoticed: a test compares the types of today with the schema of the current format.

mod convert;
mod document;
mod schema;
mod value;

use gleaner_types::format::UnknownFormat;
use gleaner_wire::{FrameError, decode_stored, decode_stored_as};
use serde::de::DeserializeOwned;

pub(crate) use document::Document;
use schema::{Schema, SchemaError};
use value::{Mismatch, Value};

/// What stored states are called in messages.
const STATE: &str = "stored state";

/// Format of stored states that this program writes.
pub(crate) const CURRENT: u64 = 4;

/// An older format: what its bytes mean and how it becomes the next one.
struct Older {
    format: u64,
    schema: &'static str,
    convert: fn(Document, Value) -> Result<Value, Mismatch>,
}

/// Oldest first, without gaps up to [`CURRENT`].
const OLDER: [Older; 2] = [
    Older { format: 2, schema: include_str!("formats/state.2.schema"), convert: convert::from_2 },
    Older { format: 3, schema: include_str!("formats/state.3.schema"), convert: convert::from_3 },
];

/// A stored document cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// Another program wrote it.
    #[error(transparent)]
    Unknown(#[from] UnknownFormat),
    /// Its bytes are not what its format says.
    #[error("it is damaged")]
    Damaged(#[from] FrameError),
    /// A converter or a type of today does not fit: a mistake in this program.
    #[error("it cannot be converted from format {format}")]
    Unconverted {
        /// Its format.
        format: u64,
        /// What does not fit.
        source: Mismatch,
    },
    /// A schema of this program is wrong: a mistake too.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

/// That a format is one this program reads.
///
/// # Errors
/// [`UnknownFormat`].
pub(crate) fn check(format: u64, software: Option<&str>) -> Result<(), UnknownFormat> {
    let oldest = OLDER.first().map_or(CURRENT, |older| older.format);
    UnknownFormat::unless_within(STATE, oldest..=CURRENT, format, software)
}

/// A document of a stored state of a format.
///
/// # Errors
/// [`ReadError`].
pub(crate) fn read<T: DeserializeOwned>(document: Document, format: u64, payload: &[u8]) -> Result<T, ReadError> {
    check(format, None)?;
    if format == CURRENT {
        return Ok(decode_stored(0, payload)?);
    }
    let steps = OLDER.iter().skip_while(|older| older.format < format);
    let mut value = None;
    for step in steps {
        let found = match value.take() {
            Some(value) => value,
            None => read_named(step.schema, document, payload)?,
        };
        let converted = (step.convert)(document, found);
        value = Some(converted.map_err(|source| ReadError::Unconverted { format: step.format, source })?);
    }
    let value = value.ok_or_else(|| Mismatch::new("no converter")).and_then(Value::into_type);
    value.map_err(|source| ReadError::Unconverted { format, source })
}

/// The value with names that a payload holds.
fn read_named(schema: &'static str, document: Document, payload: &[u8]) -> Result<Value, ReadError> {
    let schema = Schema::parse(schema)?;
    let reader = schema.of(document.schema()).ok_or_else(|| Mismatch::new("the schema has no such document"));
    let reader = reader.map_err(|source| ReadError::Unconverted { format: CURRENT, source })?;
    Ok(decode_stored_as(0, reader, payload)?)
}

#[cfg(test)]
mod golden;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod trace;
