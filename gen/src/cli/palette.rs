//! Colours of plots and drawings.

use plotters::style::{Color, HSLColor, RGBColor};

/// The palette of Okabe and Ito, which people with any colour vision can tell apart.
pub const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];

/// The colour of an item among `count` items: a colour of the palette, or one of `count` hues if the palette is too small.
pub fn distinct(item: usize, count: usize) -> RGBColor {
    match COLOURS.get(item) {
        Some(colour) if count <= COLOURS.len() => *colour,
        _ => {
            let hue = item as f64 / count.max(1) as f64;
            // Neighbours differ in lightness too.
            let lightness = [0.45, 0.65][item % 2];
            let (red, green, blue) = HSLColor(hue, 0.65, lightness).to_backend_color().rgb;
            RGBColor(red, green, blue)
        }
    }
}

/// The colour of a moment between the first, 0, and the last, 1: light yellow, then green, then dark blue.
pub fn moment(share: f64) -> RGBColor {
    const STOPS: [[f64; 3]; 3] = [
        [253.0, 231.0, 120.0],
        [53.0, 160.0, 150.0],
        [60.0, 30.0, 110.0],
    ];
    let at = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let from = (at as usize).min(STOPS.len() - 2);
    let part = at - from as f64;
    let mixed = |i: usize| (STOPS[from][i] * (1.0 - part) + STOPS[from + 1][i] * part) as u8;
    RGBColor(mixed(0), mixed(1), mixed(2))
}
