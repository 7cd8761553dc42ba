//! Tables and lines for a terminal. In: replies of the aggregator. Out: text without control characters from guests or
//! tasks. Every command that prints calls it, and so does `gleaner top`.

use gleaner_api::AuditRecord;
use gleaner_planner::controller::{FleetHold, HeldUntil, HostView};
use gleaner_types::application::{Amount, ApplicationStatus, BalanceDecision, Bounds, ResponseTime, ShareDecision};
use gleaner_types::job::{Candidate, Goal, JobPhase, JobStatus, PoolShare, Workers};
use gleaner_types::report::{Absence, Bounded, Reading, ResidualForecast};
pub(crate) use gleaner_types::text::duration as seconds;
use gleaner_types::text::{counted, harmless};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Fraction};

use crate::admission::Admission;
use crate::held;
use crate::reserved;
use crate::states::{self, Meaning};

/// A table with columns as wide as their widest cell.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| shown(cell));
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> =
            cells.zip(&widths).map(|(cell, width)| format!("{cell}{}", " ".repeat(width - shown(cell)))).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut head.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

/// Characters of a cell that are seen: colours are not.
fn shown(cell: &str) -> usize {
    anstream::adapter::strip_str(cell).map(|part| part.chars().count()).sum()
}

/// Text without characters that act on a terminal.
pub(crate) fn clean(text: &str) -> String {
    harmless(text)
}

/// How far away a deadline is, which may be over.
pub(crate) fn deadline(left_s: f64) -> String {
    if left_s < 0.0 {
        format!("{} past the deadline", seconds(-left_s))
    } else {
        format!("deadline in {}", seconds(left_s))
    }
}

/// In what CPU is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CpuUnit {
    /// Cores: 1.50.
    #[default]
    Cores,
    /// Percent of one core: 150 %.
    Percent,
}

impl CpuUnit {
    /// The unit that the command line asks for.
    pub(crate) const fn of(percent: bool) -> Self {
        if percent { Self::Percent } else { Self::Cores }
    }

    /// The other one.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Cores => Self::Percent,
            Self::Percent => Self::Cores,
        }
    }

    pub(crate) fn show(self, share: CoreShare) -> String {
        match self {
            Self::Cores => format!("{:.2}", share.cores()),
            Self::Percent => share.to_string(),
        }
    }

    /// The same in a sentence.
    pub(crate) fn in_words(self, share: CoreShare) -> String {
        match self {
            Self::Cores => format!("{:.2} cores", share.cores()),
            Self::Percent => format!("{share} of a core"),
        }
    }

    /// The same where there is little room.
    pub(crate) fn brief(self, share: CoreShare) -> String {
        match self {
            Self::Cores => format!("{:.1}", share.cores()),
            Self::Percent => share.to_string(),
        }
    }
}

/// Readings in a table; those that are missing get a mark and a footnote.
#[derive(Debug, Default)]
pub(crate) struct Footnotes {
    reasons: Vec<String>,
}

impl Footnotes {
    pub(crate) fn cell<T>(&mut self, reading: &Reading<T>, show: impl Fn(&T) -> String) -> String {
        match reading {
            Reading::Value(value) => show(value),
            Reading::Absent(absence) => self.mark(absence),
        }
    }

    fn mark(&mut self, absence: &Absence) -> String {
        format!("-{}", self.note(&absence.to_string()))
    }

    /// The mark of a footnote.
    pub(crate) fn note(&mut self, reason: &str) -> String {
        let reason = clean(reason);
        let index = self.reasons.iter().position(|known| *known == reason).unwrap_or_else(|| {
            self.reasons.push(reason);
            self.reasons.len() - 1
        });
        format!("[{}]", index + 1)
    }

    pub(crate) fn text(&self) -> String {
        let notes = (1..).zip(&self.reasons).map(|(number, reason)| format!("\n[{number}] {reason}"));
        notes.collect()
    }
}

