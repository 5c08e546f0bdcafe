//! The documentation of a collective.

use super::gemm::blocks;
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
    let of = match config.epilogue.result_scales {
        Scales::None | Scales::Tensor => return None,
        Scales::Row => "a row",
        Scales::Block => "128 columns of a row",
    };
    Some(format!(
        "Each element `y` of these rows, rounded to {}, becomes `y / scale` in `Y`, rounded to e4m3. The `scale` of {of} in \
         `y_scales` is their greatest magnitude divided by 448.",
        config.dtype
    ))
}

/// The operands of a rank.
pub fn operands(config: &CollectiveConfig, ranks: Ranks) -> Vec<OperandDoc> {
    let (all, shard) = (size(config.m, "M"), ranks.shard(config.m, "M"));
    let of_all = ranks.shards(config.m, "M");
    let (x, y) = match config.op {
        CollectiveOp::AllReduce | CollectiveOp::Broadcast => (&all, &all),
        CollectiveOp::AllGather => (&shard, &all),
        CollectiveOp::ReduceScatter => (&all, &shard),
        CollectiveOp::AllToAll => (&all, &of_all),
    };
    let matrix = |operand, rows: &String| {
        let shape = format!("[{rows}, {}]", size(config.n, "N"));
        OperandDoc::new(operand, config.dtype, shape)
    };
    let x = matrix(Operand::X, x);
    let x = match config.op {
        CollectiveOp::Broadcast => x.note("of the root; any slice on the other ranks"),
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
    let scales = match epilogue.result_scales {
        Scales::None | Scales::Tensor => return operands,
        Scales::Row => format!("[{y}]"),
        Scales::Block => format!("[{y}, {}]", blocks(config.n, "N")),
    };
    operands.push(OperandDoc::new(Operand::YScales, Dtype::Fp32, scales));
    operands
}

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
