//! Mutations of kernels of collectives. A test plants one mistake at a time, and the simulator or the comparison of the
//! results must find it with some seed.

use mkernel::spec::CollectiveOp::{AllGather, AllReduce, Broadcast, ReduceScatter};
use mkernel::{network::Faults, spec::Protocol};
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::{CallCount, Mutation, WRAPPING_CALL_COUNTS, all_mutations_are_found};

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 40;

fn one_shot() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (7, 136), 2)
        .protocol(Protocol::Ll)
        .shots(1)
}

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

// Calls need two buffers only if ranks get no data from the ranks that they send to. An all-reduce of chunks or in two
// shots sends the results of a call only to ranks that have begun it, so it would be right with one buffer.
//
// There is no mutation with one buffer of packets, or with one set of flags, since these seeds do not find it. Packets and
// flags race with nothing. A rank would have to pause between its sends and its reads for as long as another rank takes for
// a launch.

/// A reduce-scatter of chunks on two ranks.
fn rows_of_sums() -> CollectiveJob {
    CollectiveJob::new(ReduceScatter, 2, (30, 1032), 1).protocol(Protocol::Simple)
}

fn rows() -> CollectiveJob {
    CollectiveJob::new(AllGather, 2, (30, 1032), 1).protocol(Protocol::Simple)
}

/// A broadcast whose chunks three ranks send on.
fn broadcast() -> CollectiveJob {
    let job = CollectiveJob::new(Broadcast, 4, (30, 1032), 2).protocol(Protocol::Simple);
    job.from(1)
}

/// The root sends packets, and waits for nobody.
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

fn symmetric_sums() -> CollectiveJob {
    chunks().symmetric()
}

fn nodes() -> CollectiveJob {
    CollectiveJob::new(AllReduce, 4, (30, 1032), 3).across(2, Faults::default())
}

/// Collectives whose calls have different numbers of rows.
fn rows_in_packets() -> CollectiveJob {
    let job = CollectiveJob::new(AllGather, 4, (9, 136), 2).protocol(Protocol::Ll);
    job.with_rows(&[9, 1, 4, 0, 9])
}

fn rows_in_chunks() -> CollectiveJob {
    let job = CollectiveJob::new(AllReduce, 2, (30, 1032), 1).protocol(Protocol::Simple);
    job.buckets(1).with_rows(&[30, 3, 30, 0, 17])
}

/// Rank 0 has all rows, and waits for nobody.
fn rows_of_one_rank() -> CollectiveJob {
    let mut job = CollectiveJob::new(AllGather, 4, (9, 136), 2).protocol(Protocol::Ll);
    job.machine.skew = 100;
    job.with_rows(&[1, 1, 1, 1, 1, 1])
}

fn rows_across_nodes() -> CollectiveJob {
    nodes().buckets(1).with_rows(&[30, 3, 30, 0, 17])
}

