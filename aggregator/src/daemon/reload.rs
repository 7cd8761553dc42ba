//! Certificates and keys, and what of the config may change while the aggregator runs: read at the start and at every
//! SIGHUP. In: files. Out: what connections are accepted with, and [`Arrival`]s for the core loop.

use std::path::PathBuf;

use gleaner_daemon::config::Running;
use gleaner_net::tls::{Authority, IdentityFiles};
use gleaner_net::transport::{self, TransportError};
use gleaner_types::error::Chain;
use tokio::sync::mpsc;
use tracing::{error, info};

use crate::arrival::Arrival;
use crate::config::Config;
use crate::enrolment::Credentials;

/// At every SIGHUP reads the certificates, the keys, and the config keys that may change while the aggregator runs.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) file: PathBuf,
    pub(super) running: Running,
}

impl Reloader {
    /// Sends what changed to the core loop. Connections stay. A file with mistakes changes nothing.
    pub(super) async fn run(mut self, config: Config, endpoint: quinn::Endpoint, arrivals: mpsc::Sender<Arrival>) {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangups = match signal(SignalKind::hangup()) {
            Ok(hangups) => hangups,
            Err(error) => {
                error!(%error, "SIGHUP cannot be handled; certificates and config are not read anew");
                return;
            }
        };
        while hangups.recv().await.is_some() {
            if arrivals.send(Arrival::Reloaded(certificates_anew(&config, &endpoint))).await.is_err() {
                return;
            }
            let Some(changed) = self.running.reload(&self.file, Config::with_keys) else { continue };
            let Config { controller: settings, event_log, journal, .. } = changed;
            if arrivals.send(Arrival::Configured { settings, event_log, journal }).await.is_err() {
                return;
            }
        }
    }
}

pub(super) fn identity_files(config: &Config) -> IdentityFiles {
    IdentityFiles { ca: config.ca.clone(), certificate: config.certificate.clone(), key: config.key.clone() }
}

/// What connections are accepted with and certificates signed with, as it is on disk now.
pub(super) fn certificates(config: &Config) -> Result<(quinn::ServerConfig, Credentials), TransportError> {
    let files = identity_files(config);
    let identity = files.load()?;
    let (authority, no_authority) = match &config.authority_key {
        Some(key) => (Some(Authority::load_files(&config.ca, key)?), String::new()),
        // Beside the authority's certificate it is optional.
        None => match Authority::load_files(&config.ca, &config.ca.with_file_name("ca.key")) {
            Ok(authority) => (Some(authority), String::new()),
            Err(error) => {
                let why = format!(
                    "this aggregator cannot sign certificates: {}; say where the authority's key is in \
                     `tls.authority_key`, or make certificates with `gleaner pki issue-agent` where it is",
                    Chain(&error)
                );
                (None, why)
            }
        },
    };
    let credentials = Credentials { authority, no_authority, roots: files.authority()?, validity: identity.validity() };
    Ok((transport::server_config(&identity)?, credentials))
}

/// Certificates and keys as they are on disk now, which connections are accepted with from now on.
fn certificates_anew(config: &Config, endpoint: &quinn::Endpoint) -> Result<Box<Credentials>, TransportError> {
    match certificates(config) {
        Ok((server, credentials)) => {
            endpoint.set_server_config(Some(server));
            info!(expires = %credentials.validity.until, "certificates are read anew");
            Ok(Box::new(credentials))
        }
        Err(error) => {
            error!("certificates cannot be read anew, the old ones stay: {}", Chain(&error));
            Err(error)
        }
    }
}
