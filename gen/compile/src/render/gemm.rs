//! The parts of the source of a GEMM operator that depend on its plan.

mod config;

use super::assembly::Assembly;
use super::text::{plural, puts_line, ranks};
use config::Gemm;
use mkernel_spec::plan::{Body, GemmPlan};
use mkernel_spec::{Activation, BLayout, Epilogue, GemmOp, Norm, Topology, Transfer};

/// Assembles the source of a GEMM operator.
pub(super) fn assembly(body: &Body, op_plan: &GemmPlan, topology: Topology) -> Assembly {
    let gemm = Gemm {
        topology,
        body,
        op_plan,
    };
    let Policies {
        header,
        kernel,
        order,
    } = gemm.policies();
    let order_header = format!("mk/{}.cuh: {}", order.header, order.about);
    let activation = match op_plan.config.epilogue.activation {
        Activation::None => "mk::gemm::identity".to_owned(),
        activation => format!("mk::{}", activation.name()),
    };
    let policies = [
        ("kernel", kernel.to_owned()),
        ("kernel_header", format!("mk/{header}.cuh")),
        ("order", order.name.to_owned()),
        ("order_header", order_header),
        ("activation", activation),
    ];
    let mut banner = gemm.computes();
    banner.extend(gemm.exchanges());
    Assembly {
        title: match op_plan.config.op {
            GemmOp::AgGemm => "C = AllGather(A) B, one launch",
            GemmOp::GemmRs => "C = rows of the sum of A B over ranks, one launch",
            GemmOp::GemmAr => "C = sum of A B over ranks, one launch",
            GemmOp::Gemm => "C = A B on each rank, one launch",
        },
        headers: vec![header],
        config: config::config(gemm),
        policies: policies.into(),
        banner,
    }
}

/// A template in `mk::gemm` that defines the order in which ranks compute tiles.
struct Order {
    name: &'static str,
    header: &'static str,
    about: &'static str,
}

const RASTER: Order = Order {
    name: "RasterOrder",
    header: "gemm/tile_scheduler",
    about: "row tiles advance along N together",
};
const SHARDS: Order = Order {
    name: "ShardOrder",
    header: "gemm/gathered_a",
    about: "own rows first, then other ranks' as they arrive",
};
const ROWS: Order = Order {
    name: "RowsOrder",
    ..SHARDS
};
const OWNERS: Order = Order {
    name: "OwnerRounds",
    header: "gemm/owner_rounds",
    about: "per round others' tiles, then own tiles of the round before",
};
const OWNERS_OF_ALL: Order = Order {
    name: "AllReduceRounds",
    header: "gemm/all_reduce",
    ..OWNERS
};

/// The template of the kernel in `mk::gemm` with the header that defines it, and the order of tiles.
struct Policies {
    header: &'static str,
    kernel: &'static str,
    order: Order,
}

const fn policies(header: &'static str, kernel: &'static str, order: Order) -> Policies {
    Policies {
        header,
        kernel,
        order,
    }
}

impl Gemm<'_> {
    /// The policies for the exchange between ranks and for the order of tiles.
    fn policies(self) -> Policies {
        let op_plan = self.op_plan;
        if op_plan.chunks.is_some() {
            let order = match self.takes_rows() {
                true => ROWS,
                false => SHARDS,
            };
            return policies("gemm/all_gather", "AllGather", order);
        }
        let normalises = op_plan.config.epilogue.normalises();
        let Some(r) = &op_plan.reduction else {
            return match normalises {
                true => policies("gemm/gemm_norm", "GemmNorm", RASTER),
                false => policies("gemm/gemm", "Gemm", RASTER),
            };
        };
        match (op_plan.config.op, r.shots) {
            (GemmOp::GemmRs, 1) => policies("gemm/one_shot", "ReduceScatterOneShot", RASTER),
            (_, 1) if r.results => policies("gemm/one_shot", "AllReduceRelay", RASTER),
            (_, 1) => policies("gemm/one_shot", "AllReduceOneShot", RASTER),
            (GemmOp::GemmRs, _) if normalises => {
                policies("gemm/reduce_scatter", "ReduceScatterNorm", OWNERS)
            }
            (GemmOp::GemmRs, _) => policies("gemm/reduce_scatter", "ReduceScatter", OWNERS),
            _ if normalises => policies("gemm/all_reduce", "AllReduceNorm", OWNERS_OF_ALL),
            _ if r.on_peers => policies("gemm/all_reduce", "AllReduceOnPeers", OWNERS_OF_ALL),
            _ => policies("gemm/all_reduce", "AllReduce", OWNERS_OF_ALL),
        }
    }

    /// Lines of the banner about the computation.
    fn computes(self) -> Vec<String> {
        let Gemm {
            topology, op_plan, ..
        } = self;
        let shape = op_plan.shape;
        let b = match op_plan.config.b_layout {
            BLayout::Kn => "[K,N]",
            BLayout::Nk => "[N,K]",
        };
        let mut lines = vec![
            format!(
                "spec    M {}{}, N {}, K {}, B as {b}, {}, {}",
                if self.takes_rows() { "up to " } else { "" },
                shape.m,
                shape.n,
                shape.k,
                op_plan.types().a,
                ranks(topology)
            ),
            format!(
                "tile    {} x {} x {}, {} stages",
                op_plan.tile.m,
                op_plan.tile.n,
                op_plan.types().tile_k(),
                op_plan.stages
            ),
        ];
        let (epilogue, c) = (op_plan.config.epilogue, op_plan.types().c);
        let plain = Epilogue {
            output: epilogue.output,
            ..Epilogue::default()
        };
        if epilogue != plain || c != op_plan.types().a {
            let formula = match epilogue.norm {
                Norm::None => epilogue.formula("sum"),
                norm => format!("{norm} of rows of z = {}", epilogue.formula("sum")),
            };
            lines.push(format!("result  {formula}, {c}"));
        }
        lines
    }

    /// Lines of the banner about the exchange between ranks.
    fn exchanges(self) -> Vec<String> {
        let op_plan = self.op_plan;
        let mut lines = Vec::new();
        if let Some(c) = &op_plan.chunks {
            let how = op_plan.transfer.map_or("", Transfer::name);
            lines.push(format!(
                "arrive  {how}, chunks of {} rows, {} per shard, {} slice{} of K",
                c.rows,
                c.per_shard,
                c.k_slices,
                plural(c.k_slices)
            ));
        }
        lines.extend(self.body.network.as_ref().map(puts_line));
        if let Some(r) = &op_plan.reduction {
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
