//! The machine's speed. In: a little work every half second. Out: the CPU time that it took, in the mean. Called by
//! `tests/spark`: figures that depend on the speed are not judged while other work slows the machine down, as on a
//! virtual machine that shares its cores.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A machine that became slower than this many times is another machine. Chosen.
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
            while !seen.load(Ordering::Relaxed) {
                all.push(a_little_ms());
                std::thread::sleep(Duration::from_millis(500));
            }
            all
        });
        Self { stop, thread }
    }

    /// What a little took since the start, in milliseconds of CPU time, in the mean.
    #[must_use]
    pub fn mean_ms(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let all = self.thread.join().unwrap();
        all.iter().sum::<f64>() / all.len() as f64
    }
}

fn a_little_ms() -> f64 {
    let before = on_cpu_ms();
    let mut hasher = DefaultHasher::new();
    (0..10_000_u64).for_each(|number| hasher.write_u64(number));
    std::hint::black_box(hasher.finish());
    on_cpu_ms() - before
}

/// CPU time of this thread.
fn on_cpu_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e6
}
