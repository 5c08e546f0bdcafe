//! Describes the plan of a GEMM operator.

use super::description::{Description, ranks_on};
use crate::cli::format::{bytes, count};
use mkernel_spec::plan::{Body, GemmPlan, Reduction};
use mkernel_spec::{BLayout, GemmOp, Norm, Scales, Topology};
use std::fmt::Write as _;

pub(super) fn describe(body: &Body, op_plan: &GemmPlan, topology: Topology) -> Description {
    Description {
        computes: computes(op_plan, topology),
        summary: summary(body, op_plan),
        sections: vec![
            ("tiles", tiles(body, op_plan)),
            ("transfer", transfer(body, op_plan, topology)),
        ],
        shared: format!("{} stages", op_plan.stages),
    }
}

fn summary(body: &Body, op_plan: &GemmPlan) -> String {
    let mut text = format!(
        "tiles of {}x{}, {} stages, {} CTAs",
        op_plan.tile.m, op_plan.tile.n, op_plan.stages, body.launch.grid_ctas
    );
    if let Some(transfer) = op_plan.transfer {
        let _ = write!(text, ", {transfer}");
    }
    if op_plan.comm_ctas > 0 {
        let _ = write!(text, " by {} communication CTAs", op_plan.comm_ctas);
    }
    if let Some(reduction) = &op_plan.reduction {
        text += match reduction.shots {
            1 => ", one shot",
            _ => ", two shots",
        };
    }
    if op_plan.order.tail_splits > 1 {
        let _ = write!(
            text,
            ", up to {} CTAs share a tile",
            op_plan.order.tail_splits
        );
    }
    text
}

fn computes(op_plan: &GemmPlan, topology: Topology) -> String {
    let shape = op_plan.shape;
    let (m, n, k) = (shape.m, shape.n, shape.k);
    let epilogue = op_plan.config.epilogue;
    let sum = format!("Σ_r A_r[{m},{k}] · B_r");
    // The bias is added once, not by each rank.
    let sum = match epilogue.formula("").is_empty() {
        true => sum,
        false => format!("({sum})"),
    };
    let (product, result) = match op_plan.config.op {
        GemmOp::AgGemm => (format!("AllGather(A)[{m},{k}] · B"), ""),
        GemmOp::GemmRs => (sum, ", rank r keeps its rows"),
        GemmOp::GemmAr => (sum, " on every rank"),
        GemmOp::Gemm => (format!("A[{m},{k}] · B"), " on each rank"),
    };
    let formula = match epilogue.norm {
        Norm::None => epilogue.formula(&product),
        norm => format!("{norm}({})", epilogue.formula(&product)),
    };
    let formula = format!("C[{m},{n}] = {formula}{result}");
    let (a, c) = (op_plan.types().a, op_plan.config.result_dtype());
    let dtype = match (a == c, epilogue.result_scales) {
        (true, Scales::None) => a.to_string(),
        (_, Scales::None) => format!("{a}, C {c}"),
        (_, scales) => format!("{a}, C {c} with a scale for each {scales}"),
    };
    let b = match op_plan.config.b_layout {
        BLayout::Kn => "B as [K,N]",
        BLayout::Nk => "B as [N,K]",
    };
    let ranks = ranks_on(topology);
    format!("{formula}, {ranks}, {b}, {dtype}, fp32 accumulate")
}

