//! Mistakes in `ag_gemm`, and in the GEMM core that all operators share.

use crate::simulated::Job;
use crate::{Kernel, Mutation, OLD_RELAXED_WAIT, job, mutation};
use mkernel::{BLayout, Epilogue, GemmOp, GemmShape, Transfer, Tuning};

pub const KERNELS: &[Kernel] = &[
    ("push", push),
    ("slots", slots),
    ("long_rows", long_rows),
    ("parts", parts),
    ("kn", kn),
    ("tails", tails),
];

fn gather(
    world: u32,
    (m, n, k): (u64, u64, u64),
    layout: BLayout,
    tuning: Tuning,
    sms: u32,
) -> Job {
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

/// A large tile, and a warp of each CTA that pushes.
fn large() -> Tuning {
    Tuning {
        tile_m: Some(128),
        tile_n: Some(256),
        ..by_sms(0)
    }
}

/// A warp of each CTA pushes; several rounds of tiles through a ring that is reused.
fn push() -> Job {
    let tuning = Tuning {
        k_slices: Some(2),
        ..large()
    };
    gather(2, (256, 512, 512), BLayout::Nk, tuning, 2)
}

/// A communication CTA pushes through slots of shared memory.
fn slots() -> Job {
    gather(2, (256, 128, 1024), BLayout::Nk, by_sms(1), 3)
}

/// Rows longer than a slot.
fn long_rows() -> Job {
    let tuning = Tuning {
        k_slices: Some(1),
        ..by_sms(1)
    };
    gather(2, (16, 8, 10240), BLayout::Nk, tuning, 2)
}

/// Tiles whose sum CTAs share.
fn parts() -> Job {
    gather(2, (512, 512, 512), BLayout::Nk, large(), 6)
}

/// B as [K, N].
fn kn() -> Job {
    gather(2, (256, 264, 256), BLayout::Kn, large(), 3)
}

/// Tiles straddle shards, every dimension has a tail.
fn tails() -> Job {
    gather(4, (300, 72, 136), BLayout::Nk, by_sms(0), 3)
}

const WAIT_FREE: &str = "      mk::wait_barrier(watch, smem.stage_free(ring.stage), ring.parity ^ 1, mk::kLoad, mk::kStageFree, ring.stage);\n";
const WAIT_FULL: &str = "      mk::wait_barrier(watch, smem.stage_full(ring.stage), ring.parity, mk::kMath, mk::kStageFull, ring.stage);\n";
const WAIT_OUT_FREE: &str = "      mk::wait_barrier(watch, smem.out_free(group, out.stage), out.parity ^ 1, mk::kMath, mk::kOutputFree, out.stage);\n";
const WAIT_OUT_FULL: &str = "      mk::wait_barrier(watch, smem.out_full(group, out.stage), out.parity, mk::kStore, mk::kOutputFull, out.stage);\n";
const WAIT_LOADED: &str =
    "      mk::wait_barrier(watch, loaded, parity, mk::kPush, mk::kStageFull, piece.chunk);\n";
const RELEASE_STAGE: &str = "      mk::mma_wait<0>();\n      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n";
const RELEASE_STAGE_EARLY: &str = "      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n      mk::mma_wait<0>();\n";

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation] = &[
    // The ring of stages.
    mutation("too few bytes announced", push, &[("cfg::kStageBytesA + cfg::kStageBytesB", "cfg::kStageBytesA")]),
    mutation("too many bytes announced", push, &[("cfg::kStageBytesA + cfg::kStageBytesB", "cfg::kStageBytesA + 2 * cfg::kStageBytesB")]),
    mutation("wrong phase of a free stage", push, &[("ring.parity ^ 1", "ring.parity")]),
    mutation("no wait for a free stage", push, &[(WAIT_FREE, "")]),
    mutation("no wait for a full stage", push, &[(WAIT_FULL, "")]),
    mutation("stage released before the product is done", push, &[(RELEASE_STAGE, RELEASE_STAGE_EARLY)]),
    mutation("stage released by seven warps", push, &[("mk::barrier_init(smem.stage_free(stage), 8);", "mk::barrier_init(smem.stage_free(stage), 7);")]),
    mutation("stage released by nine warps", push, &[("mk::barrier_init(smem.stage_free(stage), 8);", "mk::barrier_init(smem.stage_free(stage), 9);")]),
    mutation("ring advanced by one role only", push, &[("      ring.advance();\n    }\n  }\n}", "    }\n  }\n}")]),
    mutation("barriers unknown to TMA", push, &[("  mk::fence_barrier_init();\n", "")]),
    mutation("no barrier of the CTA after initialising", push, &[("  if (!mk::enter(watch)) return;\n", "")]),
    // Products.
    mutation("product waited for one group late", push, &[("mk::mma_wait<0>();", "mk::mma_wait<1>();")]),
    mutation("no fence of the registers", push, &[("      mk::mma_fence();\n", "")]),
    mutation("products never committed", push, &[("      mk::mma_commit();\n", "")]),
    mutation("descriptor of A does not advance", push, &[("a + k16 * mk::kDescriptorStep<false>", "a")]),
    mutation("descriptor of B advances as if of the other major", push, &[("b + k16 * mk::kDescriptorStep<cfg::kBMnMajor>", "b + k16 * mk::kDescriptorStep<!cfg::kBMnMajor>")]),
    mutation("swapped halves of A", push, &[("smem.a(ring.stage) + group * cfg::kGroupBytesA", "smem.a(ring.stage) + (1 - group) * cfg::kGroupBytesA")]),
    mutation("sums not started at zero", push, &[("step != unit.first || k16 != 0", "true")]),
    mutation("wrong leading offset of a descriptor", kn, &[("mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB)", "(mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB) ^ (u64{(8192 ^ 4096) >> 4} << 16))")]),
    mutation("wrong stride offset of a descriptor", kn, &[("mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB)", "(mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB) ^ (u64{(1024 ^ 512) >> 4} << 32))")]),
    mutation("descriptor without its swizzle", push, &[("mk::mma_descriptor<false>(smem.a(ring.stage) + group * cfg::kGroupBytesA)", "(mk::mma_descriptor<false>(smem.a(ring.stage) + group * cfg::kGroupBytesA) ^ 3ull << 62)")]),
    mutation("parts of B swapped", kn, &[("unit.tile.col * cfg::kTileN + part * 64", "unit.tile.col * cfg::kTileN + (part ^ 1) * 64")]),
    // The output buffers.
    mutation("output seen by three warps", push, &[("mk::barrier_init(smem.out_full(group, buffer), 4);", "mk::barrier_init(smem.out_full(group, buffer), 3);")]),
    mutation("no proxy fence before the output is stored", push, &[("      mk::fence_proxy_async_shared();\n", "")]),
    mutation("warp not together before the output is stored", push, &[("      mk::fence_proxy_async_shared();\n      __syncwarp();\n", "      mk::fence_proxy_async_shared();\n")]),
    mutation("no wait for a free output buffer", push, &[(WAIT_OUT_FREE, "")]),
    mutation("no wait for a full output buffer", push, &[(WAIT_OUT_FULL, "")]),
    mutation("output buffer freed while it is read", push, &[("mk::tma_wait_read<1>();", "mk::tma_wait_read<2>();")]),
    mutation("wrong output buffer freed", push, &[("smem.out_free(group, out.stage ^ 1)", "smem.out_free(group, out.stage)")]),
    mutation("output not swizzled", push, &[("((lane / 16 + 2 * j) ^ (row % 8)) * 16", "(lane / 16 + 2 * j) * 16")]),
    mutation("kernel left before its stores are done", push, &[("  mk::tma_wait<0>();\n}\n", "}\n")]),
    mutation("wait for reads where writes are meant", push, &[("  mk::tma_wait<0>();\n}\n", "  mk::tma_wait_read<0>();\n}\n")]),
    // Rows of peers.
    mutation("rows not awaited", push, &[("  if (first || step % cfg::kSliceSteps == 0) wait_rows(args, watch, tile.row, step / cfg::kSliceSteps);\n", "")]),
    mutation("only the first slice of K awaited", push, &[("if (first || step % cfg::kSliceSteps == 0) wait_rows", "if (first) wait_rows")]),
    mutation("no proxy fence behind the flag", push, &[("  mk::fence_proxy_async();\n}\n\n// Columns", "}\n\n// Columns")]),
    mutation("flag not acquired", push, &[OLD_RELAXED_WAIT, ("    mk::wait_flag(watch, flag_at(args.workspaces[args.rank], index),", "    mk::relaxed_wait(watch, flag_at(args.workspaces[args.rank], index),")]),
    mutation("flag of another source awaited", push, &[("const u32 index = flag_index(source, chunk, slice);\n    mk::wait_flag(", "const u32 index = flag_index((source + 1) % cfg::kWorld, chunk, slice);\n    mk::wait_flag(")]),
    mutation("flag of the first call awaited", push, &[("watch.epoch * cfg::kArrivals}", "cfg::kArrivals}")]),
    mutation("epoch not advanced", push, &[("mk::store_early(&state->epoch, watch.epoch);", ";")]),
    mutation("warp not together before the flag", push, &[("    __syncwarp();\n    const u32 peer", "    const u32 peer")]),
    mutation("no fence before the flag", push, &[("      mk::fence_sys();\n      mk::add", "      mk::add")]),
    mutation("fence of this GPU where all are meant", push, &[("      mk::fence_sys();\n      mk::add", "      mk_calls->fence(mk::sim::kFenceThread, mk::sim::kGpu, mk::sim::place());\n      mk::add")]),
    mutation("flag before the data", push, &[("    if (piece.row < own_rows) push_piece", "    if (const u32 to = mk::lane_index(); to < cfg::kWorld && to != args.rank) {\n      mk::fence_sys();\n      mk::add_relaxed_sys(flag_at(args.workspaces[to], flag), 1);\n    }\n    if (piece.row < own_rows) push_piece"), ("      // Orders the stores of the whole warp before the counts.\n      mk::fence_sys();\n      mk::add_relaxed_sys(flag_at(args.workspaces[peer], flag), 1);\n", "")]),
    mutation("pushed to the same buffer in every call", push, &[("const u64 gathered_row = u64{watch.epoch % 2}", "const u64 gathered_row = u64{0}")]),
    mutation("loaded from the same buffer in every call", push, &[("tile.row * cfg::kTileM, watch.epoch % 2);", "tile.row * cfg::kTileM, 0);")]),
    mutation("readers not counted with release and acquire", push, &[("mk::fetch_add_acq_rel_gpu(&state->readers, 1)", "mk::sim::rmw(&state->readers, 1u, mk::sim::kAdd, mk::sim::kRelaxed, mk::sim::kGpu)")]),
    mutation("tiles shifted by one", push, &[("return Tile{row_tile_at(first + within % rows, rank), within / rows};", "return Tile{row_tile_at(first + within % rows, rank), (within / rows + 1) % (cfg::kColTiles + 1)};")]),
    mutation("tail of the shard not masked", tails, &[("mk::min(cfg::kPieceRows, own_rows - piece.row)", "cfg::kPieceRows")]),
    mutation("row tiles start at the wrong shard", tails, &[("(position + rank * cfg::kShardRows / cfg::kTileM) % cfg::kRowTiles", "mk::min(position + 1, cfg::kRowTiles - 1)")]),
    // Slots of shared memory.
    mutation("slot written while it is stored", long_rows, &[("      mk::tma_wait_read<0>();  // the slot is free\n", "")]),
    mutation("flag when the slot was read", slots, &[("  mk::tma_wait<0>();\n  mk::fence_proxy_async();", "  mk::tma_wait_read<0>();\n  mk::fence_proxy_async();")]),
    mutation("bytes of one row announced", slots, &[("mk::barrier_expect(loaded, slot_rows * bytes);", "mk::barrier_expect(loaded, bytes);")]),
    mutation("phase of the slot not advanced", slots, &[("      parity ^= 1;\n", "")]),
    mutation("slot not awaited", slots, &[(WAIT_LOADED, "")]),
    mutation("no fence before the counts", slots, &[("    mk::fence_sys();\n", "")]),
    mutation("wrong slot", slots, &[("smem.base + warp * cfg::kSlotBytes", "smem.base + (warp ^ 1) * cfg::kSlotBytes / 2")]),
    // Sums that CTAs share.
    mutation("warp not together before its partial is counted", parts, &[("  __syncwarp();\n  if (mk::lane_index() == 0) {\n    u32* flag", "  if (mk::lane_index() == 0) {\n    u32* flag")]),
    mutation("warp not together after the partials are counted", parts, &[("watch.epoch * cfg::kParts});\n  }\n  __syncwarp();", "watch.epoch * cfg::kParts});\n  }")]),
    mutation("partials not awaited", parts, &[("    mk::wait_flag(watch, flag, mk::Awaited{mk::kMath, mk::kPartial, watch.rank, unit.tail, watch.epoch * cfg::kParts});\n", "")]),
    mutation("own partial added again", parts, &[("at((unit.part + other) % cfg::kParts, sub)", "at(unit.part, sub)")]),
    mutation("warps share a flag", parts, &[("(unit.tail * 8 + warp) * cfg::kFlagStride", "(unit.tail * 8) * cfg::kFlagStride")]),
    mutation("partial counted without release", parts, &[("mk::add_release_gpu(flag, 1);", "mk::sim::rmw(flag, 1u, mk::sim::kAdd, mk::sim::kRelaxed, mk::sim::kGpu);")]),
];
