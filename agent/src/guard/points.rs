//! Forced scheduling points: on each CPU a real-time thread that wakes every millisecond while the volunteer runs, so that the
//! kernel chooses anew who runs there. In: whether they are to be forced now. Out: wake-ups. Called by the guard, with
//! `guard.scheduling_points` always, and otherwise while the posture is `Points`.
//!
//! A kernel may leave a waiting foreground behind another one although only the volunteer is on the next CPU, until
//! something makes it choose. docs/isolation.md has what this costs and brings.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_types::report::SchedulingPoints;
use gleaner_types::text::counted;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Between two points on a CPU. Chosen: far less than what a person notices, and a fraction of a percent of a CPU.
const PERIOD: Duration = Duration::from_millis(1);

/// How long the threads may take to be on their CPUs. (Chosen.)
const START_WAIT: Duration = Duration::from_secs(2);

/// What the threads do.
const REST: u8 = 0;
const FORCE: u8 = 1;
const END: u8 = 2;

/// When points are forced, and by which threads.
#[derive(Debug)]
pub(super) struct Forcing {
    /// By the posture alone; otherwise always, or never.
    by_posture: bool,
    points: Option<Points>,
    /// Why those that were to be forced always cannot be.
    refused: Option<String>,
}

impl Forcing {
    /// Of a guard that has no threads.
    pub(super) const fn never() -> Self {
        Self { by_posture: false, points: None, refused: None }
    }

    /// Always, or by the posture alone. Where the kernel refuses the first, the log says so.
    pub(super) fn new(always: bool) -> Self {
        let mut forcing = Self { by_posture: !always, ..Self::never() };
        if always {
            match Points::start() {
                Ok(points) => forcing.points = Some(points),
                Err(error) => {
                    let refused = "no scheduling points can be forced (guard.scheduling_points); the guard holds the volunteer without";
                    tracing::warn!(%error, "{refused}");
                    forcing.refused = Some(error.to_string());
                }
            }
        }
        forcing
    }

    /// Whether they are forced now, and why; `None` where nothing asks for them.
    pub(super) fn status(&self) -> Option<SchedulingPoints> {
        let why = match self.by_posture {
            true => "the harm that the volunteer does asks for them (guard.follow_harm)",
            false => "guard.scheduling_points is set",
        };
        match (&self.points, &self.refused) {
            (Some(points), _) => {
                let forced = points.orders.load(Ordering::Relaxed) == FORCE;
                let reason = match forced {
                    true => format!("scheduling points are forced on {}, because {why}", counted(points.forced, "CPU")),
                    false => format!("no scheduling points are forced while the volunteer does not run; {why}"),
                };
                Some(SchedulingPoints { forced, reason })
            }
            (None, Some(error)) => {
                let reason = format!("no scheduling points can be forced, although {why}: {error}");
                Some(SchedulingPoints { forced: false, reason })
            }
            (None, None) => None,
        }
    }

    /// The posture decides.
    pub(super) const fn is_by_posture(&self) -> bool {
        self.by_posture
    }

    /// Goes on with what the posture takes, where that decides.
    pub(super) fn set(&mut self, points: Option<Points>) {
        if self.by_posture {
            self.points = points;
        }
    }

    /// The volunteer runs from now on, or does not.
    pub(super) fn force(&self, runs: bool) {
        self.points.iter().for_each(|points| points.force(runs));
    }
}

/// The threads, one for each CPU that this process may run on. Dropping it ends them, each with its next wake-up: nobody
/// waits for one that does not get its CPU.
#[derive(Debug)]
pub(super) struct Points {
    orders: Arc<AtomicU8>,
    threads: Vec<JoinHandle<()>>,
    /// CPUs that have one.
    forced: usize,
}

impl Points {
    /// Starts them, at rest. It can take [`START_WAIT`]: call it without a lock. A CPU on which none can be started, or that
    /// somebody else's real-time threads keep, is left out, and the log says so.
    ///
    /// # Errors
    /// The system's error when none could be started, kept to its CPU and put into the real-time class.
    pub(super) fn start() -> io::Result<Self> {
        let mut points = Self { orders: Arc::new(AtomicU8::new(REST)), threads: Vec::new(), forced: 0 };
        let (entered, results) = channel();
        let cpus = cpus()?;
        for cpu in &cpus {
            let (cpu, orders, entered) = (*cpu, Arc::clone(&points.orders), entered.clone());
            let thread = thread::Builder::new().name(format!("point-{cpu}"));
            points.threads.push(thread.spawn(move || run(cpu, &orders, entered))?);
        }
        drop(entered);
        let until = Instant::now() + START_WAIT;
        let mut refused = None;
        // Each thread sends one and gives the channel up.
        while let Ok(result) = results.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match result {
                Ok(()) => points.forced += 1,
                Err(error) => refused = Some(error),
            }
        }
        let forced = points.forced;
        if forced == 0 {
            return Err(refused.unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
        }
        if forced < cpus.len() {
            let error = refused.map(|error| error.to_string());
            tracing::warn!(forced, cpus = cpus.len(), error, "scheduling points are forced on some CPUs only");
        }
        Ok(points)
    }

    /// Forces points from now on, or ceases to within a period.
    fn force(&self, force: bool) {
        let order = if force { FORCE } else { REST };
        if self.orders.swap(order, Ordering::Relaxed) != order && force {
            self.threads.iter().for_each(|thread| thread.thread().unpark());
        }
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        self.orders.store(END, Ordering::Relaxed);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }
}

fn run(cpu: usize, orders: &AtomicU8, entered: Sender<io::Result<()>>) {
    // The class first: an ordinary thread may wait long for a CPU.
    let result = enter_real_time_class().and_then(|()| pin(cpu));
    let failed = result.is_err();
    // Whoever started it waits for this, or has given up.
    _ = entered.send(result);
    drop(entered);
    if failed {
        return;
    }
    loop {
        match orders.load(Ordering::Relaxed) {
            END => return,
            FORCE => thread::sleep(PERIOD),
            // It may wake by itself, and then looks again.
            _ => thread::park(),
        }
    }
}

/// The CPUs that this process may run on.
pub(super) fn cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    Ok(sched_setaffinity(None, &cpus)?)
}

#[expect(unsafe_code, reason = "no safe wrapper sets a scheduling class")]
fn enter_real_time_class() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter is a valid `sched_param`, which the call only reads; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}
