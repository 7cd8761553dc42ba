//! Errors of keys and certificates. In: errors of the system, of PEM files and of the TLS crates. Out: one type, whose
//! text says which file or name is wrong and what to do. Every file of this folder returns it; the daemons and
//! `gleaner pki` print it.

use std::path::PathBuf;

use gleaner_types::id::HostId;

/// Something is wrong with keys or certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read or written.
    #[error("failed to {action} {}", file.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file holds no usable PEM.
    #[error("{} holds no valid {what} in PEM: {detail}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// The parser's error.
        detail: String,
    },
    /// A private key can be read by others.
    #[error("{} can be read by others (mode {mode:o}); run `chmod 600` on it", file.display())]
    KeyExposed {
        /// The file.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A name that may not be used.
    #[error("the name {0} is reserved for the aggregator")]
    Reserved(HostId),
    /// Making a key or certificate failed.
    #[error("failed to make a certificate")]
    Issue(#[from] rcgen::Error),
    /// A key is not the one of its certificate.
    #[error("{} is not the key of the certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// A request for a certificate is malformed, or not signed with the key it is for.
    #[error("the request for a certificate is not valid: {0}")]
    Request(String),
    /// A certificate is not what was asked for.
    #[error("the certificate is not good: {0}")]
    Certificate(String),
    /// The TLS library refuses the key or the certificates.
    #[error("the TLS library refuses the certificates")]
    Refused(#[from] rustls::Error),
    /// The authority's certificate cannot verify clients.
    #[error("the authority's certificate cannot be used to verify agents: {0}")]
    Verifier(String),
}
