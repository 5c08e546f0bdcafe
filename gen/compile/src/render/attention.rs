//! The parts of the source of an attention operator that depend on its plan.

use super::assembly::{Assembly, Config};
use super::text::{puts_line, ranks};
use mkernel_spec::plan::{AttentionPlan, Body, PUSH_LEAD, TILE_ROWS};
use mkernel_spec::{AttentionConfig, Layout, Topology};
use std::f64::consts::LOG2_E;

/// An attention plan with its op_plan.
#[derive(Clone, Copy)]
struct Attention<'a> {
    topology: Topology,
    body: &'a Body,
    op_plan: &'a AttentionPlan,
}

/// Assembles the source of an attention operator.
pub(super) fn assembly(body: &Body, op_plan: &AttentionPlan, topology: Topology) -> Assembly {
    let attention = Attention {
        topology,
        body,
        op_plan,
    };
    let mask = match op_plan.config.causal {
        true => "CausalMask",
        false => "NoMask",
    };
    Assembly {
        title: "O = softmax(Q Kᵀ / √D) V, one launch",
        headers: vec!["attention/ring_attention"],
        config: attention.config(),
        policies: [("mask", mask.to_owned())].into(),
        banner: attention.banner(),
    }
}

/// Describes the cached rows, or is empty.
fn cached(op_plan: &AttentionPlan) -> String {
    let describe = |rows| format!(" behind up to {rows} cached on each rank");
    op_plan.config.cached.map_or(String::new(), describe)
}

impl Attention<'_> {
    fn banner(self) -> Vec<String> {
        let Self {
            topology,
            body,
            op_plan,
        } = self;
        let AttentionConfig {
            layout,
            causal,
            placement,
            ..
        } = op_plan.config;
        let shape = op_plan.shape;
        let mask = if causal { "causal" } else { "all keys" };
        let up_to = if op_plan.takes_rows() { "up to " } else { "" };
        let rows = match op_plan.config.packed {
            true => format!("up to {} packed sequences of S {}", shape.batch, shape.seq),
            false => format!(
                "B {}, S {up_to}{}{}",
                shape.batch,
                shape.seq,
                cached(op_plan)
            ),
        };
        let mut lines = vec![
            format!(
                "spec    {rows}, H {}, {} of K and V, D {}, {layout}, {mask}, {}, {}",
                shape.heads,
                shape.kv_heads,
                shape.head_dim,
                op_plan.config.dtype,
                ranks(topology)
            ),
            format!(
                "tile    {TILE_ROWS} queries x {TILE_ROWS} keys, {} stages of K and V each",
                op_plan.stages
            ),
        ];
        if topology.world() > 1 {
            let (slots, all) = (op_plan.kv_slots, op_plan.kv_heads());
            lines.push(format!(
                "arrive  sm_push by {} CTAs, {placement} shards, {TILE_ROWS} keys under one flag, {slots} of {all} heads at a time",
                op_plan.push_ctas
            ));
        }
        lines.extend(body.network.as_ref().map(puts_line));
        lines
    }

    fn config(self) -> Config {
        let mut c = Config::default();
        self.sequence(&mut c);
        self.tiles(&mut c);
        if self.topology.world() > 1 {
            self.exchange(&mut c);
        }
        c.section("launch")
            .u32("kThreads", self.body.launch.threads, "");
        c
    }

    fn sequence(self, c: &mut Config) {
        let Self {
            topology, op_plan, ..
        } = self;
        let of_chunk = match op_plan.config.packed {
            true => "rows of a chunk of all sequences together, at most",
            false => "rows of a chunk",
        };
        c.section("ranks, and their part of the sequence")
            .u32("kNodes", topology.nodes, "")
            .u32("kLocalWorld", topology.local_world, "ranks of a node")
            .u32("kSequence", op_plan.shape.seq as u32, "rows over all ranks")
            .u32(
                "kRankChunks",
                op_plan.config.placement.segments(),
                "chunks of the sequence per rank",
            )
            .u32("kChunkRows", op_plan.segment_rows, of_chunk);
        if op_plan.config.packed {
            let tiles = op_plan.segment_tiles;
            c.u32(
                "kChunkTiles",
                tiles,
                "tiles of a chunk, each of one sequence",
            )
            .u32("kMaxRows", op_plan.shape.seq as u32, "most rows of a call")
            .u32(
                "kSequences",
                op_plan.shape.batch as u32,
                "most sequences of a call",
            );
        } else if op_plan.takes_rows() {
            let about = "most rows of a call; kSequence and kChunkRows are for this many";
            c.u32("kMaxRows", op_plan.shape.seq as u32, about);
        }
        if let Some(rows) = op_plan.config.cached {
            let about = "most rows of a sequence that a rank has before its rows of a call";
            c.u32("kCachedRows", rows, about);
        }
        c.section("heads")
            .u32("kBatch", op_plan.batches() as u32, "")
            .u32("kHeads", op_plan.shape.heads as u32, "heads of Q and O")
            .u32(
                "kKvHeads",
                op_plan.shape.kv_heads as u32,
                "heads of K and V",
            )
            .u32(
                "kHeadDim",
                op_plan.shape.head_dim as u32,
                "columns of a head",
            )
            .element("Element", op_plan.config.dtype, "element of Q, K, V and O")
            .name(
                "kLayout",
                match op_plan.config.layout {
                    Layout::Bshd => "mk::attention::Layout::kBshd",
                    Layout::Bhsd => "mk::attention::Layout::kBhsd",
                },
                "layout of O",
            );
    }

    fn tiles(self, c: &mut Config) {
        let op_plan = self.op_plan;
        let scale = op_plan.config.scale;
        let scale_log2 = LOG2_E * scale.of(op_plan.shape.head_dim);
        let note = match scale.fixed() {
            Some(_) => "log2(e) times the scale of scores",
            None => "log2(e) / √D",
        };
        c.section("tiles")
            .u32("kTileRows", TILE_ROWS, "queries per CTA at a time")
            .u32("kTileKeys", TILE_ROWS, "keys per stage")
            .u32("kStages", op_plan.stages, "stages of K, and of V")
            .u32(
                "kGroupHeads",
                op_plan.group_heads,
                "heads whose tiles take turns",
            )
            .float("kScaleLog2", scale_log2, note);
    }

    fn exchange(self, c: &mut Config) {
        let Self { body, op_plan, .. } = self;
        let ctas = match body.network {
            None => "CTAs that send K and V before they compute",
            Some(_) => "CTAs that send K and V while they compute",
        };
        c.section("exchange of K and V")
            .u32(
                "kKvSlots",
                op_plan.kv_slots,
                "slots of a source, each for K and V of a head",
            )
            .u32(
                "kKvBuffers",
                op_plan.buffers,
                "buffers of all slots, in which calls take turns",
            )
            .u32("kPushCtas", op_plan.push_ctas, ctas)
            .u32(
                "kPushWarps",
                op_plan.push_warps,
                "warps that send in a CTA that does",
            );
        if let Some(network) = &body.network {
            c.u32(
                "kForwardLag",
                PUSH_LEAD,
                "own parts sent before the first part of a peer is forwarded",
            )
            .u32(
                "kPutTiles",
                op_plan.put_tiles,
                "blocks of K and V in a put, at most",
            )
            .network(network);
        }
    }
}
