//! What the machine of one process leaves to that of the next. In: a machine's postures, their standing, and times. Out: the
//! same, checked, and what of it still counts. The agent keeps it in a file of its state folder.

use std::time::Duration;

use gleaner_types::harm::HarmInterval;
use serde::{Deserialize, Serialize};

use super::learnt::{FORGET, Known};
use super::posture::Posture;

/// Most postures of which something is remembered. Chosen: a host of four thousand million CPUs has no more.
const MOST: usize = 64;

/// What was learnt, by a clock that the machine which takes it up goes on with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// The posture that was in force. One that was tried after hold and had not kept to the budget yet counts as hold.
    pub posture: Posture,
    /// Since when.
    pub since: Duration,
    /// When it was last looked at: the last trial, or the last change.
    pub at: Duration,
    /// Times the volunteer was held since a posture last kept to the budget.
    pub holds: u32,
    /// How postures did.
    pub learnt: Vec<(Posture, Known)>,
}

/// Nothing that a machine can have left on a host with so many CPUs until now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotRemembered {
    /// Too long a list, or a posture twice.
    #[error("it has {0} postures, of at most {MOST} different ones")]
    Postures(usize),
    /// A posture that no such host has.
    #[error("no host with so many CPUs has the posture `{0}`")]
    Posture(Posture),
    /// A time to come.
    #[error("it holds a time that is still to come")]
    Future,
    /// A number that measures nothing.
    #[error("its harm or harvest of the posture `{0}` is no figure")]
    Figure(Posture),
}

impl Remembered {
    /// Checks what was stored: nothing of it is used otherwise.
    ///
    /// # Errors
    /// [`NotRemembered`] with the first thing that is wrong.
    pub fn check(&self, cpus: u32, now: Duration) -> Result<(), NotRemembered> {
        let mut postures: Vec<Posture> = self.learnt.iter().map(|(posture, _)| *posture).collect();
        postures.sort_unstable();
        postures.dedup();
        if postures.len() != self.learnt.len() || postures.len() > MOST {
            return Err(NotRemembered::Postures(self.learnt.len()));
        }
        let possible = |posture: Posture| match posture {
            Posture::Share { percent } => (1..100).contains(&percent),
            Posture::Spare { cpus: spare } => (1..cpus).contains(&spare),
            Posture::Open | Posture::Points | Posture::Hold => true,
        };
        if let Some(posture) = postures.into_iter().chain([self.posture]).find(|posture| !possible(*posture)) {
            return Err(NotRemembered::Posture(posture));
        }
        if self.learnt.iter().map(|(_, known)| known.at).chain([self.since, self.at]).any(|at| at > now) {
            return Err(NotRemembered::Future);
        }
        let is_figure = |known: &Known| {
            let HarmInterval { low_percent, mean_percent, high_percent, trials } = known.harm;
            HarmInterval::new(mean_percent, low_percent, high_percent, trials).is_ok()
                && known.harvest_cores.is_finite()
                && known.harvest_cores >= 0.0
        };
        let bad = self.learnt.iter().find(|(_, known)| !is_figure(known));
        bad.map_or(Ok(()), |(posture, _)| Err(NotRemembered::Figure(*posture)))
    }

    /// Its posture was in force too long ago to say anything.
    pub(super) fn is_stale(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) >= FORGET
    }
}
