//! How far forecasts look back, and over what they are: whole hours, and their lengths in seconds. Data only.

use serde::{Deserialize, Serialize};

use super::history::HOUR_S;

/// Over what is forecast, in whole hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scale {
    /// How far back is looked.
    pub window_h: u32,
    /// How long the slot ahead is.
    pub slot_h: u32,
}

impl Scale {
    /// CHISim's: a week back, three hours ahead.
    pub const PAPER: Self = Self { window_h: 168, slot_h: 3 };

    /// Length of a slot.
    #[must_use]
    pub fn slot_s(self) -> f64 {
        f64::from(self.slot_h.max(1)) * HOUR_S
    }

    /// Slots that are looked back at.
    pub(super) fn slots(self) -> u32 {
        (self.window_h / self.slot_h.max(1)).max(1)
    }

    /// Their length together.
    pub(super) fn window_s(self) -> f64 {
        f64::from(self.slots()) * self.slot_s()
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::PAPER
    }
}
