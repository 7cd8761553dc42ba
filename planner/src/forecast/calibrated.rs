//! The default: a mixture of experts, promised with a bound that is calibrated on this host's own errors, so that the
//! stated part of its promises breaks and no more. In: a series, sample by sample, at any pace. Out: what the next lookahead
//! is expected to bring, and a bound on it. Called by [`ResidualForecaster`](super::ResidualForecaster), once for the
//! foreground's CPU and once for its memory.
//!
//! A step costs a few sums. When a bucket of time has ended ([`grid`]), what was predicted a lookahead ago is judged: the
//! experts learn from it ([`experts`]), its error joins the others ([`errors`]), the level of the bounds moves by whether the
//! promised one was enough ([`level`]), and the weights of the two bounds by what each would have cost ([`mixture`]). Then the
//! next lookahead is predicted.
//! docs/forecast.md says how well this holds on recorded traces.

mod errors;
mod experts;
mod grid;
mod level;
mod mixture;
mod state;

use std::collections::VecDeque;

use self::errors::Errors;
use self::experts::{Experts, Said};
use self::grid::Grid;
pub(super) use self::grid::bucket_s;
use self::level::Level;
use self::mixture::{BOUNDS, Mixture};
pub(super) use self::state::SeriesState;
pub use self::state::StateError;
use crate::half_life;

/// Half-life of the usual error, in lookaheads. Chosen on tuning traces.
const USUAL: f64 = 36.0;
/// How much of the experts' spread is added to the usual error. Chosen on tuning traces.
const SPREAD: f64 = 1.0;
/// Lookaheads that the first samples' spread stands for as a usual error, and the half-life with which it is forgotten.
/// Chosen on tuning traces.
const FIRST: f64 = 4.0;
const FIRST_FORGOTTEN: f64 = 6.0;
/// How much larger than the first samples' spread the usual error is assumed to be, and how much more while there are few:
/// four times as much for two of them, twice for four. Chosen likewise.
const FIRST_CAUTION: f64 = 1.5;
const FIRST_FEW: f64 = 3.0;
/// First samples that are taken also where a lookahead is no longer than from one sample to the next.
const FIRST_LEAST: f64 = 3.0;
/// The same of memory, which climbs for hours after it hardly moved, and how much larger the pool's errors are for it.
/// Chosen likewise.
const FIRST_CAUTION_OF_MEMORY: f64 = 4.0;
const POOL_OF_MEMORY: f64 = 1.5;

/// What of the next lookahead a bound must hold for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bounds {
    /// Its mean: CPU, which can be caught up.
    Mean,
    /// Its largest value: memory, which is there or is not.
    Largest,
}

impl Bounds {
    /// How much larger than the first samples' spread the usual error is assumed to be, and how large the pool's errors are.
    const fn cautions(self) -> (f64, f64) {
        match self {
            Self::Mean => (FIRST_CAUTION, 1.0),
            Self::Largest => (FIRST_CAUTION_OF_MEMORY, POOL_OF_MEMORY),
        }
    }
}

/// A prediction whose lookahead has not passed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pending {
    due_s: f64,
    /// Lookaheads it stands for: the time since the one before.
    lookaheads: f64,
    /// Time sampled, and the sum over it, when it was made.
    sampled_s: f64,
    sum: f64,
    largest: f64,
    said: Said,
    usual: f64,
    /// Those that were mixed, and the mixture.
    bounds: [f64; BOUNDS],
    bound: f64,
}

/// What the next lookahead brings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outlook {
    /// Mean that is expected.
    pub(super) expected: f64,
    /// What it exceeds only at the stated risk; never below the expected.
    pub(super) bound: f64,
}

/// Mean and spread of the first samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct First {
    count: f64,
    mean: f64,
    squares: f64,
}

impl First {
    fn push(&mut self, value: f64) {
        self.count += 1.0;
        let from_mean = value - self.mean;
        self.mean += from_mean / self.count;
        self.squares += from_mean * (value - self.mean);
    }

    fn deviation(&self) -> f64 {
        if self.count > 1.0 { (self.squares / (self.count - 1.0)).max(0.0).sqrt() } else { 0.0 }
    }
}

