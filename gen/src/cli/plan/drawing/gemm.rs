//! The order of the tiles of a GEMM, and the exchange that tiles wait for or feed.

use super::canvas::{Canvas, rank_colour};
use super::grid::{Band, Cell, Grid};
use crate::cli::palette::moment;
use mkernel_spec::plan::{Body, Chunks, GemmPlan, PlacedTile, Reduction};
use mkernel_spec::{GemmOp, Topology};
use std::ops::Range;

/// The rank whose order is drawn.
const RANK: u32 = 0;

pub fn draw(canvas: &mut Canvas, body: &Body, plan: &GemmPlan, topology: Topology) {
    order(canvas, body, plan, topology);
    if let Some(chunks) = &plan.chunks {
        gathered(canvas, plan, chunks, topology);
    } else if let Some(reduction) = &plan.reduction {
        reduced(canvas, plan, reduction, topology);
    }
}

/// An empty grid for the tiles of C over all ranks.
fn grid(plan: &GemmPlan) -> Grid {
    let order = &plan.order;
    Grid {
        size: (order.row_tiles, order.col_tiles),
        axes: (
            "M".to_owned(),
            format!("N: {} columns of tiles", order.col_tiles),
        ),
        ..Grid::default()
    }
}

/// The place of a tile in C over all ranks, in units of tiles.
fn place(plan: &GemmPlan, tile: PlacedTile) -> (u32, u32) {
    let before = match (plan.config.op, &plan.reduction, plan.order.shard_row_tiles) {
        (GemmOp::GemmRs, Some(reduction), Some(of_shard)) if reduction.shots == 2 => {
            tile.owner * of_shard
        }
        _ => 0,
    };
    (before + tile.row, tile.col)
}

fn order(canvas: &mut Canvas, body: &Body, plan: &GemmPlan, topology: Topology) {
    let ctas = body.launch.grid_ctas - plan.comm_ctas;
    let order = &plan.order;
    canvas.title(&format!("Order of the tiles of C on rank {RANK}"));
    let mut text = format!(
        "{} x {} tiles of {} x {}. The {ctas} CTAs that compute take tiles in this order, {ctas} at a time.",
        order.row_tiles, order.col_tiles, plan.tile.m, plan.tile.n
    );
    if order.tail_splits > 1 && order.tail_tiles() > 0 {
        text += &format!(
            " {} CTAs share each of the last {} tiles: each multiplies a slice of K.",
            order.tail_splits,
            order.tail_tiles()
        );
    }
    text += match (&plan.chunks, &plan.reduction) {
        (Some(_), _) => " Every rank begins with its own rows.",
        (None, Some(reduction)) if reduction.shots == 2 => {
            " Every rank computes the tiles of other owners first, and own tiles when the sums of other ranks have arrived."
        }
        _ => "",
    };
    canvas.note(&text);
    let tiles = plan.tile_sequence(RANK, topology);
    let last = (tiles.len().max(2) - 1) as f64;
    let cell = |(index, tile): (usize, &PlacedTile)| Cell {
        at: place(plan, *tile),
        fill: moment(index as f64 / last),
        text: index.to_string(),
    };
    let cells = tiles.iter().enumerate().map(cell).collect();
    Grid {
        cells,
        names: names_of_rows(plan),
        ..grid(plan)
    }
    .draw(canvas);
    canvas.legend_of_moments();
}

/// The first row of some rows of tiles.
fn names_of_rows(plan: &GemmPlan) -> Vec<(Range<f64>, String)> {
    let rows = (0..plan.order.row_tiles).step_by(plan.order.row_tiles.div_ceil(16).max(1) as usize);
    rows.map(|row| {
        let place = f64::from(row);
        (place..place + 1.0, format!("row {}", row * plan.tile.m))
    })
    .collect()
}

