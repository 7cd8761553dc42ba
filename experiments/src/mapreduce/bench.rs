//! What figures are made of, and how. In: values of each run. Out: means, medians, figures with their intervals, details. Called by
//! [`super`] and [`accuracy`](super::accuracy).

use super::workloads::Trained;
use crate::{Detail, Figure, Reproduction, interval};

/// Everything that the figures are made of.
pub(super) struct Bench<'a> {
    pub(super) seeds: Vec<u64>,
    pub(super) trained: Vec<Trained>,
    pub(super) progress: &'a (dyn Fn(&str, usize, usize) + Sync),
    pub(super) out: Reproduction,
}

impl Bench<'_> {
    pub(super) fn detail(
        &mut self,
        experiment: &str,
        case: String,
        quantity: &'static str,
        value: f64,
        unit: &'static str,
    ) {
        self.out.details.push(Detail { experiment: experiment.to_owned(), case, quantity, value, unit });
    }
}

/// A figure, and its interval over runs.
pub(super) type Value = (f64, Option<[f64; 2]>);

/// The mean of one value for each run.
pub(super) fn mean_of_runs(by_run: &[f64]) -> Value {
    let drawn = |drawn: &[usize]| drawn.iter().map(|run| by_run[*run]).sum::<f64>() / drawn.len() as f64;
    (mean(by_run), interval::bootstrap(by_run.len(), drawn))
}

pub(super) fn figure(
    id: &'static str,
    paper: Option<f64>,
    (ours, interval): Value,
    unit: &'static str,
    target: (String, bool),
    note: String,
) -> Figure {
    Figure::new(id, paper, ours, unit, target, note).with_interval(interval)
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        even if even.is_multiple_of(2) => 0.5 * (values[middle - 1] + values[middle]),
        _ => values[middle],
    }
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