/// Open invitations and revoked hosts, in their order.
pub(crate) fn admissions(rows: &[Admission], now: Timestamp) -> String {
    let row = |own: &Admission| {
        let (state, meaning) = states::admission(own);
        let (since, left) = match own {
            Admission::Invited(one) => (one.made, seconds(one.expires.seconds_since(now).round())),
            Admission::Revoked(one) => (one.through, "-".to_owned()),
        };
        vec![own.host().to_string(), meaning.paint(state), age(since, now), left]
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    if rows.is_empty() {
        "no invitation is open, and no host is revoked".to_owned()
    } else {
        table(&["HOST", "STATE", "AGE", "EXPIRES IN"], &rows)
    }
}

/// What operators ordered.
pub(crate) fn audit<'a>(orders: impl Iterator<Item = &'a AuditRecord>) -> String {
    let outcome = |outcome: &str| match outcome {
        "asked" => "no outcome is recorded".to_owned(),
        outcome => clean(outcome),
    };
    let rows: Vec<_> = orders
        .map(|one| {
            let user = format!("{} ({})", clean(&one.user), one.uid);
            vec![clean(&one.time), user, clean(&one.request), outcome(&one.outcome)]
        })
        .collect();
    if rows.is_empty() {
        "no orders are recorded".to_owned()
    } else {
        table(&["TIME", "USER", "ORDER", "OUTCOME"], &rows)
    }
}

/// That an operator holds all hosts, briefly.
pub(crate) fn all_are_held(hold: &FleetHold) -> String {
    format!("ALL HOSTS ARE {}", held(hold.until.into(), Some(hold)).replacen("held", "HELD", 1))
}

/// The same, with since when it is so and what ends it.
pub(crate) fn all_held(hold: &FleetHold) -> String {
    format!("{}, since {}; `gleaner host release --all` gives them back", all_are_held(hold), hold.since)
}

/// How an operator holds a host, in words. Who it is, is known of a hold of all hosts.
pub(crate) fn held(until: HeldUntil, all: Option<&FleetHold>) -> String {
    let by = all.filter(|all| HeldUntil::from(all.until) == until).map(|all| all.by.as_str());
    until.in_words(by)
}

/// How old something is, to the second.
fn age(at: Timestamp, now: Timestamp) -> String {
    seconds(now.seconds_since(at).round())
}

/// What part of a host's promises broke, of what part may where that is stated, and the number behind it in brackets.
pub(crate) fn promises(forecast: &ResidualForecast) -> String {
    let percent = |part: Fraction| part.value() * 100.0;
    let of_windows = forecast.windows.and_then(|windows| Some((windows.broken_share()?, windows)));
    match (of_windows, forecast.windows, forecast.record.violation_rate()) {
        (Some((broken, windows)), ..) => {
            format!("{:.1} % of {} % ({})", percent(broken), rounded(percent(windows.risk)), windows.judged)
        }
        (None, None, Some(broken)) => format!("{:.1} % ({})", percent(broken), forecast.record.judged),
        _ => "none judged".to_owned(),
    }
}

/// A percentage without what its making as a part of one adds to its last digits.
fn rounded(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

/// The table of hosts.
pub(crate) fn hosts(hosts: &[HostView], all_held: Option<&FleetHold>, now: Timestamp, unit: CpuUnit) -> String {
    let mut notes = Footnotes::default();
    let (mut rows, mut unreadable) = (Vec::new(), String::new());
    for view in hosts {
        let (state, meaning) = states::host(view);
        let state = match (meaning, view.held_until) {
            (Meaning::Held, Some(until)) => held(until, all_held),
            _ => state.to_owned(),
        };
        let mut row = vec![view.host.to_string(), meaning.paint(&state), view.facts.cores.to_string()];
        match &view.report {
            Some(report) => {
                let share = |share: &CoreShare| unit.show(*share);
                row.push(notes.cell(&report.machine.cpu_busy, share));
                row.push(notes.cell(&report.foreground_cpu(), share));
                row.push(report.other_cpu().map_or_else(|| "-".to_owned(), |other| notes.cell(&other, share)));
                let both = |cpu: &Bounded<CoreShare>| format!("{} / {}", unit.show(cpu.expected), unit.show(cpu.safe));
                row.push(notes.cell(&report.residual.cpu, both));
                row.push(notes.cell(&report.volunteer.cpu, share));
                let protection = report.harm.protection.as_ref().map(|protection| notes.note(&protection.reason));
                let points = report.harm.scheduling_points.as_ref().map(|points| notes.note(&points.reason));
                let allowed = match held::by_guard(view) {
                    Some(why) => {
                        let allowed = report.volunteer.allowance.value().map_or_else(|| "-".to_owned(), share);
                        allowed + &notes.note(&format!("the guard holds the volunteer now: {why}"))
                    }
                    None => notes.cell(&report.volunteer.allowance, share),
                };
                let why: String = [protection, points].into_iter().flatten().collect();
                row.push(allowed + &why);
                row.push(states::harm(report).paint(&notes.cell(&report.harm.foreground, ToString::to_string)));
                row.push(promises(&report.residual));
            }
            None => row.extend(std::iter::repeat_n("no report".to_owned(), 8)),
        }
        unreadable.extend(view.unreadable.as_ref().map(|error| format!("\nhost {}: {error}", view.host)));
        row.push(view.reported.map_or_else(|| "-".to_owned(), |at| age(at, now)));
        row.push(view.job.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string));
        rows.push(row);
    }
    let head = [
        "HOST",
        "STATE",
        "CPUS",
        "BUSY",
        "FOREGROUND",
        "OTHER",
        "RESIDUAL expected / safe",
        "VOLUNTEER",
        "ALLOWED",
        "HARM",
        "PROMISES BROKEN",
        "AGE",
        "JOB",
    ];
    if rows.is_empty() { "no host has joined yet".into() } else { table(&head, &rows) + &notes.text() + &unreadable }
}

