//! For how long the guard holds a job's volunteer. In: the host, as often as it is looked at. Out: a line at each change, and how
//! long in all. Called by `gleaner run`, whose tasks make no progress meanwhile.

use gleaner_planner::controller::HostView;
use gleaner_types::report::{Reading, VolunteerState};
use gleaner_types::time::Timestamp;

use crate::format::{clean, seconds};

/// Looks that must agree before a change is said: a pause to measure harm, or a burst, is over by the next. Chosen.
const AGREEING: u32 = 2;
/// A volunteer that may use less than this is held, whatever it is called. Chosen: a twentieth of a core.
const NEXT_TO_NOTHING_CORES: f64 = 0.05;

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct HeldTime {
    /// The last look: when, and whether it was held then.
    last: Option<(Timestamp, bool)>,
    /// What was said last.
    said: bool,
    /// Looks in a row that say otherwise.
    otherwise: u32,
    /// In all, in seconds.
    total_s: f64,
    /// Why, as it was said last.
    why: String,
}

impl HeldTime {
    /// Takes a look. Gives a line where there is a change to tell.
    pub(crate) fn look(&mut self, view: &HostView, at: Timestamp) -> Option<String> {
        let why = reason(view);
        let held = why.is_some();
        if let Some((before, true)) = self.last
            && held
        {
            self.total_s += at.seconds_since(before);
        }
        self.last = Some((at, held));
        self.otherwise = if held == self.said { 0 } else { self.otherwise + 1 };
        if self.otherwise < AGREEING {
            return None;
        }
        (self.said, self.otherwise) = (held, 0);
        match why {
            Some(why) => {
                let line = format!("the guard holds the volunteer, so no task runs: {why}");
                self.why = why;
                Some(line)
            }
            None => Some(format!("the volunteer runs again; it was held for {} so far", seconds(self.total_s))),
        }
    }

    /// How long in all, in seconds.
    pub(crate) const fn total_s(&self) -> f64 {
        self.total_s
    }

    /// How long in all, in a sentence; `None` where it was never said that it is held.
    pub(crate) fn summary(&self) -> Option<String> {
        let line = || format!("the guard held the volunteer for {}: {}", seconds(self.total_s), self.why);
        (!self.why.is_empty()).then(line)
    }
}

/// Why a job's volunteer is held; `None` while it may run, or where that is not known.
fn reason(view: &HostView) -> Option<String> {
    let report = view.report.as_ref().filter(|_| view.connected && view.job.is_some())?;
    let volunteer = &report.volunteer;
    match (&volunteer.allowance, volunteer.state) {
        (Reading::Absent(absence), VolunteerState::Frozen) => Some(clean(&absence.detail())),
        (Reading::Value(allowance), VolunteerState::Active) if allowance.cores() > NEXT_TO_NOTHING_CORES => None,
        (Reading::Value(_), VolunteerState::Active | VolunteerState::Frozen) => {
            let machine = &report.machine;
            Some(match &machine.cpu_foreground {
                Reading::Value(used) => {
                    format!("the foreground uses {:.1} of {:.1} cores", used.cores(), machine.cpu_capacity.cores())
                }
                Reading::Absent(_) => "the foreground needs the CPU".to_owned(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use gleaner_test_support::report::{report, share};
    use gleaner_types::id::{HostId, JobId};
    use gleaner_types::report::AbsenceKind;

    use super::*;
    use crate::fixtures::host_view;

    fn view(state: VolunteerState, allowance: f64) -> HostView {
        let mut report = report(&HostId::new("h").unwrap(), 1);
        report.volunteer.state = state;
        report.volunteer.allowance = share(allowance);
        report.machine.cpu_foreground = share(390.0);
        HostView { job: Some(job()), ..host_view(report) }
    }

    fn job() -> JobId {
        JobId::new("j").unwrap()
    }

    #[test]
    fn a_change_is_said_once_and_the_time_is_added_up() {
        let mut held = HeldTime::default();
        let (runs, frozen) = (view(VolunteerState::Active, 100.0), view(VolunteerState::Frozen, 0.0));
        let looks = [&runs, &frozen, &runs, &frozen, &frozen, &frozen, &runs, &runs];
        let lines: Vec<Option<String>> =
            (0..).zip(looks).map(|(second, view)| held.look(view, Timestamp(second * 2_000))).collect();
        let said: Vec<(usize, &str)> =
            lines.iter().enumerate().filter_map(|(place, line)| Some((place, line.as_deref()?))).collect();
        assert_eq!(
            said,
            [
                (4, "the guard holds the volunteer, so no task runs: the foreground uses 3.9 of 4.0 cores"),
                (7, "the volunteer runs again; it was held for 4 s so far"),
            ],
            "one look is a pause"
        );
        assert_eq!(
            held.summary().unwrap(),
            "the guard held the volunteer for 4 s: the foreground uses 3.9 of 4.0 cores"
        );
        assert!((held.total_s() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn it_is_held_for_its_reason_and_only_where_a_job_has_it() {
        assert_eq!(reason(&view(VolunteerState::Active, 100.0)), None);
        assert!(reason(&view(VolunteerState::Active, 0.5)).is_some(), "next to nothing");
        let mut short = view(VolunteerState::Frozen, 0.0);
        let absence = gleaner_types::report::Absence::described(AbsenceKind::Disabled, "memory is short");
        short.report.as_mut().unwrap().volunteer.allowance = Reading::Absent(absence);
        assert_eq!(reason(&short).as_deref(), Some("memory is short"));
        short.job = None;
        assert_eq!(reason(&short), None);
        assert_eq!(HeldTime::default().summary(), None);
    }
}
