//! Plots of a series as SVG.

use super::measurement::{self, Measurement, Time};
use super::series::Series;
use crate::cli::palette::COLOURS;
use crate::cli::plot::{Axes, BLACK, Line, draw, draw_times};
use std::error::Error;

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
    draw_times(&axes(series), &lines)
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
    draw(&axes(series), &[line], 0.0..top, "bound ÷ time in %")
}

fn axes<'a>(series: &Series<'a>) -> Axes<'a> {
    let x = series.points.iter().map(|point| series.x(point) as f64);
    Axes {
        x: x.collect(),
        x_name: series.size,
    }
}
