//! Invitations and revocations. In: hellos, requests to join, and orders of operators, from the shell. Out: who may
//! join, and whose certificates are no longer accepted, stored with the state.
//!
//! Of an invitation only the hash of its secret is kept. It can be used once, until it expires.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_net::join::hash_of;
use gleaner_net::tls::{Authority, TlsError, Validity};
use gleaner_types::id::HostId;
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use gleaner_wire::JoinSecret;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// Most open invitations. Chosen: a rack or two at a time.
pub const MOST_INVITATIONS: usize = 256;

/// Most hosts revoked. Chosen: more than a fleet ever loses.
const MOST_REVOCATIONS: usize = 100_000;

/// For this long after its end an invitation is reported as expired, later as unknown.
const EXPIRED_KEPT: Duration = Duration::from_secs(86_400);

/// Failed attempts to join that are processed: at once, and then one in this many seconds.
const FAILURES: (u32, f64) = (20, 5.0);

/// An open invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// SHA-256 of its secret.
    hash: [u8; 32],
    /// When it was made.
    pub made: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

/// Invitations and revocations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admissions {
    invitations: BTreeMap<HostId, Invitation>,
    /// Certificates of the host are accepted only if they are valid from a later second than this.
    revocations: BTreeMap<HostId, Timestamp>,
}

/// What operators or peers ask for is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// No more can be open.
    #[error("{MOST_INVITATIONS} invitations are open already; `gleaner host uninvite` withdraws one")]
    ManyInvitations,
    /// The invitation was good once.
    #[error("the invitation of host {host} expired at {expires}")]
    Expired {
        /// Whose it was.
        host: HostId,
        /// When it ended.
        expires: Timestamp,
    },
    /// It is none, or no longer.
    #[error("the token is of no open invitation: it was used or withdrawn, or never was")]
    NoInvitation,
    /// No more can be revoked.
    #[error("{MOST_REVOCATIONS} hosts are revoked; make a new authority")]
    ManyRevocations,
}

/// A host's request for a certificate is not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The authority's key is not on this machine; the text says what to do.
    #[error("{0}")]
    NoAuthority(String),
    /// The host was revoked while a clock was ahead.
    #[error("host {host} is revoked through a time ahead; try again after {from}")]
    RevokedAhead {
        /// Which host.
        host: HostId,
        /// From when on it may have a certificate.
        from: Timestamp,
    },
    /// Certificates count in seconds, and the host was revoked in this one.
    #[error("host {0} was revoked this very second; try again")]
    RevokedNow(HostId),
    /// A connection gets one certificate.
    #[error("a certificate was issued on this connection already")]
    IssuedAlready,
    /// The request is not valid, or signing failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A host does not join.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// Too many attempts have failed of late.
    #[error("too many attempts to join have failed; try again in {}", duration(*.wait_s))]
    TooManyFailures {
        /// Seconds until one more is looked at.
        wait_s: f64,
    },
    /// It has no open invitation.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// Its request is not signed.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// Its invitation could be used again after a restart.
    #[error("the aggregator cannot store that the invitation is used")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// This aggregator does not lead; the text says who does.
    #[error("{0}")]
    StandsBy(String),
    /// The core loop is gone.
    #[error("the aggregator is stopping")]
    Stopping,
}

impl Admissions {
    /// Opens an invitation; returns whether it replaces an older one of the host.
    ///
    /// # Errors
    /// [`AdmissionError::ManyInvitations`].
    pub fn invite(
        &mut self,
        host: &HostId,
        hash: [u8; 32],
        now: Timestamp,
        expires: Timestamp,
    ) -> Result<bool, AdmissionError> {
        self.forget(now);
        if self.invitations.len() >= MOST_INVITATIONS && !self.invitations.contains_key(host) {
            return Err(AdmissionError::ManyInvitations);
        }
        let before = self.invitations.insert(host.clone(), Invitation { hash, made: now, expires });
        Ok(before.is_some_and(|before| before.expires > now))
    }

    /// The host that a secret is an open invitation of. The invitation is used up.
    ///
    /// # Errors
    /// [`AdmissionError`], for the operator and for the peer.
    pub fn redeem(&mut self, secret: &JoinSecret, now: Timestamp) -> Result<HostId, AdmissionError> {
        let hash = hash_of(secret);
        // All are compared, each in constant time, so that the time it takes reveals nothing.
        let mut found = None;
        for (host, invitation) in &self.invitations {
            if bool::from(invitation.hash.ct_eq(&hash)) {
                found = Some((host.clone(), invitation.expires));
            }
        }
        match found {
            Some((host, expires)) if expires > now => {
                self.invitations.remove(&host);
                Ok(host)
            }
            Some((host, expires)) => Err(AdmissionError::Expired { host, expires }),
            None => Err(AdmissionError::NoInvitation),
        }
    }

