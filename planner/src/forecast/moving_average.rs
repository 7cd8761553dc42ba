//! The moving average (RHIC §4.2, the papers' choice): the next minutes are as the history in the mean.
//! In: the history. Out: one prediction. Called through the registry.

use super::forecaster::{Forecaster, Past, Prediction};

#[derive(Debug)]
struct MovingAverage;

pub(super) fn forecaster(_: f64) -> Box<dyn Forecaster> {
    Box::new(MovingAverage)
}

impl Forecaster for MovingAverage {
    fn predict(&self, past: &Past<'_>) -> Prediction {
        Prediction::of(past.mean)
    }
}
