//! `GemmPlan::tile_sequence` is the order in which the device code of random kernels computes tiles. `tile_sequence.cpp`, a program
//! of the host, prints the order of the device code.

use crate::configs::{
    gemm, gemm_of_nodes, gemm_rs_in_rounds, plans, plans_with_rows, rows_of_nodes,
};
use crate::host_program;
use mkernel_compile::render;
use mkernel_spec::{GemmOp, KernelPlan};
use mkernel_testing::jobs::share;
use proptest::prelude::*;
use std::fmt::Write as _;

/// The number of cases, each of which compiles for about a second.
const CASES: u32 = 3;

/// The order of the device code.
fn on_device(plan: &KernelPlan) -> String {
    let source = render(plan).expect("a plan renders");
    let program = ("tile_sequence.cpp", include_str!("tile_sequence.cpp"));
    let output = host_program::output(&[program, ("kernel.cu", &source.text)]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The order of the plan.
fn in_plan(plan: &KernelPlan) -> String {
    let (of_gemm, topology) = (gemm(plan), plan.spec.topology());
    let mut text = String::new();
    for rank in 0..topology.world() {
        for tile in of_gemm.tile_sequence(rank, topology) {
            let rows = of_gemm.rows_of_tile(tile, topology);
            let (owner, row, col) = (tile.owner, tile.row, tile.col);
            let _ = write!(text, "{rank}: {owner} {row} {col} rows {rows:?}");
            for of in of_gemm.chunks_of_rows(rows, topology) {
                let _ = write!(text, " {}:{}", of.source, of.chunk);
            }
            text.push('\n');
        }
    }
    text
}

/// The first line in which the two orders differ.
fn difference(plan: &KernelPlan) -> Option<(String, String)> {
    let (device, plan) = (on_device(plan), in_plan(plan));
    assert!(!device.is_empty());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (device, plan) = (lines(&device), lines(&plan));
    let end = || "the end".to_owned();
    let line = |of: &[String], i: usize| of.get(i).cloned().unwrap_or_else(end);
    let all = 0..device.len().max(plan.len());
    let mut pairs = all.map(|i| (line(&device, i), line(&plan, i)));
    pairs.find(|(device, plan)| device != plan)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn sequences_are_those_of_device_code(plan in plans().prop_filter_map("a plan", |plan| plan)) {
        prop_assert_eq!(difference(&plan), None, "{}", plan.id);
    }

    #[test]
    fn sequences_of_the_most_rows_are_those_of_device_code(plan in plans_with_rows().prop_filter_map("a plan", |plan| plan)) {
        prop_assert_eq!(difference(&plan), None, "{}", plan.id);
    }
}

#[test]
fn sequences_of_rounds_are_those_of_device_code() {
    assert_eq!(difference(&gemm_rs_in_rounds()), None);
}

#[test]
fn sequences_on_several_nodes_are_those_of_device_code() {
    let kernels = vec![
        (GemmOp::AgGemm, 2, 2, 1024),
        (GemmOp::AgGemm, 3, 2, 700),
        (GemmOp::GemmRs, 2, 2, 1024),
        (GemmOp::GemmRs, 3, 4, 700),
        (GemmOp::GemmAr, 2, 2, 1024),
        (GemmOp::GemmAr, 3, 2, 700),
    ];
    for (op, nodes, local_world, m) in share(kernels, "", (0, 2)) {
        let constant = gemm_of_nodes(op, (nodes, local_world), (m, 1160, 520));
        assert_eq!(difference(&constant), None, "{}", constant.id);
        let of_calls = rows_of_nodes(op, (nodes, local_world), m);
        assert_eq!(difference(&of_calls), None, "{}", of_calls.id);
    }
}
