//! An identity in memory. In: certificates and a key. Out: TLS configurations of a client, a server and a host that
//! joins. Made by `files`; [`crate::transport`] takes them.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroize;

use gleaner_wire::{ProtocolVersion, VERSIONS_ALPN};

use super::certificate::Validity;
use super::error::TlsError;

/// A certificate, its key and the authority it trusts. This copy of the key is overwritten when it is
/// dropped; those that the TLS library makes are its own to look after.
#[derive(Debug)]
pub struct Identity {
    authority: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    validity: Validity,
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl Identity {
    pub(super) fn new(
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
    pub(super) fn fits(&self) -> bool {
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
    let spoken = protocols.iter().flat_map(|name| ProtocolVersion::SUPPORTED.map(name));
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

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
