//! Whether promises hold, on every host and at the stated risk: the product's default against what others use. No paper's.
//! In: a folder of traces, if there is one, and a seed. Out: figures, and rows for each set, lookahead, risk and method. Called by
//! `gleaner reproduce forecast`; docs/forecast.md describes what is measured.
//!
//! Others are compared at the broken share that the default has there: the margin of each is set, on the very promises that
//! are judged, to the least that breaks no more. That is the best it could have been set to.

mod outside;
mod sets;
mod walk;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use gleaner_planner::forecast::{ForecastSettings, Method};
use gleaner_simulator::traces::TraceError;
use gleaner_simulator::traces::hosts::HostSeries;

pub use self::outside::Outside;
pub use self::sets::{HostSet, Resource, sets};
pub use self::walk::Outcome;
use self::walk::{Held, Moments, promised};
use crate::{Detail, Figure, ReproduceError, Reproduction, Series};

/// Minutes ahead.
const LOOKAHEADS: [u32; 3] = [5, 10, 30];
/// Percent of the promises that may break.
const RISKS: [u32; 2] = [1, 5];
/// Halvings of the range in which a margin is looked for, and its end.
const HALVINGS: usize = 30;
const LARGEST_MARGIN: f64 = 200.0;
/// Figures to reach five minutes ahead, by sets: how many of all promises break, and what is harvested, in percent, at a risk of 1
/// and of 5 %.
const STATED: [(&str, [(f64, f64); 2]); 3] = [
    ("Google CPU", [(1.0, 93.0), (4.8, 96.5)]),
    ("PlanetLab", [(0.7, 94.2), (4.8, 96.6)]),
    ("diurnal services", [(0.9, 89.4), (4.9, 94.8)]),
];
/// Minutes ahead of these.
const STATED_MINUTES: u32 = 5;
/// Halvings of the range in which the default's risk is looked for at which as many break, and the range's end as a multiple of
/// the risk.
const RISK_HALVINGS: usize = 9;
const LARGEST_RISK: f64 = 8.0;

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Seed of the generated sessions.
    pub seed: u64,
    /// Folder of recorded traces.
    pub traces: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1_001, traces: None }
    }
}

/// What one method did on one set.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    set: &'static str,
    recorded: bool,
    minutes: u32,
    /// The stated risk in percent; for others the one at whose broken share they are compared.
    risk: u32,
    method: String,
    /// The margin that was set; `None` for the default.
    margin: Option<f64>,
    outcome: Outcome,
}

/// What the default does at the setting of its risk at which as many of all promises break as in a figure to reach.
#[derive(Debug, Clone, PartialEq)]
struct Alike {
    set: &'static str,
    /// The stated risk of the figure to reach, in percent.
    risk: u32,
    /// Broken and harvested there, in percent.
    stated: (f64, f64),
    /// The default's setting, in percent.
    setting: f64,
    outcome: Outcome,
}

/// All that was judged.
#[derive(Debug, Default)]
struct Judged {
    rows: Vec<Row>,
    /// Others as they are usually set.
    usual: Vec<Row>,
    alike: Vec<Alike>,
}

/// The lines of one outside method on every host of a set.
type Lines = Vec<Vec<Option<(f64, f64)>>>;

