//! Notifications to systemd (`sd_notify(3)`). In: the daemons' loops, which report their state. Out: datagrams to the
//! socket that systemd named. Both daemons call it. A daemon that systemd did not start sends none. It also keeps the
//! kernel from dumping the memory of a daemon that holds keys.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Sends systemd a state such as `READY=1` or `STOPPING=1` (`sd_notify(3)`). Without systemd it does nothing.
pub fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = (|| {
        let local = UnixDatagram::unbound()?;
        match socket.to_str().and_then(|name| name.strip_prefix('@')) {
            Some(name) => local.send_to_addr(state.as_bytes(), &SocketAddr::from_abstract_name(name)?),
            None => local.send_to(state.as_bytes(), &socket),
        }
    })();
    if let Err(error) = sent {
        tracing::warn!(%error, "failed to notify systemd of {state}");
    }
}

/// From now on the kernel writes no core dump of this process, which would hold its keys, and lets no other process of the
/// same user read its memory.
pub fn forbid_dumps() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "core dumps of this process cannot be forbidden");
    }
}

/// Notifies systemd regularly that the daemon works, where its unit has `WatchdogSec=` (`sd_watchdog_enabled(3)`).
/// When notifications stop, systemd ends the daemon and starts it again.
#[derive(Debug)]
pub struct Watchdog {
    /// Time between two notifications; `None` where systemd expects none.
    pause: Option<Duration>,
    notified: Option<Instant>,
}

impl Watchdog {
    /// As systemd asked this process for it.
    #[must_use]
    pub fn of_this_process() -> Self {
        let of = |name: &str| std::env::var(name).ok();
        Self { pause: pause(of("WATCHDOG_USEC"), of("WATCHDOG_PID"), std::process::id()), notified: None }
    }

    /// The daemon works. Call it at least once per [`Watchdog::pause`]; more often costs nothing.
    pub fn works(&mut self) {
        let Some(pause) = self.pause else { return };
        if self.notified.is_none_or(|notified| notified.elapsed() >= pause) {
            self.notified = Some(Instant::now());
            notify("WATCHDOG=1");
        }
    }

    /// The longest its owner may wait for something else; `None` where systemd expects no notifications.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }
}

/// A third of what the unit allows, so that a late notification does no harm. `None` if the variables are missing, are
/// meant for another process than `this`, or hold no number.
fn pause(micros: Option<String>, pid: Option<String>, this: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(this)) {
        return None;
    }
    let micros: u64 = micros?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros) / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_three_times_as_frequent_as_asked_and_only_for_the_named_process() {
        let of = |micros: &str, pid: Option<&str>| pause(Some(micros.to_owned()), pid.map(str::to_owned), 7);
        assert_eq!(of("15000000", Some("7")), Some(Duration::from_secs(5)));
        assert_eq!(of("15000000", None), Some(Duration::from_secs(5)));
        assert_eq!(of("15000000", Some("8")), None);
        assert_eq!(of("0", None), None);
        assert_eq!(of("soon", None), None);
        assert_eq!(pause(None, None, 7), None);
    }
}
