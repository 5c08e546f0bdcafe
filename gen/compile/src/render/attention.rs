//! What templates know of an attention operator.

use super::constants::{Constant, Constants};
use super::{Parts, Variables, puts_line, ranks};
use mkernel_spec::plan::{AttentionPlan, PUSH_LEAD, SUB_TILE_BYTES, SUB_TILE_COLS, TILE_ROWS};
use mkernel_spec::{AttentionConfig, KernelPlan, Placement, abi};
use serde::Serialize;
use std::f64::consts::LOG2_E;

/// Variables of the templates of attention operators.
#[derive(Serialize)]
pub(super) struct AttentionVariables<'a> {
    /// Nodes, and ranks on each.
    nodes: u32,
    local_world: u32,
    #[serde(flatten)]
    names: &'static Names,
    layout: &'a str,
    causal: bool,
    /// Whether a rank has two chunks of the sequence.
    zigzag: bool,
    /// Whether some tiles of keys have fewer rows than others.
    ragged: bool,
    /// Whether the sequence ends before the last chunk does.
    uneven: bool,
    /// Whether there are scores that don't count.
    masks: bool,
}

/// What kernels of one node and of several call the same things: expressions in CUDA.
#[derive(Serialize)]
struct Names {
    /// This rank's workspace, where there is a `watch` …
    here: &'static str,
    /// … and where there are `args`.
    here_of_args: &'static str,
    /// How many workspaces are in reach.
    ranks_here: &'static str,
    /// What `kept` must know besides a tile.
    epoch_argument: &'static str,
    /// Ranks on to the first that a part goes to.
    nearest: &'static str,
}

static ONE_NODE: Names = Names {
    here: "watch.workspaces[watch.rank]",
    here_of_args: "args.workspaces[args.rank]",
    ranks_here: "kWorld",
    epoch_argument: "",
    nearest: "1",
};

static SEVERAL_NODES: Names = Names {
    here: "watch.here()",
    here_of_args: "watch.here()",
    ranks_here: "kLocalWorld",
    epoch_argument: "watch.epoch, ",
    nearest: "nearest",
};

/// A plan of an attention operator.
#[derive(Clone, Copy)]
struct Attention<'a> {
    plan: &'a KernelPlan,
    body: &'a AttentionPlan,
}

/// What is said of such a plan.
pub(super) fn parts<'a>(plan: &'a KernelPlan, body: &'a AttentionPlan) -> Parts<'a> {
    let attention = Attention { plan, body };
    let AttentionConfig { causal, .. } = body.config;
    let uneven = body.is_uneven(plan.spec.world());
    let topology = plan.spec.topology();
    let mut headers = vec!["barrier", "memory", "mma", "quad", "tma", "watch"];
    if plan.network.is_some() {
        headers.insert(1, "fabric");
    }
    Parts {
        title: "O = softmax(Q Kᵀ / √D) V, one launch",
        headers,
        computes: attention.computes(),
        exchanges: attention.exchanges(),
        constants: attention.constants(),
        variables: Variables::Attention(AttentionVariables {
            nodes: topology.nodes,
            local_world: topology.local_world,
            names: match topology.nodes {
                1 => &ONE_NODE,
                _ => &SEVERAL_NODES,
            },
            layout: body.config.layout.name(),
            causal,
            zigzag: body.config.placement == Placement::Zigzag,
            ragged: body.is_ragged(),
            uneven,
            masks: causal || body.is_ragged(),
        }),
    }
}