/// Judges the default and what others use on all sets.
///
/// # Errors
/// [`TraceError`] for a trace that is there and cannot be read.
pub fn reproduce(
    options: &Options,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> Result<Reproduction, ReproduceError> {
    let sets = sets(options.traces.as_deref(), options.seed)?;
    let mut judged = Judged::default();
    let cells = sets.len() * LOOKAHEADS.len();
    for (number, (set, minutes)) in sets.iter().flat_map(|set| LOOKAHEADS.map(|minutes| (set, minutes))).enumerate() {
        progress("sets and lookaheads", number, cells);
        judge_cell(set, minutes, &mut judged);
    }
    let mut out = Reproduction::default();
    figures(&judged, &mut out.figures);
    details(&judged, &mut out.details);
    plots(&judged.rows, &mut out.series);
    if options.traces.is_none() {
        out.skipped.push("recorded traces: no folder of traces is named, so only generated sessions are judged".into());
    }
    Ok(out)
}

/// How the shipped default holds its promises five minutes ahead, by sets: for [`crate::rhic`].
///
/// # Errors
/// [`TraceError`] for a trace that is there and cannot be read.
pub(crate) fn of_default(options: &Options) -> Result<Vec<(&'static str, Outcome)>, TraceError> {
    let settings = ForecastSettings::default();
    let sets = sets(options.traces.as_deref(), options.seed)?;
    Ok(sets.iter().map(|set| (set.name, default_outcome(set, settings, &moments(set, settings.lookahead_s)))).collect())
}

fn moments(set: &HostSet, lookahead_s: f64) -> Vec<Moments> {
    set.hosts.iter().map(|host| Moments::new(host, lookahead_s, set.resource)).collect()
}

fn default_outcome(set: &HostSet, settings: ForecastSettings, moments: &[Moments]) -> Outcome {
    let promises = each_host(set, |number, host| promised(host, &moments[number], settings, set.resource));
    let mut held = Held::default();
    for ((host, moments), promises) in set.hosts.iter().zip(moments).zip(promises) {
        held.push(host, moments, promises.into_iter());
    }
    held.outcome()
}

fn judge_cell(set: &HostSet, minutes: u32, judged: &mut Judged) {
    let lookahead_s = f64::from(minutes) * 60.0;
    let moments = moments(set, lookahead_s);
    let row = |risk, method: &str, margin, outcome| Row {
        set: set.name,
        recorded: set.recorded,
        minutes,
        risk,
        method: method.to_owned(),
        margin,
        outcome,
    };
    let at_risk = |percent: f64| {
        let settings = ForecastSettings { lookahead_s, risk: percent / 100.0, ..ForecastSettings::default() };
        default_outcome(set, settings, &moments)
    };
    let ours = RISKS.map(|risk| at_risk(f64::from(risk)));
    if let Some((_, stated)) = STATED.into_iter().find(|(name, _)| *name == set.name && minutes == STATED_MINUTES) {
        for (risk, stated) in RISKS.into_iter().zip(stated) {
            let (setting, outcome) = at_most_broken(stated.0, LARGEST_RISK * f64::from(risk), &at_risk);
            judged.alike.push(Alike { set: set.name, risk, stated, setting, outcome });
        }
    }
    for (risk, outcome) in RISKS.into_iter().zip(ours) {
        judged.rows.push(row(risk, default_name().as_str(), None, outcome));
    }
    for outside in Outside::ALL {
        let lines = each_host(set, |number, host| outside.lines(host, &moments[number], lookahead_s, set.resource));
        let with = |margin| with_margin(set, &moments, &lines, margin);
        for (risk, ours) in RISKS.into_iter().zip(ours) {
            let (margin, outcome) = at_share(ours.broken, &with);
            judged.rows.push(row(risk, outside.name(), Some(margin), outcome));
        }
        judged.usual.push(row(0, outside.name(), Some(outside.usual()), with(outside.usual())));
    }
}

fn with_margin(set: &HostSet, moments: &[Moments], lines: &Lines, margin: f64) -> Outcome {
    let mut held = Held::default();
    for ((host, moments), lines) in set.hosts.iter().zip(moments).zip(lines) {
        let promise = |line: &Option<(f64, f64)>| line.map(|(base, unit)| 100.0 - base - margin * unit);
        held.push(host, moments, lines.iter().map(promise));
    }
    held.outcome()
}

/// The least margin at which no more than `share` percent breaks, and what comes of it.
fn at_share(share: f64, with: &dyn Fn(f64) -> Outcome) -> (f64, Outcome) {
    let (mut low, mut high) = (0.0, LARGEST_MARGIN);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if with(middle).broken <= share { high = middle } else { low = middle }
    }
    (high, with(high))
}

