//! The result of a run. In: all measurements. Out: per cell and row the means over the rounds, and the named figures.
//! Called by [`crate::matrix`]. Pure.

use serde::{Deserialize, Serialize};

use crate::cell::Measurement;
use crate::cells::{Antagonist, Cell, Foreground, Row};
use crate::statistics::{Estimate, Summary, estimate, slower_percent};

/// One measurement of a round, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Which round.
    pub round: u64,
    /// Which cell.
    pub cell: Cell,
    /// Under which row.
    pub row: Row,
    /// What came of it.
    pub result: Result<Measurement, String>,
}

/// A cell under one row, over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Which cell.
    pub cell: Cell,
    /// Under which row.
    pub row: Row,
    /// Rounds that were measured.
    pub rounds: usize,
    /// Mean response time in milliseconds.
    pub mean_ms: Option<Estimate>,
    /// How much slower than alone in the same round: the mean, in percent.
    pub mean_slower_percent: Option<Estimate>,
    /// The same of the 95th percentile.
    pub p95_slower_percent: Option<Estimate>,
    /// The same of the 99th percentile.
    pub p99_slower_percent: Option<Estimate>,
    /// Failed requests in all rounds.
    pub failures: u64,
    /// Rounds in which the foreground was killed.
    pub foreground_killed: u64,
    /// How often the antagonist was killed.
    pub antagonist_killed: u64,
    /// Its CPU time in cores.
    pub antagonist_cores: Option<Estimate>,
    /// Its part of the CPU that was idle when the foreground was alone in the same round, in percent.
    pub harvested_percent: Option<Estimate>,
    /// Its bytes a second.
    pub bytes_per_s: Option<Estimate>,
    /// Its forks a second.
    pub forks_per_s: Option<Estimate>,
    /// What others on the machine used, in cores.
    pub others_cores: Option<Estimate>,
    /// What to know of its rounds, each sentence once.
    pub notes: Vec<String>,
    /// Why rounds are missing.
    pub errors: Vec<String>,
}

/// The figures that are followed over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name.
    pub id: String,
    /// What it says.
    pub about: String,
    /// Its value.
    pub value: Estimate,
    /// The cells that it is about.
    pub cells: Vec<Cell>,
}

fn of(all: &[Measured], cell: Cell, row: Row) -> impl Iterator<Item = &Measured> {
    all.iter().filter(move |one| one.cell == cell && one.row == row)
}

/// The measurement of a cell alone in a round.
fn alone(all: &[Measured], cell: Cell, round: u64) -> Option<&Measurement> {
    of(all, cell, Row::Alone).find(|one| one.round == round)?.result.as_ref().ok()
}

/// Sums up a cell under a row. Nothing if it was not measured at all.
#[must_use]
pub fn line(all: &[Measured], cell: Cell, row: Row) -> Option<Line> {
    let measured: Vec<&Measured> = of(all, cell, row).collect();
    if measured.is_empty() {
        return None;
    }
    let good: Vec<(u64, &Measurement)> =
        measured.iter().filter_map(|one| Some((one.round, one.result.as_ref().ok()?))).collect();
    let each = |value: &dyn Fn(&Measurement) -> Option<f64>| {
        estimate(&good.iter().filter_map(|(_, one)| value(one)).collect::<Vec<_>>())
    };
    let slower = |value: &dyn Fn(&Summary) -> f64| {
        let differences = good.iter().filter_map(|(round, one)| {
            let alone = alone(all, cell, *round)?.responses.as_ref()?;
            slower_percent(value(one.responses.as_ref()?), value(alone))
        });
        estimate(&differences.collect::<Vec<_>>()).filter(|_| row != Row::Alone)
    };
    let harvested = good.iter().filter_map(|(round, one)| {
        let alone = alone(all, cell, *round)?;
        (row != Row::Alone && alone.idle_s > 0.0)
            .then(|| 100.0 * (one.antagonist_cpu_s / one.wall_s) / (alone.idle_s / alone.wall_s))
    });
    Some(Line {
        cell,
        row,
        rounds: good.len(),
        mean_ms: each(&|one| Some(one.responses.as_ref()?.mean_ms)),
        mean_slower_percent: slower(&|summary| summary.mean_ms),
        p95_slower_percent: slower(&|summary| summary.p95_ms),
        p99_slower_percent: slower(&|summary| summary.p99_ms),
        failures: good.iter().map(|(_, one)| one.failures).sum(),
        foreground_killed: good.iter().map(|(_, one)| u64::from(one.foreground_killed)).sum(),
        antagonist_killed: good.iter().map(|(_, one)| u64::from(one.antagonist_killed)).sum(),
        antagonist_cores: each(&|one| Some(one.antagonist_cpu_s / one.wall_s)),
        harvested_percent: estimate(&harvested.collect::<Vec<_>>()),
        bytes_per_s: each(&|one| Some(one.work.bytes as f64 / one.wall_s)),
        forks_per_s: each(&|one| Some(one.work.forks as f64 / one.wall_s)),
        others_cores: each(&|one| Some(one.others_cpu_s / one.wall_s)),
        notes: {
            let mut notes: Vec<String> = good.iter().filter_map(|(_, one)| one.note.clone()).collect();
            notes.sort();
            notes.dedup();
            notes
        },
        errors: measured.iter().filter_map(|one| one.result.as_ref().err().cloned()).collect(),
    })
}

/// All lines, in the order of the cells and rows.
#[must_use]
pub fn lines(all: &[Measured], cells: &[Cell], rows: &[Row]) -> Vec<Line> {
    cells.iter().flat_map(|cell| rows.iter().filter_map(|row| line(all, *cell, *row))).collect()
}

