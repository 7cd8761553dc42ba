//! Other work on this machine. In: the host's reports before the demo starts anything. Out: the CPU in use. Called by
//! the demo.

use std::fmt;
use std::time::{Duration, Instant};

use gleaner_types::units::CoreShare;
use serde::Serialize;

use crate::stack::Stack;

/// How many reports are read, one a second.
const REPORTS: u64 = 3;
/// The longest that the demo waits for them.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(8);
/// When others use more than this part of the machine, the demo's figures say little of a quiet machine. (Chosen.)
const BUSY_PART: f64 = 0.1;

/// CPU that others used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Others {
    busy: CoreShare,
    capacity: CoreShare,
}

impl Others {
    /// Others use so much that the demo's figures are not those of a quiet machine.
    pub(super) fn is_much(&self) -> bool {
        self.busy.cores() > BUSY_PART * self.capacity.cores()
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (busy, capacity) = (self.busy.cores(), self.capacity.cores());
        write!(f, "this machine is busy with other things: {busy:.1} of {capacity:.0} CPUs are in use")
    }
}

/// Measures the machine for some seconds; `None` where its agent does not report in time.
pub(super) async fn measure(stack: &Stack) -> Option<Others> {
    let (began, mut seen, mut last, mut sum, mut capacity) = (Instant::now(), 0, 0, 0.0, CoreShare::ZERO);
    while seen < REPORTS && began.elapsed() < MEASURE_TIMEOUT {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Ok(Some(view)) = stack.host().await else { continue };
        let Some(report) = view.report.as_ref().filter(|report| report.sequence > last) else { continue };
        last = report.sequence;
        if let Some(busy) = report.machine.cpu_busy.value() {
            (seen, sum, capacity) = (seen + 1, sum + busy.cores(), report.machine.cpu_capacity);
        }
    }
    (seen > 0).then(|| Others { busy: CoreShare::clamped(sum / seen as f64 * 100.0), capacity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_machine_is_much() {
        let of = |percent| Others { busy: CoreShare::clamped(percent), capacity: CoreShare::from_cores(4) };
        assert!(!of(39.0).is_much() && of(41.0).is_much());
        assert_eq!(of(120.0).to_string(), "this machine is busy with other things: 1.2 of 4 CPUs are in use");
    }
}
