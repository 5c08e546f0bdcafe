//! Properties of the schedules of GEMM kernels. `schedule.cpp`, a program of the host, includes the headers of random kernels,
//! computes their schedules with the device code, and checks the schedules.

use crate::configs::{
    gemm_of_nodes, gemm_rs_in_rounds, gemm_with_shared_tiles, plans, plans_with_rows, rows_of_nodes,
};
use crate::host_program;
use mkernel_compile::{CudaSource, render};
use mkernel_spec::{GemmOp, KernelPlan};
use mkernel_testing::jobs::{each_in_one, share};
use proptest::prelude::*;

/// The number of cases, each of which compiles for about a second.
const CASES: u32 = 3;

/// Returns the faults that `schedule.cpp` finds in a kernel's schedule.
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
    /// one owner, and no rank waits for a tile that a peer computes later. Every row of a shard travels once.
    #[test]
    fn schedules_are_complete_and_without_circles(plan in plans().prop_filter_map("a plan", |plan| plan)) {
        let found = faults(&render(&plan).expect("a plan renders"));
        prop_assert_eq!(found, "");
    }

    /// Schedules are complete for calls of any number of rows. Tiles find the rank's rows in place or among the gathered rows.
    #[test]
    fn schedules_of_any_rows_are_complete(plan in plans_with_rows().prop_filter_map("a plan", |plan| plan)) {
        let found = faults(&render(&plan).expect("a plan renders"));
        prop_assert_eq!(found, "", "{}", plan.id);
    }
}

#[test]
fn schedules_of_any_rows_of_several_nodes_are_complete() {
    let kernels = vec![
        (GemmOp::AgGemm, 2, 4, 1024),
        (GemmOp::AgGemm, 3, 2, 700),
        (GemmOp::GemmRs, 3, 4, 1500),
        (GemmOp::GemmAr, 2, 2, 1024),
        (GemmOp::GemmAr, 3, 1, 64),
        (GemmOp::Gemm, 2, 2, 1000),
    ];
    for (op, nodes, local_world, most) in share(kernels, "", (0, 2)) {
        let plan = rows_of_nodes(op, (nodes, local_world), most);
        let source = render(&plan).expect("a plan renders");
        assert_eq!(faults(&source), "", "{}", source.id);
    }
}

/// The schedules of several nodes have gaps, ranks without rows, and tiles that straddle shards.
#[test]
fn schedules_of_several_nodes_are_complete() {
    let kernels = vec![
        (GemmOp::AgGemm, 2, 2, 1024),
        (GemmOp::AgGemm, 3, 2, 700),
        (GemmOp::AgGemm, 2, 1, 1),
        (GemmOp::GemmRs, 2, 2, 1024),
        (GemmOp::GemmRs, 3, 4, 700),
        (GemmOp::GemmAr, 2, 2, 1024),
        (GemmOp::GemmAr, 3, 2, 700),
        (GemmOp::GemmAr, 3, 1, 64),
    ];
    for (op, nodes, local_world, m) in share(kernels, "", (0, 2)) {
        let plan = gemm_of_nodes(op, (nodes, local_world), (m, 1160, 520));
        let source = render(&plan).expect("a plan renders");
        assert_eq!(faults(&source), "", "{}", source.id);
    }
}

/// CTAs share tiles of every shape: as many CTAs as a group has sub-tiles, fewer CTAs, and more CTAs.
#[test]
fn schedules_of_shared_tiles_are_complete() {
    let kernels = [
        (GemmOp::AgGemm, (64, 128)),
        (GemmOp::GemmRs, (128, 64)),
        (GemmOp::GemmAr, (64, 256)),
        (GemmOp::AgGemm, (128, 256)),
    ];
    let split = |split_k| kernels.map(|(op, tile)| (op, tile, split_k)).into();
    for (op, tile, split_k) in each_in_one(&[2, 3, 8], split) {
        let plan = gemm_with_shared_tiles(op, tile, split_k);
        let source = render(&plan).expect("a plan renders");
        assert_eq!(faults(&source), "", "{}, {split_k}", source.id);
    }
}

/// Each mutation of a header is found, so the checks can fail. A run has the mutations of one of three kernels.
#[test]
fn every_mutation_is_found() {
    let kernels = vec![
        (gemm_rs_in_rounds(), MUTATIONS_OF_OWNERS),
        (
            gemm_of_nodes(GemmOp::AgGemm, (2, 2), (1024, 1160, 520)),
            MUTATIONS_OF_SHARDS,
        ),
        (
            gemm_with_shared_tiles(GemmOp::GemmRs, (64, 128), 5),
            MUTATIONS_OF_SHARED_TILES,
        ),
    ];
    for (plan, mutations) in share(kernels, "", (0, 3)) {
        mutations_are_found(&plan, mutations);
    }
}

/// A mutation of a header: the text that is replaced, the new text, and a part of the fault that is found.
type Mutation = (&'static str, &'static str, &'static str);

const MUTATIONS_OF_OWNERS: &[Mutation] = &[
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
        "min(Rows::of_shard(ctx), Rows::all(ctx) - before)",
        "Rows::all(ctx) - before",
        "rows of C",
    ),
];

const MUTATIONS_OF_SHARDS: &[Mutation] = &[
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

const MUTATIONS_OF_SHARED_TILES: &[Mutation] = &[
    (
        "work.split == sub / kShare;",
        "work.split <= sub / kShare + 1;",
        "has not one CTA",
    ),
    (
        "work.split < kCompleters;",
        "work.split <= kCompleters;",
        "counts other sub-tiles",
    ),
    (
        "/ kSplits,\n              (split + 1)",
        "/ kSplits + (split == 2),\n              (split + 1)",
        "slices of K",
    ),
];

fn mutations_are_found(plan: &KernelPlan, mutations: &[Mutation]) {
    let source = render(plan).expect("a plan renders");
    assert_eq!(faults(&source), "");
    for (from, to, expected) in mutations {
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
