//! What states mean, and the colours of meanings: the only place that maps the one to the other. In: hosts, jobs, response
//! times, harm. Out: a word and its meaning, text in the meaning's colour, and the screen's style. Tables and the screen call
//! it. Whether colours are shown at all is decided where text is printed ([`crate::documents::print`]).

use anstyle::{AnsiColor, Effects, Style};
use gleaner_planner::advice::Standing;
use gleaner_planner::controller::HostView;
use gleaner_types::application::{ApplicationStatus, ResponseTime};
use gleaner_types::job::JobPhase;
use gleaner_types::report::{HostReport, VolunteerState};
use ratatui::style::{Color, Modifier};

use crate::admission::Admission;

/// What a state means to an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Something is broken or missed.
    Bad,
    /// Something may become bad, or waits.
    Warning,
    /// As it should be.
    Good,
    /// Held still, by an operator or by the guard.
    Held,
    /// Neither.
    Plain,
    /// Nothing to look at.
    Quiet,
}

impl Meaning {
    /// The text in this meaning's colour.
    pub(crate) fn paint(self, text: &str) -> String {
        let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        let style = match self {
            Self::Bad => colour(AnsiColor::Red).effects(Effects::BOLD),
            Self::Warning => colour(AnsiColor::Yellow),
            Self::Good => colour(AnsiColor::Green),
            Self::Held => colour(AnsiColor::Blue),
            Self::Quiet => Style::new().effects(Effects::DIMMED),
            Self::Plain => return text.to_owned(),
        };
        format!("{style}{text}{style:#}")
    }

    /// The same colour on the screen of `gleaner top`.
    pub(crate) const fn on_screen(self) -> ratatui::style::Style {
        let plain = ratatui::style::Style::new();
        match self {
            Self::Bad => plain.fg(Color::Red).add_modifier(Modifier::BOLD),
            Self::Warning => plain.fg(Color::Yellow),
            Self::Good => plain.fg(Color::Green),
            Self::Held => plain.fg(Color::Blue),
            Self::Quiet => plain.add_modifier(Modifier::DIM),
            Self::Plain => plain,
        }
    }
}

/// How a host stands.
pub(crate) fn host(view: &HostView) -> (&'static str, Meaning) {
    match (view.connected, view.facts.levers.acting, view.held_until) {
        _ if view.unreadable.is_some() => ("unreadable", Meaning::Bad),
        _ if view.revoked => ("revoked", Meaning::Quiet),
        (false, ..) if view.left => ("left", Meaning::Quiet),
        (false, ..) => ("lost", Meaning::Bad),
        _ if view.silent => ("lost", Meaning::Bad),
        (true, _, Some(_)) => ("held", Meaning::Held),
        (true, true, None) => ("acting", Meaning::Good),
        (true, false, None) => ("observing", Meaning::Plain),
    }
}

/// Whether a host may act, by the advice about it.
pub(crate) const fn standing(standing: &Standing) -> (&'static str, Meaning) {
    match standing {
        Standing::Ready => ("ready", Meaning::Good),
        Standing::Observing { .. } => ("observing", Meaning::Plain),
        Standing::Held { .. } => ("held", Meaning::Held),
        Standing::Unable { .. } => ("unable", Meaning::Bad),
    }
}

/// A host's volunteer; `None` without a report.
pub(crate) const fn volunteer(state: Option<&VolunteerState>) -> (&'static str, Meaning) {
    match state {
        Some(VolunteerState::Active) => ("active", Meaning::Good),
        Some(VolunteerState::Frozen) => ("frozen", Meaning::Held),
        Some(VolunteerState::Latent) => ("latent", Meaning::Quiet),
        Some(VolunteerState::Unknown(_)) => ("unknown", Meaning::Warning),
        None => ("-", Meaning::Quiet),
    }
}

/// Harm: bad only where the whole interval is above the budget.
pub(crate) fn harm(report: &HostReport) -> Meaning {
    let over = report.harm.foreground.value().is_some_and(|harm| harm.low_percent > report.harm.budget_percent);
    if over { Meaning::Bad } else { Meaning::Plain }
}

