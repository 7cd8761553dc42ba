//! Applications whose bottleneck is none of their CPU and disk shares: a lock, another service, a host that nobody named. More
//! of these shares changes nothing, so a missed target winds them up to their ceilings. Here they are given back, step by
//! step, and restored at the first doubt. Ours; the paper's applications all gain.
//! In: what was observed in a control interval, and the request that follows from it. Out: the request with less of the shares
//! that change nothing. Called by [`application`](super::application) for every interval.

use serde::{Deserialize, Serialize};

use super::request::{GiveBack, Observation, ObservedShare, Request};
use super::scaler::{Load, MISSED, UNDER_LOAD, error, load};
use super::{Resource, Share};

/// Control intervals over which a missed target is judged. Chosen: an error of a tenth raises a CPU share (Eq. 4.8) in five
/// steps to 1.6 times what it was.
const INTERVALS: usize = 6;
/// What a share grew by in that time at least, unless it is at its ceiling. Chosen, by the same.
const GREW: f64 = 1.5;
/// Response time over that of before, from which it is no better, and use over that of before, up to which it is the same:
/// both of the later half of the intervals over the earlier half, of response times the medians, so that one interval of a
/// checkpoint decides nothing. Chosen: a third more than the noise of such a ratio, by the calibration of `docs/services.md`.
const NO_BETTER: f64 = 0.95;
const USED_AS_MUCH: f64 = 1.05;
/// Part of a share that is given back in one interval. Chosen: twice the margin of a CPU share (Eq. 4.8).
const STEP: f64 = 0.1;
/// Response time over that of before from which shares that were given back matter after all, and below which something else
/// has changed. Chosen: three times the noise of one response time.
const WORSE: f64 = 1.15;
const BETTER: f64 = 1.0 / WORSE;
/// Median response time of the latest intervals over that of before, from which shares matter a little. Chosen: twice the
/// noise of such a median.
const WORSE_MEDIAN: f64 = 1.05;
/// Intervals for which nothing is given back after it mattered; each time in a row doubles them, up to so often. The first
/// slow interval may be a checkpoint's: nothing waits after it. Chosen.
const PAUSE: u32 = 40;
const DOUBLED_MOST: u32 = 4;
/// Intervals after which more is tried again: whether it helps by now. Chosen: an hour of control intervals.
const UNTIL_NEXT: u32 = 120;
/// Part by which a share in force is larger than what was asked, from which something else has raised it, such as relief of a
/// surge. Chosen: rounding is less. One that contention has cut is smaller.
const MOVED: f64 = 0.01;
/// Part of its ceiling from which a share is at it.
const AT_CEILING: f64 = 0.99;

/// What is known of an application's bottleneck.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// The latest intervals in a row in which the target was missed and every share of CPU and disk was under-loaded; while
    /// shares are given back, the latest of those.
    missed: Vec<Seen>,
    /// Shares are given back.
    given: Option<Given>,
    /// Intervals until they may be given back again, and how often in a row they mattered after all.
    pause: u32,
    mattered: u32,
}

/// An interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Seen {
    target_ms: f64,
    mean_ms: f64,
    /// Parts of the host, in the order of the shares.
    shares: Vec<f64>,
    used: Vec<f64>,
}

/// Shares that are given back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Given {
    target_ms: f64,
    /// Median response time of the intervals before.
    mean_ms: f64,
    /// All shares when it began, and what was used of each in the mean of the intervals before.
    began: Vec<f64>,
    used: Vec<f64>,
    /// What those that are given back were, `None` for the others.
    from: Vec<Option<f64>>,
    /// What was asked for last.
    asked: Vec<f64>,
    intervals: u32,
}

impl Elsewhere {
    /// Takes a control interval and what is asked for because of it, and lowers what changes nothing.
    pub fn judge(&mut self, observed: &Observation, request: &mut Request) {
        self.pause = self.pause.saturating_sub(1);
        if observed.mean_ms.is_none() && observed.shares.iter().any(|own| own.utilisation.is_none()) {
            // A tier may be out of sight, and then nothing is moved. The interval after it follows a gap.
            return;
        }
        // What it is like after a gap is not known.
        let mean_ms = observed.mean_ms.filter(|_| request.error.is_some() && observed.unanswered == 0);
        let used = observed.shares.iter().map(|own| own.utilisation.map(|used| used.value() * own.share.part()));
        let (Some(mean_ms), Some(used)) = (mean_ms, used.collect::<Option<Vec<f64>>>()) else {
            return self.restore(observed, request);
        };
        let shares = observed.shares.iter().map(|own| own.share.part()).collect();
        let seen = Seen { target_ms: observed.target_ms, mean_ms, shares, used };
        match self.given.take() {
            Some(given) => self.go_on(given, &seen, observed, request),
            None => self.begin(seen, observed, request),
        }
    }

