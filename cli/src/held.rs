//! Whether the guard holds a job's volunteer, and for how long. In: hosts as the aggregator sees them. Out: why it is held now, for
//! every command that shows hosts or jobs; and, of a host that is looked at again and again, a line at each change and how long in
//! all, for `gleaner run`, whose tasks make no progress meanwhile.

use gleaner_planner::controller::HostView;
use gleaner_types::job::{JobPhase, JobStatus};
use gleaner_types::report::{Reading, VolunteerState};
use gleaner_types::text::{counted, duration, harmless};
use gleaner_types::time::Timestamp;

/// Looks that must agree before a change is said: a pause to measure harm, or a burst, is over by the next. Chosen.
const AGREEING: u32 = 2;
/// A volunteer that may use less than this is held, whatever it is called. Chosen: a twentieth of a core.
const NEXT_TO_NOTHING_CORES: f64 = 0.05;
/// A foreground that uses less of the host does not explain by itself that the volunteer is held. Chosen: half of it.
const MUCH: f64 = 0.5;

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
        let why = by_guard(view);
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
                let line = format!("the guard holds the volunteer, so its tasks stand still: {why}");
                self.why = why;
                Some(line)
            }
            None => Some(format!("the volunteer runs again; it was held for {} so far", duration(self.total_s))),
        }
    }

    /// How long in all, in seconds.
    pub(crate) const fn total_s(&self) -> f64 {
        self.total_s
    }

    /// How long in all, in a sentence; `None` where it was never said that it is held.
    pub(crate) fn summary(&self) -> Option<String> {
        let line = || format!("the guard held the volunteer for {}: {}", duration(self.total_s), self.why);
        (!self.why.is_empty()).then(line)
    }
}

/// Most hosts of which it is said why their volunteers are held.
const MOST_NAMED: usize = 3;

/// That the guard holds volunteers of a job now, and why; `None` where it holds none. `hosts` are those that work for it.
pub(crate) fn of_hosts<'h>(hosts: impl Iterator<Item = &'h HostView>) -> Option<String> {
    let (mut of, mut held) = (0, Vec::new());
    for view in hosts {
        of += 1;
        held.extend(by_guard(view).map(|why| (&view.host, why)));
    }
    let (host, why) = held.first()?;
    if of == 1 {
        return Some(format!("the guard holds the volunteer of {host} now: {why}"));
    }
    let mut each: Vec<String> = held.iter().take(MOST_NAMED).map(|(host, why)| format!("{host}, {why}")).collect();
    if held.len() > MOST_NAMED {
        each.push(format!("and {}", counted(held.len() - MOST_NAMED, "more host")));
    }
    Some(format!("the guard holds {} of {of} volunteers now: {}", held.len(), each.join("; ")))
}

/// Whether a host's volunteer works for a job now. Several jobs may share the slots of one machine, which names the oldest.
pub(crate) fn works_for(view: &HostView, job: &JobStatus) -> bool {
    let is_active = matches!(job.phase, JobPhase::Profiling | JobPhase::Running);
    let machine = job.spec.workers.slots().filter(|_| is_active).map(|local| &local.host);
    view.job.as_ref() == Some(&job.spec.id) || machine == Some(&view.host)
}

/// The same as [`of_hosts`] of the hosts that work for a job, among others.
pub(crate) fn of_job(hosts: &[HostView], job: &JobStatus) -> Option<String> {
    of_hosts(hosts.iter().filter(|view| works_for(view, job)))
}

/// Why the guard holds a job's volunteer now; `None` while it may run, or where that is not known. One that an operator holds is
/// not the guard's.
pub(crate) fn by_guard(view: &HostView) -> Option<String> {
    let is_at_work = view.connected && view.job.is_some() && view.held_until.is_none();
    let report = view.report.as_ref().filter(|_| is_at_work)?;
    let volunteer = &report.volunteer;
    match (&volunteer.allowance, volunteer.state) {
        (Reading::Absent(absence), VolunteerState::Frozen) => Some(harmless(&absence.detail())),
        (Reading::Value(allowance), VolunteerState::Active) if allowance.cores() > NEXT_TO_NOTHING_CORES => None,
        (Reading::Value(_), VolunteerState::Active | VolunteerState::Frozen) => {
            let machine = &report.machine;
            Some(match &machine.cpu_foreground {
                Reading::Value(used) if used.cores() < MUCH * machine.cpu_capacity.cores() => {
                    "the foreground wanted more a moment ago, or it is a pause that measures harm".to_owned()
                }
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
    use gleaner_planner::controller::HeldUntil;
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
                (4, "the guard holds the volunteer, so its tasks stand still: the foreground uses 3.9 of 4.0 cores"),
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
        assert_eq!(by_guard(&view(VolunteerState::Active, 100.0)), None);
        assert!(by_guard(&view(VolunteerState::Active, 0.5)).is_some(), "next to nothing");
        let mut paused = view(VolunteerState::Frozen, 0.0);
        paused.report.as_mut().unwrap().machine.cpu_foreground = share(10.0);
        assert!(by_guard(&paused).unwrap().contains("a pause that measures harm"), "an idle foreground is no reason");
        let mut short = view(VolunteerState::Frozen, 0.0);
        let absence = gleaner_types::report::Absence::described(AbsenceKind::Disabled, "memory is short");
        short.report.as_mut().unwrap().volunteer.allowance = Reading::Absent(absence);
        assert_eq!(by_guard(&short).as_deref(), Some("memory is short"));
        short.held_until = Some(HeldUntil::Released);
        assert_eq!(by_guard(&short), None, "it is an operator who holds it");
        (short.job, short.held_until) = (None, None);
        assert_eq!(by_guard(&short), None);
        assert_eq!(HeldTime::default().summary(), None);
    }

    #[test]
    fn of_a_job_it_is_said_which_volunteers_are_held_and_why() {
        let named = |name: &str, state| HostView { host: HostId::new(name).unwrap(), ..view(state, 0.0) };
        let frozen = ["h1", "h2", "h3", "h4"].map(|name| named(name, VolunteerState::Frozen));
        let why = "the foreground uses 3.9 of 4.0 cores";
        assert_eq!(of_hosts(frozen[..1].iter()).unwrap(), format!("the guard holds the volunteer of h1 now: {why}"));
        let runs = view(VolunteerState::Active, 100.0);
        let said = of_hosts(frozen.iter().chain([&runs])).unwrap();
        assert_eq!(
            said,
            format!("the guard holds 4 of 5 volunteers now: h1, {why}; h2, {why}; h3, {why}; and 1 more host")
        );
        assert_eq!(of_hosts(std::iter::once(&runs)), None);
        let own = crate::fixtures::job("j", JobPhase::Running);
        assert!(of_job(&frozen, &own).unwrap().contains("4 of 4 volunteers"));
        assert_eq!(of_job(&frozen, &crate::fixtures::job("other", JobPhase::Running)), None);
    }
}
