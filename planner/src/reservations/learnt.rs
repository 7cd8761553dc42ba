//! What a recurrent network has learnt from a record of requests. In: the record, the time, a seed. Out: a number of nodes
//! for the next slot, made of what was before alone. [`super::forecast`] calls it, and whoever plays a record tells it when to learn.
//!
//! The paper says that its network was trained on the recorded leases and then again from time to time, and not how it is made. Its published
//! simulator looks back a week in slots of three hours and brings each window to between 0 and 1; that is done here. Its smoothing of the
//! window is not. The paper's first training saw the leases that were forecast later; here nothing that is later is seen.

mod network;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use self::network::{Example, Network};
use super::history::{HOUR_S, History, Unknown};
use super::scale::Scale;

/// Hidden units. Chosen: some twelve hundred weights, as many as there are slots in five months.
const HIDDEN: usize = 16;
/// How long the record must be, beyond the window, before anything is learnt from it, and time between two trainings.
const WEEK_S: f64 = 168.0 * HOUR_S;
/// How often each example is seen by the first training, and by one that goes on from the one before.
const TIMES: (u32, u32) = (20, 4);

/// Networks by the time at which they were trained, the oldest first; a forecast uses the newest that is not of later.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Learnt {
    trained: Vec<(f64, Network)>,
}

/// A window between 0 and 1: its least value, its range, and what it is then. A window of one value has the range 1.
fn to_unit(window: &[f64]) -> (f64, f64, Vec<f64>) {
    let (least, most) = window.iter().fold((f64::MAX, f64::MIN), |(least, most), &own| (least.min(own), most.max(own)));
    let range = if most > least { most - least } else { 1.0 };
    (least, range, window.iter().map(|own| (own - least) / range).collect())
}

impl Learnt {
    /// Trains a network where a week has passed since the last training and there is enough on record: the window and a week. `seed` decides
    /// the first weights and the order of examples.
    pub(super) fn update(&mut self, history: &History, now_s: f64, scale: Scale, seed: u64) {
        let window_s = scale.window_s();
        let is_recent = self.at(now_s).is_some_and(|(at_s, _)| now_s - at_s < WEEK_S);
        if is_recent || now_s - history.since_s() < window_s + WEEK_S {
            return;
        }
        let examples = examples(history, now_s, scale);
        if examples.is_empty() {
            return;
        }
        let examples: Vec<Example<'_>> = examples.iter().map(|(window, then)| (window.as_slice(), *then)).collect();
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ self.trained.len() as u64);
        let (mut network, times) = match self.at(now_s) {
            Some((_, network)) => (network.clone(), TIMES.1),
            None => (Network::new(HIDDEN, &mut random), TIMES.0),
        };
        network.learn(&examples, times, &mut random);
        let place = self.trained.partition_point(|(at_s, _)| *at_s <= now_s);
        self.trained.insert(place, (now_s, network));
    }

    /// The newest network that is not of later, with its time.
    fn at(&self, now_s: f64) -> Option<&(f64, Network)> {
        self.trained.iter().rev().find(|(at_s, _)| *at_s <= now_s)
    }

    /// Nodes that will be asked for in the slot after those of `window`, which end at `now_s`.
    pub(super) fn wanted(&self, window: &[f64], history: &History, now_s: f64, scale: Scale) -> Result<f64, Unknown> {
        let Some((_, network)) = self.at(now_s) else {
            let (has_s, needs_s) = (now_s - history.since_s(), scale.window_s() + WEEK_S);
            return Err(Unknown::Short { has_s, needs_s });
        };
        let (least, range, inputs) = to_unit(window);
        Ok((least + range * network.next(&inputs)).max(0.0))
    }
}

