//! Renews this host's certificate over the live connection, in good time before it ends. In: the certificate in use.
//! Out: a request, and the new certificate on disk. Called by the session.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gleaner_daemon::clock::Clock;
use gleaner_net::tls::{CertificateRequest, IdentityFiles, TlsError, Validity};
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use tracing::{info, warn};

use super::jitter::jittered;

/// Longest pause between two attempts.
const PAUSE: Duration = Duration::from_secs(3_600);

/// From a new connection to the first attempt at most; keeps a host whose clock is wrong from renewing all the time.
const FIRST_ATTEMPT: Duration = Duration::from_secs(600);

/// The renewal of one connection's certificate.
#[derive(Debug)]
pub struct Renewal<'a> {
    files: &'a IdentityFiles,
    host: &'a HostId,
    validity: Validity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When to ask, by the wall clock.
    next: Timestamp,
    /// What was asked last.
    request: Option<CertificateRequest>,
}

impl<'a> Renewal<'a> {
    /// Of a connection of this host, whose certificate in `files` is valid that long.
    #[must_use]
    pub fn new(files: &'a IdentityFiles, host: &'a HostId, validity: Validity) -> Self {
        // A fleet that joined in one day does not renew in one second.
        let lifetime = validity.until.since(validity.from);
        let spread = lifetime / 30 - jittered(lifetime / 30);
        let next = first(validity, wall(), spread);
        Self { files, host, validity, state: Mutex::new(State { next, request: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code between two changes can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is time to ask.
    pub(super) async fn due(&self) {
        loop {
            let left = self.lock().next.since(wall());
            if left.is_zero() {
                return;
            }
            // The wall clock may be set; so look again every now and then.
            tokio::time::sleep(left.min(Duration::from_secs(60))).await;
        }
    }

    /// A request with a new key, to be sent now.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn ask(&self) -> Result<Vec<u8>, TlsError> {
        let mut state = self.lock();
        let left = self.validity.until.since(wall());
        state.next = wall().after((left / 4).clamp(Duration::from_secs(5), PAUSE));
        let request = CertificateRequest::new(self.host)?;
        let der = request.der.clone();
        state.request = Some(request);
        Ok(der)
    }

    /// Puts the certificate that came in place of the old one. The old one is in force when that fails. The files are synced
    /// on a thread of their own, so that the connection lives on while the disk is slow.
    pub(super) async fn accept(&self, certificate: String) -> anyhow::Result<()> {
        let request = self.lock().request.take();
        let request = request.ok_or_else(|| TlsError::Certificate("nobody asked for it".to_owned()))?;
        let (files, host) = (self.files.clone(), self.host.clone());
        let replaced = tokio::task::spawn_blocking(move || {
            let issued = request.complete(&files.authority()?, certificate, &host)?;
            files.replace(&issued)
        });
        replaced.await??;
        info!(host = %self.host, "the certificate is renewed");
        Ok(())
    }

    /// The event of an attempt that failed.
    pub(super) fn failed(&self, reason: String) -> Event {
        warn!(reason, expires = %self.validity.until, "the certificate is not renewed; trying again");
        Event::CertificateNotRenewed { reason, expires: self.validity.until }
    }
}

/// When to ask first.
fn first(validity: Validity, now: Timestamp, spread: Duration) -> Timestamp {
    let left = validity.until.since(now);
    // The aggregator takes a certificate that has expired by this host's clock: the clock is wrong.
    let first_attempt = if left.is_zero() { FIRST_ATTEMPT } else { FIRST_ATTEMPT.min(left / 2) };
    let first_attempt = first_attempt.min(validity.until.since(validity.from) / 10);
    validity.renewal().after(spread).max(now.after(first_attempt))
}

fn wall() -> Timestamp {
    Clock::start().now()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn it_asks_when_a_third_is_left_and_not_all_the_time() {
        let validity = Validity { from: Timestamp(100 * DAY_MS), until: Timestamp(190 * DAY_MS) };
        let first = |now: u64| first(validity, Timestamp(now), Duration::ZERO).0;
        assert_eq!(first(100 * DAY_MS), 160 * DAY_MS);
        // Late, but not at once; soon, where little is left.
        assert_eq!(first(170 * DAY_MS), 170 * DAY_MS + 600_000);
        assert_eq!(first(190 * DAY_MS - 60_000), 190 * DAY_MS - 30_000);
        // By a clock that is wrong.
        assert_eq!(first(500 * DAY_MS), 500 * DAY_MS + 600_000);
        assert_eq!(first(0), 160 * DAY_MS);
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_holds_nobody_else_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // Whoever opens it to read waits for a writer.
        let ca = path("ca.crt");
        assert!(Command::new("mkfifo").arg(&ca).status().unwrap().success());
        let files = IdentityFiles { ca: ca.clone(), certificate: path("agent.crt"), key: path("agent.key") };
        let host = HostId::new("h1").unwrap();
        let validity = Validity { from: Timestamp(0), until: Timestamp(DAY_MS) };
        let renewal = Renewal::new(&files, &host, validity);
        renewal.ask().unwrap();
        let accepting = renewal.accept("no certificate".to_owned());
        tokio::pin!(accepting);
        // The only thread of this runtime goes on.
        tokio::select! {
            biased;
            done = &mut accepting => panic!("{done:?}"),
            () = tokio::task::yield_now() => {}
        }
        std::fs::OpenOptions::new().write(true).open(&ca).unwrap();
        accepting.await.unwrap_err();
    }
}
