//! The link to the agent of this machine, which runs the tasks. Only this module knows whether that agent is connected.
//! In: connections, from the core loop; orders, from the jobs' runners; states of attempts, from the acceptor of
//! agents. Out: messages to the agent, and each state to the runner of its job. An attempt without a record is
//! forgotten.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gleaner_types::command::Version;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::task::{TaskAttempt, TaskDesired, TaskJob, TaskOrder, TaskOrders, TaskState};
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAggregator, ProtocolVersion};
use tokio::sync::{mpsc, watch};

use super::records::Records;

/// Time between two messages that renew the tasks' lease, which is a minute.
const RENEWAL: Duration = Duration::from_secs(10);

/// Most attempts that one message has forgotten.
const FORGOTTEN_AT_ONCE: usize = 256;

/// States that wait for a job's runner. When it is full the agent's messages wait.
const WAITING: usize = 1_024;

/// Where tasks go. All clones are the same.
#[derive(Clone)]
pub struct TaskLink {
    host: HostId,
    jobs_dir: Arc<PathBuf>,
    /// The connection that there is, so that runners notice a new one.
    connection: Arc<watch::Sender<Option<u64>>>,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    epoch: u64,
    /// Last number of a version in this epoch.
    last: u64,
    /// Whether this aggregator may order now, as the leader or as the only one.
    may_order: Box<dyn Fn() -> bool + Send>,
    agent: Option<Agent>,
    runners: BTreeMap<JobId, mpsc::Sender<TaskState>>,
    /// Attempts to forget for which there was no room. Bounded by what an agent keeps of attempts.
    unsent: Vec<TaskAttempt>,
    renewed: Timestamp,
}

#[derive(Debug)]
struct Agent {
    version: ProtocolVersion,
    /// Whether it starts tasks of root's, if it says.
    tasks_of_root: Option<bool>,
    /// Weak: whoever drops the connection ends it.
    sender: mpsc::WeakSender<FromAggregator>,
}

impl fmt::Debug for TaskLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskLink").field("host", &self.host).finish_non_exhaustive()
    }
}

impl TaskLink {
    /// A link to the agent of this machine, which is not connected yet. Jobs keep their records in `jobs_dir`.
    #[must_use]
    pub fn new(host: HostId, jobs_dir: PathBuf) -> Self {
        let inner = Inner {
            epoch: 0,
            last: 0,
            may_order: Box::new(|| true),
            agent: None,
            runners: BTreeMap::new(),
            unsent: Vec::new(),
            renewed: Timestamp::default(),
        };
        let connection = Arc::new(watch::channel(None).0);
        Self { host, jobs_dir: Arc::new(jobs_dir), connection, inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave it half-changed: no code between two changes can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host whose agent runs the tasks.
    #[must_use]
    pub const fn host(&self) -> &HostId {
        &self.host
    }

    /// The epoch in which this aggregator orders.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        let mut inner = self.lock();
        (inner.epoch, inner.last) = (epoch, 0);
    }

    /// Orders go out only while `may_order` says so.
    pub(crate) fn only_while(&self, may_order: impl Fn() -> bool + Send + 'static) {
        self.lock().may_order = Box::new(may_order);
    }

    /// The agent is connected. `tasks_of_root` is whether it starts tasks of root's, if it says.
    pub(crate) fn connected(
        &self,
        connection: u64,
        version: ProtocolVersion,
        tasks_of_root: Option<bool>,
        sender: &mpsc::Sender<FromAggregator>,
    ) {
        self.lock().agent = Some(Agent { version, tasks_of_root, sender: sender.downgrade() });
        self.connection.send_replace(Some(connection));
    }

    /// A connection of the agent is lost.
    pub(crate) fn disconnected(&self, connection: u64) {
        if *self.connection.borrow() == Some(connection) {
            let mut inner = self.lock();
            inner.agent = None;
            // The next connection begins with all that the agent knows.
            inner.unsent.clear();
            drop(inner);
            self.connection.send_replace(None);
        }
    }

    /// The connection, and when it changes.
    pub(super) fn connection(&self) -> watch::Receiver<Option<u64>> {
        self.connection.subscribe()
    }

    /// States of a job's attempts from now on. They replace an earlier receiver's.
    pub(super) fn states_of(&self, job: &JobId) -> mpsc::Receiver<TaskState> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut inner = self.lock();
        inner.runners.retain(|_, runner| !runner.is_closed());
        inner.runners.insert(job.clone(), sender);
        receiver
    }

