//! Line charts. In: series. Out: SVG files. Called by `gleaner reproduce`.

use anyhow::anyhow;
use gleaner_experiments::Series;
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 560);
const FONT: &str = "sans-serif";

/// Draws curves and points of one plot. All share the first one's axes.
///
/// # Errors
/// When there is nothing to draw.
pub(crate) fn svg(title: &str, series: &[&Series]) -> anyhow::Result<String> {
    let in_band = |series: &&Series| -> Vec<(f64, f64)> {
        let ends = |end: usize| series.points.iter().zip(&series.band).map(move |((x, _), band)| (*x, band[end]));
        // Along the lower end, and back along the upper one.
        ends(0).chain(ends(1).rev()).collect()
    };
    let all = series.iter().flat_map(|series| series.points.iter().copied().chain(in_band(series)));
    let all: Vec<(f64, f64)> = all.filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let points = || all.iter();
    let first = series.first().filter(|_| points().next().is_some()).ok_or_else(|| anyhow!("{title}: no points"))?;
    let highest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
    let lowest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let x = 0.0..(highest(&mut points().map(|point| point.0)) * 1.05).max(1.0);
    let (low, high) = (lowest(&mut points().map(|point| point.1)), highest(&mut points().map(|point| point.1)));
    let room = (high - low).max(high.abs() * 0.05).max(1e-9) * 0.1;
    let y = (if low >= 0.0 { (low - room).max(0.0) } else { low - room })..high + room;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, (FONT, 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        chart.configure_mesh().x_desc(first.x).y_desc(first.y).label_style((FONT, 14)).draw()?;
        let mut color_index = 0;
        for (index, one) in series.iter().enumerate() {
            // Points that follow a line belong to it.
            let before = index.checked_sub(1).and_then(|before| series.get(before));
            if before.is_some_and(|before| before.points_only || !one.points_only) {
                color_index += 1;
            }
            let (series, color) = (one, Palette99::pick(color_index % 16).to_rgba());
            if !series.band.is_empty() {
                chart.draw_series([Polygon::new(in_band(series), color.mix(0.2).filled())])?;
            }
            let drawn = if series.points_only {
                let circles = series.points.iter().map(|point| Circle::new(*point, 5, color.filled()));
                chart.draw_series(circles)?
            } else {
                chart.draw_series(LineSeries::new(series.points.iter().copied(), color.stroke_width(2)))?
            };
            drawn.label(&series.name).legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .label_font((FONT, 13))
            .draw()?;
        area.present()?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_names() {
        let series = Series {
            plot: "p".into(),
            name: "adaptive & more".into(),
            x: "volunteers",
            y: "cost, $",
            points_only: true,
            points: vec![(3.0, 4.4)],
            band: Vec::new(),
        };
        let text = svg("cost", &[&series]).unwrap();
        assert!(
            text.starts_with("<svg") && text.contains("volunteers") && text.contains("adaptive &amp; more"),
            "{text}"
        );
        assert!(svg("empty", &[]).is_err());
        let points = vec![(1.0, 4.0), (2.0, 5.0)];
        let band = Series { points, band: vec![[3.0, 5.0], [4.0, 6.0]], points_only: false, ..series.clone() };
        assert!(svg("band", &[&band]).unwrap().contains("<polygon") && !text.contains("<polygon"));
    }
}
