//! `gleaner reproduce`. In: a paper's name. Out: its figures beside ours. Called by [`super`].

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context;
use gleaner_experiments::{Figure, Reproduction, bconf, canal, chisim, forecast, mapreduce, rhic, stfc};
use gleaner_planner::reservations::forecast::Forecaster;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::{ForecasterWord, JobsWord, ReproduceCommand};
use crate::documents::print;
use crate::exit::End;
use crate::{format, plots};

/// A figure as `--json` prints it.
#[derive(Serialize)]
struct FigureDocument<'f> {
    id: &'f str,
    paper: Option<f64>,
    ours: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calm: Option<bool>,
    unit: &'f str,
    target: &'f str,
    holds: bool,
    note: &'f str,
}

impl<'f> FigureDocument<'f> {
    fn of(figure: &'f Figure, calm: Option<bool>) -> Self {
        let Figure { id, paper, ours, median, interval, unit, target, holds, note } = figure;
        let (paper, ours, median, interval) = (*paper, *ours, *median, *interval);
        Self { id, paper, ours, median, interval, calm, unit, target, holds: *holds, note }
    }
}

/// Whether the experiment's services have noise alone, where it could also disturb them.
const fn calm(command: &ReproduceCommand) -> Option<bool> {
    match command {
        ReproduceCommand::Bconf { disturbed, .. } => Some(!*disturbed),
        _ => None,
    }
}

pub(super) fn run(command: &ReproduceCommand, json: bool) -> anyhow::Result<End> {
    let (plots, details) = match command {
        ReproduceCommand::Rhic { plots, details, .. }
        | ReproduceCommand::Stfc { plots, details, .. }
        | ReproduceCommand::Mapreduce { plots, details, .. }
        | ReproduceCommand::Chisim { plots, details, .. }
        | ReproduceCommand::Forecast { plots, details, .. }
        | ReproduceCommand::Bconf { plots, details, .. }
        | ReproduceCommand::Canal { plots, details, .. } => (plots.as_deref(), *details),
        ReproduceCommand::Harm(_) => (None, false),
    };
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{msg:28} [{bar:40}] {pos}/{len}")?.progress_chars("=> "));
    let stage = Mutex::new(String::new());
    let progress = |what: &str, done: usize, all: usize| {
        let mut stage = stage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *stage != what {
            *stage = what.to_owned();
            bar.set_message(what.to_owned());
            bar.set_length(all as u64);
        }
        bar.set_position(done as u64);
    };
    let reproduction = match command {
        ReproduceCommand::Rhic { jobs: JobsWord::Any, seed, .. } => {
            let options = rhic::any_job::Options { seed: *seed, ..rhic::any_job::Options::default() };
            rhic::any_job::reproduce(&options, &progress)?
        }
        ReproduceCommand::Rhic { jobs: JobsWord::Papers, seed, mixes, traces, .. } => {
            rhic::reproduce(&rhic::Options { seed: *seed, mixes: *mixes, traces: traces.clone() }, &progress)?
        }
        ReproduceCommand::Forecast { seed, traces, .. } => {
            forecast::reproduce(&forecast::Options { seed: *seed, traces: traces.clone() }, &progress)?
        }
        ReproduceCommand::Stfc { seed, runs, traces, .. } => {
            stfc::reproduce(&stfc::Options { seed: *seed, runs: *runs, traces: traces.clone() }, &progress)?
        }
        ReproduceCommand::Bconf { seed, runs, disturbed, traces, .. } => {
            let other = bconf::Options::default();
            // As many as other settings are tried on; only the table of details has these rows.
            let sensitivity_runs = if details && !json { other.tuning_runs } else { 0 };
            let traces = traces.clone();
            let options =
                bconf::Options { seed: *seed, runs: *runs, calm: !*disturbed, sensitivity_runs, traces, ..other };
            bconf::reproduce(&options, &progress)?
        }
        ReproduceCommand::Mapreduce { seed, runs, traces, .. } => {
            mapreduce::reproduce(&mapreduce::Options { seed: *seed, runs: *runs, traces: traces.clone() }, &progress)?
        }
        ReproduceCommand::Canal { seed, runs, traces, hours, .. } => {
            let (traces, hours) = (traces.clone(), *hours);
            let options = canal::Options { seed: *seed, runs: *runs, traces, hours, ..canal::Options::default() };
            canal::reproduce(&options, &progress)?
        }
        ReproduceCommand::Chisim { seed, forecasters, traces, .. } => {
            let forecasters = forecasters.iter().map(|word| match word {
                ForecasterWord::Mean => Forecaster::RollingMean,
                ForecasterWord::Median => Forecaster::RollingMedian,
                ForecasterWord::Lstm => Forecaster::Lstm,
            });
            let (forecasters, traces) = (forecasters.collect(), traces.clone());
            let options = chisim::Options { seed: *seed, forecasters, traces, ..chisim::Options::default() };
            chisim::reproduce(&options, &progress)?
        }
        ReproduceCommand::Harm(args) => return super::harm::run(args, json),
    };
    bar.finish_and_clear();
    if let Some(folder) = plots {
        draw(&reproduction, folder)?;
    }
    if json {
        let calm = calm(command);
        let figures = reproduction.figures.iter().map(|figure| FigureDocument::of(figure, calm));
        print(&serde_json::to_string_pretty(&figures.collect::<Vec<_>>())?)?;
        return Ok(End::Good);
    }
    if details {
        let rows: Vec<Vec<String>> = reproduction
            .details
            .iter()
            .map(|d| {
                vec![d.experiment.clone(), d.case.clone(), d.quantity.to_owned(), format!("{:.2} {}", d.value, d.unit)]
            })
            .collect();
        print(&format::table(&["EXPERIMENT", "CASE", "WHAT", "VALUE"], &rows))?;
        print("")?;
    }
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
    let medians = reproduction.figures.iter().any(|figure| figure.median.is_some());
    let intervals = reproduction.figures.iter().any(|figure| figure.interval.is_some());
    let between = |interval: [f64; 2]| format!("{:.2} to {:.2}", interval[0], interval[1]);
    let rows: Vec<Vec<String>> = reproduction
        .figures
        .iter()
        .map(|figure| {
            let interval = intervals.then(|| figure.interval.map_or_else(|| "-".into(), between));
            let mut row = vec![figure.id.to_owned(), number(figure.paper), number(figure.ours)];
            row.extend(medians.then(|| number(figure.median)));
            row.extend(interval);
            row.extend([
                figure.unit.to_owned(),
                figure.target.clone(),
                if figure.holds { "holds" } else { "MISSED" }.to_owned(),
                figure.note.clone(),
            ]);
            row
        })
        .collect();
    let mut head = vec!["FIGURE", "PAPER", "OURS", "UNIT", "TARGET", "", "WHAT IT IS"];
    if intervals {
        head.insert(3, "95 % OVER RUNS");
    }
    if medians {
        head.insert(3, "OF MEDIANS");
    }
    print(&format::table(&head, &rows))?;
    for note in &reproduction.skipped {
        print(&format!("SKIPPED: {note}"))?;
    }
    if let Some(folder) = plots {
        print(&format!("plots are in {}", folder.display()))?;
    }
    Ok(End::Good)
}

