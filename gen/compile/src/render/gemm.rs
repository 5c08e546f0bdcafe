//! What templates know of a GEMM operator.

mod config;
mod constants;
mod names;

use super::assembly::Assembly;
use super::{Parts, Variables, plural, puts_line, ranks};
use mkernel_spec::plan::{GemmPlan, Reduction, Split, TILE_K};
use mkernel_spec::{Activation, BLayout, Dtype, Epilogue, GemmOp, KernelPlan, Transfer};
use names::{Names, names};
use serde::Serialize;

/// Variables of the templates of GEMM operators.
#[derive(Serialize)]
pub(super) struct GemmVariables<'a> {
    /// Nodes, and ranks on each.
    nodes: u32,
    local_world: u32,
    #[serde(flatten)]
    names: &'a Names,
    /// Bytes of a tile of results.
    result_bytes: &'a str,
    comm_ctas: u32,
    b_layout: &'a str,
    split: &'a str,
    /// CTAs that share a tile of the last round.
    tail_parts: u32,
    /// Tiles that one CTA computes alone.
    whole_tiles: u32,
    /// Whether the loaders of all CTAs keep pace.
    paced: bool,
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
    /// Whether some tiles have columns beyond C.
    ragged_cols: bool,
    #[serde(flatten)]
    finish: Finish,
    /// Whether loads of A leave rows of a stage as they are.
    short_a: bool,
    /// The part of a stage that partial sums take.
    partial_stage: &'a str,
}

/// What becomes of the sum before it is C.
#[derive(Serialize)]
struct Finish {
    /// Whether anything does, apart from its rounding, …
    epilogue: bool,
    /// … what, in a formula, …
    formula: String,
    /// … and of which parts: something is added at all, …
    addends: bool,
    /// … to each row, …
    bias: bool,
    /// … to each element, …
    residual: bool,
    /// … and the function, empty if there is none.
    activation: &'static str,
    /// Whether C is fp32.
    fp32: bool,
}

impl From<Epilogue> for Finish {
    fn from(epilogue: Epilogue) -> Self {
        let addends = epilogue.bias || epilogue.residual;
        let has_function = epilogue.activation != Activation::None;
        Self {
            epilogue: addends || has_function,
            formula: epilogue.formula("sum"),
            addends,
            bias: epilogue.bias,
            residual: epilogue.residual,
            activation: if has_function {
                epilogue.activation.name()
            } else {
                ""
            },
            fp32: epilogue.output == Dtype::Fp32,
        }
    }
}

/// A plan of a GEMM operator.
#[derive(Clone, Copy)]
struct Gemm<'a> {
    plan: &'a KernelPlan,
    body: &'a GemmPlan,
}

/// What is said of such a plan.
pub(super) fn parts<'a>(plan: &'a KernelPlan, body: &'a GemmPlan) -> Parts<'a> {
    let gemm = Gemm { plan, body };
    Parts {
        title: title(body.config.op),
        headers: headers(body.config.epilogue, plan.network.is_some()),
        computes: gemm.computes(),
        exchanges: gemm.exchanges(),
        constants: constants::constants(gemm),
        variables: Variables::Gemm(gemm.variables()),
    }
}

/// What is said of such a plan if its kernel is made of headers.
pub(super) fn assembly(plan: &KernelPlan, body: &GemmPlan) -> Option<Assembly> {
    let reduction = body.reduction.as_ref()?;
    if body.config.op != GemmOp::GemmRs {
        return None;
    }
    let gemm = Gemm { plan, body };
    let (kernel, header, order) = match reduction.shots {
        1 => ("ReduceScatterLl", "gemm/reduce_scatter_ll", "RasterOrder"),
        _ => ("ReduceScatter", "gemm/reduce_scatter", "OwnerRounds"),
    };
    let activation = match body.config.epilogue.activation {
        Activation::None => "mk::gemm::identity".to_owned(),
        activation => format!("mk::{}", activation.name()),
    };
    let policies = [
        ("kernel", kernel.to_owned()),
        ("order", order.to_owned()),
        ("activation", activation),
    ];
    let mut banner = gemm.computes();
    banner.extend(gemm.exchanges());
    Some(Assembly {
        title: title(body.config.op),
        headers: vec![header],
        config: config::config(gemm, reduction),
        policies: policies.into(),
        banner,
    })
}

const fn title(op: GemmOp) -> &'static str {
    match op {
        GemmOp::AgGemm => "C = AllGather(A) B, one launch",
        GemmOp::GemmRs => "C = rows of the sum of A B over ranks, one launch",
        GemmOp::GemmAr => "C = sum of A B over ranks, one launch",
    }
}

fn headers(epilogue: Epilogue, crosses_nodes: bool) -> Vec<&'static str> {
    let mut headers = vec!["barrier", "memory", "mma", "tma", "watch"];
    if crosses_nodes {
        headers.insert(1, "fabric");
    }
    if epilogue.activation != Activation::None {
        headers.insert(0, "activation");
    }
    headers
}

