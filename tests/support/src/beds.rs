//! Real beds: tests that take minutes, root, other programs or the whole machine. In: the environment (`GLEANER_BEDS`).
//! Out: whether such a test runs; `cargo test` names each in one line and goes on, and `cargo xtask beds` runs them.
//! Called by every bed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lab;

/// The environment variable under which beds run; its value does not matter.
pub const VARIABLE: &str = "GLEANER_BEDS";

static MACHINE: Mutex<()> = Mutex::new(());

/// The machine, for one bed of a program at a time, whatever became of the one before.
pub fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this bed shall run; says in one line if not.
#[must_use]
pub fn wanted(test: &str) -> bool {
    let wanted = std::env::var_os(VARIABLE).is_some() || lab::inside();
    if !wanted {
        // Past the harness, which would swallow it.
        crate::skipped!("{test}: a real bed; `cargo xtask beds` runs it");
    }
    wanted
}
