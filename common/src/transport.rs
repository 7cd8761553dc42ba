//! QUIC endpoints with mutual TLS. The only module, beside the daemons' own loops, that knows the QUIC crate.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use rustls_pki_types::CertificateDer;

use crate::id::HostId;
use crate::tls::{AGGREGATOR_NAME, Identity, TlsError};

/// Default UDP port of an aggregator. Chosen; registered for nothing else.
pub const DEFAULT_PORT: u16 = 7441;

/// A peer that is silent for this long is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Quiet connections are kept alive this often.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// What a peer may send ahead of our reading it, in bytes: a few of the largest reports.
const WINDOW: u32 = 8 << 20;

/// An endpoint could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The identity is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The TLS settings do not suit QUIC.
    #[error("the TLS settings do not suit QUIC")]
    Quic(#[from] NoInitialCipherSuite),
    /// The UDP socket could not be opened.
    #[error("failed to open UDP socket {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The connection could not be started.
    #[error("failed to start a connection to {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: quinn::ConnectError,
    },
}

/// A peer's certificate gives no host name.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// There is no certificate, or not in the expected form.
    #[error("the peer shows no certificate")]
    NoCertificate,
    /// It cannot be parsed.
    #[error("the peer's certificate cannot be parsed: {0}")]
    Malformed(String),
    /// It has not exactly one valid host name.
    #[error("the peer's certificate names {0} valid hosts instead of one")]
    Names(usize),
}

fn transport(streams_from_peer: u32) -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(quinn::IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(streams_from_peer.into())
        .max_concurrent_uni_streams(streams_from_peer.into())
        .stream_receive_window(WINDOW.into())
        .receive_window(WINDOW.into())
        .datagram_receive_buffer_size(None);
    Arc::new(transport)
}

/// The aggregator's endpoint. An agent may open one stream of each kind.
///
/// # Errors
/// [`TransportError`].
pub fn server_endpoint(address: SocketAddr, identity: &Identity) -> Result<quinn::Endpoint, TransportError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(identity.server()?)?));
    config.transport_config(transport(1)).migration(false);
    quinn::Endpoint::server(config, address).map_err(|source| TransportError::Bind { address, source })
}

/// An agent's endpoint.
///
/// # Errors
/// [`TransportError`].
pub fn client_endpoint(aggregator: SocketAddr, identity: &Identity) -> Result<quinn::Endpoint, TransportError> {
    let address = match aggregator {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let mut endpoint = quinn::Endpoint::client(address).map_err(|source| TransportError::Bind { address, source })?;
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(identity.client()?)?));
    config.transport_config(transport(0));
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

/// Starts a connection to the aggregator. It is of use only after the aggregator's welcome: with TLS 1.3 a
/// client is connected before the server has looked at its certificate.
///
/// # Errors
/// [`TransportError::Connect`].
pub fn connect(endpoint: &quinn::Endpoint, aggregator: SocketAddr) -> Result<quinn::Connecting, TransportError> {
    endpoint
        .connect(aggregator, AGGREGATOR_NAME)
        .map_err(|source| TransportError::Connect { address: aggregator, source })
}

/// The host named in the certificate of a connected agent.
///
/// # Errors
/// [`PeerError`].
pub fn peer_host(connection: &quinn::Connection) -> Result<HostId, PeerError> {
    let identity = connection.peer_identity().ok_or(PeerError::NoCertificate)?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().map_err(|_| PeerError::NoCertificate)?;
    let certificate = chain.first().ok_or(PeerError::NoCertificate)?;
    let certificate = webpki::EndEntityCert::try_from(certificate).map_err(|e| PeerError::Malformed(e.to_string()))?;
    let mut names: Vec<HostId> = certificate.valid_dns_names().filter_map(|name| HostId::new(name).ok()).collect();
    match (names.pop(), names.len()) {
        (Some(host), 0) => Ok(host),
        (None, _) => Err(PeerError::Names(0)),
        (Some(_), others) => Err(PeerError::Names(others + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Authority;

    fn identity(authority: &Authority, agent: Option<&str>) -> Identity {
        let folder = tempfile::tempdir().unwrap();
        let (ca, _) = authority.write(folder.path()).unwrap();
        let issued = match agent {
            Some(name) => authority.issue_agent(&HostId::new(name).unwrap()).unwrap(),
            None => authority.issue_aggregator().unwrap(),
        };
        let (certificate, key) = issued.write(folder.path(), "peer").unwrap();
        Identity::load(&ca, &certificate, &key).unwrap()
    }

    /// The host the server sees, or what stopped the connection on the client's side.
    async fn meet(server: &Identity, client: &Identity) -> Result<HostId, String> {
        let server = server_endpoint((Ipv4Addr::LOCALHOST, 0).into(), server).unwrap();
        let address = server.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let connection = server.accept().await.unwrap().await.map_err(|e| e.to_string())?;
            let host = peer_host(&connection).map_err(|e| e.to_string());
            connection.closed().await;
            host
        });
        let client = client_endpoint(address, client).unwrap();
        let connection = connect(&client, address).unwrap().await.map_err(|e| e.to_string())?;
        // The server's verdict on the client's certificate arrives after the client is "connected".
        _ = tokio::time::timeout(Duration::from_millis(300), connection.closed()).await;
        connection.close(0u8.into(), b"");
        accepting.await.unwrap()
    }

    #[tokio::test]
    async fn a_connection_carries_the_certificates_host() {
        let authority = Authority::create().unwrap();
        let host = meet(&identity(&authority, None), &identity(&authority, Some("h1"))).await;
        assert_eq!(host, Ok(HostId::new("h1").unwrap()));
    }

    #[tokio::test]
    async fn an_agent_cannot_pose_as_the_aggregator() {
        let authority = Authority::create().unwrap();
        let error = meet(&identity(&authority, Some("h2")), &identity(&authority, Some("h1"))).await.unwrap_err();
        assert!(error.contains("certificate"), "{error}");
    }

    #[tokio::test]
    async fn an_agent_of_another_authority_is_refused() {
        let (ours, theirs) = (Authority::create().unwrap(), Authority::create().unwrap());
        // The stranger trusts our authority, but has a certificate of another.
        let folder = tempfile::tempdir().unwrap();
        let (ca, _) = ours.write(folder.path()).unwrap();
        let issued = theirs.issue_agent(&HostId::new("h1").unwrap()).unwrap();
        let (certificate, key) = issued.write(folder.path(), "peer").unwrap();
        let stranger = Identity::load(&ca, &certificate, &key).unwrap();
        let error = meet(&identity(&ours, None), &stranger).await.unwrap_err();
        assert!(error.contains("certificate") || error.contains("UnknownIssuer"), "{error}");
    }
}
