//! The core loop's part in orders about hosts: hold, release, remove; and what is said of names that nobody has. In:
//! requests of operators. Out: inputs for the controller, and the answer. Called by [`super::requests`].

use std::time::Duration;

use gleaner_planner::controller::{FleetHold, HeldUntil, Input};
use gleaner_types::application::ApplicationStatus;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::time::Timestamp;

use super::Shell;
use super::requests::invalid;
use crate::audit::cut;
use crate::operators::Operator;
use gleaner_api::{ApiError, ErrorCode, Response, meant};

/// Longest hold with an end, in seconds. Chosen: who wants a host left alone for longer holds it without one.
const LONGEST_HOLD_S: f64 = 366.0 * 86_400.0;

/// What one does who means a host that has not joined yet, or was removed.
pub(super) const NOT_KNOWN: &str = "; --unknown takes one that is not among them";

impl Shell {
    pub(super) fn hold(&mut self, host: HostId, for_s: Option<f64>, unknown: bool) -> Result<Response, ApiError> {
        if !unknown && !self.is_known(&host) {
            return Err(self.no_such_host(&host, NOT_KNOWN));
        }
        let until = self.end_of_hold(for_s)?;
        self.decide(Input::HostHeld { host: host.clone(), until });
        if self.controller.held_by_name(&host) != Some(until.into()) {
            return Err(ApiError { code: ErrorCode::Unavailable, message: "too many hosts are held already".into() });
        }
        self.stored(&format!("host {host} is held"))?;
        Ok(Response::Held { until: until.into() })
    }

    pub(super) fn release(&mut self, host: HostId) -> Result<Response, ApiError> {
        if self.controller.held_by_name(&host).is_none() {
            if !self.is_known(&host) {
                return Err(self.no_such_host(&host, ""));
            }
            let message = match self.controller.all_held() {
                Some(hold) => format!(
                    "host {host} is not held by its name; all hosts are {}, and `gleaner host release --all` ends that",
                    HeldUntil::from(hold.until).in_words(Some(&hold.by))
                ),
                None => format!("host {host} is not held; `gleaner hosts` shows which are"),
            };
            return Err(not_found(message));
        }
        self.decide(Input::HostReleased { host: host.clone() });
        self.stored(&format!("host {host} is released"))?;
        Ok(Response::Released)
    }

    pub(super) fn hold_all(&mut self, operator: &Operator, for_s: Option<f64>) -> Result<Response, ApiError> {
        let until = self.end_of_hold(for_s)?;
        if let Some(hold) = self.controller.all_held().filter(|hold| HeldUntil::from(hold.until) > until.into()) {
            let message = format!(
                "all hosts are {} already; to end that sooner, `gleaner host release --all` first",
                HeldUntil::from(hold.until).in_words(Some(&hold.by))
            );
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        let hold = FleetHold { by: who(operator), since: self.clock.now(), until };
        self.decide(Input::AllHostsHeld(hold));
        self.stored("all hosts are held")?;
        Ok(Response::Held { until: until.into() })
    }

    pub(super) fn release_all(&mut self, operator: &Operator) -> Result<Response, ApiError> {
        if self.controller.all_held().is_none() {
            let message = "the hosts are not held all together; `gleaner hosts` shows which are held".to_owned();
            return Err(not_found(message));
        }
        self.decide(Input::AllHostsReleased { by: who(operator) });
        self.stored("all hosts are released")?;
        Ok(Response::Released)
    }

    /// Forgets a host that is gone for good: its reports, what its forecasts were worth, its figures. Its certificate and a
    /// revocation of it stay as they are: it may join again, or not.
    pub(super) fn remove_host(&mut self, operator: &Operator, host: HostId) -> Result<Response, ApiError> {
        let conflict = |message: String| Err(ApiError { code: ErrorCode::Conflict, message });
        match self.controller.host_facts(&host) {
            // One that was only held, or only signed a certificate for, is not listed, and nothing of it is kept.
            None => return Err(self.no_such_host(&host, "")),
            Some((_, true)) => {
                return conflict(format!(
                    "host {host} is connected; stop its agent first, or shut it out with `gleaner host revoke {host}`"
                ));
            }
            Some((_, false)) => {}
        }
        if let Some(job) = self.controller.job_needing(&host) {
            return conflict(format!("job {job} needs host {host}; cancel it first, or wait until it has ended"));
        }
        let of_it = |own: &&ApplicationStatus| own.spec.tiers.iter().any(|tier| tier.host == host);
        if let Some(own) = self.controller.applications().find(of_it) {
            let name = own.spec.name.clone();
            return conflict(format!(
                "application {name} has a tier on host {host}; `gleaner app remove {name}` first, or apply it without that host"
            ));
        }
        self.decide(Input::HostRemoved { host: host.clone(), by: who(operator) });
        self.histories.remove(&host);
        self.guests.remove(&host);
        self.counters.forget(&host);
        self.stored(&format!("host {host} is removed"))?;
        Ok(Response::HostRemoved)
    }

    /// When a hold ends that is ordered now; `None` where it has no end.
    fn end_of_hold(&self, for_s: Option<f64>) -> Result<Option<Timestamp>, ApiError> {
        let Some(for_s) = for_s else { return Ok(None) };
        let duration = Duration::try_from_secs_f64(for_s).ok().filter(|_| (1.0..=LONGEST_HOLD_S).contains(&for_s));
        let duration = duration.ok_or_else(|| invalid(format!("for_s: is {for_s}; it must be 1 s to 366 days")))?;
        Ok(Some(self.clock.now().after(duration)))
    }

    /// A host that joined, is held, was invited or revoked, or has a certificate of this run.
    pub(super) fn is_known(&self, host: &HostId) -> bool {
        self.known_hosts().any(|known| known == host)
    }

    fn known_hosts(&self) -> impl Iterator<Item = &HostId> {
        let admissions = &self.enrolment.admissions;
        let joined = self.controller.glances().map(|glance| glance.host);
        let invited = admissions.invitations(self.clock.now()).map(|(host, _)| host);
        let revoked = admissions.revocations().map(|(host, _)| host);
        joined.chain(self.controller.held_hosts()).chain(invited).chain(revoked).chain(self.enrolment.newest.keys())
    }

    /// That nobody knows a host of this name, with the nearest one.
    pub(super) fn no_such_host(&self, host: &HostId, or: &str) -> ApiError {
        let meant = meant(host.as_str(), self.known_hosts().map(HostId::as_str));
        not_found(format!("there is no host {host}{meant} (`gleaner hosts` lists them{or})"))
    }

    pub(super) fn no_such_job(&self, job: &JobId) -> ApiError {
        let meant = meant(job.as_str(), self.controller.jobs().map(|job| job.spec.id.as_str()));
        not_found(format!("there is no job {job}{meant} (`gleaner job list` lists them)"))
    }

    pub(super) fn no_such_application(&self, application: &ApplicationId) -> ApiError {
        let meant = meant(application.as_str(), self.controller.applications().map(|own| own.spec.name.as_str()));
        not_found(format!("there is no application {application}{meant} (`gleaner app list` lists them)"))
    }
}

fn not_found(message: String) -> ApiError {
    ApiError { code: ErrorCode::NotFound, message }
}

/// An operator in the words of events.
fn who(operator: &Operator) -> String {
    cut(&operator.user)
}
