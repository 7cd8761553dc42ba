//! Errors of the state folder and the ledger. In: errors of the system, from the ledger and the fence. Out: to the
//! actor, which then only observes, and to the operator, with what to do.

use std::io;
use std::path::{Path, PathBuf};

use gleaner_types::format::UnknownFormat;

/// The state folder or the ledger in it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another process uses the folder.
    #[error(
        "the state folder `{dir}` is in use by another gleaner-agent ({holder}); stop it first or choose another folder"
    )]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// Who, as far as known.
        holder: String,
    },
    /// The ledger of this boot cannot be understood. It is left as it is.
    #[error(
        "the record of what must be restored, `{path}`, cannot be used: limits set by an earlier run may still be in \
         force. Compare the limits on this host with what you expect and set right what is wrong, then `gleaner-agent \
         restore --adopt` (the present values count as the original ones; the record is kept aside) or `gleaner-agent \
         restore --discard` (the record is deleted); or reboot, which undoes everything. Until then the agent only observes"
    )]
    Broken {
        /// The ledger.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The folder or the ledger may be the work of others.
    #[error(
        "`{path}` is not to be trusted with what root is to write and to end; see who did that, then make it root's or the \
         agent's own user's alone to write (chown, chmod go-w)"
    )]
    Untrusted {
        /// The folder or the file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// What must be restored has become too long to be read again. Nothing was changed.
    #[error(
        "the record of what must be restored would come to {bytes} bytes; only {most} are read again, so nothing more is \
         changed on this host until some of it is restored"
    )]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// A newer agent wrote the ledger. It was left as it is.
    #[error(
        "what must be restored is recorded in `{path}` by a newer agent; restore the host with that agent \
         (`gleaner-agent restore`), or reboot it, which undoes everything by itself, and move the file away"
    )]
    Newer {
        /// The ledger.
        path: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
    /// The ledger names a lever that only a newer agent has. It was left as it is.
    #[error(
        "what must be restored is recorded in `{path}` by a newer agent, with the lever `{name}`, which this one does not \
         know; restore the host with that agent (`gleaner-agent restore`), or reboot it, which undoes everything by \
         itself, and move the file away"
    )]
    UnknownLever {
        /// The ledger.
        path: PathBuf,
        /// The lever's name.
        name: String,
    },
    /// A file could not be read or written.
    #[error("failed to {action} `{path}`")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

pub(in crate::act) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| LedgerError::Io { action, path, source }
}

/// As [`failed`]; what is not to be trusted is told apart.
pub(super) fn trusted(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| match source.kind() {
        // The system's own refusal has a number.
        io::ErrorKind::PermissionDenied if source.raw_os_error().is_none() => LedgerError::Untrusted { path, source },
        _ => LedgerError::Io { action, path, source },
    }
}
