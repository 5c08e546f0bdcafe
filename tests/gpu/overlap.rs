//! Tests of calls that the host cannot order: the one that comes second is refused.

use crate::ranks::worlds;
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::overlap::{OVERLAPS, run_overlap};
use mkernel_testing::lab::TimeLimit;
use std::time::Duration;

/// The grids of both calls are small, so that both fit the GPU at the same time.
#[test]
#[ignore = "needs GPUs"]
fn calls_that_overlap_are_refused_and_named() {
    let _limit = TimeLimit::start("calls that overlap", Duration::from_secs(120));
    worlds(2);
    for overlap in OVERLAPS {
        assert_eq!(
            run_overlap(Backend::Gpus, overlap, &[]),
            Ok(()),
            "{overlap:?}"
        );
    }
}
