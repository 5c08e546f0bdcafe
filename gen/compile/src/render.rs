//! `KernelPlan` → [`CudaSource`]: the only place where templates meet numbers.
//!
//! Tera chooses which code exists, `constexpr` how big it is, arguments where it lives. A constant is printed only if
//! the rendered code uses it: NVRTC warns of others, and a warning fails the build.

use crate::error::GenError;
use crate::source::CudaSource;
use crate::templates::TEMPLATES;
use mkernel_spec::abi::{self, ArgKind};
use mkernel_spec::plan::{Reduction, SLOT_BYTES, Split, THREADS, TILE_K};
use mkernel_spec::{BLayout, KernelPlan, Op, Transfer};
use serde::Serialize;
use std::sync::LazyLock;
use tera::{Context, Tera};

/// Registers of two warpgroups' output buffers, sub-tiles of 64 x 64 bf16.
const OUT_BYTES: u64 = 8192;

/// All that the templates know. Field names are the templates' variables.
#[derive(Serialize)]
struct RenderContext<'a> {
    id: &'a str,
    op: &'a str,
    title: &'a str,
    banner: Vec<String>,
    headers: [&'a str; 5],
    constants: Vec<Constant>,
    args: Vec<Declaration<'a>>,
    args_bytes: usize,
    world: u32,
    threads: u32,
    comm_ctas: u32,
    b_layout: &'a str,
    split: &'a str,
    /// CTAs that share a tile of the last round.
    tail_parts: u32,
    /// Tiles that one CTA computes alone.
    whole_tiles: u32,
    /// Index of a compute CTA.
    cta_index: &'a str,
    /// Whether tiles lie within shards.
    aligned: bool,
    /// Ranks back to the first that a shard goes to: itself (0) if tiles straddle shards.
    nearest: u32,
    /// Whether some ranks have no rows.
    empty_shards: bool,
    /// Whether warps push.
    push: bool,
    /// Warps of a compute CTA that push.
    push_warps: u32,
    /// Whether copy engines push.
    copies: bool,
    /// Whether A comes from all ranks.
    gathers: bool,
    /// Whether tiles have owners, who add up what each rank computed.
    reduces: bool,
    /// Whether every rank adds up every tile.
    one_shot: bool,
    /// Whether, in one shot, a rank adds up its own rows only …
    scatters: bool,
    /// … and sends the sums to all.
    relays: bool,
    /// Whether owners send results to all.
    results: bool,
    /// Whether own tiles come after all others.
    one_round: bool,
    /// Whether some ranks own no tiles.
    idle_ranks: bool,
    /// Whether some places of the order have no tile.
    gaps: bool,
    /// Whether some tiles have rows beyond C.
    ragged: bool,
    /// Whether loads of A leave rows of a stage as they are.
    short_a: bool,
    /// The part of a stage that partial sums take.
    partial_stage: &'a str,
}

#[derive(Serialize)]
struct Declaration<'a> {
    declaration: String,
    name: &'a str,
    offset_bytes: usize,
}

#[derive(Serialize)]
struct Constant {
    heading: Option<&'static str>,
    kind: &'static str,
    name: &'static str,
    value: String,
    note: &'static str,
}

/// Constants in the order in which they are printed.
#[derive(Default)]
struct Constants {
    list: Vec<Constant>,
    heading: Option<&'static str>,
}

impl Constants {
    fn section(&mut self, heading: &'static str) {
        self.heading = Some(heading);
    }

    fn u32(&mut self, name: &'static str, value: impl Into<u64>, note: &'static str) {
        self.push("u32", name, value.into().to_string(), note);
    }

    fn u64(&mut self, name: &'static str, value: u64, note: &'static str) {
        self.push("u64", name, value.to_string(), note);
    }

    fn push(&mut self, kind: &'static str, name: &'static str, value: String, note: &'static str) {
        self.list.push(Constant {
            heading: self.heading.take(),
            kind,
            name,
            value,
            note,
        });
    }
}

static TERA: LazyLock<Result<Tera, tera::Error>> = LazyLock::new(|| {
    let mut tera = Tera::default();
    tera.autoescape_on(Vec::<&str>::new());
    tera.add_raw_templates(TEMPLATES.to_vec())?;
    Ok(tera)
});

