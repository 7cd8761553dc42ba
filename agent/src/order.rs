//! What the agent's loop is asked to do. In: commands from the link, changed configs and the end from the daemon. Out:
//! the next order, for [`crate::host_loop`], which carries it out.
//!
//! There is no queue that a flood could fill. Commands are desired states, so of each target only the newest waits; the
//! end and a changed config wait beside them and are taken first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_types::command::{Command, Target};
use gleaner_types::report::MAX_WORKLOADS;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::trial_step::{TrialAnswer, TrialStep};

/// Most targets whose commands wait: all workloads there can be, and the volunteer.
const MOST_TARGETS: usize = MAX_WORKLOADS + 1;

/// What others ask of the loop.
#[derive(Debug)]
pub enum Order {
    /// A command of the aggregator.
    Command(Command),
    /// Work by a changed config, as far as a running agent can.
    Reload(Box<Config>),
    /// A step of a trial by an operator on this host.
    Trial(TrialOrder),
    /// Restore the host and end.
    Stop,
}

/// A step of a trial, and where its answer goes.
#[derive(Debug)]
pub struct TrialOrder {
    /// What is to be done.
    pub step: TrialStep,
    /// Who waits for the answer; nobody, where the connection has ended.
    pub answer: oneshot::Sender<TrialAnswer>,
}

/// The loop takes no orders any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

#[derive(Debug, Default)]
struct Waiting {
    stop: bool,
    reload: Option<Box<Config>>,
    /// One trial runs at a time, and waits for the answer to each step.
    trial: Option<TrialOrder>,
    commands: BTreeMap<Target, Command>,
    /// The targets of those, in the order in which they came.
    turns: VecDeque<Target>,
    /// Commands that were dropped: a newer one of the same target waited or took their place, or there was no room.
    superseded: u64,
    senders: usize,
    gone: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing between two changes can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives orders. The loop ends when the last one is dropped.
#[derive(Debug)]
pub struct OrderSender(Arc<Shared>);

/// Takes them.
#[derive(Debug)]
pub struct Orders(Arc<Shared>);

/// Both ends.
#[must_use]
pub fn orders() -> (OrderSender, Orders) {
    let shared = Arc::new(Shared::default());
    shared.lock().senders = 1;
    (OrderSender(Arc::clone(&shared)), Orders(shared))
}

impl OrderSender {
    fn order(&self, change: impl FnOnce(&mut Waiting)) -> Result<(), Gone> {
        let mut waiting = self.0.lock();
        if waiting.gone {
            return Err(Gone);
        }
        change(&mut waiting);
        drop(waiting);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Orders what a command says. Of each target only the newest waits; the older one needs no answer, because the newer
    /// one's says what is in force. Of more targets than a host has, the new one is dropped: it is renewed.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn command(&self, command: Command) -> Result<(), Gone> {
        self.order(|waiting| {
            let room = waiting.commands.len() < MOST_TARGETS;
            match waiting.commands.get_mut(&command.target) {
                Some(before) => {
                    waiting.superseded += 1;
                    if command.version >= before.version {
                        *before = command;
                    }
                }
                None if room => {
                    waiting.turns.push_back(command.target.clone());
                    waiting.commands.insert(command.target.clone(), command);
                }
                None => waiting.superseded += 1,
            }
        })
    }

    /// Orders to work by a changed config; the newest counts.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn reload(&self, config: Config) -> Result<(), Gone> {
        self.order(|waiting| waiting.reload = Some(Box::new(config)))
    }

    /// Orders a step of a trial; one that still waited is dropped, and nobody waits for its answer.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn trial(&self, step: TrialStep, answer: oneshot::Sender<TrialAnswer>) -> Result<(), Gone> {
        self.order(|waiting| waiting.trial = Some(TrialOrder { step, answer }))
    }

    /// Orders the end.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn stop(&self) -> Result<(), Gone> {
        self.order(|waiting| waiting.stop = true)
    }
}

impl Clone for OrderSender {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for OrderSender {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.changed.notify_one();
    }
}

impl Orders {
    /// The next order, or `None` after so long without one: the end first, then a changed config, a trial, commands. Where
    /// nobody is left to give orders, that is the end.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Option<Order> {
        let deadline = Instant::now().checked_add(timeout);
        let mut waiting = self.0.lock();
        loop {
            if waiting.stop {
                return Some(Order::Stop);
            }
            if let Some(config) = waiting.reload.take() {
                return Some(Order::Reload(config));
            }
            if let Some(trial) = waiting.trial.take() {
                return Some(Order::Trial(trial));
            }
            let turn = waiting.turns.pop_front();
            if let Some(command) = turn.and_then(|target| waiting.commands.remove(&target)) {
                return Some(Order::Command(command));
            }
            if waiting.senders == 0 {
                return Some(Order::Stop);
            }
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            (waiting, _) = self.0.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Commands that were never taken, because a newer one of the same target came first or there was no room.
    #[must_use]
    pub fn superseded(&self) -> u64 {
        self.0.lock().superseded
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.0.lock().gone = true;
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::command::{Desired, Version};
    use gleaner_types::id::WorkloadId;

    use super::*;

    fn command(target: Target, number: u64) -> Command {
        Command { target, version: Version { epoch: 1, number }, lease_ms: 1_000, desired: Desired::Stop }
    }

    fn workload(number: usize) -> Target {
        Target::Workload(WorkloadId::new(format!("w{number}")).unwrap())
    }

    fn numbers(orders: &Orders) -> Vec<u64> {
        let next = || match orders.next(Duration::ZERO) {
            Some(Order::Command(command)) => Some(command.version.number),
            None => None,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn of_each_target_the_newest_waits_in_the_order_of_the_first() {
        let (sender, orders) = orders();
        for (target, number) in [(workload(1), 1), (Target::Volunteer, 2), (workload(1), 4), (workload(1), 3)] {
            sender.command(command(target, number)).unwrap();
        }
        assert_eq!(numbers(&orders), [4, 2]);
        assert_eq!(orders.superseded(), 2);
    }

    #[test]
    fn a_flood_takes_no_more_room_than_a_host_has_targets_and_the_end_overtakes_it() {
        let (sender, orders) = orders();
        for number in 0..200_000 {
            sender.command(command(workload(number % 10_000), number as u64)).unwrap();
        }
        {
            let waiting = orders.0.lock();
            assert_eq!((waiting.commands.len(), waiting.turns.len()), (MOST_TARGETS, MOST_TARGETS));
        }
        sender.stop().unwrap();
        assert!(matches!(orders.next(Duration::ZERO), Some(Order::Stop)));
    }

    #[test]
    fn each_end_notices_that_the_other_is_gone() {
        let (sender, taker) = orders();
        let other = sender.clone();
        drop(sender);
        assert!(taker.next(Duration::ZERO).is_none(), "one is left");
        drop(other);
        assert!(matches!(taker.next(Duration::from_secs(60)), Some(Order::Stop)));
        let (sender, taker) = orders();
        drop(taker);
        assert_eq!(sender.command(command(Target::Volunteer, 1)), Err(Gone));
        assert_eq!(sender.stop(), Err(Gone));
    }

    #[test]
    fn an_order_wakes_who_waits() {
        let (sender, orders) = orders();
        let waiter = std::thread::spawn(move || orders.next(Duration::from_secs(60)));
        sender.command(command(Target::Volunteer, 7)).unwrap();
        assert!(matches!(waiter.join().unwrap(), Some(Order::Command(command)) if command.version.number == 7));
    }
}
