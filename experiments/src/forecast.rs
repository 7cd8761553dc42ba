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
/// Sets whose harvest the issue states for five minutes ahead, with it at 1 % and at 5 %.
const STATED: [(&str, f64, f64); 3] =
    [("Google CPU", 93.0, 96.5), ("PlanetLab", 94.2, 96.6), ("diurnal services", 89.4, 94.8)];

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
    let (mut rows, mut usual) = (Vec::new(), Vec::new());
    let cells = sets.len() * LOOKAHEADS.len();
    for (number, (set, minutes)) in sets.iter().flat_map(|set| LOOKAHEADS.map(|minutes| (set, minutes))).enumerate() {
        progress("sets and lookaheads", number, cells);
        judge_cell(set, minutes, &mut rows, &mut usual);
    }
    let mut out = Reproduction::default();
    figures(&rows, &mut out.figures);
    details(&rows, &usual, &mut out.details);
    plots(&rows, &mut out.series);
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

fn judge_cell(set: &HostSet, minutes: u32, rows: &mut Vec<Row>, usual: &mut Vec<Row>) {
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
    let ours = RISKS.map(|risk| {
        let settings = ForecastSettings { lookahead_s, risk: f64::from(risk) / 100.0, ..ForecastSettings::default() };
        default_outcome(set, settings, &moments)
    });
    for (risk, outcome) in RISKS.into_iter().zip(ours) {
        rows.push(row(risk, default_name().as_str(), None, outcome));
    }
    for outside in Outside::ALL {
        let lines = each_host(set, |number, host| outside.lines(host, &moments[number], lookahead_s, set.resource));
        let with = |margin| with_margin(set, &moments, &lines, margin);
        for (risk, ours) in RISKS.into_iter().zip(ours) {
            let (margin, outcome) = at_share(ours.broken, &with);
            rows.push(row(risk, outside.name(), Some(margin), outcome));
        }
        usual.push(row(0, outside.name(), Some(outside.usual()), with(outside.usual())));
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

fn figures(rows: &[Row], out: &mut Vec<Figure>) {
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
        let stated = |set: &str| {
            STATED.iter().find(|(name, ..)| *name == set).map(|(_, one, five)| if risk == 1 { *one } else { *five })
        };
        let at: Vec<(&&Row, f64)> = ours
            .iter()
            .filter(|row| row.risk == risk && row.minutes == 5)
            .filter_map(|row| Some((row, stated(row.set)?)))
            .collect();
        let Some(least) = at.iter().map(|(row, stated)| row.outcome.harvested - stated).min_by(f64::total_cmp) else {
            let note = "not measured: the target is about recorded traces";
            out.push(Figure::new(id, None, None, "points", ("at least 0", false), note));
            continue;
        };
        let each: Vec<String> = at
            .iter()
            .map(|(row, stated)| format!("{} {:.1} of {stated:.1} %", row.set, row.outcome.harvested))
            .collect();
        let note = format!(
            "harvested by kept promises 5 minutes ahead beyond what was to be reached, in the set with the least: {}",
            each.join(", ")
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

fn details(rows: &[Row], usual: &[Row], out: &mut Vec<Detail>) {
    for row in rows.iter().chain(usual) {
        let experiment = match row.risk {
            0 => format!("{}, {} min, usual margin", row.set, row.minutes),
            risk => format!("{}, {} min, risk {risk} %", row.set, row.minutes),
        };
        let case = row.margin.map_or_else(|| row.method.clone(), |margin| format!("{}, N = {margin:.2}", row.method));
        let outcome = row.outcome;
        for (quantity, value) in [
            ("promises broken", outcome.broken),
            ("broken, median host", outcome.broken_median),
            ("broken, 95th percentile host", outcome.broken_p95),
            ("broken, worst host", outcome.broken_worst),
            ("harvested by kept promises", outcome.harvested),
            ("broken in the first 3 hours", outcome.first_hours_broken),
        ] {
            out.push(Detail { experiment: experiment.clone(), case: case.clone(), quantity, value, unit: "%" });
        }
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
        let (mut rows, mut usual) = (Vec::new(), Vec::new());
        judge_cell(&small_set(), 5, &mut rows, &mut usual);
        assert_eq!((rows.len(), usual.len()), (2 + 2 * Outside::ALL.len(), Outside::ALL.len()));
        for row in &rows {
            let own = rows.iter().find(|own| own.risk == row.risk && own.margin.is_none()).unwrap();
            assert!(row.outcome.broken <= own.outcome.broken, "{row:?}");
        }
        let mut found = Reproduction::default();
        figures(&rows, &mut found.figures);
        details(&rows, &usual, &mut found.details);
        plots(&rows, &mut found.series);
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
        assert_eq!((found.details.len(), found.series.len()), (6 * (rows.len() + usual.len()), 1 + Outside::ALL.len()));
    }

    #[test]
    fn hosts_keep_their_order() {
        assert_eq!(each_host(&small_set(), |number, _| number), [0, 1, 2]);
    }
}
