//! Mutations of GEMM kernels that take the rows of each call at run time. A test plants one mistake at a time, and the
//! simulator or the comparison of the results must find it with some seed.

use mkernel::network::Faults;
use mkernel_testing::jobs::gemm::cases::{with_rows, with_rows_across};
use mkernel_testing::jobs::{GemmJob, Mutation, all_mutations_are_found, named};

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 20;

// There is no mutation without the synchronisation of the warp before a buffer is released: this is done one store later, so
// that a lane would have to fall behind by a whole buffer. Nor is there one with chunks or tiles of the most rows in each call,
// which only take longer, or with all shards taken for full ones, which changes only the order of tiles.

fn gather() -> GemmJob {
    named(with_rows(2), "pushed by all")
}

/// Rank 0 has all rows, and waits for nobody.
fn rows_of_one_rank() -> GemmJob {
    let mut job = gather().with_rows(&[1; 6]);
    job.skew = 100;
    job
}

fn gather_on_four() -> GemmJob {
    named(with_rows(4), "ag_gemm, shared by three")
}

fn scatter() -> GemmJob {
    named(with_rows(2), "two shots")
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

fn packets() -> GemmJob {
    named(with_rows(2), "gemm_rs, packets,")
}

fn gather_across() -> GemmJob {
    named(with_rows_across(2, 1, &Faults::default()), "ag_gemm on")
}

fn scatter_across() -> GemmJob {
    named(with_rows_across(2, 1, &Faults::default()), "gemm_rs")
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation] = &[
    // Sizes of one call in another.
    ("shards of the most rows in each call", gather, &[("@rows.shard", "ctx.rows => Config::kMaxRows")]),
    ("tiles of the most rows in each call", shared, &[("@rows.all", "ctx.rows => Config::kMaxRows")]),
    ("unused chunks not counted", gather, &[("@push.unused", "")]),
    ("chunks counted that the call uses", gather, &[("@push.unused", "Shards::kArrivals => 2 * Shards::kArrivals")]),
    ("unused partial sums not counted", scatter, &[("@partials.unused", "")]),
    ("unused results not counted", results, &[("@results.unused", "")]),
    ("unused shared tiles not counted", shared, &[("@split-k.unused", "")]),
    ("unused puts not counted", scatter_across, &[("@node-sums.unused", "")]),
    ("slots shorter than the rows of a call", scatter_across, &[("@put-slots.parts", "Order::owner_rows(ctx) => Order::owner_rows(ctx) / 16 * 16")]),
    ("the rest of a short put not counted", scatter_across, &[("@node-sums.rest", "")]),
    // Rows of the caller beyond the rows of the call.
    ("rows beyond the call stored by TMA", shared, &[("@store.by-tma", "!TakesRows<Config> => true")]),
    ("rows beyond the call copied from results", results, &[("@results.rows", "to_row >= rows || => ")]),
    ("rows beyond the call sent as packets", packets, &[("@one-shot.sent-rows", "")]),
    // The copy of rows out of an output buffer.
    ("swizzle of copied rows not undone", shared, &[("@store.copied-swizzle", "(vec % 8 ^ line % 8) => vec % 8")]),
    // The order of tiles that straddle shards.
    ("own rows of straddling tiles not sent to the own rank", gather, &[("@push.own-rows", "? 0 : 1 => ? 1 : 1")]),
    ("a tile of the nearest ranks computed twice", gather_on_four, &[("@gathered.near", "begin + peers.remainder(remote) => begin")]),
    // Numbers that are usually the largest ones.
    ("a last round divided like the others", rounds_on_four, &[("@divisor.usual", "value == kUsual => true")]),
    ("a rank without rows taken for an owner", rounds_on_four, &[("@rows.all-ranks", "> (Ranks::kWorld - 1) * (Ranks::kWorld - 1) => > 0")]),
    ("one tile of each CTA where there are more", shared, &[("@scheduler.one-round", "<= kStride => > 0")]),
    // The start of a call.
    ("ranks run ahead of each other", rows_of_one_rank, &[("@begin.wait-in-warp", "wait(ctx => if (false) wait(ctx")]),
    ("the start of a call not put to other nodes", gather_across, &[("@begin.put", "")]),
];

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
