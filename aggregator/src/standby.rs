//! Several aggregators: one leads, the others are on standby. In: the section `[standby]`, and etcd. Out: whether this
//! aggregator leads, and the state that it continues from. Called by the daemon.
//!
//! A leader holds the leader lease, a key in etcd with a time to live. Two rules ensure that no two aggregators command
//! one host. First, a leader stops commanding before its lease can have ended at etcd, counted from when its last
//! successful renewal was sent (`LeaderLease`). Second, every command carries the leader's epoch, larger than any
//! before, and agents refuse older ones. The first rule holds while the leader's clock runs. The second holds when it
//! does not, as in a virtual machine that was paused as a whole. Until the new leader's first command reaches a host,
//! that host obeys the old leader, and only that one.
//!
//! A leader that lost the leader lease exits, and systemd starts it again. It does not return to standby in the same
//! process, so no late decision can leave the process.

mod election;
mod etcd;
mod leader_lease;
mod replica;
mod settings;

use std::time::Duration;

use gleaner_daemon::metrics::Page;
use gleaner_daemon::service::Watchdog;
use gleaner_planner::controller::Controller;
use gleaner_types::id::HostId;
use gleaner_wire::StandsBy;
use tokio::sync::{mpsc, watch};

use crate::arrival::{Arrival, Declined, Joining};
use crate::enrolment::{Admissions, EnrolError};
use crate::metrics::Pulse;
use election::StartError;
pub(crate) use election::{Election, Role, WonElection};
use gleaner_api::{ApiError, ErrorCode, Leadership, Overview, Request, Response};
pub(crate) use leader_lease::LeaderLease;
use replica::LoadError;
pub(crate) use replica::{Replica, SaveError};
pub use settings::StandbySettings;

/// A leadership that was won cannot be taken up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeOverError {
    /// The state is there and cannot be read: to lead without it would forget jobs.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its own states could not be written.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// What a leader has, beside what an aggregator alone has.
#[derive(Debug)]
pub(crate) struct Leading {
    pub(crate) name: HostId,
    pub(crate) epoch: u64,
    /// Where its state came from.
    pub(crate) state_from: &'static str,
    pub(crate) replica: Replica,
}

impl Leading {
    /// What the last leader left in etcd; where there is nothing yet, `stored` of this aggregator's store, or `fresh`. Blocks.
    ///
    /// # Errors
    /// [`TakeOverError`].
    pub(crate) fn take_over(
        settings: &StandbySettings,
        won: &WonElection,
        stored: Option<(Controller, Admissions)>,
        fresh: Controller,
    ) -> Result<(Controller, Admissions, Self), TakeOverError> {
        let ((mut state, admissions), state_from) = match (replica::load(settings)?, stored) {
            (Some(last), _) => (last, "etcd"),
            (None, Some(stored)) => (stored, "own store"),
            (None, None) => ((fresh, Admissions::default()), "nowhere"),
        };
        state.set_epoch(won.epoch);
        let replica = Replica::start(settings, won)?;
        let leading = Self { name: settings.name.clone(), epoch: won.epoch, state_from, replica };
        Ok((state, admissions, leading))
    }

    /// How it is shown.
    pub(crate) fn view(&self) -> Leadership {
        let leader = Some(self.name.clone());
        Leadership {
            name: self.name.clone(),
            leads: true,
            leader,
            epoch: Some(self.epoch),
            error: self.replica.error(),
        }
    }
}

/// Who leads, in words.
fn who_leads(role: &Role) -> String {
    match (&role.leader, &role.error) {
        (Some((leader, _)), _) => format!("{leader} leads; ask there"),
        (None, Some(error)) => format!("who leads is not known: {error}"),
        (None, None) => "nobody leads yet".to_owned(),
    }
}

/// Answers whatever arrives while this aggregator stands by, until it is dropped.
pub(crate) async fn stand_by(
    arrivals: &mut mpsc::Receiver<Arrival>,
    name: &HostId,
    role: &watch::Receiver<Role>,
    pulse: &Pulse,
    configured: &mut Option<Arrival>,
    overview: impl Fn(Leadership) -> Overview,
) -> std::convert::Infallible {
    let mut watchdog = Watchdog::of_this_process();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        let arrival = tokio::select! {
            arrival = arrivals.recv() => arrival,
            _ = ticks.tick() => {
                watchdog.works();
                pulse.stands_by(format!("this aggregator ({name}) stands by; {}", who_leads(&role.borrow())));
                continue;
            }
        };
        let Some(arrival) = arrival else { return std::future::pending().await };
        let role = role.borrow().clone();
        let message = format!("this aggregator ({name}) stands by; {}", who_leads(&role));
        let Role { leader, error } = role;
        let (leader, epoch) = leader.unzip();
        match arrival {
            // Whoever asks may have gone away, and needs no answer then.
            Arrival::Joined(joined) => {
                _ = joined.events_through.send(Err(Declined::StandsBy(StandsBy { leader })));
            }
            Arrival::Joining(Joining { answer, .. }) => _ = answer.send(Err(EnrolError::StandsBy(message))),
            Arrival::Api { request: Request::Overview, answer, .. } => {
                let view = Leadership { name: name.clone(), leads: false, leader, epoch, error };
                _ = answer.send(Response::Overview(Box::new(overview(view))));
            }
            Arrival::Api { answer, .. } => {
                _ = answer.send(Response::Error(ApiError { code: ErrorCode::Unavailable, message }));
            }
            // What there is to tell is its readiness.
            Arrival::Scraped { answer } => _ = answer.send(Page::default()),
            changed @ Arrival::Configured { .. } => *configured = Some(changed),
            _ => {}
        }
    }
}

/// Answers of etcd and a state from it, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    etcd::fuzz(data);
    replica::fuzz(data);
}

#[cfg(test)]
pub(crate) use replica::write_golden;

#[cfg(test)]
mod tests;
