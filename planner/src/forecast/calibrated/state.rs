//! What a series knows, as plain data that outlives a restart. In: a state. Out: whether every value can be. Called
//! by [`Series`](super::Series).
//!
//! Predictions whose lookahead has not passed are not part of it: what happened while nobody looked is not known.

use serde::{Deserialize, Serialize};

use super::level::LOOKAHEADS;
use super::mixture::BOUNDS;
use super::{errors, grid};

/// Larger than any demand in percent of a core, any memory in bytes, or a square of it.
const LARGEST: f64 = 1e40;

/// A state from which no forecast can go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StateError {
    /// It belongs to another method.
    #[error("method is {found}, not {wanted}")]
    OtherMethod {
        /// That of the state.
        found: String,
        /// That of the settings.
        wanted: String,
    },
    /// It looks another time ahead.
    #[error("lookahead_s is {found}, not {wanted}")]
    OtherLookahead {
        /// That of the state.
        found: f64,
        /// That of the settings.
        wanted: f64,
    },
    /// A value that cannot be.
    #[error("{field} cannot be {value}")]
    Value {
        /// Which.
        field: &'static str,
        /// The first that cannot be, or how many there are.
        value: f64,
    },
}

/// What a series knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::forecast) struct SeriesState {
    /// Means of buckets, oldest first.
    pub(super) means: Vec<Option<f32>>,
    /// Own errors, newest last, as multiples of what was usual and that as a logarithm, and how many lookaheads they stand for.
    pub(super) errors: Vec<f32>,
    pub(super) error_scales: Vec<i16>,
    pub(super) lookaheads: f64,
    pub(super) judged: f64,
    pub(super) level: f64,
    pub(super) usual: [f64; 2],
    pub(super) losses: [f64; BOUNDS],
    pub(super) first: [f64; 3],
    pub(super) sampled_s: f64,
    pub(super) expert_errors: Vec<f64>,
    pub(super) exponential: Vec<Option<f64>>,
    pub(super) products: Vec<f64>,
    pub(super) came: Vec<f64>,
}

/// Takes an array's values, which must be as many.
pub(super) fn copy<T: Copy>(to: &mut [T], from: &[T], field: &'static str) -> Result<(), StateError> {
    if to.len() != from.len() {
        return Err(StateError::Value { field, value: from.len() as f64 });
    }
    to.copy_from_slice(from);
    Ok(())
}

impl SeriesState {
    /// Every value is one that can be; means only where `negative` says so may be below zero.
    ///
    /// # Errors
    /// [`StateError::Value`] for the first that cannot be.
    pub(super) fn check(&self, negative: bool) -> Result<(), StateError> {
        let refuse = |field, value| Err(StateError::Value { field, value });
        let number = |value: &f64| value.is_finite() && value.abs() <= LARGEST;
        let positive = |value: &f64| number(value) && *value >= 0.0;
        let of_series = |value: &f64| if negative { number(value) } else { positive(value) };
        if self.means.len() > grid::MOST {
            return refuse("means", self.means.len() as f64);
        }
        if self.errors.len() > errors::MOST {
            return refuse("errors", self.errors.len() as f64);
        }
        if self.error_scales.len() != self.errors.len() {
            return refuse("error_scales", self.error_scales.len() as f64);
        }
        for (field, values, valid) in [
            (
                "means",
                &self.means.iter().flatten().map(|mean| f64::from(*mean)).collect::<Vec<_>>(),
                &of_series as &dyn Fn(&f64) -> bool,
            ),
            ("errors", &self.errors.iter().map(|error| f64::from(*error)).collect(), &|value| {
                value.abs() <= errors::LARGEST
            }),
            ("error_scales", &self.error_scales.iter().map(|scale| f64::from(*scale)).collect(), &|value| {
                errors::scale_can_be(*value)
            }),
            ("lookaheads", &vec![self.lookaheads], &|value| (0.0..=LOOKAHEADS).contains(value)),
            ("judged", &vec![self.judged], &positive),
            ("level", &vec![self.level], &|value| (0.0..=1.0).contains(value)),
            ("usual", &self.usual.to_vec(), &positive),
            ("losses", &self.losses.to_vec(), &positive),
            ("first", &vec![self.first[0], self.first[2]], &positive),
            ("first", &vec![self.first[1]], &number),
            ("sampled_s", &vec![self.sampled_s], &|value| (0.0..=60.0 * grid::DAY as f64).contains(value)),
            ("expert_errors", &self.expert_errors, &positive),
            ("exponential", &self.exponential.iter().flatten().copied().collect(), &of_series),
            ("products", &self.products, &number),
            ("came", &self.came, &number),
        ] {
            if let Some(value) = values.iter().find(|value| !valid(value)) {
                return refuse(field, *value);
            }
        }
        Ok(())
    }
}
