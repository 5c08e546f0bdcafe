//! The documentation of a GEMM operator.

use super::operand::OperandDoc;
use super::phrases::{Ranks, size};
use mkernel_spec::abi::Operand;
use mkernel_spec::plan::{GemmPlan, SCALE_BLOCK};
use mkernel_spec::{BLayout, Dim, Dtype, Epilogue, GemmConfig, GemmOp, Scales};

/// Paragraphs of Markdown about the computation.
pub fn semantics(config: &GemmConfig, ranks: Ranks) -> Vec<String> {
    let what = match config.op {
        GemmOp::AgGemm => {
            "`C[M,N] = AllGather(A)[M,K] · B`. Each rank has its rows of A and a B of its own."
        }
        GemmOp::GemmRs => {
            "`C = Σ_r A_r[M,K] · B_r`, summed over all ranks. Each rank gets its rows of the sum."
        }
        GemmOp::GemmAr => {
            "`C = Σ_r A_r[M,K] · B_r`, summed over all ranks. Each rank gets the whole sum, bitwise the same."
        }
        GemmOp::Gemm => {
            "`C[M,N] = A[M,K] · B` on each rank, of its own A and B. No rank waits for another."
        }
    };
    let (a, c) = (config.types().a, config.types().c);
    let types = match a == c {
        true => format!("{a} in and out"),
        false => format!("{a} in, {c} out"),
    };
    let ranks = ranks.words();
    let first = format!("{what} {ranks}; row-major {types}, fp32 accumulate.");
    [first].into_iter().chain(epilogue(config)).collect()
}

/// The formula of the epilogue, if it does more than round.
fn epilogue(config: &GemmConfig) -> Option<String> {
    let epilogue = config.epilogue;
    let plain = Epilogue {
        output: epilogue.output,
        ..Epilogue::default()
    };
    let formula = epilogue.formula("sum");
    if epilogue.normalises() {
        return Some(format!(
            "Each element `sum` of that sum becomes `z = {formula}` in `residual_out`, computed in fp32 and rounded once. C has \
             the rows of `z / √(mean(z²) + {}) · weight`.{}",
            epilogue.eps,
            of_scales(config)
        ));
    }
    let swiglu = match epilogue.swiglu {
        true => {
            " B has the N columns of a gate and then those of up, and `swiglu` is `silu(gate) · up`."
        }
        false => "",
    };
    if epilogue.quantises() {
        let rows = format!(
            "Each element `sum` of that sum becomes `y = {formula}`, computed in fp32.{swiglu}"
        );
        return Some(format!("{rows}{}", of_scales(config)));
    }
    (epilogue != plain).then(|| {
        format!(
            "Each element `sum` of that sum becomes `{formula}` in C, computed in fp32 and rounded once.{swiglu}"
        )
    })
}

/// A sentence about the scales of rows of C. Empty if rows have no scales.
fn of_scales(config: &GemmConfig) -> String {
    let rounded = config.epilogue.normalises().then_some(config.types().c);
    quantised_rows(config.epilogue.result_scales, rounded, ("C", "c_scales"))
        .map_or(String::new(), |sentence| format!(" {sentence}"))
}

/// Sentences about rows that become `result` with `scales`, after they are rounded to a type, if any. `None` if rows have no scales.
pub(super) fn quantised_rows(
    of: Scales,
    rounded: Option<Dtype>,
    (result, scales): (&str, &str),
) -> Option<String> {
    let of = match of {
        Scales::None | Scales::Tensor => return None,
        Scales::Row => "a row",
        Scales::Block => "128 columns of a row",
    };
    let rounded = rounded.map_or(String::new(), |dtype| format!(", rounded to {dtype},"));
    Some(format!(
        "Each element `y` of these rows{rounded} becomes `y / scale` in `{result}`, rounded to e4m3. The `scale` of {of} \
         in `{scales}` is their greatest magnitude divided by 448."
    ))
}

