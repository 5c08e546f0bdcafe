//! The parts of the source of `dispatch_gemm` that depend on its plan.

use super::assembly::{Assembly, Config};
use super::text::plural;
use mkernel_spec::plan::{
    COPIES_AHEAD, DispatchPlan, FAULT_WORDS, GROUP_ROWS, SLOT_BYTES, Split, TILE_K,
};
use mkernel_spec::{BLayout, KernelPlan};

/// A plan of `dispatch_gemm` with its body.
#[derive(Clone, Copy)]
struct Dispatch<'a> {
    plan: &'a KernelPlan,
    body: &'a DispatchPlan,
}

/// Assembles the source of `dispatch_gemm`.
pub(super) fn assembly(plan: &KernelPlan, body: &DispatchPlan) -> Assembly {
    let dispatch = Dispatch { plan, body };
    let epilogue = if body.config.swiglu {
        "SwiGlu"
    } else {
        "Product"
    };
    let mut banner = dispatch.computes();
    banner.extend(dispatch.exchanges());
    Assembly {
        title: "C = tokens of each expert · its weight, one launch",
        headers: vec!["moe/dispatch_gemm"],
        config: dispatch.config(),
        policies: [("epilogue", epilogue.to_owned())].into(),
        banner,
    }
}

impl Dispatch<'_> {
    /// Lines of the banner about the computation.
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

    /// Lines of the banner about the exchange between ranks.
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

    fn config(self) -> Config {
        let mut c = Config::default();
        self.experts(&mut c);
        self.tiles(&mut c);
        if self.plan.spec.world() > 1 {
            self.exchange(&mut c);
        }
        c.section("launch")
            .u32("kThreads", self.plan.threads, "")
            .u32(
                "kCommCtas",
                self.body.comm_ctas,
                "send tokens before they compute",
            );
        c
    }

    fn experts(self, c: &mut Config) {
        let Self { plan, body } = self;
        let (topology, shape) = (plan.spec.topology(), body.shape);
        let local_experts = body.local_experts(plan.spec.world()) as u32;
        c.section("ranks, experts and tokens")
            .u32("kNodes", topology.nodes, "")
            .u32("kLocalWorld", topology.local_world, "ranks of a node")
            .u32("kExperts", shape.experts as u32, "over all ranks")
            .u32("kLocalExperts", local_experts, "of a rank")
            .u32("kTopK", shape.top_k as u32, "experts of a token")
            .u32("kMaxTokens", shape.max_tokens as u32, "of a rank")
            .u32("kMaxRows", body.max_rows as u32, "of a rank's C")
            .u32("kHidden", shape.hidden as u32, "columns of a token")
            .u32("kCols", shape.intermediate as u32, "of C");
        c.section("message of a rank to another")
            .u32(
                "kFaultWords",
                FAULT_WORDS as u32,
                "before the counts of experts",
            )
            .u32("kMessageWords", body.count_words() as u32, "");
    }

    fn tiles(self, c: &mut Config) {
        let body = self.body;
        let (kn, weights) = match body.config.b_layout {
            BLayout::Kn => (true, "weights are [hidden, columns]"),
            BLayout::Nk => (false, "weights are [columns, hidden]"),
        };
        let split = match body.split {
            Split::Rows => "mk::gemm::GroupSplit::kRows",
            Split::Cols => "mk::gemm::GroupSplit::kColumns",
        };
        c.section("tile of a CTA")
            .u32("kTileM", body.tile.m, "rows of an expert")
            .u32("kTileN", body.tile.n, "columns of its weight")
            .u32("kTileK", TILE_K, "of a stage")
            .u32("kStages", body.stages, "in shared memory")
            .u32(
                "kCopiesAhead",
                COPIES_AHEAD,
                "stages whose rows a loader has under way",
            )
            .u32("kBoxCols", body.box_cols(), "of the weight per load")
            .bool("kBMnMajor", kn, weights)
            .name("kGroupSplit", split, "how two warpgroups share a tile")
            .u32(
                "kGroupRows",
                GROUP_ROWS,
                "row tiles that advance along the columns together",
            );
    }

    fn exchange(self, c: &mut Config) {
        let body = self.body;
        c.section("exchange of tokens")
            .u32("kBlockTokens", body.block_tokens, "under one flag")
            .u32(
                "kSlotBytes",
                SLOT_BYTES,
                "shared memory of a warp that sends",
            );
        if let (Some(across), Some(network)) = (&body.across, &self.plan.network) {
            c.u32("kChunkTokens", across.chunk_tokens as u32, "of a put")
                .u32(
                    "kChannels",
                    network.channels.into(),
                    "to each peer on another node",
                );
        }
    }
}
