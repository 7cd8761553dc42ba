//! Looks at the domains' virtual CPUs many times a second. In: questions, which say how often to look and for how long. Out:
//! the sums of `waits`. Called by `domains`. It has a thread and a way to the hypervisor of its own, so that it looks in time
//! whatever else is asked. Nothing is looked at unless somebody asks.
//!
//! The moments are drawn, each evenly from half to one and a half of the mean interval: a domain whose work comes with a
//! period would be met again and again at the same point of it.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::hypercall::{DomainInfo, Hypervisor};
use crate::protocol::Failure;
use crate::waits::{Seen, Waits};

/// How often somebody wants it looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// For a reading each second.
    Slow,
    /// For windows of some hundred ms, within which many looks are wanted.
    Fast,
}

impl Pace {
    /// Mean interval. (Chosen: 20 looks a second, and at least 20 in a window of 200 ms.)
    const fn interval(self) -> Duration {
        match self {
            Self::Slow => Duration::from_millis(50),
            Self::Fast => Duration::from_millis(10),
        }
    }

    /// How long it is gone on after a question. (Chosen: longer than two questions are apart, which for readings is a minute at
    /// most. A rest between them would be missing in the waits.)
    const fn kept(self) -> Duration {
        match self {
            Self::Slow => Duration::from_secs(150),
            Self::Fast => Duration::from_secs(2),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    waits: Waits,
    slow_until: Option<Instant>,
    fast_until: Option<Instant>,
    /// Why the last look failed.
    failure: Option<Failure>,
}

impl State {
    fn pace(&self, now: Instant) -> Option<Pace> {
        let wanted = |until: Option<Instant>| until.is_some_and(|until| now < until);
        match (wanted(self.fast_until), wanted(self.slow_until)) {
            (true, _) => Some(Pace::Fast),
            (false, true) => Some(Pace::Slow),
            (false, false) => None,
        }
    }

    fn want(&mut self, pace: Pace, now: Instant) {
        let until = match pace {
            Pace::Slow => &mut self.slow_until,
            Pace::Fast => &mut self.fast_until,
        };
        *until = Some(now + pace.kept());
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another holder leaves numbers, valid in any combination.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that looks. It ends with the program.
#[derive(Debug)]
pub(crate) struct Sampler(Arc<Shared>);

impl Sampler {
    /// Starts the thread. It rests until it is asked.
    ///
    /// # Errors
    /// The system's error when it gives no thread.
    pub(crate) fn start(hypervisor: Hypervisor) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::Builder::new().name("sampler".to_owned()).spawn(move || look_on(&own, &hypervisor))?;
        Ok(Self(shared))
    }

    /// The sums so far; it is looked at that pace for a while from now on.
    ///
    /// # Errors
    /// Why the last look failed.
    pub(crate) fn ask<T>(&self, pace: Pace, f: impl FnOnce(&Waits) -> T) -> Result<T, Failure> {
        let now = Instant::now();
        let mut state = self.0.lock();
        let before = state.pace(now);
        state.want(pace, now);
        if state.pace(now) != before {
            self.0.changed.notify_all();
        }
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(f(&state.waits)),
        }
    }
}

fn look_on(shared: &Shared, hypervisor: &Hypervisor) {
    let (mut list, mut seen) = (Vec::new(), Vec::new());
    let mut random = Random::seeded();
    let mut last: Option<Instant> = None;
    let mut state = shared.lock();
    loop {
        let Some(pace) = state.pace(Instant::now()) else {
            last = None;
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let looked = look(&mut state.waits, hypervisor, &mut list, &mut seen, &mut last);
        if looked.is_err() {
            last = None;
        }
        state.failure = looked.err();
        let pause = pace.interval().mul_f64(0.5 + random.unit());
        state = shared.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn look(
    waits: &mut Waits,
    hypervisor: &Hypervisor,
    list: &mut Vec<DomainInfo>,
    seen: &mut Vec<Seen>,
    last: &mut Option<Instant>,
) -> Result<(), Failure> {
    hypervisor.list_into(list)?;
    let own_cpu = hypervisor.look_at(waits.pick(list), seen)?;
    let now = Instant::now();
    waits.take(list, seen, own_cpu, last.replace(now).map(|last| now.duration_since(last)));
    Ok(())
}

/// Numbers that no domain's rhythm follows (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self(since.as_nanos() as u64 | 1)
    }

    /// Evenly between 0 and 1.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_as_often_as_the_most_demanding_asks_and_not_for_ever() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!(state.pace(now), None);
        state.want(Pace::Slow, now);
        assert_eq!(state.pace(now), Some(Pace::Slow));
        state.want(Pace::Fast, now);
        assert_eq!(state.pace(now), Some(Pace::Fast));
        assert_eq!(state.pace(now + Pace::Fast.kept()), Some(Pace::Slow));
        assert_eq!(
            state.pace(now + Duration::from_secs(61)),
            Some(Pace::Slow),
            "the longest period between two samples"
        );
        assert_eq!(state.pace(now + Pace::Slow.kept()), None);
    }

    #[test]
    fn moments_are_even() {
        let mut random = Random::seeded();
        let drawn: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(drawn.iter().all(|one| (0.0..1.0).contains(one)));
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