/// The largest setting of the risk, in percent, at which no more than `share` percent breaks, and what comes of it.
fn at_most_broken(share: f64, largest: f64, at_risk: &dyn Fn(f64) -> Outcome) -> (f64, Outcome) {
    let (mut low, mut high) = (0.0, largest);
    for _ in 0..RISK_HALVINGS {
        let middle = f64::midpoint(low, high);
        if at_risk(middle).broken <= share { low = middle } else { high = middle }
    }
    (low, at_risk(low))
}

/// Something of every host, on all CPUs, in the order of the hosts.
fn each_host<T: Send>(set: &HostSet, of: impl Fn(usize, &HostSeries) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(host) = set.hosts.get(number) else { return done };
            done.push((number, of(number, host)));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().flat_map(|handle| handle.join().unwrap_or_default()).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, of)| of).collect()
}

fn default_name() -> String {
    format!("{} (default)", Method::default().name())
}

fn figures(Judged { rows, alike, .. }: &Judged, out: &mut Vec<Figure>) {
    let ours: Vec<&Row> = rows.iter().filter(|row| row.margin.is_none()).collect();
    let cell = |row: &Row| format!("{}, {} min", row.set, row.minutes);
    for (risk, id) in [(1, "forecast.broken_p95_1pct"), (5, "forecast.broken_p95_5pct")] {
        let at = ours.iter().filter(|row| row.risk == risk);
        let Some(worst) = at.clone().max_by(|a, b| a.outcome.broken_p95.total_cmp(&b.outcome.broken_p95)) else {
            continue;
        };
        let most = 1.2 * f64::from(risk);
        let within = at.clone().filter(|row| row.outcome.broken_p95 <= most).count();
        let median = at.clone().map(|row| row.outcome.broken_median).fold(0.0, f64::max);
        let value = worst.outcome.broken_p95;
        let note = format!(
            "broken on the 95th percentile of hosts and days, from the third hour on, in the worst of {} sets and lookaheads ({}); {within} of them are within the target; the largest median is {median:.2} %",
            at.count(),
            cell(worst),
        );
        out.push(Figure::new(id, None, value, "%", (format!("at most {most}"), value <= most), note));
    }
    for (risk, id) in [(1, "forecast.harvest_1pct"), (5, "forecast.harvest_5pct")] {
        let at: Vec<&Alike> = alike.iter().filter(|alike| alike.risk == risk).collect();
        let beyond = at.iter().map(|alike| alike.outcome.offered - alike.stated.1);
        let Some(least) = beyond.min_by(f64::total_cmp) else {
            let note = "not measured: the target is about recorded traces";
            out.push(Figure::new(id, None, None, "points", ("at least 0", false), note));
            continue;
        };
        let each: Vec<String> = at.iter().map(|alike| alike.said(&ours)).collect();
        let note = format!(
            "offered {STATED_MINUTES} minutes ahead beyond what was to be reached, in the set with the least, at the setting of the risk at which as many of all promises break as there: {}",
            each.join("; ")
        );
        out.push(Figure::new(id, None, least, "points", ("at least 0", least >= 0.0), note));
    }
    let at = ours.iter().filter(|row| row.risk == 1);
    if let Some(worst) = at.max_by(|a, b| a.outcome.first_hours_broken.total_cmp(&b.outcome.first_hours_broken)) {
        let value = worst.outcome.first_hours_broken;
        let note = format!(
            "broken within the first three hours at a risk of 1 %, in the worst set and lookahead ({})",
            cell(worst)
        );
        out.push(Figure::new("forecast.first_hours_broken", None, value, "%", ("at most 1.2", value <= 1.2), note));
    }
    let gaps = ours.iter().map(|own| {
        let same =
            |row: &&Row| (row.set, row.minutes, row.risk) == (own.set, own.minutes, own.risk) && row.margin.is_some();
        let best = rows.iter().filter(same).max_by(|a, b| a.outcome.harvested.total_cmp(&b.outcome.harvested));
        (own, best, best.map_or(0.0, |best| best.outcome.harvested - own.outcome.harvested))
    });
    if let Some((own, Some(best), gap)) = gaps.max_by(|a, b| a.2.total_cmp(&b.2)) {
        let note = format!(
            "more harvested by the best outside method at the same broken share, where that is most: {} ({}, risk {} %)",
            best.method,
            cell(own),
            own.risk
        );
        out.push(Figure::new("forecast.best_outside_gap", None, gap, "points", ("at most 1", gap <= 1.0), note));
    }
}

