//! Errors of levers. In: errors of the interfaces. Out: kinds that callers act on differently. Every lever makes them.

use std::io;

/// What went wrong, for callers: they act differently on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The lever or what it belongs to is not there (any more).
    Absent,
    /// This process may not do it, or the host cannot.
    Denied,
    /// A value could not be understood, by Gleaner or by the other side.
    Malformed,
    /// It may work another time.
    Transient,
}

impl Fault {
    /// The kind of an error of an interface.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // ENODEV: the cgroup was removed while the file was open. ENXIO: no such device.
            Some(Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::NXIO) => Self::Absent,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::Denied,
            Some(Errno::INVAL | Errno::RANGE) => Self::Malformed,
            Some(_) => Self::Transient,
            None => match error.kind() {
                io::ErrorKind::NotFound => Self::Absent,
                io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => Self::Denied,
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Self::Malformed,
                _ => Self::Transient,
            },
        }
    }
}

/// A lever could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum LeverError {
    /// Reading failed.
    #[error("failed to read {what}")]
    Read {
        /// The lever, such as "`cpu.max` of `machine-qemu-7.scope`".
        what: String,
        /// The error.
        source: io::Error,
    },
    /// Writing failed.
    #[error("failed to write `{value}` to {what}")]
    Write {
        /// What was written.
        value: String,
        /// The lever.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// It holds something else than it should.
    #[error("{what} holds {text:?}, not {expected}")]
    Malformed {
        /// The lever.
        what: String,
        /// The start of what it holds.
        text: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A value was taken and another is shown.
    #[error("wrote `{value}` to {what}, but it reads `{found}`")]
    NotKept {
        /// What was written.
        value: String,
        /// The lever.
        what: String,
        /// What it reads.
        found: String,
    },
}

impl LeverError {
    /// The kind.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Fault::of(source),
            Self::Malformed { .. } => Fault::Malformed,
            Self::NotKept { .. } => Fault::Transient,
        }
    }
}
