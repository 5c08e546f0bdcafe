//! What templates know of `dispatch_gemm`.

use super::constants::{Constant, Constants};
use super::{Parts, Variables, plural};
use mkernel_spec::plan::{COPIES_AHEAD, DispatchPlan, FAULT_WORDS, SLOT_BYTES, Split, TILE_K};
use mkernel_spec::{BLayout, KernelPlan, abi};
use serde::Serialize;

/// Row tiles that share weights in L2.
const GROUP_ROWS: u32 = 16;
/// Sixteen rows of 64 bf16.
const OUT_BYTES: u32 = 2048;

/// Variables of the templates of `dispatch_gemm`.
#[derive(Serialize)]
pub(super) struct DispatchVariables<'a> {
    /// Nodes, and ranks on each.
    nodes: u32,
    local_world: u32,
    b_layout: &'a str,
    split: &'a str,
    swiglu: bool,
    /// Whether the last stage of a token has columns beyond it.
    ragged_hidden: bool,
    /// Whether some tiles have columns beyond C.
    ragged_cols: bool,
}

/// A plan of `dispatch_gemm`.
#[derive(Clone, Copy)]
struct Dispatch<'a> {
    plan: &'a KernelPlan,
    body: &'a DispatchPlan,
}

/// What is said of such a plan.
pub(super) fn parts<'a>(plan: &'a KernelPlan, body: &'a DispatchPlan) -> Parts<'a> {
    let dispatch = Dispatch { plan, body };
    let mut headers = vec!["barrier", "copy", "memory", "mma", "ring", "tma", "watch"];
    if plan.network.is_some() {
        headers.insert(2, "fabric");
    }
    if body.config.swiglu {
        headers.insert(0, "activation");
    }
    let (shape, topology) = (body.shape, plan.spec.topology());
    Parts {
        title: "C = tokens of each expert · its weight, one launch",
        headers,
        computes: dispatch.computes(),
        exchanges: dispatch.exchanges(),
        constants: dispatch.constants(),
        variables: Variables::Dispatch(DispatchVariables {
            nodes: topology.nodes,
            local_world: topology.local_world,
            b_layout: body.config.b_layout.name(),
            split: match body.split {
                Split::Rows => "rows",
                Split::Cols => "cols",
            },
            swiglu: body.config.swiglu,
            ragged_hidden: !shape.hidden.is_multiple_of(TILE_K.into()),
            ragged_cols: !shape.intermediate.is_multiple_of(body.tile_cols().into()),
        }),
    }
}

