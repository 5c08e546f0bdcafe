//! The numbers that headers of GEMM operators are instantiated for.

use super::Gemm;
use crate::render::assembly::Config;
use mkernel_spec::plan::{Reduction, Split, THREADS, TILE_K};
use mkernel_spec::{BLayout, Dtype};

pub(super) fn config(gemm: Gemm<'_>, r: &Reduction) -> Config {
    let mut c = Config::default();
    ranks(gemm, r, &mut c);
    problem(gemm, &mut c);
    tile(gemm, &mut c);
    order(gemm, r, &mut c);
    exchange(gemm, r, &mut c);
    c.section("launch")
        .u32("kThreads", THREADS, "")
        .u32("kCommCtas", gemm.body.comm_ctas, "only communicate")
        .u32(
            "kComputeCtas",
            gemm.plan.grid_ctas - gemm.body.comm_ctas,
            "",
        );
    c
}

fn ranks(gemm: Gemm<'_>, r: &Reduction, c: &mut Config) {
    let topology = gemm.plan.spec.topology();
    c.section("ranks")
        .u32("kNodes", topology.nodes, "")
        .u32("kLocalWorld", topology.local_world, "ranks of a node")
        .u32("kOwners", r.owners, "of them that have rows of C");
    if let Some(network) = &gemm.plan.network {
        let note = "to each peer on another node";
        c.u32("kChannels", network.channels.into(), note);
    }
}

fn problem(gemm: Gemm<'_>, c: &mut Config) {
    let Gemm { plan, body } = gemm;
    let shard_rows = body.shape.shard_rows(plan.spec.world()) as u32;
    let (kn, b) = match body.config.b_layout {
        BLayout::Kn => (true, "B is [K,N]"),
        BLayout::Nk => (false, "B is [N,K]"),
    };
    c.section("C = A B")
        .u32("kM", body.shape.m as u32, "")
        .u32("kN", body.shape.n as u32, "")
        .u32(
            "kShardRows",
            shard_rows,
            "rows of C on every rank but perhaps the last ones",
        )
        .bool("kBMnMajor", kn, b)
        .bool(
            "kFp32Output",
            body.config.epilogue.output == Dtype::Fp32,
            "",
        );
}

fn tile(gemm: Gemm<'_>, c: &mut Config) {
    let body = gemm.body;
    let split = match body.split {
        Split::Rows => "mk::gemm::GroupSplit::kRows",
        Split::Cols => "mk::gemm::GroupSplit::kColumns",
    };
    let k_steps = body.shape.k.div_ceil(u64::from(TILE_K)) as u32;
    c.section("tile of a CTA")
        .u32("kTileM", body.tile.m, "")
        .u32("kTileN", body.tile.n, "")
        .u32("kTileK", TILE_K, "of a stage")
        .u32("kKSteps", k_steps, "stages per tile")
        .u32("kStages", body.stages, "in shared memory")
        .u32("kLoadRowsA", body.load_rows_a, "that there are")
        .name("kGroupSplit", split, "how two warpgroups share a tile");
}

fn order(gemm: Gemm<'_>, r: &Reduction, c: &mut Config) {
    let order = &gemm.body.order;
    let (row_tiles, of) = match order.shard_row_tiles {
        Some(row_tiles) => (row_tiles, "of a shard of C"),
        None => (order.row_tiles, ""),
    };
    c.section("order of tiles")
        .u32(
            "kWorkTiles",
            order.units(),
            "what compute CTAs take in turn",
        )
        .u32(
            "kWholeTiles",
            order.whole_tiles,
            "of them, computed by one CTA each",
        )
        .u32(
            "kSplits",
            order.tail_parts,
            "CTAs that share each other tile",
        )
        .u32("kRowTiles", row_tiles, of)
        .u32("kColTiles", order.col_tiles, "")
        .u32(
            "kRasterRows",
            order.group_m,
            "row tiles that advance along N together",
        );
    if r.shots == 2 {
        c.u32("kShardTiles", r.shard_tiles, "of a shard of C")
            .u32("kRoundTiles", r.round_tiles, "of each owner in a round")
            .u32(
                "kPaceSteps",
                order.pace_steps,
                "stages after which load threads meet; 0: never",
            );
    }
}

fn exchange(gemm: Gemm<'_>, r: &Reduction, c: &mut Config) {
    c.section("exchange of partial sums");
    if r.shots == 1 {
        c.u32(
            "kPacketsInFlight",
            r.packets_in_flight,
            "of each rank, per thread",
        );
        return;
    }
    c.u32(
        "kPartialSubTiles",
        r.partial_subs,
        "of each group in a stage",
    );
    if let Some(network) = &gemm.plan.network {
        c.u32("kPutTiles", r.put_tiles, "of a put").u32(
            "kPutsPerPeer",
            network.puts,
            "of a call, on each channel",
        );
    }
}
