//! The groups of users who submit jobs. In: the submitter's user and group, from the aggregator. Out: all groups of
//! that user, from the host's user database. The database may be on the network, so a thread of its own asks it, with a
//! time limit, and caches its answers. Called by the runner of tasks.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_types::task::TaskUser;
use tokio::sync::Semaphore;

use super::launch::LaunchError;
use crate::launch::groups_of;

/// How long the database may take. (Chosen.)
const LIMIT: Duration = Duration::from_secs(5);
/// How long its answer is kept, and how long it is kept that there was no answer. (Chosen.)
const ANSWER_LIFETIMES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(15));
/// Most questions at the same time. While that many hang, any other fails at once. (Chosen.)
const MOST_ASKED: usize = 2;
/// Most users that are remembered.
const MOST: usize = 1_000;

/// What the database said, and when.
type Answer = (Instant, Result<Vec<u32>, io::ErrorKind>);

/// Answers of the database, by user and group.
#[derive(Debug)]
pub(super) struct Groups {
    known: Mutex<BTreeMap<(u32, u32), Answer>>,
    /// What is being asked; a question that hangs keeps its permit, and its thread.
    asking: Arc<Semaphore>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { known: Mutex::default(), asking: Arc::new(Semaphore::new(MOST_ASKED)) }
    }
}

impl Groups {
    /// All groups of a user; only the one given for an agent that is not root, which can set none.
    pub(super) async fn of(&self, TaskUser { uid, gid }: TaskUser) -> Result<Vec<u32>, LaunchError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(vec![gid]);
        }
        let answer = match self.known((uid, gid)) {
            Some(answer) => answer,
            None => self.ask(uid, gid).await,
        };
        answer.map_err(|kind| LaunchError::Groups { user: uid, source: kind.into() })
    }

    fn known(&self, user: (u32, u32)) -> Option<Result<Vec<u32>, io::ErrorKind>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, answer) = known.get(&user)?;
        let holds = if answer.is_ok() { ANSWER_LIFETIMES.0 } else { ANSWER_LIFETIMES.1 };
        (at.elapsed() < holds).then(|| answer.clone())
    }

    async fn ask(&self, uid: u32, gid: u32) -> Result<Vec<u32>, io::ErrorKind> {
        let Ok(permit) = Arc::clone(&self.asking).try_acquire_owned() else { return Err(io::ErrorKind::TimedOut) };
        let asked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            groups_of(uid, gid).map_err(|error| error.kind())
        });
        let answer = match tokio::time::timeout(LIMIT, asked).await {
            Ok(answer) => answer.unwrap_or(Err(io::ErrorKind::Other)),
            Err(_) => Err(io::ErrorKind::TimedOut),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert((uid, gid), (Instant::now(), answer.clone()));
        answer
    }
}
