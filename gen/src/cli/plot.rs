//! Plots of lines as SVG, which `bench` and `simulate` share.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

pub use plotters::style::BLACK;

/// The width and height of a plot.
const SIZE: (u32, u32) = (640, 400);
/// The largest number of labels for which the horizontal axis has room.
const MAX_LABELS: usize = 12;
/// A line of a plot.
pub struct Line<'a> {
    pub name: &'a str,
    pub colour: RGBColor,
    pub is_dashed: bool,
    /// The place on the horizontal axis, and the value with its least and its largest value.
    pub points: Vec<(f64, [f64; 3])>,
}

/// The horizontal axis, which is logarithmic.
pub struct Axes<'a> {
    /// The places of points, in order.
    pub x: Vec<f64>,
    pub x_name: &'a str,
}

/// Draws times of calls on a logarithmic axis. All values are above 0.
pub fn draw_times(axes: &Axes<'_>, lines: &[Line<'_>]) -> Result<String, Box<dyn Error>> {
    let values = lines.iter().flat_map(|line| &line.points);
    let y = padded(values.flat_map(|(_, values)| *values));
    let ticks = ticks(&y);
    let y = y.log_scale().with_key_points(ticks);
    draw(axes, lines, y, "µs of a call")
}

/// A range of a logarithmic axis for all values, which are above 0.
fn padded(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    least.min(most) / 1.3..most * 1.3
}

/// The labelled values of a logarithmic axis: 1, 2 and 5 in each power of ten, or the powers alone if there are many.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let steps: &[f64] = match range.end / range.start < 1e3 {
        true => &[1.0, 2.0, 5.0],
        false => &[1.0],
    };
    let all = decades.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    all.filter(|value| range.contains(value)).collect()
}

/// The labelled places of the horizontal axis: all places, or some of the places if there is not enough room for all.
fn labelled(axes: &Axes<'_>) -> Vec<f64> {
    let mut places = axes.x.clone();
    places.dedup();
    let every = places.len().div_ceil(MAX_LABELS).max(1);
    places.into_iter().step_by(every).collect()
}

/// Draws lines over a vertical axis.
pub fn draw<Y>(
    axes: &Axes<'_>,
    lines: &[Line<'_>],
    y: Y,
    y_name: &str,
) -> Result<String, Box<dyn Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let x = padded(axes.x.iter().copied());
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(x.log_scale().with_key_points(labelled(axes)), y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(axes.x_name)
        .y_desc(y_name)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| y.to_string())
        .draw()?;
    for line in lines {
        let style = line.colour.stroke_width(2);
        let values = line.points.iter().map(|(x, [value, ..])| (*x, *value));
        let drawn = match line.is_dashed {
            true => chart.draw_series(DashedLineSeries::new(values.clone(), 6, 4, style))?,
            false => chart.draw_series(LineSeries::new(values.clone(), style))?,
        };
        drawn
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        chart.draw_series(values.map(|at| Circle::new(at, 3, line.colour.filled())))?;
        let spread = line.points.iter();
        chart.draw_series(spread.map(|(x, [_, least, most])| {
            PathElement::new([(*x, *least), (*x, *most)], line.colour.stroke_width(1))
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    drop(chart);
    drop(root);
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::ticks;

    #[test]
    fn axes_have_labels_of_round_numbers() {
        assert_eq!(ticks(&(108.0..253.0)), [200.0]);
        assert_eq!(ticks(&(7.0..60.0)), [10.0, 20.0, 50.0]);
        assert_eq!(ticks(&(0.4..2500.0)), [1.0, 10.0, 100.0, 1000.0]);
    }
}