/// Predicts one series.
#[derive(Debug, Clone)]
pub(super) struct Series {
    lookahead_s: f64,
    bounds: Bounds,
    clock_s: f64,
    /// Time sampled, and the sum over it.
    sampled_s: f64,
    sum: f64,
    /// Largest sample since a prediction was made last.
    largest: f64,
    /// When that was.
    predicted_s: f64,
    first: First,
    grid: Grid,
    experts: Experts,
    errors: Errors,
    level: Level,
    mixture: Mixture,
    /// Faded absolute errors and their faded number, in lookaheads.
    usual: (f64, f64),
    /// Lookaheads judged.
    judged: f64,
    pending: VecDeque<Pending>,
    outlook: Option<Outlook>,
}

impl Series {
    pub(super) fn new(lookahead_s: f64, risk: f64, bounds: Bounds) -> Self {
        Self {
            lookahead_s,
            bounds,
            clock_s: 0.0,
            sampled_s: 0.0,
            sum: 0.0,
            largest: f64::NEG_INFINITY,
            predicted_s: 0.0,
            first: First::default(),
            grid: Grid::new(lookahead_s),
            experts: Experts::new(),
            errors: Errors::new(bounds.cautions().1),
            level: Level::new(risk, level::lookaheads(lookahead_s)),
            mixture: Mixture::default(),
            usual: (0.0, 0.0),
            judged: 0.0,
            pending: VecDeque::new(),
            outlook: None,
        }
    }

    /// What is known.
    pub(super) fn state(&self) -> SeriesState {
        let (errors, error_scales) = self.errors.own();
        SeriesState {
            means: self.grid.means().iter().map(|mean| (!mean.is_nan()).then_some(*mean)).collect(),
            errors,
            error_scales,
            lookaheads: self.errors.lookaheads(),
            judged: self.judged,
            level: self.level.now(),
            usual: [self.usual.0, self.usual.1],
            losses: self.mixture.losses,
            first: [self.first.count, self.first.mean, self.first.squares],
            sampled_s: self.known_s(),
            expert_errors: self.experts.errors.to_vec(),
            exponential: self.experts.exponential.to_vec(),
            products: self.experts.products.iter().flatten().copied().collect(),
            came: self.experts.came.to_vec(),
        }
    }

    /// Goes on from a state, `gap_s` later.
    ///
    /// # Errors
    /// [`StateError::Value`] for the first value that cannot be.
    pub(super) fn resume(
        lookahead_s: f64,
        risk: f64,
        bounds: Bounds,
        state: SeriesState,
        gap_s: f64,
    ) -> Result<Self, StateError> {
        // Memory that is not free is the negative of what is.
        state.check(bounds == Bounds::Largest)?;
        let mut series = Self::new(lookahead_s, risk, bounds);
        series.grid.restore(state.means.into_iter().map(|mean| mean.unwrap_or(f32::NAN)));
        series.errors.restore(state.errors, state.error_scales, state.lookaheads);
        series.level.restore(state.level);
        series.judged = state.judged;
        series.usual = (state.usual[0], state.usual[1]);
        series.mixture.losses = state.losses;
        series.first = First { count: state.first[0], mean: state.first[1], squares: state.first[2] };
        series.sampled_s = state.sampled_s;
        let mut experts = Experts::new();
        state::copy(&mut experts.errors, &state.expert_errors, "expert_errors")?;
        state::copy(&mut experts.exponential, &state.exponential, "exponential")?;
        state::copy(experts.products.as_flattened_mut(), &state.products, "products")?;
        state::copy(&mut experts.came, &state.came, "came")?;
        series.experts = experts;
        series.observe(None, gap_s);
        series.predict(false);
        Ok(series)
    }

    /// Goes on at another risk: what is known stays.
    pub(super) fn set_risk(&mut self, risk: f64) {
        self.level = Level::new(risk, level::lookaheads(self.lookahead_s));
        // Losses weigh what is exceeded by the risk.
        self.mixture = Mixture::default();
    }

    /// What is known of the next lookahead.
    pub(super) const fn outlook(&self) -> Option<Outlook> {
        self.outlook
    }

    /// Seconds of samples that are known, a day at most.
    pub(super) fn known_s(&self) -> f64 {
        self.sampled_s.min(self.grid.bucket_s() * grid::DAY as f64)
    }

