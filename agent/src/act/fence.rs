//! The fence: only aggregators of the highest epoch so far may command this host. In: the epoch of each command. Out:
//! the command is accepted or refused. The epoch is stored in the state folder, so neither a lost connection nor a
//! restart of the agent lets a deposed aggregator command again. Called by the actor and by the runner of tasks.
//!
//! Versions do not suffice for that: they are kept per target and end with the process.
//!
//! Epochs are times. An epoch of the far future is refused, because it would lock out every later aggregator.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_daemon::clock::Clock;
use gleaner_types::command::Refusal;
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::time::Timestamp;

use super::ledger::{LedgerError, failed, put_in_place};
use super::refused::Refused;
use crate::kernel_file::read_bounded;

const FILE: &str = "epoch";
/// More than the digits of the largest epoch.
const LONGEST: u64 = 64;
/// How far a new epoch may be ahead of this host's time. Chosen: more than synchronised clocks are apart.
const MAX_EPOCH_AHEAD: Duration = Duration::from_secs(24 * 3_600);

/// How often the epoch may rise: at once, and how long until once more, in seconds. Each rise is a write to the disk that is
/// waited for. Chosen: many times what a bad day of restarts and failovers comes to.
const RISES: (f64, f64) = (30.0, 5.0);

/// The highest epoch that commanded this host.
#[derive(Debug)]
pub(crate) struct Fence {
    dir: PathBuf,
    highest: u64,
    /// Rises that it may still have, when it last had one.
    rises: f64,
    /// When that was.
    risen: Option<Timestamp>,
    /// The older epoch whose refusal was reported last.
    reported: Option<u64>,
}

