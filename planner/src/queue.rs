//! How many tasks each array of a batch system's queue may run at once, and in which order, by credit (CANAL, Wei §5.3).
//! In: the arrays as the batch system shows them, its CPUs, and the time. Out: for each array its place, its bound where it
//! needs one, and why. Called by engine `slurm`, whose batch system starts the tasks.
//!
//! An array has what its running tasks have: their CPUs. The account of fair sharing beside what really happens is that of
//! [`crate::pool`]. Unlike hosts, tasks come and go by themselves, and how much is left of an array is known by its tasks. So
//! the order alone decides: the array that would be done first under fair sharing goes first, with all it can use (the
//! earliest deadline first, which meets all deadlines that can be met). Only an array that could not be done in time even with
//! all it can use, because its tasks or its user's bound are few, has a part before its turn.
//!
//! Memory, disk and network do not count; where tasks of two arrays differ much in those, CPUs alone share them badly.

mod features;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::UserName;
use serde::{Deserialize, Serialize};

use crate::pool::{Claim, Ledger, Standing, UserShares};
pub use features::{Constraint, FeaturedNode, most_at_once, unusable};
pub use tasks::{Starts, Stuck, left_cpu_s, task_s};

/// For how long turns are made. Chosen: Slurm starts a task within some seconds, and looks are two seconds apart.
const EPOCH_S: f64 = 10.0;
/// Longest time between two looks that counts, in seconds. Chosen, as for hosts.
const LONGEST_STEP_S: f64 = 120.0;
/// Most places that an array can move forward from one look to the next.
const MOST_ROUNDS: usize = 50;
/// Where fair completions are not known, beyond [`crate::pool`]'s most, arrays come after all others, the one that is furthest
/// behind its fair share first.
const NOT_RANKED_S: f64 = 1e12;

/// An array that has tasks left, as the batch system shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Whose it is. All arrays of a user together have the user's fair share; those without one are one user's.
    pub user: Option<UserName>,
    /// CPUs of each task.
    pub cpus: u32,
    /// Tasks that would begin if there were CPUs.
    pub waiting: u32,
    /// Tasks that run.
    pub running: u32,
    /// All that is left of it, by the best estimate, in CPU seconds.
    pub left_cpu_s: f64,
    /// Wall time of a task, likewise, in seconds.
    pub task_s: f64,
    /// Tasks that its user lets run at once; `None` without a bound.
    pub own_bound: Option<u32>,
}

impl Array {
    /// Tasks that could run now.
    #[must_use]
    pub fn useful(&self) -> u32 {
        self.waiting.saturating_add(self.running).min(self.own_bound.unwrap_or(u32::MAX))
    }

    fn cpus_of(&self, tasks: u32) -> f64 {
        f64::from(tasks) * f64::from(self.cpus.max(1))
    }

    /// Tasks that it cannot do without in the coming epoch, if it is to be done no more than a task and an epoch after so many
    /// seconds.
    fn must(&self, end_s: f64) -> u32 {
        let now_cpu_s = self.left_cpu_s - self.cpus_of(self.useful()) * end_s.max(0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let tasks = (now_cpu_s / EPOCH_S / self.cpus_of(1)).ceil().max(0.0) as u32;
        tasks.min(self.useful())
    }
}

/// What an array may do until the next look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Its place in the order in which free CPUs are given, from 0.
    pub place: usize,
    /// Tasks that may run at once; `None` where it needs no bound but its own. It may be 0.
    pub at_once: Option<u32>,
    /// How it stands beside fair sharing, in CPUs and CPU seconds.
    pub standing: Standing,
}

/// Who has had how much of a queue's CPUs. Arrays go by numbers that rise with their submission.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueAccount {
    ledger: Ledger,
    /// The order of the last look.
    order: Vec<u64>,
}

