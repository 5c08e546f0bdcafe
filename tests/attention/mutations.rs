//! Mutations of kernels of `ring_attention` whose calls give the length of the sequence.

use super::across;
use mkernel::spec::Placement::{Contiguous, Zigzag};
use mkernel_testing::jobs::attention::cached_cases::with_cached_rows_across;
use mkernel_testing::jobs::attention::{AttentionJob, InputKind};
use mkernel_testing::jobs::{Mutation, all_mutations_are_found, bad_network};

/// The number of seeds with which a mutation must be found.
const SEEDS_TO_FIND: u64 = 100;

/// Each of two ranks has several tiles of queries and several blocks of keys.
fn gathered() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2).with_rows(&[512, 3, 512, 0, 300, 512])
}

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

fn masked() -> AttentionJob {
    let job = AttentionJob::new(2, [2, 300, 2, 1, 64], 2)
        .causal(Zigzag)
        .bhsd();
    job.with_rows(&[300, 5, 150, 299])
}

fn after_many_calls() -> AttentionJob {
    let mut job = AttentionJob::new(2, [1, 300, 1, 1, 64], 2).with_rows(&[1, 1, 1, 300, 300, 300]);
    job.call_count = Some(0x7fff_fffe);
    job
}

/// All keys, on two nodes of two ranks.
fn nodes() -> AttentionJob {
    across(2, 2).swap_remove(0).1
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation<AttentionJob>] = &[
    ("the word with the rows not read", gathered, &[("@call.rows", "args.rows_address != nullptr => false")]),
    ("the most rows in every call", gathered, &[("@sequence.rows", "ctx.rows => Config::kMaxRows")]),
    ("chunks of the most rows in every call", gathered, &[("@sequence.chunk-rows", "sequence.rows => Config::kMaxRows")]),
    ("no tile for rows that do not fill it", gathered, &[("@sequence.tiles", "ceil_div(full_chunk_rows(sequence), Config::kTileRows) => full_chunk_rows(sequence) / Config::kTileRows")]),
    ("the rows of the previous call", gathered, &[("@call.rows", "args.rows_address != nullptr ? load(args.rows_address) : args.rows => static_cast<u32>(load_relaxed_sys(ctx.local_ptr(Workspace::begun((ctx.epoch + 1) % 2, 1 - args.rank))) >> 32)")]),
    ("operands of the most rows when the host knows them", masked, &[("@sequence.operand-rows", "args.rows_address != nullptr => true")]),
    ("operands of the rows of the call when the host does not know them", masked, &[("@sequence.operand-rows", "args.rows_address != nullptr => false")]),
    ("values behind the last row", gathered, &[("@tile-load.rows", "end - at.row => Config::kTileRows")]),
    ("a row too many is written", masked, &[("@attention-output.end", "tile.rank_chunk); => tile.rank_chunk) + 1;")]),
    ("keys of an older call taken for new ones", after_many_calls, &[("@kv-marks.wait", "wait_mark => wait_flag")]),
    ("the wait for keys does not acquire", gathered, &[RELAXED_WAIT, ("@kv-marks.wait", "wait_mark( => relaxed_wait(")]),
    ("a block marked behind its first part", gathered, &[("@kv-marks.parts", ", parts) => , 1)")]),
    ("no fence before a part is counted", gathered, &[("@kv-push.count-fence", "")]),
    ("no fence before the mark of a block", gathered, &[("@kv-marks.last-fence", "")]),
    ("a count of parts not reset", gathered, &[("@kv-marks.reset", "")]),
    ("keys sent to a rank that has not begun the call", one_way, &[("@kv-marks.begun", "")]),
    ("a rank does not say that it has begun", gathered, &[("@begin.announce", "")]),
    ("a slot taken before its readers are done", ring, &[("@kv-marks.turn", "wait_mark( => if (false) wait_mark(")]),
    ("the wait for readers does not acquire", ring, &[RELAXED_WAIT, ("@kv-marks.turn", "wait_mark( => relaxed_wait(")]),
    ("a slot released behind its first reader", many_readers, &[("@kv-marks.readers", ", readers) => , 1)")]),
    ("keys put before they are in place", nodes, &[("@kv-forward.own-mark", "")]),
    ("a put too many awaited", nodes, &[("@put.watch-arrivals", "return puts; => return puts + 1;")]),
    ("puts awaited one too early", nodes, &[("@kv-forward.arrival", "Begin::kPuts + => 0 +")]),
    ("the start of a call not put to other nodes", nodes, &[("@begin.put", "")]),
    ("keys behind a packed sequence", packed, &[("@attention-mainloop.keys", "block.keys => Config::kTileKeys")]),
    ("values of the next packed sequence", packed_not_finite, &[("@tile-load.rows", "end - at.row => Config::kTileRows")]),
    ("rows of the first packed sequence for all", packed, &[("@sequence.first-row", "sequence.first_row => 0")]),
    ("packed sequences in the same slot", packed, &[("@sequence.rank-tile", "sequence.first_tile + => ")]),
    ("the packed sequence before", packed, &[("@sequence-table.search", "<= row_tile => < row_tile")]),
    ("places in a table that begin anew after a warp", packed_many, &[("@sequence-table.total", "")]),
    ("a row of the next packed sequence is written", packed, &[("@attention-output.end", "tile.rank_chunk); => tile.rank_chunk) + 1;")]),
    ("a table that is built too late", packed, &[("@ring-attention.table", ""), ("@ring-attention.report", "if (blockIdx.x == 0 => if (threadIdx.x / kWarp == kTableWarp) Table::build(args, ctx, smem); if (blockIdx.x == 0")]),
    ("the cached rows of the first batch for all", cached, &[("@sequence-table.batch", "smem.cached_rows(batch, 0) => smem.cached_rows(0, 0)")]),
    ("the cached rows of the first rank for all", cached, &[("@cached-rows.at", "rank * Config::kBatch + => ")]),
    ("cached rows in place of those of the call", cached, &[("@sequence.key-row", "cached_rows(sequence, rank) + => ")]),
    ("cached rows that are hidden by the mask", cached, &[("@sequence.attends-cached", "return true => return false")]),
    ("cached rows that do not fill a tile are not sent", cached, &[("@sequence-table.key-tiles", "ceil_div(ctx.most_cached, Config::kTileKeys) => ctx.most_cached / Config::kTileKeys")]),
    ("values behind the last cached row", cached, &[("@tile-load.rows", "end - at.row => Config::kTileRows")]),
    ("cached rows that do not fill a put are not put", cached_nodes, &[("@kv-forward.cached-puts", "ceil_div(ctx.most_cached, kPutRows) => ctx.most_cached / kPutRows")]),
    ("a call whose last offset is not read", packed, &[("@offsets.end", "sequence + 1 => sequence")]),
];

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

/// More sequences than a warp has lanes.
fn packed_many() -> AttentionJob {
    let job = AttentionJob::new(2, [40, 80, 1, 1, 64], 2);
    job.with_sequences(&[&[2; 40], &[1; 40]])
}

/// An edit that defines a wait without acquire semantics.
const RELAXED_WAIT: (&str, &str) = (
    "#include <mk/deadline.cuh>",
    "#include <mk/deadline.cuh>\n#ifndef RELAXED_WAIT\n#define RELAXED_WAIT\nnamespace mk {\n\
     inline void relaxed_wait(const RankContext&, const u32* flag, const WaitSite& site) {\n\
     while (load_relaxed_sys(flag) != site.wanted) __nanosleep(32); }\n}\n#endif",
);

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS_TO_FIND);
}
