//! Why a posture was chosen. In: what the machine saw. Out: a sentence for people.

use std::fmt;

use gleaner_types::harm::HarmInterval;
use gleaner_types::id::WorkloadId;
use gleaner_types::text::duration;

use super::posture::Posture;

/// What made the machine choose.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// Nothing was measured yet.
    Begins,
    /// An earlier agent left what it had learnt.
    Resumed {
        /// The posture that was in force when that was stored.
        last: Posture,
    },
    /// The harm was surely above the budget.
    Over {
        /// The harm.
        harm: HarmInterval,
        /// The budget.
        budget_percent: f64,
        /// The workload whose own budget that is; `None` is all of them together.
        workload: Option<WorkloadId>,
        /// The posture chosen is one that kept to the budget before: CPUs that the volunteer used under it.
        returns: Option<f64>,
    },
    /// The harm was surely below the budget for a while.
    Within {
        /// The harm.
        harm: HarmInterval,
        /// The budget.
        budget_percent: f64,
    },
    /// No foreground used CPU for a while.
    NoForeground,
    /// The volunteer was held long enough to try again.
    HeldLongEnough {
        /// How long, in seconds.
        held_s: u64,
    },
    /// The host's CPUs or levers have changed.
    HostChanged,
}

/// A posture that gives way to another.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The posture before.
    pub from: Posture,
    /// The posture now.
    pub to: Posture,
    /// Why.
    pub cause: Cause,
}

/// The posture that is in force, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The posture.
    pub posture: Posture,
    /// Why.
    pub cause: Cause,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { posture, cause } = self;
        write!(f, "the volunteer has {posture}, because {cause}")
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, cause } = self;
        write!(f, "the volunteer has {to} (before: {from}), because {cause}")
    }
}

/// Completes "because …".
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begins => f.write_str("a volunteer begins so, before anything is measured"),
            Self::Resumed { last } => {
                write!(f, "the agent before this one learnt so much of this host (it ended with {last})")
            }
            Self::Over { harm, budget_percent, workload, returns } => {
                match workload {
                    Some(workload) => write!(f, "{workload} was {harm} slower")?,
                    None => write!(f, "the foreground was {harm} slower")?,
                }
                write!(f, " by {} trials, above the budget of {budget_percent} %", harm.trials)?;
                match returns {
                    Some(cores) => write!(f, "; this kept to it before, with {cores:.2} CPUs harvested"),
                    None => Ok(()),
                }
            }
            Self::Within { harm, budget_percent } => write!(
                f,
                "the foreground was {harm} slower by {} trials, below the budget of {budget_percent} %",
                harm.trials
            ),
            Self::NoForeground => f.write_str("no foreground used CPU"),
            Self::HeldLongEnough { held_s } => {
                write!(f, "it was held for {} and is tried again", duration(*held_s as f64))
            }
            Self::HostChanged => f.write_str("the host's CPUs or levers have changed"),
        }
    }
}
