//! Vectors of the four resources: demands of tasks, capacities of nodes.
//! Data only: everything in this folder counts with them.

use serde::{Deserialize, Serialize};

/// Part of a capacity by which sums of decimal demands may be off.
pub(super) const ROUNDING: f64 = 1e-9;

/// An amount of each resource. Units are the caller's, the same for nodes and tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// CPU, say in cores.
    pub cpu: f64,
    /// Memory, say in GB.
    pub memory: f64,
    /// Disk bandwidth, say in MB/s.
    pub disk: f64,
    /// Network bandwidth, say in Mb/s.
    pub network: f64,
}

impl Resources {
    /// Their names, in the order of [`Self::parts`].
    pub const NAMES: [&'static str; 4] = ["cpu", "memory", "disk", "network"];

    /// The four amounts.
    #[must_use]
    pub const fn parts(self) -> [f64; 4] {
        [self.cpu, self.memory, self.disk, self.network]
    }

    pub(super) fn from_parts([cpu, memory, disk, network]: [f64; 4]) -> Self {
        Self { cpu, memory, disk, network }
    }

    fn zip(self, other: Self, each: impl Fn(f64, f64) -> f64) -> Self {
        let (own, other) = (self.parts(), other.parts());
        Self::from_parts(std::array::from_fn(|index| each(own[index], other[index])))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    /// Each amount as a part of a capacity; 0 of a resource that is not there.
    #[must_use]
    pub fn over(self, capacity: Self) -> Self {
        self.zip(capacity, |amount, of| if of > 0.0 { amount / of } else { 0.0 })
    }

    /// Whether this demand fits into what is free of a capacity.
    #[must_use]
    pub fn fits(self, free: Self, capacity: Self) -> bool {
        let (own, free, capacity) = (self.parts(), free.parts(), capacity.parts());
        (0..4).all(|index| own[index] <= free[index] + ROUNDING * capacity[index])
    }

    /// The largest amount: of a demand in parts of the cluster, its dominant share.
    #[must_use]
    pub fn largest(self) -> f64 {
        self.parts().into_iter().fold(0.0, f64::max)
    }

    /// The sum of all but the network: of a demand in parts of a node, the work of a task (§5.3.4). The network is left
    /// out as in the size of a fragment (§5.4.1), because the cluster switch limits it and not the node.
    #[must_use]
    pub fn node_work(self) -> f64 {
        self.cpu + self.memory + self.disk
    }

    /// Σ of the products of the amounts: how well a demand fits the shape of what is free.
    #[must_use]
    pub fn dot(self, other: Self) -> f64 {
        self.zip(other, |a, b| a * b).parts().iter().sum()
    }
}