    /// Withdraws an invitation; `false` if there is none.
    pub fn withdraw(&mut self, host: &HostId, now: Timestamp) -> bool {
        self.invitations.remove(host).is_some_and(|invitation| invitation.expires > now)
    }

    /// Open invitations.
    pub fn invitations(&self, now: Timestamp) -> impl Iterator<Item = (&HostId, &Invitation)> {
        self.invitations.iter().filter(move |(_, invitation)| invitation.expires > now)
    }

    /// Revoked hosts.
    pub fn revocations(&self) -> impl Iterator<Item = (&HostId, Timestamp)> {
        self.revocations.iter().map(|(host, through)| (host, *through))
    }

    /// From now on no certificate of the host is accepted that is valid from then or earlier. Its open invitation is
    /// withdrawn.
    ///
    /// # Errors
    /// [`AdmissionError::ManyRevocations`].
    pub fn revoke(&mut self, host: &HostId, through: Timestamp) -> Result<(), AdmissionError> {
        if self.revocations.len() >= MOST_REVOCATIONS && !self.revocations.contains_key(host) {
            return Err(AdmissionError::ManyRevocations);
        }
        self.invitations.remove(host);
        // What an earlier revocation covers stays revoked.
        let longest = self.revocations.entry(host.clone()).or_insert(through);
        *longest = through.max(*longest);
        Ok(())
    }

    /// Why a host's certificate is not accepted, if so.
    #[must_use]
    pub fn revoked(&self, host: &HostId, certificate: Validity) -> Option<String> {
        let through = self.revocations.get(host)?;
        // Certificates have a resolution of seconds.
        (certificate.from.0 / 1_000 <= through.0 / 1_000).then(|| {
            format!(
                "the certificates of host {host} were revoked at {through}; `gleaner host invite {host}` lets it \
                 join anew"
            )
        })
    }

    /// Certificates of a host were revoked.
    #[must_use]
    pub fn is_revoked(&self, host: &HostId) -> bool {
        self.revocations.contains_key(host)
    }

    /// The validity of a new certificate of a host: never from before its revocation.
    #[must_use]
    pub fn validity(&self, host: &HostId, now: Timestamp, lifetime: Duration) -> Validity {
        let mut validity = Validity::starting(now, lifetime);
        if let Some(through) = self.revocations.get(host) {
            validity.from = validity.from.max(Timestamp((through.0 / 1_000 + 1) * 1_000));
        }
        validity
    }

    fn forget(&mut self, now: Timestamp) {
        self.invitations.retain(|_, invitation| invitation.expires.after(EXPIRED_KEPT) > now);
    }
}

/// Limits failed attempts to join.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Attempts not yet forgotten.
    level: f64,
    since: Timestamp,
}

impl Failures {
    /// In how many seconds another attempt is processed; `None` if now.
    pub(crate) fn wait_s(&mut self, now: Timestamp) -> Option<f64> {
        self.level = (self.level - now.seconds_since(self.since) / FAILURES.1).max(0.0);
        self.since = now;
        let over = self.level - f64::from(FAILURES.0 - 1);
        (over > 0.0).then_some(over * FAILURES.1)
    }

    /// Counts one.
    pub(crate) fn count(&mut self, now: Timestamp) {
        _ = self.wait_s(now);
        self.level += 1.0;
    }
}

/// What the core loop needs to sign, and what it knows of its own certificate. Read anew on a reload.
#[derive(Debug)]
pub struct Credentials {
    /// The authority, where its key is on this machine.
    pub authority: Option<Authority>,
    /// Why there is none.
    pub no_authority: String,
    /// Certificates of the authority, in DER.
    pub roots: Vec<Vec<u8>>,
    /// From when until when the aggregator's own certificate holds.
    pub validity: Validity,
}

/// Who may join and who is shut out, and what that is worked with.
#[derive(Debug)]
pub struct Enrolment {
    pub(crate) admissions: Admissions,
    pub(crate) credentials: Credentials,
    /// How long certificates of agents hold.
    pub(crate) lifetime: Duration,
    /// Addresses for tokens.
    pub(crate) advertise: Vec<String>,
    pub(crate) failures: Failures,
    /// From when on the newest certificate holds that was signed for a host, or shown by it, since the start. There are
    /// no more hosts than certificates were issued for.
    pub(crate) newest: BTreeMap<HostId, Timestamp>,
    pub(crate) reminded: Option<Timestamp>,
}

impl Enrolment {
    /// From what was stored, what is on disk, how long certificates of agents hold, and the addresses for tokens.
    #[must_use]
    pub fn new(admissions: Admissions, credentials: Credentials, lifetime: Duration, advertise: Vec<String>) -> Self {
        let (failures, newest) = (Failures::default(), BTreeMap::new());
        Self { admissions, credentials, lifetime, advertise, failures, newest, reminded: None }
    }

    /// Remembers a certificate of a host.
    pub(crate) fn known(&mut self, host: &HostId, certificate: Validity) {
        let newest = self.newest.entry(host.clone()).or_insert(certificate.from);
        *newest = certificate.from.max(*newest);
    }

