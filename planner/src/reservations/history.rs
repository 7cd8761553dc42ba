//! The record of requests for nodes. In: requests in the order of their times, and where the record has gaps. Out: how many
//! nodes were wanted in a span, or that it is not known. Forecasts call it.

use gleaner_types::text::duration;
use serde::{Deserialize, Serialize};

/// Seconds of an hour.
pub const HOUR_S: f64 = 3_600.0;

/// Nodes that somebody asked for, to have them at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// When.
    pub at_s: f64,
    /// How many.
    pub nodes: u32,
}

/// A forecast that the record does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// It begins too late.
    #[error("the record of requests begins {} ago; the forecast needs {}", duration(*.has_s), duration(*.needs_s))]
    Short {
        /// Length of the record.
        has_s: f64,
        /// What the forecast needs.
        needs_s: f64,
    },
    /// It has a gap where the forecast needs it.
    #[error(
        "the record of requests has a gap from {} to {}, within the window of the forecast",
        duration(*.from_s),
        duration(*.to_s)
    )]
    Gap {
        /// Where the gap begins.
        from_s: f64,
        /// Where it ends.
        to_s: f64,
    },
}

/// A record that is not one.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum InvalidHistory {
    /// Requests in the wrong order, outside of the record, or at no time at all.
    #[error(
        "requests[{index}].at_s: is {at_s}; it must be a number of at least {least_s}, the time of the request before or the record's begin"
    )]
    Order {
        /// Which, from 0.
        index: usize,
        /// Its time.
        at_s: f64,
        /// The least that it may be.
        least_s: f64,
    },
    /// A gap that ends before it begins.
    #[error("gaps[{index}]: is from {from_s} to {to_s}; it must end after it begins")]
    Gap {
        /// Which, from 0.
        index: usize,
        /// Where it begins.
        from_s: f64,
        /// Where it ends.
        to_s: f64,
    },
}

/// Requests so far. What is later than the time of a question is never looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    since_s: f64,
    requests: Vec<Request>,
    gaps: Vec<(f64, f64)>,
}

impl History {
    /// A record that begins at `since_s`, with its requests in the order of their times, and the spans in which nothing was recorded.
    ///
    /// # Errors
    /// [`InvalidHistory`] naming the first request or gap that is wrong.
    pub fn new(since_s: f64, requests: Vec<Request>, gaps: Vec<(f64, f64)>) -> Result<Self, InvalidHistory> {
        let mut least_s = since_s;
        for (index, request) in requests.iter().enumerate() {
            if !(request.at_s.is_finite() && request.at_s >= least_s) {
                return Err(InvalidHistory::Order { index, at_s: request.at_s, least_s });
            }
            least_s = request.at_s;
        }
        let ends_after = |(from_s, to_s): &(f64, f64)| from_s < to_s;
        match gaps.iter().enumerate().find(|(_, gap)| !ends_after(gap)) {
            Some((index, &(from_s, to_s))) => Err(InvalidHistory::Gap { index, from_s, to_s }),
            None => Ok(Self { since_s, requests, gaps }),
        }
    }

    /// Adds the newest request; one that is not newer than the last counts as of its time.
    pub fn push(&mut self, request: Request) {
        let last_s = self.requests.last().map_or(self.since_s, |last| last.at_s);
        self.requests.push(Request { at_s: request.at_s.max(last_s), ..request });
    }

    /// Refuses when the `needs_s` before `now_s` are not all on record.
    ///
    /// # Errors
    /// [`Unknown`] with the reason.
    pub fn covers(&self, now_s: f64, needs_s: f64) -> Result<(), Unknown> {
        let has_s = now_s - self.since_s;
        if has_s < needs_s {
            return Err(Unknown::Short { has_s, needs_s });
        }
        match self.gaps.iter().find(|(from_s, to_s)| *from_s < now_s && *to_s > now_s - needs_s) {
            Some(&(from_s, to_s)) => Err(Unknown::Gap { from_s, to_s }),
            None => Ok(()),
        }
    }

    /// Requests from `from_s` to before `to_s`.
    pub fn between(&self, from_s: f64, to_s: f64) -> &[Request] {
        let begin = self.requests.partition_point(|request| request.at_s < from_s);
        let end = self.requests.partition_point(|request| request.at_s < to_s);
        &self.requests[begin..end.max(begin)]
    }

    /// Nodes asked for from `from_s` to before `to_s`.
    #[must_use]
    pub fn wanted(&self, from_s: f64, to_s: f64) -> f64 {
        self.between(from_s, to_s).iter().map(|request| f64::from(request.nodes)).sum()
    }

    /// When the record begins.
    #[must_use]
    pub fn since_s(&self) -> f64 {
        self.since_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at_s: f64, nodes: u32) -> Request {
        Request { at_s, nodes }
    }

    #[test]
    fn spans_are_half_open() {
        let history =
            History::new(0.0, vec![request(10.0, 2), request(10.0, 1), request(20.0, 4)], Vec::new()).unwrap();
        assert_eq!(history.wanted(10.0, 20.0).to_bits(), 3.0_f64.to_bits());
        assert_eq!(history.wanted(10.1, 20.1).to_bits(), 4.0_f64.to_bits());
        assert!(history.between(30.0, 5.0).is_empty());
    }

    #[test]
    fn what_is_not_on_record_is_unknown() {
        let history = History::new(100.0, Vec::new(), vec![(200.0, 250.0)]).unwrap();
        assert_eq!(history.covers(150.0, 60.0), Err(Unknown::Short { has_s: 50.0, needs_s: 60.0 }));
        assert_eq!(history.covers(300.0, 60.0), Err(Unknown::Gap { from_s: 200.0, to_s: 250.0 }));
        assert_eq!(history.covers(310.0, 60.0), Ok(()));
        assert_eq!(history.covers(200.0, 60.0), Ok(()), "a gap that is still to come does not matter");
    }

    #[test]
    fn wrong_order_and_wrong_gaps_are_named() {
        let said = |requests, gaps| History::new(0.0, requests, gaps).unwrap_err().to_string();
        assert!(said(vec![request(5.0, 1), request(4.0, 1)], Vec::new()).starts_with("requests[1].at_s: is 4"));
        assert!(said(vec![request(f64::NAN, 1)], Vec::new()).starts_with("requests[0].at_s: is NaN"));
        assert!(said(Vec::new(), vec![(3.0, 3.0)]).starts_with("gaps[0]: is from 3 to 3"));
        let mut history = History::new(0.0, vec![request(5.0, 1)], Vec::new()).unwrap();
        history.push(request(1.0, 1));
        assert_eq!(history.between(5.0, 6.0).len(), 2, "kept in order");
    }
}
