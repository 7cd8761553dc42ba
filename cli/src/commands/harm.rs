//! `gleaner reproduce harm`. In: seeds. Out: a volunteer held in four ways on simulated kernels of four kinds, as a
//! table. Called by `reproduce`.

use std::time::Duration;

use gleaner_planner::protecting::Means;
use gleaner_simulator::foreground::Session;
use gleaner_simulator::protection::{Kernel, Outcome, Protection, Scenario, simulate};
use gleaner_types::text::counted;
use serde_json::json;

use crate::args::HarmArgs;
use crate::documents::print;
use crate::exit::End;
use crate::format;

/// The most harm there should be, in percent: the default of `foreground.harm_budget`.
const BUDGET_PERCENT: f64 = 1.0;

/// Means over sessions and seeds.
struct Row {
    kernel: Kernel,
    protection: Protection,
    harvested_percent: f64,
    harm_percent: f64,
    harm_worst_percent: f64,
    over_percent: f64,
    changes: f64,
}

impl Row {
    fn of(args: &HarmArgs, kernel: Kernel, protection: Protection) -> Self {
        let run = |session, seed| {
            simulate(&Scenario {
                seed,
                kernel,
                cpus: args.cpus,
                means: Means { spare: true, points: true },
                session,
                protection,
                budget_percent: BUDGET_PERCENT,
                pause_share: args.pause_share,
                duration: Duration::from_secs(args.hours * 3_600),
            })
        };
        let seeds = args.seed..args.seed.saturating_add(args.runs);
        let outcomes: Vec<Outcome> = seeds.flat_map(|seed| Session::ALL.map(|session| run(session, seed))).collect();
        let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64;
        Self {
            kernel,
            protection,
            harvested_percent: mean(|outcome| outcome.harvested * 100.0),
            harm_percent: mean(|outcome| outcome.harm_percent),
            harm_worst_percent: outcomes.iter().map(|outcome| outcome.harm_percent).fold(0.0, f64::max),
            over_percent: mean(|outcome| outcome.over_budget * 100.0),
            changes: mean(|outcome| outcome.changes.len() as f64),
        }
    }
}

pub(super) fn run(args: &HarmArgs, json: bool) -> anyhow::Result<End> {
    let cases = Kernel::ALL.into_iter().flat_map(|kernel| Protection::ALL.map(|protection| (kernel, protection)));
    let rows: Vec<Row> = cases.map(|(kernel, protection)| Row::of(args, kernel, protection)).collect();
    if json {
        let row = |row: &Row| {
            json!({
                "kernel": row.kernel.word(), "protection": row.protection.words(), "harvested_percent": row.harvested_percent,
                "harm_percent": row.harm_percent, "harm_worst_percent": row.harm_worst_percent,
                "over_budget_percent": row.over_percent, "changes": row.changes,
            })
        };
        print(&serde_json::to_string_pretty(&rows.iter().map(row).collect::<Vec<_>>())?)?;
        return Ok(End::Good);
    }
    print(&format!(
        "simulated, not measured: {}, {} h, {} of each of {} sessions, pauses {} % of the time, budget {BUDGET_PERCENT} %",
        counted(args.cpus, "CPU"),
        args.hours,
        counted(args.runs, "run"),
        Session::ALL.len(),
        args.pause_share * 100.0
    ))?;
    let cells = |row: &Row| {
        vec![
            row.kernel.word().to_owned(),
            row.protection.words().to_owned(),
            format!("{:.1} %", row.harvested_percent),
            format!("{:.2} %", row.harm_percent),
            format!("{:.2} %", row.harm_worst_percent),
            format!("{:.1} %", row.over_percent),
            format!("{:.1}", row.changes),
        ]
    };
    let head = ["KERNEL", "VOLUNTEER", "HARVESTED OF FREE", "HARM", "WORST RUN", "WORK OVER BUDGET", "CHANGES"];
    print(&format::table(&head, &rows.iter().map(cells).collect::<Vec<_>>()))?;
    Ok(End::Good)
}
