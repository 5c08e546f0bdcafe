//! Mutations of `ag_gemm`, and of the main loop that all GEMM operators share.

use crate::{Kernel, RELAXED_WAIT, job};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Transfer, Tuning};
use mkernel_testing::jobs::GemmJob;
use mkernel_testing::jobs::Mutation;

pub const KERNELS: &[Kernel] = &[
    ("push", push),
    ("slots", slots),
    ("long_rows", long_rows),
    ("split_k", split_k),
    ("split_k_of_few_rows", split_k_of_few_rows),
    ("kn", kn),
    ("tails", tails),
    ("few_rows", few_rows),
];

fn gather(
    world: u32,
    (m, n, k): (u64, u64, u64),
    layout: BLayout,
    tuning: Tuning,
    sms: u32,
) -> GemmJob {
    let kernel = (GemmOp::AgGemm, Epilogue::default(), tuning);
    job(kernel, world, GemmShape { m, n, k }, layout, sms)
}

fn by_sms(comm_ctas: u32) -> Tuning {
    Tuning {
        transfer: Some(Transfer::SmPush),
        comm_ctas: Some(comm_ctas),
        ..Tuning::default()
    }
}

/// Options for a large tile. One warp of each CTA pushes.
fn large() -> Tuning {
    Tuning {
        tile_m: Some(128),
        tile_n: Some(256),
        ..by_sms(0)
    }
}

/// One warp of each CTA pushes. Each CTA computes several tiles, so that it uses its pipeline stages again.
fn push() -> GemmJob {
    let tuning = Tuning {
        k_slices: Some(2),
        ..large()
    };
    gather(2, (256, 512, 512), BLayout::Nk, tuning, 2)
}

/// A communication CTA pushes through slots of shared memory.
fn slots() -> GemmJob {
    gather(2, (256, 128, 1024), BLayout::Nk, by_sms(1), 3)
}

/// Rows are longer than a slot of shared memory.
fn long_rows() -> GemmJob {
    let tuning = Tuning {
        k_slices: Some(1),
        ..by_sms(1)
    };
    gather(2, (16, 8, 10240), BLayout::Nk, tuning, 2)
}

/// Several CTAs share a tile, each with a slice of K.
fn split_k() -> GemmJob {
    gather(2, (512, 512, 512), BLayout::Nk, large(), 6)
}

/// More CTAs share a tile than a warpgroup has sub-tiles, so that one CTA completes the tile. C has rows of three warps.
fn split_k_of_few_rows() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        split_k: Some(7),
        cluster: Some(false),
        ..Tuning::default()
    };
    gather(1, (40, 72, 512), BLayout::Nk, tuning, 7)
}

/// B has the layout [K, N].
fn kn() -> GemmJob {
    gather(2, (256, 264, 256), BLayout::Kn, large(), 3)
}

/// Tiles straddle shards, and every dimension ends inside a tile.
fn tails() -> GemmJob {
    gather(4, (300, 72, 136), BLayout::Nk, by_sms(0), 3)
}

/// C has fewer rows than a tile, so that stages are one piece. K has more steps than there are stages.
fn few_rows() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..by_sms(0)
    };
    gather(2, (24, 136, 1024), BLayout::Nk, tuning, 2)
}

/// A warp releases its stage before its product is done, and waits for the product afterwards.
const RELEASED_EARLY: &[(&str, &str)] = &[
    (
        "@mainloop.product",
        "      if (lane_index() == 0) barrier_arrive(stages.barriers.empty(stages.stage()));",
    ),
    (
        "@mainloop.release",
        "      mma_wait<0>();\n      stages.advance();",
    ),
];

