//! Pauses the volunteer when nobody looks after it. In: the volunteer's domains, and a sign of life with every look. Out:
//! the domains paused, once no look came for as long as the lease, or the helper ends. Called by `domains`. It has a
//! thread and a way to the hypervisor of its own: the thread that answers may hang.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::hypercall::Run;

/// How soon it is tried again to pause a domain. (Chosen.)
const RETRY: Duration = Duration::from_millis(100);
/// How often it is tried at the end. (Chosen.)
const LAST_TRIES: u32 = 10;

/// What came of pausing the volunteer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Paused {
    /// A domain ran, and it is paused now or has the least cap.
    pub(crate) some: bool,
    /// One may run on.
    pub(crate) failed: bool,
}

/// Pauses these domains.
type Pause = Box<dyn FnMut(&[Run]) -> Paused + Send>;

struct State {
    volunteers: Vec<Run>,
    lease: Duration,
    /// When the lease ends; `None` while nothing runs under one.
    until: Option<Instant>,
    lapses: u64,
    pause: Pause,
}

impl State {
    /// The lease begins now.
    fn renew(&mut self, now: Instant) {
        self.until = (!self.volunteers.is_empty()).then(|| now + self.lease);
    }

    /// Nobody looks after the volunteer any more. Tells whether it has to be tried again.
    fn lapse(&mut self, now: Instant) -> bool {
        let paused = (self.pause)(&self.volunteers);
        self.lapses += u64::from(paused.some);
        self.until = paused.failed.then(|| now + RETRY);
        paused.failed
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

    /// From now on these are the volunteer, under a lease of that length, which begins now.
    pub(crate) fn set(&self, volunteers: Vec<Run>, lease: Duration, now: Instant) {
        let mut state = self.0.lock();
        (state.volunteers, state.lease) = (volunteers, lease);
        state.renew(now);
        self.0.changed.notify_all();
    }

    /// Does something with the list of the volunteer's domains.
    pub(crate) fn with_volunteers<T>(&self, f: impl FnOnce(&[Run]) -> T) -> T {
        f(&self.0.lock().volunteers)
    }

    /// A sign of life: the lease begins anew.
    pub(crate) fn renew(&self, now: Instant) {
        let mut state = self.0.lock();
        // Of one that runs already the thread finds the new end when the old one comes.
        let begins = state.until.is_none();
        state.renew(now);
        if begins {
            self.0.changed.notify_all();
        }
    }

    /// Does something while the volunteer cannot be paused for a lease that ends. With `renewed` the lease begins anew first:
    /// whoever lets the volunteer run may hang before the next look.
    pub(crate) fn without_it<T>(&self, renewed: bool, now: Instant, f: impl FnOnce() -> T) -> T {
        let mut state = self.0.lock();
        if renewed {
            state.renew(now);
            self.0.changed.notify_all();
        }
        f()
    }

    /// How often a lease has ended and a domain was paused for it.
    pub(crate) fn lapses(&self) -> u64 {
        self.0.lock().lapses
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        for _ in 0..LAST_TRIES {
            if !self.0.lock().lapse(Instant::now()) {
                return;
            }
            thread::sleep(RETRY);
        }
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
                state.lapse(Instant::now());
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

    const VOLUNTEER: Run = Run { id: 3, uuid: [1; 16] };

    /// One whose first tries to pause fail, so many.
    fn failing_dog(mut failures: u32) -> (Watchdog, Receiver<Vec<Run>>) {
        let (sender, paused) = channel();
        let pause = move |volunteers: &[Run]| {
            // A test that has ended asks no more.
            _ = sender.send(volunteers.to_vec());
            let failed = failures > 0;
            failures = failures.saturating_sub(1);
            Paused { some: !failed, failed }
        };
        (Watchdog::start(Box::new(pause)).unwrap(), paused)
    }

    fn dog() -> (Watchdog, Receiver<Vec<Run>>) {
        failing_dog(0)
    }

    #[test]
    fn without_a_look_in_time_it_pauses_the_volunteer_once() {
        let (dog, paused) = dog();
        dog.renew(Instant::now());
        assert!(paused.recv_timeout(Duration::from_millis(50)).is_err(), "there is no volunteer yet");
        let other = Run { id: 4, uuid: [2; 16] };
        dog.set(vec![VOLUNTEER, other], Duration::from_millis(20), Instant::now());
        assert_eq!(paused.recv_timeout(LONG).unwrap(), [VOLUNTEER, other], "also before the first look");
        assert_eq!(dog.lapses(), 1);
        assert!(paused.recv_timeout(Duration::from_millis(50)).is_err(), "once is enough");
        dog.renew(Instant::now());
        assert!(paused.recv_timeout(LONG).is_ok(), "each lease that a look began ends");
    }

    #[test]
    fn it_pauses_nothing_while_somebody_else_does() {
        let (dog, paused) = dog();
        dog.set(vec![VOLUNTEER], Duration::from_millis(20), Instant::now());
        let meanwhile = dog.without_it(true, Instant::now(), || {
            thread::sleep(Duration::from_millis(100));
            paused.try_recv().is_ok()
        });
        assert!(!meanwhile, "the two would pause twice, and the hypervisor counts pauses");
        assert!(paused.recv_timeout(LONG).is_ok(), "it does once that is over");
    }

    #[test]
    fn what_could_not_be_paused_is_tried_again() {
        let (dog, paused) = failing_dog(2);
        dog.set(vec![VOLUNTEER], Duration::from_millis(20), Instant::now());
        for _ in 0..3 {
            assert_eq!(paused.recv_timeout(LONG).unwrap(), [VOLUNTEER]);
        }
        assert!(paused.recv_timeout(2 * RETRY).is_err(), "until it is paused");
        assert_eq!(dog.lapses(), 1);
        let (dog, paused) = failing_dog(1);
        dog.set(vec![VOLUNTEER], LONG, Instant::now());
        drop(dog);
        assert_eq!(paused.iter().take(2).count(), 2, "also at its end");
    }

    #[test]
    fn its_end_pauses_whatever_the_lease() {
        let (dog, paused) = dog();
        dog.set(vec![VOLUNTEER], LONG, Instant::now());
        dog.renew(Instant::now());
        drop(dog);
        assert_eq!(paused.recv_timeout(LONG).unwrap(), [VOLUNTEER]);
        let (dog, paused) = self::dog();
        dog.set(vec![VOLUNTEER], LONG, Instant::now());
        dog.set(Vec::new(), LONG, Instant::now());
        drop(dog);
        assert_eq!(paused.recv_timeout(LONG).unwrap(), [], "a volunteer that was given up is left alone");
    }
}