/// Renders the kernel of a plan; the same plan always gives the same text.
///
/// # Errors
/// [`GenError::Render`] if a template is wrong, which is a defect of this crate.
pub fn render(plan: &KernelPlan) -> Result<CudaSource, GenError> {
    let failed = |source| GenError::Render {
        id: plan.id.clone(),
        source,
    };
    let tera = TERA
        .as_ref()
        .map_err(|e| failed(tera::Error::message(e.to_string())))?;
    let context = Context::from_serialize(&context(plan)).map_err(failed)?;
    let text = tera.render("kernel.cu.tera", &context).map_err(failed)?;
    Ok(CudaSource {
        id: plan.id.clone(),
        target: plan.device.target,
        text: tidy(&text),
    })
}

fn context(plan: &KernelPlan) -> RenderContext<'_> {
    let args = plan.args.args.iter();
    let reduction = plan.reduction.as_ref();
    let two_shots = |is: fn(&KernelPlan, &Reduction) -> bool| {
        reduction.is_some_and(|r| r.shots == 2 && is(plan, r))
    };
    RenderContext {
        id: &plan.id,
        op: plan.spec.op().name(),
        title: match plan.spec.op() {
            Op::AgGemm => "C = AllGather(A) B, one launch",
            Op::GemmRs => "C = rows of the sum of A B over ranks, one launch",
            Op::GemmAr => "C = sum of A B over ranks, one launch",
            _ => "One launch",
        },
        banner: banner(plan),
        headers: ["barrier", "memory", "mma", "tma", "watch"],
        constants: constants(plan),
        args: args
            .map(|a| Declaration {
                declaration: a.kind.declare(a.name),
                name: a.name,
                offset_bytes: a.offset_bytes,
            })
            .collect(),
        args_bytes: plan.args.size_bytes,
        world: plan.spec.world(),
        threads: THREADS,
        comm_ctas: plan.comm_ctas,
        b_layout: plan.spec.b_layout().name(),
        split: match plan.split {
            Split::Rows => "rows",
            Split::Cols => "cols",
        },
        tail_parts: plan.order.tail_parts,
        whole_tiles: plan.order.whole_tiles,
        cta_index: if plan.comm_ctas > 0 {
            "blockIdx.x - cfg::kCommCtas"
        } else {
            "blockIdx.x"
        },
        aligned: plan.chunks.as_ref().is_some_and(|c| !c.to_self),
        nearest: u32::from(!plan.chunks.as_ref().is_some_and(|c| c.to_self)),
        empty_shards: plan.chunks.is_some()
            && first_empty_shard(plan) < u64::from(plan.spec.world()),
        push: plan.transfer == Some(Transfer::SmPush),
        push_warps: plan.chunks.as_ref().map_or(0, |c| c.push_warps),
        copies: plan.copies.is_some(),
        gathers: plan.spec.op() == Op::AgGemm,
        reduces: reduction.is_some_and(|r| r.shots == 2),
        one_shot: reduction.is_some_and(|r| r.shots == 1),
        scatters: reduction.is_some_and(|r| scatters(plan, r)),
        relays: reduction.is_some_and(|r| r.shots == 1 && r.results),
        results: two_shots(|_, r| r.results),
        one_round: two_shots(|_, r| r.round_tiles == r.owner_tiles),
        idle_ranks: reduction.is_some_and(|r| r.owners < plan.spec.world()),
        gaps: two_shots(|plan, r| r.owners * r.owner_tiles > plan.order.tiles()),
        ragged: is_ragged(plan),
        short_a: rows_of_a(plan) < plan.tile.m,
        partial_stage: if plan.tile.n >= plan.tile.m { "b" } else { "a" },
    }
}

/// Whether, in one shot, a rank adds up its own rows only.
fn scatters(plan: &KernelPlan, r: &Reduction) -> bool {
    r.shots == 1 && (r.results || plan.spec.op() == Op::GemmRs)
}

/// Rows of A that one load brings.
fn rows_of_a(plan: &KernelPlan) -> u32 {
    let a = plan.args.args.iter().find(|arg| arg.name == "a");
    match a.map(|arg| &arg.kind) {
        Some(ArgKind::TensorMap(map)) => map.box_elems[1],
        _ => plan.tile.m,
    }
}

/// Whether rows of some tiles are beyond the C of who adds them up.
fn is_ragged(plan: &KernelPlan) -> bool {
    let (m, tile_m) = (plan.shape.m, u64::from(plan.tile.m));
    match plan.spec.op() {
        Op::GemmRs if plan.order.shard_row_tiles.is_some() => {
            let shard_rows = plan.spec.shard_rows(plan.shape);
            !shard_rows.is_multiple_of(tile_m) || m != shard_rows * u64::from(plan.spec.world())
        }
        _ => !m.is_multiple_of(tile_m),
    }
}

