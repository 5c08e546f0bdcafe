//! Kernels of `ring_attention`.

use crate::Kernel;
use mkernel::spec::Placement;
use mkernel_testing::jobs::attention::{AttentionJob, InputKind};

pub const KERNELS: &[Kernel<AttentionJob>] = &[
    ("gathered", gathered),
    ("ring", ring),
    ("many", many),
    ("one_way", one_way),
    ("masked", masked),
    ("not_finite_behind", not_finite_behind),
];

/// Each of two ranks has several tiles of queries and several blocks of keys.
fn gathered() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2)
}

/// Three heads take turns in one slot.
fn ring() -> AttentionJob {
    AttentionJob::new(2, [1, 200, 3, 3, 64], 3).slots(1, 1)
}

/// A CTA has more tiles than buffers, and there are more parts of keys than warps that push.
fn many() -> AttentionJob {
    AttentionJob::new(2, [1, 130, 6, 6, 64], 2)
}

/// The first rank sends, but waits for no other rank. So it can be a call ahead.
fn one_way() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2).causal(Placement::Contiguous)
}

/// Tiles of queries and blocks of keys end inside a tile.
fn masked() -> AttentionJob {
    AttentionJob::new(2, [1, 300, 2, 1, 64], 2).causal(Placement::Zigzag)
}

/// The first row of the last chunk is not finite. It lies behind the first rank's first chunk.
fn not_finite_behind() -> AttentionJob {
    let job = AttentionJob::new(2, [1, 200, 1, 1, 64], 2).causal(Placement::Zigzag);
    job.inputs(InputKind::NotFiniteRow(150))
}
