//! Harvest against harm, as SVG. In: the result's lines. Out: a point for each row and foreground: to the right what
//! was harvested, upwards how much slower the foreground was. A good row is at the bottom right. Called by
//! [`crate::matrix`]. Pure.

use anyhow::anyhow;
use plotters::prelude::*;

use crate::cells::{Named, Row};
use crate::results::Line;

const SIZE: (u32, u32) = (900, 560);
const FONT: &str = "sans-serif";

/// One point.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    row: Row,
    name: String,
    harvested_percent: f64,
    slower_percent: f64,
    half_width: f64,
}

fn points(lines: &[Line]) -> Vec<Point> {
    let point = |line: &Line| {
        let slower = line.p99_slower_percent?;
        Some(Point {
            row: line.row,
            name: line.cell.to_string(),
            harvested_percent: line.harvested_percent?.mean,
            slower_percent: slower.mean,
            half_width: slower.half_width.unwrap_or(0.0),
        })
    };
    lines.iter().filter_map(point).collect()
}

/// Draws it.
///
/// # Errors
/// When there is nothing to draw.
pub fn frontier(lines: &[Line]) -> anyhow::Result<String> {
    let points = points(lines);
    if points.is_empty() {
        return Err(anyhow!(
            "no row has both a harvest and a time to compare with `alone`: nothing was idle, or everything was killed"
        ));
    }
    let most = |value: fn(&Point) -> f64| points.iter().map(value).fold(1.0, f64::max);
    let lowest = points.iter().map(|point| point.slower_percent - point.half_width).fold(0.0, f64::min);
    let x = 0.0..most(|point| point.harvested_percent) * 1.1;
    let y = lowest * 1.1..most(|point| point.slower_percent + point.half_width) * 1.1;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Harvest against harm", (FONT, 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc("idle CPU that the antagonist got, %")
            .y_desc("99th percentile, % slower than alone")
            .label_style((FONT, 14))
            .draw()?;
        for (index, row) in Row::ALL.iter().enumerate() {
            let own: Vec<&Point> = points.iter().filter(|point| point.row == *row).collect();
            if own.is_empty() {
                continue;
            }
            let color = Palette99::pick(index).to_rgba();
            for point in &own {
                let (x, y) = (point.harvested_percent, point.slower_percent);
                let interval = [(x, y - point.half_width), (x, y + point.half_width)];
                chart.draw_series(std::iter::once(PathElement::new(interval, color.stroke_width(1))))?;
                let name = Text::new(point.name.clone(), (x, y), (FONT, 11));
                chart.draw_series(std::iter::once(name))?;
            }
            let circles =
                own.iter().map(|point| Circle::new((point.harvested_percent, point.slower_percent), 5, color.filled()));
            let drawn = chart.draw_series(circles)?;
            drawn.label(row.name()).legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
        }
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.8)).border_style(BLACK).label_font((FONT, 13)).draw()?;
        area.present()?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::cells;
    use crate::results::lines;
    use crate::results::tests::measured;

    #[test]
    fn every_row_but_alone_is_drawn() {
        let cell = cells("cyclic:cpu").unwrap()[0];
        let all: Vec<_> = Row::ALL.iter().map(|row| measured(cell, *row, 0, 5.0, 8.0)).collect();
        let text = frontier(&lines(&all, &[cell], Row::ALL)).unwrap();
        assert!(text.starts_with("<svg") && text.contains("threshold") && !text.contains(">\nalone"), "{text}");
        assert_eq!(points(&lines(&all, &[cell], Row::ALL)).len(), Row::ALL.len() - 1);
        assert!(frontier(&[]).is_err());
    }
}