    /// Takes one of the shares on another scale: what it was until now is `factor` times as much.
    pub fn rescale(&mut self, index: usize, factor: f64) {
        self.missed.clear();
        let Some(given) = &mut self.given else { return };
        let all = [given.began.get_mut(index), given.used.get_mut(index), given.asked.get_mut(index)];
        let from = given.from.get_mut(index).and_then(Option::as_mut);
        all.into_iter().flatten().chain(from).for_each(|share| *share *= factor);
    }

    /// Whether shares begin to be given back with this interval.
    fn begin(&mut self, seen: Seen, observed: &Observation, request: &mut Request) {
        let counts = |own: &ObservedShare| own.resource == Resource::Memory || load(own.utilisation) == Load::Under;
        let is_missed = error(seen.target_ms, seen.mean_ms) > MISSED && observed.shares.iter().all(counts);
        let follows =
            |last: &Seen| last.target_ms.total_cmp(&seen.target_ms).is_eq() && last.shares.len() == seen.shares.len();
        if !is_missed || !self.missed.last().is_none_or(follows) {
            self.missed.clear();
        }
        if !is_missed {
            return;
        }
        self.remember(seen);
        if self.missed.len() < INTERVALS || self.pause > 0 || !self.is_no_better() {
            return;
        }
        let shares: Vec<f64> = observed.shares.iter().map(|own| own.share.part()).collect();
        let first = &self.missed[0].shares;
        let from = observed.shares.iter().enumerate().map(|(index, own)| {
            let changes_nothing = has_grown(own, first[index]) && self.is_used_as_much(index);
            changes_nothing.then_some(shares[index])
        });
        let given = Given {
            target_ms: observed.target_ms,
            mean_ms: median_ms(&self.missed),
            from: from.collect(),
            used: (0..shares.len()).map(|index| mean(&self.missed, |seen| seen.used[index])).collect(),
            began: shares,
            asked: Vec::new(),
            intervals: 0,
        };
        let is_worth_it = |(own, from): (&ObservedShare, &Option<f64>)| {
            from.is_some_and(|from| given_back(own, from, 0.0, STEP) <= (1.0 - STEP) * own.share.part())
        };
        if observed.shares.iter().zip(&given.from).any(is_worth_it) {
            self.missed.clear();
            self.ask(given, STEP, observed, request);
        }
    }

    /// Goes on with what is given back, or ends it.
    fn go_on(&mut self, mut given: Given, seen: &Seen, observed: &Observation, request: &mut Request) {
        let is_same_target = given.target_ms.total_cmp(&seen.target_ms).is_eq();
        // By relief of a surge, for one.
        let has_risen = given.asked.len() != seen.shares.len()
            || given.asked.iter().zip(&seen.shares).any(|(asked, share)| share - asked > MOVED * asked);
        let needs_more = |(own, from): (&ObservedShare, &Option<f64>)| {
            let used = own.utilisation.map_or(0.0, |used| used.value() * own.share.part());
            let most = from.map_or(f64::INFINITY, |from| UNDER_LOAD * from);
            own.resource != Resource::Memory && (load(own.utilisation) == Load::Over || used > most)
        };
        let needs_more = observed.shares.iter().zip(&given.from).any(needs_more);
        // Others were given what it asked for: a slower response is their doing.
        let is_cut = given.asked.iter().zip(&seen.shares).any(|(asked, share)| *share < (1.0 - MOVED) * asked);
        let is_worse = seen.mean_ms > WORSE * given.mean_ms;
        let better =
            |seen: &Seen| seen.mean_ms < BETTER * given.mean_ms || error(seen.target_ms, seen.mean_ms) <= MISSED;
        let (was_better, is_better) = (self.missed.last().is_some_and(better), better(seen));
        self.remember(seen.clone());
        let is_a_little_worse =
            self.missed.len() == INTERVALS && median_ms(&self.missed) > WORSE_MEDIAN * given.mean_ms;
        given.intervals += 1;
        if !is_same_target || has_risen || is_worse || is_a_little_worse || needs_more {
            match (is_same_target, has_risen) {
                // All begins anew.
                (false, _) => {}
                (true, true) => self.pause = PAUSE,
                (true, false) if (is_worse || is_a_little_worse) && !is_cut => self.matters(is_a_little_worse),
                (true, false) => {}
            }
            self.given = Some(given);
            return self.restore(observed, request);
        }
        if is_better {
            if was_better {
                // The controller goes on from here.
                self.mattered = 0;
                self.missed.clear();
                return;
            }
            // One interval may be chance.
            return self.ask(given, 0.0, observed, request);
        }
        if given.intervals >= UNTIL_NEXT {
            self.mattered = 0;
            self.missed.clear();
            return;
        }
        for (index, own) in observed.shares.iter().enumerate() {
            // What the controller has raised meanwhile has changed nothing either.
            let is_used_as_much = seen.used[index] <= USED_AS_MUCH * given.used[index];
            if given.from[index].is_none() && is_used_as_much && has_grown(own, given.began[index]) {
                given.from[index] = Some(own.share.part());
            }
        }
        self.ask(given, STEP, observed, request);
    }