impl QueueAccount {
    /// Books the time since the last look, takes what the queue shows now, and says what each array may do. Of arrays that
    /// are missing all tasks have ended. `cpus` is what the tasks of all arrays together can have; they are fairly divided by the
    /// weights of users.
    pub fn turns(
        &mut self,
        arrays: &BTreeMap<u64, Array>,
        cpus: u32,
        users: &UserShares,
        now_s: f64,
    ) -> BTreeMap<u64, Turn> {
        self.ledger.set_users(users);
        self.book(arrays, now_s);
        self.ledger.set_capacity(f64::from(cpus));
        let standings = self.ledger.standings();
        self.follow(arrays, &standings);
        let mut free = cpus;
        let mut tasks: BTreeMap<u64, u32> = BTreeMap::new();
        // First what arrays cannot do without, then all they can use.
        for only_must in [true, false] {
            for number in &self.order {
                let (Some(array), Some(standing)) = (arrays.get(number), standings.get(number)) else { continue };
                let most = match (only_must, standing.fair_completion_in_s) {
                    (true, Some(end_s)) => array.must(end_s),
                    (true, None) => 0,
                    (false, _) => array.useful(),
                };
                let given = tasks.entry(*number).or_default();
                let more = most.saturating_sub(*given).min(free / array.cpus.max(1));
                *given += more;
                free -= more * array.cpus.max(1);
            }
        }
        let turn = |(place, number): (usize, &u64)| {
            let (array, standing, given) = (arrays.get(number)?, standings.get(number)?, *tasks.get(number)?);
            Some((*number, Turn { place, at_once: (given < array.useful()).then_some(given), standing: *standing }))
        };
        self.order.iter().enumerate().filter_map(turn).collect()
    }

    /// Nobody looked until this time, and what ran meanwhile counts for nobody.
    pub fn skip(&mut self, now_s: f64) {
        self.ledger.skip(now_s);
    }

    /// Arrays that have ended have an account still: others have a right to what these borrowed.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.ledger.accounts().count() > self.ledger.jobs().count()
    }

    fn book(&mut self, arrays: &BTreeMap<u64, Array>, now_s: f64) {
        let ledger = &mut self.ledger;
        // After a leap of the clock, or a long absence, nobody knows what ran meanwhile.
        if now_s - ledger.at_s() > LONGEST_STEP_S {
            ledger.skip(now_s);
        } else {
            // No more is shared than what really ran: a batch system always leaves some CPUs idle between two tasks, and nobody
            // could give that back.
            ledger.set_capacity(ledger.held());
            ledger.pass(now_s);
        }
        let gone: Vec<u64> = ledger.jobs().filter(|number| !arrays.contains_key(number)).collect();
        gone.into_iter().for_each(|number| ledger.end(number));
        for (number, array) in arrays {
            let most = array.cpus_of(array.useful());
            ledger.claim(*number, Claim { weight: 1.0, least: 0.0, most, change_s: array.task_s });
            ledger.belongs(*number, array.user.as_ref());
            ledger.hold(*number, array.cpus_of(array.running), 0.0);
            ledger.left(*number, array.left_cpu_s);
        }
    }

    /// The order by fair completions, as far as they differ by more than estimates do from one look to the next.
    fn follow(&mut self, arrays: &BTreeMap<u64, Array>, standings: &BTreeMap<u64, Standing>) {
        self.order.retain(|number| standings.contains_key(number));
        let kept: BTreeSet<u64> = self.order.iter().copied().collect();
        self.order.extend(standings.keys().filter(|number| !kept.contains(number)));
        let place = |number: &u64| {
            let standing = standings.get(number);
            let not_ranked = || NOT_RANKED_S + standing.map_or(0.0, |standing| standing.credit);
            Place {
                number: *number,
                end_s: standing.and_then(|standing| standing.fair_completion_in_s).unwrap_or_else(not_ranked),
                task_s: arrays.get(number).map_or(0.0, |array| array.task_s),
                is_new: !kept.contains(number),
            }
        };
        let mut places: Vec<Place> = self.order.iter().map(place).collect();
        for _ in 0..MOST_ROUNDS {
            let mut changed = false;
            for at in 1..places.len() {
                let (first, second) = (&places[at - 1], &places[at]);
                let margin_s = if second.is_new { 0.0 } else { EPOCH_S + first.task_s.max(second.task_s) };
                if second.end_s + margin_s < first.end_s {
                    places.swap(at - 1, at);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        self.order = places.into_iter().map(|place| place.number).collect();
    }
}

/// An array in the order.
struct Place {
    number: u64,
    /// Seconds until its fair completion.
    end_s: f64,
    task_s: f64,
    /// It has no place to keep.
    is_new: bool,
}

#[cfg(test)]
mod tests;
