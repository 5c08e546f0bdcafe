//! Tests of calls that the host cannot order, on simulated GPUs. [`mkernel_testing::jobs::overlap`] describes the
//! calls.

use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::overlap::{OVERLAPS, run_overlap};

#[test]
fn calls_that_overlap_are_refused_and_named() {
    for (seed, overlap) in (0..).zip(OVERLAPS) {
        assert_eq!(
            run_overlap(Backend::Simulated { seed }, overlap, &[]),
            Ok(()),
            "{overlap:?}"
        );
    }
}

/// If a kernel does not call `enter`, the second call is not refused.
#[test]
fn a_missing_guard_is_found() {
    let guard = [(
        "    const bool entered = enter(ctx);\n",
        "    __syncthreads();\n    const bool entered = true;\n",
    )];
    let place = Backend::Simulated { seed: 0 };
    let failure = run_overlap(place, OVERLAPS[0], &guard).expect_err("no guard");
    assert!(failure.contains("not the overlap"), "{failure}");
}
