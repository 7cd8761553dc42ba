//! The agent's queues of data to send. In: reports, events and acknowledgements of the agent's loop; states of tasks.
//! Out: batches for the link. Reports wait in a bounded ring that drops the oldest and counts it. Events wait until the
//! aggregator acknowledges that they are in its log. Acknowledgements last only as long as the connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gleaner_types::command::{Ack, Outcome, Refusal};
use gleaner_types::event::{Event, EventRecord, EventSource, LONGEST};
use gleaner_types::id::HostId;
use gleaner_types::report::HostReport;
use gleaner_types::task::{TaskAttempt, TaskState, TaskStatus};
use gleaner_types::text::shortened;
use gleaner_types::time::Timestamp;
use gleaner_wire::{GuestNames, Unknowns};
use tokio::sync::Notify;

/// Most events sent in one message.
const EVENTS_PER_MESSAGE: usize = 64;

/// Longest event, and longest result of a command, as JSON: with what is sent beside them they are within what an aggregator
/// takes. It ends the connection over a longer one, and a guest or a kernel chooses the texts in them.
const MOST_JSON: usize = LONGEST - 4_096;

/// Most states of tasks sent in one message.
const STATES_PER_MESSAGE: usize = 256;

/// Most states of tasks that wait.
const MOST_TASKS: usize = 8_192;

/// Most bytes of texts in what workloads are called. Chosen: a message is at most 4 MiB, and real names come nowhere near
/// this; what is left out is shown by its identifier.
const MOST_NAMES: usize = 1 << 20;

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
    /// What workloads are called, once that is known.
    guests: Option<GuestNames>,
    /// That was not sent on this connection.
    guests_due: bool,
    connected: bool,
    finished: Option<bool>,
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
    /// What workloads are called, all of them, where that is new on this connection.
    pub guests: Option<GuestNames>,
}

impl Batch {
    /// There is nothing to send.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        let nothing_new = self.report.is_none() && self.guests.is_none();
        nothing_new && self.acks.is_empty() && self.events.is_empty() && self.tasks.is_empty()
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

    /// Counts a report that cannot be sent on any connection.
    pub(super) fn report_dropped(&self) {
        self.lock().reports_dropped += 1;
    }

    /// Drops the events that wait, where nobody will ever take them.
    pub fn forget_events(&self) {
        self.lock().events.clear();
    }

