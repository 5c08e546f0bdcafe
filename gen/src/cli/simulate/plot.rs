//! Plots of simulated times as SVG.

use super::report::Simulated;
use crate::cli::palette::COLOURS;
use crate::cli::plot::{Axes, BLACK, Line, draw_times};
use std::error::Error;

/// The times of kernels and their bounds over the nodes.
pub fn times(lines: &[Simulated<'_>]) -> Result<String, Box<dyn Error>> {
    let mut labels: Vec<&str> = lines.iter().map(|line| line.label).collect();
    labels.dedup();
    let mut drawn = Vec::new();
    let names: Vec<String> = labels
        .iter()
        .map(|label| format!("bound of {label}"))
        .collect();
    for ((label, bound), colour) in labels.iter().zip(&names).zip(COLOURS.iter().cycle()) {
        let of = |value: fn(&Simulated<'_>) -> f64| {
            let of_kernel = lines.iter().filter(|line| line.label == *label);
            of_kernel
                .map(|line| (f64::from(line.nodes), [value(line); 3]))
                .collect()
        };
        drawn.push(Line {
            name: label,
            colour: *colour,
            is_dashed: false,
            points: of(|line| line.us),
        });
        drawn.push(Line {
            name: bound,
            colour: BLACK,
            is_dashed: true,
            points: of(|line| line.bound_us),
        });
    }
    let mut nodes: Vec<f64> = lines.iter().map(|line| f64::from(line.nodes)).collect();
    nodes.sort_by(f64::total_cmp);
    nodes.dedup();
    draw_times(
        &Axes {
            x: nodes,
            x_name: "nodes",
        },
        &drawn,
    )
}
