//! The machine's speed. In: a little work every half second. Out: the CPU time that it took, in the middle. Called by
//! `tests/spark`: figures that depend on the speed are not judged while other work slows the machine down, as on a
//! virtual machine that shares its cores.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A machine that became slower, or faster, than this many times is another machine. Chosen.
pub const STEADY: f64 = 1.2;

/// Does a little every half second and notes the CPU time it takes.
#[derive(Debug)]
pub struct Pace {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

impl Pace {
    /// Starts to measure.
    #[must_use]
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            // The first one pays for what is not there yet.
            a_little_ms();
            loop {
                all.push(a_little_ms());
                if seen.load(Ordering::Relaxed) {
                    return all;
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        Self { stop, thread }
    }

    /// What a little took since the start, in milliseconds of CPU time, in the median.
    #[must_use]
    pub fn median_ms(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = self.thread.join().unwrap();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }
}

fn a_little_ms() -> f64 {
    let before = on_cpu_ms();
    let mut hasher = DefaultHasher::new();
    (0..10_000_u64).for_each(|number| hasher.write_u64(number));
    std::hint::black_box(hasher.finish());
    on_cpu_ms() - before
}

/// CPU time of this thread, to now: the kernel's statistics of a thread are only as new as its last tick.
fn on_cpu_ms() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}
