//! What a controller of one resource is shown, and what it answers.
//! Data only: [`crate::policy`] shows and takes it, [`stfc`](super::stfc) and the baselines of the experiments answer.

use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

/// What was measured over one control interval, and what may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// What the service was allowed to use.
    pub allocation: CoreShare,
    /// Mean response time in milliseconds; `None` when nothing was answered or the source was silent.
    pub response_ms: Option<f64>,
    /// Part of the allocation that was used.
    pub utilisation: Option<Fraction>,
    /// Mean response time that is wanted, in milliseconds.
    pub target_ms: f64,
    /// Never less than this.
    pub floor: CoreShare,
    /// Never more than this; it wins over the floor.
    pub ceiling: CoreShare,
}

/// Chooses the allocation of the next interval.
pub trait SingleResource {
    /// The next allocation. Without the measurement that the controller needs, the present one within the bounds.
    fn next(&mut self, observed: &Observed) -> CoreShare;
}

impl Observed {
    /// Response time over its target. `None` when it is missing, or no time at all.
    #[must_use]
    pub fn relative_response(&self) -> Option<f64> {
        let relative = self.response_ms? / self.target_ms;
        (self.target_ms > 0.0 && relative.is_finite() && relative >= 0.0).then_some(relative)
    }

    /// e(k) of Eq. 3.1, (r − y)/r for y up to 2r and −1 beyond: from −1 (far too slow) to 1 (immediate).
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        self.relative_response().map(|relative| (1.0 - relative).max(-1.0))
    }

    /// CPU that was used, in percent of one core.
    #[must_use]
    pub fn used_percent(&self) -> Option<f64> {
        Some(self.allocation.percent() * self.utilisation?.value().min(1.0))
    }

    /// `wanted` percent of one core within the bounds; what is no number leaves the allocation as it is.
    #[must_use]
    pub fn bounded(&self, wanted: f64) -> CoreShare {
        let wanted = CoreShare::new(wanted.max(0.0)).unwrap_or(self.allocation);
        wanted.max(self.floor).min(self.ceiling)
    }

    /// The present allocation within the bounds.
    #[must_use]
    pub fn hold(&self) -> CoreShare {
        self.bounded(self.allocation.percent())
    }
}

/// A controller by its name, and what makes one that knows nothing yet.
pub type NamedController = (&'static str, fn() -> Box<dyn SingleResource>);