/// A job's phase.
pub(crate) const fn phase(phase: &JobPhase) -> Meaning {
    match phase {
        JobPhase::Running | JobPhase::Completed => Meaning::Good,
        JobPhase::Failed { .. } => Meaning::Bad,
        JobPhase::Waiting { .. } => Meaning::Warning,
        JobPhase::Profiling | JobPhase::Cancelled => Meaning::Plain,
    }
}

/// An application's response time against its target; missed from a tenth above, as the event `target_missed` counts it.
pub(crate) fn response(own: &ApplicationStatus) -> (&'static str, Meaning) {
    match own.response.as_ref().map(|(_, response)| response) {
        Some(ResponseTime::Mean { mean_ms }) if *mean_ms > own.spec.target_ms * 1.1 => ("missed", Meaning::Bad),
        Some(ResponseTime::Mean { mean_ms }) if *mean_ms > own.spec.target_ms => ("above", Meaning::Warning),
        Some(ResponseTime::Mean { .. }) => ("met", Meaning::Good),
        Some(ResponseTime::Idle) => ("idle", Meaning::Quiet),
        Some(ResponseTime::Late { .. }) => ("late", Meaning::Warning),
        Some(ResponseTime::Missing { .. }) => ("missing", Meaning::Warning),
        Some(ResponseTime::Absurd { .. }) => ("absurd", Meaning::Warning),
        Some(ResponseTime::Stalled) => ("stalled", Meaning::Bad),
        None => ("waiting", Meaning::Quiet),
    }
}

/// Whether a host may join, or is shut out.
pub(crate) const fn admission(own: &Admission) -> (&'static str, Meaning) {
    match own {
        Admission::Invited(_) => ("invited", Meaning::Plain),
        Admission::Revoked(_) => ("revoked", Meaning::Bad),
    }
}

/// An event, by its name.
pub(crate) fn event(name: &str) -> Meaning {
    const BAD: [&str; 7] = [
        "host_lost",
        "restore_failed",
        "plan_rejected",
        "harm_over_budget",
        "target_missed",
        "ledger_refused",
        "promises_broken",
    ];
    let warns = [
        "failed",
        "refused",
        "lost",
        "rejected",
        "expired",
        "at_risk",
        "shortfall",
        "contested",
        "not_renewed",
        "expiring",
    ];
    match name {
        name if BAD.contains(&name) => Meaning::Bad,
        "host_held" | "all_hosts_held" | "guard_acted" => Meaning::Held,
        "application_released" | "surge_relieved" | "bottleneck_elsewhere" => Meaning::Warning,
        "goal_back_in_reach" | "target_met" | "harm_within_budget" => Meaning::Good,
        name if warns.iter().any(|word| name.contains(word)) => Meaning::Warning,
        _ => Meaning::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::host_view;
    use gleaner_planner::controller::HeldUntil;
    use gleaner_types::id::HostId;
    use gleaner_types::time::Timestamp;

    #[test]
    fn colours_are_around_the_text_and_only_where_it_means_something() {
        assert_eq!(Meaning::Plain.paint("x"), "x");
        assert_eq!(Meaning::Good.paint("x"), "\u{1b}[32mx\u{1b}[0m");
        assert_eq!(anstream::adapter::strip_str(&Meaning::Bad.paint("lost")).to_string(), "lost");
    }

    #[test]
    fn a_host_that_is_lost_is_bad_even_when_it_is_held() {
        let host = HostId::new("h").unwrap();
        let mut view = host_view(gleaner_test_support::report::report(&host, 1));
        assert_eq!(self::host(&view), ("acting", Meaning::Good));
        view.held_until = Some(HeldUntil::Time(Timestamp(u64::MAX)));
        assert_eq!(self::host(&view), ("held", Meaning::Held));
        view.connected = false;
        assert_eq!(self::host(&view), ("lost", Meaning::Bad));
        view.left = true;
        assert_eq!(self::host(&view), ("left", Meaning::Quiet));
    }

    #[test]
    fn events_that_need_a_look_are_told_from_others() {
        for (name, meaning) in [
            ("host_lost", Meaning::Bad),
            ("command_refused", Meaning::Warning),
            ("guard_acted", Meaning::Held),
            ("target_met", Meaning::Good),
            ("job_sized", Meaning::Plain),
        ] {
            assert_eq!(event(name), meaning, "{name}");
        }
    }
}
