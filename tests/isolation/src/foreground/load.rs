//! Requests in time. In: seats, each with its schedule and its request. Out: how long each request took, and how many
//! failed. Called by [`super`].
//!
//! Each seat is a thread that makes its requests when they are due. A response counts from when it was due, so that
//! waiting for a CPU is part of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_simulator::foreground::SessionTrace;
use serde::{Deserialize, Serialize};

/// A request that could not even be begun in this time after it was due has failed. So a load that is beyond the machine stays bounded.
const MOST_LATE: Duration = Duration::from_secs(1);
/// How long requests in flight may take after the end of the measurement.
const LAST: Duration = Duration::from_secs(3);
/// Largest share of a period of a session that requests may fill, so that a burst does not wait for itself.
const FULLEST: f64 = 0.8;

/// What was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// How long each request took, in milliseconds.
    pub times_ms: Vec<f64>,
    /// Requests that failed or were never answered.
    pub failures: u64,
    /// Its server has ended.
    pub killed: bool,
}

/// When requests are due.
#[derive(Debug)]
pub enum Schedule {
    /// Every so often, the first after the offset.
    Every {
        /// Time between two.
        period: Duration,
        /// Until the first.
        offset: Duration,
    },
    /// This long after the last one ended.
    Think(Duration),
    /// As a desktop session's demand requires.
    Session {
        /// CPU of each of its seconds, in percent.
        trace: Box<SessionTrace>,
        /// What one of its seconds takes here.
        second: Duration,
        /// CPU time of a request.
        request: Duration,
    },
}

/// One that asks.
pub struct Seat {
    /// When.
    pub schedule: Schedule,
    /// One request; whether it was answered well.
    pub request: Box<dyn FnMut() -> bool + Send>,
}

#[derive(Debug, Default)]
struct Log {
    /// What counts: requests due within it.
    window: Option<(Instant, Instant)>,
    answer: Answer,
    /// Nothing that is due within the window is still to come.
    passed: bool,
}

/// Seats at work.
pub struct Load {
    logs: Vec<Arc<Mutex<Log>>>,
}

impl Load {
    /// From now on all of them ask, until this process ends.
    #[must_use]
    pub fn start(seats: Vec<Seat>) -> Self {
        let logs = seats.iter().map(|_| Arc::default()).collect::<Vec<Arc<Mutex<Log>>>>();
        for (seat, log) in seats.into_iter().zip(logs.iter().cloned()) {
            std::thread::spawn(move || work(seat, &log));
        }
        Self { logs }
    }

    /// What the requests that are due in the next so many seconds take.
    #[must_use]
    pub fn measure(&self, time: Duration) -> Answer {
        let (from, to) = (Instant::now(), Instant::now() + time);
        for log in &self.logs {
            held(log).window = Some((from, to));
        }
        std::thread::sleep(time);
        while Instant::now() < to + LAST && self.logs.iter().any(|log| !held(log).passed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut sum = Answer::default();
        for log in &self.logs {
            let mut log = held(log);
            sum.times_ms.append(&mut log.answer.times_ms);
            // One that is still in flight.
            sum.failures += log.answer.failures + u64::from(!log.passed);
        }
        sum
    }
}

fn held(log: &Mutex<Log>) -> std::sync::MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(mut seat: Seat, log: &Mutex<Log>) {
    let mut due = Due::new(seat.schedule, Instant::now());
    loop {
        let at = due.next();
        {
            let mut log = held(log);
            log.passed = log.window.is_some_and(|(_, to)| at >= to);
        }
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let late = at.elapsed() > MOST_LATE;
        let good = !late && (seat.request)();
        let took = at.elapsed();
        due.ended(Instant::now());
        let mut log = held(log);
        if log.window.is_some_and(|(from, to)| at >= from && at < to) {
            if good {
                log.answer.times_ms.push(took.as_secs_f64() * 1_000.0);
            } else {
                log.answer.failures += 1;
            }
        }
    }
}

/// The due times of a schedule.
struct Due {
    schedule: Schedule,
    /// The next, or when the present second of a session begins.
    next: Instant,
    /// Of a session: what is left of its present second.
    left: std::vec::IntoIter<Duration>,
}

impl Due {
    fn new(schedule: Schedule, now: Instant) -> Self {
        let offset = if let Schedule::Every { offset, .. } = &schedule { *offset } else { Duration::ZERO };
        Self { schedule, next: now + offset, left: Vec::new().into_iter() }
    }

    fn next(&mut self) -> Instant {
        let Self { schedule, next, left } = self;
        match schedule {
            Schedule::Every { period, .. } => {
                let at = *next;
                *next += *period;
                at
            }
            Schedule::Think(_) => *next,
            Schedule::Session { trace, second, request } => loop {
                if let Some(offset) = left.next() {
                    return *next - *second + offset;
                }
                let percent = trace.next().unwrap_or(0.0);
                *left = within(percent, *second, *request).into_iter();
                *next += *second;
            },
        }
    }

    fn ended(&mut self, now: Instant) {
        if let Schedule::Think(think) = self.schedule {
            self.next = now + think;
        }
    }
}

/// When the requests of a session's second with this demand are due.
fn within(percent: f64, second: Duration, request: Duration) -> Vec<Duration> {
    let busy_s = (percent / 100.0).clamp(0.0, FULLEST) * second.as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred at most")]
    let requests = (busy_s / request.as_secs_f64()).round() as u32;
    (0..requests).map(|number| second * number / requests.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn due_times_by_hand() {
        let now = Instant::now();
        let mut every = Due::new(Schedule::Every { period: 25 * MS, offset: 5 * MS }, now);
        assert_eq!([every.next(), every.next()], [now + 5 * MS, now + 30 * MS]);
        let mut think = Due::new(Schedule::Think(5 * MS), now);
        assert_eq!(think.next(), now);
        think.ended(now + 40 * MS);
        assert_eq!(think.next(), now + 45 * MS);
        assert_eq!(within(50.0, 200 * MS, 5 * MS).len(), 20);
        assert_eq!(within(100.0, 200 * MS, 5 * MS).len(), 32);
        assert_eq!(within(5.0, 200 * MS, 5 * MS), [Duration::ZERO, 100 * MS]);
        assert!(within(0.0, 200 * MS, 5 * MS).is_empty());
    }

    #[test]
    fn sessions_of_one_seed_are_one() {
        use gleaner_simulator::foreground::Session;
        let now = Instant::now();
        let times = |seed| {
            let trace = Box::new(SessionTrace::new(Session::Matlab, seed));
            let mut due = Due::new(Schedule::Session { trace, second: 200 * MS, request: 5 * MS }, now);
            (0..50).map(|_| due.next()).collect::<Vec<_>>()
        };
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
        assert!(times(3).is_sorted());
    }

    #[test]
    fn answers_and_failures_are_counted() {
        let mut turn = 0;
        let request = move || {
            turn += 1;
            turn % 2 == 0
        };
        let load = Load::start(vec![Seat { schedule: Schedule::Think(MS), request: Box::new(request) }]);
        // How many there are in a moment depends on the machine; that there are some does not.
        let mut both = Answer::default();
        while both.times_ms.is_empty() || both.failures == 0 {
            both = load.measure(50 * MS);
        }
        assert!(both.times_ms.iter().all(|time| *time >= 0.0));
    }
}
