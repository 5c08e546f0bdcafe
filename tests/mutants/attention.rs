//! Kernels of `ring_attention`.

use crate::Kernel;
use mkernel::spec::Placement;
use mkernel_testing::jobs::attention::{AttentionJob, InputKind};

pub const KERNELS: &[Kernel<AttentionJob>] = &[
    ("ring", ring),
    ("one_way", one_way),
    ("not_finite_behind", not_finite_behind),
];

/// Three heads take turns in one slot.
fn ring() -> AttentionJob {
    AttentionJob::new(2, [1, 200, 3, 3, 64], 3).slots(1, 1)
}

/// The first rank sends, but waits for no other rank. So it can be a call ahead.
fn one_way() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2).causal(Placement::Contiguous)
}

/// The first row of the last chunk is not finite. It lies behind the first rank's first chunk.
fn not_finite_behind() -> AttentionJob {
    let job = AttentionJob::new(2, [1, 200, 1, 1, 64], 2).causal(Placement::Zigzag);
    job.inputs(InputKind::NotFiniteRow(150))
}
