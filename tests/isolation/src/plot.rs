//! Harvest against harm, as SVG. In: the result's lines. Out: a point for each row and foreground: to the right what
//! was harvested, upwards how much slower the foreground was; a line through those of a cell that no other row beats. A good row is
//! at the bottom right. Called by [`crate::matrix`]. Pure.

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

/// The points of each cell that no other one of the cell beats, from the least harvest to the most: the frontier between harvest
/// and harm. A point is beaten by one that harvests no less and harms no more.
fn frontiers(points: &[Point]) -> Vec<Vec<&Point>> {
    let mut names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
    names.dedup();
    let of_cell = |name: &&str| {
        let mut own: Vec<&Point> = points.iter().filter(|point| point.name == *name).collect();
        // Of equal harvests the least harm comes first, so what follows has to do less harm than all that harvest more.
        own.sort_by(|a, b| {
            b.harvested_percent.total_cmp(&a.harvested_percent).then(a.slower_percent.total_cmp(&b.slower_percent))
        });
        let mut least = f64::INFINITY;
        own.retain(|point| {
            let is_unbeaten = point.slower_percent < least;
            least = least.min(point.slower_percent);
            is_unbeaten
        });
        own.reverse();
        own
    };
    names.iter().map(of_cell).collect()
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
        for frontier in frontiers(&points) {
            let way = frontier.iter().map(|point| (point.harvested_percent, point.slower_percent));
            chart.draw_series(std::iter::once(PathElement::new(
                way.collect::<Vec<_>>(),
                BLACK.mix(0.4).stroke_width(1),
            )))?;
        }
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
    fn the_frontier_is_what_no_row_beats() {
        let point = |name: &str, harvested_percent, slower_percent| Point {
            row: Row::Gleaner,
            name: name.to_owned(),
            harvested_percent,
            slower_percent,
            half_width: 0.0,
        };
        let points = [
            point("cyclic:cpu", 98.0, 70.0),
            point("cyclic:cpu", 60.0, 2.0),
            point("cyclic:cpu", 90.0, 20.0),
            point("cyclic:cpu", 60.0, 3.0),
            point("cyclic:cpu", 50.0, 5.0),
            point("echo:net", 50.0, 5.0),
        ];
        let found: Vec<Vec<f64>> =
            frontiers(&points).iter().map(|own| own.iter().map(|point| point.harvested_percent).collect()).collect();
        assert_eq!(found, [vec![60.0, 90.0, 98.0], vec![50.0]]);
    }

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
