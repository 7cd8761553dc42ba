//! What waits to be sent. Reports wait in a bounded ring that drops the oldest and counts it; events wait
//! until the aggregator has them safely in its log; acknowledgements only live as long as the connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gleaner_types::command::Ack;
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::HostId;
use gleaner_types::report::HostReport;
use gleaner_types::task::{TaskAttempt, TaskState, TaskStatus};
use gleaner_types::time::Timestamp;
use gleaner_wire::Unknowns;
use tokio::sync::Notify;

/// Most events sent in one message.
const EVENTS_PER_MESSAGE: usize = 64;

/// Most states of tasks sent in one message.
const STATES_PER_MESSAGE: usize = 256;

/// Most states of tasks that wait.
const MOST_TASKS: usize = 8_192;

/// Most acknowledgements kept; a newer one of the same target replaces the older.
const MAX_ACKS: usize = 4_096;

/// Bounds of the outbox.
#[derive(Debug, Clone, Copy)]
pub struct OutboxLimits {
    /// Reports kept; of more, the oldest is dropped and counted.
    pub reports: usize,
    /// Events kept; of more, the oldest not yet acknowledged is dropped and counted.
    pub events: usize,
}

/// What waits to be sent, shared between the agent's loop and the link.
#[derive(Debug)]
pub struct Outbox {
    limits: OutboxLimits,
    host: HostId,
    incarnation: u64,
    waiting: Mutex<Waiting>,
    changed: Notify,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    reports: VecDeque<HostReport>,
    reports_dropped: u64,
    events: VecDeque<EventRecord>,
    events_dropped: u64,
    last_event: u64,
    /// Sequence number of the last event sent on this connection.
    events_sent: u64,
    acks: VecDeque<Ack>,
    /// The newest of each attempt; the runner of tasks bounds their number.
    tasks: BTreeMap<TaskAttempt, TaskStatus>,
    connected: bool,
    finished: bool,
    unknown: Unknowns,
}

/// What to send next.
#[derive(Debug, Default)]
pub struct Batch {
    /// The oldest report that waits.
    pub report: Option<HostReport>,
    /// Answers to commands.
    pub acks: Vec<Ack>,
    /// Events that were not sent on this connection.
    pub events: Vec<EventRecord>,
    /// How tasks are.
    pub tasks: Vec<TaskState>,
}

impl Batch {
    /// There is nothing to send.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.report.is_none() && self.acks.is_empty() && self.events.is_empty() && self.tasks.is_empty()
    }
}

/// How much waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Reports.
    pub reports: usize,
    /// Events that are not known to be in the aggregator's log.
    pub events: usize,
    /// Answers to commands.
    pub acks: usize,
    /// Events that found no room so far.
    pub events_dropped: u64,
    /// Reports that found no room so far.
    pub reports_dropped: u64,
    /// There is a connection.
    pub connected: bool,
    /// What the aggregator said that only a newer release knows.
    pub unknown: Unknowns,
}

