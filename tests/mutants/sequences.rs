//! Kernels of `ring_attention` with lengths at run time.

use crate::Kernel;
use mkernel::spec::Placement::{Contiguous, Zigzag};
use mkernel_testing::jobs::attention::cached_cases::with_cached_rows_across;
use mkernel_testing::jobs::attention::cases::with_rows_across;
use mkernel_testing::jobs::attention::{AttentionJob, InputKind};
use mkernel_testing::jobs::bad_network;

pub const KERNELS: &[Kernel<AttentionJob>] = &[
    ("ring", ring),
    ("one_way", one_way),
    ("after_many_calls", after_many_calls),
    ("nodes", nodes),
    ("many_readers", many_readers),
    ("packed", packed),
    ("cached", cached),
    ("cached_nodes", cached_nodes),
    ("packed_not_finite", packed_not_finite),
];

/// Heads take turns in one slot.
fn ring() -> AttentionJob {
    let job = AttentionJob::new(2, [1, 200, 3, 3, 64], 3).slots(1, 1);
    job.with_rows(&[200, 7, 200, 0, 130])
}

/// The first rank sends, but waits for the keys of no other rank.
fn one_way() -> AttentionJob {
    let job = AttentionJob::new(2, [1, 512, 1, 1, 64], 2).causal(Contiguous);
    job.with_rows(&[512, 512, 300, 512, 512, 512])
}

fn after_many_calls() -> AttentionJob {
    let mut job = AttentionJob::new(2, [1, 300, 1, 1, 64], 2).with_rows(&[1, 1, 1, 300, 300, 300]);
    job.call_count = Some(0x7fff_fffe);
    job
}

/// All keys, on two nodes of two ranks.
fn nodes() -> AttentionJob {
    let jobs = with_rows_across(2, 2, &bad_network());
    jobs[0].1.clone().forwarding_after(4)
}

/// Several tiles of queries of a rank read each head, and heads take turns in one slot.
fn many_readers() -> AttentionJob {
    let job = AttentionJob::new(2, [1, 512, 4, 2, 64], 3).slots(1, 1);
    job.with_rows(&[512, 130, 512])
}

/// Packed sequences that end inside tiles, on two ranks.
fn packed() -> AttentionJob {
    let job = AttentionJob::new(2, [4, 300, 2, 1, 64], 2).causal(Zigzag);
    job.with_sequences(&[&[100, 0, 170, 30], &[300], &[5, 6, 7, 280]])
}

/// Two batches with different numbers of cached rows on two ranks.
fn cached() -> AttentionJob {
    let job = AttentionJob::new(2, [2, 200, 2, 1, 64], 2).causal(Zigzag);
    job.cached(200).with_rows(&[200, 1, 150, 7])
}

/// Cached rows on two nodes of two ranks.
fn cached_nodes() -> AttentionJob {
    let (_, job) = with_cached_rows_across(2, 2, &bad_network()).swap_remove(0);
    job.forwarding_after(4)
}

/// The values of every other sequence are NaN.
fn packed_not_finite() -> AttentionJob {
    packed().inputs(InputKind::NotFinite)
}
