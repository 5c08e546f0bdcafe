//! [`Grid`]: tiles or chunks as cells of a grid.

use super::canvas::{Align, Canvas, MARGIN, SMALL, text_width};
use plotters::style::RGBColor;
use std::ops::Range;

/// The largest size of all cells together, and of one cell.
const LARGEST: (i32, i32) = (640, 384);
const LARGEST_CELL: (i32, i32) = (56, 26);
/// The least size of a cell. Cells of larger grids stand for several tiles.
const LEAST_CELL: (i32, i32) = (4, 3);
/// The width of the names of rows, and of the strip of bands beside the cells.
const NAMES: i32 = 90;
const STRIP: i32 = 40;

/// A cell: its row and column, its colour, and a short text.
pub struct Cell {
    pub at: (u32, u32),
    pub fill: RGBColor,
    pub text: String,
}

/// A range of rows beside the grid, in units of rows.
pub struct Band {
    pub rows: Range<f64>,
    pub fill: RGBColor,
}

/// Cells of rows and columns.
#[derive(Default)]
pub struct Grid {
    pub size: (u32, u32),
    pub cells: Vec<Cell>,
    /// Ranges of rows with colours.
    pub bands: Vec<Band>,
    /// Names of ranges of rows.
    pub names: Vec<(Range<f64>, String)>,
    /// The meaning of rows and of columns.
    pub axes: (String, String),
}

impl Grid {
    pub fn draw(&self, canvas: &mut Canvas) {
        let (rows, cols) = self.size;
        let (tall, height) = cell(rows, LARGEST.1, LEAST_CELL.1, LARGEST_CELL.1);
        let (wide, width) = cell(cols, LARGEST.0, LEAST_CELL.0, LARGEST_CELL.0);
        let strip = if self.bands.is_empty() { 0 } else { STRIP + 8 };
        let (left, top) = (MARGIN + NAMES + strip, canvas.top + 22);
        canvas.text(&self.axes.1, (left, top - 12), SMALL, Align::Left);
        canvas.text(
            &self.axes.0,
            (MARGIN + NAMES - 6, top - 12),
            SMALL,
            Align::Right,
        );
        let y = |row: f64| top + (row * f64::from(height) / f64::from(tall)) as i32;
        for Cell { at, fill, text } in &self.cells {
            let (row, col) = (at.0 / tall, at.1 / wide);
            if at.0 % tall != 0 || at.1 % wide != 0 {
                continue;
            }
            let (x, y) = (left + col as i32 * width, top + row as i32 * height);
            let rect = [x, y, x + width, y + height];
            match width > 6 && height > 6 {
                true => canvas.rect(rect, *fill),
                false => canvas.cell(rect, *fill),
            }
            canvas.text_in(text, rect, *fill);
        }
        for Band { rows, fill } in &self.bands {
            let rect = [left - 8 - STRIP, y(rows.start), left - 8, y(rows.end)];
            canvas.rect(rect, *fill);
        }
        let mut free = top - SMALL / 2;
        for (rows, name) in &self.names {
            let middle = (y(rows.start) + y(rows.end)) / 2;
            // A name without room is left out.
            if middle - SMALL / 2 >= free && text_width(name, SMALL) <= NAMES {
                canvas.text(name, (left - strip - 6, middle), SMALL, Align::Right);
                free = middle + SMALL / 2 + 2;
            }
        }
        canvas.top = top + rows.div_ceil(tall) as i32 * height + 10;
        if (wide, tall) != (1, 1) {
            canvas.note(&format!("A cell stands for {tall} x {wide} of {rows} x {cols}, and has the colour of the first."));
        }
    }
}

/// The number of rows or columns for which a cell stands, and the length of the cell.
fn cell(count: u32, all: i32, least: i32, most: i32) -> (u32, i32) {
    let count = count.max(1);
    let step = count.div_ceil((all / least) as u32);
    let length = all / count.div_ceil(step) as i32;
    (step, length.min(most))
}
