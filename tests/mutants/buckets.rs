//! Kernels of collectives with buckets.

use crate::Kernel;
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::buckets::in_buckets;
use mkernel_testing::jobs::named;

pub const KERNELS: &[Kernel<CollectiveJob>] = &[("protocols", protocols), ("broadcast", broadcast)];

fn protocols() -> CollectiveJob {
    named(in_buckets(2), "protocols of sums")
}

fn broadcast() -> CollectiveJob {
    named(in_buckets(2), "broadcast, buckets of other protocols")
}

// Words hold the mark of the call that wrote them, and waits compare marks for equality. So all ranks may number calls per bucket
// or over all buckets. Slots of Lamport packets have no mark: if a bucket does not count its calls, this shows only if a packet
// arrives before the packet of the previous call has been read.
