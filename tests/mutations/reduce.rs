//! Mutations of the operators that reduce: `gemm_rs` and `gemm_ar`.

use crate::{Kernel, RELAXED_WAIT, job};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::Mutation;
use mkernel_testing::jobs::{GemmJob, SimulatedJob, mutated};

pub const KERNELS: &[Kernel] = &[
    ("scatter", scatter),
    ("ragged", ragged),
    ("shared_tiles", shared_tiles),
    ("to_all", to_all),
    ("to_c_of_all", to_c_of_all),
    ("one_shot", one_shot),
    ("relay", relay),
];

fn reduce(op: GemmOp, world: u32, (m, n, k): (u64, u64, u64), tuning: Tuning) -> GemmJob {
    let kernel = (op, Epilogue::default(), tuning);
    job(kernel, world, GemmShape { m, n, k }, BLayout::Nk, 3)
}

/// Options for two shots with one tile of each owner per round. There are only two stages, so that they are soon used
/// again.
fn rounds() -> Tuning {
    Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        shots: Some(2),
        round_tiles: Some(1),
        stages: Some(2),
        ..Tuning::default()
    }
}

/// Each rank owns rows in whole tiles.
fn scatter() -> GemmJob {
    reduce(GemmOp::GemmRs, 2, (128, 384, 192), rounds())
}

/// Each rank owns 25 rows.
fn ragged() -> GemmJob {
    reduce(GemmOp::GemmRs, 4, (100, 264, 128), rounds())
}

/// Three CTAs share each tile, and one CTA completes the tile.
fn shared_tiles() -> GemmJob {
    let tuning = Tuning {
        split_k: Some(3),
        ..rounds()
    };
    let kernel = (GemmOp::GemmRs, Epilogue::default(), tuning);
    let shape = GemmShape {
        m: 40,
        n: 72,
        k: 192,
    };
    job(kernel, 2, shape, BLayout::Nk, 6)
}

/// Owners send their results to all ranks.
fn to_all() -> GemmJob {
    reduce(GemmOp::GemmAr, 2, (128, 384, 192), rounds())
}

/// Owners store their results to C of all ranks, which is in symmetric memory.
fn to_c_of_all() -> GemmJob {
    to_all().symmetric()
}

/// Ranks exchange partial sums as Lamport packets, from registers to registers.
fn one_shot() -> GemmJob {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmRs, 2, (40, 264, 128), tuning)
}

