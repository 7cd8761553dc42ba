//! Pauses the volunteer when nobody looks after it. In: the volunteer's domains, and a sign of life with every look. Out:
//! the domains paused, once no look came for as long as the lease, or the helper ends. Called by `domains`. It has a
//! thread and a way to the hypervisor of its own: the thread that answers may hang.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::hypercall::Uuid;

/// Pauses these domains; tells whether one of them ran.
type Pause = Box<dyn FnMut(&[Uuid]) -> bool + Send>;

struct State {
    volunteers: Vec<Uuid>,
    lease: Duration,
    /// When the lease ends; `None` while nothing runs under one.
    until: Option<Instant>,
    lapses: u64,
    pause: Pause,
}

impl State {
    /// Nobody looks after the volunteer any more.
    fn lapse(&mut self) {
        self.until = None;
        if (self.pause)(&self.volunteers) {
            self.lapses += 1;
        }
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another holder leaves a list and numbers, valid in any combination.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropping it pauses the volunteer: whoever should look after it is gone.
pub(crate) struct Watchdog(Arc<Shared>);

impl Watchdog {
    /// Starts the thread. There is no volunteer yet.
    ///
    /// # Errors
    /// The system's error when it gives no thread.
    pub(crate) fn start(pause: Pause) -> io::Result<Self> {
        let state = State { volunteers: Vec::new(), lease: Duration::ZERO, until: None, lapses: 0, pause };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || watch(&own))?;
        Ok(Self(shared))
    }

    /// From now on these are the volunteer, under a lease of that length. It begins with the next look.
    pub(crate) fn set(&self, volunteers: Vec<Uuid>, lease: Duration) {
        let mut state = self.0.lock();
        (state.volunteers, state.lease, state.until) = (volunteers, lease, None);
    }

    /// Does something with the list of the volunteer's domains.
    pub(crate) fn with_volunteers<T>(&self, f: impl FnOnce(&[Uuid]) -> T) -> T {
        f(&self.0.lock().volunteers)
    }

    /// A look: the lease begins anew.
    pub(crate) fn renew(&self, now: Instant) {
        let mut state = self.0.lock();
        if state.volunteers.is_empty() {
            return;
        }
        let begins = state.until.is_none();
        state.until = Some(now + state.lease);
        if begins {
            self.0.changed.notify_all();
        }
    }

    /// How often a lease has ended and a domain was paused for it.
    pub(crate) fn lapses(&self) -> u64 {
        self.0.lock().lapses
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.lock().lapse();
    }
}

fn watch(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let left = state.until.map(|until| until.saturating_duration_since(Instant::now()));
        state = match left {
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) if !left.is_zero() => {
                shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
            Some(_) => {
                state.lapse();
                state
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn dog() -> (Watchdog, Receiver<Vec<Uuid>>) {
        let (sender, paused) = channel();
        let pause = move |volunteers: &[Uuid]| sender.send(volunteers.to_vec()).is_ok();
        (Watchdog::start(Box::new(pause)).unwrap(), paused)
    }

    #[test]
    fn without_a_look_in_time_it_pauses_the_volunteer_once() {
        let (dog, paused) = dog();
        dog.renew(Instant::now());
        dog.set(vec![[1; 16], [2; 16]], Duration::from_millis(20));
        assert!(paused.recv_timeout(Duration::from_millis(50)).is_err(), "nothing was looked at yet");
        dog.renew(Instant::now());
        assert_eq!(paused.recv_timeout(LONG).unwrap(), [[1; 16], [2; 16]]);
        assert_eq!(dog.lapses(), 1);
        assert!(paused.recv_timeout(Duration::from_millis(50)).is_err(), "once is enough");
        dog.renew(Instant::now());
        assert!(paused.recv_timeout(LONG).is_ok(), "each lease that a look began ends");
    }

    #[test]
    fn its_end_pauses_whatever_the_lease() {
        let (dog, paused) = dog();
        dog.set(vec![[1; 16]], LONG);
        dog.renew(Instant::now());
        drop(dog);
        assert_eq!(paused.recv_timeout(LONG).unwrap(), [[1; 16]]);
        let (dog, paused) = self::dog();
        dog.set(vec![[1; 16]], LONG);
        dog.set(Vec::new(), LONG);
        drop(dog);
        assert_eq!(paused.recv_timeout(LONG).unwrap(), [[0; 16]; 0], "a volunteer that was given up is left alone");
    }
}
