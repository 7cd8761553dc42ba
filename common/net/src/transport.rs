//! QUIC endpoints with mutual TLS. In: an identity and an address. Out: an endpoint or a connection, and the host name
//! in a peer's certificate. The only module, besides the daemons' own loops, that knows the QUIC crate.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{HandshakeData, NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use rustls_pki_types::CertificateDer;

use crate::tls::{AGGREGATOR_NAME, Identity, TlsError, Validity, joining_client};
use gleaner_types::id::HostId;
use gleaner_wire::{MAX_VERSIONS, Purpose, encoded_versions, own_versions, versions_in_words};

/// Default UDP port of an aggregator. Chosen; registered for nothing else.
pub const DEFAULT_PORT: u16 = 7441;

/// A connection that is silent for this long is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Quiet connections are kept alive this often.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Least time between two stateless resets: a thousand a second, each smaller than what it answers. Chosen.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// What a peer may send before it is read, in bytes: a few of the largest reports.
const WINDOW: u32 = 8 << 20;

/// By this code an agent closes its connection that was stopped, once its host is as it was found. Others are 0 and 1.
const STOPPED: u32 = 2;

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
        .datagram_receive_buffer_size(None)
        // What a host sends fits into a packet or two, and many virtual network cards refuse larger ones: each refusal
        // would be a warning in the log.
        .enable_segmentation_offload(false);
    Arc::new(transport)
}

/// Its keys outlive a restart. So an aggregator that was killed and started again recognises packets of earlier
/// connections and resets them at once; the agents would otherwise notice only after ten seconds of silence.
#[must_use]
pub fn endpoint_config(identity: &Identity) -> quinn::EndpointConfig {
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &identity.secret("stateless reset"));
    let own = identity.secret("connection identifiers");
    let own = own.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut config = quinn::EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(quinn_proto::HashedConnectionIdGenerator::from_key(own)));
    config.min_reset_interval(RESET_INTERVAL);
    config
}

/// Closes the connection of an agent that was stopped.
pub fn leave(connection: &quinn::Connection) {
    connection.close(STOPPED.into(), b"stopped");
}

/// The agent at the other end was stopped, and has closed the connection for that.
#[must_use]
pub fn has_left(connection: &quinn::Connection) -> bool {
    let stopped = quinn::VarInt::from_u32(STOPPED);
    matches!(
        connection.close_reason(),
        Some(quinn::ConnectionError::ApplicationClosed(close)) if close.error_code == stopped
    )
}

/// The aggregator's endpoint. An agent may open one stream of each kind.
///
/// # Errors
/// [`TransportError`].
pub fn server_endpoint(address: SocketAddr, identity: &Identity) -> Result<quinn::Endpoint, TransportError> {
    server_endpoint_with(address, endpoint_config(identity), server_config(identity)?)
}

/// The same with an [`endpoint_config`] and a [`server_config`].
///
/// # Errors
/// [`TransportError::Bind`].
pub fn server_endpoint_with(
    address: SocketAddr,
    endpoint: quinn::EndpointConfig,
    server: quinn::ServerConfig,
) -> Result<quinn::Endpoint, TransportError> {
    let runtime = Arc::new(quinn::TokioRuntime);
    std::net::UdpSocket::bind(address)
        .and_then(|socket| quinn::Endpoint::new(endpoint, Some(server), socket, runtime))
        .map_err(|source| TransportError::Bind { address, source })
}

/// The TLS settings of an aggregator's endpoint; they may be replaced while it serves.
///
/// # Errors
/// [`TransportError`].
pub fn server_config(identity: &Identity) -> Result<quinn::ServerConfig, TransportError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(identity.server()?)?));
    config.transport_config(transport(1)).migration(false);
    Ok(config)
}

/// An agent's endpoint.
///
/// # Errors
/// [`TransportError`].
pub fn client_endpoint(aggregator: SocketAddr, identity: &Identity) -> Result<quinn::Endpoint, TransportError> {
    client(aggregator, identity.client()?)
}