impl Attention<'_> {
    /// Lines of the banner.
    fn computes(self) -> Vec<String> {
        let Self { plan, body } = self;
        let (shape, config) = (body.shape, body.config);
        let mask = if config.causal { "causal" } else { "all keys" };
        vec![
            format!(
                "spec    B {}, S {}, H {}, {} of K and V, D {}, {}, {mask}, bf16, {}",
                shape.batch,
                shape.seq,
                shape.heads,
                shape.kv_heads,
                shape.head_dim,
                config.layout,
                ranks(plan.spec.topology())
            ),
            format!(
                "tile    {TILE_ROWS} queries x {TILE_ROWS} keys, {} stages of K and V each",
                body.stages
            ),
        ]
    }

    /// Lines of the banner.
    fn exchanges(self) -> Vec<String> {
        let Self { plan, body } = self;
        if plan.spec.world() == 1 {
            return Vec::new();
        }
        let (slots, all) = (body.kv_slots, body.kv_heads());
        let mut lines = vec![format!(
            "arrive  sm_push by {} CTAs, {} shards, {TILE_ROWS} keys under one flag, {slots} of {all} heads at a time",
            body.push_ctas, body.config.placement
        )];
        lines.extend(plan.network.as_ref().map(puts_line));
        lines
    }

    fn constants(self) -> Vec<Constant> {
        let Self { plan, body } = self;
        let mut c = Constants::default();
        let world = plan.spec.world();
        c.section("ranks, and their part of the sequence");
        c.u32("kWorld", world, "");
        if let Some(network) = &plan.network {
            let topology = plan.spec.topology();
            c.u32("kLocalWorld", topology.local_world, "of a node");
            c.u32("kPeers", topology.peers(), "other nodes");
            c.u32("kChannels", network.channels, "to each of them");
            c.u32("kPuts", network.puts, "of a call, to each");
            c.u32("kSegmentPuts", body.segment_puts(), "of a chunk of a head");
            c.u32("kPutTiles", body.put_tiles, "of K and V, at most");
        }
        if body.is_uneven(world) {
            c.u32("kSequence", body.shape.seq, "rows over all ranks");
        }
        let segments = body.config.placement.segments();
        c.u32("kSegments", segments, "chunks of the sequence per rank");
        c.u32("kSegmentRows", body.segment_rows, "rows of one");
        c.u32("kSegmentTiles", body.segment_tiles, "tiles of one");
        c.u32("kRowTiles", body.row_tiles, "tiles of a head on a rank");

        c.section("heads");
        c.u32("kBatch", body.shape.batch, "");
        c.u32("kHeads", body.shape.heads, "of Q and O");
        if world > 1 {
            c.u32("kKvHeads", body.shape.kv_heads, "of K and V");
            c.u32(
                "kSlots",
                body.kv_slots,
                "of a source, for a head of K and V each",
            );
        }
        let per_kv = body.shape.heads / body.shape.kv_heads;
        c.u32("kHeadsPerKv", per_kv, "");
        c.u32("kHeadDim", body.shape.head_dim, "columns of one");

        c.section("tiles");
        c.u32("kTileRows", TILE_ROWS, "queries per CTA at a time");
        c.u32("kTileKeys", TILE_ROWS, "keys per stage");
        c.u32("kTiles", body.tiles, "of queries, of all heads");
        c.u32("kGroupHeads", body.group_heads, "heads computed together");

        c.section("softmax");
        let scale = body.config.scale;
        let scale_log2 = LOG2_E * scale.of(body.shape.head_dim);
        let note = match scale.fixed() {
            Some(_) => "log2(e) times the scale",
            None => "log2(e) / √D",
        };
        c.push("float", "kScaleLog2", float(scale_log2), note);
        c.push("float", "kLn2", float(std::f64::consts::LN_2), "");

        if world > 1 {
            c.section("push");
            match plan.network {
                None => {
                    c.u32("kPushCtas", body.push_ctas, "");
                    c.u32("kPushWarps", body.push_warps, "of each");
                }
                Some(_) => {
                    c.u32("kPushCtas", body.push_ctas, "a warp of each");
                    c.u32("kLead", PUSH_LEAD, "own parts sent before a relayed one");
                }
            }
        }

        c.section("registers");
        c.u32("kMoverRegisters", plan.registers.mover, "per thread");
        c.u32("kMathRegisters", plan.registers.math, "");

        self.memory_constants(&mut c);
        c.into_list()
    }

    fn memory_constants(self, c: &mut Constants) {
        let Self { plan, body } = self;
        let world = plan.spec.world();
        c.section("shared memory, bytes");
        c.u32("kStages", body.stages, "of K, and of V");
        c.u32("kQueriesBytes", body.tile_bytes(), "of a tile");
        c.u32("kKeysBytes", body.tile_bytes(), "of a tile of K, or of V");
        c.u32(
            "kSubTileBytes",
            SUB_TILE_BYTES,
            "of 64 columns of a tile: lines of the swizzle",
        );
        let names = [
            ("kSmemQ", "q"),
            ("kSmemK", "k"),
            ("kSmemV", "v"),
            ("kSmemPart", "part"),
            ("kSmemBarriers", "barriers"),
            ("kSmemTiles", "tiles"),
        ];
        for (name, region) in names {
            if let Some(region) = plan.smem.iter().find(|r| r.name == region) {
                c.u32(name, region.offset_bytes, "");
            }
        }

        c.section("workspace, bytes");
        let offset = |region| plan.workspace.offset_of(region).unwrap_or(0);
        c.u64(
            "kTaken",
            offset("taken"),
            "tiles taken in a call, by parity of the epoch",
        );
        if world == 1 {
            return;
        }
        if plan.spec.topology().local_world > 1 {
            c.u64(
                "kRead",
                offset("read"),
                "counts of each peer's tiles, per slot",
            );
        }
        c.u64("kFlags", offset("flags"), "one per tile of keys");
        c.u64("kFlagStride", abi::FLAG_STRIDE_BYTES, "a line of L2 each");
        c.u64("kKept", offset("slots"), "K and V of all ranks");
        if plan.network.is_some() {
            let tiles = body.slot_tiles(world);
            c.u64("kKeptTiles", tiles, "of K and V, in each of two buffers");
            let note = "counts of puts by channel and peer";
            c.u64("kArrived", offset("arrived"), note);
        }
        let parts = 2 * body.shape.head_dim / u64::from(SUB_TILE_COLS);
        c.u32("kArrivals", parts, "counts per flag and call");
    }
}

/// A literal that rounds to the nearest float.
fn float(value: f64) -> String {
    format!("{}f", value as f32)
}
