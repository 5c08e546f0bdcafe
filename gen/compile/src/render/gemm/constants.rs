//! Numbers of a GEMM operator, by the code that needs them.

mod workspace;

use super::Gemm;
use crate::render::constants::{Constant, Constants};
use mkernel_spec::plan::{Reduction, SLOT_BYTES, Split, TILE_K};
use mkernel_spec::{BLayout, Dtype, GemmOp, Transfer};

/// Registers of two warpgroups' output buffers, sub-tiles of 64 x 64 bf16.
const OUT_BYTES: u64 = 8192;

/// All that the rendered code uses.
pub(super) fn constants(gemm: Gemm<'_>) -> Vec<Constant> {
    let mut c = Constants::default();
    core_constants(gemm, &mut c);
    if gemm.plan.spec.world() > 1 {
        exchange_constants(gemm, &mut c);
        sum_constants(gemm, &mut c);
    }
    epilogue_constants(gemm, &mut c);
    c.section("workspace, bytes");
    workspace::constants(gemm, &mut c);
    c.into_list()
}

/// What the GEMM core and the tile order need.
fn core_constants(gemm: Gemm<'_>, c: &mut Constants) {
    let Gemm { plan, body } = gemm;
    let (tile, shape, order) = (body.tile, body.shape, &body.order);
    let kn = body.config.b_layout == BLayout::Kn;
    let rows = body.split == Split::Rows;
    let group_n = if rows { tile.n } else { tile.n / 2 };

    c.section("ranks");
    rank_constants(gemm, c);

    c.section("tiles");
    c.u32("kTileM", tile.m, "rows of C per CTA at a time");
    c.u32("kTileN", tile.n, "columns");
    c.u32("kTileK", TILE_K, "columns of A per stage");
    match order.shard_row_tiles {
        Some(row_tiles) if body.reduction.is_some() => {
            c.u32("kRowTiles", row_tiles, "of a shard of C");
        }
        _ => c.u32("kRowTiles", order.row_tiles, ""),
    }
    c.u32("kColTiles", order.col_tiles, "");
    c.u32("kUnits", order.units(), "what compute CTAs take in turn");
    if order.whole_tiles > 0 && (order.tail_parts > 1 || order.pace_steps > 0) {
        c.u32("kWholeTiles", order.whole_tiles, "computed by one CTA each");
    }
    if order.tail_parts > 1 {
        c.u32(
            "kParts",
            order.tail_parts,
            "CTAs that share each other tile",
        );
    }
    c.u32(
        "kGroupRows",
        order.group_m,
        "row tiles that advance along N together",
    );
    c.u32(
        "kSteps",
        shape.k.div_ceil(u64::from(TILE_K)),
        "stages per tile",
    );
    if order.pace_steps > 0 {
        let note = "stages after which CTAs wait for each other";
        c.u32("kPaceSteps", order.pace_steps, note);
        let paces = "(kSteps + kPaceSteps - 1) / kPaceSteps";
        c.push("u32", "kPaces", paces.into(), "per tile");
    }

    c.section("CTAs and registers");
    if body.comm_ctas > 0 {
        c.u32("kCommCtas", body.comm_ctas, "only communicate");
    }
    c.u32("kComputeCtas", plan.grid_ctas - body.comm_ctas, "");
    c.u32("kMoverRegisters", plan.registers.mover, "per thread");
    c.u32("kMathRegisters", plan.registers.math, "");

    c.section("the two math warpgroups");
    c.push(
        "bool",
        "kBMnMajor",
        kn.to_string(),
        if kn { "B is [K,N]" } else { "B is [N,K]" },
    );
    c.u32("kGroupN", group_n, "columns of one");
    c.u32(
        "kGroupBytesA",
        if rows { 64 * TILE_K * 2 } else { 0 },
        "from one's rows of A to the other's",
    );
    c.u32(
        "kGroupBytesB",
        if rows { 0 } else { group_n * TILE_K * 2 },
        "from one's part of B to the other's",
    );

    c.section("shared memory, bytes");
    c.u32("kStages", body.stages, "");
    c.u32("kStageBytesA", tile.m * TILE_K * 2, "");
    if body.load_rows_a < tile.m {
        c.u32(
            "kLoadBytesA",
            body.load_rows_a * TILE_K * 2,
            "of rows that there are",
        );
    }
    c.u32("kStageBytesB", tile.n * TILE_K * 2, "");
    for (name, region) in [
        ("kSmemA", "a"),
        ("kSmemB", "b"),
        ("kSmemOut", "out"),
        ("kSmemBarriers", "stage_full"),
    ] {
        let region = plan.smem.iter().find(|r| r.name == region);
        c.u32(name, region.map_or(0, |r| r.offset_bytes), "");
    }
    c.u32("kOutBytes", OUT_BYTES, "64 x 64 bf16");
    let out = plan
        .smem
        .iter()
        .find(|r| r.name == "out")
        .map_or(0, |r| r.bytes);
    c.u32("kOutBuffers", out / OUT_BYTES / 2, "per math warpgroup");
}

