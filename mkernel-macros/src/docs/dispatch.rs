//! The documentation of `dispatch_gemm`.

use super::phrases::{part, ranks_on};
use mkernel_spec::plan::DispatchPlan;
use mkernel_spec::{BLayout, Dim, DispatchConfig, KernelConfig};

/// Lines of Markdown with the semantics and a table of operands.
pub fn lines(config: &DispatchConfig, kernel: &KernelConfig) -> Vec<String> {
    let KernelConfig { world, nodes, .. } = *kernel;
    let size = |dim: Dim, name: &str| dim.fixed().map_or(name.to_owned(), |size| size.to_string());
    let [experts, top_k, tokens, hidden, cols] = [
        (config.experts, "E"),
        (config.top_k, "k"),
        (config.max_tokens, "T"),
        (config.hidden, "H"),
        (config.intermediate, "I"),
    ]
    .map(|(dim, name)| size(dim, name));
    let local = part(config.experts, world, "E");
    let (result, weight_cols) = match config.swiglu {
        true => ("`silu(x · gate) · (x · up)`", format!("2·{cols}")),
        false => ("`x · W`", cols.clone()),
    };
    let weight = match config.b_layout {
        BLayout::Kn => format!("[{local}, {hidden}, {weight_cols}]"),
        BLayout::Nk => format!("[{local}, {weight_cols}, {hidden}]"),
    };
    vec![
        format!(
            "{result} for each token and each of its {top_k} of {experts} experts, on the rank of the expert. Rows are ordered by expert, then by source rank and token."
        ),
        String::new(),
        format!("{}; bf16, fp32 accumulate.", ranks_on(world, nodes)),
        String::new(),
        "| operand | on each rank | |".to_owned(),
        "|---|---|---|".to_owned(),
        format!(
            "| tokens | `[{tokens}, {hidden}]`, of which the first `num_tokens` rows are used | read |"
        ),
        "| num_tokens | `[1]`, int32 | read |".to_owned(),
        format!("| topk_ids | `[{tokens}, {top_k}]`, int32, no expert twice for a token | read |"),
        format!("| B | `{weight}` | read |"),
        format!("| C | `[max_rows, {cols}]` | only rows that have a token are written |"),
        format!("| expert_offsets | `[{local} + 1]`, int32 | written |"),
        format!(
            "| row_indices | `[{tokens}, {top_k}]`, int32: rank · max_rows + row | written, for `combine` |"
        ),
    ]
}

/// Summarises the plan in a few words.
pub fn planned(plan: &DispatchPlan) -> String {
    format!(
        "tile {}×{}, {} stages, {} communication CTAs",
        plan.tile.m, plan.tile.n, plan.stages, plan.comm_ctas
    )
}
