//! The election. In: the leader's key in etcd. Out: the leadership, won and kept, or lost. It has a thread of its own,
//! because etcd's client blocks. Started by the daemon.

use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use gleaner_daemon::clock::Clock;
use gleaner_types::id::HostId;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::etcd::{Compare, Etcd, EtcdError, KeyValue, Operation, transaction};
use super::leader_lease::{LeaderLease, Moment};
use super::settings::StandbySettings;
use crate::http::TlsError;
use crate::metrics::Pulse;

/// Longest time between two attempts to follow a leader that is gone.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// Time until a renewal that failed is tried again. (Both chosen.)
const RENEW_AGAIN: Duration = Duration::from_millis(500);

/// Who leads, as far as this aggregator knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Role {
    /// The leader's name and its epoch.
    pub(crate) leader: Option<(HostId, u64)>,
    /// etcd cannot be asked now.
    pub(crate) error: Option<String>,
}

/// A leadership that was won.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WonElection {
    pub(crate) epoch: u64,
    /// When the leader's key was made; as long as the key is that one, no other aggregator leads.
    pub(crate) created: i64,
    lease: i64,
}

/// What the leader's key holds.
#[derive(Debug, Serialize, Deserialize)]
struct Leader {
    name: HostId,
    epoch: u64,
}

fn leader(key: &KeyValue) -> Option<(HostId, u64)> {
    let Leader { name, epoch } = serde_json::from_slice(&key.value).ok()?;
    Some((name, epoch))
}

/// A thread that works with etcd cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no thread to be had.
    #[error(transparent)]
    Thread(#[from] std::io::Error),
}

/// Epochs are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no epoch after {0}")]
struct NoEpoch(u64);

/// The epoch of a new leader: the present time, as that of an aggregator alone, but more than any before. `floor` is the
/// epoch of the state it would go on with if etcd has none.
///
/// # Errors
/// Where there is none left.
fn next_epoch(last: u64, floor: u64, now_ms: u64) -> Result<u64, NoEpoch> {
    let before = last.max(floor);
    let next = before.checked_add(1).ok_or(NoEpoch(before))?;
    Ok(next.max(now_ms))
}

/// An aggregator that would lead.
#[derive(Debug)]
struct Candidate {
    etcd: Etcd,
    name: HostId,
    ttl: Duration,
    leader_key: String,
    epoch_key: String,
    /// Epoch of its own state.
    floor: u64,
    /// Of its core loop, which leads in its name.
    pulse: Arc<Pulse>,
}

/// The outcome of one attempt.
enum Campaign {
    /// Somebody leads.
    Led(KeyValue),
    /// We do.
    WonElection(WonElection),
}

impl Candidate {
    /// Looks for a leader and, where there is none, tries to become it.
    fn campaign(&mut self, now_ms: u64, leader_lease: &LeaderLease) -> Result<Option<Campaign>, EtcdError> {
        if let Some(key) = self.etcd.get(&self.leader_key)? {
            return Ok(Some(Campaign::Led(key)));
        }
        let sent = Moment::now();
        let (lease, ttl_s) = self.etcd.grant(self.ttl.as_secs())?;
        let result = self.contend(lease, now_ms);
        match &result {
            Ok(Some(Campaign::WonElection(_))) => leader_lease.extend(sent, Duration::from_secs(ttl_s)),
            // One that cannot be revoked ends by itself.
            _ => _ = self.etcd.revoke(lease),
        }
        result
    }

    fn contend(&mut self, lease: i64, now_ms: u64) -> Result<Option<Campaign>, EtcdError> {
        let malformed = |what| EtcdError::Malformed { call: "kv/range", what };
        let (last, modified) = match self.etcd.get(&self.epoch_key)? {
            None => (0, 0),
            Some(key) => {
                let text = String::from_utf8_lossy(&key.value).into_owned();
                let last = text.parse().map_err(|_| malformed(format!("{} holds no number", self.epoch_key)))?;
                (last, key.modified)
            }
        };
        let epoch = next_epoch(last, self.floor, now_ms).map_err(|error| malformed(error.to_string()))?;
        let value = serde_json::to_vec(&Leader { name: self.name.clone(), epoch }).unwrap_or_default();
        let digits = epoch.to_string();
        let body = transaction(
            &[Compare::Created(&self.leader_key, 0), Compare::Modified(&self.epoch_key, modified)],
            &[
                Operation::Put { key: &self.leader_key, value: &value, lease },
                Operation::Put { key: &self.epoch_key, value: digits.as_bytes(), lease: 0 },
            ],
            &[Operation::Get { key: &self.leader_key }],
        );
        let outcome = self.etcd.transact(&body)?;
        if outcome.succeeded {
            return Ok(Some(Campaign::WonElection(WonElection { epoch, created: outcome.revision, lease })));
        }
        Ok(outcome.found.into_iter().flatten().next().map(|key| match key.lease == lease {
            // It was done by a request whose answer got lost.
            true => Campaign::WonElection(WonElection { epoch, created: key.created, lease }),
            false => Campaign::Led(key),
        }))
    }

