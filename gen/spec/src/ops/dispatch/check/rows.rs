//! The checks of `gemm_combine`.

use crate::config::Field;
use crate::diagnostic::Diagnostics;
use crate::ops::dispatch::config::DispatchConfig;

/// Records what `gemm_combine` does not have.
pub(super) fn check(config: &DispatchConfig, world: u32, nodes: u32, found: &mut Diagnostics) {
    found.require(
        nodes <= 1,
        Field::NODES,
        || format!("{nodes} nodes; the results of gemm_combine travel over NVLink"),
        "use one node, or a product of each expert and combine",
    );
    found.require(
        !config.swiglu,
        Field::SWIGLU,
        || "the rows of gemm_combine are the results of silu(gate) · up".to_owned(),
        "set it for the dispatch_gemm that makes the rows",
    );
    found.require(
        !config.router.chooses(),
        Field::SCORES,
        || "the tokens of the rows have their experts already".to_owned(),
        "set it for the dispatch_gemm that makes the rows",
    );
    found.require(
        config.split_k.is_none_or(|splits| splits == 1),
        Field::SPLIT_K,
        || "tiles of gemm_combine are not divided into slices of K".to_owned(),
        "remove it",
    );
    found.require(
        config.comm_ctas.is_none(),
        Field::COMM_CTAS,
        || "no CTA of gemm_combine sends tokens".to_owned(),
        "remove it",
    );
    check_choices(config, world, found);
}

/// Checks the number of the choices of all ranks.
fn check_choices(config: &DispatchConfig, world: u32, found: &mut Diagnostics) {
    let (Some(tokens), Some(top_k)) = (config.max_tokens.fixed(), config.top_k.fixed()) else {
        return;
    };
    let choices = tokens
        .saturating_mul(top_k)
        .saturating_mul(world.max(1).into());
    found.require(
        choices <= u32::MAX.into(),
        Field::MAX_TOKENS,
        || {
            format!(
                "{tokens} tokens of {top_k} choices on each of {world} ranks are {choices} choices, more than {} (choices of all ranks are numbered in 32 bits)",
                u32::MAX
            )
        },
        "use fewer tokens per call",
    );
}
