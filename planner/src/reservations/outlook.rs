//! The distribution of the nodes that will be asked for soon, and when. In: the record of requests. Out: for the first, second, …
//! node the probability that it is asked for within the horizon, and the time at which it is then likely to be. Ours; no paper's.
//!
//! It is made of three samples of equal weight: the same time of day on the days of the window, the same phase of the paper's slot of three hours
//! in the last day, because what asks regularly asks at the same time, and every hour of the window, because not everything does.

use super::history::{HOUR_S, History, Request, Unknown};

/// Seconds of a day.
const DAY_S: f64 = 24.0 * HOUR_S;
/// The paper's slot, and how many of them are a day.
const SLOT_S: f64 = 3.0 * HOUR_S;
const SLOTS: u32 = 8;
/// Parts of the probability at which the times of a need are told.
const QUANTILES: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

/// A node that is likely to be asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Need {
    /// When, if it is: the 10, 30, 50, 70 and 90 % quantiles.
    pub times_s: [f64; 5],
    /// The probability that it is.
    pub probability: f64,
}

impl Need {
    /// A node that is wanted for certain at one time.
    #[must_use]
    pub fn certain(at_s: f64) -> Self {
        Self { times_s: [at_s; 5], probability: 1.0 }
    }

    /// When it is wanted at the earliest, but for a tenth of the probability.
    #[must_use]
    pub fn earliest_s(&self) -> f64 {
        self.times_s[0]
    }

    /// When it is wanted at the latest, but for a tenth of the probability.
    #[must_use]
    pub fn latest_s(&self) -> f64 {
        self.times_s[4]
    }
}

/// What may be asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    needs: Vec<Need>,
    per_hour: f64,
}

/// The time from the begin of the span at which the `nth` node (from 0) was asked for.
fn nth_at(span: &[Request], from_s: f64, nth: u32) -> Option<f64> {
    let mut nodes = 0_u32;
    span.iter().find_map(|request| {
        nodes = nodes.saturating_add(request.nodes);
        (nodes > nth).then_some(request.at_s - from_s)
    })
}

impl Outlook {
    /// The outlook at `now_s` over `horizon_s`, from the `days` before: at most `most` nodes, and none after the first that is
    /// less likely than `least`.
    ///
    /// # Errors
    /// [`Unknown`] when these days are not all on record.
    pub fn new(
        history: &History,
        now_s: f64,
        horizon_s: f64,
        days: u32,
        (least, most): (f64, usize),
    ) -> Result<Self, Unknown> {
        let window_s = f64::from(days.max(1)) * DAY_S;
        history.covers(now_s, window_s)?;
        let hours = days.max(1) * 24;
        let span =
            |back_s: f64| (now_s - back_s, history.between(now_s - back_s, (now_s - back_s + horizon_s).min(now_s)));
        let sample = |count: u32, step_s: f64| {
            (1..=count).map(move |back| (1.0 / 3.0 / f64::from(count), span(f64::from(back) * step_s)))
        };
        let samples = sample(days.max(1), DAY_S).chain(sample(SLOTS, SLOT_S)).chain(sample(hours, HOUR_S));
        let spans: Vec<(f64, (f64, &[Request]))> = samples.collect();
        let mut needs = Vec::new();
        for nth in (0_u32..).take(most) {
            let mut found: Vec<(f64, f64)> = spans
                .iter()
                .filter_map(|(weight, (from_s, span))| Some((nth_at(span, *from_s, nth)?, *weight)))
                .collect();
            let probability: f64 = found.iter().map(|(_, weight)| weight).sum();
            if probability < least || found.is_empty() {
                break;
            }
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
            let quantile = |part: f64| {
                let mut below = 0.0;
                let reached = found.iter().find(|(_, weight)| {
                    below += weight;
                    below >= part * probability
                });
                now_s + reached.or(found.last()).map_or(0.0, |(offset_s, _)| *offset_s)
            };
            needs.push(Need { times_s: QUANTILES.map(quantile), probability });
        }
        let per_hour = history.wanted(now_s - window_s, now_s) / (window_s / HOUR_S);
        Ok(Self { needs, per_hour })
    }

    /// The nodes that are likely enough, the likeliest first.
    #[must_use]
    pub fn needs(&self) -> &[Need] {
        &self.needs
    }

    /// Nodes asked for in an hour, in the mean.
    #[must_use]
    pub fn per_hour(&self) -> f64 {
        self.per_hour
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One node at half past every third hour for a week, and 20 on the third day at a quarter past four.
    fn week() -> History {
        let mut requests: Vec<Request> =
            (0..56).map(|slot| Request { at_s: f64::from(slot) * 3.0 * HOUR_S + 1_800.0, nodes: 1 }).collect();
        requests.push(Request { at_s: 2.0 * DAY_S + 4.25 * HOUR_S, nodes: 20 });
        requests.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        History::new(0.0, requests, Vec::new()).unwrap()
    }

    #[test]
    fn what_asks_regularly_is_seen_coming() {
        let (history, now_s) = (week(), 7.0 * DAY_S);
        let outlook = Outlook::new(&history, now_s, HOUR_S, 7, (0.2, 50)).unwrap();
        // Seven days of seven, eight slots of eight, and 57 of the 168 hours.
        assert_eq!(outlook.needs().len(), 1);
        let need = outlook.needs()[0];
        assert!((need.probability - (2.0 + 57.0 / 168.0) / 3.0).abs() < 1e-9, "{need:?}");
        assert!(need.times_s.iter().all(|at_s| (at_s - (now_s + 1_800.0)).abs() < 1e-9));
        assert!((outlook.per_hour() - 76.0 / 168.0).abs() < 1e-9);
        // Four in the morning: the 20 nodes are one day of six and one hour of 144.
        let four = Outlook::new(&history, now_s + 4.0 * HOUR_S - DAY_S, HOUR_S, 6, (0.05, 50)).unwrap();
        assert_eq!(four.needs().len(), 20);
        assert!((four.needs()[19].probability - (1.0 / 6.0 + 1.0 / 144.0) / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_record_that_is_too_short_is_unknown() {
        assert!(matches!(Outlook::new(&week(), 6.9 * DAY_S, HOUR_S, 7, (0.2, 50)), Err(Unknown::Short { .. })));
    }
}
