//! [`Canvas`]: rectangles, lines and text, which become a picture when its height is known.

use crate::cli::palette::{distinct, moment};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;

/// The width of a picture.
pub const WIDTH: i32 = 960;
/// The distance of the content from the border of a picture.
pub const MARGIN: i32 = 24;
/// The font size of text inside boxes and of notes.
pub const SMALL: i32 = 12;
/// The font size of titles of sections.
pub const LARGE: i32 = 15;
/// The distance between lines of notes.
const LINE: i32 = 17;

/// A rectangle: left, top, right and bottom.
pub type Rect = [i32; 4];

/// The horizontal place of text relative to its position.
#[derive(Clone, Copy)]
pub enum Align {
    Left,
    Centre,
    Right,
}

enum Shape {
    Rect(Rect, RGBColor, bool),
    Line([(i32, i32); 2]),
    Dot((i32, i32), RGBColor),
    Text(String, (i32, i32), i32, Align, RGBColor),
}

/// The parts of a picture. Sections follow one below the other.
pub struct Canvas {
    shapes: Vec<Shape>,
    /// The top of the next section.
    pub top: i32,
}

impl Canvas {
    pub fn new() -> Self {
        Self {
            shapes: Vec::new(),
            top: MARGIN,
        }
    }

    pub fn rect(&mut self, at: Rect, fill: RGBColor) {
        self.shapes.push(Shape::Rect(at, fill, true));
    }

    /// A rectangle without an outline, for cells that are too small for one.
    pub fn cell(&mut self, at: Rect, fill: RGBColor) {
        self.shapes.push(Shape::Rect(at, fill, false));
    }

    pub fn line(&mut self, from: (i32, i32), to: (i32, i32)) {
        self.shapes.push(Shape::Line([from, to]));
    }

    /// Text whose middle line has this height.
    pub fn text(&mut self, text: &str, at: (i32, i32), size: i32, align: Align) {
        self.coloured_text(text, at, size, align, BLACK);
    }

    /// Text in the middle of a rectangle, if there is room.
    pub fn text_in(&mut self, text: &str, [left, top, right, bottom]: Rect, fill: RGBColor) {
        if text_width(text, SMALL) + 4 <= right - left && SMALL < bottom - top {
            let at = ((left + right) / 2, (top + bottom) / 2);
            self.coloured_text(text, at, SMALL, Align::Centre, ink_on(fill));
        }
    }

    fn coloured_text(
        &mut self,
        text: &str,
        at: (i32, i32),
        size: i32,
        align: Align,
        ink: RGBColor,
    ) {
        self.shapes
            .push(Shape::Text(text.to_owned(), at, size, align, ink));
    }

    /// The title of a section.
    pub fn title(&mut self, text: &str) {
        self.top += LARGE;
        self.text(text, (MARGIN, self.top), LARGE, Align::Left);
        self.top += LARGE + 4;
    }

    /// Lines of text over the whole width.
    pub fn note(&mut self, text: &str) {
        for line in wrapped(text, WIDTH - 2 * MARGIN) {
            self.top += LINE / 2;
            self.text(&line, (MARGIN, self.top), SMALL, Align::Left);
            self.top += LINE - LINE / 2;
        }
    }

    /// Lines that each begin with a dot of a colour.
    pub fn legend_lines(&mut self, items: &[(RGBColor, String)]) {
        const INDENT: i32 = 16;
        for (colour, text) in items {
            self.shapes
                .push(Shape::Dot((MARGIN + 5, self.top + LINE / 2), *colour));
            for line in wrapped(text, WIDTH - 2 * MARGIN - INDENT) {
                self.top += LINE / 2;
                self.text(&line, (MARGIN + INDENT, self.top), SMALL, Align::Left);
                self.top += LINE - LINE / 2;
            }
        }
    }