    /// Where nobody may join and nobody is shut out: a simulation, which has no certificates.
    #[must_use]
    pub fn closed() -> Self {
        let validity = Validity { from: Timestamp(0), until: Timestamp(u64::MAX) };
        let no_authority = "there are no certificates here".to_owned();
        let credentials = Credentials { authority: None, no_authority, roots: Vec::new(), validity };
        Self::new(Admissions::default(), credentials, Duration::ZERO, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use gleaner_net::join::new_secret;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_500);

    fn host(name: &str) -> HostId {
        HostId::new(name).unwrap()
    }

    fn later(seconds: u64) -> Timestamp {
        NOW.after(Duration::from_secs(seconds))
    }

    #[test]
    fn an_invitation_serves_once_and_in_time() {
        let mut admissions = Admissions::default();
        let secrets = [new_secret().unwrap(), new_secret().unwrap()];
        assert_eq!(admissions.invite(&host("h1"), hash_of(&secrets[0]), NOW, later(60)), Ok(false));
        assert!(admissions.redeem(&secrets[1], NOW).unwrap_err().to_string().contains("no open invitation"));
        assert_eq!(admissions.redeem(&secrets[0], later(59)), Ok(host("h1")));
        assert!(admissions.redeem(&secrets[0], later(59)).unwrap_err().to_string().contains("it was used"));

        admissions.invite(&host("h1"), hash_of(&secrets[0]), NOW, later(60)).unwrap();
        assert!(admissions.redeem(&secrets[0], later(60)).unwrap_err().to_string().contains("expired at"));
        assert_eq!(admissions.invitations(later(60)).count(), 0);

        // A newer one takes the older one's place.
        assert_eq!(admissions.invite(&host("h1"), hash_of(&secrets[0]), later(60), later(120)), Ok(false));
        assert_eq!(admissions.invite(&host("h1"), hash_of(&secrets[1]), later(61), later(120)), Ok(true));
        assert!(admissions.redeem(&secrets[0], later(62)).is_err());
        assert!(admissions.withdraw(&host("h1"), later(62)));
        assert!(!admissions.withdraw(&host("h1"), later(62)));
        assert!(admissions.redeem(&secrets[1], later(62)).is_err());
    }

    #[test]
    fn invitations_are_bounded_and_old_ones_forgotten() {
        let mut admissions = Admissions::default();
        let hash = hash_of(&new_secret().unwrap());
        for number in 0..MOST_INVITATIONS {
            admissions.invite(&host(&format!("h{number}")), hash, NOW, later(60)).unwrap();
        }
        assert!(
            admissions.invite(&host("more"), hash, NOW, later(60)).unwrap_err().to_string().contains("256 invitations")
        );
        assert_eq!(admissions.invite(&host("h1"), hash, NOW, later(60)), Ok(true));
        assert_eq!(admissions.invite(&host("more"), hash, later(90_000), later(90_060)), Ok(false));
    }

    #[test]
    fn a_revocation_counts_for_what_was_issued_before_it_only() {
        let mut admissions = Admissions::default();
        let day = Duration::from_secs(86_400);
        let secret = new_secret().unwrap();
        admissions.invite(&host("h1"), hash_of(&secret), NOW, later(60)).unwrap();
        let old = admissions.validity(&host("h1"), NOW, day);
        assert_eq!(old.from, Timestamp(NOW.0 - 300_000));
        admissions.revoke(&host("h1"), NOW).unwrap();
        assert!(admissions.revoked(&host("h1"), old).unwrap().contains("were revoked at 1970-01-12T13:46:40.500Z"));
        assert_eq!(admissions.revoked(&host("h2"), old), None);
        assert!(admissions.redeem(&secret, NOW).is_err(), "its invitation is withdrawn");
        // Even one made at once, and dated back, is a new one.
        let new = admissions.validity(&host("h1"), later(10), day);
        assert_eq!(new.from, Timestamp(1_000_001_000));
        assert_eq!(admissions.revoked(&host("h1"), new), None);
        admissions.revoke(&host("h1"), later(20)).unwrap();
        assert!(admissions.revoked(&host("h1"), new).is_some());
        // What was revoked stays so when it is revoked again by a clock that was set back.
        admissions.revoke(&host("h1"), NOW).unwrap();
        assert!(admissions.revoked(&host("h1"), new).is_some());
    }

    #[test]
    fn failures_are_limited_and_forgotten() {
        let mut failures = Failures::default();
        for _ in 0..20 {
            assert_eq!(failures.wait_s(NOW), None);
            failures.count(NOW);
        }
        assert_eq!(failures.wait_s(NOW), Some(5.0));
        assert_eq!(failures.wait_s(later(5)), None);
        failures.count(later(5));
        assert!(failures.wait_s(later(5)).is_some());
        assert_eq!(failures.wait_s(later(1_000)), None);
    }
}
