//! The documentation of an attention operator.

use super::phrases::ranks_on;
use mkernel_spec::plan::{AttentionPlan, TILE_ROWS};
use mkernel_spec::{AttentionConfig, Dim, KernelConfig, Layout, Placement};

/// Lines of Markdown with the semantics and a table of operands.
pub fn lines(config: &AttentionConfig, kernel: &KernelConfig) -> Vec<String> {
    let KernelConfig { world, nodes, .. } = *kernel;
    let mask = match config.causal {
        true => ", each row over itself and earlier rows",
        false => "",
    };
    let size = |dim: Dim, name: &str| dim.fixed().map_or(name.to_owned(), |size| size.to_string());
    let [batch, seq, heads, kv_heads, dim] = [
        (config.batch, "B"),
        (config.seq, "S"),
        (config.heads, "H"),
        (config.kv_heads, "H_kv"),
        (config.head_dim, "D"),
    ]
    .map(|(dim, name)| size(dim, name));
    let shard = match config.placement {
        Placement::Contiguous => format!("chunk r of {world}"),
        Placement::Zigzag => format!("chunks r and {} - r of {}", 2 * world - 1, 2 * world),
    };
    let tensor = |heads: &str| match config.layout {
        Layout::Bshd => format!("[{batch}, S_r, {heads}, {dim}]"),
        Layout::Bhsd => format!("[{batch}, {heads}, S_r, {dim}]"),
    };
    let scores = match config.scale.fixed() {
        Some(scale) => format!("{scale} Q Kᵀ"),
        None => "Q Kᵀ / √D".to_owned(),
    };
    let (q, kv) = (tensor(&heads), tensor(&kv_heads));
    vec![
        format!("`O = softmax({scores}) V` over the whole sequence of {seq} rows{mask}."),
        String::new(),
        format!(
            "{}; bf16, softmax in fp32. Rank r has S_r rows: {shard}.",
            ranks_on(world, nodes)
        ),
        String::new(),
        "| operand | on each rank | |".to_owned(),
        "|---|---|---|".to_owned(),
        format!("| Q | `{q}` | read |"),
        format!("| K, V | `{kv}` | read |"),
        format!("| O | `{q}` | written |"),
        format!("| LSE | `[{batch}, {heads}, S_r]`, fp32 | written |"),
    ]
}

/// Summarises the plan in a few words.
pub fn planned(plan: &AttentionPlan) -> String {
    format!(
        "tiles of {TILE_ROWS} queries and {TILE_ROWS} keys, {} stages",
        plan.stages
    )
}
