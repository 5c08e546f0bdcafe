//! Mistakes planted in kernels of collectives, one at a time: some seed finds each.

use mkernel::CollectiveOp::{AllGather, AllReduce, ReduceScatter};
use mkernel::{Faults, Protocol};
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::{all_are_found, planted};

/// Seeds within which a mistake must be found.
const SEEDS: u64 = 40;

/// What it is, where, and what is replaced by what.
type Mistake = (
    &'static str,
    fn() -> CollectiveJob,
    &'static [(&'static str, &'static str)],
);

fn one_shot() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (7, 136), 2)
        .by(Protocol::Ll)
        .shots(1)
}

fn two_shots() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (7, 136), 2)
        .by(Protocol::Ll)
        .shots(2)
}

/// Three of four ranks have no shard.
fn one_row() -> CollectiveJob {
    CollectiveJob::new(ReduceScatter, 4, (1, 1032), 2).by(Protocol::Ll)
}

fn one_row_gathered() -> CollectiveJob {
    CollectiveJob::new(AllGather, 4, (1, 1032), 2).by(Protocol::Simple)
}

fn chunks() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (30, 1032), 2).by(Protocol::Simple)
}

fn numbers() -> CollectiveJob {
    chunks().fp32()
}

// Only where ranks get no data from those that they send to do calls need two buffers: an all-reduce of chunks or in two
// shots sends results of a call to ranks that have begun it. One buffer of packets is not found within these seeds: packets race with nothing, so
// a rank would have to stand still between what it sends and what it reads for as long as another takes for a launch.
fn rows_of_sums() -> CollectiveJob {
    CollectiveJob::new(ReduceScatter, 2, (30, 1032), 1).by(Protocol::Simple)
}

fn rows() -> CollectiveJob {
    CollectiveJob::new(AllGather, 2, (30, 1032), 1).by(Protocol::Simple)
}

fn nodes() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (30, 1032), 3).across(2, Faults::default())
}

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    ("the own part at another rank's place", one_shot, &[("@ll.order", "source == ctx.rank => source == 0")]),
    ("half of a vector awaited", one_shot, &[("@ll.vec-arrived", "&& high.has_arrived(ctx.epoch) => ")]),
    ("packets at the place of another shard", two_shots, &[("@ll.part", "vec - Shards::first(owner) => vec")]),
    ("ranks without a shard not told of the call", one_row, &[("@idle.announce", "")]),
    ("a rank without a shard runs ahead", one_row, &[("@idle.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a rank runs ahead of those without a shard", one_row_gathered, &[("@idle.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a peer's part not awaited", chunks, &[("@reduce.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a part counted before it is stored", chunks, &[("@reduce.fence", "")]),
    ("a part counted while other lanes store it", chunks, &[("@reduce.warp", "")]),
    ("one buffer of parts for all calls", rows_of_sums, &[("@reduce.slot", "ctx.parity() => 0u"), ("@reduce.from", "ctx.parity() => 0u")]),
    ("parts added in another order", numbers, &[("@reduce.order", "[source] => [Ranks::kLocalWorld - 1 - source]")]),
    ("a result not awaited", chunks, &[("@gather.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a result counted before it is stored", chunks, &[("@gather.fence", "")]),
    ("a result counted while other lanes store it", chunks, &[("@gather.warp", "")]),
    ("one buffer of rows for all calls", rows, &[("@gather.slot", "ctx.parity() => 0u")]),
    ("sums put before they are there", nodes, &[("@reduce.sum-ready", "wait_flag( => if (false) wait_flag(")]),
    ("a sum counted before it is stored", nodes, &[("@reduce.sum-fence", "")]),
    ("a node's sum not awaited", nodes, &[("@reduce.arrival", "")]),
    ("sums put to the place of another node", nodes, &[("@reduce.number-there", "Network::own_number_at(ctx, peer) => peer + 1")]),
    ("sums of the call before", nodes, &[("@reduce.sums-in", "ctx.parity() => ctx.parity() ^ 1")]),
    ("results put before they are there", nodes, &[("@gather.own-chunk", "wait_chunk( => if (false) wait_chunk(")]),
    ("results put from another place", nodes, &[("@gather.put", "kChannel, from => kChannel, slot(ctx, ctx.rank ^ 1, 0)")]),
    ("results relayed before they have come", nodes, &[("@gather.arrival", "")]),
    ("results relayed without a flag", nodes, &[("@gather.relayed", "")]),
];

#[test]
fn every_mistake_is_found() {
    let mistakes: Vec<_> = MISTAKES
        .iter()
        .map(|(name, job, edits)| (*name, planted(job(), edits)))
        .collect();
    all_are_found(&mistakes, SEEDS);
}
