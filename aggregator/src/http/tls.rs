//! Certificates of the HTTP client. In: files. Out: its configuration, or which file is wrong. Called by [`super`]'s callers before they ask.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Certificates to show and to believe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Of the authority that the server's certificate is of.
    pub(crate) ca: PathBuf,
    /// Ours, and its key, where the server wants one.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// A certificate or key to show to a server, or to believe it by, cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// The disk does not give it.
    #[error("failed to read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It holds no certificate.
    #[error("there is no certificate in {}", file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// It holds no key.
    #[error("failed to read {}", file.display())]
    NoKey {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: ureq::Error,
    },
}

impl TlsFiles {
    /// The configuration of a client that believes and shows these.
    ///
    /// # Errors
    /// [`TlsError`] naming the file.
    pub(crate) fn load(&self) -> Result<TlsConfig, TlsError> {
        let read =
            |file: &Path| std::fs::read(file).map_err(|source| TlsError::Unreadable { file: file.to_owned(), source });
        let certificates = |file: &Path| {
            let text = read(file)?;
            let found: Vec<Certificate<'static>> = parse_pem(&text)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            match found.is_empty() {
                true => Err(TlsError::NoCertificate { file: file.to_owned() }),
                false => Ok(found),
            }
        };
        let client = match &self.client {
            None => None,
            Some((certificate, key)) => {
                let text = read(key)?;
                let key =
                    PrivateKey::from_pem(&text).map_err(|source| TlsError::NoKey { file: key.clone(), source })?;
                Some(ClientCert::new_with_certs(&certificates(certificate)?, key))
            }
        };
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&certificates(&self.ca)?))
            .client_cert(client)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build())
    }
}
