//! Planted dependences on the batch.

use super::{
    FOUR, ONE, TWO, collectives, compared, few_rows, invariant, jobs, layer, layers, normalised,
};
use mkernel::spec::{CollectiveConfig, CollectiveOp, GemmConfig, GemmOp};
use mkernel_testing::jobs::compared::Compared;
use mkernel_testing::jobs::token_batches::ComparedTokens;
use mkernel_testing::jobs::{Mutation, all_are_found, all_mutations_are_found, named};

fn job(name: &'static str) -> Compared {
    named(jobs(), name)
}

fn collective(name: &'static str) -> Compared {
    named(collectives(), name)
}

fn experts(name: &'static str) -> ComparedTokens {
    named(layers(), name)
}

const MUTATIONS: &[Mutation<Compared>] = &[
    (
        "an owner that does not round its own sum",
        || job("gemm_rs of four ranks"),
        &[(
            "@partials.rounded",
            "rounded[col / Fragment::kBlockCols][half] = 0; return;",
        )],
    ),
    (
        "sums added in an order that depends on the owner",
        || job("gemm_rs of four ranks"),
        &[(
            "@partials.in-order",
            "if constexpr (true) return (own + Ranks::kLocalWorld - i) % Ranks::kLocalWorld;",
        )],
    ),
    (
        "an owner that adds its own sum first",
        || job("gemm_rs of four ranks"),
        &[("@partials.own-place", "if (source != 0) {")],
    ),
    (
        "CTAs that add slices one after the other",
        || job("gemm,"),
        &[("@split-k.tree", "sum.add(j, w);")],
    ),
    (
        "a cluster that adds slices one after the other",
        || job("gemm,"),
        &[("@cluster-sums.tree", "sum.add(block, w);")],
    ),
    (
        "a CTA that adds granules one after the other",
        || job("gemm,"),
        &[("@gemm.granule-pair", "")],
    ),
    (
        "granules of a whole tile that end elsewhere",
        || job("gemm,"),
        &[(
            "@gemm.granule-end",
            "const u32 end = granule == count ? work.k_end : begin + (work.k_end - begin) / 2;",
        )],
    ),
    (
        "a node that does not round its own sum",
        || collective("all_reduce across nodes"),
        &[(
            "@reduce.rounded",
            "for (u32 i = 0; i < Sum::kElements; ++i) total.values[i] += sum.values[i];",
        )],
    ),
    (
        "squares of a row that lanes add up, each its own",
        || collective("norm of two ranks"),
        &[("@norm.block", "sum += squares / kWarp;")],
    ),
];

const OF_EXPERTS: &[Mutation<ComparedTokens>] = &[
    (
        "a rank that does not round the sum of its own rows",
        || experts("experts of two ranks"),
        &[(
            "@sums.rounded",
            "for (u32 i = 0; i < Sum::kElements; ++i) of_node.values[i] += of_rank.values[i];",
        )],
    ),
    (
        "a node that does not round its own sum",
        || experts("experts across nodes"),
        &[(
            "@sums.node-rounded",
            "for (u32 i = 0; i < Sum::kElements; ++i) all.values[i] += of_node.values[i];",
        )],
    ),
];

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, 1);
}

#[test]
fn every_mutation_of_experts_is_found() {
    all_mutations_are_found(OF_EXPERTS, 1);
}

/// Without the option, bits depend on the number of tokens.
#[test]
fn default_plans_of_experts_differ() {
    let plain = |ranks| {
        let mut compared = layer(ranks, false, (2048, 256));
        compared.layer.dispatch.batch_invariant = false;
        compared
    };
    all_are_found(
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
    all_are_found(
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
    all_are_found(
        &[
            ("gemm", compared(plain(GemmOp::Gemm), (1, 1), FOUR)),
            ("ag_gemm", compared(plain(GemmOp::AgGemm), (1, 2), TWO)),
            ("gemm_rs", compared(plain(GemmOp::GemmRs), (1, 4), ONE)),
            ("gemm_ar", compared(plain(GemmOp::GemmAr), (1, 4), ONE)),
        ],
        1,
    );
}
