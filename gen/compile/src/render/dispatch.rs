//! The parts of the source of an operator with products of experts that depend on its plan.

use super::assembly::{Assembly, Config};
use super::scales::{scales, sent_scales};
use super::text::plural;
use mkernel_spec::plan::{
    Body, COPIES_AHEAD, DispatchPlan, FAULT_WORDS, GROUP_ROWS, SLOT_BYTES, Split,
};
use mkernel_spec::{BLayout, DispatchOp, Scores, Topology};

/// A plan with its op_plan.
#[derive(Clone, Copy)]
struct Dispatch<'a> {
    topology: Topology,
    body: &'a Body,
    op_plan: &'a DispatchPlan,
}

/// Assembles the source.
pub(super) fn assembly(body: &Body, op_plan: &DispatchPlan, topology: Topology) -> Assembly {
    let dispatch = Dispatch {
        topology,
        body,
        op_plan,
    };
    let epilogue = if op_plan.config.swiglu {
        "SwiGlu"
    } else {
        "Product"
    };
    let mut banner = dispatch.computes();
    banner.extend(dispatch.exchanges());
    Assembly {
        title: match op_plan.config.op {
            DispatchOp::DispatchGemm => "C = tokens of each expert · its weight, one launch",
            DispatchOp::MoeLayer => {
                "C = weighted sums of what each token's experts make of it, one launch"
            }
            DispatchOp::GemmCombine => "C = weighted sums of rows · weights of experts, one launch",
        },
        headers: vec![match op_plan.config.op {
            DispatchOp::DispatchGemm => "moe/dispatch_gemm",
            DispatchOp::MoeLayer => "moe/moe_layer",
            DispatchOp::GemmCombine => "moe/gemm_combine",
        }],
        config: dispatch.config(),
        policies: [("epilogue", epilogue.to_owned())].into(),
        banner,
    }
}