/// The table of jobs, and below it whose volunteers the guard holds.
pub(crate) fn jobs(jobs: &[JobStatus], hosts: &[HostView]) -> String {
    let row = |job: &JobStatus| {
        let progress = job.progress.as_ref();
        vec![
            job.spec.id.to_string(),
            job.spec.user.as_ref().map_or_else(|| "-".into(), ToString::to_string),
            states::phase(&job.phase).paint(job.phase.word()),
            goal(job.spec.goal),
            progress.map_or_else(|| "-".into(), |p| format!("{}/{}", p.tasks_done, p.tasks_total)),
            progress.map_or_else(|| "-".into(), |p| format!("{:.0} %", p.fraction_done.value() * 100.0)),
            progress.map_or_else(|| "-".into(), |p| p.tasks_failed.to_string()),
            job.volunteers.to_string(),
            job.share.as_ref().map_or_else(|| "-".into(), share),
            job.share.as_ref().map_or_else(|| "-".into(), ahead),
            job.cost.to_string(),
            format!("{:.1}", job.harvested_core_s),
        ]
    };
    let rows: Vec<_> = jobs.iter().map(row).collect();
    let head = [
        "JOB",
        "USER",
        "PHASE",
        "GOAL",
        "TASKS",
        "DONE",
        "FAILED",
        "VOLUNTEERS",
        "SHARE",
        "AHEAD",
        "COST",
        "CORE-SECONDS",
    ];
    if rows.is_empty() {
        return "no jobs".into();
    }
    let held = |job: &JobStatus| Some(format!("\n{}: {}", job.spec.id, held::of_job(hosts, job)?));
    let held: String = jobs.iter().filter_map(held).collect();
    table(&head, &rows) + &held
}

/// All applications as a table.
pub(crate) fn applications(all: &[ApplicationStatus], now: Timestamp) -> String {
    let mut notes = Footnotes::default();
    let mut row = |status: &ApplicationStatus| {
        let (state, meaning) = states::response(status);
        let why = match &status.response {
            Some((_, response @ (ResponseTime::Missing { .. } | ResponseTime::Absurd { .. }))) => {
                notes.note(&response_time(response))
            }
            _ => String::new(),
        };
        let mean_ms = status.response.as_ref().and_then(|(_, response)| response.mean_ms());
        let target_ms = status.spec.target_ms;
        vec![
            status.spec.name.to_string(),
            meaning.paint(state) + &why,
            three_digits(target_ms),
            mean_ms.map_or_else(|| "-".into(), three_digits),
            mean_ms.map_or_else(|| "-".into(), |mean_ms| format!("{:.0}", 100.0 * mean_ms / target_ms)),
            status.response.as_ref().map_or_else(|| "-".into(), |(at, _)| age(*at, now)),
            status.decision.as_ref().map_or_else(|| "-".into(), |decision| granted(&decision.shares)),
        ]
    };
    let rows: Vec<_> = all.iter().map(&mut row).collect();
    let head = ["APPLICATION", "STATE", "TARGET ms", "RESPONSE ms", "OF TARGET %", "AGE", "SHARES OF THEIR HOSTS"];
    if rows.is_empty() { "no applications".into() } else { table(&head, &rows) + &notes.text() }
}

