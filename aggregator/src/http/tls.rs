//! Certificates of the HTTP client, and of what speaks TLS itself. In: files. Out: its configuration, or which file is wrong.
//! Called by [`super`]'s callers before they ask, and by the source `postgres`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Longest file of certificates. Chosen: four times what Debian believes.
const LONGEST_FILE: u64 = 1 << 20;
/// Where the certificates are that a system believes: of Debian, of Fedora and Red Hat, of openSUSE, and of Alpine, as
/// Go's `crypto/x509` looks for them.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificates to show and to believe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Of the authority that the server's certificate is of; without one, what the system believes.
    pub(crate) ca: Option<PathBuf>,
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
        source: io::Error,
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
    /// It holds no key.
    #[error("there is no private key in {}", file.display())]
    NoPrivateKey {
        /// The file.
        file: PathBuf,
    },
    /// This system has no list of authorities.
    #[error("this system's certificates are in none of {}", SYSTEM_ROOTS.join(", "))]
    NoSystemRoots,
    /// A certificate and its key do not belong together, or are of a kind that is not known.
    #[error("the certificates cannot be used")]
    Unusable(#[from] rustls::Error),
}

impl TlsFiles {
    /// The configuration of a client that believes and shows these.
    ///
    /// # Errors
    /// [`TlsError`] naming the file.
    pub(crate) fn load(&self) -> Result<TlsConfig, TlsError> {
        // The HTTP client takes a key that is not the certificate's for a mistake of the program.
        self.client_config()?;
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
            .root_certs(RootCerts::new_with_certs(&certificates(&self.roots()?)?))
            .client_cert(client)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build())
    }

    /// The same for what speaks TLS itself.
    ///
    /// # Errors
    /// [`TlsError`] naming the file.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let file = self.roots()?;
        let mut roots = RootCertStore::empty();
        let (taken, _) = roots.add_parsable_certificates(of_file(&file)?);
        if taken == 0 {
            return Err(TlsError::NoCertificate { file });
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.client else { return Ok(config.with_no_client_auth()) };
        let secret = PrivateKeyDer::from_pem_slice(&read(key)?);
        let secret = secret.map_err(|_| TlsError::NoPrivateKey { file: key.clone() })?;
        Ok(config.with_client_auth_cert(of_file(certificate)?, secret)?)
    }

    fn roots(&self) -> Result<PathBuf, TlsError> {
        match &self.ca {
            Some(ca) => Ok(ca.clone()),
            None => system_roots(Path::new("/")).ok_or(TlsError::NoSystemRoots),
        }
    }
}

/// The file of what the system below `root` believes.
fn system_roots(root: &Path) -> Option<PathBuf> {
    let files = SYSTEM_ROOTS.map(|file| root.join(file.trim_start_matches('/')));
    files.into_iter().find(|file| file.is_file())
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    read_regular(file, LONGEST_FILE).map_err(|source| TlsError::Unreadable { file: file.to_owned(), source })
}

/// All of a regular file: a pipe could be waited for, and a device has no end.
///
/// # Errors
/// What the kernel says, or that it is another kind of file, or has more than `longest` bytes.
pub(crate) fn read_regular(file: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let opened = File::from(open(file, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    opened.take(longest + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > longest {
        true => Err(io::Error::other(format!("it has more than {longest} bytes"))),
        false => Ok(bytes),
    }
}

/// The certificates of a file, for the HTTP client.
fn certificates(file: &Path) -> Result<Vec<Certificate<'static>>, TlsError> {
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
}

/// The certificates of a file.
fn of_file(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| TlsError::NoCertificate { file: file.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_certificates_are_found_where_distributions_have_them() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(system_roots(root.path()), None);
        for file in ["etc/ssl/ca-bundle.pem", "etc/pki/tls/certs/ca-bundle.crt"] {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            assert_eq!(system_roots(root.path()), Some(file));
        }
    }

    #[test]
    fn what_holds_no_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("odd.pem");
        let of = |ca: &Path| TlsFiles { ca: Some(ca.to_owned()), client: None }.client_config().unwrap_err();
        assert!(matches!(of(&file), TlsError::Unreadable { .. }));
        assert!(matches!(of(folder.path()), TlsError::Unreadable { .. }), "a folder");
        assert!(matches!(of(Path::new("/dev/zero")), TlsError::Unreadable { .. }), "a device has no end");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(matches!(of(&pipe), TlsError::Unreadable { .. }), "nobody writes into a pipe");
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
        assert_eq!(of(&file).to_string(), format!("there is no certificate in {}", file.display()));
        std::fs::write(&file, "x".repeat(usize::try_from(LONGEST_FILE + 1).unwrap())).unwrap();
        assert!(matches!(of(&file), TlsError::Unreadable { .. }));
    }
}
