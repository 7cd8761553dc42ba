//! Draws the screen, at any size. In: the state. Out: a frame on the terminal. Called by [`super`]. Control characters
//! are removed from names.

use gleaner_planner::controller::{FleetHold, HostView};
use gleaner_types::application::{ApplicationStatus, ShareDecision};
use gleaner_types::job::{JobPhase, JobStatus, ReservedNode};
use gleaner_types::report::{HostReport, Reading, WorkloadSample};
use gleaner_types::text::counted;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{BytesPerSec, CoreShare};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState, Tabs, Wrap};

use super::state::{Snapshot, State, Tab};
use crate::format;
use crate::format::{clean, goal, pool_share, promises, response_time, seconds, share, three_digits, word};
use crate::guests::{Guest, Role, limits_in_words, managed_by, per_second};
use crate::held;
use crate::reserved;
use crate::states::{self, Meaning};

const KEYS: &str = "q quit  tab next  1-6 tab  ↑↓ select  / filter  p pause  ? help";

const HELP: &str = "\
tab, →, ←, 1 to 6   another tab
↑ ↓, page up/down   select a row; events: older, newer
enter               on a host: its guests; esc goes back
u                   CPU in cores, or in percent of a core
/                   filter rows by text; enter keeps it, esc ends it
p                   pause: what is shown stays
? or h              this help
q, ctrl-c           quit

FOREGRND is what the config names as foreground, (other) what is
neither that nor the volunteer. RESIDUAL is what the foreground
is predicted to leave: expected / promised. VOLUNTEER is what the
background uses, ALLOWED what the guard lets it have now, HARM
how much slower the foreground is for it. - is not known;
`gleaner hosts` and `gleaner guests` say why.";

/// Least width at which the fleet's table has a column for harm; on a narrower screen it would push others out.
const HARM_FROM: u16 = 88;

/// The same for what is neither foreground nor the volunteer; the line of sums has it on every screen.
const OTHER_FROM: u16 = 96;

const BAD: Style = Meaning::Bad.on_screen();
const WARN: Style = Meaning::Warning.on_screen();
const GOOD: Style = Meaning::Good.on_screen();
const QUIET: Style = Meaning::Quiet.on_screen();
const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub(super) fn draw(state: &State, frame: &mut Frame<'_>) {
    let rows = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
    let [title, tabs, body, keys] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(title_line(state), title);
    let names = Tab::ALL.iter().map(|tab| format!("{} {}", tab.place() + 1, tab.name()));
    let shown = Tabs::new(names).select(state.tab.place()).highlight_style(SELECTED);
    frame.render_widget(shown.divider(" ").padding("", ""), tabs);
    match (&state.snapshot, state.tab) {
        (_, Tab::Events) => events(state, frame, body),
        (None, _) => frame.render_widget(Paragraph::new("waiting for the aggregator"), body),
        (Some(_), Tab::Fleet) => fleet(state, frame, body),
        (Some(_), Tab::Residual) => residual(state, frame, body),
        (Some(snapshot), Tab::Jobs) => jobs(state, snapshot, frame, body),
        (Some(_), Tab::Applications) => applications(state, frame, body),
        (Some(snapshot), Tab::Guests) => guests(state, snapshot.overview.now, frame, body),
    }
    frame.render_widget(bottom_line(state), keys);
    if state.help {
        help(frame);
    }
}

fn title_line(state: &State) -> Line<'static> {
    let mut spans = Vec::new();
    // What is wrong comes first: it must be seen on a narrow screen too.
    if let Some(trouble) = &state.trouble {
        spans.push(Span::styled(format!("NO ANSWER, trying again: {}  ", clean(trouble)), BAD));
    }
    if state.paused {
        spans.push(Span::styled("PAUSED  ", WARN));
    }
    let Some(snapshot) = &state.snapshot else { return Line::from(spans) };
    let overview = &snapshot.overview;
    if let Some(error) = overview.event_log_error.iter().chain(&overview.state_error).next() {
        spans.push(Span::styled(format!("TROUBLE: {}  ", clean(error)), BAD));
    }
    if let Some(hold) = &overview.all_held {
        spans.push(Span::styled(format!("{}  ", format::all_are_held(hold)), WARN));
    }
    let time = overview.now.to_string();
    spans.push(Span::raw(format!(
        "gleaner {} on {}  {}  {} of {} connected  {} active",
        clean(&overview.software),
        overview.local_host,
        time.get(11..19).unwrap_or_default(),
        overview.hosts_connected,
        counted(snapshot.hosts.len(), "host"),
        counted(overview.jobs_active, "job"),
    )));
    Line::from(spans)
}

