//! Measurements as a table of text.

use super::measurement::{self, Measurement, Time};
use crate::cli::format::table;

/// A table with a line for each measurement, and notes behind it.
pub fn text(all: &[Measurement]) -> String {
    let rivals = measurement::rivals(all);
    let mut heading: Vec<String> = [
        "kernel",
        "ranks",
        "SM MHz",
        "µs",
        "min..max",
        "bound µs",
        "of bound",
    ]
    .map(str::to_owned)
    .into();
    heading.extend(rivals.iter().map(|name| format!("{name} µs")));
    let right: Vec<usize> = (1..heading.len()).collect();
    let mut rows = vec![heading];
    rows.extend(all.iter().map(|measured| row(measured, &rivals)));
    let mut text = table(&rows, &right);
    if !rivals.is_empty() {
        text += "(x 1.50): the time of the rival divided by the time of the kernel\n";
    }
    for note in measurement::notes(all) {
        text += &format!("note: {note}\n");
    }
    text
}

fn row(measured: &Measurement, rivals: &[&str]) -> Vec<String> {
    let time = measured.time;
    let mut row = vec![
        measured.label.clone(),
        measured.ranks.to_string(),
        measured.clock(),
        number(time.us),
        format!("{}..{}", number(time.min_us), number(time.max_us)),
        number(measured.bound_us),
        format!("{:.0} %", 100.0 * measured.share_of_bound()),
    ];
    row.extend(rivals.iter().map(|name| match measured.rival(name) {
        Some(rival) => beside(rival, time),
        None => "-".to_owned(),
    }));
    row
}

/// The time of a rival, and its ratio to the time of the kernel.
pub fn beside(rival: Time, time: Time) -> String {
    format!("{} (x {:.2})", number(rival.us), rival.us / time.us)
}

/// A time in µs without its unit.
pub fn number(us: f64) -> String {
    match us < 99.95 {
        true => format!("{us:.1}"),
        false => format!("{us:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measurement::example;
    use super::*;

    #[test]
    fn a_table_has_the_bound_and_each_rival() {
        let mut all = [example(16, 20.0), example(8192, 1000.0)];
        all[1].rivals.truncate(1);
        all[1].sm_mhz = None;
        let expected = "\
kernel                      ranks      SM MHz    µs   min..max  bound µs  of bound  cuBLAS, then NCCL µs  cuBLAS alone µs
gemm_ar m=16 n=8192 k=2048      4  1980..1755  20.0  18.0..25.0      10.0      50 %         30.0 (x 1.50)    14.0 (x 0.70)
gemm_ar m=8192 n=8192 k=2048    4           -  1000   900..1250       500      50 %         1500 (x 1.50)                -
(x 1.50): the time of the rival divided by the time of the kernel
note: torch: not compared
";
        let words = |text: &str| {
            let lines = text.lines();
            let of_line = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            lines.map(of_line).collect::<Vec<Vec<String>>>()
        };
        assert_eq!(words(&text(&all)), words(expected));
    }
}