    /// Samples taken, until the first lookahead was judged and there are three.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    pub(super) const fn first_samples(&self) -> u64 {
        self.first.count as u64
    }

    /// Takes one sample that held for `interval_s`, or a gap.
    pub(super) fn observe(&mut self, value: Option<f64>, interval_s: f64) {
        self.clock_s += interval_s;
        if let Some(value) = value {
            self.sampled_s += interval_s;
            self.sum += interval_s * value;
            self.largest = self.largest.max(value);
            if self.judged < 1.0 || self.first.count < FIRST_LEAST {
                self.first.push(value);
            }
        }
        let ended = self.grid.push(value, interval_s);
        if ended > 0 {
            self.experts.observe(&self.grid, ended);
            self.judge();
            self.predict(true);
        } else if self.grid.means().is_empty() {
            let expected = self.first.mean;
            let usual = self.first_error();
            let bound = expected + usual * self.errors.multiple_exceeded(self.level.now()).max(0.0);
            self.outlook = value.map(|_| Outlook { expected, bound });
        }
    }

    /// Judges the predictions that are due. One of which less than half was sampled is not judged.
    fn judge(&mut self) {
        for pending in &mut self.pending {
            pending.largest = pending.largest.max(self.largest);
        }
        self.largest = f64::NEG_INFINITY;
        // A bucket ends with a sample, which may come a little early or late.
        let slack_s = self.grid.bucket_s() / 2.0;
        while let Some(pending) = self.pending.front().copied().filter(|p| p.due_s <= self.clock_s + slack_s) {
            self.pending.pop_front();
            let sampled_s = self.sampled_s - pending.sampled_s;
            if sampled_s < self.lookahead_s / 2.0 {
                continue;
            }
            let mean = (self.sum - pending.sum) / sampled_s;
            let came = match self.bounds {
                Bounds::Mean => mean,
                Bounds::Largest => pending.largest,
            };
            self.learn(&pending, mean, came);
        }
    }

    fn learn(&mut self, pending: &Pending, mean: f64, came: f64) {
        let error = came - pending.said.expected;
        self.experts.learn(&pending.said, mean, pending.lookaheads);
        self.errors.push(error, pending.usual, pending.lookaheads, level::lookaheads(self.lookahead_s));
        self.mixture.learn(pending.bounds, came, self.level.share(), pending.lookaheads);
        self.level.learn(came > pending.bound + 1e-9 * came.abs(), pending.lookaheads);
        let fade = half_life::weight(pending.lookaheads, USUAL);
        self.usual.0 = self.usual.0 * fade + pending.lookaheads * error.abs();
        self.usual.1 = self.usual.1 * fade + pending.lookaheads;
        self.judged += pending.lookaheads;
    }

    /// The usual error that the first samples' spread stands for: larger the fewer they are.
    fn first_error(&self) -> f64 {
        let few = 1.0 + FIRST_FEW / (self.first.count - 1.0).max(1.0);
        self.bounds.cautions().0 * few * self.first.deviation()
    }

    /// The usual error: the faded mean of the errors, and of the first samples' spread as long as there are few.
    fn usual_error(&self) -> f64 {
        let first = FIRST * half_life::weight(self.judged, FIRST_FORGOTTEN);
        // Forgotten for good: a constant is promised whole.
        let first = if first < 0.05 { 0.0 } else { first };
        (self.usual.0 + first * self.first_error()) / (self.usual.1 + first).max(f64::MIN_POSITIVE)
    }

    /// Predicts the next lookahead, `judged` afterwards. Nothing is known of it where nothing is of the newest bucket.
    fn predict(&mut self, judged: bool) {
        self.outlook = None;
        if self.grid.means().back().is_none_or(|mean| mean.is_nan()) {
            return;
        }
        let said = self.experts.predict(&self.grid, self.grid.buckets(self.lookahead_s));
        let Some(said) = said.filter(|said| said.expected.is_finite() && said.spread.is_finite()) else { return };
        // A millionth of what is predicted is no error.
        let usual = (self.usual_error() + SPREAD * said.spread).max(1e-9 * said.expected.abs()).max(f64::MIN_POSITIVE);
        let level = self.level.now();
        let margins = [usual * self.errors.multiple_exceeded(level), self.errors.exceeded(level, usual)];
        let bounds = margins.map(|margin| said.expected + margin.max(0.0));
        let bound = self.mixture.of(bounds);
        self.outlook = Some(Outlook { expected: said.expected, bound });
        let lookaheads = ((self.clock_s - self.predicted_s) / self.lookahead_s).min(1.0);
        self.predicted_s = self.clock_s;
        if !judged {
            return;
        }
        self.pending.push_back(Pending {
            due_s: self.clock_s + self.lookahead_s,
            lookaheads,
            sampled_s: self.sampled_s,
            sum: self.sum,
            largest: f64::NEG_INFINITY,
            said,
            usual,
            bounds,
            bound,
        });
    }
}