    /// Renews the lease, and looks whether the key is still ours.
    ///
    /// # Errors
    /// etcd's. `Ok` with a reason when the leadership is over.
    fn renew(&mut self, won: &WonElection, leader_lease: &LeaderLease) -> Result<Option<String>, EtcdError> {
        let sent = Moment::now();
        let Some(ttl_s) = self.etcd.keep_alive(won.lease)? else {
            return Ok(Some("its lease is over at etcd".to_owned()));
        };
        match self.etcd.get(&self.leader_key)? {
            Some(key) if key.created == won.created => {
                leader_lease.extend(sent, Duration::from_secs(ttl_s));
                Ok(None)
            }
            Some(key) => {
                let other = leader(&key).map_or_else(|| "another".to_owned(), |(name, _)| name.to_string());
                Ok(Some(format!("{other} leads now")))
            }
            None => Ok(Some(format!("somebody removed {} from etcd", self.leader_key))),
        }
    }
}

/// The thread that wins and keeps, and what it tells.
#[derive(Debug)]
pub(crate) struct Election {
    /// Who leads, while this aggregator stands by.
    pub(crate) role: watch::Receiver<Role>,
    /// Resolves once this aggregator leads.
    pub(crate) won: oneshot::Receiver<WonElection>,
    /// Resolves, with the reason, once it lost leadership.
    pub(crate) lost: oneshot::Receiver<String>,
    stop: std_mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Election {
    /// Begins. `floor` is the epoch of this aggregator's own state.
    ///
    /// # Errors
    /// [`StartError`].
    pub(crate) fn start(
        settings: &StandbySettings,
        floor: u64,
        clock: Clock,
        leader_lease: LeaderLease,
        pulse: Arc<Pulse>,
    ) -> Result<Self, StartError> {
        let mut candidate = Candidate {
            etcd: Etcd::new(&settings.endpoints, settings.tls.as_ref(), settings.time_limit())?,
            name: settings.name.clone(),
            ttl: settings.ttl,
            leader_key: settings.key("leader"),
            epoch_key: settings.key("epoch"),
            floor,
            pulse,
        };
        let (role_sender, role) = watch::channel(Role::default());
        let (won_sender, won) = oneshot::channel();
        let (lost_sender, lost) = oneshot::channel();
        let (stop, stopped) = std_mpsc::channel();
        let run = move || {
            let Some(won) = win(&mut candidate, clock, &leader_lease, &role_sender, &stopped) else { return };
            // Nobody waits for it any more where the process is about to end.
            _ = won_sender.send(won);
            if let Some(reason) = keep(&mut candidate, &won, &leader_lease, &stopped) {
                leader_lease.end();
                _ = lost_sender.send(reason);
            } else {
                leader_lease.end();
                if let Err(error) = candidate.etcd.revoke(won.lease) {
                    tracing::warn!(%error, "the leadership could not be handed back; it ends with its lease");
                }
            }
        };
        let thread = std::thread::Builder::new().name("election".into()).spawn(run)?;
        Ok(Self { role, won, lost, stop, thread })
    }

    /// Gives up whatever it has, at once. Blocks for as long as etcd takes.
    pub(crate) fn resign(self) {
        // A thread that has ended needs no message.
        _ = self.stop.send(());
        _ = self.thread.join();
    }
}

/// Waits; true when a stop was requested.
fn stop_requested(stopped: &std_mpsc::Receiver<()>, wait: Duration) -> bool {
    !matches!(stopped.recv_timeout(wait), Err(std_mpsc::RecvTimeoutError::Timeout))
}

/// Looks again and again until this aggregator leads; `None` when a stop was requested.
fn win(
    candidate: &mut Candidate,
    clock: Clock,
    leader_lease: &LeaderLease,
    role: &watch::Sender<Role>,
    stopped: &std_mpsc::Receiver<()>,
) -> Option<WonElection> {
    loop {
        let next = match candidate.campaign(clock.now().0, leader_lease) {
            Ok(Some(Campaign::WonElection(won))) => return Some(won),
            Ok(Some(Campaign::Led(key))) => Role { leader: leader(&key), error: None },
            Ok(None) => Role::default(),
            Err(error) => Role { leader: None, error: Some(error.to_string()) },
        };
        role.send_if_modified(|role| {
            let news = *role != next;
            if news {
                match &next {
                    Role { error: Some(error), .. } => tracing::warn!(error, "standing by without etcd"),
                    Role { leader: Some((leader, epoch)), .. } => tracing::info!(%leader, epoch, "standing by"),
                    _ => {}
                }
                *role = next;
            }
            news
        });
        if stop_requested(stopped, (candidate.ttl / 10).min(POLL_PERIOD)) {
            return None;
        }
    }
}

/// Renews until the leadership is over: why it is, or `None` when a stop was requested. A leader whose core loop hangs
/// gives it up by itself: it sends no commands, and keeps the others from leading.
fn keep(
    candidate: &mut Candidate,
    won: &WonElection,
    leader_lease: &LeaderLease,
    stopped: &std_mpsc::Receiver<()>,
) -> Option<String> {
    let period = candidate.ttl / 4;
    // Chosen: to store one order may take half a `ttl` where etcd is slow, and the disk some seconds more.
    let hangs_after = candidate.ttl * 2;
    let mut wait = period;
    let mut trouble = None;
    loop {
        // Not longer than the leader lease lasts: its end is to be noticed at once.
        let left = leader_lease.until().map_or(Duration::MAX, Moment::left);
        if stop_requested(stopped, wait.min(left)) {
            return None;
        }
        if !leader_lease.holds() {
            let error = trouble.unwrap_or_else(|| "this process did not run for a while".to_owned());
            return Some(format!("its lease could not be renewed in time: {error}"));
        }
        if let Some(reason) = candidate.pulse.leader_hangs(hangs_after) {
            return Some(reason);
        }
        match candidate.renew(won, leader_lease) {
            Ok(None) => (wait, trouble) = (period, None),
            Ok(Some(reason)) => return Some(reason),
            Err(error) => {
                tracing::warn!(%error, "the leadership could not be renewed; trying again");
                (wait, trouble) = (RENEW_AGAIN, Some(error.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_is_larger_than_any_before() {
        assert_eq!(next_epoch(0, 0, 1_000), Ok(1_000));
        assert_eq!(next_epoch(500, 700, 1_000), Ok(1_000));
        assert_eq!(next_epoch(2_000, 700, 1_000), Ok(2_001), "the clock of this machine is behind");
        assert_eq!(next_epoch(0, 3_000, 1_000), Ok(3_001), "so was etcd's data");
        assert!(next_epoch(u64::MAX, 0, 1).is_err());
    }

    #[test]
    fn a_leader_whose_core_loop_hangs_lets_go() {
        let pulse = Arc::new(Pulse::new());
        let mut candidate = Candidate {
            // Nobody listens there.
            etcd: Etcd::new(&["http://127.0.0.1:9".to_owned()], None, Duration::from_secs(1)).unwrap(),
            name: HostId::new("a").unwrap(),
            ttl: Duration::from_millis(40),
            leader_key: "/leader".into(),
            epoch_key: "/epoch".into(),
            floor: 0,
            pulse: Arc::clone(&pulse),
        };
        let (won, (_stop, stopped)) = (WonElection { epoch: 1, created: 1, lease: 1 }, std_mpsc::channel());
        let leader_lease = LeaderLease::pending();
        let mut kept_until = |lease: Duration| {
            leader_lease.extend(Moment::now(), lease);
            keep(&mut candidate, &won, &leader_lease, &stopped).unwrap()
        };
        // One that is slow, or that begins only now to lead, keeps it for as long as its lease.
        pulse.set_quiet(Duration::from_secs(8));
        assert!(kept_until(Duration::from_secs(1)).contains("could not be renewed"));
        pulse.stands_by("it stands by".to_owned());
        pulse.set_quiet(Duration::from_secs(30));
        assert!(kept_until(Duration::from_secs(1)).contains("could not be renewed"));
        pulse.beat(&crate::metrics::Records::default());
        pulse.set_quiet(Duration::from_secs(30));
        assert_eq!(kept_until(Duration::from_secs(60)), "the core loop has not ticked for 30 s");
    }

    #[test]
    fn a_leader_key_of_others_is_read_with_care() {
        let key = |value: &str| KeyValue { value: value.into(), created: 1, modified: 1, lease: 1 };
        assert_eq!(leader(&key(r#"{"name":"a","epoch":5}"#)), Some((HostId::new("a").unwrap(), 5)));
        for bad in ["", "a", r#"{"name":"A B","epoch":5}"#, r#"{"name":"a"}"#] {
            assert_eq!(leader(&key(bad)), None, "{bad}");
        }
    }
}
