//! How many tasks each array of a batch system's queue may run at once, and in which order, by credit (CANAL, Wei §5.3).
//! In: the arrays as the batch system shows them, its CPUs, and the time. Out: for each array its place, its bound where it
//! needs one, and why. Called by engine `slurm`, whose batch system starts the tasks.
//!
//! An array has what its running tasks have: their CPUs. The account is that of [`crate::pool`], so memory, disk and network
//! do not count; where tasks of two arrays differ much in those, CPUs alone share them badly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pool::{Claim, Ledger, Standing};

/// For how long bounds are made: what an array cannot do without is counted over it. Chosen: some ten looks at a queue.
const EPOCH_S: f64 = 10.0;
/// Longest time between two looks that counts, in seconds. Chosen, as for hosts.
const LONGEST_STEP_S: f64 = 120.0;

/// An array that has tasks left, as the batch system shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array {
    /// Its fair share, relative to the others'; more than 0.
    pub weight: f64,
    /// CPUs of each task.
    pub cpus: u32,
    /// Tasks that have not begun.
    pub waiting: u32,
    /// Tasks that run.
    pub running: u32,
    /// The part of it that is done, in 0..=1, running tasks in part.
    pub done: f64,
    /// Tasks that its user lets run at once; `None` without a bound.
    pub own_bound: Option<u32>,
    /// Mean wall time of its finished tasks, in seconds; 0 before there are any.
    pub mean_task_s: f64,
}

impl Array {
    /// Tasks that could run now.
    fn useful(&self) -> u32 {
        self.waiting.saturating_add(self.running).min(self.own_bound.unwrap_or(u32::MAX))
    }

    fn cpus_of(&self, tasks: u32) -> f64 {
        f64::from(tasks) * f64::from(self.cpus.max(1))
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
}

impl QueueAccount {
    /// Books the time since the last look, takes what the queue shows now, and says what each array may do. Of arrays that
    /// are missing all tasks have ended. `cpus` is what the tasks of all arrays together can have.
    pub fn turns(&mut self, arrays: &BTreeMap<u64, Array>, cpus: u32, now_s: f64) -> BTreeMap<u64, Turn> {
        let ledger = &mut self.ledger;
        // After a leap of the clock, or a long absence, nobody knows what ran meanwhile.
        if now_s - ledger.at_s() > LONGEST_STEP_S {
            ledger.skip(now_s)
        } else {
            ledger.pass(now_s)
        }
        let gone: Vec<u64> = ledger.jobs().filter(|number| !arrays.contains_key(number)).collect();
        gone.into_iter().for_each(|number| ledger.end(number));
        ledger.set_capacity(f64::from(cpus));
        for (number, array) in arrays {
            let most = array.cpus_of(array.useful());
            ledger.claim(*number, Claim { weight: array.weight, least: 0.0, most, change_s: array.mean_task_s });
            ledger.hold(*number, array.cpus_of(array.running), 0.0);
            ledger.progressed(*number, array.done);
        }
        let outlook = ledger.outlook(EPOCH_S);
        let mut order: Vec<(u64, &Array, Standing, u32)> = arrays
            .iter()
            .filter_map(|(number, array)| {
                outlook.get(number).map(|(standing, cpus)| (*number, array, *standing, *cpus))
            })
            .collect();
        // Who has less than it may have comes first, then the one that would be done first.
        let is_short = |array: &Array, cpus: u32| array.cpus_of(array.running) < f64::from(cpus);
        let end_s = |standing: &Standing| standing.fair_completion_in_s.unwrap_or(f64::INFINITY);
        order.sort_by(|a, b| {
            let short = is_short(b.1, b.3).cmp(&is_short(a.1, a.3));
            short.then(end_s(&a.2).total_cmp(&end_s(&b.2))).then(a.0.cmp(&b.0))
        });
        let whole = |array: &Array, cpus: u32| (cpus / array.cpus.max(1)).min(array.useful());
        let given: u32 = order.iter().map(|(_, array, _, cpus)| whole(array, *cpus) * array.cpus.max(1)).sum();
        // CPUs that are too few for a task of the one that was given them.
        let mut rest = cpus.saturating_sub(given);
        let turn = |(place, (number, array, standing, cpus)): (usize, (u64, &Array, Standing, u32))| {
            let tasks = whole(array, cpus);
            let more = (rest / array.cpus.max(1)).min(array.useful() - tasks);
            rest -= more * array.cpus.max(1);
            let at_once = (tasks + more < array.useful()).then_some(tasks + more);
            (number, Turn { place, at_once, standing })
        };
        order.into_iter().enumerate().map(turn).collect()
    }
}

#[cfg(test)]
mod tests;