impl Dispatch<'_> {
    /// Lines of the banner.
    fn computes(self) -> Vec<String> {
        let Self { plan, body } = self;
        let (world, shape) = (plan.spec.world(), body.shape);
        let cols = body.weight_cols();
        let weights = match body.config.b_layout {
            BLayout::Kn => format!("[{}, {cols}]", shape.hidden),
            BLayout::Nk => format!("[{cols}, {}]", shape.hidden),
        };
        let result = if body.config.swiglu {
            "silu(gate) · up"
        } else {
            "the product"
        };
        vec![
            format!(
                "spec    {} experts, {} of them per token, up to {} tokens of {} on each of {world} rank{}{}, bf16",
                shape.experts,
                shape.top_k,
                shape.max_tokens,
                shape.hidden,
                plural(world),
                match plan.spec.topology().nodes {
                    1 => String::new(),
                    nodes => format!(" of {nodes} nodes"),
                }
            ),
            format!(
                "weight  {weights} of each expert; C is {result}, up to {} rows",
                body.max_rows
            ),
            format!(
                "tile    {} x {} x {TILE_K}, {} stages",
                body.tile.m, body.tile.n, body.stages
            ),
        ]
    }

    /// Lines of the banner.
    fn exchanges(self) -> Vec<String> {
        let Self { plan, body } = self;
        if plan.spec.world() == 1 {
            return Vec::new();
        }
        let mut lines = vec![format!(
            "arrive  sm_push, a token once per rank, {} under one flag, those of the first expert first",
            body.block_tokens
        )];
        if let (Some(across), Some(network)) = (&body.across, &plan.network) {
            lines.push(format!(
                "network a token once per node, {} in a put; up to {} puts of up to {} bytes to each peer",
                across.chunk_tokens, network.puts, network.put_bytes
            ));
        }
        lines
    }

    fn constants(self) -> Vec<Constant> {
        let mut c = Constants::default();
        self.routing_constants(&mut c);
        self.tile_constants(&mut c);
        self.memory_constants(&mut c);
        c.into_list()
    }

    fn routing_constants(self, c: &mut Constants) {
        let Self { plan, body } = self;
        let (world, shape) = (plan.spec.world(), body.shape);
        c.section("ranks, experts and tokens");
        c.u32("kWorld", world, "");
        if let Some(network) = &plan.network {
            let topology = plan.spec.topology();
            c.u32("kLocalWorld", topology.local_world, "of a node");
            c.u32("kPeers", topology.peers(), "other nodes");
            c.u32(
                "kDestinations",
                topology.destinations(),
                "ranks of this node, and other nodes",
            );
            c.u32("kChannels", network.channels, "to each of them");
        }
        c.u32("kExperts", shape.experts, "over all ranks");
        c.u32("kLocalExperts", body.local_experts(world), "of a rank");
        c.u32("kTopK", shape.top_k, "experts of a token");
        c.u32("kMaxTokens", shape.max_tokens, "of a rank");
        c.u32("kMaxRows", body.max_rows, "of a rank's C");
        c.u32("kSourceRows", body.source_rows, "of them, from one rank");
        c.u32("kSliceChoices", body.slice_choices(), "that a CTA routes");
        c.u32("kFaultWords", FAULT_WORDS, "before the numbers of experts");
        c.u32(
            "kCountWords",
            body.count_words(),
            "that a rank tells another",
        );
        if world == 1 {
            return;
        }
        c.section("tokens on their way");
        c.u32("kTokenBytes", body.token_bytes(), "");
        c.u32("kBlockTokens", body.block_tokens, "under one flag");
        c.u32("kBlocks", body.blocks(), "of a source");
        c.u32(
            "kSlotBytes",
            SLOT_BYTES,
            "shared memory of one pushing warp",
        );
        let slot_tokens = u64::from(SLOT_BYTES) / body.token_bytes();
        c.u32("kSlotTokens", slot_tokens.max(1), "that it holds");
        if let Some(across) = &body.across {
            c.u32("kChunkTokens", across.chunk_tokens, "of a put");
        }
    }

    fn tile_constants(self, c: &mut Constants) {
        let Self { plan, body } = self;
        let world = plan.spec.world();
        let (tile, shape) = (body.tile, body.shape);
        let kn = body.config.b_layout == BLayout::Kn;
        let rows = body.split == Split::Rows;
        let group_n = body.group_n();
        let (ragged_hidden, ragged_cols) = (
            !shape.hidden.is_multiple_of(TILE_K.into()),
            !shape.intermediate.is_multiple_of(body.tile_cols().into()),
        );
        c.section("tiles");
        if world == 1 && ragged_hidden {
            c.u32("kTokenBytes", body.token_bytes(), "");
        }
        if body.config.swiglu || ragged_cols {
            c.u32("kCols", shape.intermediate, "of C");
        }
        c.u32("kTileM", tile.m, "rows of C per CTA at a time");
        c.u32("kTileN", tile.n, "columns of the product");
        c.u32("kTileCols", body.tile_cols(), "columns of C");
        c.u32("kTileK", TILE_K, "columns of tokens per stage");
        let col_tiles = shape.intermediate.div_ceil(body.tile_cols().into());
        c.u32("kColTiles", col_tiles, "");
        c.u32(
            "kGroupRows",
            GROUP_ROWS,
            "row tiles that advance along the columns together",
        );
        c.u32(
            "kSteps",
            shape.hidden.div_ceil(TILE_K.into()),
            "stages per tile",
        );
        c.u32(
            "kBoxCols",
            body.box_cols(),
            "columns of the weight per load",
        );
        c.u32(
            "kCopiesAhead",
            COPIES_AHEAD,
            "stages that a loader has under way",
        );

        c.section("CTAs and registers");
        if world > 1 {
            c.u32(
                "kCommCtas",
                body.comm_ctas,
                "communicate before they compute",
            );
        }
        c.u32("kMoverRegisters", plan.registers.mover, "per thread");
        c.u32("kMathRegisters", plan.registers.math, "");

        c.section("the two math warpgroups");
        let note = if kn {
            "weights are [hidden, columns]"
        } else {
            "weights are [columns, hidden]"
        };
        c.push("bool", "kBMnMajor", kn.to_string(), note);
        c.u32("kGroupN", group_n, "columns of one");
        let group_cols = if body.config.swiglu {
            group_n / 2
        } else {
            group_n
        };
        c.u32("kGroupCols", group_cols, "of C");
        c.u32(
            "kGroupBytesA",
            if rows { 64 * TILE_K * 2 } else { 0 },
            "from one's rows to the other's",
        );
        c.u32(
            "kGroupBytesB",
            if rows { 0 } else { group_n * TILE_K * 2 },
            "from one's weights to the other's",
        );
    }

    fn memory_constants(self, c: &mut Constants) {
        let Self { plan, body } = self;
        c.section("shared memory, bytes");
        c.u32("kStages", body.stages, "");
        c.u32("kStageBytesA", body.tile.m * TILE_K * 2, "");
        c.u32("kStageBytesB", body.tile.n * TILE_K * 2, "");
        c.u32("kOutBytes", OUT_BYTES, "of a math warp");
        for (name, region) in [
            ("kSmemA", "a"),
            ("kSmemB", "b"),
            ("kSmemOut", "out"),
            ("kSmemRows", "rows"),
            ("kSmemTiles", "tiles"),
            ("kSmemBarriers", "barriers"),
            ("kSmemTables", "tables"),
        ] {
            let region = plan.smem.iter().find(|r| r.name == region);
            c.u32(name, region.map_or(0, |r| r.offset_bytes), "");
        }

        c.section("workspace, bytes");
        let offset = |region| plan.workspace.offset_of(region).unwrap_or(0);
        c.u64(
            "kCounted",
            offset("counted"),
            "CTAs that have counted, over all calls",
        );
        c.u64(
            "kTaken",
            offset("taken"),
            "tiles taken in a call, by parity of the epoch",
        );
        c.u64("kFault", offset("fault"), "epoch, and what is wrong");
        c.u64("kSlices", offset("slices"), "numbers of each CTA's slice");
        c.u64("kRouted", offset("routed"), "one flag per rank");
        c.u64(
            "kCounts",
            offset("counts"),
            "by parity of the epoch and source",
        );
        c.u64("kList", offset("list"), "by parity of the epoch and source");
        c.u64("kFlagStride", abi::FLAG_STRIDE_BYTES, "a line of L2 each");
        if plan.spec.world() > 1 {
            c.u64("kSends", offset("sends"), "tokens, by destination");
            c.u64("kFlags", offset("flags"), "one per source and block");
            c.u64("kReceived", offset("received"), "tokens of other ranks");
        }
        if let Some(across) = &body.across {
            c.u64("kArrived", offset("arrived"), "counts of puts by peer");
            c.u64(
                "kPutsBefore",
                offset("puts"),
                "by parity of the epoch and peer",
            );
            c.u64(
                "kPacketsOut",
                offset("packets_out"),
                "by parity of the epoch and peer",
            );
            c.u64(
                "kPacketsIn",
                offset("packets_in"),
                "by parity of the epoch and peer",
            );
            c.u64("kPacketBytes", across.packet_bytes, "of the longest");
            c.u64("kPacked", offset("packed"), "one per peer and block");
            c.u64("kOutgoing", offset("outgoing"), "tokens for other nodes");
        }
    }
}
