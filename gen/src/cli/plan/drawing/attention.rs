//! The order of the tiles of queries, and the keys that they meet.

use super::canvas::{Canvas, rank_colour};
use super::grid::{Cell, Grid};
use crate::cli::format::count;
use crate::cli::palette::moment;
use mkernel_spec::Topology;
use mkernel_spec::plan::{AttentionPlan, Body, QueryTile, TILE_ROWS};
use std::ops::Range;

/// The rank whose order is drawn.
const RANK: u32 = 0;

pub fn draw(canvas: &mut Canvas, body: &Body, plan: &AttentionPlan, topology: Topology) {
    canvas.title(&format!("Order of the tiles of queries on rank {RANK}"));
    if plan.config.packed {
        canvas.note("Not drawn: the lengths of packed sequences are known only in a call. CTAs take tiles of later rows first, head by head.");
        return;
    }
    let text = format!(
        "{} of {TILE_ROWS} queries for each of {}. The {} take the next tile from a counter in this order: later rows first, since they have the most keys.",
        count(plan.row_tiles as usize, "tile"),
        count(plan.heads() as usize, "head"),
        count(body.launch.grid_ctas as usize, "CTA"),
    );
    canvas.note(&text);
    let tiles = plan.tile_sequence();
    let last = (tiles.len().max(2) - 1) as f64;
    let cell = |(index, tile): (usize, &QueryTile)| Cell {
        at: (row_tile(plan, *tile), tile.head),
        fill: moment(index as f64 / last),
        text: index.to_string(),
    };
    Grid {
        size: (plan.row_tiles, plan.heads() as u32),
        cells: tiles.iter().enumerate().map(cell).collect(),
        names: names(plan, topology),
        axes: ("queries".to_owned(), "heads".to_owned()),
        ..Grid::default()
    }
    .draw(canvas);
    canvas.legend_of_moments();
    keys(canvas, plan, topology);
}

/// The number of a tile among the tiles of its head.
fn row_tile(plan: &AttentionPlan, tile: QueryTile) -> u32 {
    tile.chunk * plan.segment_tiles + tile.row / TILE_ROWS
}

/// The first row of each chunk in the sequence.
fn names(plan: &AttentionPlan, topology: Topology) -> Vec<(Range<f64>, String)> {
    let rows = plan
        .config
        .placement
        .rows_of(topology.world(), RANK, plan.shape.seq);
    let tiles = plan.segment_tiles;
    (0..)
        .zip(rows)
        .map(|(chunk, rows)| {
            let first = f64::from(chunk * tiles);
            (
                first..first + f64::from(tiles),
                format!("from {}", rows.start),
            )
        })
        .collect()
}

/// The tiles of keys that each tile of queries meets.
fn keys(canvas: &mut Canvas, plan: &AttentionPlan, topology: Topology) {
    let (world, placement) = (topology.world(), plan.config.placement);
    canvas.title("The K and V that tiles of queries wait for");
    let cached = match plan.config.cached {
        Some(_) => " Cached rows of each rank, which are not drawn, follow its rows of the call.",
        None => "",
    };
    canvas.note(&format!(
        "A cell is a tile of keys that the queries on its left attend to, in the colour of the rank that sends the keys; a number is the turn of the tile. Own keys come first, then the keys of the ranks before this one, and around.{cached}"
    ));
    let mut cells = Vec::new();
    for tile in plan
        .tile_sequence()
        .into_iter()
        .filter(|tile| tile.head == 0)
    {
        let met = plan.key_tiles_of(tile, RANK, topology);
        for (turn, keys) in met.into_iter().enumerate() {
            let chunk = placement.chunk_of(world, keys.source, keys.chunk);
            let col = chunk * plan.segment_tiles + keys.row / TILE_ROWS;
            cells.push(Cell {
                at: (row_tile(plan, tile), col),
                fill: rank_colour(keys.source, world),
                text: turn.to_string(),
            });
        }
    }
    Grid {
        size: (plan.row_tiles, world * plan.row_tiles),
        cells,
        names: names(plan, topology),
        axes: (
            "queries".to_owned(),
            "keys, in the order of the sequence".to_owned(),
        ),
        ..Grid::default()
    }
    .draw(canvas);
    canvas.legend_of_ranks(world);
}