impl Fence {
    /// Reads it from a state folder. Without a stored epoch, no aggregator has commanded this host yet.
    ///
    /// # Errors
    /// [`LedgerError::Io`] when there is one that cannot be read: to go on would let an older aggregator in.
    pub(crate) fn open(dir: &Path) -> Result<Self, LedgerError> {
        let path = dir.join(FILE);
        let highest = match read_bounded(&path, LONGEST) {
            Ok(text) => text.trim().parse().map_err(|_| {
                let message = "it holds no number; without the file commands of any epoch are taken again";
                failed("understand", &path)(io::Error::new(io::ErrorKind::InvalidData, message))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed("read the highest epoch from", &path)(error)),
        };
        Ok(Self { dir: dir.to_owned(), highest, rises: RISES.0, risen: None, reported: None })
    }

    pub(super) const fn highest(&self) -> u64 {
        self.highest
    }

    /// Lets a command of this epoch pass, or refuses it. A higher epoch is on the disk before its command passes.
    /// Events go to `events`.
    pub(crate) fn admit(&mut self, epoch: u64, now: Timestamp, events: &mut Vec<Event>) -> Result<(), Refused> {
        if epoch < self.highest {
            if self.reported.replace(epoch) != Some(epoch) {
                events.push(Event::OldEpochRefused { epoch, highest: self.highest });
            }
            let highest = self.highest;
            let file = self.dir.join(FILE);
            let detail = format!(
                "epoch {epoch} is over: an aggregator of epoch {highest} has commanded this host since; if that one is \
                 gone for good, stop the agent and remove {}",
                file.display()
            );
            return Err((Refusal::Stale, detail));
        }
        if epoch > self.highest {
            let since_s = self.risen.map_or(0.0, |risen| now.seconds_since(risen));
            let rises = (self.rises + since_s / RISES.1).min(RISES.0);
            if rises < 1.0 {
                let detail = format!(
                    "epoch {epoch} follows epoch {} too soon: epochs rise more often than once in {} s; look for \
                     aggregators that start again and again, or that take the lead from one another",
                    self.highest, RISES.1
                );
                return Err((Refusal::Forbidden, detail));
            }
            let arrived = now;
            // The wall clock may have been set right since the agent started.
            let now = now.max(Clock::start().now());
            if Timestamp(epoch) > now.after(MAX_EPOCH_AHEAD) {
                let detail = format!(
                    "epoch {epoch} is more than a day ahead of this host's clock, which shows {now}; set the clocks of \
                     the aggregator's machine and of this host"
                );
                return Err((Refusal::Forbidden, detail));
            }
            put_in_place(&self.dir, FILE, format!("{epoch}\n").as_bytes())
                .map_err(|error| (Refusal::Failed, chain(&error)))?;
            if self.highest > 0 {
                events.push(Event::EpochRaised { from: self.highest, to: epoch });
            }
            self.highest = epoch;
            (self.rises, self.risen) = (rises - 1.0, Some(arrived));
            self.reported = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    #[test]
    fn an_epoch_of_the_far_future_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = Vec::new();
        let mut fence = Fence::open(dir.path()).unwrap();
        let wall = Clock::start().now();
        for epoch in [u64::MAX, wall.after(MAX_EPOCH_AHEAD + Duration::from_secs(60)).0] {
            let (reason, detail) = fence.admit(epoch, NOW, &mut events).unwrap_err();
            assert!(reason == Refusal::Forbidden && detail.contains("a day ahead"), "{detail}");
        }
        assert_eq!(Fence::open(dir.path()).unwrap().highest(), 0);
        // A clock that is a little ahead is not the wall's, but nor is it a reason to refuse; a simulated one may be
        // where it likes.
        fence.admit(wall.after(Duration::from_secs(60)).0, NOW, &mut events).unwrap();
        let simulated = wall.after(10 * MAX_EPOCH_AHEAD);
        fence.admit(simulated.0, simulated, &mut events).unwrap();
        // A day ahead is not too far, and a millisecond more is.
        let a_day = simulated.after(Duration::from_secs(86_400));
        let (reason, _) = fence.admit(a_day.0 + 1, simulated, &mut events).unwrap_err();
        assert_eq!(reason, Refusal::Forbidden);
        fence.admit(a_day.0, simulated, &mut events).unwrap();
    }

    #[test]
    fn only_the_highest_epoch_passes_and_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = Vec::new();
        let mut fence = Fence::open(dir.path()).unwrap();
        fence.admit(5, NOW, &mut events).unwrap();
        fence.admit(5, NOW, &mut events).unwrap();
        assert_eq!(events, [], "the first commander is no event");
        fence.admit(9, NOW, &mut events).unwrap();
        assert_eq!(events, [Event::EpochRaised { from: 5, to: 9 }]);
        events.clear();
        // Started anew, it still knows.
        let mut fence = Fence::open(dir.path()).unwrap();
        for _ in 0..2 {
            let (reason, detail) = fence.admit(8, NOW, &mut events).unwrap_err();
            assert_eq!(reason, Refusal::Stale);
            assert!(detail.contains("epoch 8") && detail.contains("epoch 9"), "{detail}");
            assert_eq!(events, [Event::OldEpochRefused { epoch: 8, highest: 9 }], "reported at once, and once");
        }
        assert_eq!(fence.highest(), 9);
    }

    #[test]
    fn epochs_that_rise_without_end_are_refused_and_a_failover_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = Vec::new();
        let mut fence = Fence::open(dir.path()).unwrap();
        let taken = (1..=10_000).filter(|epoch| fence.admit(*epoch, NOW, &mut events).is_ok()).count();
        assert_eq!(taken, 30);
        let (reason, detail) = fence.admit(10_001, NOW, &mut events).unwrap_err();
        assert!(reason == Refusal::Forbidden && detail.contains("too soon"), "{detail}");
        fence.admit(30, NOW, &mut events).unwrap();
        let later = |s| NOW.after(Duration::from_secs(s));
        fence.admit(10_001, later(5), &mut events).unwrap();
        assert!(fence.admit(10_002, later(6), &mut events).is_err());
        // After a quiet time several failovers in a row pass at once.
        for epoch in 20_000..20_010 {
            fence.admit(epoch, later(100), &mut events).unwrap();
        }
        // However long it was quiet, it is no more than at first.
        let taken = (30_000..40_000).filter(|epoch| fence.admit(*epoch, later(100_000), &mut events).is_ok()).count();
        assert_eq!(taken, 30);
    }

    #[test]
    fn an_epoch_that_cannot_be_kept_does_not_command() {
        let dir = tempfile::tempdir().unwrap();
        let mut fence = Fence::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("epoch.new")).unwrap();
        let (reason, detail) = fence.admit(5, NOW, &mut Vec::new()).unwrap_err();
        assert!(reason == Refusal::Failed && detail.contains("/epoch`"), "{detail}");
        assert_eq!(fence.highest(), 0);
    }

    #[test]
    fn an_invalid_epoch_admits_no_command() {
        for bad in ["", "-1", "soon", "99999999999999999999", &"1".repeat(100)] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(FILE), bad).unwrap();
            let error = Fence::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("epoch`"), "{bad:?}: {error}");
        }
    }
}
