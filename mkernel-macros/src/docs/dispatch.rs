//! What rustdoc shows of `dispatch_gemm`.

use super::phrases::{part, ranks_on};
use mkernel_spec::plan::DispatchPlan;
use mkernel_spec::{BLayout, Dim, DispatchConfig, KernelConfig};

/// Semantics, and what each rank passes.
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
            "{result} of each token and each of its {top_k} of {experts} experts, at the expert's rank: rows by expert, those of an expert by source rank and token."
        ),
        String::new(),
        format!("{}; bf16, fp32 accumulate.", ranks_on(world, nodes)),
        String::new(),
        "| operand | on each rank | |".to_owned(),
        "|---|---|---|".to_owned(),
        format!(
            "| tokens | `[{tokens}, {hidden}]`, of which the first `num_tokens` are read | read |"
        ),
        "| num_tokens | `[1]`, int32 | read |".to_owned(),
        format!("| topk_ids | `[{tokens}, {top_k}]`, int32, no expert twice for a token | read |"),
        format!("| B | `{weight}` | read |"),
        format!("| C | `[max_rows, {cols}]` | rows that there are are written |"),
        format!("| expert_offsets | `[{local} + 1]`, int32 | written |"),
        format!(
            "| row_indices | `[{tokens}, {top_k}]`, int32: rank · max_rows + row | written, for `combine` |"
        ),
    ]
}

/// The choices of its plan.
pub fn planned(plan: &DispatchPlan) -> String {
    format!(
        "tile {}×{}, {} stages, {} communication CTAs",
        plan.tile.m, plan.tile.n, plan.stages, plan.comm_ctas
    )
}
