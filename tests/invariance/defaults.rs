//! Default plans, whose bits depend on the batch, to show that the comparisons can fail.

use super::{FOUR, ONE, compared, few_rows, invariant, layer, normalised};
use mkernel::spec::{CollectiveConfig, CollectiveOp, GemmConfig, GemmOp};
use mkernel_testing::jobs::all_fail;

/// Without the option, bits depend on the number of tokens.
#[test]
fn default_plans_of_experts_differ() {
    let plain = |ranks| {
        let mut compared = layer(ranks, false, (2048, 256));
        compared.layer.dispatch.batch_invariant = false;
        compared
    };
    all_fail(
        &[("one rank", plain((1, 1))), ("two ranks", plain((1, 2)))],
        1,
    );
}

/// Without the option, bits depend on the number of rows.
#[test]
fn default_plans_of_collectives_differ() {
    let plain = |config, ranks, cols| {
        let config = CollectiveConfig {
            batch_invariant: false,
            ..config
        };
        few_rows(config, ranks, (cols, 0))
    };
    let sums = CollectiveConfig::new(CollectiveOp::AllReduce);
    all_fail(
        &[
            ("norm", plain(normalised(), (1, 2), 8200)),
            ("across nodes", plain(sums, (2, 2), 1032)),
        ],
        1,
    );
}

/// Without the option, bits depend on the number of rows.
#[test]
fn default_plans_differ() {
    let plain = |op| GemmConfig {
        batch_invariant: false,
        ..invariant(op)
    };
    all_fail(
        &[
            ("gemm", compared(plain(GemmOp::Gemm), (1, 1), FOUR)),
            ("gemm_ar", compared(plain(GemmOp::GemmAr), (1, 4), ONE)),
        ],
        1,
    );
}
