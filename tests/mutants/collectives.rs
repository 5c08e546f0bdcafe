//! Kernels of collectives.

use crate::Kernel;
use mkernel::spec::CollectiveOp::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
use mkernel::{network::Faults, spec::Protocol};
use mkernel_testing::jobs::collective::CollectiveJob;

pub const KERNELS: &[Kernel<CollectiveJob>] = &[
    ("one_row", one_row),
    ("one_row_gathered", one_row_gathered),
    ("chunks", chunks),
    ("numbers", numbers),
    ("rows_of_sums", rows_of_sums),
    ("rows", rows),
    ("broadcast", broadcast),
    ("broadcast_in_packets", broadcast_in_packets),
    ("broadcast_across_nodes", broadcast_across_nodes),
    ("symmetric_rows", symmetric_rows),
    ("symmetric_packets", symmetric_packets),
    ("nodes", nodes),
    ("rows_of_one_rank", rows_of_one_rank),
    ("rows_across_nodes", rows_across_nodes),
    ("packets_in_place", packets_in_place),
    ("exchange_in_packets", exchange_in_packets),
    ("exchange", exchange),
    ("exchange_of_rows_in_packets", exchange_of_rows_in_packets),
    ("symmetric_exchange", symmetric_exchange),
    ("exchange_across_nodes", exchange_across_nodes),
];

fn two_shots() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (7, 136), 2)
        .protocol(Protocol::Ll)
        .shots(2)
}

/// A reduce-scatter in which three of four ranks have no shard.
fn one_row() -> CollectiveJob {
    CollectiveJob::new(ReduceScatter, 4, (1, 1032), 2).protocol(Protocol::Ll)
}

fn one_row_gathered() -> CollectiveJob {
    CollectiveJob::new(AllGather, 4, (1, 1032), 2).protocol(Protocol::Simple)
}

fn chunks() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (30, 1032), 2).protocol(Protocol::Simple)
}

fn numbers() -> CollectiveJob {
    chunks().fp32()
}

// Calls need two buffers only if ranks get no data from the ranks to which they send. An all-reduce of chunks or in two
// shots sends results only to ranks that have begun the call, so one buffer would suffice.
//
/// A reduce-scatter of chunks on two ranks.
fn rows_of_sums() -> CollectiveJob {
    CollectiveJob::new(ReduceScatter, 2, (30, 1032), 1).protocol(Protocol::Simple)
}

fn rows() -> CollectiveJob {
    CollectiveJob::new(AllGather, 2, (30, 1032), 1).protocol(Protocol::Simple)
}

/// A broadcast whose chunks three ranks forward.
fn broadcast() -> CollectiveJob {
    let job = CollectiveJob::new(Broadcast, 4, (30, 1032), 2).protocol(Protocol::Simple);
    job.from(1)
}

/// The root sends packets and does not wait.
fn broadcast_in_packets() -> CollectiveJob {
    let mut job = CollectiveJob::new(Broadcast, 4, (9, 136), 2).protocol(Protocol::Ll);
    job.machine.skew = 100;
    job.with_rows(&[1, 1, 1, 1, 1, 1])
}

fn broadcast_across_nodes() -> CollectiveJob {
    let job = CollectiveJob::new(Broadcast, 4, (30, 1032), 3).across(2, Faults::default());
    job.from(2)
}

/// Collectives whose results are in symmetric memory.
fn symmetric_rows() -> CollectiveJob {
    let mut job = CollectiveJob::new(AllGather, 4, (30, 1032), 2).protocol(Protocol::Simple);
    job.machine.skew = 100;
    job.symmetric()
}

/// The places of results are compared at the end.
fn symmetric_packets() -> CollectiveJob {
    two_shots().symmetric()
}

fn nodes() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (30, 1032), 3).across(2, Faults::default())
}

/// Rank 0 has all rows and does not wait.
fn rows_of_one_rank() -> CollectiveJob {
    let mut job = CollectiveJob::new(AllGather, 4, (9, 136), 2).protocol(Protocol::Ll);
    job.machine.skew = 100;
    job.with_rows(&[1, 1, 1, 1, 1, 1])
}

fn rows_across_nodes() -> CollectiveJob {
    nodes().buckets(1).with_rows(&[30, 3, 30, 0, 17])
}

fn packets_in_place() -> CollectiveJob {
    let job = CollectiveJob::new(AllReduce, 4, (3, 136), 2).in_place();
    job.protocol(Protocol::Ll).shots(2)
}

fn exchange_in_packets() -> CollectiveJob {
    CollectiveJob::new(AllToAll, 4, (7, 136), 2).protocol(Protocol::Ll)
}

fn exchange() -> CollectiveJob {
    CollectiveJob::new(AllToAll, 2, (30, 1032), 1).protocol(Protocol::Simple)
}

fn exchange_of_rows_in_packets() -> CollectiveJob {
    let job = CollectiveJob::new(AllToAll, 4, (9, 136), 2).protocol(Protocol::Ll);
    job.with_rows(&[9, 1, 4, 0, 9])
}

fn symmetric_exchange() -> CollectiveJob {
    let mut job = CollectiveJob::new(AllToAll, 4, (30, 1032), 2).protocol(Protocol::Simple);
    job.machine.skew = 100;
    job.symmetric()
}

fn exchange_across_nodes() -> CollectiveJob {
    let job = CollectiveJob::new(AllToAll, 4, (30, 1032), 3).across(2, Faults::default());
    job.buckets(1).with_rows(&[30, 3, 30, 0, 17])
}
