//! The history's mean, promised with standard deviations of single samples: what is usual elsewhere, and more careful than
//! the spread of means over a lookahead.
//! In: the history. Out: one prediction. Called through the registry.

use super::forecaster::{Forecaster, Margin, Past, Prediction};

#[derive(Debug)]
struct MeanPlusSigma;

pub(super) fn forecaster(_: f64) -> Box<dyn Forecaster> {
    Box::new(MeanPlusSigma)
}

impl Forecaster for MeanPlusSigma {
    fn predict(&self, past: &Past<'_>) -> Prediction {
        Prediction { expected: past.mean, margin: Margin::Deviations(past.deviation) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_samples() {
        let past = Past { mean: 150.0, deviation: 50.0, ..Past::default() };
        let prediction = Prediction { expected: 150.0, margin: Margin::Deviations(50.0) };
        assert_eq!(MeanPlusSigma.predict(&past), prediction);
    }
}
