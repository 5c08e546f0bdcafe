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

// Words hold the mark of the call that wrote them, and waits compare marks for equality. So the calls of a bucket may be numbered
// by themselves or among all calls, as long as calls are counted and all ranks number alike. Slots of Lamport packets have no
// mark. If the calls of their bucket are not counted, a mistake shows only if a packet arrives before the packet of the previous
// call has been read.
