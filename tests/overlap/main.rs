//! Overlapping calls on simulated GPUs: see [`meeting`].

use mkernel_testing::jobs::Where;
use mkernel_testing::jobs::overlap::{MEETINGS, meet};

#[test]
fn calls_that_overlap_are_refused_and_named() {
    for (seed, meeting) in (0..).zip(MEETINGS) {
        assert_eq!(
            meet(Where::Simulated { seed }, meeting, &[]),
            Ok(()),
            "{meeting:?}"
        );
    }
}

/// Without the guard nothing of this is said.
#[test]
fn a_missing_guard_is_found() {
    let guard = [(
        "    if (!enter(ctx)) return false;\n",
        "    __syncthreads();\n",
    )];
    let place = Where::Simulated { seed: 0 };
    let failure = meet(place, MEETINGS[0], &guard).expect_err("no guard");
    assert!(failure.contains("not the overlap"), "{failure}");
}