/// The figures of the row `gleaner`, as far as their cells were measured.
#[must_use]
pub fn figures(lines: &[Line]) -> Vec<Figure> {
    let own = |foreground: Foreground, antagonists: &[Antagonist]| -> Vec<&Line> {
        let mine = |line: &&Line| {
            line.row == Row::Gleaner
                && line.cell.foreground == foreground
                && antagonists.contains(&line.cell.antagonist)
        };
        lines.iter().filter(mine).collect()
    };
    // The worst of several cells.
    let worst = |lines: Vec<&Line>, value: fn(&Line) -> Option<Estimate>| -> Option<(Estimate, Vec<Cell>)> {
        let found = lines.into_iter().filter_map(|line| Some((value(line)?, vec![line.cell])));
        found.max_by(|one, other| one.0.mean.total_cmp(&other.0.mean))
    };
    let cpu = || own(Foreground::Cyclic, &[Antagonist::Cpu]);
    let synced = own(Foreground::Disk, &[Antagonist::WriteSeqFsync, Antagonist::WriteRandFsync]);
    let memory: Vec<&Line> = lines
        .iter()
        .filter(|line| line.row == Row::Gleaner && line.cell.antagonist == Antagonist::Memory && line.rounds > 0)
        .collect();
    let killed = (!memory.is_empty()).then(|| {
        let killed: u64 = memory.iter().map(|line| line.foreground_killed).sum();
        let value =
            Estimate { mean: killed as f64, half_width: None, rounds: memory.iter().map(|line| line.rounds).sum() };
        (value, memory.iter().map(|line| line.cell).collect())
    });
    let all = [
        (
            "isolation.cpu_mean",
            "mean response beside CPU loops, % slower than alone",
            worst(cpu(), |line| line.mean_slower_percent),
        ),
        (
            "isolation.cpu_p99",
            "99th percentile beside CPU loops, % slower",
            worst(cpu(), |line| line.p99_slower_percent),
        ),
        ("isolation.memory_killed_foreground", "foregrounds killed beside a memory hog", killed),
        (
            "isolation.disk_fsync_p99",
            "99th percentile of synced records beside synced writes, % slower",
            worst(synced, |line| line.p99_slower_percent),
        ),
        (
            "isolation.network_p99",
            "99th percentile of an echo beside a flood, % slower",
            worst(own(Foreground::Echo, &[Antagonist::Net]), |line| line.p99_slower_percent),
        ),
        ("isolation.harvest_share", "idle CPU that CPU loops got, %", worst(cpu(), |line| line.harvested_percent)),
    ];
    let figure = |(id, about, found): (&str, &str, Option<(Estimate, Vec<Cell>)>)| {
        let (value, cells) = found?;
        Some(Figure { id: id.to_owned(), about: about.to_owned(), value, cells })
    };
    all.into_iter().filter_map(figure).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cells::cells;
    use crate::work::Work;

    pub(crate) fn measured(cell: Cell, row: Row, round: u64, ms: f64, antagonist_cpu_s: f64) -> Measured {
        let responses = Some(Summary { count: 10, mean_ms: ms, p95_ms: 2.0 * ms, p99_ms: 3.0 * ms });
        let result = Ok(Measurement {
            responses,
            failures: 1,
            foreground_killed: false,
            antagonist_killed: 0,
            antagonist_cpu_s,
            foreground_cpu_s: 4.0,
            idle_s: 16.0,
            others_cpu_s: 0.0,
            wall_s: 10.0,
            work: Work { bytes: 100, forks: 0 },
            note: None,
        });
        Measured { round, cell, row, result }
    }

    #[test]
    fn rows_are_compared_with_alone_in_the_same_round() {
        let cell = cells("cyclic:cpu").unwrap()[0];
        let all = [
            measured(cell, Row::Alone, 0, 5.0, 0.0),
            measured(cell, Row::Gleaner, 0, 5.5, 12.0),
            // Another minute, twice as slow in all.
            measured(cell, Row::Gleaner, 1, 12.0, 8.0),
            measured(cell, Row::Alone, 1, 10.0, 0.0),
            Measured { round: 2, cell, row: Row::Gleaner, result: Err("it did not start".into()) },
        ];
        let line = line(&all, cell, Row::Gleaner).unwrap();
        let slower = line.mean_slower_percent.unwrap();
        assert!((slower.mean - 15.0).abs() < 1e-9 && slower.rounds == 2, "{slower:?}");
        assert!((line.harvested_percent.unwrap().mean - 62.5).abs() < 1e-9);
        assert_eq!((line.failures, line.rounds, line.errors.len()), (2, 2, 1));
        let figures = figures(&lines(&all, &[cell], &[Row::Alone, Row::Gleaner]));
        let ids: Vec<&str> = figures.iter().map(|figure| figure.id.as_str()).collect();
        assert_eq!(ids, ["isolation.cpu_mean", "isolation.cpu_p99", "isolation.harvest_share"]);
    }

    #[test]
    fn a_killed_foreground_counts_and_has_no_times() {
        let cell = cells("redis:memory").unwrap()[0];
        let mut killed = measured(cell, Row::Gleaner, 0, 5.0, 0.0);
        if let Ok(result) = &mut killed.result {
            result.foreground_killed = true;
            result.responses = None;
        }
        let all = [killed, measured(cell, Row::Alone, 0, 5.0, 0.0)];
        let figures = figures(&lines(&all, &[cell], &[Row::Gleaner]));
        assert_eq!((figures[0].id.as_str(), figures[0].value.mean), ("isolation.memory_killed_foreground", 1.0));
        assert_eq!(line(&all, cell, Row::Gleaner).unwrap().mean_slower_percent, None);
    }
}
