//! The core loop's part in joining, renewal and revocation. In: requests of hosts and orders of operators. Out:
//! certificates, refusals, and ended connections.

use std::time::Duration;

use gleaner_daemon::clock::Clock;
use gleaner_net::join::{JoinToken, hash_of, is_address, new_secret};
use gleaner_net::tls::AGGREGATOR_NAME;
use gleaner_net::transport::TransportError;
use gleaner_types::error::{Chain, chain};
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAggregator, JoinRequest};

use super::Shell;
use super::holding::NOT_KNOWN;
use super::requests::invalid;
use crate::arrival::Joining;
use crate::enrolment::{Admissions, Credentials, EnrolError, Enrolment, SignError};
use crate::standby::SaveError;
use crate::store::StoreError;
use gleaner_api::{ApiError, ErrorCode, InvitationView, Invited, Response, RevocationView, meant};

/// Longest an invitation may serve, in seconds: 30 days.
const LONGEST_INVITATION_S: f64 = 30.0 * 86_400.0;

/// What certificates count in.
const SECOND: Duration = Duration::from_secs(1);

/// How often it is logged that the aggregator's certificate ends soon.
const EXPIRY_LOG_INTERVAL: Duration = Duration::from_secs(86_400);

/// Changed admissions are not stored, or not known to be.
#[derive(Debug, thiserror::Error)]
enum StoreAdmissionsError {
    /// Not in this aggregator's store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Not where a standby would find them.
    #[error(transparent)]
    Replica(#[from] SaveError),
}

impl Shell {
    /// The time by which tokens expire: by the process's clock, or by the wall where that is later. The former stands
    /// still while the machine is suspended.
    fn latest(&self) -> Timestamp {
        self.clock.now().max(Clock::start().now())
    }

    /// Answers a host that joins.
    pub(super) fn joining(&mut self, joining: Joining) {
        let Joining { peer, request, answer } = joining;
        let now = self.clock.now();
        let result = match self.enrolment.failures.wait_s(now) {
            // Answered, not logged: what is logged is bounded too.
            Some(wait_s) => Err(EnrolError::TooManyFailures { wait_s }),
            None => self.enrol(&peer, &request).inspect_err(|error| self.join_failed(peer, chain(error))),
        };
        // A peer that has gone away has lost its answer, and the operator sees in the log that it joined.
        _ = answer.send(result);
    }

    /// Counts and logs an attempt to join that failed, unless there are too many.
    pub(super) fn join_failed(&mut self, peer: String, reason: String) {
        let now = self.clock.now();
        if self.enrolment.failures.wait_s(now).is_none() {
            self.enrolment.failures.count(now);
            self.log(Event::JoinRefused { peer, reason });
        }
    }

    fn enrol(&mut self, peer: &str, request: &JoinRequest) -> Result<String, EnrolError> {
        let now = self.latest();
        let before = self.enrolment.admissions.clone();
        let host = self.enrolment.admissions.redeem(&request.secret, now)?;
        let (certificate, expires) = match self.sign(&host, &request.request) {
            Ok(signed) => signed,
            Err(error) => {
                // A request that cannot be signed does not use the invitation up.
                self.enrolment.admissions = before;
                return Err(error.into());
            }
        };
        self.store_admissions(before).map_err(|error| EnrolError::Store(Box::new(error)))?;
        self.log(Event::HostEnrolled { host, peer: peer.to_owned(), expires });
        Ok(certificate)
    }

    /// A certificate for a host's agent, in PEM, and until when it holds.
    fn sign(&mut self, host: &HostId, request: &[u8]) -> Result<(String, Timestamp), SignError> {
        let Enrolment { admissions, credentials, lifetime, .. } = &self.enrolment;
        let no_authority = || SignError::NoAuthority(credentials.no_authority.clone());
        let authority = credentials.authority.as_ref().ok_or_else(no_authority)?;
        // The wall clock of now: certificates are compared with other machines' clocks.
        let now = Clock::start().now();
        let validity = admissions.validity(host, now, *lifetime);
        if validity.from > now.after(SECOND) {
            return Err(SignError::RevokedAhead { host: host.clone(), from: validity.from });
        }
        if validity.from > now {
            return Err(SignError::RevokedNow(host.clone()));
        }
        let certificate = authority.sign_agent(host, request, validity)?;
        self.enrolment.known(host, validity);
        Ok((certificate, validity.until))
    }

    /// Answers a connected agent that wants its next certificate.
    pub(super) fn renew(&mut self, host: &HostId, connection: u64, request: &[u8]) {
        let Some(current) = self.connections.get(host).filter(|current| current.id == connection) else { return };
        // A renewed agent comes back on a new connection; one more on this one is a fault of the peer.
        if current.renewed {
            let reason = SignError::IssuedAlready.to_string();
            self.log(Event::MessageRefused { host: host.clone(), reason: reason.clone() });
            self.send(host, FromAggregator::CertificateRefused(reason));
            return;
        }
        match self.sign(host, request) {
            Ok((certificate, expires)) => {
                if let Some(current) = self.connections.get_mut(host) {
                    current.renewed = true;
                }
                self.send(host, FromAggregator::Certificate(certificate));
                self.log(Event::CertificateRenewed { host: host.clone(), expires });
            }
            Err(error) => {
                self.send(host, FromAggregator::CertificateRefused(chain(&error)));
            }
        }
    }

    /// New credentials, or why the old ones stay.
    pub(super) fn reloaded(&mut self, credentials: Result<Box<Credentials>, TransportError>) {
        let error = match credentials {
            Ok(credentials) => {
                self.enrolment.credentials = *credentials;
                self.enrolment.reminded = None;
                None
            }
            Err(error) => Some(chain(&error)),
        };
        self.log(Event::CertificatesReloaded { expires: self.enrolment.credentials.validity.until, error });
    }

