//! The documentation of `combine`.

use super::operand::OperandDoc;
use super::phrases::{Ranks, size};
use mkernel_spec::abi::Operand;
use mkernel_spec::plan::CombinePlan;
use mkernel_spec::{CombineConfig, Dtype};

/// Paragraphs of Markdown about the computation.
pub fn semantics(config: &CombineConfig, ranks: Ranks) -> Vec<String> {
    vec![
        format!(
            "The outputs of each token's {} experts, summed with the router's weights, on the token's rank.",
            size(config.top_k, "k")
        ),
        format!("{}; {}, fp32 accumulate.", ranks.words(), config.dtype),
    ]
}

/// The operands of a rank.
pub fn operands(config: &CombineConfig, _: Ranks) -> Vec<OperandDoc> {
    let (tokens, hidden) = (size(config.max_tokens, "T"), size(config.hidden, "H"));
    let choices = format!("[{tokens}, {}]", size(config.top_k, "k"));
    let dtype = config.dtype;
    vec![
        OperandDoc::new(Operand::Rows, dtype, format!("[max_rows, {hidden}]")),
        OperandDoc::new(Operand::NumTokens, Dtype::Int32, "[1]".to_owned()),
        OperandDoc::new(Operand::RowIndices, Dtype::Int32, choices.clone())
            .note("from `dispatch_gemm`"),
        OperandDoc::new(Operand::TopkWeights, Dtype::Fp32, choices),
        OperandDoc::new(Operand::C, dtype, format!("[{tokens}, {hidden}]"))
            .note("only the first `num_tokens` rows"),
    ]
}

/// Summarises the plan in a few words.
pub fn planned(plan: &CombinePlan) -> String {
    match plan.pipeline {
        Some(pipeline) => format!("rows in {} parts, {} stages", plan.parts(), pipeline.stages),
        None => "rows in packets".to_owned(),
    }
}