/// The operands of a rank.
pub fn operands(config: &GemmConfig, ranks: Ranks) -> Vec<OperandDoc> {
    let (n, k) = (size(config.n, "N"), size(config.k, "K"));
    let cols_of_b = cols_of_b(config);
    let shard = (ranks.shard(config.m, "M"), of_rank(config, ranks));
    let whole = (size(config.m, "M"), String::new());
    let (a, c) = match config.op {
        GemmOp::AgGemm => (shard, whole),
        GemmOp::GemmRs => (whole, shard),
        GemmOp::GemmAr | GemmOp::Gemm => (whole.clone(), whole),
    };
    let b = match config.b_layout {
        BLayout::Kn => format!("[{k}, {cols_of_b}]"),
        BLayout::Nk => format!("[{cols_of_b}, {k}]"),
    };
    let (types, rows_of_a) = (config.types(), a.0);
    let rows_of_c = |operand, dtype| {
        let shape = format!("[{}, {n}]", c.0);
        OperandDoc::new(operand, dtype, shape).note(c.1.clone())
    };
    let mut operands = vec![
        OperandDoc::new(Operand::A, types.a, format!("[{rows_of_a}, {k}]")).note(a.1),
        OperandDoc::new(Operand::B, types.b, b),
        rows_of_c(Operand::C, config.result_dtype()),
    ];
    operands.extend(scales(config, &rows_of_a));
    if config.epilogue.bias {
        let bias = OperandDoc::new(Operand::Bias, types.addend, format!("[{cols_of_b}]"));
        operands.push(match config.op.reduces() {
            true => bias.note(SAME),
            false => bias,
        });
    }
    if config.epilogue.residual {
        let residual = rows_of_c(Operand::Residual, types.addend);
        operands.push(match config.op {
            GemmOp::GemmAr => residual.note(SAME),
            _ => residual,
        });
    }
    if config.epilogue.normalises() {
        let weight = OperandDoc::new(Operand::Weight, types.addend, format!("[{n}]"));
        operands.push(weight.note(SAME));
        operands.push(rows_of_c(Operand::ResidualOut, types.addend));
    }
    operands.extend(c_scales(config, &c.0));
    operands
}

/// The columns of B: the columns of C, or with SwiGLU twice the columns of C.
fn cols_of_b(config: &GemmConfig) -> String {
    let n = size(config.n, "N");
    match config.epilogue.swiglu {
        true => format!("2·{n}"),
        false => n,
    }
}

/// The number of blocks with a scale of a dimension.
pub(super) fn blocks(dim: Dim, name: &str) -> String {
    match dim.fixed() {
        Some(size) => size.div_ceil(SCALE_BLOCK).to_string(),
        None => format!("⌈{name}/{SCALE_BLOCK}⌉"),
    }
}

/// The scales of A, which has `rows_of_a` rows, and of B.
fn scales(config: &GemmConfig, rows_of_a: &str) -> Vec<OperandDoc> {
    let up = if config.epilogue.swiglu { "2·" } else { "" };
    let (of_a, of_b) = match config.scales {
        Scales::None => return Vec::new(),
        Scales::Tensor => ("[1]".to_owned(), "[1]".to_owned()),
        Scales::Row => (format!("[{rows_of_a}]"), format!("[{}]", cols_of_b(config))),
        Scales::Block => {
            let (of_n, of_k) = (blocks(config.n, "N"), blocks(config.k, "K"));
            (
                format!("[{rows_of_a}, {of_k}]"),
                format!("[{up}{of_n}, {of_k}]"),
            )
        }
    };
    let of_a = OperandDoc::new(Operand::AScales, Dtype::Fp32, of_a);
    let of_b = OperandDoc::new(Operand::BScales, Dtype::Fp32, of_b);
    vec![
        match (config.op, config.scales) {
            (GemmOp::AgGemm, Scales::Tensor) => of_a.note(SAME),
            _ => of_a,
        },
        of_b,
    ]
}

/// The scales of C, which has `rows` rows, if it has scales.
fn c_scales(config: &GemmConfig, rows: &str) -> Option<OperandDoc> {
    let shape = match config.epilogue.result_scales {
        Scales::None | Scales::Tensor => return None,
        Scales::Row => format!("[{rows}]"),
        Scales::Block => format!("[{rows}, {}]", blocks(config.n, "N")),
    };
    Some(OperandDoc::new(Operand::CScales, Dtype::Fp32, shape))
}

pub(super) const SAME: &str = "the same on all ranks";

/// The rows that a rank has of a matrix whose rows are divided among ranks.
fn of_rank(config: &GemmConfig, ranks: Ranks) -> String {
    match ranks.world {
        Some(1) => String::new(),
        _ => {
            let shard = ranks.shard(config.m, "M");
            format!("rows `r·{shard}..` on rank r, perhaps fewer on the last ranks")
        }
    }
}

/// Summarises the plan in a few words.
pub fn planned(plan: &GemmPlan) -> String {
    let transfer = plan
        .transfer
        .map_or(String::new(), |transfer| format!(", transfer {transfer}"));
    format!(
        "tile {}×{}, {} stages{transfer}",
        plan.tile.m, plan.tile.n, plan.stages
    )
}
