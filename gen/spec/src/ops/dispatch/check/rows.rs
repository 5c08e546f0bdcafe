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

#[cfg(test)]
mod tests {
    use crate::config::{Dim, DispatchConfig, DispatchOp, KernelConfig, Router, Scales, Scores};
    use crate::spec::KernelSpec;

    fn mistakes(nodes: u32, world: u32, config: DispatchConfig) -> Vec<&'static str> {
        let config = KernelConfig {
            nodes,
            ..KernelConfig::new(world, config)
        };
        let found = KernelSpec::validate(config).expect_err("mistakes");
        found.iter().map(|v| v.field.name()).collect()
    }

    #[test]
    fn options_of_tokens_are_refused() {
        let config = DispatchConfig {
            swiglu: true,
            result_scales: Scales::Block,
            split_k: Some(2),
            comm_ctas: Some(8),
            router: Router {
                scores: Scores::Softmax,
                ..Router::default()
            },
            ..DispatchConfig::new(DispatchOp::GemmCombine)
        };
        let fields = [
            "nodes",
            "swiglu",
            "scores",
            "split_k",
            "comm_ctas",
            "result_scales",
        ];
        assert_eq!(mistakes(2, 4, config), fields);
    }

    #[test]
    fn choices_of_all_ranks_are_numbered_in_a_word() {
        let config = DispatchConfig {
            experts: Dim::Static(64),
            top_k: Dim::Static(8),
            max_tokens: Dim::Static(1 << 26),
            hidden: Dim::Static(64),
            max_rows: Some(1000),
            ..DispatchConfig::new(DispatchOp::GemmCombine)
        };
        assert_eq!(mistakes(1, 8, config), ["max_tokens"]);
    }
}