fn granted(shares: &[ShareDecision]) -> String {
    let one = |share: &ShareDecision| {
        format!("{} {} {} %", share.tier, word(share.resource), three_digits(share.granted * 100.0))
    };
    shares.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A number that is not negative, to three digits and no more than two behind the point.
pub(crate) fn three_digits(number: f64) -> String {
    match number {
        _ if number >= 99.95 => format!("{number:.0}"),
        _ if number >= 9.995 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// What a source said.
pub(crate) fn response_time(response: &ResponseTime) -> String {
    match response {
        ResponseTime::Mean { mean_ms } => format!("{} ms", three_digits(*mean_ms)),
        ResponseTime::Idle => "idle".into(),
        ResponseTime::Late { age_s } => format!("{} old", seconds(*age_s)),
        ResponseTime::Missing { reason } => format!("missing: {}", clean(reason)),
        ResponseTime::Absurd { value } => format!("absurd: {}", clean(value)),
        ResponseTime::Stalled => "stalled".into(),
    }
}

/// One application: what it is and where it stands.
pub(crate) fn application(status: &ApplicationStatus) -> String {
    let spec = &status.spec;
    let mut lines = vec![format!("{}: target {} ms", spec.name, spec.target_ms)];
    if let Some((at, response)) = &status.response {
        lines.push(format!("  response time at {at}: {}", response_time(response)));
    }
    for tier in &spec.tiers {
        let bounds = |what: &str, bounds: Option<Bounds>, unit: &str| {
            bounds.map(|own| format!("{what} {} to {} {unit}", own.floor, own.ceiling))
        };
        let all = [
            bounds("CPU", tier.cpu_percent, "%"),
            bounds("memory", tier.memory_mib, "MiB"),
            bounds("disk", tier.disk_mb_s, "MB/s"),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        lines.push(format!("  tier {}: {} on {}; {}", tier.name, tier.workload, tier.host, all.join(", ")));
    }
    if let Some(decision) = &status.decision {
        lines.push(format!("  {}", clean(&decision.reason)));
    }
    lines.join("\n")
}

/// A decision about an application and everything behind it.
pub(crate) fn balance(decision: &BalanceDecision) -> String {
    let mut lines = vec![
        format!("decision {} about application {} at {}", decision.number, decision.application, decision.at),
        format!("  {}", clean(&decision.reason)),
    ];
    if let (Some(model), Some(predicted)) = (decision.model, decision.predicted) {
        let neighbour = if decision.neighbour { " of another condition of load" } else { "" };
        lines.push(format!(
            "  {} model{neighbour} of {}; it expects {:.1} ms",
            word(model),
            counted(decision.rows, "interval"),
            decision.target_ms / predicted.max(1e-9)
        ));
    }
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let row = |share: &ShareDecision| {
        vec![
            share.tier.to_string(),
            share.host.to_string(),
            word(share.resource),
            if share.movable { word(share.load) } else { "no lever".into() },
            percent(share.present),
            format!("{} to {}", percent(share.lower), percent(share.upper)),
            format!("{:.2}", share.gain),
            percent(share.requested),
            percent(share.granted),
            share.whole.map_or_else(
                || "-".into(),
                |whole| Amount::of(share.resource, share.granted * whole.value()).to_string(),
            ),
        ]
    };
    let head = ["TIER", "HOST", "RESOURCE", "LOAD", "PRESENT", "BOUNDS", "GAIN", "REQUESTED", "GRANTED", "LIMIT"];
    lines.push(table(&head, &decision.shares.iter().map(row).collect::<Vec<_>>()));
    lines.join("\n")
}

/// A moment that is foreseen, to the second: nobody knows it better.
fn foreseen(at: Timestamp) -> String {
    let exact = at.to_string();
    exact.split_once('.').map_or_else(|| exact.clone(), |(to_the_second, _)| format!("{to_the_second}Z"))
}

/// A name of an enumeration as JSON has it.
pub(crate) fn word(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A goal in a few words.
pub(crate) fn goal(goal: Goal) -> String {
    match goal {
        Goal::Deadline { within_s } => format!("within {}", seconds(within_s)),
        Goal::Energy => "least energy".into(),
        Goal::Cost { budget: None } => "cheapest".into(),
        Goal::Cost { budget: Some(budget) } => format!("at most {budget}"),
    }
}

/// Everything about one job; `held` says that the guard holds its volunteers.
pub(crate) fn job(job: &JobStatus, held: Option<&str>) -> String {
    let mut lines = vec![format!("job {}: {}", job.spec.id, phase(&job.phase))];
    let mut line = |name: &str, value: String| lines.push(format!("  {name:<12} {value}"));
    if let Some(user) = &job.spec.user {
        line("user", user.to_string());
    }
    line("goal", goal(job.spec.goal));
    line("submitted", job.submitted.to_string());
    if let Some(deadline) = job.deadline {
        line("deadline", deadline.to_string());
    }
    let late = |at: Timestamp| {
        let late_s = job.deadline.map_or(0.0, |deadline| at.seconds_since(deadline));
        if late_s > 0.0 { format!(", {} late for its deadline", seconds(late_s)) } else { String::new() }
    };
    if let Some(estimate) = job.completion_estimate {
        let late = if job.ended.is_none() { late(estimate) } else { String::new() };
        line("estimate", foreseen(estimate) + &late);
    }
    if let Some(ended) = job.ended {
        line("ended", format!("{ended}, after {}{}", seconds(ended.seconds_since(job.submitted)), late(ended)));
    }
    if let Some(p) = &job.progress {
        line("progress", format!("{:.1} %", p.fraction_done.value() * 100.0));
        let counts = format!(
            "{} of {} done, {} failed, {} retried, {} running on {}",
            p.tasks_done,
            p.tasks_total,
            p.tasks_failed,
            p.tasks_retried,
            p.tasks_running,
            counted(p.slots_in_use, "slot")
        );
        line("tasks", counts);
        if let Some(mean) = p.mean_task_s {
            line("mean task", seconds(mean));
        }
    }
    for node in job.progress.iter().flat_map(|progress| &progress.leases) {
        line("lease", reserved::line(node));
    }
    line("volunteers", job.volunteers.to_string());
    if let Some(held) = held {
        line("held", held.to_owned());
    }
    if let Some(share) = &job.share {
        line("share", pool_share(share, &job.spec.workers));
    }
    line("cost", job.cost.to_string());
    // Above all of it, the idle time is not known of every interval that was harvested in.
    let known = job.idle_core_s > 0.0 && job.harvested_core_s <= job.idle_core_s;
    let of_idle = known.then(|| {
        let percent = 100.0 * job.harvested_core_s / job.idle_core_s;
        format!(", {percent:.0} % of the CPU that the foreground left idle")
    });
    line("harvested", format!("{:.1} core-seconds{}", job.harvested_core_s, of_idle.unwrap_or_default()));
    if let Some(harm) = &job.harm {
        line("foreground", format!("{harm} slower ({})", counted(harm.trials, "pause")));
    }
    line("decisions", job.decisions.to_string());
    if let Some(energy_wh) = job.energy_wh {
        line("energy", format!("{energy_wh:.1} Wh"));
    }
    if let Some(output_dir) = job.spec.engine.options.text("output_dir") {
        line("output", clean(&output_dir));
    }
    lines.join("\n")
}

/// Workers that a job may have, of those it wants.
pub(crate) fn share(share: &PoolShare) -> String {
    format!("{} of {}", share.allotted, share.wanted)
}

/// How far a job is ahead of fair sharing.
pub(crate) fn ahead(share: &PoolShare) -> String {
    let sign = if share.ahead_s < 0.0 { "-" } else { "+" };
    format!("{sign}{}", seconds(share.ahead_s.abs()))
}

/// What a job has of hosts, or of slots of its machine, that several jobs want, in a sentence.
pub(crate) fn pool_share(of: &PoolShare, workers: &Workers) -> String {
    let worker = match workers {
        Workers::Slots(_) => "slot",
        Workers::Hosts(_) => "host",
    };
    let by = match of.fair_completion {
        Some(at) => format!("; by fair sharing alone it would be done at {}", foreseen(at)),
        None => "; when it would be done by fair sharing alone is not known yet".into(),
    };
    let seconds_of =
        |amount: f64| format!("{amount:.0} {worker}-second{}", if (0.5..1.5).contains(&amount) { "" } else { "s" });
    let credit = match of.credit_s {
        had if had >= 0.0 => format!("{} borrowed", seconds_of(had)),
        lent => format!("{} lent", seconds_of(-lent)),
    };
    let of_user = match of.user_jobs {
        0 | 1 => String::new(),
        jobs => format!(" (its user's {jobs} jobs together {:.1})", of.user_fair),
    };
    format!(
        "{} of {} it wants, fair would be {:.1}{of_user}; {credit} ({} against fair sharing){by}",
        of.allotted,
        counted(of.wanted, worker),
        of.fair,
        ahead(of)
    )
}

fn phase(phase: &JobPhase) -> String {
    let word = states::phase(phase).paint(phase.word());
    match phase {
        JobPhase::Waiting { reason } | JobPhase::Failed { reason } => format!("{word}: {}", clean(reason)),
        _ => word,
    }
}

/// Candidates of a decision, the chosen one marked: the curve behind a size. CPU is in cores or in percent of one.
pub(crate) fn candidates(candidates: &[Candidate], chosen: u32, unit: CpuUnit) -> String {
    let energy = candidates.iter().any(|candidate| candidate.energy_wh.is_some());
    let row = |c: &Candidate| {
        let mut cells = vec![
            if c.size == chosen { "→".into() } else { " ".into() },
            c.size.to_string(),
            unit.show(c.potential),
            unit.show(c.predicted),
            seconds(c.completion_s),
            c.cost.to_string(),
        ];
        if energy {
            cells.push(c.energy_wh.map_or_else(|| "-".into(), |energy_wh| format!("{energy_wh:.0} Wh")));
        }
        cells.extend([if c.meets_goal { "yes".into() } else { "no".into() }, format!("{:.2}", c.score)]);
        cells
    };
    let mut head = vec!["", "SIZE", "POTENTIAL", "PREDICTED", "DONE IN", "COST"];
    if energy {
        head.push("ENERGY");
    }
    head.extend(["MEETS GOAL", "SCORE"]);
    table(&head, &candidates.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::HostId;
    use gleaner_types::report::{AbsenceKind, PromiseRecord, PromiseWindows};

    use super::*;
    use crate::fixtures::host_view;

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".into(), "10".into()], vec!["long".into(), "1".into()]];
        assert_eq!(table(&["X", "NUMBER"], &rows), "X     NUMBER\na     10\nlong  1");
        let coloured = [vec![Meaning::Bad.paint("a"), "10".into()], vec!["long".into(), Meaning::Good.paint("1")]];
        let text = table(&["X", "NUMBER"], &coloured);
        assert_eq!(anstream::adapter::strip_str(&text).to_string(), "X     NUMBER\na     10\nlong  1");
    }

    #[test]
    fn a_deadline_that_is_over_is_no_negative_time() {
        assert_eq!(
            (deadline(65.0).as_str(), deadline(-6.0).as_str()),
            ("deadline in 1 min 05 s", "6 s past the deadline")
        );
    }

    #[test]
    fn missing_readings_get_one_footnote_per_reason() {
        let mut notes = Footnotes::default();
        let absent: Reading<u32> = Reading::absent(AbsenceKind::NotYet, "it takes\n two samples");
        assert_eq!(notes.cell(&absent, ToString::to_string), "-[1]");
        assert_eq!(notes.cell(&absent, ToString::to_string), "-[1]");
        assert_eq!(notes.text(), "\n[1] not available, because it takes? two samples");
    }

    #[test]
    fn lists_say_that_the_guard_holds_a_volunteer_and_who_holds_a_host() {
        let host = HostId::new("h").unwrap();
        let mut report = gleaner_test_support::report::report(&host, 1);
        report.volunteer.state = gleaner_types::report::VolunteerState::Frozen;
        report.volunteer.allowance = Reading::absent(AbsenceKind::Disabled, "memory is short");
        let job = crate::fixtures::job("j", JobPhase::Running);
        let mut view = HostView { job: Some(job.spec.id.clone()), ..host_view(report) };
        let all = |view: &HostView, hold: Option<&FleetHold>| {
            hosts(std::slice::from_ref(view), hold, Timestamp(0), CpuUnit::Cores)
        };
        let said = "the guard holds the volunteer now: memory is short";
        assert!(all(&view, None).lines().any(|line| line.ends_with(said)), "{}", all(&view, None));
        let of_jobs = jobs(std::slice::from_ref(&job), std::slice::from_ref(&view));
        assert!(of_jobs.ends_with("\nj: the guard holds the volunteer of h now: memory is short"), "{of_jobs}");
        let held = held::of_job(std::slice::from_ref(&view), &job);
        assert!(super::job(&job, held.as_deref()).contains("  held         the guard holds the volunteer of h now"));

        view.held_until = Some(HeldUntil::Released);
        assert!(all(&view, None).contains("held until released") && !all(&view, None).contains(said));
        let hold = FleetHold { by: "ann".into(), since: Timestamp(0), until: None };
        assert!(all(&view, Some(&hold)).contains("held by ann until released"));
        assert!(all_held(&hold).starts_with("ALL HOSTS ARE HELD by ann until released, since 1970-01-01T"));
        assert_eq!(jobs(&[job], &[view]).lines().count(), 2, "it is not the guard's");
    }

    #[test]
    fn applications_and_admissions_have_a_state_and_an_age_like_hosts() {
        let now = Timestamp(65_000);
        let mut shop = crate::fixtures::application();
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        let words = |text: &str| text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = plain(&applications(std::slice::from_ref(&shop), now));
        assert_eq!(words(&shown), "shop missed 100 250 250 1 min 05 s -", "{shown}");
        let missing = ResponseTime::Missing { reason: "nobody\u{1b} answers".into() };
        shop.response = Some((Timestamp(60_000), missing));
        let shown = plain(&applications(&[shop], now));
        assert_eq!(words(&shown), "shop missing[1] 100 - - 5 s -", "{shown}");
        assert!(shown.ends_with("[1] missing: nobody? answers"), "{shown}");

        let host = HostId::new("h9").unwrap();
        let invited =
            gleaner_api::InvitationView { host: host.clone(), made: Timestamp(5_000), expires: Timestamp(3_665_000) };
        let revoked = gleaner_api::RevocationView { host, through: Timestamp(0) };
        let rows = [Admission::Invited(invited), Admission::Revoked(revoked)];
        let shown = plain(&admissions(&rows, now));
        assert_eq!(words(&shown), "h9 invited 1 min 00 s 1 h 00 min", "{shown}");
        assert!(shown.lines().nth(2).unwrap().ends_with("revoked  1 min 05 s  -"), "{shown}");
    }

    #[test]
    fn what_broke_stands_beside_what_may_and_the_number_behind_it() {
        let mut forecast = gleaner_test_support::report::residual(300.0, 200.0);
        assert_eq!(promises(&forecast), "none judged");
        forecast.record = PromiseRecord { judged: 400, broken: 5 };
        assert_eq!(promises(&forecast), "1.2 % (400)", "a method or an agent that states no risk");
        forecast.windows = PromiseWindows::new(Fraction::clamped(0.07), 0, 0).ok();
        assert_eq!(promises(&forecast), "none judged", "promises that overlap are no evidence");
        forecast.windows = PromiseWindows::new(Fraction::clamped(0.07), 288, 2).ok();
        assert_eq!(promises(&forecast), "0.7 % of 7 % (288)");
    }

    #[test]
    fn a_job_that_ended_late_says_by_how_much() {
        let mut job = crate::fixtures::job("j", JobPhase::Completed);
        (job.deadline, job.ended) = (Some(Timestamp(100_000)), Some(Timestamp(101_500)));
        assert!(super::job(&job, None).contains(", 1.5 s late for its deadline"), "{}", super::job(&job, None));
        job.ended = job.deadline;
        assert!(!super::job(&job, None).contains("late"));
        (job.completion_estimate, job.ended) = (Some(Timestamp(102_345)), None);
        let shown = super::job(&job, None);
        assert!(shown.contains("1970-01-01T00:01:42Z, 2.3 s late for its deadline"), "{shown}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.0, 1.234, 9.996, 12.34, 99.96, 1_234.5].map(three_digits);
        assert_eq!(shown, ["0.00", "1.23", "10.0", "12.3", "100", "1234"]);
    }

    #[test]
    fn what_turns_text_around_is_harmless() {
        assert_eq!(clean("a\u{202e}b\u{200b}c\td"), "a?b?c?d");
        assert_eq!(clean("Büro 東京"), "Büro 東京");
    }
}
