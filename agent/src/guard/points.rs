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
use std::time::Duration;

use gleaner_planner::protecting::Posture;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Between two points on a CPU. Chosen: far less than what a person notices, and a fraction of a percent of a CPU.
const PERIOD: Duration = Duration::from_millis(1);

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
}

impl Forcing {
    /// Of a guard that has no threads.
    pub(super) const fn never() -> Self {
        Self { by_posture: false, points: None }
    }

    /// Always, or by the posture alone. Where the kernel refuses the first, the log says so.
    pub(super) fn new(always: bool) -> Self {
        let start = || {
            let refused =
                "no scheduling points can be forced (guard.scheduling_points); the guard holds the volunteer without";
            Points::start().inspect_err(|error| tracing::warn!(%error, "{refused}")).ok()
        };
        Self { by_posture: !always, points: if always { start() } else { None } }
    }

    /// The posture decides.
    pub(super) const fn is_by_posture(&self) -> bool {
        self.by_posture
    }

    /// Starts what a posture takes, anew because the CPUs may be others, or ends what it does not.
    ///
    /// # Errors
    /// As [`Points::start`].
    pub(super) fn follow(&mut self, posture: Posture) -> io::Result<()> {
        if self.by_posture {
            self.points = None;
            self.points = (posture == Posture::Points).then(Points::start).transpose()?;
        }
        Ok(())
    }

    /// The volunteer runs from now on, or does not.
    pub(super) fn force(&self, runs: bool) {
        self.points.iter().for_each(|points| points.force(runs));
    }
}

/// The threads, one for each CPU that this process may run on.
#[derive(Debug)]
struct Points {
    orders: Arc<AtomicU8>,
    threads: Vec<JoinHandle<()>>,
}

impl Points {
    /// Starts them, at rest.
    ///
    /// # Errors
    /// The system's error when a thread cannot be started, kept to its CPU or put into the real-time class.
    fn start() -> io::Result<Self> {
        let mut points = Self { orders: Arc::new(AtomicU8::new(REST)), threads: Vec::new() };
        let (entered, results) = channel();
        for cpu in cpus()? {
            let (orders, entered) = (Arc::clone(&points.orders), entered.clone());
            let thread = thread::Builder::new().name(format!("point-{cpu}"));
            points.threads.push(thread.spawn(move || run(cpu, &orders, entered))?);
        }
        drop(entered);
        // Each thread sends one and gives the channel up.
        results.iter().collect::<io::Result<()>>()?;
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
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic in the thread has been printed; there is nothing else to learn from it.
            _ = thread.join();
        }
    }
}

fn run(cpu: usize, orders: &AtomicU8, entered: Sender<io::Result<()>>) {
    let result = pin(cpu).and_then(|()| enter_real_time_class());
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