fn bottom_line(state: &State) -> Line<'_> {
    if state.filtering {
        return Line::from(format!("filter: {}▏", state.filter));
    }
    if !state.filter.is_empty() {
        return Line::from(vec![
            Span::styled(format!("only \"{}\" (esc: all)  ", state.filter), WARN),
            Span::styled(KEYS, QUIET),
        ]);
    }
    Line::styled(KEYS, QUIET)
}

fn help(frame: &mut Frame<'_>) {
    let whole = frame.area();
    let lines = u16::try_from(HELP.lines().count()).unwrap_or(u16::MAX);
    let (width, height) = (whole.width.min(72), whole.height.min(lines.saturating_add(2)));
    let area = Rect { x: whole.x + (whole.width - width) / 2, y: whole.y + (whole.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" keys ")), area);
}

/// A table with its selected row in view, or a word about why it is empty.
fn table(
    state: &State,
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[(&'static str, Constraint)],
    rows: Vec<Row<'_>>,
    empty: &'static str,
) {
    if rows.is_empty() {
        let why = if state.filter.is_empty() { empty } else { "nothing passes the filter; esc shows all" };
        return frame.render_widget(Paragraph::new(why), area);
    }
    let head = Row::new(columns.iter().map(|(name, _)| *name)).style(HEAD);
    let table = Table::new(rows, columns.iter().map(|(_, width)| *width)).header(head);
    let mut shown = TableState::default().with_selected(state.selected());
    frame.render_stateful_widget(table.row_highlight_style(SELECTED), area, &mut shown);
}

/// Of a host whose volunteer is held: by an operator, by the guard, or for the harm it does; and why.
fn why_held(host: &HostView, all_held: Option<&FleetHold>) -> Option<String> {
    let by_operator = host.held_until.map(|until| format::held(until, all_held));
    let by_guard = || Some(format!("the guard holds the volunteer now: {}", held::by_guard(host)?));
    let for_harm = || {
        let report = host.report.as_ref().filter(|_| host.connected)?;
        Some(clean(&report.harm.protection.as_ref()?.reason))
    };
    let why = by_operator.or_else(by_guard).or_else(for_harm)?;
    Some(format!("{}: {why}", host.host))
}

fn fleet(state: &State, frame: &mut Frame<'_>, area: Rect) {
    let hosts = state.hosts();
    let cores = |share: CoreShare| state.unit.brief(share);
    let reading = |reading: &Reading<CoreShare>| reading.value().map_or_else(|| "-".to_owned(), |share| cores(*share));
    let all_held = state.snapshot.as_ref().and_then(|snapshot| snapshot.overview.all_held.as_deref());
    let held = state.selected().and_then(|selected| hosts.get(selected)).and_then(|host| why_held(host, all_held));
    let of_held = Constraint::Length(if held.is_some() { 2 } else { 0 });
    let [table_area, held_area, sum_area] =
        Layout::vertical([Constraint::Min(0), of_held, Constraint::Length(1)]).areas(area);
    let (wide, widest) = (area.width >= HARM_FROM, area.width >= OTHER_FROM);
    let row = |host: &&HostView| {
        let (word, meaning) = states::host(host);
        let report = host.report.as_ref();
        let (volunteer, of_volunteer) = states::volunteer(report.map(|report| &report.volunteer.state));
        let of_harm = report.map_or(Meaning::Plain, states::harm);
        let of = |what: &dyn Fn(&HostReport) -> String| report.map_or_else(|| "-".to_owned(), what);
        let mut cells = vec![
            Cell::from(host.host.to_string()),
            Cell::from(word).style(meaning.on_screen()),
            Cell::from(host.facts.cores.to_string()),
            Cell::from(of(&|report| reading(&report.foreground_cpu()))),
            Cell::from(of(&|report| match report.residual.cpu.value() {
                Some(cpu) => format!("{} / {}", cores(cpu.expected), cores(cpu.safe)),
                None => "-".to_owned(),
            })),
            Cell::from(of(&|report| reading(&report.volunteer.cpu))),
            Cell::from(of(&|report| reading(&report.volunteer.allowance))),
            Cell::from(volunteer).style(of_volunteer.on_screen()),
            Cell::from(host.job.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)),
        ];
        if wide {
            let harm = Cell::from(of(&|report| {
                report
                    .harm
                    .foreground
                    .value()
                    .map_or_else(|| "-".to_owned(), |harm| format!("{:.1} %", harm.mean_percent))
            }))
            .style(of_harm.on_screen());
            cells.insert(7, harm);
        }
        if widest {
            let other = of(&|report| report.other_cpu().map_or_else(|| "-".to_owned(), |other| reading(&other)));
            cells.insert(4, Cell::from(other));
        }
        Row::new(cells)
    };
    let mut columns = vec![
        ("HOST", Constraint::Min(10)),
        ("STATE", Constraint::Length(11)),
        ("CPUS", Constraint::Length(4)),
        ("FOREGRND", Constraint::Length(8)),
        ("RESIDUAL", Constraint::Length(13)),
        ("VOLNTR", Constraint::Length(6)),
        ("ALLOWED", Constraint::Length(7)),
        ("IS", Constraint::Length(6)),
        ("JOB", Constraint::Min(6)),
    ];
    if wide {
        columns.insert(7, ("HARM", Constraint::Length(7)));
    }
    if widest {
        columns.insert(4, ("OTHER", Constraint::Length(6)));
    }
    table(state, frame, table_area, &columns, hosts.iter().map(row).collect(), "no host has joined yet");
    let reports = || hosts.iter().filter(|host| host.connected).filter_map(|host| host.report.as_ref());
    let sum = |what: fn(&HostReport) -> Option<CoreShare>| cores(reports().filter_map(what).sum());
    let line = format!(
        "sum: foreground {}, other {}, residual {}/{}, volunteers {} of {} allowed",
        sum(|report| report.foreground_cpu().value().copied()),
        sum(|report| report.other_cpu()?.value().copied()),
        sum(|report| Some(report.residual.cpu.value()?.expected)),
        sum(|report| Some(report.residual.cpu.value()?.safe)),
        sum(|report| report.volunteer.cpu.value().copied()),
        sum(|report| report.volunteer.allowance.value().copied()),
    );
    frame.render_widget(Line::styled(line, HEAD), sum_area);
    if let Some(held) = held {
        frame.render_widget(Paragraph::new(held).wrap(Wrap { trim: true }), held_area);
    }
}

/// Three lines per host: its name and numbers, and a curve of two lines.
fn residual(state: &State, frame: &mut Frame<'_>, area: Rect) {
    const LINES: u16 = 3;
    let (hosts, selected) = (state.hosts(), state.selected().unwrap_or(0));
    let cores = |share: CoreShare| state.unit.brief(share);
    if hosts.is_empty() {
        return frame.render_widget(Paragraph::new("no host to show"), area);
    }
    let fit = usize::from((area.height / LINES).max(1));
    let first = selected.saturating_sub(fit - 1);
    for (place, host) in hosts.iter().enumerate().skip(first).take(fit) {
        let top = area.y + u16::try_from(place - first).unwrap_or(0) * LINES;
        let of_host = Rect { y: top, height: LINES, ..area }.intersection(area);
        let [label, curve] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(of_host);
        let report = host.report.as_ref().filter(|_| host.connected);
        let numbers = match report.and_then(|report| report.residual.cpu.value()) {
            Some(cpu) => {
                let of_cores = host.facts.cores;
                let broken = report.map(|report| promises(&report.residual)).unwrap_or_default();
                format!(
                    "{} expected, {} promised of {of_cores}; broken: {broken}",
                    cores(cpu.expected),
                    cores(cpu.safe)
                )
            }
            None => "not known".to_owned(),
        };
        let style = if place == selected { SELECTED } else { HEAD };
        let line = vec![Span::styled(host.host.to_string(), style), Span::raw(format!("  {numbers}"))];
        frame.render_widget(Line::from(line), label);
        let Some(seen) = state.residual.get(&host.host) else { continue };
        let shown = seen.iter().skip(seen.len().saturating_sub(usize::from(curve.width))).copied();
        let most = u64::from(host.facts.cores) * 100;
        frame.render_widget(Sparkline::default().data(shown.collect::<Vec<_>>()).max(most).style(GOOD), curve);
    }
}

fn jobs(state: &State, snapshot: &Snapshot, frame: &mut Frame<'_>, area: Rect) {
    let now = snapshot.overview.now;
    let left = |at: Timestamp| at.seconds_since(now) - now.seconds_since(at);
    let row = |job: &&JobStatus| {
        let style = states::phase(&job.phase).on_screen();
        let ended = job.phase.is_final();
        let time = |at: Option<Timestamp>| at.filter(|_| !ended).map_or_else(|| "-".to_owned(), |at| seconds(left(at)));
        let late = !ended && job.deadline.zip(job.completion_estimate).is_some_and(|(by, then)| then > by);
        let progress = job.progress.as_ref();
        Row::new(vec![
            Cell::from(job.spec.id.to_string()),
            Cell::from(job.phase.word()).style(style),
            Cell::from(progress.map_or_else(|| "-".into(), |p| format!("{:.0} %", p.fraction_done.value() * 100.0))),
            Cell::from(progress.map_or_else(|| "-".into(), |p| format!("{}/{}", p.tasks_done, p.tasks_total))),
            Cell::from(job.volunteers.to_string()),
            Cell::from(job.share.as_ref().map_or_else(|| "-".into(), share)),
            Cell::from(time(job.deadline)),
            Cell::from(time(job.completion_estimate)).style(if late { BAD } else { Style::new() }),
        ])
    };
    let columns = [
        ("JOB", Constraint::Min(12)),
        ("PHASE", Constraint::Length(9)),
        ("DONE", Constraint::Length(5)),
        ("TASKS", Constraint::Length(9)),
        ("SIZE", Constraint::Length(4)),
        ("SHARE", Constraint::Length(9)),
        ("DEADLINE IN", Constraint::Length(12)),
        ("DONE IN", Constraint::Length(12)),
    ];
    let jobs = state.jobs();
    let detail = |job: &&JobStatus| {
        let why = match &job.phase {
            JobPhase::Waiting { reason } | JobPhase::Failed { reason } => format!("; {}", clean(reason)),
            _ => job
                .share
                .as_ref()
                .map(|share| format!("; {}", pool_share(share, &job.spec.workers)))
                .unwrap_or_default(),
        };
        let held = held::of_job(&snapshot.hosts, job).map(|held| format!("; {held}")).unwrap_or_default();
        let leases = match leases_of(job) {
            [] => String::new(),
            leases => format!("; {}", counted(leases.len(), "lease")),
        };
        format!(
            "{}: {}, {} so far, {:.0} core-s{held}{leases}{why}",
            job.spec.id,
            goal(job.spec.goal),
            job.cost,
            job.harvested_core_s
        )
    };
    let selected = state.selected().and_then(|selected| jobs.get(selected));
    let detail_height = if selected.is_some() { 3 } else { 0 };
    let leases = selected.map_or(&[][..], |job| leases_of(job));
    // Leases have what the jobs leave, but the jobs never less than half.
    let rest = area.height.saturating_sub(detail_height);
    let jobs_height = u16::try_from(jobs.len() + 1).unwrap_or(u16::MAX).min(rest.div_ceil(2));
    let leases_height = match leases {
        [] => 0,
        leases => u16::try_from(leases.len() + 1).unwrap_or(u16::MAX).min(rest - jobs_height),
    };
    let heights = [Constraint::Min(0), Constraint::Length(detail_height), Constraint::Length(leases_height)];
    let [table_area, detail_area, leases_area] = Layout::vertical(heights).areas(area);
    table(state, frame, table_area, &columns, jobs.iter().map(row).collect(), "no jobs");
    if let Some(job) = selected {
        frame.render_widget(Paragraph::new(detail(job)).wrap(Wrap { trim: true }), detail_area);
        reserved_nodes(leases, now, frame, leases_area);
    }
}

/// Nodes that users' leases have or will have, where the job fills the gaps between them.
fn leases_of(job: &JobStatus) -> &[ReservedNode] {
    job.progress.as_ref().map_or(&[], |progress| &progress.leases)
}

/// Leases and what fills their nodes: as many as fit, the first to begin first, and how many do not.
fn reserved_nodes(leases: &[ReservedNode], now: Timestamp, frame: &mut Frame<'_>, area: Rect) {
    let row = |own: &ReservedNode| {
        let begun = own.begins <= now;
        Row::new(vec![
            Cell::from(own.node.to_string()),
            Cell::from(clean(own.lease.as_str())),
            Cell::from(if begun { "begun".to_owned() } else { seconds(own.begins.seconds_since(now)) }),
            Cell::from(seconds(own.ends.seconds_since(now))),
            Cell::from(own.tasks.to_string()),
            Cell::from(reserved::meanwhile(own.stage)),
        ])
    };
    let columns = [
        ("NODE", Constraint::Min(8)),
        ("LEASE", Constraint::Fill(1)),
        ("BEGINS IN", Constraint::Length(12)),
        ("ENDS IN", Constraint::Length(12)),
        ("TASKS", Constraint::Length(5)),
        ("MEANWHILE", Constraint::Length(20)),
    ];
    let room = usize::from(area.height.saturating_sub(1));
    // The last line says how many more there are.
    let fit = if leases.len() > room { room.saturating_sub(1) } else { leases.len() };
    let mut rows: Vec<Row<'_>> = leases.iter().take(fit).map(row).collect();
    if fit < leases.len() {
        rows.push(Row::new([Cell::from(format!("{} more", leases.len() - fit))]).style(QUIET));
    }
    let head = Row::new(columns.iter().map(|(name, _)| *name)).style(HEAD);
    frame.render_widget(Table::new(rows, columns.iter().map(|(_, width)| *width)).header(head), area);
}

fn applications(state: &State, frame: &mut Frame<'_>, area: Rect) {
    let share = |share: &ShareDecision| {
        format!("{} {} {:.0} %", clean(share.tier.as_str()), word(share.resource), share.granted * 100.0)
    };
    let row = |own: &&ApplicationStatus| {
        let mean_ms = own.response.as_ref().and_then(|(_, response)| response.mean_ms());
        let style = states::response(own).1.on_screen();
        let of_target =
            mean_ms.map_or_else(|| "-".to_owned(), |mean| format!("{:.0} %", 100.0 * mean / own.spec.target_ms));
        let shares = own.decision.iter().flat_map(|decision| &decision.shares).map(share);
        Row::new(vec![
            Cell::from(own.spec.name.to_string()),
            Cell::from(format!("{} ms", three_digits(own.spec.target_ms))),
            Cell::from(own.response.as_ref().map_or_else(|| "-".into(), |(_, response)| response_time(response)))
                .style(style),
            Cell::from(of_target).style(style),
            Cell::from(shares.collect::<Vec<_>>().join(", ")),
        ])
    };
    let columns = [
        ("APPLICATION", Constraint::Min(12)),
        ("TARGET", Constraint::Length(9)),
        ("RESPONSE", Constraint::Length(12)),
        ("OF TARGET", Constraint::Length(9)),
        ("SHARES OF THEIR HOSTS", Constraint::Fill(1)),
    ];
    table(state, frame, area, &columns, state.applications().iter().map(row).collect(), "no applications");
}

/// Foreground workloads by their operators' names, and below the table what is known of the selected one.
fn guests(state: &State, now: Timestamp, frame: &mut Frame<'_>, area: Rect) {
    fn cell<T>(reading: Option<&Reading<T>>, show: impl Fn(&T) -> String) -> String {
        reading.and_then(Reading::value).map_or_else(|| "-".to_owned(), show)
    }
    let guests = state.guests();
    let cpu = |share: &CoreShare| state.unit.show(*share);
    // What a host that is not there reported last is not as it is now.
    let old = |guest: &Guest| guest.age_s(now).map_or_else(|| "-".to_owned(), |age| format!("{} old", seconds(age)));
    let row = |guest: &&Guest| {
        let sample = guest.sample.as_ref();
        let rate = |of: fn(&WorkloadSample) -> &Reading<BytesPerSec>| cell(sample.map(of), |rate| per_second(*rate));
        let cells = [
            guest.host.to_string(),
            guest.guest.clone(),
            cell(Some(&guest.cpu), cpu),
            cell(sample.map(|sample| &sample.cpu_wait), cpu),
            cell(sample.map(|sample| &sample.memory), ToString::to_string),
            if guest.connected { guest.protected.word().to_owned() } else { old(guest) },
            format!("{} {}", rate(|sample| &sample.disk_read), rate(|sample| &sample.disk_write)),
            format!("{} {}", rate(|sample| &sample.network_receive), rate(|sample| &sample.network_transmit)),
        ];
        Row::new(cells).style(if guest.connected { Style::new() } else { QUIET })
    };
    let columns = [
        ("HOST", Constraint::Min(8)),
        ("GUEST", Constraint::Fill(2)),
        ("CPU", Constraint::Length(7)),
        ("WAIT", Constraint::Length(7)),
        ("MEMORY", Constraint::Length(10)),
        ("PROTECTED", Constraint::Length(12)),
        ("DISK read write", Constraint::Fill(1)),
        ("NETWORK in out", Constraint::Fill(1)),
    ];
    let [table_area, detail_area] = Layout::vertical([Constraint::Min(0), Constraint::Length(2)]).areas(area);
    table(state, frame, table_area, &columns, guests.iter().map(row).collect(), "no guest is known");
    if let Some(guest) = state.selected().and_then(|selected| guests.get(selected)) {
        frame.render_widget(Paragraph::new(guest_detail(guest, state)).wrap(Wrap { trim: true }), detail_area);
    }
}

fn guest_detail(guest: &Guest, state: &State) -> String {
    if guest.role == Role::Other {
        return format!(
            "what {} does that is neither foreground nor the volunteer; it is protected as well",
            guest.host
        );
    }
    let uuid = guest.name.as_ref().and_then(|name| name.uuid.as_ref());
    let uuid = uuid.map(|uuid| format!(", {}", clean(uuid.as_str())));
    let harm = match &guest.harm {
        Some(Reading::Value(harm)) => format!("{harm} slower"),
        Some(Reading::Absent(_)) | None => "not known".to_owned(),
    };
    let unnamed = guest.unnamed.map(|reason| format!("; its name is {reason}")).unwrap_or_default();
    format!(
        "{}: {}{}; limits {}; harm {harm}{unnamed}",
        guest.called(),
        managed_by(guest),
        uuid.unwrap_or_default(),
        limits_in_words(guest.limits, state.unit)
    )
}

/// The newest at the bottom; the selected one stays in view.
fn events(state: &State, frame: &mut Frame<'_>, area: Rect) {
    let lines = state.event_lines();
    let Some(selected) = state.selected() else {
        return frame.render_widget(Paragraph::new("no events in the last quarter of an hour"), area);
    };
    let height = usize::from(area.height);
    // Of the newest ones, so many are below the view.
    let below = selected.saturating_sub(height.saturating_sub(1));
    let end = lines.len() - below.min(lines.len());
    let start = end.saturating_sub(height);
    let marked = lines.len() - 1 - selected;
    let shown = lines[start..end].iter().enumerate().map(|(place, line)| {
        let style = match () {
            () if selected > 0 && start + place == marked => SELECTED,
            // A line's words: time, source, name.
            () => states::event(line.split_whitespace().nth(2).unwrap_or_default()).on_screen(),
        };
        Line::styled(line.as_str(), style)
    });
    frame.render_widget(Paragraph::new(shown.collect::<Vec<_>>()), area);
}

#[cfg(test)]
mod tests;
