//! Who computes what and when, by the device code itself: the headers of random kernels, compiled for the host.

use crate::configs::{gemm, plans};
use mkernel_compile::{CudaSource, HostCxx, headers, render};
use mkernel_spec::{GemmOp, KernelPlan, Target};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// A compile takes about a second.
const CASES: u32 = 24;

/// Whether the kernel's orders are in headers.
pub fn is_assembled(plan: &KernelPlan) -> bool {
    let gemm = gemm(plan);
    gemm.config.op == GemmOp::GemmRs && gemm.reduction.is_some()
}

/// What the check of a kernel's schedule finds wrong.
fn faults(source: &CudaSource) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    for (name, text) in headers(Target::Simulator) {
        write(name, text);
    }
    write("kernel.cu", &source.text);
    write("schedule.cpp", include_str!("schedule.cpp"));
    let mut compile = HostCxx::load().expect("a C++ compiler").command();
    compile.args([
        "-std=c++20",
        "-w",
        "-I.",
        "-DKERNEL=\"kernel.cu\"",
        "schedule.cpp",
        "-o",
        "schedule",
    ]);
    succeed(compile.current_dir(folder.path()));
    let output = std::process::Command::new(Path::new("./schedule"))
        .current_dir(folder.path())
        .output();
    let output = output.expect("a program");
    assert!(
        output.status.code().is_some_and(|code| code < 2),
        "{output:?}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn succeed(command: &mut std::process::Command) {
    let output = command.output().expect("a program");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// Every tile is computed once, slices of K are complete, each sub-tile has one CTA that completes it, rows of C have
    /// one owner, and no rank waits for what a peer computes later.
    #[test]
    fn schedules_are_complete_and_without_circles(
        plan in plans().prop_filter_map("a kernel of headers", |plan| plan.filter(is_assembled)),
    ) {
        let found = faults(&render(&plan).expect("a plan renders"));
        prop_assert_eq!(found, "");
    }
}

/// A check that cannot fail proves nothing.
#[test]
fn planted_mistakes_are_found() {
    let golden = crate::configs::gemm_rs_in_rounds();
    let source = render(&golden).expect("a plan renders");
    assert_eq!(faults(&source), "");
    for (from, to, expected) in [
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
    ] {
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
