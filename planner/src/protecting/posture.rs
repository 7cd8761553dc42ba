//! Ways to keep the volunteer's CPU use from the foreground, and their order on a host. In: the host's CPUs. Out: the
//! postures there are, loosest first.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Shares of the machine that the volunteer may be kept to, in percent. (Chosen.)
const SHARES: [u8; 3] = [75, 50, 25];
/// The part of each CPU that forced scheduling points take at most: a wake-up each millisecond. (Chosen, as a bound: in the
/// isolation matrix the volunteer's harvest with them could not be told from that without.)
const POINTS_COST: f64 = 0.005;

/// How the volunteer is held, beside the guard's own law.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Posture {
    /// By that law alone.
    #[default]
    Open,
    /// By that law, and every millisecond each CPU's scheduler has to choose anew who runs there.
    Points,
    /// It never has more than a part of the machine.
    Share {
        /// The part.
        percent: u8,
    },
    /// Some CPUs are kept free of it, so that a foreground's wake-up finds one.
    Spare {
        /// How many.
        cpus: u32,
    },
    /// It does not run.
    Hold,
}

impl Posture {
    /// CPUs kept free of it.
    #[must_use]
    pub fn spare_cpus(self) -> u32 {
        match self {
            Self::Spare { cpus } => cpus,
            _ => 0,
        }
    }

    /// The part of the machine that it may have at most, in percent.
    #[must_use]
    pub fn share_percent(self) -> u8 {
        match self {
            Self::Share { percent } => percent,
            Self::Hold => 0,
            Self::Open | Self::Points | Self::Spare { .. } => 100,
        }
    }

    /// Both protect by the same means.
    pub(super) fn is_of_the_kind_of(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl fmt::Display for Posture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("all that the guard's law allows"),
            Self::Points => f.write_str("all that the guard's law allows, with forced scheduling points"),
            Self::Share { percent } => write!(f, "at most {percent} % of the machine"),
            Self::Spare { cpus: 1 } => f.write_str("all CPUs but 1"),
            Self::Spare { cpus } => write!(f, "all CPUs but {cpus}"),
            Self::Hold => f.write_str("no CPU at all"),
        }
    }
}

/// What can be done on a host, besides a share of the machine and none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Means {
    /// CPUs can be kept free of the volunteer.
    pub spare: bool,
    /// Scheduling points can be forced, and are not forced anyway.
    pub points: bool,
}

/// The postures of a host, loosest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    cpus: u32,
    /// All but [`Posture::Hold`], by the room they leave; the first is [`Posture::Open`].
    running: Vec<Posture>,
}

impl Ladder {
    /// Of a host with so many CPUs on which this can be done.
    #[must_use]
    pub fn new(cpus: u32, means: Means) -> Self {
        let cpus = cpus.max(1);
        let mut running = vec![Posture::Open];
        running.extend(means.points.then_some(Posture::Points));
        running.extend(SHARES.map(|percent| Posture::Share { percent }));
        if means.spare && cpus > 1 {
            // Few CPUs to spare are tried one by one, many by doubling.
            let doubled = (0..32).map(|power| 1 << power).take_while(|spare| *spare < cpus - 1);
            running.extend(doubled.chain([cpus - 1]).map(|cpus| Posture::Spare { cpus }));
        }
        let mut ladder = Self { cpus, running };
        let mut running = std::mem::take(&mut ladder.running);
        // Stable: of two that leave the same room the share is the first.
        running.sort_by(|one, other| ladder.room(*other).total_cmp(&ladder.room(*one)));
        ladder.running = running;
        ladder
    }

    /// All but [`Posture::Hold`], loosest first.
    #[must_use]
    pub fn running(&self) -> &[Posture] {
        &self.running
    }

    /// CPU that a posture leaves the volunteer at most, in cores.
    #[must_use]
    pub fn room(&self, posture: Posture) -> f64 {
        match posture {
            Posture::Open => f64::from(self.cpus),
            Posture::Points => f64::from(self.cpus) * (1.0 - POINTS_COST),
            Posture::Share { percent } => f64::from(self.cpus) * f64::from(percent) / 100.0,
            Posture::Spare { cpus } => f64::from(self.cpus.saturating_sub(cpus)),
            Posture::Hold => 0.0,
        }
    }

    /// Those after a posture: with less room, or with as little by another means.
    pub(super) fn after(&self, posture: Posture) -> &[Posture] {
        let place = self.running.iter().position(|one| *one == posture);
        place.and_then(|place| self.running.get(place + 1..)).unwrap_or_default()
    }

    /// A posture, and those after it.
    pub(super) fn from(&self, posture: Posture) -> &[Posture] {
        let place = self.running.iter().position(|one| *one == posture);
        place.and_then(|place| self.running.get(place..)).unwrap_or_default()
    }

    /// The tightest posture in which the volunteer still runs.
    pub(super) fn tightest_running(&self) -> Posture {
        self.running.last().copied().unwrap_or(Posture::Open)
    }

    /// A posture, or where this host has none such the next that leaves no more room.
    pub(super) fn at_most(&self, posture: Posture) -> Posture {
        if self.running.contains(&posture) {
            return posture;
        }
        let room = self.room(posture);
        self.running.iter().copied().find(|one| self.room(*one) <= room).unwrap_or(Posture::Hold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPARE: Means = Means { spare: true, points: false };
    const ALL: Means = Means { spare: true, points: true };
    const NONE: Means = Means { spare: false, points: false };

    fn ladder(cpus: u32, means: Means) -> String {
        let short = |posture: &Posture| match posture {
            Posture::Open => "open".to_owned(),
            Posture::Points => "points".to_owned(),
            Posture::Share { percent } => format!("{percent}%"),
            Posture::Spare { cpus } => format!("-{cpus}"),
            Posture::Hold => "hold".to_owned(),
        };
        Ladder::new(cpus, means).running().iter().map(short).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn postures_are_ordered_by_the_room_they_leave() {
        assert_eq!(ladder(1, SPARE), "open 75% 50% 25%");
        assert_eq!(ladder(2, SPARE), "open 75% 50% -1 25%");
        assert_eq!(ladder(2, NONE), "open 75% 50% 25%");
        assert_eq!(ladder(4, SPARE), "open 75% -1 50% -2 25% -3");
        assert_eq!(ladder(64, SPARE), "open -1 -2 -4 -8 75% -16 50% -32 25% -63");
        assert_eq!(ladder(64, ALL), "open points -1 -2 -4 -8 75% -16 50% -32 25% -63");
        assert_eq!(ladder(1, ALL), "open points 75% 50% 25%");
        assert_eq!(ladder(0, SPARE), ladder(1, SPARE));
    }

    #[test]
    fn one_that_is_no_more_gives_way_to_the_next_tighter() {
        let two = Ladder::new(2, NONE);
        assert_eq!(two.at_most(Posture::Spare { cpus: 1 }), Posture::Share { percent: 50 });
        assert_eq!(two.at_most(Posture::Spare { cpus: 2 }), Posture::Hold);
        assert_eq!(two.at_most(Posture::Hold), Posture::Hold);
    }
}