impl Dispatch<'_> {
    /// Lines of the banner about the computation.
    fn computes(self) -> Vec<String> {
        let Self {
            topology, op_plan, ..
        } = self;
        let (world, shape) = (topology.world(), op_plan.shape);
        let (k, cols) = match op_plan.dispatches() {
            true => (shape.hidden, op_plan.weight_cols()),
            false => (shape.intermediate, shape.hidden),
        };
        let weights = match op_plan.config.b_layout {
            BLayout::Kn => format!("[{k}, {cols}]"),
            BLayout::Nk => format!("[{cols}, {k}]"),
        };
        let result = match (op_plan.dispatches(), op_plan.config.swiglu) {
            (false, _) => "A has",
            (true, true) => "C is silu(gate) · up,",
            (true, false) => "C is the product,",
        };
        vec![
            format!(
                "spec    {} experts, {} of them per token, up to {} tokens of {} on each of {world} rank{}{}, {}",
                shape.experts,
                shape.top_k,
                shape.max_tokens,
                shape.hidden,
                plural(world),
                match topology.nodes {
                    1 => String::new(),
                    nodes => format!(" of {nodes} nodes"),
                },
                op_plan.types().tokens
            ),
            format!(
                "weight  {weights} of each expert; {result} up to {} rows",
                op_plan.max_rows
            ),
            format!(
                "tile    {} x {} x {}, {} stages",
                op_plan.tile.m,
                op_plan.tile.n,
                op_plan.types().tile_k(),
                op_plan.stages
            ),
        ]
    }

    /// Lines of the banner about the exchange between ranks.
    fn exchanges(self) -> Vec<String> {
        let Self {
            topology,
            body,
            op_plan,
        } = self;
        if topology.world() == 1 || !op_plan.dispatches() {
            return Vec::new();
        }
        let mut lines = vec![format!(
            "arrive  sm_push, a token once per rank, {} under one flag, those of the first expert first",
            op_plan.block_tokens
        )];
        if let (Some(internode), Some(network)) = (&op_plan.internode, &body.network) {
            lines.push(format!(
                "network a token once per node, {} in a put; up to {} puts of up to {} bytes to each peer",
                internode.chunks.chunk_tokens, network.puts, network.put_bytes
            ));
        }
        lines
    }

    fn config(self) -> Config {
        let mut c = Config::default();
        self.experts(&mut c);
        self.tiles(&mut c);
        if self.topology.world() > 1 && self.op_plan.dispatches() {
            self.exchange(&mut c);
        }
        c.section("launch")
            .u32("kThreads", self.body.launch.threads, "");
        if self.op_plan.dispatches() {
            c.u32(
                "kCommCtas",
                self.op_plan.comm_ctas,
                "CTAs that send tokens before they compute",
            );
        }
        c
    }

    fn experts(self, c: &mut Config) {
        let Self {
            topology, op_plan, ..
        } = self;
        let shape = op_plan.shape;
        let local_experts = op_plan.local_experts(topology.world()) as u32;
        let [rows, cols, factors] = match op_plan.dispatches() {
            true => [
                "most rows of C on a rank",
                "columns of C",
                "element of tokens and weights",
            ],
            false => [
                "most rows of A on a rank",
                "columns of A",
                "element of A and weights",
            ],
        };
        c.section("ranks, experts and tokens")
            .u32("kNodes", topology.nodes, "")
            .u32("kLocalWorld", topology.local_world, "ranks of a node")
            .u32("kExperts", shape.experts as u32, "experts of all ranks")
            .u32("kLocalExperts", local_experts, "experts of a rank")
            .u32("kTopK", shape.top_k as u32, "experts of a token")
            .u32(
                "kMaxTokens",
                shape.max_tokens as u32,
                "most tokens of a rank",
            )
            .u32("kMaxRows", op_plan.max_rows as u32, rows)
            .u32("kHidden", shape.hidden as u32, "columns of a token")
            .u32("kCols", shape.intermediate as u32, cols)
            .element("ElementA", op_plan.types().tokens, factors)
            .element("ElementC", op_plan.types().c, "element of C");
        scales(op_plan.config.scales, c);
        if op_plan.config.router.chooses() {
            self.router(c);
        }
        if !op_plan.dispatches() {
            return;
        }
        c.section("message of a rank to another")
            .u32(
                "kFaultWords",
                FAULT_WORDS as u32,
                "words of a fault, before the counts of experts",
            )
            .u32("kMessageWords", op_plan.count_words() as u32, "");
    }

    fn router(self, c: &mut Config) {
        let router = &self.op_plan.config.router;
        let scores = match router.scores {
            Scores::Softmax => "mk::moe::Scores::kSoftmax",
            Scores::Sigmoid | Scores::Given => "mk::moe::Scores::kSigmoid",
        };
        c.section("choice of experts from logits")
            .name("kScores", scores, "scores of experts")
            .element(
                "ElementLogits",
                self.op_plan.types().logits,
                "element of logits",
            );
        if let Some([groups, top]) = router.restricts() {
            c.u32("kGroups", groups, "groups of consecutive experts")
                .u32("kTopGroups", top, "groups with experts of a token");
        }
        c.bool(
            "kRenormalises",
            router.renormalise,
            "weights of a token are divided by their sum",
        )
        .float("kScoreScale", router.scale().into(), "factor of weights");
    }

    fn tiles(self, c: &mut Config) {
        let op_plan = self.op_plan;
        let (kn, weights) = match (op_plan.config.b_layout, op_plan.dispatches()) {
            (BLayout::Kn, true) => (true, "weights are [hidden, columns]"),
            (BLayout::Nk, true) => (false, "weights are [columns, hidden]"),
            (BLayout::Kn, false) => (true, "weights are [columns of A, hidden]"),
            (BLayout::Nk, false) => (false, "weights are [hidden, columns of A]"),
        };
        let split = match op_plan.split {
            Split::Rows => "mk::gemm::GroupSplit::kRows",
            Split::Cols => "mk::gemm::GroupSplit::kColumns",
        };
        c.section("tile of a CTA")
            .u32("kTileM", op_plan.tile.m, "rows of an expert")
            .u32("kTileN", op_plan.tile.n, "columns of the expert's weight")
            .u32(
                "kTileK",
                op_plan.types().tile_k(),
                "columns of a row in a stage",
            )
            .u32("kStages", op_plan.stages, "stages in shared memory")
            .u32(
                "kCopiesAhead",
                COPIES_AHEAD,
                "stages whose rows a load warp has under way",
            );
        if op_plan.dispatches() {
            let note = "columns of the weight per TMA load";
            c.u32("kBoxCols", op_plan.box_cols(), note);
        }
        c.bool("kBMnMajor", kn, weights)
            .name("kGroupSplit", split, "how two warpgroups share a tile")
            .u32(
                "kMostSplits",
                op_plan.most_splits,
                "slices of K into which a tile of the last round is divided",
            )
            .u32(
                "kGroupRows",
                GROUP_ROWS,
                "row tiles that advance along the columns together",
            );
        if op_plan.returns() {
            let note = match op_plan.dispatches() {
                true => "columns of the down projection per TMA load",
                false => "columns of the weight per TMA load",
            };
            c.u32("kDownBoxCols", op_plan.down_box_cols(), note);
        }
    }

    fn exchange(self, c: &mut Config) {
        let op_plan = self.op_plan;
        c.section("exchange of tokens")
            .u32(
                "kBlockTokens",
                op_plan.block_tokens,
                "tokens under one flag",
            )
            .u32(
                "kSlotBytes",
                SLOT_BYTES,
                "shared memory of a warp that sends",
            );
        sent_scales(op_plan.token_scales(), op_plan.token_bytes(), c);
        if let (Some(internode), Some(network)) = (&op_plan.internode, &self.body.network) {
            c.u32(
                "kChunkTokens",
                internode.chunks.chunk_tokens as u32,
                "tokens of a put",
            )
            .u32(
                "kRoomTokens",
                internode.chunks.room_tokens as u32,
                "tokens of a peer that may be under way",
            )
            .u32(
                "kChannels",
                network.channels.into(),
                "channels to a peer on another node",
            );
        }
    }
}
