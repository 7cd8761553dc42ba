//! Real faults: real daemons as processes, real control groups, real sockets. After kills, stops, cut links and full
//! disks the machine must be as before, and nothing acknowledged may be lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod block_device;
mod checker;
mod cuts;
mod device;
mod fleet;
mod groups;
mod kills;
mod levers;
mod network;
mod power;
mod random;
mod storm;

/// The tests want the machine for themselves.
static MACHINE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Holds the machine, whatever became of the test before.
fn machine() -> std::sync::MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