    /// Reminds once a day of a certificate of the aggregator that ends soon.
    pub(super) fn log_expiry(&mut self) {
        let now = self.clock.now();
        let validity = self.enrolment.credentials.validity;
        let due = self.enrolment.reminded.is_none_or(|last| now.since(last) >= EXPIRY_LOG_INTERVAL);
        if now >= validity.renewal() && due {
            self.enrolment.reminded = Some(now);
            self.log(Event::CertificateExpiring { expires: validity.until });
        }
    }

    /// Stores changed admissions; if that fails they are as before, and stored so with the next state.
    fn store_admissions(&mut self, before: Admissions) -> Result<(), StoreAdmissionsError> {
        let admissions = &self.enrolment.admissions;
        let stored_here = self.store.save_admissions(admissions).map_err(StoreAdmissionsError::from);
        let stored = stored_here.and_then(|()| match &self.leading {
            Some(leading) => Ok(leading.replica.save(&self.controller, admissions, true)?),
            None => Ok(()),
        });
        if stored.is_err() {
            self.enrolment.admissions = before;
            // What failed may have come as far as the disk, or etcd.
            (self.dirty, self.admissions_dirty) = (true, true);
        }
        stored
    }

    fn admit(&mut self, before: Admissions) -> Result<(), ApiError> {
        self.store_admissions(before).map_err(|error| {
            let error = Chain(&error);
            let message = match &self.leading {
                None => format!("nothing is changed: {error}"),
                Some(_) => format!(
                    "it is not known whether this is done: {error}; look with `gleaner host invitations` and order it \
                     again"
                ),
            };
            ApiError { code: ErrorCode::Unavailable, message }
        })
    }

    pub(super) fn invite(&mut self, host: &HostId, for_s: f64, addresses: Vec<String>) -> Result<Response, ApiError> {
        let unavailable = |message: String| ApiError { code: ErrorCode::Unavailable, message };
        let credentials = &self.enrolment.credentials;
        if credentials.authority.is_none() {
            return Err(unavailable(credentials.no_authority.clone()));
        }
        if host.as_str() == AGGREGATOR_NAME {
            return Err(invalid(format!("host: the name {host} is reserved for the aggregator")));
        }
        let duration =
            Duration::try_from_secs_f64(for_s).ok().filter(|_| (1.0..=LONGEST_INVITATION_S).contains(&for_s));
        let duration = duration.ok_or_else(|| invalid(format!("for_s: is {for_s}; it must be 1 s to 30 days")))?;
        let addresses = if addresses.is_empty() { self.enrolment.advertise.clone() } else { addresses };
        if let Some(bad) = addresses.iter().find(|address| !is_address(address)) {
            return Err(invalid(format!("addresses: {bad:?} is not HOST:PORT")));
        }
        let roots = credentials.roots.clone();
        let now = self.latest();
        let expires = now.after(duration);
        let secret = new_secret().ok_or_else(|| unavailable("the system gives no randomness".to_owned()))?;
        let hash = hash_of(&secret);
        let token = JoinToken { addresses, authority: roots, host: host.clone(), secret };
        let token = token.to_text().map_err(|error| invalid(error.to_string()))?;
        let before = self.enrolment.admissions.clone();
        let replaced = self
            .enrolment
            .admissions
            .invite(host, hash, now, expires)
            .map_err(|error| unavailable(error.to_string()))?;
        self.admit(before)?;
        self.log(Event::HostInvited { host: host.clone(), expires, replaced });
        Ok(Response::Invited(Invited { token: token.into(), expires, replaced }))
    }

    pub(super) fn uninvite(&mut self, host: &HostId) -> Result<Response, ApiError> {
        let before = self.enrolment.admissions.clone();
        let now = self.latest();
        if !self.enrolment.admissions.withdraw(host, now) {
            let open = self.enrolment.admissions.invitations(now).map(|(host, _)| host.as_str());
            let meant = meant(host.as_str(), open);
            let message = format!("host {host} has no open invitation{meant} (`gleaner host invitations` lists them)");
            return Err(ApiError { code: ErrorCode::NotFound, message });
        }
        self.admit(before)?;
        self.log(Event::InvitationWithdrawn { host: host.clone() });
        Ok(Response::Uninvited)
    }

    pub(super) fn revoke(&mut self, host: &HostId, unknown: bool) -> Result<Response, ApiError> {
        if !unknown && !self.is_known(host) {
            return Err(self.no_such_host(host, NOT_KNOWN));
        }
        let now = Clock::start().now();
        // One that was dated while the clock was ahead is revoked as well.
        let through = self.enrolment.newest.get(host).map_or(now, |newest| now.max(*newest));
        let before = self.enrolment.admissions.clone();
        let unavailable = |message| ApiError { code: ErrorCode::Unavailable, message };
        self.enrolment.admissions.revoke(host, through).map_err(|error| unavailable(error.to_string()))?;
        self.admit(before)?;
        self.log(Event::HostRevoked { host: host.clone(), through });
        let was_connected = self.disconnect(host, format!("the certificates of host {host} are revoked"));
        Ok(Response::Revoked { through, was_connected })
    }

    pub(super) fn invitations(&self) -> Response {
        let admissions = &self.enrolment.admissions;
        let invitations = admissions.invitations(self.latest()).map(|(host, invitation)| InvitationView {
            host: host.clone(),
            made: invitation.made,
            expires: invitation.expires,
        });
        let revocations =
            admissions.revocations().map(|(host, through)| RevocationView { host: host.clone(), through });
        Response::Invitations { invitations: invitations.collect(), revocations: revocations.collect() }
    }
}
