//! What several of this crate's tests show: a host as an aggregator sees it. In: its report. Out: its view. Called by tests.

use gleaner_planner::controller::HostView;
use gleaner_types::report::HostReport;

/// A connected host that acts, with a report and nothing else.
pub(crate) fn host_view(report: HostReport) -> HostView {
    HostView {
        host: report.host.clone(),
        connected: true,
        incarnation: 1,
        facts: gleaner_test_support::report::facts(true),
        reported: None,
        report: Some(report),
        targets: Vec::new(),
        job: None,
        held_until: None,
        unreadable: None,
    }
}
