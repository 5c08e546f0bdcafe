//! The documentation of a collective.

use super::gemm::{blocks, quantised_rows};
use super::operand::OperandDoc;
use super::phrases::{Ranks, size};
use mkernel_spec::abi::Operand;
use mkernel_spec::plan::CollectivePlan;
use mkernel_spec::{CollectiveConfig, CollectiveOp, Dtype, Scales, SumEpilogue};

/// Paragraphs of Markdown about the computation.
pub fn semantics(config: &CollectiveConfig, ranks: Ranks) -> Vec<String> {
    let semantics = match config.op {
        CollectiveOp::AllReduce => {
            "`Y = Σ_r X_r`. Every rank gets the whole sum, bitwise the same."
        }
        CollectiveOp::AllGather => "`Y` has the rows of all ranks, in the order of ranks.",
        CollectiveOp::ReduceScatter => "`Y` has this rank's rows of `Σ_r X_r`.",
        CollectiveOp::Broadcast => "`Y` has the rows of `X` of the root.",
        CollectiveOp::AllToAll => {
            "Each rank sends each rank a shard of its `X`: `Y` has this rank's rows of every `X`, in the order of ranks."
        }
    };
    let sums = match config.op.reduces() {
        true => ", added up in fp32",
        false => "",
    };
    let mut paragraphs = vec![
        semantics.to_owned(),
        format!(
            "{}; {}{sums}. {}",
            ranks.words(),
            config.dtype,
            rows(config, ranks)
        ),
    ];
    paragraphs.extend(norm(config.epilogue));
    paragraphs.extend(scales(config));
    paragraphs
}

/// The ranks whose rows may differ from the rows of the first ranks: the root, or the last ranks.
fn rows(config: &CollectiveConfig, ranks: Ranks) -> String {
    match config.root(ranks.world.unwrap_or(0)) {
        Some(root) => format!("The root is rank {root}."),
        None => "The last ranks may have fewer rows.".to_owned(),
    }
}

/// The normalisation of the sum; `None` if rows are not normalised.
fn norm(epilogue: SumEpilogue) -> Option<String> {
    epilogue.normalises().then(|| {
        format!(
            "Each element `sum` of that sum becomes `z = {}` in `residual_out`, added in fp32 and rounded once. `Y` has the \
             rows of `z / √(mean(z²) + {}) · weight`.",
            epilogue.addends("sum"),
            epilogue.eps
        )
    })
}

/// The scales of Y; `None` if Y has no scales.
fn scales(config: &CollectiveConfig) -> Option<String> {
    let moved = match config.scales {
        Scales::None | Scales::Tensor => None,
        Scales::Row => Some("a row"),
        Scales::Block => Some("128 columns of a row"),
    };
    if let Some(of) = moved {
        return Some(format!(
            "Each row travels with its scales, of which `x_scales` has one for {of}, to `y_scales`."
        ));
    }
    quantised_rows(
        config.epilogue.result_scales,
        Some(config.dtype),
        ("Y", "y_scales"),
    )
}

/// The operands of a rank.
pub fn operands(config: &CollectiveConfig, ranks: Ranks) -> Vec<OperandDoc> {
    let (all, shard) = (size(config.m, "M"), ranks.shard(config.m, "M"));
    let of_all = ranks.shards(config.m, "M");
    let (rows_of_x, y) = match config.op {
        CollectiveOp::AllReduce | CollectiveOp::Broadcast => (&all, &all),
        CollectiveOp::AllGather => (&shard, &all),
        CollectiveOp::ReduceScatter => (&all, &shard),
        CollectiveOp::AllToAll => (&all, &of_all),
    };
    let matrix = |operand, rows: &String| {
        let shape = format!("[{rows}, {}]", size(config.n, "N"));
        OperandDoc::new(operand, config.dtype, shape)
    };
    let x = matrix(Operand::X, rows_of_x);
    let x = match config.op {
        CollectiveOp::Broadcast => x.note(OF_ROOT),
        _ => x,
    };
    let mut operands = vec![x];
    let n = size(config.n, "N");
    operands.push(OperandDoc::new(
        Operand::Y,
        config.result_dtype(),
        format!("[{y}, {n}]"),
    ));
    let epilogue = config.epilogue;
    let row = |operand| {
        let row = OperandDoc::new(operand, config.dtype, format!("[{}]", size(config.n, "N")));
        row.note(SAME)
    };
    if epilogue.bias {
        operands.push(row(Operand::Bias));
    }
    if epilogue.residual {
        operands.push(matrix(Operand::Residual, y).note(SAME));
    }
    if epilogue.normalises() {
        operands.push(row(Operand::Weight));
        operands.push(matrix(Operand::ResidualOut, y));
    }
    let of_y = (Operand::YScales, y);
    operands.extend(scales_of(config, of_y, epilogue.result_scales));
    let x_scales = scales_of(config, (Operand::XScales, rows_of_x), config.scales);
    operands.extend(x_scales.map(|of| match config.op {
        CollectiveOp::Broadcast => of.note(OF_ROOT),
        _ => of,
    }));
    operands.extend(scales_of(config, of_y, config.scales));
    operands
}

/// An operand with the scales of each of `rows` rows; `None` if rows have no scales.
fn scales_of(
    config: &CollectiveConfig,
    (operand, rows): (Operand, &String),
    scales: Scales,
) -> Option<OperandDoc> {
    let shape = match scales {
        Scales::None | Scales::Tensor => return None,
        Scales::Row => format!("[{rows}]"),
        Scales::Block => format!("[{rows}, {}]", blocks(config.n, "N")),
    };
    Some(OperandDoc::new(operand, Dtype::Fp32, shape))
}

const OF_ROOT: &str = "of the root; any slice on the other ranks";
const SAME: &str = "the same on all ranks";

/// Summarises the plan in a few words.
pub fn planned(plan: &CollectivePlan) -> String {
    match (plan.protocol, plan.shots) {
        (protocol, 0) => format!("protocol {protocol}"),
        (protocol, shots) => format!(
            "protocol {protocol}, {shots} shot{}",
            if shots == 1 { "" } else { "s" }
        ),
    }
}