impl<'a> Gemm<'a> {
    fn variables(self) -> GemmVariables<'a> {
        let Gemm { plan, body } = self;
        let reduction = body.reduction.as_ref();
        let topology = plan.spec.topology();
        let two_shots =
            |is: &dyn Fn(&Reduction) -> bool| reduction.is_some_and(|r| r.shots == 2 && is(r));
        GemmVariables {
            nodes: topology.nodes,
            local_world: topology.local_world,
            names: names(topology.nodes),
            result_bytes: match body.config.epilogue.output {
                Dtype::Fp32 => "kResultBytes",
                _ => "kTileBytes",
            },
            comm_ctas: body.comm_ctas,
            b_layout: body.config.b_layout.name(),
            split: match body.split {
                Split::Rows => "rows",
                Split::Cols => "cols",
            },
            tail_parts: body.order.tail_parts,
            whole_tiles: body.order.whole_tiles,
            paced: body.order.pace_steps > 0,
            cta_index: if body.comm_ctas > 0 {
                "blockIdx.x - cfg::kCommCtas"
            } else {
                "blockIdx.x"
            },
            aligned: body.chunks.as_ref().is_some_and(|c| !c.to_self),
            nearest: u32::from(!body.chunks.as_ref().is_some_and(|c| c.to_self)),
            empty_shards: self.has_empty_shards(),
            push: body.transfer == Some(Transfer::SmPush),
            push_warps: body.chunks.as_ref().map_or(0, |c| c.push_warps),
            copies: plan.copies.is_some(),
            gathers: body.config.op == GemmOp::AgGemm,
            reduces: reduction.is_some_and(|r| r.shots == 2),
            one_shot: reduction.is_some_and(|r| r.shots == 1),
            scatters: reduction.is_some_and(|r| self.scatters(r)),
            relays: reduction.is_some_and(|r| r.shots == 1 && r.results),
            results: two_shots(&|r| r.results),
            one_round: two_shots(&|r| r.round_tiles == r.owner_tiles),
            idle_ranks: reduction.is_some_and(|r| r.owners < topology.local_world),
            gaps: two_shots(&|r| r.owners * r.owner_tiles > body.order.tiles()),
            ragged: self.is_ragged(),
            ragged_cols: self.has_ragged_cols(),
            finish: body.config.epilogue.into(),
            short_a: body.load_rows_a < body.tile.m,
            partial_stage: if body.tile.n >= body.tile.m { "b" } else { "a" },
        }
    }

    /// Whether columns of some tiles are beyond C.
    fn has_ragged_cols(self) -> bool {
        let Gemm { body, .. } = self;
        !body.shape.n.is_multiple_of(u64::from(body.tile.n))
    }

    /// Whether, in one shot, a rank adds up its own rows only.
    fn scatters(self, r: &Reduction) -> bool {
        r.shots == 1 && (r.results || self.body.config.op == GemmOp::GemmRs)
    }

    /// Whether rows of some tiles are beyond the C of who adds them up.
    fn is_ragged(self) -> bool {
        let Gemm { plan, body } = self;
        let (m, tile_m) = (body.shape.m, u64::from(body.tile.m));
        match body.config.op {
            GemmOp::GemmRs if body.order.shard_row_tiles.is_some() => {
                let world = plan.spec.world();
                let shard_rows = body.shape.shard_rows(world);
                !shard_rows.is_multiple_of(tile_m) || m != shard_rows * u64::from(world)
            }
            _ => !m.is_multiple_of(tile_m),
        }
    }

    /// Whether some ranks have no rows to send.
    fn has_empty_shards(self) -> bool {
        let world = u64::from(self.plan.spec.world());
        self.body.chunks.is_some() && self.first_empty_shard() < world
    }

    /// The first rank that has no rows; the world if all have.
    fn first_empty_shard(self) -> u64 {
        let shape = self.body.shape;
        shape.m.div_ceil(shape.shard_rows(self.plan.spec.world()))
    }

    /// Lines of the banner.
    fn computes(self) -> Vec<String> {
        let Gemm { plan, body } = self;
        let shape = body.shape;
        let b = match body.config.b_layout {
            BLayout::Kn => "[K,N]",
            BLayout::Nk => "[N,K]",
        };
        let mut lines = vec![
            format!(
                "spec    M {}, N {}, K {}, B as {b}, bf16, {}",
                shape.m,
                shape.n,
                shape.k,
                ranks(plan.spec.topology())
            ),
            format!(
                "tile    {} x {} x {TILE_K}, {} stages",
                body.tile.m, body.tile.n, body.stages
            ),
        ];
        if body.config.epilogue != Epilogue::default() {
            let epilogue = body.config.epilogue;
            let formula = epilogue.formula("sum");
            lines.push(format!("result  {formula}, {}", epilogue.output));
        }
        lines
    }

    /// Lines of the banner.
    fn exchanges(self) -> Vec<String> {
        let body = self.body;
        let mut lines = Vec::new();
        if let Some(c) = &body.chunks {
            let how = body.transfer.map_or("", Transfer::name);
            lines.push(format!(
                "arrive  {how}, chunks of {} rows, {} per shard, {} slice{} of K",
                c.rows,
                c.per_shard,
                c.k_slices,
                plural(c.k_slices)
            ));
        }
        lines.extend(self.plan.network.as_ref().map(puts_line));
        if let Some(r) = &body.reduction {
            lines.push(match r.shots {
                1 if self.scatters(r) => {
                    "sum     every rank adds up its rows of every tile".to_owned()
                }
                1 => "sum     every rank adds up every tile".to_owned(),
                _ => format!(
                    "sum     {} owners of {} tiles, rounds of {}",
                    r.owners, r.owner_tiles, r.round_tiles
                ),
            });
        }
        lines
    }
}
