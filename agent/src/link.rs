//! The link to the aggregator, over one QUIC connection. In: reports, events and acknowledgements from the outbox. Out:
//! to the aggregator; and its commands to the agent's loop. A lost connection is opened again after a jittered pause.
//! The rest of the agent never waits for the link. Started by the daemon.

mod jitter;
mod renewal;
mod session;

pub use renewal::Renewal;
pub use session::{Greeting, Introduction, SessionEnd, greeting, receive};

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gleaner_daemon::clock::Clock;
use gleaner_net::tls::{Identity, IdentityFiles};
use gleaner_net::transport;
use gleaner_types::error::Chain;
use gleaner_wire::StandsBy;
use quinn::{Connection, Endpoint};
use tracing::{info, warn};

use crate::order::OrderSender;
use crate::outbox::Outbox;
use crate::tasks::TaskInput;
use jitter::jittered;
use session::{Answer, Session};

/// First and longest pause between two rounds of attempts to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// Longest pause while one of several aggregators stands by: soon one will lead. Chosen: fewer handshakes than a
/// standby can bear from ten thousand agents, and less than the time that volunteers have to come back.
const STANDBY_PAUSE: Duration = Duration::from_secs(4);

/// Longest wait for the handshake where another aggregator could be tried instead. Chosen: one that died must not cost
/// its agents more than a moment.
const HANDSHAKE_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(2);

/// A connection that lasted this long makes the next pause short again.
const STEADY: Duration = Duration::from_secs(30);

/// What the link needs to introduce this host.
#[derive(Debug)]
pub struct LinkSettings {
    /// `host:port` of the aggregators, tried in turn.
    pub addresses: Vec<String>,
    /// Certificates; read anew for every connection, so that renewed ones are used.
    pub files: IdentityFiles,
    /// What the agent says about itself.
    pub introduction: Introduction,
    /// Takes what concerns tasks.
    pub tasks: tokio::sync::mpsc::Sender<TaskInput>,
}

