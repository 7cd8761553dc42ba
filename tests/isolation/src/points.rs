//! Forced scheduling points: on each CPU a real-time thread that wakes every millisecond, so that the kernel chooses anew
//! who runs there. In: nothing. Out: the threads, until they are dropped. [`crate::cell`] starts them for the row `points`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;

use crate::host;

/// Between two points on a CPU.
const PERIOD: Duration = Duration::from_millis(1);

/// The threads while they run.
#[derive(Debug)]
pub struct Points {
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Points {
    /// Starts a thread on each CPU that this process may run on.
    ///
    /// # Errors
    /// The real-time class or the CPU is refused, which takes root.
    pub fn start() -> anyhow::Result<Self> {
        let mut own = Self { stopped: Arc::default(), threads: Vec::new() };
        let (sender, started) = std::sync::mpsc::channel();
        for cpu in 0..host::cpus() {
            let (stopped, sender) = (Arc::clone(&own.stopped), sender.clone());
            own.threads.push(std::thread::spawn(move || {
                let on_its_cpu = pin(cpu).and_then(|()| enter_real_time_class());
                let is_good = on_its_cpu.is_ok();
                _ = sender.send(on_its_cpu);
                while is_good && !stopped.load(Ordering::Relaxed) {
                    std::thread::sleep(PERIOD);
                }
            }));
        }
        for _ in &own.threads {
            started.recv()?.context("failed to start a real-time thread on a CPU")?;
        }
        Ok(own)
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
    }
}

fn pin(cpu: usize) -> std::io::Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &cpus)?)
}

#[expect(unsafe_code, reason = "no safe wrapper sets a scheduling class")]
fn enter_real_time_class() -> std::io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter is a valid `sched_param`, which the call only reads; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) } == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error())
}
