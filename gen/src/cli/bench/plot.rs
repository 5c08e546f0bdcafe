//! Plots of a series as SVG.

use super::measurement::{self, Measurement, Time};
use super::series::Series;
use crate::cli::palette::COLOURS;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// The width and height of a plot.
const SIZE: (u32, u32) = (640, 400);
/// The largest number of labels for which the axis of sizes has room.
const MAX_LABELS: usize = 12;
/// A line of a plot.
struct Line<'a> {
    name: &'a str,
    colour: RGBColor,
    is_dashed: bool,
    /// The size, and the value with its least and its largest value.
    points: Vec<(f64, [f64; 3])>,
}

/// The times of the kernel, its bound and its rivals over the size, with logarithmic axes.
pub fn times(series: &Series) -> Result<String, Box<dyn Error>> {
    let of = |time: Time| [time.us, time.min_us, time.max_us];
    let line = |name, colour, is_dashed, value: &dyn Fn(&Measurement) -> Option<[f64; 3]>| {
        let points = series.points.iter();
        let points = points.filter_map(|point| Some((series.x(point) as f64, value(point)?)));
        // A logarithmic axis has no zero, which is the bound of a kernel that moves nothing.
        let points = points.filter(|(_, values)| values.iter().all(|value| *value > 0.0));
        Line {
            name,
            colour,
            is_dashed,
            points: points.collect(),
        }
    };
    let mut lines = vec![
        line("mkernel", COLOURS[0], false, &|point| Some(of(point.time))),
        line("bound", BLACK, true, &|point| Some([point.bound_us; 3])),
    ];
    let colours = COLOURS.iter().skip(1).cycle();
    let rivals = measurement::rivals(series.points.iter().copied());
    for (name, colour) in rivals.into_iter().zip(colours) {
        lines.push(line(name, *colour, false, &|point| {
            point.rival(name).map(of)
        }));
    }
    let values = lines.iter().flat_map(|line| &line.points);
    let y = padded(values.flat_map(|(_, values)| *values));
    let ticks = ticks(&y);
    let y = y.log_scale().with_key_points(ticks);
    draw(series, &lines, y, "µs of a call")
}

/// The share of the time of the kernel that its bound explains, over the size.
pub fn shares(series: &Series) -> Result<String, Box<dyn Error>> {
    let percent = |bound_us: f64, us: f64| 100.0 * bound_us / us;
    let values = |point: &Measurement| {
        let Time { us, min_us, max_us } = point.time;
        [us, max_us, min_us].map(|us| percent(point.bound_us, us))
    };
    let points = series.points.iter();
    let points: Vec<_> = points
        .map(|point| (series.x(point) as f64, values(point)))
        .collect();
    let largest = points.iter().flat_map(|(_, values)| *values);
    let top = largest.fold(100.0, f64::max) * 1.05;
    let line = Line {
        name: "bound ÷ time",
        colour: COLOURS[0],
        is_dashed: false,
        points,
    };
    draw(series, &[line], 0.0..top, "bound ÷ time in %")
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

/// The sizes, or some of the sizes if there is not enough room for all.
fn sizes(series: &Series) -> Vec<f64> {
    let mut sizes: Vec<_> = series.points.iter().map(|point| series.x(point)).collect();
    sizes.dedup();
    let every = sizes.len().div_ceil(MAX_LABELS);
    sizes
        .into_iter()
        .step_by(every)
        .map(|size| size as f64)
        .collect()
}

fn draw<Y>(series: &Series, lines: &[Line], y: Y, y_name: &str) -> Result<String, Box<dyn Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let x = padded(series.points.iter().map(|point| series.x(point) as f64));
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(x.log_scale().with_key_points(sizes(series)), y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(series.size)
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
