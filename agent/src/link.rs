//! The link to the aggregator: reports and events out, commands in, over one QUIC connection that is made
//! again, with jittered pauses, whenever it is lost. It never makes the rest of the agent wait.

mod outbox;
mod session;

pub use outbox::{Outbox, OutboxLimits};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use gleaner_common::clock::Clock;
use gleaner_common::report::HostFacts;
use gleaner_common::tls::Identity;
use tracing::{info, warn};

use crate::host_loop::Order;
use session::{Greeting, SessionEnd};

/// First and longest pause between two attempts to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// A connection that lasted this long makes the next pause short again.
const STEADY: Duration = Duration::from_secs(30);

/// What the link needs to introduce this host.
#[derive(Debug)]
pub struct LinkSettings {
    /// `host:port` of the aggregator.
    pub address: String,
    /// Certificates.
    pub identity: Identity,
    /// What the agent says about itself.
    pub greeting: Introduction,
}

/// What an agent says about itself in its hello.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Its host.
    pub host: gleaner_common::id::HostId,
    /// When the agent started, in milliseconds since the Unix epoch.
    pub incarnation: u64,
    /// Static facts.
    pub facts: HostFacts,
}

/// Keeps the link until the task is dropped. Commands go to `orders`.
pub async fn run(settings: LinkSettings, clock: Clock, outbox: Arc<Outbox>, orders: Sender<Order>) {
    let mut pause = PAUSE.0;
    let mut said = String::new();
    loop {
        let began = clock.now();
        let end = attempt(&settings, clock, &outbox, &orders).await;
        outbox.disconnected();
        let error = match end {
            SessionEnd::AgentGone => return,
            SessionEnd::Lost { welcomed, error } => {
                if welcomed && clock.now().since(began) >= STEADY {
                    pause = PAUSE.0;
                }
                format!("{error:#}")
            }
        };
        // One line per change of reason, however often it happens.
        if said != error {
            warn!(aggregator = %settings.address, %error, "no connection to the aggregator; trying again");
            said = error;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn attempt(settings: &LinkSettings, clock: Clock, outbox: &Arc<Outbox>, orders: &Sender<Order>) -> SessionEnd {
    let lost = |error: anyhow::Error| SessionEnd::Lost { welcomed: false, error };
    let address = match resolve(&settings.address).await {
        Ok(address) => address,
        Err(error) => return lost(error),
    };
    let endpoint = match gleaner_common::transport::client_endpoint(address, &settings.identity) {
        Ok(endpoint) => endpoint,
        Err(error) => return lost(error.into()),
    };
    match session::greet(&endpoint, address, &settings.greeting, clock).await {
        Ok(Greeting { connection, control, welcome }) => {
            info!(aggregator = %address, software = %welcome.software, "connected");
            let skew_ms = welcome.now.0.abs_diff(clock.now().0);
            if skew_ms > 5_000 {
                warn!(skew_ms, "this host's clock and the aggregator's differ; times in the event log will too");
            }
            outbox.connected(welcome.events_through);
            let end = session::serve(&connection, control, outbox, orders).await;
            connection.close(0u8.into(), b"bye");
            endpoint.wait_idle().await;
            end
        }
        Err(error) => lost(error),
    }
}

async fn resolve(address: &str) -> anyhow::Result<SocketAddr> {
    use anyhow::Context;
    tokio::net::lookup_host(address)
        .await
        .with_context(|| format!("failed to look up {address}"))?
        .next()
        .with_context(|| format!("{address} has no address"))
}

/// Between half and all of a pause, so that a fleet does not come back as one.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Fresh RandomState keys are random; this needs no better randomness and no further crate.
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + 0.5 * (random as f64 / u64::MAX as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_jittered_within_bounds() {
        let pauses: Vec<_> = (0..200).map(|_| jittered(Duration::from_secs(10))).collect();
        assert!(pauses.iter().all(|p| (Duration::from_secs(5)..=Duration::from_secs(10)).contains(p)));
        assert!(pauses.iter().max() > pauses.iter().min());
    }
}
