//! CPU in the demo. In: the host's reports. Out: what was free, and what the job used of it. Called by the demo.

use gleaner_planner::controller::HostView;
use gleaner_types::report::HostHarm;
use gleaner_types::units::CoreShare;

/// What the host's CPU was used for while the job ran, summed over the agent's reports.
#[derive(Debug, Default)]
pub(super) struct Used {
    last_sequence: u64,
    pub(super) free_core_s: f64,
    pub(super) volunteer_core_s: f64,
    pub(super) shrinks: u64,
    pub(super) freezes: u64,
    /// As of the last report.
    pub(super) harm: Option<HostHarm>,
}

impl Used {
    pub(super) fn observe(&mut self, view: &HostView) {
        let Some(report) = view.report.as_ref().filter(|report| report.sequence > self.last_sequence) else { return };
        // Reports missed between two looks count like the one that was seen.
        let missed = match self.last_sequence {
            0 => 1,
            last => report.sequence - last,
        };
        self.last_sequence = report.sequence;
        let seconds = report.interval_s * missed as f64;
        if let (Some(foreground), Some(volunteer)) =
            (report.machine.cpu_foreground.value(), report.volunteer.cpu.value())
        {
            let free: CoreShare = report.machine.cpu_capacity.saturating_sub(*foreground);
            self.free_core_s += free.cores() * seconds;
            self.volunteer_core_s += volunteer.cores() * seconds;
        }
        self.shrinks = report.volunteer.guard_shrinks;
        self.freezes = report.volunteer.guard_freezes;
        self.harm = Some(report.harm.clone());
    }
}
