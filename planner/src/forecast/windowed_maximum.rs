//! The largest demand of the history: expected and promised alike.
//! In: the history. Out: one prediction. Called through the registry.

use super::forecaster::{Forecaster, Margin, Past, Prediction};
use super::window::Maximum;

#[derive(Debug)]
struct WindowedMaximum {
    largest: Maximum,
}

pub(super) fn forecaster(history_s: f64) -> Box<dyn Forecaster> {
    Box::new(WindowedMaximum { largest: Maximum::new(history_s) })
}

impl Forecaster for WindowedMaximum {
    fn observe(&mut self, past: &Past<'_>) {
        self.largest.push(past.now_s, past.latest);
    }

    fn predict(&self, past: &Past<'_>) -> Prediction {
        let largest = self.largest.value().unwrap_or(past.mean);
        Prediction { expected: largest, margin: Margin::Above(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_forgets_what_has_left_the_history() {
        let mut maximum = forecaster(3.0);
        let mut largest = |now_s, latest| {
            let past = Past { now_s, latest, ..Past::default() };
            maximum.observe(&past);
            maximum.predict(&past).expected
        };
        let seen = [(1.0, 90.0), (2.0, 40.0), (4.0, 30.0), (5.0, 10.0)].map(|(now_s, latest)| largest(now_s, latest));
        assert_eq!(seen.map(Some), [90.0, 90.0, 90.0, 40.0].map(Some));
    }
}