fn draw(reproduction: &Reproduction, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let mut names: Vec<&str> = reproduction.series.iter().map(|series| series.plot.as_str()).collect();
    names.dedup();
    for name in names {
        let series: Vec<_> = reproduction.series.iter().filter(|series| series.plot == name).collect();
        let path = folder.join(format!("{name}.svg"));
        std::fs::write(&path, plots::svg(name, &series)?)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    #[test]
    fn figures_say_whether_services_were_disturbed_where_they_can_be_and_leave_out_what_they_do_not_have() {
        let figure = Figure::new("bconf.harmed", None, 1.0, "tenants", ("0", false), "note");
        let document = |words: &[&str], figure: &Figure| {
            let words = ["gleaner", "reproduce"].iter().chain(words);
            let Command::Reproduce(command) = Arguments::parse_from(words).command else { panic!("another command") };
            serde_json::to_string(&FigureDocument::of(figure, calm(&command))).unwrap()
        };
        let alone = r#"{"id":"bconf.harmed","paper":null,"ours":1.0,"unit":"tenants","target":"0","holds":false,"note":"note"}"#;
        assert_eq!(document(&["stfc"], &figure), alone);
        let figure = figure.with_median(2.0).with_interval(Some([0.0, 3.0]));
        let all = alone.replace(r#""unit""#, r#""median":2.0,"interval":[0.0,3.0],"calm":true,"unit""#);
        assert_eq!(document(&["bconf"], &figure), all);
        assert_eq!(document(&["bconf", "--disturbed"], &figure), all.replace("true", "false"));
    }
}
