//! The map of the shared memory of a CTA.

use super::canvas::{Align, Canvas, MARGIN, SMALL, WIDTH};
use crate::cli::format::bytes;
use crate::cli::palette::distinct;
use mkernel_spec::plan::{Body, Region};

/// The height of all regions beyond their least heights.
const HEIGHT: i64 = 160;
/// The least height of a region, in which its name has room.
const LEAST: i32 = 18;
/// The space of offsets, and of sizes.
const OFFSETS: i32 = 72;
const SIZES: i32 = 250;

/// Draws the map, and beside it the map of CTAs or phases that only communicate if they have a map of their own.
pub fn draw(canvas: &mut Canvas, body: &Body, most_bytes: u32) {
    let maps = [
        ("Shared memory of a CTA", &body.smem),
        (
            "Shared memory while a CTA only communicates",
            &body.comm_smem,
        ),
    ];
    for (title, regions) in maps {
        if regions.is_empty() {
            continue;
        }
        canvas.title(title);
        map(canvas, regions);
        canvas.top += 6;
    }
    if body.smem.is_empty() && body.comm_smem.is_empty() {
        canvas.title("Shared memory of a CTA");
        canvas.note("None.");
        return;
    }
    canvas.note(&format!(
        "{} of {} with the bytes for alignment. Left: offsets in bytes. Small regions are drawn larger than to scale.",
        bytes(body.smem_bytes.into()),
        bytes(most_bytes.into())
    ));
    canvas.top += 8;
}

fn map(canvas: &mut Canvas, regions: &[Region]) {
    let all: u64 = regions.iter().map(|region| region.bytes).sum();
    let (left, right) = (MARGIN + OFFSETS, WIDTH - MARGIN - SIZES);
    for (index, region) in regions.iter().enumerate() {
        let share = HEIGHT * region.bytes as i64 / all.max(1) as i64;
        let (top, bottom) = (canvas.top, canvas.top + LEAST + share as i32);
        let fill = distinct(index, regions.len());
        let at = [left, top, right, bottom];
        canvas.rect(at, fill);
        canvas.text_in(region.name, at, fill);
        let middle = (top + bottom) / 2;
        let offset = region.offset_bytes.to_string();
        canvas.text(&offset, (left - 6, top + LEAST / 2), SMALL, Align::Right);
        canvas.text(&size(region), (right + 8, middle), SMALL, Align::Left);
        parts(canvas, region, at);
        canvas.top = bottom;
    }
    canvas.top += 4;
}

/// Marks the borders between the outermost parts of a region, such as stages, on its sides.
fn parts(canvas: &mut Canvas, region: &Region, [left, top, right, bottom]: [i32; 4]) {
    let Some(outermost) = region.indices.first() else {
        return;
    };
    let count = outermost.extent as i32;
    if count < 2 || count > (bottom - top) / 3 {
        return;
    }
    for part in 1..count {
        let y = top + (bottom - top) * part / count;
        canvas.line((left, y), (left + 24, y));
        canvas.line((right - 24, y), (right, y));
    }
}

/// The size of a region, and the number of parts along its outermost dimension, such as stages.
fn size(region: &Region) -> String {
    let size = bytes(region.bytes);
    match region.indices.first() {
        Some(outermost) if outermost.extent > 1 => {
            let (count, name) = (outermost.extent, outermost.name);
            format!(
                "{size}: {count} x {} by {name}",
                bytes(region.bytes / count)
            )
        }
        _ => size,
    }
}
