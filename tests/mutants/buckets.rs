//! Kernels of collectives with buckets.

use crate::Kernel;
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::buckets::in_buckets;
use mkernel_testing::jobs::named;

pub const KERNELS: &[Kernel<CollectiveJob>] = &[
    ("sums", sums),
    ("rows", rows),
    ("protocols", protocols),
    ("broadcast", broadcast),
    ("results", results),
    ("more_sources", more_sources),
];

fn sums() -> CollectiveJob {
    named(in_buckets(2), "protocols,")
}

fn rows() -> CollectiveJob {
    named(in_buckets(2), "protocols of rows")
}

fn protocols() -> CollectiveJob {
    named(in_buckets(2), "protocols of sums")
}

/// One bucket stores to the results of other ranks, and another one sends packets.
fn results() -> CollectiveJob {
    named(in_buckets(2), "protocols and results")
}

fn broadcast() -> CollectiveJob {
    named(in_buckets(2), "broadcast, buckets of other protocols")
}

/// More than two ranks: on two ranks, data beyond the slots of one source would lie in the other source's unused slots.
fn more_sources() -> CollectiveJob {
    named(in_buckets(4), "protocols of sums")
}

// Words hold the mark of the call that wrote them, and waits compare marks for equality. So the calls of a bucket may be numbered
// by themselves or among all calls, as long as calls are counted and all ranks number alike. Slots of Lamport packets have no
// mark. If the calls of their bucket are not counted, a mistake shows only if a packet arrives before the packet of the previous
// call has been read.
