//! Identities: certificates, and the TLS settings that both sides use. In: PEM files. Out: TLS configurations, which
//! [`crate::transport`] takes.
//!
//! One private authority signs everything. An agent's certificate carries its host's name and may only act as
//! a client; the aggregator's carries [`AGGREGATOR_NAME`] and may only act as a server, so that no agent can
//! pose as the aggregator. A host that has no certificate yet may only speak the joining protocol.

mod authority;
mod files;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use authority::{AUTHORITY_LIFETIME, Authority, CERTIFICATE_LIFETIME, CertificateRequest, Issued, MAX_REQUEST};
pub use files::{IdentityFiles, write_file};

use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use gleaner_wire::{ProtocolVersion, VERSIONS_ALPN};

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

/// The time in which a certificate is valid, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Not before this.
    pub from: Timestamp,
    /// Not after this.
    pub until: Timestamp,
}

impl Validity {
    /// Clocks that differ by up to this do not matter: certificates are valid from this long before they are made.
    const BACKDATED: Duration = Duration::from_secs(300);

    /// For a certificate made now. Those valid for less than 50 minutes are dated back by a tenth of that.
    #[must_use]
    pub fn starting(now: Timestamp, lifetime: Duration) -> Self {
        let back = u64::try_from(Self::BACKDATED.min(lifetime / 10).as_millis()).unwrap_or(0);
        Self { from: Timestamp(now.0.saturating_sub(back)), until: now.after(lifetime) }
    }

    /// When it should be renewed: when a third of it is left.
    #[must_use]
    pub fn renewal(self) -> Timestamp {
        Timestamp(self.until.0.saturating_sub(self.until.0.saturating_sub(self.from.0) / 3))
    }

    /// The validity of a certificate.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] if it cannot be parsed.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| TlsError::Certificate(error.to_string()))?;
        let at = |time: x509_parser::time::ASN1Time| {
            Timestamp(u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1_000))
        };
        Ok(Self { from: at(parsed.validity().not_before), until: at(parsed.validity().not_after) })
    }
}

/// A certificate, its key and the authority it trusts.
#[derive(Debug)]
pub struct Identity {
    authority: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    validity: Validity,
}

impl Identity {
    /// Reads an identity from PEM files. A pair that was being replaced when the machine stopped is put in order.
    ///
    /// # Errors
    /// [`TlsError`] when a file is missing, malformed, a key that others can read, or not the certificate's key.
    pub fn load(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let files =
            IdentityFiles { ca: authority.to_owned(), certificate: certificate.to_owned(), key: key.to_owned() };
        files.load()
    }

    fn new(
        authority: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in authority {
            roots.add(certificate)?;
        }
        let first = chain.first().ok_or_else(|| TlsError::Certificate("there is none".to_owned()))?;
        let validity = Validity::of(first)?;
        Ok(Self { authority: roots, chain, key, validity })
    }

    /// The key is the certificate's.
    fn fits(&self) -> bool {
        let Ok(key) = rustls::crypto::ring::sign::any_supported_type(&self.key) else { return false };
        CertifiedKey::new(self.chain.clone(), key).keys_match().is_ok()
    }

    /// The time in which its certificate is valid.
    #[must_use]
    pub const fn validity(&self) -> Validity {
        self.validity
    }

    /// 32 bytes that only the holder of the private key has, the same after every restart; others for each purpose.
    #[must_use]
    pub(crate) fn secret(&self, purpose: &str) -> [u8; 32] {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.key.secret_der());
        let mut secret = [0; 32];
        secret.copy_from_slice(ring::hmac::sign(&key, purpose.as_bytes()).as_ref());
        secret
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
        config.alpn_protocols = names(&[ProtocolVersion::alpn]);
        Ok(config)
    }

    /// TLS settings of an aggregator. A certificate of another authority is refused in the handshake; a client
    /// without one passes the handshake and may only speak the joining protocol; the acceptor checks that.
    ///
    /// # Errors
    /// [`TlsError`] if key and certificate do not fit.
    pub fn server(&self) -> Result<rustls::ServerConfig, TlsError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.authority.clone()), provider())
            .allow_unauthenticated()
            .build()
            .map_err(|e| TlsError::Verifier(e.to_string()))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = names(&[ProtocolVersion::alpn, ProtocolVersion::join_alpn]);
        Ok(config)
    }
}

/// What is offered or taken in the handshake, best first: the versions of these protocols, and to learn each other's.
fn names(protocols: &[fn(ProtocolVersion) -> &'static [u8]]) -> Vec<Vec<u8>> {
    let spoken = protocols.iter().flat_map(|name| ProtocolVersion::SPOKEN.map(name));
    spoken.chain([VERSIONS_ALPN]).map(<[u8]>::to_vec).collect()
}

/// TLS settings of a host that joins: it knows the authority and has no certificate.
///
/// # Errors
/// [`TlsError`] if a certificate of the authority is malformed.
pub fn joining_client(authority: &[Vec<u8>]) -> Result<rustls::ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in authority {
        roots.add(CertificateDer::from(certificate.as_slice()))?;
    }
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = names(&[ProtocolVersion::join_alpn]);
    Ok(config)
}

/// Checks that a certificate is of this authority and for this host's agent. The aggregator checks by its own clock
/// whether it is valid now.
///
/// # Errors
/// [`TlsError::Certificate`] says what is wrong.
pub fn check_agent_certificate(authority: &[Vec<u8>], certificate: &[u8], host: &HostId) -> Result<(), TlsError> {
    let wrong = |error: webpki::Error| TlsError::Certificate(error.to_string());
    let authority: Vec<CertificateDer<'_>> = authority.iter().map(|one| CertificateDer::from(one.as_slice())).collect();
    let anchors: Result<Vec<_>, _> = authority.iter().map(anchor_from_trusted_cert).collect();
    let certificate = CertificateDer::from(certificate);
    let time = UnixTime::since_unix_epoch(Duration::from_millis(Validity::of(&certificate)?.from.0));
    let end_entity = EndEntityCert::try_from(&certificate).map_err(wrong)?;
    end_entity
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors.map_err(wrong)?,
            &[],
            time,
            KeyUsage::client_auth(),
            None,
            None,
        )
        .map_err(wrong)?;
    let names: Vec<&str> = end_entity.valid_dns_names().collect();
    if names == [host.as_str()] {
        return Ok(());
    }
    Err(TlsError::Certificate(format!("it names {names:?} instead of {host}")))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
