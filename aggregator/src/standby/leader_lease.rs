//! Until when the leader lease holds, by this machine's own clock. In: when a grant or renewal was sent, and its time to
//! live. Out: whether this aggregator may command now. The election extends it; the core loop and the acceptor ask it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment of the clock that counts since the machine was booted, suspension included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn now() -> Self {
        // Not `Instant`, which stands still while the machine is suspended; etcd's clock does not.
        let now = clock_gettime(ClockId::Boottime);
        let milliseconds = now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000);
        Self(u64::try_from(milliseconds).unwrap_or(0))
    }

    /// From now to this moment; zero if it is over.
    pub(crate) fn left(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(Self::now().0))
    }

    fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// How long before a lease can end at etcd its holder stops commanding. Chosen: a fifth, half a second at least, for
/// clocks that run at different rates and for a command that was just decided to leave the machine.
fn margin(ttl: Duration) -> Duration {
    (ttl / 5).max(Duration::from_millis(500))
}

/// Until when a lease of `ttl` may be relied on whose grant or renewal was sent at `sent`. etcd counts from when it
/// took the request, which is later.
fn reliable_until(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl.saturating_sub(margin(ttl)))
}

/// Whether this aggregator may command. Cheap to copy and to ask; ask before every command.
#[derive(Debug, Clone)]
pub(crate) struct LeaderLease(Option<Arc<AtomicU64>>);

impl LeaderLease {
    /// Of an aggregator that is alone: it always holds.
    pub(crate) fn alone() -> Self {
        Self(None)
    }

    /// Of an aggregator that waits for the leader lease: it does not hold until it is extended.
    pub(crate) fn pending() -> Self {
        Self(Some(Arc::default()))
    }

    pub(crate) fn holds(&self) -> bool {
        self.until().is_none_or(|until| Moment::now() < until)
    }

    /// When it ends unless it is extended; `None` for never.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.0.as_ref().map(|until| Moment(until.load(Ordering::SeqCst)))
    }

    /// A lease of `ttl` was granted or renewed by what was sent at `sent`.
    pub(crate) fn extend(&self, sent: Moment, ttl: Duration) {
        if let Some(until) = &self.0 {
            until.store(reliable_until(sent, ttl).0, Ordering::SeqCst);
        }
    }

    /// Ends it at once.
    pub(crate) fn end(&self) {
        if let Some(until) = &self.0 {
            until.store(0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn a_leader_lease_ends_here_before_it_can_at_etcd() {
        // Sent at 100 s, a lease of 10 s ends at etcd at 110 s or later; the leader stops at 108 s.
        let sent = Moment(100_000);
        assert_eq!(reliable_until(sent, seconds(10)), Moment(108_000));
        assert_eq!(reliable_until(sent, seconds(60)), Moment(148_000));
        assert_eq!(reliable_until(sent, seconds(2)), Moment(101_500), "half a second at least");
        assert_eq!(reliable_until(sent, Duration::from_millis(300)), sent, "a lease too short to be used");
    }

    #[test]
    fn it_holds_from_its_grant_until_it_ends() {
        let leader_lease = LeaderLease::pending();
        let copy = leader_lease.clone();
        assert!(!copy.holds());
        leader_lease.extend(Moment::now(), seconds(60));
        assert!(copy.holds());
        // An answer that comes after a pause of the whole process extends nothing.
        let long_ago = Moment(Moment::now().0.saturating_sub(50_000));
        leader_lease.extend(long_ago, seconds(60));
        assert!(!copy.holds());
        leader_lease.extend(Moment::now(), seconds(60));
        leader_lease.end();
        assert!(!copy.holds());
        assert!(LeaderLease::alone().holds());
    }

    #[test]
    fn a_moment_is_the_time_since_the_machine_was_booted() {
        // In seconds with two decimals.
        let up_cs = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            text.split(' ').next().unwrap().replace('.', "").parse::<u64>().unwrap()
        };
        let (before, now, after) = (up_cs(), Moment::now(), up_cs());
        assert!((before * 10..(after + 1) * 10).contains(&now.0), "{before} {now:?} {after}");
    }

    #[test]
    fn nothing_is_left_to_a_moment_that_is_over() {
        let hour = seconds(3_600);
        let left = Moment::now().after(hour).left();
        assert!(left > Duration::ZERO && left <= hour, "{left:?}");
        assert_eq!(Moment::now().left(), Duration::ZERO);
        assert_eq!(Moment(0).left(), Duration::ZERO);
    }
}