impl Alike {
    /// What was offered, what was to be, and what the shipped default does.
    fn said(&self, shipped: &[&Row]) -> String {
        let same = |row: &&&Row| (row.set, row.risk, row.minutes) == (self.set, self.risk, STATED_MINUTES);
        let shipped = shipped.iter().find(same).map_or_else(String::new, |row| {
            format!("; as shipped it breaks {:.2} % and offers {:.1} %", row.outcome.broken, row.outcome.offered)
        });
        let (broken, harvested) = self.stated;
        format!(
            "{} {:.1} of {harvested:.1} % where {broken:.1} % break (risk {:.2} %{shipped})",
            self.set, self.outcome.offered, self.setting
        )
    }
}

fn details(Judged { rows, usual, alike }: &Judged, out: &mut Vec<Detail>) {
    for alike in alike {
        let experiment = format!(
            "{}, {STATED_MINUTES} min, as many broken as in the figure to reach at {} %",
            alike.set, alike.risk
        );
        let case = format!("{}, risk {:.2} %", default_name(), alike.setting);
        quantities(&experiment, &case, alike.outcome, out);
    }
    for row in rows.iter().chain(usual) {
        let experiment = match row.risk {
            0 => format!("{}, {} min, usual margin", row.set, row.minutes),
            risk => format!("{}, {} min, risk {risk} %", row.set, row.minutes),
        };
        let case = row.margin.map_or_else(|| row.method.clone(), |margin| format!("{}, N = {margin:.2}", row.method));
        quantities(&experiment, &case, row.outcome, out);
    }
}

fn quantities(experiment: &str, case: &str, outcome: Outcome, out: &mut Vec<Detail>) {
    for (quantity, value) in [
        ("promises broken", outcome.broken),
        ("broken, median host", outcome.broken_median),
        ("broken, 95th percentile host", outcome.broken_p95),
        ("broken, worst host", outcome.broken_worst),
        ("harvested by kept promises", outcome.harvested),
        ("offered by all promises", outcome.offered),
        ("broken in the first 3 hours", outcome.first_hours_broken),
    ] {
        out.push(Detail { experiment: experiment.into(), case: case.into(), quantity, value, unit: "%" });
    }
}

