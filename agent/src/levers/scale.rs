//! Scales of weights. In: a weight as commands give it. Out: the number of an interface, and back. Called by the
//! levers.

use gleaner_types::command::Weight;

/// How the weights of a lever count.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The least number.
    pub least: u64,
    /// The greatest number.
    pub most: u64,
    /// The number of the normal weight.
    pub normal: u64,
}

impl Scale {
    /// The number of a weight.
    #[must_use]
    pub fn to_lever(self, weight: Weight) -> u64 {
        ((u64::from(weight.number()) * self.normal + 50) / 100).clamp(self.least, self.most)
    }

    /// The weight of a number.
    #[must_use]
    pub fn of_lever(self, number: u64) -> Option<Weight> {
        let weight = number.saturating_mul(100).saturating_add(self.normal / 2) / self.normal;
        // `cpu.weight` reads 0 while the group is in the idle class.
        Weight::new(u32::try_from(weight.clamp(1, 10_000)).ok()?).ok()
    }
}