/// Ranks, and the nodes that they are on.
fn rank_constants(gemm: Gemm<'_>, c: &mut Constants) {
    let Gemm { plan, .. } = gemm;
    let topology = plan.spec.topology();
    let Some(network) = &plan.network else {
        c.u32("kWorld", plan.spec.world(), "");
        return;
    };
    let results = gemm.body.reduction.as_ref().is_some_and(|r| r.results);
    if gemm.has_empty_shards() || results {
        c.u32("kWorld", plan.spec.world(), "");
    }
    c.u32("kLocalWorld", topology.local_world, "of a node");
    c.u32("kPeers", topology.peers(), "other nodes");
    c.u32("kChannels", network.channels, "to each of them");
    c.u32("kPuts", network.puts, "of a call, to each on each channel");
}

/// What the exchange of A needs.
fn exchange_constants(gemm: Gemm<'_>, c: &mut Constants) {
    let Gemm { plan, body } = gemm;
    let (shape, order) = (body.shape, &body.order);
    let Some(chunks) = &body.chunks else { return };
    let push = body.transfer == Some(Transfer::SmPush);

    c.section("shards of A");
    c.u32("kM", shape.m, "rows over all ranks");
    if push {
        c.u32("kK", shape.k, "columns");
    }
    c.u32(
        "kShardRows",
        shape.shard_rows(plan.spec.world()),
        "of every rank but perhaps the last",
    );
    let first_empty = gemm.first_empty_shard();
    if first_empty < u64::from(plan.spec.world()) {
        c.u32(
            "kFirstEmptyShard",
            first_empty,
            "this rank and those after it have no rows",
        );
    }
    if let Some(row_tiles) = order.shard_row_tiles {
        c.u32("kShardRowTiles", row_tiles, "");
    }

    c.section("arrival");
    c.u32("kChunkRows", chunks.rows, "rows under one flag");
    c.u32("kChunks", chunks.per_shard, "per shard");
    c.u32(
        "kSlices",
        chunks.k_slices,
        "of K, each under flags of its own",
    );
    c.u32(
        "kSliceSteps",
        chunks.slice_cols.div_ceil(TILE_K),
        "stages per slice",
    );
    c.u32("kArrivals", chunks.arrivals, "counts per flag and call");
    if push {
        if plan.network.is_none() {
            c.u32("kSliceCols", chunks.slice_cols, "columns per slice");
        }
        c.u32(
            "kPieceRows",
            chunks.piece_rows,
            "rows that a warp stores before it counts",
        );
        c.u32(
            "kPanelChunks",
            chunks.panel_chunks,
            "chunks that are sent slice by slice",
        );
        c.push("u32", "kPieces", "kChunks * kSlices * kArrivals".into(), "");
        if body.comm_ctas > 0 {
            c.u32(
                "kSlotBytes",
                SLOT_BYTES,
                "shared memory of one pushing warp",
            );
            c.u32(
                "kSlotRows",
                (SLOT_BYTES / 2 / chunks.slice_cols).max(1),
                "rows of a slice that it holds",
            );
        } else {
            c.u32("kPushUnroll", 4u32, "16-byte loads in flight per thread");
        }
    }
}