/// The text that signals a piece before it stores the piece.
const COUNTED_FIRST: &str = "        if (const u32 to = lane_index(); to < Ranks::kWorld && to != ctx.rank) {
          fence_sys();
          add_relaxed_sys(ctx.peer_ptr(to, Workspace::chunk_ready(ctx.rank, piece.chunk, piece.slice)), 1);
        }
        store_piece<kUnroll>(args, ctx, piece, min(Config::kPieceRows, own_rows - piece.row));";

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation] = &[
    // The pipeline of stages.
    ("too few bytes announced", push, &[("@mainloop.expected", " + Shape::kStageBytesB => ")]),
    ("too many bytes announced", push, &[("@mainloop.expected", "+ Shape::kStageBytesB => + 2 * Shape::kStageBytesB")]),
    ("wrong phase of a free stage", push, &[("@pipeline.acquire", "state.phase ^ 1 => state.phase")]),
    ("no wait for a free stage", push, &[("@pipeline.acquire", "")]),
    ("no wait for a full stage", push, &[("@mainloop.consumer-wait", "")]),
    ("stage released before the product is done", push, RELEASED_EARLY),
    ("stage released by seven warps", push, &[("@mainloop.barriers", "kGroups * kWarpgroupWarps => 7")]),
    ("stage released by nine warps", push, &[("@mainloop.barriers", "kGroups * kWarpgroupWarps => 9")]),
    ("pipeline advanced by one role only", push, &[("@mainloop.advance", "")]),
    ("no fence between the initialisation of barriers and TMA", push, &[("@smem.fence", "")]),
    ("no barrier of the CTA after initialising", push, &[("@all-gather.enter", "")]),
    // Calls that start while the call before them still runs.
    ("no wait for the call before", push, &[("@call.wait", "")]),
    ("too few bytes of the first B announced", push, &[("@mainloop.first-expected", "Shape::kStageBytesB => Shape::kStageBytesB / 2")]),
    ("bytes of the first A announced twice", push, &[("@mainloop.first-expected-a", "load_rows_a => 2 * load_rows_a")]),
    ("B of the last stage left out while rows are awaited", few_rows, &[("@mainloop.other-b", "stages); => stages - 1);")]),
    ("B loaded again after rows were awaited", few_rows, &[("@gemm.other-b", "with_b = => (void)")]),
    ("B over the last rows of A", few_rows, &[("@stage-memory.b", "Config::kStageRowsA => (Config::kStageRowsA - 8)")]),
    ("every tile taken for the first", push, &[("@gemm.first-tile", "index == Scheduler::first() => true")]),
    // Matrix products.
    ("product awaited one group late", push, &[("@mainloop.product", "<0> => <1>")]),
    ("no fence of the registers", push, &[("@mainloop.fence", "")]),
    ("products never committed", push, &[("@mainloop.commit", "")]),
    ("descriptor of A does not advance", push, &[("@mainloop.step-a", "a + i * kDescriptorStep<ElementA, false> => a")]),
    ("descriptor of B advances as if of the other major", push, &[("@mainloop.step-b", "Config::kBMnMajor => !Config::kBMnMajor")]),
    ("swapped halves of A", push, &[("@mainloop.descriptor-a", "+ group * => + (1 - group) *")]),
    ("sums not started at zero", push, &[("@mainloop.accumulate", "step != k_begin || i != 0 => true")]),
    ("wrong leading offset of a descriptor", kn, &[("@mainloop.descriptor-b", "kGroupOffsetB); => kGroupOffsetB) ^ (u64{(8192 ^ 4096) >> 4} << 16);")]),
    ("wrong stride offset of a descriptor", kn, &[("@mainloop.descriptor-b", "kGroupOffsetB); => kGroupOffsetB) ^ (u64{(1024 ^ 512) >> 4} << 32);")]),
    ("descriptor without its swizzle", push, &[("@mainloop.descriptor-a", "kGroupOffsetA); => kGroupOffsetA) ^ 3ull << 62;")]),
    ("parts of B swapped", kn, &[("@mainloop.box", "box * Shape::kBoxCols => (box ^ 1) * Shape::kBoxCols")]),
    // The output buffers.
    ("output seen by three warps", push, &[("@store.barriers", "kWarpgroupWarps => 3")]),
    ("no proxy fence before the output is stored", push, &[("@store.proxy-fence", "")]),
    ("warp not synchronised before the output is stored", push, &[("@pipeline.warp-commit", "")]),
    ("no wait for a free output buffer", push, &[("@gemm.output-acquire", "")]),
    ("no wait for a full output buffer", push, &[("@gemm.output-wait", "")]),
    ("output buffer freed while it is read", push, &[("@store.other-read", "<1> => <2>")]),
    ("wrong output buffer freed", push, &[("@store.release-other", "out.stage() ^ 1 => out.stage()")]),
    ("output not swizzled", push, &[("@fragment.swizzle", "^ (row % 8)) => )")]),
    ("kernel left before its stores are done", push, &[("@gemm.stored", "")]),
    ("wait for reads where writes are meant", push, &[("@gemm.stored", "tma_wait< => tma_wait_read<")]),
    // Rows of peers.
    ("rows not awaited", push, &[("@gathered.wait-rows", "")]),
    ("only the first slice of K awaited", push, &[("@gathered.each-slice", " || step % kSliceSteps == 0 => ")]),
    ("no proxy fence after the flag", push, &[("@gathered.proxy-fence", "")]),
    ("flag not acquired", push, &[RELAXED_WAIT, ("@shards.wait", "wait_flag( => relaxed_wait(")]),
    ("flag of another source awaited", push, &[("@shards.wait", "(source, => ((source + 1) % Ranks::kWorld,")]),
    ("flag of the first call awaited", push, &[("@shards.wanted", "ctx.epoch * kArrivals => kArrivals")]),
    ("epoch not advanced", push, &[("@call.advance", "")]),
    ("warp not synchronised before the flag", push, &[("@push.warp", "")]),
    ("no fence before the flag", push, &[("@push.fence", "")]),
    ("fence of GPU scope in place of system scope", push, &[("@push.fence", "        mk_calls->fence(mk::sim::kFenceThread, mk::sim::kGpu, mk::sim::place());")]),
    ("flag stored before the data", push, &[("@push.piece", COUNTED_FIRST), ("@push.fence", ""), ("@push.count", "")]),
    ("pushed to the same buffer in every call", push, &[("@push.slot", "ctx.parity() => 0u")]),
    ("loaded from the same buffer in every call", push, &[("@gathered.load", "ctx.parity() => 0u")]),
    ("readers not counted with release and acquire", push, &[("fetch_add_acq_rel_gpu(&state->readers, 1)", "sim::rmw(&state->readers, 1u, sim::kAdd, sim::kRelaxed, sim::kGpu)")]),
    ("tiles shifted by one", push, &[("@gathered.tile", "coord.col => (coord.col + 1) % (Config::kColTiles + 1)")]),
    ("tail of the shard not masked", tails, &[("@push.piece", "min(Config::kPieceRows, own_rows - piece.row) => Config::kPieceRows")]),
    ("row tiles start at the wrong shard", tails, &[("@gathered.straddling", "      return min(position + 1, Config::kRowTiles - 1);")]),
    // Slots of shared memory.
    ("slot written while it is stored", long_rows, &[("@copy.slot-read", "")]),
    ("flag stored when the slot is read, not when the copy is written", slots, &[("@copy.stored", "tma_wait< => tma_wait_read<")]),
    ("bytes of only one row announced", slots, &[("@copy.rows", "staged.total_bytes() => staged.bytes")]),
    ("phase of the slot not advanced", slots, &[("@copy.phase", "")]),
    ("slot not awaited", slots, &[("@copy.wait", "")]),
    ("no fence before the counts", slots, &[("@push.staged-fence", "")]),
    ("wrong slot", slots, &[("@copy.slot", "smem.copy_slot(warp) => smem.copy_slot(warp / 2)")]),
    // Split-K: tiles that several CTAs share.
    ("warp not synchronised before its partial sum is counted", split_k, &[("@split-k.stored-by-warp", "")]),
    ("warp not synchronised after the partial sums are counted", split_k, &[("@split-k.warp-waited", "")]),
    ("partial sums not awaited", split_k, &[("@split-k.wait", "")]),
    ("own partial sum added again", split_k, &[("@split-k.other", "(work.split + first + i) % kSplits => work.split")]),
    ("warps share a flag", split_k, &[("@split-k.flag", ", warp) => , 0u)")]),
    ("partial sum counted without release", split_k, &[("@split-k.count", "      sim::rmw(ready, 1u, sim::kAdd, sim::kRelaxed, sim::kGpu);")]),
    ("partial sums of few rows not awaited", split_k_of_few_rows, &[("@split-k.wait", "")]),
    ("awaited partial sums not acquired", split_k_of_few_rows, &[RELAXED_WAIT, ("@split-k.wait", "wait_flag( => relaxed_wait(")]),
    ("partial sum of the last CTA left out", split_k_of_few_rows, &[("@split-k.added", "kSplits => kSplits - 1")]),
    ("partial sum of a CTA added twice", split_k_of_few_rows, &[("@split-k.other", "first + i) % => first) %")]),
    ("rows of the last warp not exchanged", split_k_of_few_rows, &[("@split-k.rows", "warp, ctx => warp + 1, ctx")]),
    ("two CTAs complete a tile", split_k_of_few_rows, &[("@scheduler.completes", "== sub / kShare => <= 1")]),
];