fn banner(plan: &KernelPlan) -> Vec<String> {
    let shape = plan.shape;
    let (world, layout) = (plan.spec.world(), plan.spec.b_layout());
    let b = match layout {
        BLayout::Kn => "[K,N]",
        BLayout::Nk => "[N,K]",
    };
    let mut lines = vec![
        format!(
            "spec    M {}, N {}, K {}, B as {b}, bf16, {world} rank{}",
            shape.m,
            shape.n,
            shape.k,
            plural(world)
        ),
        format!(
            "tile    {} x {} x {TILE_K}, {} stages",
            plan.tile.m, plan.tile.n, plan.stages
        ),
    ];
    for role in &plan.roles {
        let ((cta, cta_end), (warp, warp_end)) = (role.ctas, role.warps);
        lines.push(format!(
            "role    {:<5}  CTAs [{cta}, {cta_end})  warps [{warp}, {warp_end})  {}",
            role.name, role.about
        ));
    }
    if let Some(c) = &plan.chunks {
        let how = plan.transfer.map_or("", Transfer::name);
        lines.push(format!(
            "arrive  {how}, chunks of {} rows, {} per shard, {} slice{} of K",
            c.rows,
            c.per_shard,
            c.k_slices,
            plural(c.k_slices)
        ));
    }
    if let Some(r) = &plan.reduction {
        lines.push(match r.shots {
            1 if scatters(plan, r) => {
                "sum     every rank adds up its rows of every tile".to_owned()
            }
            1 => "sum     every rank adds up every tile".to_owned(),
            _ => format!(
                "sum     {} owners of {} tiles, rounds of {}",
                r.owners, r.owner_tiles, r.round_tiles
            ),
        });
    }
    let regions: Vec<_> = plan
        .smem
        .iter()
        .map(|r| format!("{} {}", r.name, r.bytes))
        .collect();
    lines.push(format!(
        "shared  {} = {} of {} bytes",
        regions.join(" | "),
        plan.smem_bytes,
        plan.device.smem_bytes
    ));
    lines
}

const fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn constants(plan: &KernelPlan) -> Vec<Constant> {
    let mut c = Constants::default();
    core_constants(plan, &mut c);
    if plan.spec.world() > 1 {
        exchange_constants(plan, &mut c);
        sum_constants(plan, &mut c);
    }
    c.section("workspace, bytes");
    workspace_constants(plan, &mut c);
    c.list
}

