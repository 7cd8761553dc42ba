//! Who is who: certificates, and the TLS settings both sides use.
//!
//! One private authority signs everything. An agent's certificate carries its host's name and may only act as
//! a client; the aggregator's carries [`AGGREGATOR_NAME`] and may only act as a server, so that no agent can
//! pose as the aggregator.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::id::HostId;
use crate::wire::ALPN;

/// The name in the aggregator's certificate, whatever machine it runs on. No host may have it.
pub const AGGREGATOR_NAME: &str = "aggregator.gleaner.internal";

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
        /// The parser's word.
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
    /// The TLS library refuses the key or the certificates.
    #[error("the TLS library refuses the certificates")]
    Refused(#[from] rustls::Error),
    /// The authority's certificate cannot verify clients.
    #[error("the authority's certificate cannot be used to verify agents: {0}")]
    Verifier(String),
}

/// A certificate, its key and the authority it trusts.
#[derive(Debug)]
pub struct Identity {
    authority: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads an identity from PEM files.
    ///
    /// # Errors
    /// [`TlsError`] when a file is missing, malformed, or a key that others can read.
    pub fn load(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate)?;
        }
        let metadata =
            std::fs::metadata(key).map_err(|source| TlsError::File { action: "read", file: key.to_owned(), source })?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TlsError::KeyExposed { file: key.to_owned(), mode });
        }
        let pem = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|e| TlsError::Pem {
            file: key.to_owned(),
            what: "private key",
            detail: e.to_string(),
        })?;
        Ok(Self { authority: roots, chain: certificates(certificate)?, key: pem })
    }

    /// TLS settings of an agent.
    ///
    /// # Errors
    /// [`TlsError`] if key and certificate do not fit.
    pub fn client(&self) -> Result<rustls::ClientConfig, TlsError> {
        let mut config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.authority.clone())
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }

    /// TLS settings of an aggregator: only agents with a certificate of the same authority are let in.
    ///
    /// # Errors
    /// [`TlsError`] if key and certificate do not fit.
    pub fn server(&self) -> Result<rustls::ServerConfig, TlsError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.authority.clone()), provider())
            .build()
            .map_err(|e| TlsError::Verifier(e.to_string()))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|source| TlsError::File { action: "read", file: file.to_owned(), source })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |detail: String| TlsError::Pem { file: file.to_owned(), what: "certificate", detail };
    let bytes = read(file)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|e| bad(e.to_string()))?;
    if chain.is_empty() { Err(bad("the file has none".into())) } else { Ok(chain) }
}

/// A certificate and its key, both in PEM.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Issued {
    /// Writes `NAME.crt` and `NAME.key` (mode 0600) into a folder, replacing older ones.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub fn write(&self, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf), TlsError> {
        let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        write_file(&key, &self.key, 0o600)?;
        write_file(&certificate, &self.certificate, 0o644)?;
        Ok((certificate, key))
    }
}

/// The private authority that signs a site's certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// A new authority.
    ///
    /// # Errors
    /// [`TlsError::Issue`].
    pub fn create() -> Result<Self, TlsError> {
        let key = KeyPair::generate()?;
        let params = authority_params();
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// The authority that [`Authority::write`] left in a folder.
    ///
    /// # Errors
    /// [`TlsError`] when a file is missing, malformed, or a key that others can read.
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        let (certificate, key) = (folder.join("ca.crt"), folder.join("ca.key"));
        // Checks both files as any identity is checked.
        Identity::load(&certificate, &certificate, &key)?;
        let pem = String::from_utf8_lossy(&read(&key)?).into_owned();
        let key = KeyPair::from_pem(&pem)?;
        // The issuer's name is always the same and its key identifier follows from the key, so the
        // certificate need not be parsed to sign with it.
        let certificate = String::from_utf8_lossy(&read(&certificate)?).into_owned();
        Ok(Self { issuer: Issuer::new(authority_params(), key), certificate })
    }

    /// Writes `ca.crt` and `ca.key` (mode 0600) into a folder.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub fn write(&self, folder: &Path) -> Result<(PathBuf, PathBuf), TlsError> {
        Issued { certificate: self.certificate.clone(), key: self.issuer.key().serialize_pem() }.write(folder, "ca")
    }

    /// A certificate for the agent of a host.
    ///
    /// # Errors
    /// [`TlsError::Reserved`] for the aggregator's name, [`TlsError::Issue`].
    pub fn issue_agent(&self, host: &HostId) -> Result<Issued, TlsError> {
        if host.as_str() == AGGREGATOR_NAME {
            return Err(TlsError::Reserved(host.clone()));
        }
        self.issue(host.as_str(), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A certificate for the aggregator.
    ///
    /// # Errors
    /// [`TlsError::Issue`].
    pub fn issue_aggregator(&self) -> Result<Issued, TlsError> {
        self.issue(AGGREGATOR_NAME, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Result<Issued, TlsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name = common_name(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem() })
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("Gleaner authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Writes a file under a temporary name first, so that no reader meets half a key.
fn write_file(file: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let error = |source| TlsError::File { action: "write", file: file.to_owned(), source };
    let temporary = file.with_extension("new");
    _ = std::fs::remove_file(&temporary);
    let mut open =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).map_err(error)?;
    open.write_all(text.as_bytes()).and_then(|()| open.sync_all()).map_err(error)?;
    std::fs::rename(&temporary, file).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issued_identity_loads_and_an_exposed_key_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create().unwrap();
        let (ca, _) = authority.write(folder.path()).unwrap();
        let host = HostId::new("h1").unwrap();
        let (certificate, key) =
            Authority::load(folder.path()).unwrap().issue_agent(&host).unwrap().write(folder.path(), "h1").unwrap();
        let identity = Identity::load(&ca, &certificate, &key).unwrap();
        identity.client().unwrap();

        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = Identity::load(&ca, &certificate, &key).unwrap_err().to_string();
        assert!(error.contains("h1.key can be read by others (mode 644)"), "{error}");
    }

    #[test]
    fn a_file_without_a_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, "nothing").unwrap();
        let error = Identity::load(&file, &file, &file).unwrap_err().to_string();
        assert!(error.contains("ca.crt holds no valid certificate in PEM"), "{error}");
    }

    #[test]
    fn the_aggregators_name_is_not_for_hosts() {
        let authority = Authority::create().unwrap();
        let name = HostId::new(AGGREGATOR_NAME).unwrap();
        assert!(matches!(authority.issue_agent(&name), Err(TlsError::Reserved(_))));
    }
}
