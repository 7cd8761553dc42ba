//! What a policy is told of an application after a control interval, and what it answers.
//! In: nothing. Out: [`Observation`] and [`Request`]. Called by every policy, and by the controller's `applications` and
//! [`crate::snapshot::balance`], which make the one and take the other.

use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

use super::model::Prediction;
use super::mpc::Reach;
use super::scaler::{Load, error, in_use, load};
use super::{Resource, Share};

/// What became of shares that change nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GiveBack {
    /// None are given back.
    #[default]
    None,
    /// Some are: the bottleneck is elsewhere.
    Given,
    /// Those that were are asked for again.
    Restored,
}

/// One share of an application in the last control interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedShare {
    /// Of what.
    pub resource: Resource,
    /// The share in force: v.
    pub share: Share,
    /// The part of it that was used; `None` if that cannot be measured.
    #[serde(default)]
    pub utilisation: Option<Fraction>,
    /// Never less: m_r.
    #[serde(default)]
    pub floor: Share,
    /// Never more.
    #[serde(default = "whole")]
    pub ceiling: Share,
}

impl ObservedShare {
    /// What arbitration leaves of it.
    #[must_use]
    pub fn in_use(&self) -> Share {
        Share::clamped(in_use(self.resource, self.utilisation, self.share.part()))
    }
}

const fn whole() -> Share {
    Share::clamped(1.0)
}

/// What was seen of an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// Target of the mean response time, in milliseconds.
    pub target_ms: f64,
    /// Mean response time; `None` holds every share where it is, but for those that are used up.
    #[serde(default)]
    pub mean_ms: Option<f64>,
    /// Intervals in a row without a response time before this one: with any, it follows a gap.
    #[serde(default)]
    pub unanswered: u32,
    /// Miss rate of the last level cache, where counters tell.
    #[serde(default)]
    pub miss_rate: Option<Fraction>,
    /// Its shares, always the same ones in the same order.
    pub shares: Vec<ObservedShare>,
}

/// What an application asks for, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// w, one for each share seen.
    pub shares: Vec<Share>,
    /// ∂ȳ/∂w: performance that a whole host of each would bring.
    pub gains: Vec<f64>,
    /// e: negative is faster than the target. `None` when the response time is not known.
    pub error: Option<f64>,
    /// ȳ to expect with these shares.
    pub predicted: Option<f64>,
    /// Whether the target is within the bounds.
    pub reach: Option<Reach>,
    /// How loaded each share was.
    pub loads: Vec<Load>,
    /// How far each could move: parts of the host.
    pub bounds: Vec<(Share, Share)>,
    /// The model behind it.
    pub model: Option<Prediction>,
    /// What became of shares that change nothing.
    #[serde(default)]
    pub give_back: GiveBack,
}

/// What was last asked for of a share, and what more of it brought by the last request that knew. While nothing is known it is
/// held, so that a cut by contention does not last, and keeps its weight in arbitration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Held {
    /// What was asked for. More than 1 where its host has become too small for it.
    pub requested: Share,
    /// ∂ȳ/∂w.
    pub gain: f64,
}

impl Request {
    /// Without a response time, asks for what was asked for `last`, or for more of a share that is used up. `seen` and `last` are
    /// in the order of the shares; before the first request `last` is empty, and nothing changes.
    pub fn hold_to(&mut self, seen: &[ObservedShare], last: &[Held]) {
        if self.error.is_some() {
            return;
        }
        for (((asked, gain), seen), last) in self.shares.iter_mut().zip(&mut self.gains).zip(seen).zip(last) {
            let grown = if *asked > seen.share { asked.part() } else { 0.0 };
            *asked = Share::clamped(last.requested.part().max(grown));
            *gain = gain.max(last.gain);
        }
    }

    /// What a policy without a model of the application asks for: it may go anywhere between floors and ceilings.
    #[must_use]
    pub fn without_model(observation: &Observation, shares: Vec<Share>, gains: Vec<f64>) -> Self {
        Self {
            shares,
            gains,
            error: observation.mean_ms.map(|mean_ms| error(observation.target_ms, mean_ms)),
            predicted: None,
            reach: None,
            loads: observation.shares.iter().map(|share| load(share.utilisation)).collect(),
            bounds: observation.shares.iter().map(|share| (share.floor, share.ceiling)).collect(),
            model: None,
            give_back: GiveBack::None,
        }
    }
}