impl Outbox {
    /// An empty outbox.
    #[must_use]
    pub fn new(limits: OutboxLimits, host: HostId, incarnation: u64) -> Self {
        Self { limits, host, incarnation, waiting: Mutex::default(), changed: Notify::new(), ended: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic elsewhere cannot leave the queues half-changed: no code between two changes can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports dropped so far.
    #[must_use]
    pub fn reports_dropped(&self) -> u64 {
        self.lock().reports_dropped
    }

    /// How much waits.
    #[must_use]
    pub fn queued(&self) -> Queued {
        let waiting = self.lock();
        Queued {
            reports: waiting.reports.len(),
            events: waiting.events.len(),
            acks: waiting.acks.len(),
            events_dropped: waiting.events_dropped,
            reports_dropped: waiting.reports_dropped,
            connected: waiting.connected,
            unknown: waiting.unknown,
        }
    }

    /// Queues a report. Says how many were dropped if this one had to displace others.
    pub fn report(&self, report: HostReport) {
        let mut waiting = self.lock();
        while waiting.reports.len() >= self.limits.reports {
            waiting.reports.pop_front();
            waiting.reports_dropped += 1;
        }
        waiting.reports.push_back(report);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Queues an event.
    pub fn event(&self, at: Timestamp, event: Event) {
        let mut waiting = self.lock();
        waiting.last_event += 1;
        let source =
            EventSource::Agent { host: self.host.clone(), incarnation: self.incarnation, sequence: waiting.last_event };
        if waiting.events.len() >= self.limits.events {
            waiting.events.pop_front();
            waiting.events_dropped += 1;
            if waiting.events_dropped.is_power_of_two() {
                tracing::warn!(dropped = waiting.events_dropped, "events dropped: the aggregator takes none");
            }
        }
        waiting.events.push_back(EventRecord { at, source, event });
        drop(waiting);
        self.changed.notify_one();
    }

    /// Queues an acknowledgement. It is dropped when there is no connection: the aggregator repeats every
    /// command on the next one.
    pub fn ack(&self, ack: Ack) {
        let mut waiting = self.lock();
        if !waiting.connected {
            return;
        }
        waiting.acks.retain(|waiting| waiting.target != ack.target);
        if waiting.acks.len() < MAX_ACKS {
            waiting.acks.push_back(ack);
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Queues how a task is. It is dropped when there is no connection: the next one begins with all states.
    pub fn task(&self, TaskState { attempt, status }: TaskState) {
        let mut waiting = self.lock();
        // Of too many, which only an aggregator that takes none has waiting, the rest is said by the next connection.
        if !waiting.connected || (waiting.tasks.len() >= MOST_TASKS && !waiting.tasks.contains_key(&attempt)) {
            return;
        }
        waiting.tasks.insert(attempt, status);
        drop(waiting);
        self.changed.notify_one();
    }

    /// A connection was welcomed; events up to `through` are in the log.
    pub fn connected(&self, through: u64) {
        let mut waiting = self.lock();
        waiting.connected = true;
        waiting.events_sent = through;
        drop(waiting);
        self.acknowledged(through);
        self.changed.notify_one();
    }

    /// The connection is lost.
    pub fn disconnected(&self) {
        let mut waiting = self.lock();
        waiting.connected = false;
        waiting.acks.clear();
        waiting.tasks.clear();
    }

    /// Events up to `through` are safely in the log.
    pub fn acknowledged(&self, through: u64) {
        tracing::debug!(incarnation = self.incarnation, through, "events are in the log");
        self.lock().events.retain(|event| sequence(event) > through);
    }

    /// Counts what a message held that only a newer release knows.
    pub(crate) fn not_understood(&self, unknown: Unknowns) {
        if unknown.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        waiting.unknown.add(unknown);
        let all = waiting.unknown.total();
        drop(waiting);
        if all.is_power_of_two() {
            tracing::warn!(all, last = ?unknown.last, "the aggregator is of a newer release: parts of messages are skipped");
        }
    }

    /// Nothing more will be queued.
    pub fn finish(&self) {
        self.lock().finished = true;
        self.ended.notify_one();
    }

    /// Waits for [`Outbox::finish`].
    pub(crate) async fn finished(&self) {
        while !self.lock().finished {
            self.ended.notified().await;
        }
    }

    /// Waits until everything queued has left and every event is acknowledged. Only used while the agent stops, so
    /// a poll is good enough.
    pub(crate) async fn drained(&self) {
        let drained =
            |w: &Waiting| w.reports.is_empty() && w.events.is_empty() && w.acks.is_empty() && w.tasks.is_empty();
        while !drained(&self.lock()) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Waits until there is something to send, and takes it. A report counts as sent once taken.
    pub(super) async fn next(&self) -> Batch {
        loop {
            let batch = self.take();
            if !batch.is_empty() {
                return batch;
            }
            self.changed.notified().await;
        }
    }

    /// What waits to be sent, at most one report. A report counts as sent once taken.
    #[must_use]
    pub fn take(&self) -> Batch {
        let mut waiting = self.lock();
        let sent = waiting.events_sent;
        let events: Vec<_> =
            waiting.events.iter().filter(|event| sequence(event) > sent).take(EVENTS_PER_MESSAGE).cloned().collect();
        if let Some(last) = events.last() {
            waiting.events_sent = sequence(last);
        }
        let mut tasks = Vec::new();
        while tasks.len() < STATES_PER_MESSAGE
            && let Some((attempt, status)) = waiting.tasks.pop_first()
        {
            tasks.push(TaskState { attempt, status });
        }
        Batch { report: waiting.reports.pop_front(), acks: waiting.acks.drain(..).collect(), events, tasks }
    }
}

fn sequence(record: &EventRecord) -> u64 {
    match &record.source {
        EventSource::Agent { sequence, .. } => *sequence,
        EventSource::Aggregator => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(events: usize) -> Outbox {
        Outbox::new(OutboxLimits { reports: 3, events }, HostId::new("h1").unwrap(), 1)
    }

    fn sequences(batch: &Batch) -> Vec<u64> {
        batch.events.iter().map(sequence).collect()
    }

    #[test]
    fn events_are_kept_until_acknowledged_and_resent_on_a_new_connection() {
        let outbox = outbox(10);
        for _ in 0..3 {
            outbox.event(Timestamp(1), Event::AggregatorStopped {});
        }
        outbox.connected(0);
        assert_eq!(sequences(&outbox.take()), [1, 2, 3]);
        assert!(outbox.take().events.is_empty(), "sent once per connection");
        outbox.acknowledged(1);
        outbox.disconnected();
        outbox.connected(0);
        assert_eq!(sequences(&outbox.take()), [2, 3], "what was not acknowledged comes again");
        outbox.disconnected();
        outbox.connected(3);
        assert!(outbox.take().events.is_empty(), "the welcome said they are in the log");
        assert!(outbox.lock().events.is_empty());
    }

    #[test]
    fn the_oldest_event_gives_way_when_nobody_takes_them() {
        let outbox = outbox(2);
        for _ in 0..5 {
            outbox.event(Timestamp(1), Event::AggregatorStopped {});
        }
        outbox.connected(0);
        assert_eq!(sequences(&outbox.take()), [4, 5]);
    }

    #[test]
    fn acknowledgements_do_not_outlive_their_connection() {
        use gleaner_types::command::{Outcome, Refusal, Target, Version};
        let ack = |number| Ack {
            target: Target::Volunteer,
            version: Version { epoch: 1, number },
            outcome: Outcome::Refused { reason: Refusal::Stale, detail: String::new() },
        };
        let outbox = outbox(2);
        outbox.ack(ack(1));
        assert!(outbox.take().acks.is_empty(), "nobody to send it to");
        outbox.connected(0);
        outbox.ack(ack(2));
        outbox.ack(ack(3));
        let versions: Vec<_> = outbox.take().acks.iter().map(|ack| ack.version.number).collect();
        assert_eq!(versions, [3], "the newest per target");
    }
}