/// Keeps the link until the agent is to `leave`: then it says so to its aggregator and ends. Commands go to `orders`.
pub async fn run(
    settings: LinkSettings,
    clock: Clock,
    outbox: Arc<Outbox>,
    orders: OrderSender,
    leave: impl Future<Output = ()>,
) {
    let mut leave = pin!(leave);
    let mut turns = Turns::new(settings.addresses.len());
    let mut last_errors = vec![String::new(); settings.addresses.len()];
    // A connection whose certificate was renewed stays until there is one with the new certificate, so that the host is
    // never missed.
    let mut renewed = None;
    loop {
        let (began, address) = (clock.now(), &settings.addresses[turns.index]);
        let end = attempt(&settings, address, clock, &outbox, &orders, &mut renewed, leave.as_mut()).await;
        outbox.disconnected();
        let last_error = &mut last_errors[turns.index];
        let pause = match end {
            SessionEnd::Leaving => return,
            SessionEnd::Renewed => continue,
            SessionEnd::StandsBy(StandsBy { leader }) => {
                let leader = leader.map_or_else(|| "nobody yet".to_owned(), |leader| leader.to_string());
                let reason = format!("stands by for {leader}");
                if *last_error != reason {
                    info!(aggregator = %address, %leader, "this aggregator stands by");
                    *last_error = reason;
                }
                turns.stands_by()
            }
            SessionEnd::Lost { welcomed, error } => {
                let error = Chain(&*error).to_string();
                // One line per change of reason, however often it happens.
                if *last_error != error {
                    warn!(aggregator = %address, %error, "no connection to the aggregator; trying again");
                    *last_error = error;
                }
                turns.lost(welcomed && clock.now().since(began) >= STEADY)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(jittered(pause)) => {}
            () = leave.as_mut() => return,
        }
    }
}

/// Which aggregator is tried next, and how long to wait before.
#[derive(Debug)]
struct Turns {
    aggregators: usize,
    index: usize,
    /// Attempts since the last pause between rounds.
    tried: usize,
    pause: Duration,
    /// One of this round stands by.
    standby: bool,
}

impl Turns {
    fn new(aggregators: usize) -> Self {
        Self { aggregators: aggregators.max(1), index: 0, tried: 0, pause: PAUSE.0, standby: false }
    }

    /// This one does not lead.
    fn stands_by(&mut self) -> Duration {
        self.standby = true;
        self.next()
    }

    /// There was no connection, or there is none any more. After a steady one the others are tried before the first
    /// long pause.
    fn lost(&mut self, was_steady: bool) -> Duration {
        if was_steady {
            (self.tried, self.pause) = (0, PAUSE.0);
        }
        self.next()
    }

    fn next(&mut self) -> Duration {
        self.index = (self.index + 1) % self.aggregators;
        self.tried += 1;
        if self.tried < self.aggregators {
            return PAUSE.0;
        }
        self.tried = 0;
        let longest = if std::mem::take(&mut self.standby) { STANDBY_PAUSE } else { PAUSE.1 };
        let pause = self.pause.min(longest);
        self.pause = (pause * 2).min(PAUSE.1);
        pause
    }
}

async fn attempt(
    settings: &LinkSettings,
    address: &str,
    clock: Clock,
    outbox: &Arc<Outbox>,
    orders: &OrderSender,
    renewed: &mut Option<Session>,
    mut leave: Pin<&mut impl Future<Output = ()>>,
) -> SessionEnd {
    let before = renewed.take();
    let lost = |error: anyhow::Error| SessionEnd::Lost { welcomed: false, error };
    let identity = match settings.files.load() {
        Ok(identity) => identity,
        Err(error) => return lost(error.into()),
    };
    let greet = async {
        let (endpoint, connection) = connect(settings, address, &identity).await?;
        session::hello(endpoint, connection, &settings.introduction, clock).await
    };
    let greeted = tokio::select! {
        greeted = greet => Some(greeted),
        () = leave.as_mut() => None,
    };
    if let Some(before) = before {
        before.close(greeted.is_none()).await;
    }
    let Some(greeted) = greeted else { return SessionEnd::Leaving };
    match greeted {
        Ok(Answer::Welcome(mut session, welcome)) => {
            info!(aggregator = %address, software = %welcome.software, "connected");
            let skew_ms = welcome.now.0.abs_diff(clock.now().0);
            if skew_ms > 5_000 {
                warn!(skew_ms, "this host's clock and the aggregator's differ; times in the event log will too");
            }
            outbox.connected(welcome.events_through);
            let renewal = Renewal::new(&settings.files, &settings.introduction.host, identity.validity());
            // A runner of tasks that has ended has nothing to tell.
            _ = settings.tasks.send(TaskInput::Connected).await;
            let end = session.serve(outbox, orders, &settings.tasks, &renewal, leave).await;
            if matches!(end, SessionEnd::Renewed) {
                *renewed = Some(*session);
            } else {
                session.close(matches!(end, SessionEnd::Leaving)).await;
            }
            end
        }
        Ok(Answer::StandsBy(stands_by)) => SessionEnd::StandsBy(stands_by),
        Err(error) => lost(error),
    }
}

/// Connects to the aggregator of a name, at each of its addresses until one answers: it may listen on IPv4 alone while
/// the name has an IPv6 address too.
async fn connect(settings: &LinkSettings, name: &str, identity: &Identity) -> anyhow::Result<(Endpoint, Connection)> {
    let addresses = resolve(name).await?;
    let alone = settings.addresses.len() == 1 && addresses.len() == 1;
    let timeout = if alone { session::WELCOME_TIMEOUT } else { HANDSHAKE_TIMEOUT_OF_SEVERAL };
    let mut failures = Vec::new();
    for address in addresses {
        // One that this host cannot even send to, as IPv6 where that is switched off, is no reason to try no other.
        match connect_to(address, identity, timeout).await {
            Ok(connected) => return Ok(connected),
            Err(error) => failures.push(format!("{address}: {}", Chain(&*error))),
        }
    }
    bail!(failures.join("; "))
}

async fn connect_to(
    address: SocketAddr,
    identity: &Identity,
    timeout: Duration,
) -> anyhow::Result<(Endpoint, Connection)> {
    let endpoint = transport::client_endpoint(address, identity)?;
    let connection = tokio::time::timeout(timeout, transport::connect(&endpoint, address)?)
        .await
        .context("the aggregator does not answer")?
        .map_err(|error| match transport::shares_no_protocol(&error) {
            true => anyhow::Error::from(error)
                .context(format!("this agent speaks versions {} of the protocol", gleaner_wire::own_versions())),
            false => error.into(),
        })?;
    Ok((endpoint, connection))
}

/// All addresses of a name with a port; there is one at least.
pub(crate) async fn resolve(name: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let found = tokio::net::lookup_host(name).await.with_context(|| format!("failed to look up {name}"))?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.dedup();
    if addresses.is_empty() {
        bail!("{name} has no address");
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_aggregator_is_tried_with_growing_pauses() {
        let mut turns = Turns::new(1);
        let pauses: Vec<u64> = (0..7).map(|_| turns.lost(false).as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 15, 15]);
        assert_eq!((turns.lost(true), turns.index), (PAUSE.0, 0));
    }

    #[test]
    fn several_are_tried_in_turn_and_more_often_while_one_stands_by() {
        let mut turns = Turns::new(2);
        // The leader is lost: the other one at once; a pause only after both.
        assert_eq!((turns.lost(true), turns.index), (PAUSE.0, 1));
        assert_eq!((turns.stands_by(), turns.index), (PAUSE.0, 0));
        for _ in 0..20 {
            assert_eq!(turns.lost(false), PAUSE.0);
            assert!(turns.stands_by() <= STANDBY_PAUSE);
        }
        let longest = (0..20).map(|_| turns.lost(false)).max();
        assert_eq!(longest, Some(PAUSE.1), "nobody answers");
    }
}