fn tiles(body: &Body, op_plan: &GemmPlan) -> Vec<String> {
    let order = &op_plan.order;
    let count = u64::from(order.row_tiles) * u64::from(order.col_tiles);
    let ctas = body.launch.grid_ctas - op_plan.comm_ctas;
    let mut lines = vec![
        format!(
            "{}x{}: {} x {} = {count} tiles, {:.2} waves of {ctas} CTAs",
            op_plan.tile.m,
            op_plan.tile.n,
            order.row_tiles,
            order.col_tiles,
            count as f64 / f64::from(ctas),
        ),
        format!(
            "{} row tiles advance together along N, so that B stays in L2",
            order.group_m
        ),
    ];
    if order.tail_splits > 1 && order.tail_tiles() > 0 {
        lines.push(format!(
            "{} CTAs share each of the last {} tiles, each with a slice of K",
            order.tail_splits,
            order.tail_tiles()
        ));
    }
    if order.pace_steps > 0 {
        let steps = order.pace_steps;
        lines.push(format!(
            "load threads of all CTAs meet every {steps} stages, so that L2 serves their loads"
        ));
    }
    if let Some(reduction) = &op_plan.reduction {
        lines.push(owners(reduction));
        return lines;
    }
    lines.push(match order.shard_row_tiles {
        Some(tiles) => format!(
            "the {tiles} row tiles of the own shard first, then the row tiles of peers as they arrive"
        ),
        None if op_plan.chunks.is_some() => {
            "tiles cross the borders of shards, so a rank's own rows are copied too".to_owned()
        }
        None => return lines,
    });
    lines
}

/// The line about owners: the tiles that each rank reduces, and their order.
fn owners(reduction: &Reduction) -> String {
    let Reduction {
        owners,
        owner_tiles,
        round_tiles,
        ..
    } = reduction;
    match (reduction.shots, round_tiles == owner_tiles) {
        (1, _) if reduction.results => {
            "every rank reduces its rows of every tile and sends the sums to all ranks".to_owned()
        }
        (1, _) => "every rank reduces the rows that it keeps".to_owned(),
        (_, true) => format!("{owners} owners of {owner_tiles} tiles; own tiles last"),
        (_, false) => format!(
            "{owners} owners of {owner_tiles} tiles in rounds of {round_tiles}; own tiles a round later"
        ),
    }
}

fn transfer(body: &Body, op_plan: &GemmPlan, topology: Topology) -> Vec<String> {
    if let Some(reduction) = &op_plan.reduction {
        let partial = op_plan.types().partial;
        if reduction.shots == 1 {
            return vec![format!(
                "partial sums in {partial}, as Lamport packets from registers to all ranks"
            )];
        }
        let mut lines = vec![format!(
            "partial sums in {partial} from output buffers to their owner, which adds them in fp32 in a fixed order"
        )];
        if body.network.is_some() {
            lines.push(
                "sums of each node to the owners on other nodes, which add them in the order of nodes".to_owned(),
            );
        }
        let normalises = op_plan.config.epilogue.normalises();
        lines.extend(match (reduction.results, normalises) {
            (true, true) => Some("results and squares to every rank, where warps normalise whole rows on their way to C"),
            (false, true) => Some("own results through slots, from which warps normalise whole rows on their way to C"),
            (true, false) => Some("results to every peer, where a warp of each CTA copies them to C"),
            (false, false) => None,
        }.map(str::to_owned));
        return lines;
    }
    let (Some(transfer), Some(chunks)) = (op_plan.transfer, &op_plan.chunks) else {
        let why = match op_plan.config.op {
            GemmOp::Gemm => "the operands are local",
            _ => "one rank",
        };
        return vec![format!("none: {why}")];
    };
    let flags =
        u64::from(topology.world()) * u64::from(chunks.per_shard) * u64::from(chunks.k_slices);
    let mut lines = vec![format!(
        "{transfer}: chunks of {} rows x {} columns, {} x {} per shard, {flags} flags",
        chunks.rows, chunks.slice_cols, chunks.per_shard, chunks.k_slices
    )];
    if let Some(copies) = &body.copies {
        let size = bytes(copies.row_bytes * u64::from(copies.rows));
        lines.push(format!(
            "{} copies of {size} to each peer by the copy engines, each followed by a flag",
            chunks.per_shard
        ));
    } else {
        lines.push(format!(
            "a flag counts {} of {}; {}, slice by slice",
            count(chunks.arrivals as usize, "piece"),
            count(chunks.piece_rows as usize, "row"),
            match chunks.panel_chunks {
                1 => "chunks are sent one by one".to_owned(),
                chunks => format!("{chunks} chunks are sent in turns"),
            }
        ));
    }
    lines
}
