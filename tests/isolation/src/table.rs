//! The results as a table for people. In: the result's lines and figures. Out: text. Called by [`crate::matrix`]. Pure.

use crate::results::{Figure, Line};
use crate::statistics::Estimate;

/// Others that use more cores than this make the figures doubtful. Chosen: a fifth of a core.
pub(crate) const BUSY_CORES: f64 = 0.2;

/// The table, in columns of equal width.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let head = [
        "cell",
        "row",
        "mean ms",
        "mean %",
        "p95 %",
        "p99 %",
        "failures",
        "killed",
        "volunteer killed",
        "cores",
        "harvest %",
        "MB/s",
        "forks/s",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for line in lines {
        rows.push([
            line.cell.to_string(),
            line.row.to_string(),
            line.mean_ms.map_or_else(|| "–".to_owned(), |value| format!("{:.2}", value.mean)),
            percent(line.mean_slower_percent),
            percent(line.p95_slower_percent),
            percent(line.p99_slower_percent),
            line.failures.to_string(),
            line.foreground_killed.to_string(),
            line.antagonist_killed.to_string(),
            line.antagonist_cores.map_or_else(|| "–".to_owned(), |value| format!("{:.2}", value.mean)),
            line.harvested_percent.map_or_else(|| "–".to_owned(), |value| format!("{:.0}", value.mean)),
            line.bytes_per_s.map_or_else(|| "–".to_owned(), |value| format!("{:.1}", value.mean / 1e6)),
            line.forks_per_s.map_or_else(|| "–".to_owned(), |value| format!("{:.0}", value.mean)),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn percent(value: Option<Estimate>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

/// What is wrong with the results, a sentence each: rounds that are missing, and others that used the machine meanwhile.
#[must_use]
pub fn warnings(lines: &[Line]) -> Vec<String> {
    let mut all = Vec::new();
    for line in lines {
        for note in &line.notes {
            all.push(format!("{} under {}: {note}", line.cell, line.row));
        }
        for error in &line.errors {
            all.push(format!("{} under {}: a round is missing: {error}", line.cell, line.row));
        }
    }
    let others: Vec<f64> = lines.iter().filter_map(|line| Some(line.others_cores?.mean)).collect();
    let most = others.iter().copied().fold(0.0, f64::max);
    if most > BUSY_CORES {
        all.push(format!(
            "others used up to {most:.1} cores of this machine meanwhile: differences between rows may be theirs"
        ));
    }
    all
}

/// The figures with names, a line each.
#[must_use]
pub fn figures(figures: &[Figure]) -> String {
    let line = |figure: &Figure| {
        let cells: Vec<String> = figure.cells.iter().map(ToString::to_string).collect();
        format!("{} = {} ({}; {})\n", figure.id, figure.value, figure.about, cells.join(", "))
    };
    figures.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Row, cells};
    use crate::results::tests::measured;
    use crate::results::{Measured, lines};

    #[test]
    fn a_table_has_a_line_for_every_row() {
        let cell = cells("cyclic:cpu").unwrap()[0];
        let mut all = vec![measured(cell, Row::Alone, 0, 5.0, 0.0), measured(cell, Row::Idle, 0, 6.0, 8.0)];
        all.push(Measured { round: 1, cell, row: Row::Idle, result: Err("no cgroup".into()) });
        if let Ok(one) = &mut all[0].result {
            one.others_cpu_s = 15.0;
        }
        let lines = lines(&all, &[cell], &[Row::Alone, Row::Idle]);
        let text = table(&lines);
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("+20.0 (one round)") && text.contains("cyclic:cpu"), "{text}");
        let warnings = warnings(&lines);
        assert!(warnings[0].contains("no cgroup") && warnings[1].contains("1.5 cores"), "{warnings:?}");
    }
}
