//! Forced scheduling points (`guard.scheduling_points`): on each CPU a real-time thread that wakes every millisecond while the
//! volunteer runs, so that the kernel chooses anew who runs there. In: a CPU. Out: wake-ups on it. Called by
//! the guard, in one thread for each CPU.
//!
//! A kernel may leave a waiting foreground behind another one although only the volunteer is on the next CPU, until
//! something makes it choose. docs/isolation.md has what this costs and brings.

use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Between two points on a CPU. Chosen: far less than what a person notices, and a fraction of a percent of a CPU.
const PERIOD: Duration = Duration::from_millis(1);
/// Points between two looks at whether the volunteer still runs. Chosen: as often as the guard steps.
const POINTS: u32 = 50;

/// The CPUs that this process may run on.
pub(super) fn cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Puts this thread on a CPU, in the real-time class. Where the kernel refuses it, the log says so.
pub(super) fn enter(cpu: usize) -> bool {
    let entered = pin(cpu).and_then(|()| enter_real_time_class());
    if let Err(error) = &entered {
        tracing::warn!(%error, cpu, "no scheduling points can be forced (guard.scheduling_points); the guard holds the volunteer without");
    }
    entered.is_ok()
}

/// Forces some.
pub(super) fn force() {
    (0..POINTS).for_each(|_| std::thread::sleep(PERIOD));
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