    /// Short names with dots of their colours, side by side.
    pub fn legend(&mut self, items: &[(RGBColor, String)]) {
        let mut left = MARGIN;
        for (colour, text) in items {
            let width = 16 + text_width(text, SMALL) + 14;
            if left > MARGIN && left + width > WIDTH - MARGIN {
                left = MARGIN;
                self.top += LINE;
            }
            let middle = self.top + LINE / 2;
            self.shapes.push(Shape::Dot((left + 5, middle), *colour));
            self.text(text, (left + 14, middle), SMALL, Align::Left);
            left += width;
        }
        self.top += LINE + 4;
    }

    /// The colours of some moments, from the first to the last.
    pub fn legend_of_moments(&mut self) {
        let names = ["first", "", "", "", "last"];
        let shares = (0..).map(|i| moment(f64::from(i) / 4.0));
        let items = shares.zip(names.map(str::to_owned));
        self.legend(&items.collect::<Vec<_>>());
    }

    /// The colours of ranks.
    pub fn legend_of_ranks(&mut self, world: u32) {
        let item = |rank| (rank_colour(rank, world), format!("rank {rank}"));
        self.legend(&(0..world).map(item).collect::<Vec<_>>());
    }

    /// The picture.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        let size = (WIDTH as u32, (self.top + MARGIN) as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        for shape in &self.shapes {
            match shape {
                Shape::Rect([left, top, right, bottom], fill, has_outline) => {
                    let corners = [(*left, *top), (*right, *bottom)];
                    root.draw(&Rectangle::new(corners, fill.filled()))?;
                    if *has_outline {
                        let outline = [
                            (*left, *top),
                            (*right, *top),
                            (*right, *bottom),
                            (*left, *bottom),
                            (*left, *top),
                        ];
                        root.draw(&PathElement::new(outline, WHITE.stroke_width(1)))?;
                    }
                }
                Shape::Line(ends) => root.draw(&PathElement::new(*ends, BLACK.mix(0.35)))?,
                Shape::Dot(at, fill) => root.draw(&Circle::new(*at, 5, fill.filled()))?,
                Shape::Text(text, at, size, align, ink) => {
                    let horizontal = match align {
                        Align::Left => HPos::Left,
                        Align::Centre => HPos::Center,
                        Align::Right => HPos::Right,
                    };
                    // The backend divides sizes by 1.24.
                    let font = ("sans-serif", f64::from(*size) * 1.24).into_font();
                    let style = TextStyle::from(font).color(ink);
                    let style = style.pos(Pos::new(horizontal, VPos::Center));
                    root.draw(&Text::new(text.as_str(), *at, style))?;
                }
            }
        }
        root.present()?;
        drop(root);
        Ok(svg)
    }
}

/// The colour of a rank.
pub fn rank_colour(rank: u32, world: u32) -> RGBColor {
    distinct(rank as usize, world as usize)
}

/// The colour of text on a colour.
fn ink_on(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    let light = 0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue);
    if light > 140.0 { BLACK } else { WHITE }
}

/// The width of text in a sans-serif font, rather too large than too small.
pub fn text_width(text: &str, size: i32) -> i32 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | '.' | ',' | ':' | ';' | '\'' | '|' | ' ' | '['
        | ']' | '(' | ')' => 0.4,
        'm' | 'w' | 'M' | 'W' | '→' | '…' | 'Σ' => 0.95,
        c if c.is_ascii_uppercase() => 0.7,
        _ => 0.62,
    };
    (text.chars().map(em).sum::<f64>() * f64::from(size)).ceil() as i32
}

/// The lines of a text that is too wide for one line.
fn wrapped(text: &str, width: i32) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map_or(String::new(), std::mem::take);
        let longer = match line.is_empty() {
            true => word.to_owned(),
            false => format!("{line} {word}"),
        };
        if line.is_empty() || text_width(&longer, SMALL) <= width {
            lines.pop();
            lines.push(longer);
        } else {
            lines.pop();
            lines.extend([line, word.to_owned()]);
        }
    }
    lines
}
