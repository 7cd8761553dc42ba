//! Judges promises of CPU once their lookahead has passed, of whatever method made them. In: every sample, and the promises.
//! Out: how many broke, of all and of the last day's windows that do not overlap. Called by
//! [`ResidualForecaster`](super::ResidualForecaster).

use std::collections::VecDeque;

use gleaner_types::report::PromiseRecord;
use serde::{Deserialize, Serialize};

use super::calibrated::bucket_s;

/// Hours of windows that are kept.
const HOURS: u64 = 24;
/// Demand may exceed what was left to it by this, in percent of a core: less than what the kernel's counters resolve.
const TOLERANCE: f64 = 0.01;

/// Windows of one lookahead each that do not overlap, over the last day: what a stated risk is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Windows {
    /// Windows that have passed.
    pub judged: u64,
    /// Of those, windows in which the promise was broken.
    pub broken: u64,
}

/// The windows that ended in one hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hour {
    /// Hours ago.
    pub(super) ago: u64,
    pub(super) judged: u64,
    pub(super) broken: u64,
}

/// A promise whose lookahead has not passed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Promise {
    due_s: f64,
    /// Demand that would just keep it: capacity less what was promised.
    demand: f64,
    /// Time sampled, and the sum over it, when it was made.
    sampled_s: f64,
    sum: f64,
    /// It does not overlap with the window before.
    window: bool,
}

/// The promises of one host.
#[derive(Debug)]
pub(super) struct Promises {
    lookahead_s: f64,
    clock_s: f64,
    sampled_s: f64,
    sum: f64,
    /// When a promise is taken again, and when a window begins again.
    next_s: f64,
    window_s: f64,
    pending: VecDeque<Promise>,
    record: PromiseRecord,
    /// Number of the hour by the clock, with its windows; oldest first.
    hours: VecDeque<(u64, Windows)>,
}

impl Promises {
    pub(super) fn new(lookahead_s: f64) -> Self {
        Self {
            lookahead_s,
            clock_s: 0.0,
            sampled_s: 0.0,
            sum: 0.0,
            next_s: 0.0,
            window_s: 0.0,
            pending: VecDeque::new(),
            record: PromiseRecord::default(),
            hours: VecDeque::new(),
        }
    }

    /// Takes the demand of `interval_s`, or a gap, and judges what is due. A lookahead of which less than half was sampled
    /// is not judged.
    pub(super) fn observe(&mut self, demand: Option<f64>, interval_s: f64) {
        self.clock_s += interval_s;
        if let Some(demand) = demand {
            self.sampled_s += interval_s;
            self.sum += interval_s * demand;
        }
        let now_s = self.clock_s + 1e-6 * self.lookahead_s;
        while let Some(promise) = self.pending.front().copied().filter(|promise| promise.due_s <= now_s) {
            self.pending.pop_front();
            let sampled_s = self.sampled_s - promise.sampled_s;
            if sampled_s < self.lookahead_s / 2.0 {
                continue;
            }
            let broken = (self.sum - promise.sum) / sampled_s > promise.demand + TOLERANCE;
            self.record.judged += 1;
            self.record.broken += u64::from(broken);
            if promise.window {
                self.count_window(broken);
            }
        }
    }

    /// Takes the promise that is made now. Of those made within one bucket of time the first counts.
    pub(super) fn push(&mut self, demand: f64) {
        let now_s = self.clock_s + 1e-6 * self.lookahead_s;
        if now_s < self.next_s {
            return;
        }
        self.next_s = self.clock_s + bucket_s(self.lookahead_s);
        let window = now_s >= self.window_s;
        let due_s = self.clock_s + self.lookahead_s;
        if window {
            self.window_s = due_s;
        }
        self.pending.push_back(Promise { due_s, demand, sampled_s: self.sampled_s, sum: self.sum, window });
    }

