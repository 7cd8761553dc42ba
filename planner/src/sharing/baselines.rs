//! Policies to compare with: first in first out, shortest remaining job first (SRJF), and delay scheduling on DRF. They fill
//! a node with tasks of one job after the other; a task whose input is near is preferred, as by every scheduler (§5.5.1).
//! In: a cluster's state. Out: what to start. Called by [`engine`](super::engine), for `plan share` and the reproductions.

use std::cmp::Reverse;

use super::drf::{by_share, entry, ordered};
use super::engine::{Policy, State};
use super::tasks::Locality;
use super::weights::Weights;

/// Jobs in the order of their arrival.
#[derive(Debug, Default, Clone, Copy)]
pub struct Fifo;

/// Jobs in the order of the work they have left: resources × time in parts of the cluster, as in Tetris.
#[derive(Debug, Default, Clone, Copy)]
pub struct Srjf;

/// Fills each node with tasks of the first job that fits, by these keys.
pub(super) fn fill(state: &mut State<'_>, key: impl Fn(&State<'_>, usize) -> f64) {
    let mut jobs: Vec<(u64, usize)> = state
        .present()
        .iter()
        .filter(|&&job| state.ready(job).is_some())
        .map(|&job| (ordered(key(state, job)), job))
        .collect();
    jobs.sort_unstable();
    for node in state.take_fresh() {
        for &(_, job) in &jobs {
            while state.start(job, node) {}
        }
    }
}

impl Policy for Fifo {
    fn schedule(&mut self, state: &mut State<'_>) {
        fill(state, |state, job| state.workload.jobs()[job].release_s);
    }
}

impl Policy for Srjf {
    fn schedule(&mut self, state: &mut State<'_>) {
        fill(state, super::tetris::remaining);
    }
}

/// How long a job waits for a node that holds input of its tasks, and then for a rack. Zaharia and others (EuroSys 2010,
/// §5) use 5 s for both.
const DELAYS_S: [f64; 2] = [5.0, 5.0];

/// Delay scheduling on DRF: a node is offered to the job with the smallest dominant share; a job without a task whose input
/// is there is passed over until it has waited long enough.
#[derive(Debug, Default, Clone)]
pub struct Delay {
    /// Since when each job is passed over.
    since_s: Vec<Option<f64>>,
    wake_s: Option<f64>,
}

impl Delay {
    /// Whether the job takes a task in such a place now; else it begins to wait, or goes on.
    fn takes(&mut self, job: usize, locality: Locality, now_s: f64) -> bool {
        let wait_s = match locality {
            Locality::Node => return true,
            Locality::Rack => DELAYS_S[0],
            Locality::OffRack => DELAYS_S[0] + DELAYS_S[1],
        };
        let since_s = *self.since_s[job].get_or_insert(now_s);
        let until_s = since_s + wait_s;
        if now_s >= until_s {
            return true;
        }
        self.wake_s = Some(self.wake_s.map_or(until_s, |wake_s| wake_s.min(until_s)));
        false
    }

    /// A job that has got a local task waits for the next one from the beginning; one that has got another keeps its level.
    fn started(&mut self, job: usize, locality: Locality, now_s: f64) {
        match locality {
            Locality::Node => self.since_s[job] = None,
            Locality::Rack => self.since_s[job] = Some(now_s - DELAYS_S[0]),
            Locality::OffRack => {}
        }
    }

    /// Starts tasks on a node; whether a job was passed over.
    fn offer(&mut self, state: &mut State<'_>, weights: &Weights, node: usize) -> bool {
        let mut jobs = by_share(state, weights);
        let mut passed_over = false;
        while let Some(Reverse((_, job))) = jobs.pop() {
            let Some((locality, _)) = state.option(job, node) else { continue };
            if !self.takes(job, locality, state.now_s) {
                passed_over = true;
            } else if state.start(job, node) {
                self.started(job, locality, state.now_s);
                jobs.push(entry(state, weights, job));
            }
        }
        passed_over
    }
}

impl Policy for Delay {
    fn wake_s(&self) -> Option<f64> {
        self.wake_s
    }

    fn schedule(&mut self, state: &mut State<'_>) {
        self.since_s.resize(state.workload.jobs().len(), None);
        self.wake_s = None;
        let weights = state.weights();
        for node in state.take_fresh() {
            if self.offer(state, &weights, node) {
                state.ask_again(node);
            }
        }
    }
}
