//! What programs say on their standard streams. In: lines. Out: the lines, or that nobody reads them any more, which is no
//! fault: `| head -1` closes a pipe early. Every program's commands print through it; `println!` would panic there.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

/// A line could not be written to standard output.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Whoever read it has closed it: the command ends, quietly and well.
    #[error("nobody reads the output any more")]
    Closed,
    /// The disk is full, say.
    #[error("failed to write to standard output")]
    Failed(#[source] io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Failed(error),
        }
    }
}

/// Prints a line on standard output.
///
/// # Errors
/// [`OutputError`].
pub fn say(line: impl Display) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Prints a line on standard error. Where nobody reads that there is nobody to tell.
pub fn note(line: impl Display) {
    _ = writeln!(io::stderr().lock(), "{line}");
}

/// An error is only that nobody reads the output any more. The error itself counts, and what it wraps; a pipe or a connection
/// of another kind that broke is not one.
#[must_use]
pub fn is_closed(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if matches!(error.downcast_ref(), Some(OutputError::Closed)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to list hosts")]
    struct Wrapped(#[source] OutputError);

    #[test]
    fn only_a_closed_output_is_one() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed(&OutputError::from(broken())));
        assert!(is_closed(&Wrapped(OutputError::Closed)));
        assert!(!is_closed(&broken()), "a socket's");
        assert!(!is_closed(&OutputError::from(io::Error::from(io::ErrorKind::StorageFull))));
    }
}