    /// A version for a new attempt.
    pub(super) fn next_version(&self) -> Version {
        let mut inner = self.lock();
        inner.last += 1;
        Version { epoch: inner.epoch, number: inner.last }
    }

    /// Why tasks cannot be ordered now.
    pub(super) fn trouble(&self) -> Option<String> {
        let inner = self.lock();
        match &inner.agent {
            None => Some(format!("the agent of this machine, host {}, is not connected", self.host)),
            Some(agent) if agent.version == ProtocolVersion::V1 => Some(format!(
                "the agent of this machine, host {}, speaks version 1 of the protocol, in which it runs no tasks; update it",
                self.host
            )),
            Some(_) => None,
        }
    }

    /// The connected agent has said that it starts no task of root's. Not known, and false, while none is connected.
    pub(super) fn refuses_root(&self) -> bool {
        self.lock().agent.as_ref().is_some_and(|agent| agent.tasks_of_root == Some(false))
    }

    /// Tells the agent what a job's tasks have in common, in the current epoch.
    pub(super) fn describe(&self, mut job: TaskJob) -> bool {
        let inner = self.lock();
        job.epoch = inner.epoch;
        inner.send(FromAggregator::TaskJob(Box::new(job)))
    }

    /// Orders; false if they find no way or no room now.
    pub(super) fn order(&self, orders: Vec<TaskOrder>) -> bool {
        let inner = self.lock();
        let epoch = inner.epoch;
        inner.send(FromAggregator::Tasks(TaskOrders { epoch, orders }))
    }

    /// Has the agent forget an attempt, and end it where it runs. An agent that does not hear it tells of the attempt when
    /// it connects again.
    pub(super) fn forget(&self, attempt: TaskAttempt) {
        let mut inner = self.lock();
        if !inner.forget(vec![attempt.clone()]) && inner.agent.is_some() {
            inner.unsent.push(attempt);
        }
    }

    /// Renews the lease of all tasks from time to time, and sends what found no room. Call it once a second.
    pub(crate) fn renew(&self, now: Timestamp) {
        let mut inner = self.lock();
        while !inner.unsent.is_empty() {
            let some = inner.unsent.len().saturating_sub(FORGOTTEN_AT_ONCE);
            let some = inner.unsent.split_off(some);
            if !inner.forget(some.clone()) {
                inner.unsent.extend(some);
                break;
            }
        }
        if now.since(inner.renewed) >= RENEWAL {
            inner.renewed = now;
            let epoch = inner.epoch;
            inner.send(FromAggregator::Tasks(TaskOrders { epoch, orders: Vec::new() }));
        }
    }

    /// What the agent says of attempts.
    pub(crate) async fn states(&self, states: Vec<TaskState>) {
        for state in states {
            let runner = self.lock().runners.get(&state.attempt.job).cloned();
            let unclaimed = match runner {
                Some(runner) => runner.send(state).await.err().map(|unsent| unsent.0),
                None => Some(state),
            };
            if let Some(state) = unclaimed
                && !self.is_recorded(&state.attempt)
            {
                tracing::info!(job = %state.attempt.job, task = state.attempt.task, "a task that no job knows is ended");
                self.forget(state.attempt);
            }
        }
    }

    /// Whether a job that has no runner now, such as one that waits for its slots after a restart, ordered this attempt.
    fn is_recorded(&self, attempt: &TaskAttempt) -> bool {
        let records = Records::new(self.jobs_dir.join(attempt.job.as_str()));
        // A record that cannot be understood may be of this attempt.
        records.read_run(attempt.task).map_or(true, |run| run.is_some_and(|run| run.version == attempt.version))
    }
}

impl Inner {
    fn forget(&self, attempts: Vec<TaskAttempt>) -> bool {
        let forget = |attempt| TaskOrder { attempt, desired: TaskDesired::Forget };
        let orders = attempts.into_iter().map(forget).collect();
        self.send(FromAggregator::Tasks(TaskOrders { epoch: self.epoch, orders }))
    }

    fn send(&self, message: FromAggregator) -> bool {
        let Some(agent) = self.agent.as_ref().filter(|agent| agent.version != ProtocolVersion::V1) else {
            return false;
        };
        (self.may_order)() && agent.sender.upgrade().is_some_and(|sender| sender.try_send(message).is_ok())
    }
}
