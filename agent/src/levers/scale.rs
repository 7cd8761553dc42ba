//! Scales of weights. In: a weight as commands give it. Out: the number of an interface, and back.

use gleaner_types::command::Weight;

/// How the weights of a lever count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) least: u64,
    pub(super) most: u64,
    pub(super) normal: u64,
}

impl Scale {
    pub(super) fn to_lever(self, weight: Weight) -> u64 {
        ((u64::from(weight.number()) * self.normal + 50) / 100).clamp(self.least, self.most)
    }

    pub(super) fn of_lever(self, number: u64) -> Option<Weight> {
        let weight = number.saturating_mul(100).saturating_add(self.normal / 2) / self.normal;
        // `cpu.weight` reads 0 while the group is in the idle class.
        Weight::new(u32::try_from(weight.clamp(1, 10_000)).ok()?).ok()
    }
}
