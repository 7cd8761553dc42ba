//! How many nodes will be asked for in the next slot (CHISim, section 2). In: the record of requests. Out: a number of nodes, made of the past
//! alone, or that it is not known. A strategy that reserves nodes calls it.
//!
//! The paper names its models and not their sizes; those are of its published simulator: it looks back a week (`window: 168`) and
//! ahead three hours (`steps: 3`), and sums requests over that slot.

use serde::{Deserialize, Serialize};

use super::history::{History, Unknown};
use super::learnt::Learnt;
pub use super::scale::Scale;

/// A model. What one has learnt is in [`Learnt`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forecaster {
    /// The mean of the slots in the window.
    RollingMean,
    /// Their median, the mean of the middle two where they are even.
    #[default]
    RollingMedian,
    /// What a recurrent network has learnt of the order in which they follow each other ([`Learnt`]).
    Lstm,
}

impl Forecaster {
    /// All, with the words by which an operator names them.
    pub const ALL: [(&'static str, Self); 3] =
        [("mean", Self::RollingMean), ("median", Self::RollingMedian), ("lstm", Self::Lstm)];

    /// Learns from the record where this model does and it is time to. It may take seconds.
    pub fn learn(self, learnt: &mut Learnt, history: &History, now_s: f64, scale: Scale, seed: u64) {
        if self == Self::Lstm {
            learnt.update(history, now_s, scale, seed);
        }
    }

    /// Nodes that will be asked for in the slot that begins at `now_s`; not a whole number.
    ///
    /// # Errors
    /// [`Unknown`] when the window is not all on record, or nothing was learnt yet.
    pub fn wanted(self, learnt: &Learnt, history: &History, now_s: f64, scale: Scale) -> Result<f64, Unknown> {
        let (slots, slot_s) = (scale.slots(), scale.slot_s());
        history.covers(now_s, scale.window_s())?;
        let slot = |back: u32| {
            let from_s = now_s - f64::from(back) * slot_s;
            history.wanted(from_s, from_s + slot_s)
        };
        let mut sums: Vec<f64> = (1..=slots).map(slot).collect();
        Ok(match self {
            Self::RollingMean => sums.iter().sum::<f64>() / f64::from(slots),
            Self::RollingMedian => {
                sums.sort_by(f64::total_cmp);
                let middle = sums.len() / 2;
                match sums.len() % 2 {
                    0 => f64::midpoint(sums[middle - 1], sums[middle]),
                    _ => sums[middle],
                }
            }
            Self::Lstm => {
                sums.reverse();
                learnt.wanted(&sums, history, now_s, scale)?
            }
        })
    }
}

/// What a forecaster got wrong, slot by slot, each forecast being made of what was before its slot alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WalkForward {
    /// Slots with a forecast.
    pub slots: u32,
    /// Slots without one.
    pub unknown: u32,
    /// Mean of the amounts by which forecasts were off, in nodes.
    pub mean_absolute: f64,
    /// Mean of the nodes that were asked for beyond the forecast.
    pub under: f64,
    /// Mean of the nodes of the forecast that nobody asked for.
    pub over: f64,
}

/// Evaluates a forecaster over all slots from the begin of the record to `until_s`. One that learns does so on its way, into `learnt`.
#[must_use]
pub fn walk_forward(
    forecaster: Forecaster,
    learnt: &mut Learnt,
    history: &History,
    until_s: f64,
    (scale, seed): (Scale, u64),
) -> WalkForward {
    let mut found = WalkForward::default();
    let slot_s = scale.slot_s();
    let mut slot = 0_u32;
    loop {
        let now_s = history.since_s() + f64::from(slot) * slot_s;
        if now_s + slot_s > until_s || until_s.is_nan() {
            break;
        }
        slot += 1;
        let actual = history.wanted(now_s, now_s + slot_s);
        forecaster.learn(learnt, history, now_s, scale, seed);
        match forecaster.wanted(learnt, history, now_s, scale) {
            Ok(wanted) => {
                found.slots += 1;
                found.under += (actual - wanted).max(0.0);
                found.over += (wanted - actual).max(0.0);
            }
            Err(_) => found.unknown += 1,
        }
    }
    let slots = f64::from(found.slots.max(1));
    found.under /= slots;
    found.over /= slots;
    found.mean_absolute = found.under + found.over;
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::history::{HOUR_S, Request};
    use super::*;

    const HOURLY: Scale = Scale { window_h: 4, slot_h: 1 };

    fn hourly(nodes: &[u32]) -> History {
        let requests = nodes.iter().enumerate().map(|(hour, &nodes)| Request { at_s: hour as f64 * HOUR_S, nodes });
        History::new(0.0, requests.collect(), Vec::new()).unwrap()
    }

    #[test]
    fn mean_and_median_by_hand() {
        let history = hourly(&[9, 1, 2, 3, 10, 99]);
        let at =
            |forecaster: Forecaster| forecaster.wanted(&Learnt::default(), &history, 5.0 * HOUR_S, HOURLY).unwrap();
        assert!((at(Forecaster::RollingMean) - 4.0).abs() < 1e-12, "1, 2, 3, 10; the 99 is not past");
        assert!((at(Forecaster::RollingMedian) - 2.5).abs() < 1e-12);
        let paper = Forecaster::RollingMean.wanted(&Learnt::default(), &history, 5.0 * HOUR_S, Scale::PAPER);
        assert_eq!(paper, Err(Unknown::Short { has_s: 5.0 * HOUR_S, needs_s: 168.0 * HOUR_S }));
    }

    #[test]
    fn walking_forward_by_hand() {
        let history = hourly(&[1, 1, 1, 1, 5, 0, 0]);
        let found = walk_forward(Forecaster::RollingMean, &mut Learnt::default(), &history, 7.0 * HOUR_S, (HOURLY, 1));
        // Forecasts 1, 2, 1.75 for 5, 0, 0.
        assert_eq!((found.slots, found.unknown), (3, 4));
        assert!((found.under - 4.0 / 3.0).abs() < 1e-12 && (found.over - 3.75 / 3.0).abs() < 1e-12);
    }

    proptest! {
        /// What comes later changes no forecast.
        #[test]
        fn only_the_past_counts(nodes in prop::collection::vec(0_u32..20, 12..40), cut in 5_usize..12) {
            let (whole, past) = (hourly(&nodes), hourly(&nodes[..cut]));
            // Learnt has a test of its own for the network.
            for forecaster in [Forecaster::RollingMean, Forecaster::RollingMedian] {
                let (now_s, learnt) = (cut as f64 * HOUR_S, Learnt::default());
                let forecast = forecaster.wanted(&learnt, &whole, now_s, HOURLY).unwrap();
                let of_past = forecaster.wanted(&learnt, &past, now_s, HOURLY).unwrap();
                prop_assert_eq!(forecast.to_bits(), of_past.to_bits());
                let most = nodes[cut - 4..cut].iter().copied().max().unwrap_or(0);
                prop_assert!((0.0..=f64::from(most)).contains(&forecast));
            }
        }
    }
}
