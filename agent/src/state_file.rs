//! A file of the agent's state folder that helps, and that nothing depends on: JSON with the number of its format. In: its path.
//! Out: its content, or why it is not used. Called by the record of learnt postures and by that of the forecast.

use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::act::trust;

/// The part that every format has.
#[derive(Debug, Deserialize)]
struct Head {
    format: u64,
    #[serde(default)]
    written_by: String,
}

/// What the reader of a file knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// The newest format. The first is 1.
    pub(crate) format: u64,
    /// Bytes of the longest file that is read.
    pub(crate) longest: u64,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// It is not the agent's own, or cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// It is longer than any that an agent writes.
    #[error("it is longer than {longest} bytes")]
    TooLong {
        /// The longest that is read.
        longest: u64,
    },
    /// It is damaged.
    #[error("it cannot be understood")]
    Malformed(#[from] serde_json::Error),
    /// Another version wrote it.
    #[error(
        "gleaner {written_by} wrote it in format {format}; this one knows formats up to {newest}, and leaves it as it is"
    )]
    Newer {
        /// Its format.
        format: u64,
        /// The newest that is known here.
        newest: u64,
        /// The version of Gleaner that wrote it.
        written_by: String,
    },
}

impl Unusable {
    /// A newer version could still use it, so it stays as it is.
    pub(crate) const fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. })
    }
}

/// What is in the file; `None` if there is none.
///
/// # Errors
/// [`Unusable`].
pub(crate) fn read<T: DeserializeOwned>(path: &Path, known: Known) -> Result<Option<T>, Unusable> {
    let file = match trust::open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(known.longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > known.longest {
        return Err(Unusable::TooLong { longest: known.longest });
    }
    let Head { format, written_by } = serde_json::from_slice(&bytes)?;
    if format > known.format {
        return Err(Unusable::Newer { format, newest: known.format, written_by });
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}