    /// Queues an event, its texts cut where it would be longer than an aggregator takes.
    pub fn event(&self, at: Timestamp, event: Event) {
        let name = event.name();
        let Some(event) = shortened(event, MOST_JSON) else {
            self.lock().events_dropped += 1;
            tracing::error!(event = name, "an event is too long for every aggregator, and dropped");
            return;
        };
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

    /// Queues an acknowledgement, its texts cut where it would be longer than an aggregator takes. It is dropped when there is no connection: the aggregator repeats every
    /// command on the next one.
    pub fn ack(&self, mut ack: Ack) {
        ack.outcome = shortened(ack.outcome, MOST_JSON).unwrap_or_else(|| Outcome::Refused {
            reason: Refusal::Failed,
            detail: "the result is too long to be sent".to_owned(),
        });
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

    /// Takes what all workloads are called. Each connection begins with it.
    pub fn guests(&self, mut names: GuestNames) {
        let guests = &mut names.guests;
        let mut bytes = 0_usize;
        let fitting = guests.iter().position(|guest| {
            bytes += guest.text_bytes();
            bytes > MOST_NAMES
        });
        if let Some(fitting) = fitting {
            tracing::warn!(left_out = guests.len() - fitting, "names of workloads are too long to be sent together");
            guests.truncate(fitting);
        }
        let mut waiting = self.lock();
        waiting.guests = Some(names);
        waiting.guests_due = true;
        drop(waiting);
        self.changed.notify_one();
    }

    /// A connection was welcomed; events up to `through` are in the log.
    pub fn connected(&self, through: u64) {
        let mut waiting = self.lock();
        waiting.connected = true;
        waiting.events_sent = through;
        waiting.guests_due = true;
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
    pub fn finish(&self, put_back: bool) {
        self.lock().finished = Some(put_back);
        self.ended.notify_one();
    }

    /// Waits for [`Outbox::finish`]. Gives whether the host is put back.
    pub(crate) async fn finished(&self) -> bool {
        loop {
            let finished = self.lock().finished;
            if let Some(put_back) = finished {
                return put_back;
            }
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
        let guests_due = std::mem::take(&mut waiting.guests_due);
        let guests = waiting.guests.as_ref().filter(|_| guests_due).cloned();
        Batch { report: waiting.reports.pop_front(), acks: waiting.acks.drain(..).collect(), events, tasks, guests }
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
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use gleaner_types::command::{Outcome, Refusal, Target, Version};
    use gleaner_types::id::{JobId, WorkloadId};

    use super::*;

    fn outbox(events: usize) -> Outbox {
        Outbox::new(OutboxLimits { reports: 3, events }, HostId::new("h1").unwrap(), 1)
    }

    fn sequences(batch: &Batch) -> Vec<u64> {
        batch.events.iter().map(sequence).collect()
    }

    #[test]
    fn nothing_is_queued_that_an_aggregator_would_end_the_connection_over() {
        let outbox = outbox(10);
        outbox.connected(0);
        // As a guest's QEMU may answer.
        let long = "\u{1b}".repeat(20_000);
        let workload = WorkloadId::new("w").unwrap();
        outbox.event(
            Timestamp(1),
            Event::RestoreFailed { knob: long.clone(), wanted: long.clone(), error: long.clone() },
        );
        let version = Version { epoch: 1, number: 1 };
        let outcome = Outcome::Refused { reason: Refusal::Failed, detail: long.clone() };
        outbox.ack(Ack { target: Target::Volunteer, version, outcome });
        let shortfalls = vec![long; 100];
        let outcome = Outcome::Applied { limits: gleaner_types::command::Limits::NONE, shortfalls };
        outbox.ack(Ack { target: Target::Workload(workload), version, outcome });
        let batch = outbox.take();
        assert_eq!((batch.events.len(), batch.acks.len()), (1, 2));
        assert!(batch.events.iter().all(|event| event.to_json_line().unwrap().len() <= LONGEST));
        assert!(batch.acks.iter().all(|ack| serde_json::to_vec(ack).unwrap().len() <= LONGEST));
        let Outcome::Refused { detail, .. } = &batch.acks[0].outcome else { panic!("{batch:?}") };
        assert!(detail.len() >= 1_024);
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
    fn the_oldest_event_is_dropped_when_none_are_taken() {
        let outbox = outbox(2);
        for _ in 0..5 {
            outbox.event(Timestamp(1), Event::AggregatorStopped {});
        }
        outbox.connected(0);
        assert_eq!(sequences(&outbox.take()), [4, 5]);
        assert_eq!((outbox.queued().events, outbox.queued().events_dropped), (2, 3));
    }

    #[test]
    fn acknowledgements_do_not_outlive_their_connection() {
        let ack = |number| ack(Target::Volunteer, number);
        let outbox = outbox(2);
        outbox.ack(ack(1));
        assert!(outbox.take().acks.is_empty(), "nobody to send it to");
        outbox.connected(0);
        outbox.ack(ack(2));
        outbox.ack(ack(3));
        let versions: Vec<_> = outbox.take().acks.iter().map(|ack| ack.version.number).collect();
        assert_eq!(versions, [3], "the newest per target");
    }

    fn ack(target: Target, number: u64) -> Ack {
        let outcome = Outcome::Refused { reason: Refusal::Stale, detail: String::new() };
        Ack { target, version: Version { epoch: 1, number }, outcome }
    }

    fn guest(name: &str) -> gleaner_types::guest::GuestName {
        use gleaner_types::guest::GuestName;
        use gleaner_types::guest::Manager;
        use gleaner_types::id::GuestText;
        let workload = WorkloadId::from_untrusted(name);
        let name = GuestText::from_untrusted(name).unwrap();
        GuestName { workload, manager: Manager::Qemu, name, title: None, instance: None, uuid: None, pid: None }
    }

    #[test]
    fn every_connection_begins_with_what_guests_are_called() {
        let outbox = outbox(2);
        outbox.connected(0);
        assert_eq!(outbox.take().guests, None, "nothing is known yet");
        let named = |guests| GuestNames { guests, unmatched: Vec::new() };
        outbox.guests(named(vec![guest("a")]));
        outbox.guests(named(vec![guest("b")]));
        assert_eq!(outbox.take().guests, Some(named(vec![guest("b")])));
        assert!(outbox.take().is_empty(), "once");
        outbox.disconnected();
        outbox.connected(0);
        assert_eq!(outbox.take().guests, Some(named(vec![guest("b")])));
        let long = guest(&"x".repeat(256));
        outbox.guests(named(vec![long; 4_096]));
        assert_eq!(outbox.take().guests.unwrap().guests.len(), MOST_NAMES / 512);
    }

    fn report(sequence: u64) -> HostReport {
        gleaner_test_support::report::report(&HostId::new("h1").unwrap(), sequence)
    }

    fn state(task: u32, ran_ms: u64) -> TaskState {
        let attempt = TaskAttempt { job: JobId::new("j").unwrap(), task, version: Version { epoch: 1, number: 1 } };
        TaskState { attempt, status: TaskStatus::Running { ran_ms } }
    }

    /// What a future says when it is asked once; nothing runs besides.
    fn once<T>(future: impl Future<Output = T>) -> Poll<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_oldest_reports_give_way_and_are_counted() {
        let outbox = outbox(2);
        for sequence in 1..=5 {
            outbox.report(report(sequence));
        }
        let queued = outbox.queued();
        assert_eq!((queued.reports, queued.reports_dropped, outbox.reports_dropped()), (3, 2, 2));
        let sent: Vec<u64> = std::iter::from_fn(|| outbox.take().report).map(|report| report.sequence).collect();
        assert_eq!(sent, [3, 4, 5], "one a message, oldest first");
        assert_eq!(outbox.queued().reports, 0);
    }

    #[test]
    fn a_message_has_so_many_events_and_the_next_has_the_rest() {
        let outbox = outbox(100);
        for _ in 0..EVENTS_PER_MESSAGE + 2 {
            outbox.event(Timestamp(1), Event::AggregatorStopped {});
        }
        outbox.connected(0);
        assert_eq!(outbox.take().events.len(), EVENTS_PER_MESSAGE);
        assert_eq!(sequences(&outbox.take()), [65, 66]);
    }

    #[test]
    fn what_is_of_one_connection_ends_with_it() {
        let outbox = outbox(2);
        let queue = || {
            outbox.ack(ack(Target::Volunteer, 1));
            outbox.task(state(1, 5));
        };
        queue();
        assert!(outbox.take().is_empty(), "nobody to send it to");
        outbox.connected(0);
        queue();
        assert!(outbox.queued().connected && outbox.queued().acks == 1);
        outbox.disconnected();
        assert!(!outbox.queued().connected);
        outbox.connected(0);
        assert!(outbox.take().is_empty(), "the aggregator repeats its commands, and the runner of tasks their states");
        queue();
        let batch = outbox.take();
        assert_eq!((batch.acks.len(), batch.tasks), (1, vec![state(1, 5)]));
    }

    #[test]
    fn acknowledgements_are_bounded_one_for_each_target() {
        let outbox = outbox(2);
        outbox.connected(0);
        let guest = |number: usize| Target::Workload(WorkloadId::new(format!("vm-{number}")).unwrap());
        for number in 0..=MAX_ACKS {
            outbox.ack(ack(guest(number), 1));
        }
        assert_eq!(outbox.queued().acks, MAX_ACKS);
        outbox.ack(ack(guest(7), 2));
        let acks = outbox.take().acks;
        assert_eq!(acks.len(), MAX_ACKS);
        assert_eq!(acks.last(), Some(&ack(guest(7), 2)), "the newer one of a target takes the older one's place");
    }

    #[test]
    fn states_of_tasks_are_bounded_and_leave_in_messages_of_a_size() {
        let outbox = outbox(2);
        outbox.connected(0);
        let most = u32::try_from(MOST_TASKS).unwrap();
        for task in 0..=most {
            outbox.task(state(task, 1));
        }
        outbox.task(state(0, 2));
        let first = outbox.take().tasks;
        assert_eq!(first.len(), STATES_PER_MESSAGE);
        assert_eq!(first[0], state(0, 2), "a newer state of a task that waits always finds room");
        let rest: Vec<TaskState> =
            std::iter::from_fn(|| Some(outbox.take().tasks).filter(|tasks| !tasks.is_empty())).flatten().collect();
        assert_eq!(first.len() + rest.len(), MOST_TASKS);
        assert_eq!(rest.last(), Some(&state(most - 1, 1)));
    }

    #[test]
    fn anything_that_waits_is_something_to_send() {
        for (part, fill) in parts() {
            let outbox = outbox(2);
            outbox.connected(0);
            assert!(outbox.take().is_empty());
            assert!(once(outbox.next()).is_pending(), "{part}");
            fill(&outbox);
            let Poll::Ready(batch) = once(outbox.next()) else { panic!("{part} does not leave") };
            assert!(!batch.is_empty(), "{part}");
        }
    }

    #[test]
    fn it_is_drained_when_all_has_left_and_events_are_in_the_log() {
        for (part, fill) in parts() {
            let outbox = outbox(2);
            outbox.connected(0);
            assert!(once(outbox.drained()).is_ready());
            fill(&outbox);
            assert!(once(outbox.drained()).is_pending(), "{part} waits");
            _ = outbox.take();
            assert_eq!(once(outbox.drained()).is_ready(), part != "an event", "{part} has left");
            outbox.acknowledged(1);
            assert!(once(outbox.drained()).is_ready(), "{part}");
        }
    }

    /// What it is called, and what queues it.
    type Part = (&'static str, fn(&Outbox));

    /// Each part of a message, alone.
    fn parts() -> [Part; 4] {
        [
            ("a report", |outbox| outbox.report(report(1))),
            ("an event", |outbox| outbox.event(Timestamp(1), Event::AggregatorStopped {})),
            ("an acknowledgement", |outbox| outbox.ack(ack(Target::Volunteer, 1))),
            ("a task", |outbox| outbox.task(state(1, 1))),
        ]
    }

    #[test]
    fn its_end_is_waited_for() {
        let outbox = outbox(2);
        assert!(once(outbox.finished()).is_pending());
        outbox.finish(true);
        assert_eq!(once(outbox.finished()), Poll::Ready(true));
    }

    #[test]
    fn what_is_not_understood_is_counted() {
        let outbox = outbox(2);
        outbox.not_understood(Unknowns::default());
        assert_eq!(outbox.queued().unknown, Unknowns::default());
        let one = Unknowns { codes: 1, last: Some(("event", 900)), ..Unknowns::default() };
        outbox.not_understood(one);
        outbox.not_understood(one);
        assert_eq!(outbox.queued().unknown, Unknowns { codes: 2, ..one });
    }
}
