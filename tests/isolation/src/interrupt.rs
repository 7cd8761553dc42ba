//! SIGINT and SIGTERM end a run in order. In: the signals. Out: an error from [`check`], which everything that waits
//! calls, so that what was made is undone on the way out. Started by the program `isolation`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The run was interrupted.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted; everything that was made is removed")
    }
}

impl std::error::Error for Interrupted {}

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on these signals are only noted.
#[expect(unsafe_code, reason = "a handler can only be set this way")]
pub fn watch() {
    let handler = note as *const () as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which a signal handler may do.
        unsafe {
            libc::signal(signal, handler);
        }
    }
}

/// Whether to go on.
///
/// # Errors
/// A signal came.
pub fn check() -> Result<(), Interrupted> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Waits, unless a signal comes.
///
/// # Errors
/// A signal came.
pub fn pause(time: Duration) -> Result<(), Interrupted> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Waits for a condition; whether it came within the limit.
///
/// # Errors
/// A signal came.
pub fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> Result<bool, Interrupted> {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        pause(Duration::from_millis(20))?;
    }
}
