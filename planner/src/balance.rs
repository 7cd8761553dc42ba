//! Balanced configuration of several resources (BConf, dissertation chapter 4): every application gets just enough CPU,
//! memory and disk in each of its tiers to meet its response-time target. In: what was measured of applications over one
//! control interval. Out: the shares of the next. Called by [`crate::policy`] and the controller's `applications`, and by
//! [`crate::snapshot::balance`].
//!
//! Once a control interval a [`model`] of the application's performance is fitted to what was seen, the [`scaler`] bounds
//! how far each share may move, [`mpc`] finds the cheapest shares within the bounds that meet the target, and
//! [`arbitration`] decides who gets what where the requests of several applications exceed a host. [`application`] puts
//! these together, and [`elsewhere`] gives back what changes nothing.
//!
//! Two scales are kept apart by types: a [`Share`] is a part of a host's capacity, w in the paper; a [`NormalShare`] is
//! the same on a scale on which different resources can be compared, w̄.

pub mod application;
pub mod arbitration;
pub mod constants;
pub mod elsewhere;
pub mod estimator;
pub mod least_squares;
pub mod model;
pub mod mpc;
pub mod request;
pub mod scaler;
pub mod surge;

pub use gleaner_types::application::Resource;
use serde::{Deserialize, Serialize};

/// Margin g_r of Eq. 4.8. The paper gives those of CPU and disk; those of memory and network are chosen: memory is moved
/// slowly because taking it costs a reclaim, and the network behaves like a disk.
#[must_use]
pub const fn margin(resource: Resource) -> f64 {
    match resource {
        Resource::Cpu | Resource::Memory => 0.05,
        Resource::Disk | Resource::Network => 0.1,
    }
}

/// A part of a host's capacity of a resource: w, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(f64);

impl Share {
    /// A part of the whole, clamped to 0..=1; what is not finite is 0.
    #[must_use]
    pub const fn clamped(part: f64) -> Self {
        Self(if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 })
    }

    /// The same amount as a part of another whole, of which this one is `factor` times as much: more than 1 where that is too
    /// small for it.
    #[must_use]
    pub const fn rescaled(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }

    /// The part.
    #[must_use]
    pub const fn part(self) -> f64 {
        self.0
    }
}

/// A share on the scale on which resources are compared: w̄.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NormalShare(f64);

impl NormalShare {
    /// A share; what is negative or not finite is 0.
    #[must_use]
    pub const fn clamped(value: f64) -> Self {
        Self(if value.is_finite() && value > 0.0 { value } else { 0.0 })
    }

    /// The value.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }
}

/// What a share of 1 on the scale of comparison is of a host's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Norm(f64);

/// Multiple of the average entitlement in a [`Norm`]. Chosen: an application that is entitled to more than half of a
/// resource in the mean is compared by its entitlement, the others by the capacity.
const ENTITLEMENT_MULTIPLE: f64 = 2.0;

impl Norm {
    /// "The larger one between the total shared capacity of resource r and the same multiple of its average entitlement"
    /// (§4.4).
    #[must_use]
    pub fn of(average: Share) -> Self {
        Self((ENTITLEMENT_MULTIPLE * average.0).max(1.0))
    }

    /// w̄ of w.
    #[must_use]
    pub fn normal(self, share: Share) -> NormalShare {
        NormalShare::clamped(share.0 / self.0)
    }

    /// w of w̄.
    #[must_use]
    pub fn share(self, normal: NormalShare) -> Share {
        Share::clamped(normal.0 * self.0)
    }
}

impl Default for Norm {
    fn default() -> Self {
        Self(1.0)
    }
}
