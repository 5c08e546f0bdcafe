//! The documentation of `combine`.

use super::operand::OperandDoc;
use super::phrases::{Ranks, size};
use mkernel_spec::abi::Operand;
use mkernel_spec::plan::CombinePlan;
use mkernel_spec::{CombineConfig, Dtype};

/// Paragraphs of Markdown about what is computed.
pub fn semantics(config: &CombineConfig, ranks: Ranks) -> Vec<String> {
    vec![
        format!(
            "The outputs of each token's {} experts, summed with the router's weights, on the token's rank.",
            size(config.top_k, "k")
        ),
        format!("{}; bf16, fp32 accumulate.", ranks.words()),
    ]
}

/// The operands of a rank.
pub fn operands(config: &CombineConfig, _: Ranks) -> Vec<OperandDoc> {
    let (tokens, hidden) = (size(config.max_tokens, "T"), size(config.hidden, "H"));
    let choices = format!("[{tokens}, {}]", size(config.top_k, "k"));
    vec![
        OperandDoc::new(Operand::Rows, format!("[max_rows, {hidden}]")),
        OperandDoc::new(Operand::NumTokens, "[1]".to_owned()).of(Dtype::Int32),
        OperandDoc::new(Operand::RowIndices, choices.clone())
            .of(Dtype::Int32)
            .note("from `dispatch_gemm`"),
        OperandDoc::new(Operand::TopkWeights, choices).of(Dtype::Fp32),
        OperandDoc::new(Operand::C, format!("[{tokens}, {hidden}]"))
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