/// All windows on record that have a slot after them which is over, with that slot's value in the window's measure. Windows with a gap are left out.
fn examples(history: &History, now_s: f64, scale: Scale) -> Vec<(Vec<f64>, f64)> {
    let (slots, slot_s) = (scale.slots(), scale.slot_s());
    let whole = ((now_s - history.since_s()) / slot_s).floor();
    // Slots are counted back from now, as for a forecast.
    let slot = |back: f64| history.wanted(now_s - back * slot_s, now_s - (back - 1.0) * slot_s);
    let series: Vec<f64> =
        (0..).map(|index| whole - f64::from(index)).take_while(|back| *back >= 1.0).map(slot).collect();
    let mut found = Vec::new();
    for (index, window) in series.windows(slots as usize + 1).enumerate() {
        let Some((then, window)) = window.split_last() else { continue };
        let end_s = now_s - (whole - index as f64 - f64::from(slots) - 1.0) * slot_s;
        if history.covers(end_s, scale.window_s() + slot_s).is_ok() {
            let (least, range, inputs) = to_unit(window);
            found.push((inputs, (then - least) / range));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::forecast::Forecaster;
    use super::super::history::Request;
    use super::*;

    const DAILY: Scale = Scale { window_h: 24, slot_h: 3 };
    const DAY_S: f64 = 24.0 * HOUR_S;

    /// Ten nodes at six in the morning of each day, as long as it goes.
    fn mornings(days: u32, gaps: Vec<(f64, f64)>) -> History {
        let requests = (0..days).map(|day| Request { at_s: f64::from(day) * DAY_S + 6.0 * HOUR_S, nodes: 10 });
        History::new(0.0, requests.collect(), gaps).unwrap()
    }

    #[test]
    fn examples_are_windows_with_what_came_after_them() {
        let history = mornings(3, vec![(0.0, HOUR_S)]);
        let found = examples(&history, 2.0 * DAY_S, DAILY);
        // Sixteen slots: eight windows have a ninth after them, and the first of them has the gap.
        assert_eq!(found.len(), 7);
        for (index, (window, then)) in found.iter().enumerate() {
            assert_eq!(window.len(), 8);
            assert_eq!(window.iter().sum::<f64>().to_bits(), 1.0_f64.to_bits(), "one morning in each window");
            assert_eq!(*then > 0.5, index + 1 == 2, "slot {} after the first day", index + 1);
        }
    }

    #[test]
    fn a_morning_is_foretold_where_a_mean_tells_every_slot_alike() {
        let (history, mut learnt) = (mornings(40, Vec::new()), Learnt::default());
        let (forecaster, seed) = (Forecaster::Lstm, 1);
        let early = forecaster.wanted(&learnt, &history, 7.0 * DAY_S, DAILY);
        assert_eq!(early, Err(Unknown::Short { has_s: 7.0 * DAY_S, needs_s: 8.0 * DAY_S }));
        for day in 0..30 {
            forecaster.learn(&mut learnt, &history, f64::from(day) * DAY_S, DAILY, seed);
        }
        assert_eq!(learnt.trained.len(), 4, "on the 8th day and every week");
        let at = |hour: f64| forecaster.wanted(&learnt, &history, 31.0 * DAY_S + hour * HOUR_S, DAILY).unwrap();
        assert!(at(6.0) > 7.0 && at(3.0) < 3.0 && at(12.0) < 3.0, "{} {} {}", at(3.0), at(6.0), at(12.0));
    }

    #[test]
    fn what_is_later_is_not_seen() {
        let (long, short) = (mornings(40, Vec::new()), mornings(12, Vec::new()));
        let learnt = |history: &History| {
            let mut learnt = Learnt::default();
            Forecaster::Lstm.learn(&mut learnt, history, 11.0 * DAY_S, DAILY, 7);
            learnt
        };
        assert_eq!(learnt(&long), learnt(&short));
        let mut again = learnt(&long);
        Forecaster::Lstm.learn(&mut again, &long, 30.0 * DAY_S, DAILY, 7);
        let at = |learnt: &Learnt| Forecaster::Lstm.wanted(learnt, &long, 11.5 * DAY_S, DAILY).unwrap().to_bits();
        assert_eq!(at(&again), at(&learnt(&long)), "a network of later is not asked");
    }

    #[test]
    fn only_a_network_learns() {
        let mut learnt = Learnt::default();
        Forecaster::RollingMean.learn(&mut learnt, &mornings(40, Vec::new()), 30.0 * DAY_S, DAILY, 1);
        assert_eq!(learnt, Learnt::default());
    }
}
