//! Figures over runs, and short constructors for them and for details. In: what each run gave, a figure's parts. Out: a
//! [`Figure`], or one more [`Detail`] of the reproduction. Called by the experiment and its parts.

use super::runs::mean;
use crate::{Detail, Figure, Reproduction, interval};

/// A figure over runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Over {
    /// What it is.
    pub(super) ours: f64,
    /// The same of medians over the runs in place of means.
    median: f64,
    /// 95 % confidence interval of `ours`.
    interval: Option<[f64; 2]>,
}

/// Some of the runs, each as often as it was drawn, and how their values become one.
pub(super) struct Drawn<'a> {
    runs: &'a [usize],
    average: fn(Vec<f64>) -> f64,
}

impl Drawn<'_> {
    fn values(&self, by_run: &[f64]) -> Vec<f64> {
        self.runs.iter().filter_map(|run| by_run.get(*run)).copied().collect()
    }

    /// Of a value of each run: the mean of the drawn ones, or the median where a figure of medians is wanted.
    pub(super) fn of(&self, by_run: &[f64]) -> f64 {
        (self.average)(self.values(by_run))
    }

    /// The median, for figures that are made of medians anyway.
    pub(super) fn median(&self, by_run: &[f64]) -> f64 {
        median(self.values(by_run))
    }
}

/// A figure of so many runs: `of` says what it is of those that are drawn.
pub(super) fn over(runs: usize, of: impl Fn(&Drawn<'_>) -> f64) -> Over {
    let all: Vec<usize> = (0..runs).collect();
    let with = |runs: &[usize], average: fn(Vec<f64>) -> f64| of(&Drawn { runs, average });
    Over {
        ours: with(&all, mean),
        median: with(&all, median),
        interval: interval::bootstrap(runs, |drawn| with(drawn, mean)),
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

pub(super) fn figure(
    id: &'static str,
    paper: impl Into<Option<f64>>,
    over: Over,
    unit: &'static str,
    target: (&str, bool),
    note: String,
) -> Figure {
    Figure::new(id, paper, over.ours, unit, target, note).with_median(over.median).with_interval(over.interval)
}

pub(super) fn detail(
    out: &mut Reproduction,
    experiment: &str,
    case: String,
    quantity: &'static str,
    value: f64,
    unit: &'static str,
) {
    out.details.push(Detail { experiment: experiment.to_owned(), case, quantity, value, unit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_run_moves_the_mean_and_the_interval_and_not_the_median() {
        let (ours, theirs) = ([1.0, 1.0, 1.0, 1.0, 6.0], [2.0, 2.0, 2.0, 2.0, 12.0]);
        let found = over(5, |drawn| drawn.of(&ours));
        assert!((found.ours - 2.0).abs() < 1e-12 && (found.median - 1.0).abs() < 1e-12, "{found:?}");
        let [low, high] = found.interval.unwrap();
        assert!((low - 1.0).abs() < 1e-12 && high > 3.0, "{found:?}");
        // Both of the same drawn runs: their ratio is the same however they are drawn.
        let ratio = over(5, |drawn| drawn.of(&theirs) / drawn.of(&ours));
        assert!(ratio.interval.unwrap().iter().all(|end| (end - 2.0).abs() < 1e-12), "{ratio:?}");
        let middle = over(5, |drawn| drawn.median(&ours));
        assert!((middle.ours - 1.0).abs() < 1e-12, "{middle:?}");
        let made = figure("bconf.harmed", None, found, "", ("0", true), String::new());
        assert_eq!((made.ours, made.median, made.interval), (Some(2.0), Some(1.0), found.interval));
    }

    #[test]
    fn a_run_alone_has_no_interval_and_what_is_no_number_is_none() {
        assert_eq!(over(1, |drawn| drawn.of(&[3.0])).interval, None);
        let none = figure("bconf.harmed", None, over(2, |_| f64::NAN), "", ("0", true), String::new());
        assert_eq!((none.ours, none.median, none.interval, none.holds), (None, None, None, false));
    }
}