/// What adding up needs.
fn sum_constants(gemm: Gemm<'_>, c: &mut Constants) {
    let Gemm { plan, body } = gemm;
    let (shape, tile) = (body.shape, body.tile);
    let Some(r) = &body.reduction else { return };
    c.section("sums");
    if r.shots == 1 {
        c.u32("kM", shape.m, "rows of A");
        c.u32("kN", shape.n, "columns of C");
        c.u32("kTiles", r.owner_tiles, "");
        if gemm.scatters(r) {
            let shard_rows = shape.shard_rows(plan.spec.world());
            c.u32("kShardRows", shard_rows, "that a rank adds up");
        }
        c.u32(
            "kSources",
            plan.spec.world() + u32::from(r.results),
            if r.results {
                "parts of a sum, and the sum"
            } else {
                "parts of a sum"
            },
        );
        if r.owners < plan.spec.world() {
            c.u32("kOwners", r.owners, "ranks that have rows");
        }
        c.u32("kTaggedBytes", 2048u32, "of a warp's 8 rows, 64 columns");
        c.u32(
            "kTaggedVecs",
            (16 / plan.spec.world()).min(4),
            "of every rank, in flight per thread",
        );
        return;
    }
    if gemm.is_ragged() || r.results {
        c.u32("kM", shape.m, "rows of A");
    }
    if r.results {
        c.u32("kN", shape.n, "columns of C");
    }
    if body.config.op == GemmOp::GemmRs {
        c.u32(
            "kShardRows",
            shape.shard_rows(plan.spec.world()),
            "rows of C on every rank but perhaps the last",
        );
    }
    c.u32("kOwners", r.owners, "ranks that add up tiles");
    c.u32("kOwnerTiles", r.owner_tiles, "tiles of each");
    if r.put_tiles > 0 {
        c.u32("kShardTiles", r.shard_tiles, "that it owns itself");
        c.u32("kPutTiles", r.put_tiles, "of a put");
    }
    if r.round_tiles < r.owner_tiles {
        c.u32("kRoundTiles", r.round_tiles, "of them in a round");
        c.u32(
            "kOwnFrom",
            own_from(r),
            "from here on, all tiles are own ones",
        );
    }
    c.u32(
        "kPartialSubs",
        r.partial_subs,
        "sub-tiles of partial sums per stage and warpgroup",
    );
    c.u32("kTileBytes", tile.m * tile.n * 2, "of partial sums");
    if r.results && body.config.epilogue.output == Dtype::Fp32 {
        c.u32("kResultBytes", tile.m * tile.n * 4, "of a tile of results");
    }
    if r.results {
        let topology = plan.spec.topology();
        let tiles = r.owners * topology.nodes * r.shard_tiles;
        c.u32("kTiles", tiles, "of all owners");
        if r.put_tiles > 0 {
            c.u32(
                "kSlotBytes",
                SLOT_BYTES,
                "shared memory of one relaying warp",
            );
        }
        c.u32("kCollectUnroll", 4u32, "16-byte loads in flight per thread");
    }
}

/// Where C ends, if the epilogue must know and nothing else does.
fn epilogue_constants(gemm: Gemm<'_>, c: &mut Constants) {
    let Gemm { body, .. } = gemm;
    let epilogue = body.config.epilogue;
    let addends = epilogue.bias || epilogue.residual;
    let by_shards = body.config.op == GemmOp::GemmRs && body.reduction.is_some();
    c.section("C");
    for (name, size, is_used, note) in [
        (
            "kM",
            body.shape.m,
            epilogue.residual && gemm.is_ragged() && !by_shards,
            "rows",
        ),
        (
            "kN",
            body.shape.n,
            addends && gemm.has_ragged_cols(),
            "columns",
        ),
    ] {
        if is_used && !c.has(name) {
            c.u32(name, size, note);
        }
    }
}

/// Where in a rank's order the last of the others' tiles is over: own tiles lag one round behind.
fn own_from(r: &Reduction) -> u32 {
    let rounds = r.owner_tiles.div_ceil(r.round_tiles);
    (r.owners - 1) * r.owner_tiles + rounds.saturating_sub(2) * r.round_tiles
}