/// The chunks of A that tiles wait for.
fn gathered(canvas: &mut Canvas, plan: &GemmPlan, chunks: &Chunks, topology: Topology) {
    let world = topology.world();
    canvas.title("The chunks of A that unlock tiles");
    let slices = match chunks.k_slices {
        1 => String::new(),
        slices => format!(
            " Each chunk travels in {slices} slices of K, each under its own flag, so that a tile begins when the first slice has arrived."
        ),
    };
    let own = match chunks.to_self {
        true => "",
        false => " The rows of the own rank need no chunk.",
    };
    canvas.note(&format!(
        "Left: the shards of A in chunks of {} rows. A tile waits for the chunks beside it; its colour is the rank of its first row.{slices}{own}",
        chunks.rows
    ));
    let tile_rows = f64::from(plan.tile.m);
    let shard_rows = plan.shape.shard_rows(world);
    let in_tiles = |row: u64| row.min(plan.shape.m) as f64 / tile_rows;
    let mut bands = Vec::new();
    let mut names = Vec::new();
    for rank in 0..world {
        let first = u64::from(rank) * shard_rows;
        let end = (first + shard_rows).min(plan.shape.m);
        if first < end {
            names.push((in_tiles(first)..in_tiles(end), format!("rank {rank}")));
        }
        for chunk in (first..end).step_by(chunks.rows as usize) {
            let end = end.min(chunk + u64::from(chunks.rows));
            bands.push(Band {
                rows: in_tiles(chunk)..in_tiles(end),
                fill: rank_colour(rank, world),
            });
        }
    }
    let cell = |tile: &PlacedTile| {
        let waits = plan.chunks_of_rows(plan.rows_of_tile(*tile, topology), topology);
        Cell {
            at: place(plan, *tile),
            fill: rank_colour(waits.first().map_or(0, |of| of.source), world),
            text: String::new(),
        }
    };
    let tiles = plan.tile_sequence(RANK, topology);
    Grid {
        cells: tiles.iter().map(cell).collect(),
        bands,
        names,
        ..grid(plan)
    }
    .draw(canvas);
    canvas.legend_of_ranks(world);
}

/// The ranks that add up tiles.
fn reduced(canvas: &mut Canvas, plan: &GemmPlan, reduction: &Reduction, topology: Topology) {
    let world = topology.world();
    canvas.title("The ranks that tiles feed");
    let keeps_rows = plan.config.op == GemmOp::GemmRs;
    let is_one_shot = reduction.shots == 1;
    if is_one_shot && !keeps_rows {
        canvas.note(match reduction.results {
            true => "Every rank sends the rows of its sums of every tile to the ranks that add up these rows, and gets the results of all rows.",
            false => "Every rank sends its sums of every tile to all ranks, and adds up all tiles.",
        });
        return;
    }
    let then = match (keeps_rows, reduction.results) {
        (true, _) => "keeps the result",
        (false, true) => "sends the result to all ranks",
        (false, false) => "stores the result to C of all ranks",
    };
    let across = match topology.nodes {
        1 => "",
        _ => {
            " On each node, the rank with the owner's local rank adds up the sums of the node first, and puts them to the owner."
        }
    };
    canvas.note(&format!(
        "The colour of a tile is the rank that owns it. Every rank sends its sums of the tile to this rank, which adds them up in the order of ranks and {then}.{across}"
    ));
    let owner = |tile: &PlacedTile| match is_one_shot {
        true => {
            let first = plan.rows_of_tile(*tile, topology).start;
            (first / plan.shape.shard_rows(world)) as u32
        }
        false => tile.owner,
    };
    let cell = |tile: &PlacedTile| Cell {
        at: place(plan, *tile),
        fill: rank_colour(owner(tile), world),
        text: owner(tile).to_string(),
    };
    let tiles = plan.tile_sequence(RANK, topology);
    Grid {
        cells: tiles.iter().map(cell).collect(),
        names: names_of_rows(plan),
        ..grid(plan)
    }
    .draw(canvas);
    canvas.legend_of_ranks(world);
}