/// The endpoint of a host that joins; `authority` is from its token.
///
/// # Errors
/// [`TransportError`].
pub fn joining_endpoint(aggregator: SocketAddr, authority: &[Vec<u8>]) -> Result<quinn::Endpoint, TransportError> {
    client(aggregator, joining_client(authority)?)
}

fn client(aggregator: SocketAddr, tls: rustls::ClientConfig) -> Result<quinn::Endpoint, TransportError> {
    let address = match aggregator {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let mut endpoint = quinn::Endpoint::client(address).map_err(|source| TransportError::Bind { address, source })?;
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport(0));
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

/// Starts a connection to the aggregator. It is of use only after the aggregator's welcome: with TLS 1.3 a
/// client is connected before the server has checked its certificate.
///
/// # Errors
/// [`TransportError::Connect`].
pub fn connect(endpoint: &quinn::Endpoint, aggregator: SocketAddr) -> Result<quinn::Connecting, TransportError> {
    endpoint
        .connect(aggregator, AGGREGATOR_NAME)
        .map_err(|source| TransportError::Connect { address: aggregator, source })
}

/// What the peers agreed on in the handshake.
#[must_use]
pub fn purpose(connection: &quinn::Connection) -> Option<Purpose> {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    Purpose::of(data?.protocol.as_deref()?)
}

/// The handshake failed because the peers share no name of a protocol, not even that for learning each other's versions.
#[must_use]
pub fn shares_no_protocol(error: &quinn::ConnectionError) -> bool {
    // TLS alert 120, no_application_protocol (RFC 7301 §3.2), as QUIC carries it (RFC 9001 §4.8).
    let alert = quinn_proto::TransportErrorCode::crypto(120);
    match error {
        quinn::ConnectionError::TransportError(error) => error.code == alert,
        quinn::ConnectionError::ConnectionClosed(closed) => closed.error_code == alert,
        _ => false,
    }
}

/// Longest wait for a peer's versions.
const VERSIONS_TIMEOUT: Duration = Duration::from_secs(5);

/// The client's side of a connection on which the peers share no version: sends its own, and reads the aggregator's.
/// Returns what is wrong, in words.
pub async fn learn_versions(connection: &quinn::Connection) -> String {
    let exchange = async {
        let (mut send, mut receive) = connection.open_bi().await.ok()?;
        send.write_all(&encoded_versions()).await.ok()?;
        send.finish().ok()?;
        receive.read_to_end(MAX_VERSIONS).await.ok()
    };
    let peer_versions = tokio::time::timeout(VERSIONS_TIMEOUT, exchange).await.ok().flatten().unwrap_or_default();
    format!(
        "no common version of the protocol: the aggregator speaks {}, this host {}",
        versions_in_words(&peer_versions),
        own_versions()
    )
}

/// The aggregator's side of the same.
pub async fn tell_versions(connection: &quinn::Connection) -> String {
    let exchange = async {
        let (mut send, mut receive) = connection.accept_bi().await.ok()?;
        let peer_versions = receive.read_to_end(MAX_VERSIONS).await.ok()?;
        send.write_all(&encoded_versions()).await.ok()?;
        send.finish().ok()?;
        Some(peer_versions)
    };
    let peer_versions = tokio::time::timeout(VERSIONS_TIMEOUT, exchange).await.ok().flatten().unwrap_or_default();
    // The peer ends the connection once it has read the answer.
    _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
    let reason = format!(
        "no common version of the protocol: the peer speaks {}, this aggregator {}",
        versions_in_words(&peer_versions),
        own_versions()
    );
    connection.close(1u8.into(), reason.as_bytes());
    reason
}

/// The host named in the certificate of a connected agent, and the certificate's validity.
///
/// # Errors
/// [`PeerError`]; also for a peer without a certificate, which the handshake lets through.
pub fn peer(connection: &quinn::Connection) -> Result<(HostId, Validity), PeerError> {
    let identity = connection.peer_identity().ok_or(PeerError::NoCertificate)?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().map_err(|_| PeerError::NoCertificate)?;
    let certificate = chain.first().ok_or(PeerError::NoCertificate)?;
    let validity = Validity::of(certificate).map_err(|e| PeerError::Malformed(e.to_string()))?;
    let certificate = webpki::EndEntityCert::try_from(certificate).map_err(|e| PeerError::Malformed(e.to_string()))?;
    let mut names: Vec<HostId> = certificate.valid_dns_names().filter_map(|name| HostId::new(name).ok()).collect();
    match (names.pop(), names.len()) {
        (Some(host), 0) => Ok((host, validity)),
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

    /// Why two peers do not meet, on either side.
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    enum NotMet {
        Connection(#[from] quinn::ConnectionError),
        Peer(#[from] PeerError),
    }

    /// The host the server sees, or what stopped the connection on either side.
    async fn meet(server: &Identity, client: &Identity) -> Result<HostId, NotMet> {
        let server = server_endpoint((Ipv4Addr::LOCALHOST, 0).into(), server).unwrap();
        let address = server.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let connection = server.accept().await.unwrap().await?;
            let host = peer(&connection).map(|(host, _)| host);
            connection.closed().await;
            Ok(host?)
        });
        let client = client_endpoint(address, client).unwrap();
        let connection = connect(&client, address).unwrap().await?;
        // The server's verdict on the client's certificate arrives after the client is "connected".
        _ = tokio::time::timeout(Duration::from_millis(300), connection.closed()).await;
        connection.close(0u8.into(), b"");
        accepting.await.unwrap()
    }

    #[tokio::test]
    async fn a_connection_carries_the_certificates_host() {
        let authority = Authority::create().unwrap();
        let host = meet(&identity(&authority, None), &identity(&authority, Some("h1"))).await;
        assert_eq!(host.unwrap(), HostId::new("h1").unwrap());
    }

    #[tokio::test]
    async fn an_agent_cannot_pose_as_the_aggregator() {
        let authority = Authority::create().unwrap();
        let error =
            meet(&identity(&authority, Some("h2")), &identity(&authority, Some("h1"))).await.unwrap_err().to_string();
        assert!(error.contains("certificate"), "{error}");
    }

    #[tokio::test]
    async fn a_peer_without_a_certificate_has_no_host_and_may_only_join() {
        let authority = Authority::create().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (ca, _) = authority.write(folder.path()).unwrap();
        let roots = crate::tls::IdentityFiles { ca, certificate: "".into(), key: "".into() }.authority().unwrap();
        let server = server_endpoint((Ipv4Addr::LOCALHOST, 0).into(), &identity(&authority, None)).unwrap();
        let address = server.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let connection = server.accept().await.unwrap().await.unwrap();
            (purpose(&connection), peer(&connection).unwrap_err().to_string())
        });
        let client = joining_endpoint(address, &roots).unwrap();
        let _connection = connect(&client, address).unwrap().await.unwrap();
        let join = Some(Purpose::Join(gleaner_wire::ProtocolVersion::CURRENT));
        assert_eq!(accepting.await.unwrap(), (join, "the peer shows no certificate".to_owned()));
        // It does verify the peer that receives its secret.
        let theirs = Authority::create().unwrap();
        let server = server_endpoint((Ipv4Addr::LOCALHOST, 0).into(), &identity(&theirs, None)).unwrap();
        let address = server.local_addr().unwrap();
        let accepting = tokio::spawn(async move { server.accept().await.unwrap().await.is_err() });
        assert!(connect(&client, address).unwrap().await.is_err());
        assert!(accepting.await.unwrap());
    }

    #[tokio::test]
    async fn an_agent_of_another_authority_is_refused() {
        let (ours, theirs) = (Authority::create().unwrap(), Authority::create().unwrap());
        // This peer trusts our authority, but has a certificate of another.
        let folder = tempfile::tempdir().unwrap();
        let (ca, _) = ours.write(folder.path()).unwrap();
        let issued = theirs.issue_agent(&HostId::new("h1").unwrap()).unwrap();
        let (certificate, key) = issued.write(folder.path(), "peer").unwrap();
        let stranger = Identity::load(&ca, &certificate, &key).unwrap();
        let error = meet(&identity(&ours, None), &stranger).await.unwrap_err().to_string();
        assert!(error.contains("certificate") || error.contains("UnknownIssuer"), "{error}");
    }
}
