//! Planted dependences on the batch.

use super::{FOUR, ONE, TWO, compared, invariant, jobs};
use mkernel::spec::{GemmConfig, GemmOp};
use mkernel_testing::jobs::compared::Compared;
use mkernel_testing::jobs::{Mutation, all_are_found, all_mutations_are_found, named};

fn job(name: &'static str) -> Compared {
    named(jobs(), name)
}

const MUTATIONS: &[Mutation<Compared>] = &[
    (
        "an owner that does not round its own sum",
        || job("gemm_rs of four ranks"),
        &[("@partials.rounded", "rounded[i] = 0; continue;")],
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
        &[(
            "@split-k.tree",
            "float* e = sum + j * 4; e[0] += w.x, e[1] += w.y, e[2] += w.z, e[3] += w.w;",
        )],
    ),
    (
        "a cluster that adds slices one after the other",
        || job("gemm,"),
        &[(
            "@cluster-sums.tree",
            "d[0] += as_float(w.x), d[1] += as_float(w.y), d[2] += as_float(w.z), d[3] += as_float(w.w);",
        )],
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
];

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, 1);
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
