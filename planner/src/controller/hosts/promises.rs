//! How a host's promises hold, as the controller remembers it. In: the windows of a report when they are others than before.
//! Out: an event when more broke than may, once until no more do. Called by the owner of hosts; the law is in
//! `crate::broken_promises`.

use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::report::PromiseWindows;
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::broken_promises::{Verdict, verdict};

/// How far back the windows of a report go, in seconds.
const DAY_S: f64 = 86_400.0;

/// What is remembered of one host's promises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Promises {
    /// The event that they break was the last.
    broken: bool,
    /// When the host last was dedicated to a job.
    dedicated: Option<Timestamp>,
}

impl Promises {
    /// More break than may.
    pub(super) const fn broken(&self) -> bool {
        self.broken
    }

    /// The host is dedicated to a job now. Its windows of the next day say nothing: the job's own workers are part of the
    /// foreground there, which no forecast of guests foresees.
    pub(super) const fn dedicated(&mut self, now: Timestamp) {
        *self = Self { broken: false, dedicated: Some(now) };
    }

    /// Nothing is known of its windows any more.
    pub(super) const fn unknown(&mut self) {
        self.broken = false;
    }

    /// Takes the windows of a host.
    pub(super) fn judge(&mut self, host: &HostId, windows: PromiseWindows, now: Timestamp) -> Option<Event> {
        if self.dedicated.is_some_and(|at| now.seconds_since(at) < DAY_S) {
            return None;
        }
        let PromiseWindows { risk, judged, broken } = windows;
        let (host, risk_percent, windows) = (host.clone(), risk.value() * 100.0, judged);
        match (self.broken, verdict(&PromiseWindows { risk, judged, broken })) {
            (false, Verdict::Broken) => {
                self.broken = true;
                Some(Event::PromisesBroken { host, risk_percent, windows, broken })
            }
            (true, Verdict::Kept) => {
                self.broken = false;
                Some(Event::PromisesKept { host, risk_percent, windows, broken })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Fraction;

    use super::*;

    /// What is said of so many broken windows of so many, after so many hours.
    fn said(promises: &mut Promises, judged: u32, broken: u32, dedicated: bool, hours: u64) -> Option<&'static str> {
        let windows = PromiseWindows::new(Fraction::clamped(0.01), judged, broken).unwrap();
        let host = HostId::new("h1").unwrap();
        let now = Timestamp(hours * 3_600_000);
        if dedicated {
            promises.dedicated(now);
        }
        match promises.judge(&host, windows, now)? {
            Event::PromisesBroken { windows, broken: so_many, .. } if (windows, so_many) == (judged, broken) => {
                Some("broken")
            }
            Event::PromisesKept { windows, broken: so_many, .. } if (windows, so_many) == (judged, broken) => {
                Some("kept")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_said_once_until_it_is_good_again() {
        let mut own = Promises::default();
        assert_eq!(said(&mut own, 288, 14, false, 0), None, "chance");
        assert_eq!(said(&mut own, 288, 15, false, 1), Some("broken"));
        assert_eq!(said(&mut own, 288, 16, false, 2), None);
        assert_eq!(said(&mut own, 288, 3, false, 3), None, "more than may");
        assert_eq!(said(&mut own, 288, 15, false, 4), None, "it was not good in between");
        assert_eq!(said(&mut own, 10, 0, false, 5), None, "too few");
        assert_eq!(said(&mut own, 288, 2, false, 6), Some("kept"));
        assert_eq!(said(&mut own, 288, 1, false, 7), None);
        assert_eq!(said(&mut own, 288, 20, false, 8), Some("broken"));
    }

    #[test]
    fn a_host_that_was_dedicated_within_the_last_day_is_not_judged() {
        let mut own = Promises::default();
        assert_eq!(said(&mut own, 288, 288, true, 0), None);
        assert_eq!(said(&mut own, 288, 288, false, 23), None);
        assert_eq!(said(&mut own, 288, 288, false, 24), Some("broken"));
        assert!(own.broken());
        assert_eq!(said(&mut own, 288, 288, true, 25), None);
        assert!(!own.broken(), "nothing is known of it for a day");
    }
}