    fn count_window(&mut self, broken: bool) {
        let hour = self.hour();
        if self.hours.back().is_none_or(|(last, _)| *last != hour) {
            self.hours.push_back((hour, Windows::default()));
        }
        if let Some((_, windows)) = self.hours.back_mut() {
            windows.judged += 1;
            windows.broken += u64::from(broken);
        }
        while self.hours.front().is_some_and(|(oldest, _)| oldest + HOURS <= hour) {
            self.hours.pop_front();
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    fn hour(&self) -> u64 {
        // A day is added so that hours of before a restart have numbers too.
        (self.clock_s / 3_600.0) as u64 + HOURS
    }

    pub(super) const fn record(&self) -> PromiseRecord {
        self.record
    }

    /// The last day's windows.
    pub(super) fn windows(&self) -> Windows {
        let hour = self.hour();
        let recent = self.hours.iter().filter(|(number, _)| number + HOURS > hour);
        recent.fold(Windows::default(), |sum, (_, windows)| Windows {
            judged: sum.judged + windows.judged,
            broken: sum.broken + windows.broken,
        })
    }

    /// Seconds of the present hour that have passed.
    pub(super) fn hour_passed_s(&self) -> f64 {
        self.clock_s % 3_600.0
    }

    /// What was promised so far was promised at another risk: its windows no longer count.
    pub(super) fn forget_windows(&mut self) {
        self.hours.clear();
        self.pending.iter_mut().for_each(|promise| promise.window = false);
    }

    /// The hours of the last day, oldest first.
    pub(super) fn hours(&self) -> Vec<Hour> {
        let now = self.hour();
        let ago = |number: u64| now.saturating_sub(number);
        let hours = self.hours.iter().filter(|(number, _)| ago(*number) < HOURS);
        hours.map(|(number, w)| Hour { ago: ago(*number), judged: w.judged, broken: w.broken }).collect()
    }

    /// Goes on from such hours, of which the last had begun `hour_passed_s` before, `gap_s` later. False, and nothing is taken,
    /// where they are not in order, too many, or not as long as a window needs.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    pub(super) fn restore(&mut self, hours: &[Hour], hour_passed_s: f64, gap_s: f64) -> bool {
        let most = (3_600.0 / self.lookahead_s).ceil() as u64 + 1;
        let valid = |hour: &Hour| hour.broken <= hour.judged && hour.judged <= most && hour.ago < HOURS;
        if !(0.0..3_600.0).contains(&hour_passed_s)
            || !hours.iter().all(valid)
            || !hours.windows(2).all(|pair| pair[0].ago > pair[1].ago)
        {
            return false;
        }
        // The hour that was the present one has the number of this clock's first, and the clock goes on from within it.
        self.clock_s = hour_passed_s + gap_s;
        let windows = |hour: &Hour| Windows { judged: hour.judged, broken: hour.broken };
        self.hours = hours.iter().map(|hour| (HOURS - hour.ago, windows(hour))).collect();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(promises: &mut Promises, demands: &[f64], promised: f64) {
        for demand in demands {
            promises.observe(Some(*demand), 60.0);
            promises.push(promised);
        }
    }

    #[test]
    fn windows_do_not_overlap() {
        let mut promises = Promises::new(300.0);
        play(&mut promises, &[10.0; 16], 20.0);
        assert_eq!((promises.record().judged, promises.windows()), (11, Windows { judged: 3, broken: 0 }));
        // 60 over a window in which one minute has 260.
        play(&mut promises, &[260.0, 10.0, 10.0, 10.0, 10.0], 20.0);
        assert_eq!((promises.record().broken, promises.windows()), (5, Windows { judged: 4, broken: 1 }));
    }

    #[test]
    fn windows_are_forgotten_after_a_day_and_kept_over_a_restart() {
        let mut promises = Promises::new(300.0);
        play(&mut promises, &[10.0; 1_440], 5.0);
        assert!((276..=288).contains(&promises.windows().broken), "{:?}", promises.windows());
        let hours = promises.hours();
        let mut later = Promises::new(300.0);
        assert!(later.restore(&hours, promises.hour_passed_s(), 12.0 * 3_600.0));
        assert!((132..=144).contains(&later.windows().judged), "{:?}", later.windows());
        play(&mut promises, &[10.0; 1_440], 20.0);
        assert!(promises.windows().broken <= 1, "{:?}", promises.windows());
        let hostile = Hour { ago: 3, judged: 1, broken: 2 };
        assert!(!later.restore(&[hostile], 0.0, 0.0) && !later.restore(&[hours[3], hours[3]], 0.0, 0.0));
        assert!(!later.restore(&[], 3_600.0, 0.0) && !later.restore(&[], f64::NAN, 0.0));
    }

    /// An agent that is restarted every half hour knows as much as one that runs on, and forgets as early.
    #[test]
    fn many_restarts_are_no_other_than_none() {
        let mut promises = Promises::new(300.0);
        for half_hour in 0..200 {
            play(&mut promises, &[10.0; 30], if half_hour < 60 { 5.0 } else { 20.0 });
            let (hours, hour_passed_s) = (promises.hours(), promises.hour_passed_s());
            promises = Promises::new(300.0);
            assert!(promises.restore(&hours, hour_passed_s, 60.0), "{hours:?}");
        }
        // The last window before each restart is not judged.
        assert!((220..=288).contains(&promises.windows().judged), "{:?}", promises.windows());
        assert_eq!(promises.windows().broken, 0, "a day ago and more");
    }

    #[test]
    fn half_a_lookahead_is_judged_and_less_is_not() {
        let mut promises = Promises::new(300.0);
        play(&mut promises, &[10.0], 20.0);
        (0..5).for_each(|minute| promises.observe((minute < 2).then_some(10.0), 60.0));
        assert_eq!(promises.record().judged, 0);
        play(&mut promises, &[10.0], 20.0);
        (0..5).for_each(|minute| promises.observe((minute < 3).then_some(10.0), 60.0));
        assert_eq!(promises.record().judged, 1);
    }
}
