//! The documentation of an attention operator.

use super::operand::OperandDoc;
use super::phrases::{Ranks, size};
use mkernel_spec::abi::Operand;
use mkernel_spec::plan::{AttentionPlan, TILE_ROWS};
use mkernel_spec::{AttentionConfig, Dtype, Layout, Placement};

/// Paragraphs of Markdown about the computation.
pub fn semantics(config: &AttentionConfig, ranks: Ranks) -> Vec<String> {
    let mask = match config.causal {
        true => ", each row over itself and earlier rows",
        false => "",
    };
    let up_to = match config.seq.is_given_at_run_time() {
        true => "up to ",
        false => "",
    };
    let scores = match config.scale.fixed() {
        Some(scale) => format!("{scale} Q Kᵀ"),
        None => "Q Kᵀ / √D".to_owned(),
    };
    let shard = match config.placement {
        Placement::Contiguous => format!("chunk r of {}", ranks.world()),
        Placement::Zigzag => {
            let chunks = ranks.times(2);
            format!("chunks r and {chunks} - 1 - r of {chunks}")
        }
    };
    if config.packed {
        return vec![
            format!(
                "`O = softmax({scores}) V` over each of up to {} packed sequences, which have up to {} rows together{mask}.",
                size(config.batch, "B"),
                size(config.seq, "S")
            ),
            format!(
                "{}; {}, softmax in fp32. Rank r has {shard} of each sequence, one sequence after the other, and room for R \
                 rows. `cu_seqlens` are the offsets of the sequences among the rows over all ranks.",
                ranks.words(),
                config.dtype
            ),
        ];
    }
    let mut paragraphs = vec![
        format!(
            "`O = softmax({scores}) V` over the whole sequence of {up_to}{} rows{mask}.",
            size(config.seq, "S")
        ),
        format!(
            "{}; {}, softmax in fp32. Rank r has S_r rows: {shard}.",
            ranks.words(),
            config.dtype
        ),
    ];
    if let Some(cached) = config.cached {
        paragraphs.push(format!(
            "Each rank has up to {cached} rows of K and V of each sequence before its S_r rows, to all of which every row attends. \
             Row r of `cached_rows` says how many rank r has. K and V have room for R rows: {cached} and the most of S_r."
        ));
    }
    paragraphs
}

/// The operands of a rank.
pub fn operands(config: &AttentionConfig, ranks: Ranks) -> Vec<OperandDoc> {
    let (batch, dim) = (size(config.batch, "B"), size(config.head_dim, "D"));
    let (heads, kv_heads) = (size(config.heads, "H"), size(config.kv_heads, "H_kv"));
    let of_keys = if config.cached.is_some() { "R" } else { "S_r" };
    let tensor = |heads: &str, rows: &str| match (config.layout, config.packed) {
        (Layout::Bshd, false) => format!("[{batch}, {rows}, {heads}, {dim}]"),
        (Layout::Bhsd, false) => format!("[{batch}, {heads}, {rows}, {dim}]"),
        (Layout::Bshd, true) => format!("[R, {heads}, {dim}]"),
        (Layout::Bhsd, true) => format!("[{heads}, R, {dim}]"),
    };
    let lse = match config.packed {
        false => format!("[{batch}, {heads}, S_r]"),
        true => format!("[{heads}, R]"),
    };
    let dtype = config.dtype;
    let mut operands = vec![
        OperandDoc::new(Operand::Q, dtype, tensor(&heads, "S_r")),
        OperandDoc::new(Operand::K, dtype, tensor(&kv_heads, of_keys)),
        OperandDoc::new(Operand::V, dtype, tensor(&kv_heads, of_keys)),
        OperandDoc::new(Operand::O, dtype, tensor(&heads, "S_r")),
    ];
    if config.lse {
        operands.push(OperandDoc::new(Operand::Lse, Dtype::Fp32, lse));
    }
    if config.packed {
        let offsets = format!("[{batch} + 1]");
        operands.push(OperandDoc::new(Operand::CuSeqlens, Dtype::Int32, offsets));
    }
    if config.cached.is_some() {
        let counts = format!("[{}, {batch}]", ranks.world());
        operands.push(OperandDoc::new(Operand::CachedRows, Dtype::Int32, counts));
    }
    operands
}

/// Summarises the plan in a few words.
pub fn planned(plan: &AttentionPlan) -> String {
    format!(
        "tiles of {TILE_ROWS} queries and {TILE_ROWS} keys, {} stages",
        plan.stages
    )
}
