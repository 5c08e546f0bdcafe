//! The documentation of `dispatch_gemm`.

use super::operand::OperandDoc;
use super::phrases::{Ranks, size};
use mkernel_spec::abi::Operand;
use mkernel_spec::plan::DispatchPlan;
use mkernel_spec::{BLayout, DispatchConfig, Dtype};

/// Paragraphs of Markdown about the computation.
pub fn semantics(config: &DispatchConfig, ranks: Ranks) -> Vec<String> {
    let result = match config.swiglu {
        true => "`silu(x · gate) · (x · up)`",
        false => "`x · W`",
    };
    vec![
        format!(
            "{result} for each token and each of its {} of {} experts, on the rank of the expert. Rows are ordered by expert, then by source rank and token.",
            size(config.top_k, "k"),
            size(config.experts, "E")
        ),
        format!(
            "{}; {}, fp32 accumulate.",
            ranks.words(),
            config.types().tokens
        ),
    ]
}

/// The operands of a rank.
pub fn operands(config: &DispatchConfig, ranks: Ranks) -> Vec<OperandDoc> {
    let (tokens, hidden) = (size(config.max_tokens, "T"), size(config.hidden, "H"));
    let cols = size(config.intermediate, "I");
    let local = ranks.part(config.experts, "E");
    let weight_cols = match config.swiglu {
        true => format!("2·{cols}"),
        false => cols.clone(),
    };
    let weight = match config.b_layout {
        BLayout::Kn => format!("[{local}, {hidden}, {weight_cols}]"),
        BLayout::Nk => format!("[{local}, {weight_cols}, {hidden}]"),
    };
    let choices = format!("[{tokens}, {}]", size(config.top_k, "k"));
    let types = config.types();
    vec![
        OperandDoc::new(
            Operand::Tokens,
            types.tokens,
            format!("[{tokens}, {hidden}]"),
        )
        .note("only the first `num_tokens` rows"),
        OperandDoc::new(Operand::NumTokens, Dtype::Int32, "[1]".to_owned()),
        OperandDoc::new(Operand::TopkIds, Dtype::Int32, choices.clone())
            .note("no expert twice for a token, -1 for no choice"),
        OperandDoc::new(Operand::B, types.weights, weight),
        OperandDoc::new(Operand::C, types.c, format!("[max_rows, {cols}]"))
            .note("only rows that have a token"),
        OperandDoc::new(
            Operand::ExpertOffsets,
            Dtype::Int32,
            format!("[{local} + 1]"),
        ),
        OperandDoc::new(Operand::RowIndices, Dtype::Int32, choices)
            .written()
            .note("rank · max_rows + row, or -1, for `combine`"),
    ]
}

/// Summarises the plan in a few words.
pub fn planned(plan: &DispatchPlan) -> String {
    format!(
        "tile {}×{}, {} stages, {} communication CTAs",
        plan.tile.m, plan.tile.n, plan.stages, plan.comm_ctas
    )
}