    /// What was given back may matter after all.
    fn matters(&mut self, is_sure: bool) {
        let least = if is_sure { 2 } else { 1 };
        self.mattered = self.mattered.saturating_add(1).max(least);
        if self.mattered >= 2 {
            self.pause = PAUSE << (self.mattered - 2).min(DOUBLED_MOST);
        }
    }

    fn remember(&mut self, seen: Seen) {
        self.missed.push(seen);
        if self.missed.len() > INTERVALS {
            self.missed.remove(0);
        }
    }

    /// Asks for less of what changes nothing, by a step.
    fn ask(&mut self, mut given: Given, step: f64, observed: &Observation, request: &mut Request) {
        for (index, (own, from)) in observed.shares.iter().zip(&given.from).enumerate() {
            let Some(from) = *from else { continue };
            let last = given.asked.get(index).copied().unwrap_or(0.0);
            let share = Share::clamped(given_back(own, from, last, step));
            request.shares[index] = share;
            let (lower, upper) = request.bounds[index];
            request.bounds[index] = (Share::clamped(lower.part().min(share.part())), upper);
        }
        (request.predicted, request.reach, request.give_back) = (None, None, GiveBack::Given);
        given.asked = request.shares.iter().map(|share| share.part()).collect();
        self.given = Some(given);
    }

    /// Ends it: what was given back is asked for again.
    fn restore(&mut self, observed: &Observation, request: &mut Request) {
        self.missed.clear();
        let Some(given) = self.given.take().filter(|given| given.from.len() == request.shares.len()) else { return };
        for (index, from) in given.from.iter().enumerate() {
            let Some(from) = from else { continue };
            let restored = from.min(observed.shares[index].ceiling.part()).max(request.shares[index].part());
            request.shares[index] = Share::clamped(restored);
            let (lower, upper) = request.bounds[index];
            request.bounds[index] = (lower, Share::clamped(upper.part().max(restored)));
        }
        request.give_back = GiveBack::Restored;
    }

    fn halves(&self) -> (&[Seen], &[Seen]) {
        self.missed.split_at(self.missed.len() / 2)
    }

    /// The response time of the later half of the intervals is no better than that of the earlier.
    fn is_no_better(&self) -> bool {
        let (earlier, later) = self.halves();
        median_ms(later) >= NO_BETTER * median_ms(earlier)
    }

    /// A share is used no more in the later half than in the earlier: the load is not why more of it does not help.
    fn is_used_as_much(&self, index: usize) -> bool {
        let (earlier, later) = self.halves();
        mean(later, |seen| seen.used[index]) <= USED_AS_MUCH * mean(earlier, |seen| seen.used[index])
    }
}

fn mean(seen: &[Seen], value: impl Fn(&Seen) -> f64) -> f64 {
    seen.iter().map(value).sum::<f64>() / seen.len().max(1) as f64
}

/// The middle one of the intervals' response times, or the mean of the middle two.
fn median_ms(seen: &[Seen]) -> f64 {
    let mut values: Vec<f64> = seen.iter().map(|seen| seen.mean_ms).collect();
    values.sort_by(f64::total_cmp);
    let Some(upper) = values.get(values.len() / 2) else { return 0.0 };
    let lower = values[(values.len() - 1) / 2];
    f64::midpoint(lower, *upper)
}

/// A share of CPU or disk that is under-loaded has grown since it was `first`, or cannot grow any more. Memory says nothing: a
/// cache fills whatever there is, and taking it back costs a reclaim.
fn has_grown(own: &ObservedShare, first: f64) -> bool {
    let (present, ceiling) = (own.share.part(), own.ceiling.part());
    let can_move = own.resource != Resource::Memory && own.floor.part() < ceiling;
    can_move && load(own.utilisation) == Load::Under && (present >= GREW * first || present >= AT_CEILING * ceiling)
}

/// What a share that changes nothing is next: a step less than it is or, where contention has cut it, than was asked for
/// last; but never below its floor, never so little that it is more than under-loaded, and never more than it was.
fn given_back(own: &ObservedShare, from: f64, asked: f64, step: f64) -> f64 {
    let present = own.share.part();
    let suffices = own.utilisation.map_or(present, |used| used.value() * present / UNDER_LOAD);
    ((1.0 - step) * present.max(asked)).max(suffices).min(from).max(own.floor.part())
}

#[cfg(test)]
mod tests;