/// The same when the epoch passes 2^31: flags that no call has written for long are half of all epochs ago.
fn rows_after_many_calls() -> CollectiveJob {
    let [before_2_31, _] = WRAPPING_CALL_COUNTS;
    rows_in_chunks()
        .with_rows(&[1, 1, 1, 30, 30, 30])
        .with_call_count(before_2_31)
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation<CollectiveJob>] = &[
    ("the own part in place of another rank's", one_shot, &[("@ll.order", "source == ctx.rank => source == 0")]),
    ("only half of a vector awaited", one_shot, &[("@lamport.vec-arrived", "&& (inverted.z | inverted.w) != 0 => ")]),
    ("slots of parts not emptied", one_shot, &[("@ll.clear", "")]),
    ("slots of sums not emptied", two_shots, &[("@ll.clear", "")]),
    ("only half of a row's vector awaited", rows_in_packets, &[("@ll.vec-arrived", "&& high.has_arrived(ctx.mark()) => ")]),
    ("parts of the own shard sent to all", two_shots, &[("@ll.part", "Shards::first(ctx, owner) + i => Shards::first(ctx, ctx.rank) + i")]),
    ("no announcement of the call to ranks without a shard", one_row, &[("@begin.announce", "")]),
    ("a rank without a shard runs ahead", one_row, &[("@begin.wait", "wait(ctx => if (false) wait(ctx")]),
    ("a rank runs ahead of those without a shard", one_row_gathered, &[("@begin.wait", "wait(ctx => if (false) wait(ctx")]),
    ("a peer's part not awaited", chunks, &[("@reduce.wait", "wait_mark( => if (false) wait_mark(")]),
    ("a part counted before it is stored", chunks, &[("@reduce.fence", "")]),
    ("a part counted while other lanes store it", chunks, &[("@reduce.warp", "")]),
    ("one buffer of parts for all calls", rows_of_sums, &[("@reduce.slot", "ctx.parity() => 0u"), ("@reduce.from", "ctx.parity() => 0u")]),
    ("parts added in another order", numbers, &[("@reduce.order", "[source] => [Ranks::kLocalWorld - 1 - source]")]),
    ("a result not awaited", chunks, &[("@gather.wait", "wait_mark( => if (false) wait_mark(")]),
    ("a result counted before it is stored", chunks, &[("@gather.fence", "")]),
    ("a result counted while other lanes store it", chunks, &[("@gather.warp", "")]),
    ("one buffer of rows for all calls", rows, &[("@gather.slot", "ctx.parity() => 0u")]),
    ("a chunk of the root not awaited", broadcast, &[("@scatter.wait", "wait_mark( => if (false) wait_mark(")]),
    ("a chunk of the root counted before it is stored", broadcast, &[("@scatter.fence", "")]),
    ("a chunk of the root counted while other lanes store it", broadcast, &[("@scatter.warp", "")]),
    ("a chunk of the root in the place of another chunk", broadcast, &[("@scatter.slot", "slot(ctx, owner, chunk) => slot(ctx, owner, 0)")]),
    ("a chunk put before it is there", broadcast_across_nodes, &[("@gather.own-chunk", "wait_chunk( => if (false) wait_chunk(")]),
    ("the root runs ahead", broadcast_in_packets, &[("@begin.wait", "wait(ctx => if (false) wait(ctx")]),
    ("a result stored to before its rank has begun the call", symmetric_rows, &[("@begin.result-begun", ""), ("@begin.same-place", "place == ctx.result_place => true")]),
    ("a call that begins without the place of its result", symmetric_rows, &[("@begin.place", "")]),
    ("stores to the own result in place of a peer's", symmetric_sums, &[("@results-of-peers.store", "results[peer] => results[ctx.local_rank()]")]),
    ("rows in the own result not awaited", symmetric_rows, &[("@results-of-peers.wait", "Gathering::wait_chunk( => if (false) Gathering::wait_chunk(")]),
    ("sums in the own result not awaited", symmetric_sums, &[("@results-of-peers.wait", "Gathering::wait_chunk( => if (false) Gathering::wait_chunk(")]),
    ("rows in a peer's result counted before they are stored", symmetric_rows, &[("@gather.fence", "")]),
    ("rows in a peer's result counted while other lanes store them", symmetric_rows, &[("@gather.warp", "")]),
    ("sums put before they are computed", nodes, &[("@reduce.sum-ready", "wait_mark( => if (false) wait_mark(")]),
    ("a sum counted before it is stored", nodes, &[("@reduce.sum-fence", "")]),
    ("a node's sum not awaited", nodes, &[("@reduce.arrival", "")]),
    ("sums put to the slot of another node", nodes, &[("@reduce.number-there", "Network::own_number_at(ctx, peer) => peer + 1")]),
    ("sums of the previous call read", nodes, &[("@reduce.sums-in", "ctx.parity() => ctx.parity() ^ 1")]),
    ("results put before they are computed", nodes, &[("@gather.own-chunk", "wait_chunk( => if (false) wait_chunk(")]),
    ("results put from another slot", nodes, &[("@gather.put", "kChannel, from => kChannel, slot(ctx, ctx.rank ^ 1, 0)")]),
    ("results relayed before they have arrived", nodes, &[("@gather.arrival", "")]),
    ("results relayed without a flag", nodes, &[("@gather.relayed", "")]),
    ("the most rows in every call", rows_in_chunks, &[("@shards.vecs", "ctx.rows => Config::kMaxRows")]),
    ("shards of the most rows in every call", rows_in_packets, &[("@shards.rows", "ctx.rows => Config::kMaxRows")]),
    ("the word with the rows not read", rows_in_chunks, &[("@call.rows", "args.rows_address != nullptr => false")]),
    ("a rank runs ahead of those without rows", rows_of_one_rank, &[("@begin.wait", "wait(ctx => if (false) wait(ctx")]),
    ("old flags taken for new ones", rows_after_many_calls, &[("@gather.wait", "wait_mark => wait_flag")]),
    ("the start of a call not put to other nodes", rows_across_nodes, &[("@begin.put", "")]),
    ("puts awaited one too early", rows_across_nodes, &[("@gather.arrival", "Begin::kPuts + => 0 +")]),
];

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
