//! Tables, sizes, times and counts as text.

use mkernel_compile::Resources;
use std::time::Duration;

/// Aligns cells in columns that are two spaces apart. The columns in `right` are aligned to the right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if right.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes in the largest suitable unit, such as `192.0 KiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// The registers of a thread, or `-` for simulated GPUs, which have no registers.
pub fn registers(resources: Option<Resources>) -> String {
    resources.map_or("-".to_owned(), |used| used.registers.to_string())
}

/// A time, such as `9.3 µs` or `1390 µs`.
pub fn micros(us: f64) -> String {
    if us < 99.95 {
        format!("{us:.1} µs")
    } else {
        format!("{us:.0} µs")
    }
}

/// A time in the largest suitable unit, such as `4.1 s`, `12 min`, `3.5 h` or `2.0 days`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..120.0 => format!("{seconds:.1} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// The number and the noun, in the plural unless the number is 1: `2 kernels`.
pub fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = [
            vec!["id".into(), "µs".into()],
            vec!["long".into(), "7".into()],
        ];
        assert_eq!(table(&rows, &[1]), "id    µs\nlong   7\n");
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(232_448), "227.0 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(micros(9.26), "9.3 µs");
        assert_eq!(micros(1390.4), "1390 µs");
        let times = [
            (4.12, "4.1 s"),
            (720.0, "12 min"),
            (12_600.0, "3.5 h"),
            (172_800.0, "2.0 days"),
        ];
        for (seconds, text) in times {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
    }
}
