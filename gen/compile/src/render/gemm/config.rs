//! The constants for which the headers of GEMM operators are instantiated.

use crate::render::assembly::Config;
use crate::render::scales::{scales, sent_scales};
use mkernel_spec::plan::{Body, Chunks, GemmPlan, Reduction, SLOT_BYTES, Split};
use mkernel_spec::{BLayout, GemmOp, Topology};

/// A plan of a GEMM operator with its op_plan.
#[derive(Clone, Copy)]
pub(super) struct Gemm<'a> {
    pub topology: Topology,
    pub body: &'a Body,
    pub op_plan: &'a GemmPlan,
}

pub(super) fn config(gemm: Gemm<'_>) -> Config {
    let mut c = Config::default();
    ranks(gemm, &mut c);
    problem(gemm, &mut c);
    tile(gemm, &mut c);
    order(gemm, &mut c);
    if let Some(reduction) = &gemm.op_plan.reduction {
        exchange(gemm, reduction, &mut c);
    }
    norm(gemm, &mut c);
    if let Some(chunks) = &gemm.op_plan.chunks {
        shards(gemm, chunks, &mut c);
    }
    launch(gemm, &mut c);
    c
}

fn ranks(gemm: Gemm<'_>, c: &mut Config) {
    let topology = gemm.topology;
    c.section("ranks").u32("kNodes", topology.nodes, "").u32(
        "kLocalWorld",
        topology.local_world,
        "ranks of a node",
    );
    if let Some(r) = &gemm.op_plan.reduction {
        c.u32("kOwners", r.owners, "ranks of a node that own tiles of C");
    }
    if let Some(network) = &gemm.body.network {
        c.network(network);
    }
}

fn problem(gemm: Gemm<'_>, c: &mut Config) {
    let Gemm {
        topology, op_plan, ..
    } = gemm;
    let (kn, b) = match op_plan.config.b_layout {
        BLayout::Kn => (true, "B is [K,N]"),
        BLayout::Nk => (false, "B is [N,K]"),
    };
    let most = op_plan.shape.m as u32;
    c.section("C = A B").u32("kM", most, "");
    if gemm.takes_rows() {
        let note = "most rows of a call; other numbers of rows are for this many";
        c.u32("kMaxRows", most, note);
    }
    c.u32("kN", op_plan.shape.n as u32, "");
    if let Some(note) = gemm.shard_rows_note() {
        let shard_rows = op_plan.shape.shard_rows(topology.world()) as u32;
        c.u32("kShardRows", shard_rows, note);
    }
    let (epilogue, types) = (&op_plan.config.epilogue, op_plan.types());
    c.bool("kBMnMajor", kn, b)
        .element("ElementA", types.a, "element of A and B")
        .element("ElementC", types.c, "element of C");
    scales(op_plan.config.scales, c);
    if epilogue.swiglu {
        c.policy(
            "Columns",
            "mk::gemm::SwiGlu",
            "columns of B that make one of C",
        );
    }
    if epilogue.bias || epilogue.residual {
        c.element(
            "ElementAddend",
            types.addend,
            "element of bias and residual",
        );
    }
}

fn tile(gemm: Gemm<'_>, c: &mut Config) {
    let op_plan = gemm.op_plan;
    let split = match op_plan.split {
        Split::Rows => "mk::gemm::GroupSplit::kRows",
        Split::Cols => "mk::gemm::GroupSplit::kColumns",
    };
    let tile_k = op_plan.types().tile_k();
    let k_steps = op_plan.shape.k.div_ceil(tile_k.into()) as u32;
    c.section("tile of a CTA")
        .u32("kTileM", op_plan.tile.m, "")
        .u32("kTileN", op_plan.tile.n, "")
        .u32("kTileK", tile_k, "columns of A in a stage")
        .u32("kKSteps", k_steps, "stages per tile")
        .u32("kStages", op_plan.stages, "stages in shared memory")
        .u32("kLoadRowsA", op_plan.load_rows_a, "rows of A per TMA load")
        .name("kGroupSplit", split, "how two warpgroups share a tile");
    if let Some(cluster) = op_plan.cluster {
        c.u32(
            "kWarpsWithRows",
            cluster.row_warps,
            "warps of a warpgroup with rows of C, at most",
        );
    }
    if op_plan.stage_rows_a < op_plan.tile.m {
        c.u32(
            "kStageRowsA",
            op_plan.stage_rows_a,
            "rows of A in a stage, before B",
        );
    }
}

