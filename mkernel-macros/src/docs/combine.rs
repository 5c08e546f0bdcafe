//! The documentation of `combine`.

use super::phrases::ranks_on;
use mkernel_spec::plan::CombinePlan;
use mkernel_spec::{CombineConfig, Dim, KernelConfig};

/// Lines of Markdown with the semantics and a table of operands.
pub fn lines(config: &CombineConfig, kernel: &KernelConfig) -> Vec<String> {
    let size = |dim: Dim, name: &str| dim.fixed().map_or(name.to_owned(), |size| size.to_string());
    let [top_k, tokens, hidden] = [
        (config.top_k, "k"),
        (config.max_tokens, "T"),
        (config.hidden, "H"),
    ]
    .map(|(dim, name)| size(dim, name));
    vec![
        format!(
            "The outputs of each token's {top_k} experts, summed with the router's weights, on the token's rank."
        ),
        String::new(),
        format!(
            "{}; bf16, fp32 accumulate.",
            ranks_on(kernel.world, kernel.nodes)
        ),
        String::new(),
        "| operand | on each rank | |".to_owned(),
        "|---|---|---|".to_owned(),
        format!("| rows | `[max_rows, {hidden}]` | read |"),
        "| num_tokens | `[1]`, int32 | read |".to_owned(),
        format!("| row_indices | `[{tokens}, {top_k}]`, int32, from `dispatch_gemm` | read |"),
        format!("| topk_weights | `[{tokens}, {top_k}]`, fp32 | read |"),
        format!("| C | `[{tokens}, {hidden}]` | the first `num_tokens` rows are written |"),
    ]
}

/// Summarises the plan in a few words.
pub fn planned(plan: &CombinePlan) -> String {
    format!("rows in {} parts, {} stages", plan.parts(), plan.stages)
}
