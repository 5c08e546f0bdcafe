//! The roles of the warps of all CTAs.

use super::canvas::{Align, Canvas, MARGIN, Rect, SMALL, WIDTH};
use crate::cli::format::count;
use crate::cli::palette::distinct;
use mkernel_spec::plan::{Body, Role};

/// The space of the numbers of warps.
const LABELS: i32 = 56;
/// The distance between steps.
const GAP: i32 = 64;
/// The height of all warps.
const HEIGHT: i32 = 200;
/// The least width of CTAs, and the least height of warps, with the same roles.
const LEAST: (i32, i32) = (44, 18);

/// Draws the roles: CTAs from left to right, warps from top to bottom, steps side by side.
pub fn draw(canvas: &mut Canvas, body: &Body) {
    let launch = body.launch;
    canvas.title("Roles: which warps of which CTAs do what");
    let mut text = format!(
        "{} of {} warps.",
        count(launch.grid_ctas as usize, "CTA"),
        launch.threads / 32
    );
    if launch.cluster_ctas > 1 {
        text += &format!(" {} CTAs form a cluster.", launch.cluster_ctas);
    }
    let steps = steps(&body.roles);
    let last = steps.iter().max().copied().unwrap_or(0);
    if last > 0 {
        text += " A warp has the roles from left to right, one after the other; a later role begins when all warps of the CTA have ended earlier ones.";
    }
    canvas.note(&text);
    canvas.top += 8;
    let width = (WIDTH - 2 * MARGIN - LABELS - last as i32 * GAP) / (last as i32 + 1);
    let mut bottom = canvas.top;
    for step in 0..=last {
        let left = MARGIN + LABELS + step as i32 * (width + GAP);
        let roles: Vec<_> = (body.roles.iter().enumerate())
            .filter(|(index, _)| steps[*index] == step)
            .collect();
        bottom = bottom.max(draw_step(canvas, &roles, body.roles.len(), (left, width)));
    }
    canvas.top = bottom;
    canvas.note(
        "Left: warps. Below: CTAs. The widths of CTAs and the heights of warps are not to scale.",
    );
    canvas.top += 4;
    let items = body.roles.iter().enumerate().map(|(index, role)| {
        let (ctas, warps) = (named("CTA", role.ctas), named("warp", role.warps));
        let text = format!("{}: {} ({ctas}, {warps})", role.kind, role.about);
        (distinct(index, body.roles.len()), text)
    });
    let items: Vec<_> = items.collect();
    canvas.legend_lines(&items);
    canvas.top += 8;
}

/// Draws the roles of a step with their numbers, and returns their bottom.
fn draw_step(
    canvas: &mut Canvas,
    roles: &[(usize, &Role)],
    all: usize,
    (left, width): (i32, i32),
) -> i32 {
    let top = canvas.top;
    let ctas = Axis::new(roles, |role| role.ctas, width, LEAST.0);
    let warps = Axis::new(roles, |role| role.warps, HEIGHT, LEAST.1);
    for (index, role) in roles {
        let fill = distinct(*index, all);
        let at: Rect = [
            left + ctas.at(role.ctas.0),
            top + warps.at(role.warps.0),
            left + ctas.at(role.ctas.1),
            top + warps.at(role.warps.1),
        ];
        canvas.rect(at, fill);
        canvas.text_in(role.kind.cxx(), at, fill);
    }
    for (numbers, at) in warps.ranges() {
        let text = range(numbers);
        canvas.text(&text, (left - 6, top + at), SMALL, Align::Right);
    }
    let end = top + warps.end();
    for (numbers, at) in ctas.ranges() {
        let text = range(numbers);
        canvas.text(&text, (left + at, end + 10), SMALL, Align::Centre);
    }
    end + 22
}

/// The numbers from `first` up to, but without, `end`.
fn range((first, end): (u32, u32)) -> String {
    match end - first {
        1 => first.to_string(),
        _ => format!("{first}–{}", end - 1),
    }
}

/// The numbers with their noun, such as `warp 3` or `warps 4–11`.
fn named(noun: &str, numbers: (u32, u32)) -> String {
    let plural = if numbers.1 - numbers.0 == 1 { "" } else { "s" };
    format!("{noun}{plural} {}", range(numbers))
}

/// The step of each role. A role is one step later than the roles before it that have some of its warps.
fn steps(roles: &[Role]) -> Vec<usize> {
    let mut steps: Vec<usize> = Vec::new();
    for role in roles {
        let earlier = roles.iter().zip(&steps);
        let earlier = earlier.filter(|(other, _)| role.shares_warps_with(other));
        let step = earlier.map(|(_, step)| step + 1).max().unwrap_or(0);
        steps.push(step);
    }
    steps
}

/// Numbers of CTAs or warps at which roles begin and end, and their places.
struct Axis {
    ends: Vec<u32>,
    places: Vec<i32>,
}

impl Axis {
    /// Divides `length` among the ranges between ends in proportion, but gives each range at least `least`.
    fn new(
        roles: &[(usize, &Role)],
        of: impl Fn(&Role) -> (u32, u32),
        length: i32,
        least: i32,
    ) -> Self {
        let mut ends: Vec<u32> = roles
            .iter()
            .flat_map(|(_, role)| <[u32; 2]>::from(of(role)))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let ranges = ends.windows(2).map(|pair| i64::from(pair[1] - pair[0]));
        let ranges: Vec<i64> = ranges.collect();
        let (all, spare) = (
            ranges.iter().sum::<i64>(),
            length - least * ranges.len() as i32,
        );
        let mut places = vec![0];
        for range in &ranges {
            let share = i64::from(spare.max(0)) * range / all.max(1);
            places.push(places[places.len() - 1] + least + share as i32);
        }
        Self { ends, places }
    }

    fn at(&self, number: u32) -> i32 {
        let found = self.ends.binary_search(&number);
        found.map_or(0, |index| self.places[index])
    }

    fn end(&self) -> i32 {
        self.places.last().copied().unwrap_or(0)
    }

    /// The ranges of numbers between ends, and the places of their middles.
    fn ranges(&self) -> impl Iterator<Item = ((u32, u32), i32)> {
        let ranges = self.ends.windows(2).zip(self.places.windows(2));
        ranges.map(|(ends, places)| ((ends[0], ends[1]), i32::midpoint(places[0], places[1])))
    }
}