/// Ranks exchange partial sums as Lamport packets, and owners send the sums to all ranks.
fn relay() -> GemmJob {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmAr, 8, (64, 1536, 64), tuning)
}

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation] = &[
    // Partial sums between ranks.
    // With two shots, the next call starts soon enough to read the number of the call before it changes.
    ("wait for the call before in one warp only", scatter, &[("@call.wait", "  if (threadIdx.x / kWarp == 1) wait_for_grids_before();")]),
    ("partial sums of the first call awaited", scatter, &[("@partials.wanted", "ctx.epoch * => 1 *")]),
    ("one sub-tile of partial sums not awaited", scatter, &[("@partials.wanted", "}); => - 1});")]),
    ("flag of partial sums not acquired", scatter, &[RELAXED_WAIT, ("@partials.wait", "wait_flag( => relaxed_wait(")]),
    ("flag of another tile awaited", scatter, &[("@partials.wait", "tile.index => tile.index ^ 1")]),
    ("partial sums counted before they arrive", scatter, &[("@partials.stored", "")]),
    ("partial sums counted when they are read, not when they are written", scatter, &[("@partials.stored", "tma_wait< => tma_wait_read<")]),
    ("no fence before partial sums are counted", scatter, &[("@partials.signal-fence", "")]),
    ("the same slots in every call", scatter, &[("@partials.read-slot", "ctx.parity() => 0u"), ("@partials.sent-slot", "ctx.parity() => 0u")]),
    ("slots of sources overlap", ragged, &[("@partials.read-slot", "source, tile => 0u, tile"), ("@partials.sent-slot", "ctx.local_rank(), tile => 0u, tile")]),
    // Partial sums in shared memory.
    ("too few bytes of partial sums announced", scatter, &[("@partials.expected", "kGroups * kBytes => kBytes")]),
    ("no wait for partial sums", scatter, &[("@partials.consumer-wait", "")]),
    ("stage of partial sums not released", scatter, &[("@partials.release", "        stages.advance();")]),
    ("stage of partial sums released by a warp that still reads", scatter, &[("@partials.read-by-warp", "")]),
    ("partial sums of the other warpgroup", scatter, &[("@partials.staged", "group => 1 - group")]),
    ("fragments written in another order", scatter, &[("@partials.fragment", "(fragment) => (fragment ^ 1)")]),
    ("halves of a word swapped", scatter, &[("@accumulator.add-packed", "d[0] += E::low(v.x), d[1] += E::high(v.x) => d[0] += E::high(v.x), d[1] += E::low(v.x)")]),
    ("partial sums not added", scatter, &[("@reduce-scatter.add", "")]),
    // Owners and rows.
    ("rows of the first owner for all", scatter, &[("@order.row-in-a", "rank_of(tile) * Rows::of_shard(ctx) + => ")]),
    ("owners wait for each other", scatter, &[("@order.first-round", "own + 1 + => own +")]),
    ("rows of the last warp not sent", ragged, &[("@partials.ragged-bytes", "comm::bytes_of_rows(rows) => comm::bytes_of_rows(rows / 16 * 16)")]),
    // Tiles that CTAs share.
    ("partial sums counted by CTAs that complete none", shared_tiles, &[("@scheduler.completes-any", "work.split < kCompleters => true")]),
    ("partial sums sent before those of the other CTAs are added", shared_tiles, &[("@split-k.wait", "")]),
    // Results.
    ("results not awaited", to_all, &[("@results.wait", "wait_flag( => if (false) wait_flag(")]),
    ("flag of results not acquired", to_all, &[RELAXED_WAIT, ("@results.wait", "wait_flag( => relaxed_wait(")]),
    ("warp not synchronised after the flag of results", to_all, &[("@results.warp", "")]),
    ("results counted before they arrive", to_all, &[("@partials.stored", "")]),
    ("swizzle of results not undone", to_all, &[("@results.swizzle", "(first % 8 ^ line % 8) => first % 8")]),
    ("results of one warpgroup taken twice", to_all, &[("@results.read-slot", "group, piece => 0u, piece")]),
    // Results in C of peers. An owner stores a tile when all ranks have sent their partial sums of the tile, so all ranks have
    // begun the call.
    ("tiles in C not awaited", to_c_of_all, &[("@results.wait", "wait_flag( => if (false) wait_flag(")]),
    ("tiles in C counted before they arrive", to_c_of_all, &[("@partials.stored", "")]),
    ("no fence before tiles in C are counted", to_c_of_all, &[("@partials.signal-fence", "")]),
    ("tiles stored to the own C in place of a peer's", to_c_of_all, &[("@peer-results.store", "peer_at(ctx, i) => ctx.local_rank()")]),
    ("tiles not stored to C of peers", to_c_of_all, &[("@reduce-scatter.may-store", "")]),
    ("the place of C compared before it has come", to_c_of_all, &[("@begin.result-begun", "")]),
    // LL packets.
    ("packets not awaited", one_shot, &[("@one-shot.arrived", "")]),
    ("only the first packet of a source awaited", one_shot, &[("@one-shot.arrived", "!packets[source][p] => !packets[source][0]")]),
    ("slots of packets not cleared", one_shot, &[("@one-shot.clear", "")]),
    ("slots of packets of different sources overlap", one_shot, &[("@one-shot.slot", "source, tile => 0u, tile")]),
    ("own part sent to the slot of another rank", one_shot, &[("@one-shot.sent-slot", "owner_of(row) => 1 - ctx.rank")]),
    ("packets stored beyond the columns of C", one_shot, &[("@epilogue.stored-columns", "")]),
    ("relayed sums not awaited", relay, &[("@one-shot.sum-arrived", "!sums[p].has_arrived() => false")]),
    ("slots of relayed sums not cleared", relay, &[("@one-shot.sum-clear", "")]),
];

/// A finding of the simulator names the element of a region that it is about, and quotes the line of the header.
#[test]
fn findings_name_regions_and_quote_headers() {
    let job = mutated(scatter(), &[("@partials.stored", "")]);
    let mut failures = (0..crate::SEEDS_TO_FIND).filter_map(|seed| job.run(seed).err());
    let parts = [
        "race: partials[",
        "] on GPU ",
        "mk/comm/partials.cuh:",
        "tma_load_bytes(",
    ];
    let has_all = |failure: String| parts.iter().all(|part| failure.contains(part));
    assert!(failures.any(has_all), "{parts:?} in no finding");
}
