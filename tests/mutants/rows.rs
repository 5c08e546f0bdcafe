//! Kernels of products with rows at run time, in one bucket and in several.

use crate::Kernel;
use mkernel::network::Faults;
use mkernel_testing::jobs::gemm::buckets::{in_buckets, in_buckets_across};
use mkernel_testing::jobs::gemm::cases::{with_rows, with_rows_across};
use mkernel_testing::jobs::{GemmJob, named};

pub const KERNELS: &[Kernel<GemmJob>] = &[
    ("gather", gather),
    ("rows_of_one_rank", rows_of_one_rank),
    ("rounds_on_four", rounds_on_four),
    ("shared", shared),
    ("results", results),
    ("gather_across", gather_across),
    ("scatter_across", scatter_across),
    ("gather_in_buckets", gather_in_buckets),
    ("packets_in_buckets", packets_in_buckets),
    ("across_in_buckets", across_in_buckets),
];

fn gather() -> GemmJob {
    named(with_rows(2), "pushed by all")
}

/// Rank 0 has all rows and does not wait.
fn rows_of_one_rank() -> GemmJob {
    let mut job = gather().with_rows(&[1; 6]);
    job.skew = 100;
    job
}

/// With 300 rows, the last round of an owner has fewer tiles. With 5 rows, the last rank has none.
fn rounds_on_four() -> GemmJob {
    let named = named(with_rows(4), "gemm_rs, rounds");
    named.with_rows(&[300, 5, 300, 65, 5])
}

fn shared() -> GemmJob {
    named(with_rows(1), "shared tiles")
}

fn results() -> GemmJob {
    named(with_rows(2), "results,")
}

fn gather_across() -> GemmJob {
    named(with_rows_across(2, 1, &Faults::default()), "ag_gemm on")
}

fn scatter_across() -> GemmJob {
    named(with_rows_across(2, 1, &Faults::default()), "gemm_rs")
}

fn gather_in_buckets() -> GemmJob {
    named(in_buckets(2), "CTAs that push")
}

fn packets_in_buckets() -> GemmJob {
    named(in_buckets(2), "packets")
}

fn across_in_buckets() -> GemmJob {
    named(in_buckets_across(2, 1, &Faults::default()), "ag_gemm")
}