fn order(gemm: Gemm<'_>, c: &mut Config) {
    let op_plan = gemm.op_plan;
    let order = &op_plan.order;
    let (row_tiles, of) = match order.shard_row_tiles {
        Some(row_tiles) if op_plan.reduction.is_some() => (row_tiles, "row tiles of a shard of C"),
        _ => (order.row_tiles, ""),
    };
    c.section("order of tiles")
        .u32(
            "kWorkTiles",
            order.work_tiles(),
            "tiles, and slices of tiles, that compute CTAs take in turn",
        )
        .u32(
            "kWholeTiles",
            order.whole_tiles,
            "tiles that one CTA computes alone",
        )
        .u32(
            "kSplits",
            order.tail_splits,
            "CTAs that share a tile of the last round",
        )
        .u32("kRowTiles", row_tiles, of)
        .u32("kColTiles", order.col_tiles, "")
        .u32(
            "kRasterRows",
            order.group_m,
            "row tiles that advance along N together",
        )
        .u32(
            "kPaceSteps",
            order.pace_steps,
            "stages after which load threads meet; 0: never",
        );
    if let Some(granules) = op_plan.config.granules(op_plan.shape) {
        let note = "ranges of K whose sums are added as a binary tree";
        c.batch_invariant().u32("kGranules", granules, note);
    }
    if let Some(r) = op_plan.reduction.as_ref().filter(|r| r.shots == 2) {
        c.u32("kShardTiles", r.shard_tiles, "tiles that a rank owns")
            .u32("kRoundTiles", r.round_tiles, "tiles of an owner in a round");
    }
}

fn exchange(gemm: Gemm<'_>, r: &Reduction, c: &mut Config) {
    c.section("exchange of partial sums").element(
        "ElementPartial",
        gemm.op_plan.types().partial,
        "element of partial sums that ranks exchange",
    );
    if r.shots == 1 {
        c.u32(
            "kPacketsInFlight",
            r.packets_in_flight,
            "packets of a rank that a thread loads at once",
        );
        return;
    }
    c.u32(
        "kPartialSubTiles",
        r.partial_subs,
        "sub-tiles of a warpgroup in a stage",
    );
    if gemm.body.network.is_some() {
        c.u32("kPutTiles", r.put_tiles, "tiles of a put");
    }
    if r.collect_unroll > 0 {
        c.u32(
            "kCollectUnroll",
            r.collect_unroll,
            "16-byte loads of results in flight, per thread",
        );
    }
}

fn norm(gemm: Gemm<'_>, c: &mut Config) {
    let op_plan = gemm.op_plan;
    let epilogue = &op_plan.config.epilogue;
    if !epilogue.normalises() {
        return;
    }
    let eps = epilogue.eps.value();
    c.section("norm of rows")
        .float("kEps", eps.into(), "added to the mean of squares");
    let (n, vec) = (op_plan.shape.n, 16 / op_plan.types().c.bytes());
    if let Some(cols) = epilogue.result_scales.shared_by(n) {
        c.u32("kRowVecs", (n / vec) as u32, "vectors of 16 bytes of a row")
            .u32(
                "kScaleVecs",
                (cols / vec) as u32,
                "vectors of a row that share a scale",
            );
    }
}

fn shards(gemm: Gemm<'_>, chunks: &Chunks, c: &mut Config) {
    c.section("shards of A on their way")
        .u32("kK", gemm.op_plan.shape.k as u32, "columns of A")
        .u32("kChunkRows", chunks.rows, "rows under a flag")
        .u32("kSliceCols", chunks.slice_cols, "columns under a flag")
        .u32(
            "kPieceRows",
            chunks.piece_rows,
            "rows that arrive at a time",
        )
        .u32(
            "kPanelChunks",
            chunks.panel_chunks,
            "chunks that are sent slice by slice",
        )
        .u32(
            "kPushWarps",
            chunks.push_warps,
            "warps that push in a CTA that does; 0: copy engines push",
        );
    let (config, k) = (&gemm.op_plan.config, gemm.op_plan.shape.k);
    sent_scales(config.row_scales(k), config.sent_row_bytes(k), c);
    if chunks.push_unroll > 0 {
        c.u32(
            "kPushUnroll",
            chunks.push_unroll,
            "16-byte loads in flight, per thread",
        );
    }
}

fn launch(gemm: Gemm<'_>, c: &mut Config) {
    let Gemm { body, op_plan, .. } = gemm;
    c.section("launch")
        .u32("kThreads", body.launch.threads, "")
        .u32("kCommCtas", op_plan.comm_ctas, "CTAs that only communicate")
        .u32(
            "kComputeCtas",
            body.launch.grid_ctas - op_plan.comm_ctas,
            "",
        );
    if !body.comm_smem.is_empty() {
        c.u32(
            "kSlotBytes",
            SLOT_BYTES,
            "shared memory through which a warp copies",
        );
    }
}

impl Gemm<'_> {
    /// Whether each call gives the rows.
    pub fn takes_rows(self) -> bool {
        self.body.max_rows().is_some()
    }

    /// The comment of the constant `kShardRows`, if the kernel has this constant.
    fn shard_rows_note(self) -> Option<&'static str> {
        let op_plan = self.op_plan;
        if op_plan.chunks.is_some() {
            return Some("rows of A on every rank but perhaps the last ones");
        }
        let r = op_plan.reduction.as_ref()?;
        match op_plan.config.op {
            GemmOp::GemmRs => Some("rows of C on every rank but perhaps the last ones"),
            _ if self.scatters(r) => Some("rows of C that a rank reduces"),
            _ => None,
        }
    }

    /// Whether the reduction has one shot and each rank reduces only its own rows.
    pub fn scatters(self, r: &Reduction) -> bool {
        r.shots == 1 && (r.results || self.op_plan.config.op == GemmOp::GemmRs)
    }
}
