//! Who computes what and when, by the device code itself: the headers of random kernels, compiled for the host.

use crate::configs::{gemm_of_nodes, gemm_rs_in_rounds, plans};
use crate::host_program;
use mkernel_compile::{CudaSource, render};
use mkernel_spec::{GemmOp, KernelPlan};
use proptest::prelude::*;

/// A compile takes about a second.
const CASES: u32 = 24;

/// What the check of a kernel's schedule finds wrong.
fn faults(source: &CudaSource) -> String {
    let program = ("schedule.cpp", include_str!("schedule.cpp"));
    let output = host_program::output(&[program, ("kernel.cu", &source.text)]);
    assert!(
        output.status.code().is_some_and(|code| code < 2),
        "{output:?}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// Every tile is computed once, slices of K are complete, each sub-tile has one CTA that completes it, rows of C have
    /// one owner, and no rank waits for what a peer computes later. Every row of a shard travels once.
    #[test]
    fn schedules_are_complete_and_without_circles(plan in plans().prop_filter_map("a plan", |plan| plan)) {
        let found = faults(&render(&plan).expect("a plan renders"));
        prop_assert_eq!(found, "");
    }
}

/// The same for several nodes, with gaps, ranks without rows, and tiles that straddle shards.
#[test]
fn schedules_of_several_nodes_are_complete() {
    for (op, nodes, local_world, m) in [
        (GemmOp::AgGemm, 2, 2, 1024),
        (GemmOp::AgGemm, 3, 2, 700),
        (GemmOp::AgGemm, 2, 1, 1),
        (GemmOp::GemmRs, 2, 2, 1024),
        (GemmOp::GemmRs, 3, 4, 700),
        (GemmOp::GemmAr, 2, 2, 1024),
        (GemmOp::GemmAr, 3, 2, 700),
        (GemmOp::GemmAr, 3, 1, 64),
    ] {
        let plan = gemm_of_nodes(op, (nodes, local_world), (m, 1160, 520));
        let source = render(&plan).expect("a plan renders");
        assert_eq!(faults(&source), "", "{}", source.id);
    }
}

/// A check that cannot fail proves nothing.
#[test]
fn planted_mistakes_are_found() {
    mistakes_are_found(&gemm_rs_in_rounds(), MISTAKES_OF_OWNERS);
    mistakes_are_found(
        &gemm_of_nodes(GemmOp::AgGemm, (2, 2), (1024, 1160, 520)),
        MISTAKES_OF_SHARDS,
    );
}

/// What is replaced by what in headers, and what the check says of it.
type Mistake = (&'static str, &'static str, &'static str);

const MISTAKES_OF_OWNERS: &[Mistake] = &[
    (
        "own + 1 + index / Config::kRoundTiles",
        "own + index / Config::kRoundTiles",
        "twice",
    ),
    (
        "ctx), split * Config::kKSteps / kSplits",
        "ctx), 0",
        "slices of K",
    ),
    (
        "min(Config::kShardRows, Config::kM - before)",
        "Config::kM - before",
        "rows of C",
    ),
];

const MISTAKES_OF_SHARDS: &[Mistake] = &[
    (
        "row_tile(coord.row, ctx)",
        "row_tile(Config::kRowTiles - 1 - coord.row, ctx)",
        "before own ones",
    ),
    (
        "within % Shards::kArrivals * Config::kPieceRows;",
        "0;",
        "travels twice",
    ),
    (
        "const u32 row = chunk * Config::kChunkRows",
        "const u32 row = first_chunk + chunk * Config::kChunkRows",
        "does not travel",
    ),
];

fn mistakes_are_found(plan: &KernelPlan, mistakes: &[Mistake]) {
    let source = render(plan).expect("a plan renders");
    assert_eq!(faults(&source), "");
    for (from, to, expected) in mistakes {
        let whole = source.with_headers();
        assert!(whole.contains(from), "{from}");
        let text = whole.replace(from, to);
        let found = faults(&CudaSource {
            text,
            ..source.clone()
        });
        assert!(found.contains(expected), "{from}: {found:?}");
    }
}
