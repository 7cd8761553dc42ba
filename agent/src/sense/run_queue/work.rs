//! How many instructions a workload's threads completed in a trial, and in how many cycles. In: the threads whose waits are
//! counted, and what opens the CPU's counters on them. Out: raw counters, or why there are none. Called by `run_queue`
//! for the harm meter. What reads the counters is behind a trait, so that a test can make them up: the counters of a virtual
//! machine are rarely there.

use std::path::Path;

use gleaner_planner::harm::Work;
use gleaner_types::report::{Absence, Reason};

use crate::sense::perf::Counters;

/// Most threads on which counters are opened in a trial, of all workloads together: each takes three files. (Chosen.)
pub(super) const MOST_COUNTED: usize = 256;

/// Counters that are open on some threads.
pub(crate) trait WorkCounter: std::fmt::Debug {
    /// What the threads did since the counters were opened.
    ///
    /// # Errors
    /// Why that is not known.
    fn read(&mut self) -> Result<Work, Absence>;
}

/// Whose work a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doer {
    Itself,
    /// A guest. While it rests KVM waits for its next work in a loop of many cycles and few instructions, but only where nobody
    /// else, as the volunteer, wants the CPU. So only what the CPU does in the guest counts.
    Guest,
}

/// Opens counters on threads.
pub(crate) type OpenWork = fn(&[i32], Doer) -> Result<Box<dyn WorkCounter>, Absence>;

impl WorkCounter for Counters<2> {
    fn read(&mut self) -> Result<Work, Absence> {
        let [cycles, instructions] = self.sums()?;
        Ok(Work { cycles, instructions })
    }
}

/// The CPU's own counters.
pub(crate) fn by_hardware(threads: &[i32], doer: Doer) -> Result<Box<dyn WorkCounter>, Absence> {
    Ok(Box::new(Counters::of_work(threads, doer == Doer::Guest)?))
}

/// None, as the config has it.
pub(crate) fn unused(_: &[i32], _: Doer) -> Result<Box<dyn WorkCounter>, Absence> {
    Err(Absence::because(Reason::CountersNotUsed))
}

/// The thread whose `schedstat` this is.
pub(super) fn thread_of(schedstat: &Path) -> Option<i32> {
    schedstat.parent()?.file_name()?.to_str()?.parse().ok()
}