/// What the GEMM core and the tile order need.
fn core_constants(plan: &KernelPlan, c: &mut Constants) {
    let (tile, shape, order) = (plan.tile, plan.shape, &plan.order);
    let kn = plan.spec.b_layout() == BLayout::Kn;
    let rows = plan.split == Split::Rows;
    let group_n = if rows { tile.n } else { tile.n / 2 };

    c.section("ranks");
    c.u32("kWorld", plan.spec.world(), "");

    c.section("tiles");
    c.u32("kTileM", tile.m, "rows of C per CTA at a time");
    c.u32("kTileN", tile.n, "columns");
    c.u32("kTileK", TILE_K, "columns of A per stage");
    match order.shard_row_tiles {
        Some(row_tiles) if plan.reduction.is_some() => {
            c.u32("kRowTiles", row_tiles, "of a shard of C");
        }
        _ => c.u32("kRowTiles", order.row_tiles, ""),
    }
    c.u32("kColTiles", order.col_tiles, "");
    c.u32("kUnits", order.units(), "what compute CTAs take in turn");
    if order.tail_parts > 1 {
        if order.whole_tiles > 0 {
            c.u32("kWholeTiles", order.whole_tiles, "computed by one CTA each");
        }
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

    c.section("CTAs and registers");
    if plan.comm_ctas > 0 {
        c.u32("kCommCtas", plan.comm_ctas, "only communicate");
    }
    c.u32("kComputeCtas", plan.grid_ctas - plan.comm_ctas, "");
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
    c.u32("kStages", plan.stages, "");
    c.u32("kStageBytesA", tile.m * TILE_K * 2, "");
    if rows_of_a(plan) < tile.m {
        c.u32(
            "kLoadBytesA",
            rows_of_a(plan) * TILE_K * 2,
            "of rows that there are",
        );
    }
    c.u32("kStageBytesB", tile.n * TILE_K * 2, "");
    for (name, region) in [
        ("kSmemA", "a"),
        ("kSmemB", "b"),
        ("kSmemOut", "out"),
        ("kSmemBarriers", "barriers"),
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

/// The first rank that has no rows; the world if all have.
fn first_empty_shard(plan: &KernelPlan) -> u64 {
    plan.shape.m.div_ceil(plan.spec.shard_rows(plan.shape))
}

/// Where things lie in the workspace.
fn workspace_constants(plan: &KernelPlan, c: &mut Constants) {
    let mut u64 = |name, region, note| {
        c.u64(name, plan.workspace.offset_of(region).unwrap_or(0), note);
    };
    let exchanges = plan.chunks.is_some();
    if plan.order.tail_parts > 1 {
        u64(
            "kTailFlags",
            "tail_flags",
            "one per shared tile and math warp",
        );
        u64("kTailSums", "tail_sums", "fp32");
    }
    if exchanges {
        u64("kFlags", "flags", "");
    }
    if plan.transfer == Some(Transfer::SmPush) {
        u64(
            "kGathered",
            "gathered",
            "two buffers, by parity of the epoch",
        );
    }
    let shots = plan.reduction.as_ref().map_or(0, |r| r.shots);
    if shots == 1 {
        u64("kSlots", "slots", "by parity of the epoch, source and tile");
    }
    if shots == 2 {
        u64(
            "kPartialFlags",
            "partial_flags",
            "one per source rank and tile",
        );
        u64(
            "kPartials",
            "partials",
            "by parity of the epoch, source and tile",
        );
    }
    if plan.workspace.offset_of("results").is_some() {
        u64("kResultFlags", "result_flags", "one per tile");
        u64("kResults", "results", "by parity of the epoch and tile");
    }
    if plan.workspace.offset_of("begun").is_some() {
        u64("kBegun", "begun", "one flag per rank that has rows");
    }
    if exchanges
        || shots == 2
        || plan.workspace.offset_of("begun").is_some()
        || plan.order.tail_parts > 1
    {
        c.u64("kFlagStride", abi::FLAG_STRIDE_BYTES, "a line of L2 each");
    }
}

/// What the exchange of A needs.
fn exchange_constants(plan: &KernelPlan, c: &mut Constants) {
    let (shape, order) = (plan.shape, &plan.order);
    let Some(chunks) = &plan.chunks else { return };
    let push = plan.transfer == Some(Transfer::SmPush);

    c.section("shards of A");
    c.u32("kM", shape.m, "rows over all ranks");
    if push {
        c.u32("kK", shape.k, "columns");
    }
    c.u32(
        "kShardRows",
        plan.spec.shard_rows(shape),
        "of every rank but perhaps the last",
    );
    let first_empty = first_empty_shard(plan);
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
        c.u32("kSliceCols", chunks.slice_cols, "columns per slice");
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
        if plan.comm_ctas > 0 {
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
fn sum_constants(plan: &KernelPlan, c: &mut Constants) {
    let (shape, tile) = (plan.shape, plan.tile);
    let Some(r) = &plan.reduction else { return };
    c.section("sums");
    if r.shots == 1 {
        c.u32("kM", shape.m, "rows of A");
        c.u32("kN", shape.n, "columns of C");
        c.u32("kTiles", r.owner_tiles, "");
        if scatters(plan, r) {
            let shard_rows = plan.spec.shard_rows(shape);
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
    if is_ragged(plan) || r.results {
        c.u32("kM", shape.m, "rows of A");
    }
    if r.results {
        c.u32("kN", shape.n, "columns of C");
    }
    if plan.spec.op() == Op::GemmRs {
        c.u32(
            "kShardRows",
            plan.spec.shard_rows(shape),
            "rows of C on every rank but perhaps the last",
        );
    }
    c.u32("kOwners", r.owners, "ranks that add up tiles");
    c.u32("kOwnerTiles", r.owner_tiles, "tiles of each");
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
    if r.results {
        c.u32("kTiles", r.owners * r.owner_tiles, "of all owners");
        c.u32("kCollectUnroll", 4u32, "16-byte loads in flight per thread");
    }
}

/// Where in a rank's order the last of the others' tiles is over: own tiles lag one round behind.
fn own_from(r: &Reduction) -> u32 {
    let rounds = r.owner_tiles.div_ceil(r.round_tiles);
    (r.owners - 1) * r.owner_tiles + rounds.saturating_sub(2) * r.round_tiles
}

/// Strips trailing blanks, folds blank lines to one, ends with one newline.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut blank = true;
    for line in text.lines().map(str::trim_end) {
        if line.is_empty() && blank {
            continue;
        }
        blank = line.is_empty();
        out.push_str(line);
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}
