//! What a cluster could do and did, summed over seconds in which it was full: the points of its I/O model (RHIC §4.3). In:
//! one second. Out: means. Called by the job that observes its cluster.

use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use crate::sizing::policy::Means;

/// Most that the busiest dedicated host's disk may have to do, relative to the mean, while load counts as balanced.
/// Chosen.
const BALANCED: f64 = 1.5;

/// Sums over seconds in which the cluster was full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Observed {
    pub(super) seconds: f64,
    pub(super) potential: f64,
    pub(super) actual: f64,
    pub(super) disk: f64,
    /// The busiest host's share of `disk`, summed likewise.
    pub(super) disk_most: f64,
    pub(super) disk_seconds: f64,
}

impl Observed {
    pub(super) fn add(&mut self, second: Self) {
        self.seconds += second.seconds;
        self.potential += second.potential;
        self.actual += second.actual;
        self.disk += second.disk;
        self.disk_most += second.disk_most;
        self.disk_seconds += second.disk_seconds;
    }

    fn mean(&self, sum: f64) -> CoreShare {
        CoreShare::clamped(if self.seconds > 0.0 { sum / self.seconds } else { 0.0 })
    }

    /// The dedicated hosts' disks had about equally much to do.
    pub(super) fn is_balanced(&self, hosts: usize) -> bool {
        // `disk` sums over hosts, `disk_most` has one of them per second.
        self.disk > 0.0 && self.disk_most * hosts as f64 <= BALANCED * self.disk
    }

    pub(super) fn means(&self) -> Means {
        Means { potential: self.mean(self.potential), actual: self.mean(self.actual), disk: self.disk() }
    }

    pub(super) fn disk(&self) -> Option<Fraction> {
        (self.disk_seconds > 0.0).then(|| Fraction::clamped(self.disk / self.disk_seconds))
    }
}