/// Harvest against what broke, a plot for each set and lookahead.
fn plots(rows: &[Row], out: &mut Vec<Series>) {
    let mut cells: Vec<(&str, u32)> = rows.iter().map(|row| (row.set, row.minutes)).collect();
    cells.dedup();
    for (set, minutes) in cells {
        let of_cell: Vec<&Row> = rows.iter().filter(|row| (row.set, row.minutes) == (set, minutes)).collect();
        let mut names: Vec<&str> = Vec::new();
        for row in &of_cell {
            if !names.contains(&row.method.as_str()) {
                names.push(&row.method);
            }
        }
        for name in names {
            let points = of_cell.iter().filter(|row| row.method == name);
            out.push(Series {
                plot: format!("forecast-{}-{minutes}min", set.replace(' ', "-")),
                name: name.to_owned(),
                x: "promises broken, %",
                y: "harvested, %",
                points_only: false,
                points: points.map(|row| (row.outcome.broken, row.outcome.harvested)).collect(),
                band: Vec::new(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_set() -> HostSet {
        let value = |at: usize| 30.0 + ((at * 7_919) % 23) as f64;
        let host = HostSeries { name: "h".into(), step_s: 300.0, values: (0..288).map(value).collect() };
        HostSet { name: "Google CPU", resource: Resource::Cpu, hosts: vec![host; 3], recorded: true }
    }

    #[test]
    fn others_are_compared_at_the_same_share() {
        let mut judged = Judged::default();
        judge_cell(&small_set(), 5, &mut judged);
        let Judged { rows, usual, alike } = &judged;
        assert_eq!((rows.len(), usual.len()), (2 + 2 * Outside::ALL.len(), Outside::ALL.len()));
        for row in rows {
            let own = rows.iter().find(|own| own.risk == row.risk && own.margin.is_none()).unwrap();
            assert!(row.outcome.broken <= own.outcome.broken, "{row:?}");
        }
        let mut found = Reproduction::default();
        figures(&judged, &mut found.figures);
        details(&judged, &mut found.details);
        plots(rows, &mut found.series);
        let ids: Vec<&str> = found.figures.iter().map(|figure| figure.id).collect();
        assert_eq!(
            ids,
            [
                "forecast.broken_p95_1pct",
                "forecast.broken_p95_5pct",
                "forecast.harvest_1pct",
                "forecast.harvest_5pct",
                "forecast.first_hours_broken",
                "forecast.best_outside_gap",
            ]
        );
        let cases = rows.len() + usual.len() + alike.len();
        assert_eq!((found.details.len(), found.series.len()), (7 * cases, 1 + Outside::ALL.len()));
    }

    #[test]
    fn the_default_is_compared_with_a_figure_to_reach_where_as_many_break() {
        let mut judged = Judged::default();
        judge_cell(&small_set(), 5, &mut judged);
        judge_cell(&small_set(), 10, &mut judged);
        assert_eq!(judged.alike.iter().map(|alike| alike.risk).collect::<Vec<_>>(), RISKS, "five minutes ahead alone");
        for alike in &judged.alike {
            let shipped = judged.rows.iter().find(|row| row.risk == alike.risk && row.margin.is_none()).unwrap();
            assert!(alike.outcome.broken <= alike.stated.0 && alike.setting >= f64::from(alike.risk), "{alike:?}");
            // The default breaks fewer than it may, so it offers more where as many break as may.
            assert!(alike.outcome.offered >= shipped.outcome.offered, "{alike:?}, {shipped:?}");
        }
        // What breaks rises with the setting: the largest that breaks no more is found.
        let mut outcome = judged.rows[0].outcome;
        let at_risk = |risk: f64| Outcome { broken: risk / 2.0, ..outcome };
        let (setting, found) = at_most_broken(1.0, 8.0, &at_risk);
        assert!((setting - 2.0).abs() < 0.05 && found.broken <= 1.0, "{setting}");
        outcome.offered = 94.0;
        let alike = Alike { set: "Google CPU", risk: 1, stated: (1.0, 93.0), setting: 2.0, outcome };
        let others = Judged { rows: judged.rows, alike: vec![alike], ..Judged::default() };
        let mut found = Vec::new();
        figures(&others, &mut found);
        let harvest = found.iter().find(|figure| figure.id == "forecast.harvest_1pct").unwrap();
        assert!(harvest.holds && harvest.ours.is_some_and(|ours| (ours - 1.0).abs() < 1e-9), "{harvest:?}");
        assert!(harvest.note.contains("where 1.0 % break (risk 2.00 %; as shipped it breaks"), "{}", harvest.note);
    }

    #[test]
    fn hosts_keep_their_order() {
        assert_eq!(each_host(&small_set(), |number, _| number), [0, 1, 2]);
    }
}
