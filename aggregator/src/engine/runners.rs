//! The runners of an engine whose jobs span hosts: one task of the runtime per job. In: orders, over a channel that
//! keeps only the newest. Out: runners, started; they send their reports themselves. Called by `exec`, `slurm` and `spark`.

use std::collections::BTreeMap;

use gleaner_types::id::{HostId, JobId};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::interface::Job;

/// Most hosts of a job.
pub(super) const MOST_HOSTS: usize = 20_000;

/// What the controller wants of a job now.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Orders {
    /// Slots per host, dedicated ones included.
    pub(super) slots: BTreeMap<HostId, u32>,
    /// The epoch in which the aggregator commands.
    pub(super) epoch: u64,
    /// The job is over.
    pub(super) cancelled: bool,
    /// The aggregator ends; the job goes on by itself.
    pub(super) stopping: bool,
}

#[derive(Debug)]
struct Running {
    orders: watch::Sender<Orders>,
    task: JoinHandle<()>,
}

/// The jobs of one engine.
#[derive(Debug, Default)]
pub(super) struct Runners {
    running: BTreeMap<JobId, Running>,
    /// Runners of cancelled jobs, until their batch systems know.
    cancelled: Vec<(JobId, Running)>,
}

impl Runners {
    /// Passes slots on. With the first ones of a job `start` makes its runner, unless the job cannot be run.
    pub(super) fn set_slots(
        &mut self,
        job: &Job<'_>,
        slots: BTreeMap<HostId, u32>,
        start: impl FnOnce(watch::Receiver<Orders>) -> Option<JoinHandle<()>>,
    ) {
        self.running.retain(|_, running| !running.task.is_finished());
        let id = &job.spec.id;
        if let Some(running) = self.running.get(id) {
            running.orders.send_modify(|orders| orders.slots = slots);
        } else if !slots.is_empty() {
            let orders = Orders { slots, epoch: job.epoch, ..Orders::default() };
            if let Some(running) = begin(orders, start) {
                self.running.insert(id.clone(), running);
            }
        }
    }

    /// Whether a job has a runner that goes on, and be it to let the batch system know that the job is over.
    pub(super) fn is_running(&self, job: &JobId) -> bool {
        let cancelled = self.cancelled.iter().filter(|(cancelled, _)| cancelled == job).map(|(_, running)| running);
        self.running.get(job).into_iter().chain(cancelled).any(|running| !running.task.is_finished())
    }

    /// Has the batch system know that a job is over. Where the job had no slots here it may run on from before a restart, or
    /// was begun by another aggregator: `start` makes a runner for that alone.
    pub(super) fn cancel(
        &mut self,
        job: &Job<'_>,
        start: impl FnOnce(watch::Receiver<Orders>) -> Option<JoinHandle<()>>,
    ) {
        self.cancelled.retain(|(_, running)| !running.task.is_finished());
        let running = match self.running.remove(&job.spec.id) {
            Some(running) => {
                running.orders.send_modify(|orders| orders.cancelled = true);
                Some(running)
            }
            None => begin(Orders { cancelled: true, epoch: job.epoch, ..Orders::default() }, start),
        };
        self.cancelled.extend(running.map(|running| (job.spec.id.clone(), running)));
    }

    /// Orders every runner to stop: the aggregator ends.
    pub(super) fn stop(&mut self) -> Vec<JoinHandle<()>> {
        for running in self.running.values() {
            running.orders.send_modify(|orders| orders.stopping = true);
        }
        let running = std::mem::take(&mut self.running).into_values();
        let cancelled = std::mem::take(&mut self.cancelled).into_iter().map(|(_, running)| running);
        running.chain(cancelled).map(|running| running.task).collect()
    }
}

fn begin(orders: Orders, start: impl FnOnce(watch::Receiver<Orders>) -> Option<JoinHandle<()>>) -> Option<Running> {
    let (orders, receiver) = watch::channel(orders);
    Some(Running { orders, task: start(receiver)? })
}
