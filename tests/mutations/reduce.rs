//! Mistakes in operators that reduce.

use crate::simulated::Job;
use crate::{Kernel, Mutation, RELAXED_WAIT, job, mutation};
use mkernel::{BLayout, Epilogue, GemmOp, GemmShape, Tuning};

pub const KERNELS: &[Kernel] = &[
    ("scatter", scatter),
    ("ragged", ragged),
    ("to_all", to_all),
    ("one_shot", one_shot),
    ("relay", relay),
];

fn reduce(op: GemmOp, world: u32, (m, n, k): (u64, u64, u64), tuning: Tuning) -> Job {
    let kernel = (op, Epilogue::default(), tuning);
    job(kernel, world, GemmShape { m, n, k }, BLayout::Nk, 3)
}

/// Two shots, a tile of each owner in a round, through a ring that is soon reused.
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

/// Owners of rows; whole tiles.
fn scatter() -> Job {
    reduce(GemmOp::GemmRs, 2, (128, 384, 192), rounds())
}

/// Owners of 25 rows.
fn ragged() -> Job {
    reduce(GemmOp::GemmRs, 4, (100, 264, 128), rounds())
}

/// Results go to all.
fn to_all() -> Job {
    reduce(GemmOp::GemmAr, 2, (128, 384, 192), rounds())
}

/// Tagged words from registers to registers.
fn one_shot() -> Job {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmRs, 2, (40, 264, 128), tuning)
}

/// The same, and sums to all.
fn relay() -> Job {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmAr, 8, (64, 768, 64), tuning)
}

const PARTIAL_WAIT: &str =
    "    mk::wait_flag(watch, partial_flag_at(workspace, source, unit.tile.index),\n";
const RESULT_WAIT: &str = "      mk::wait_flag(watch, result_flag_at(workspace, tile),\n";
const COUNT: &str = "  mk::tma_wait<0>();\n  mk::fence_proxy_async();\n  mk::fence_sys();\n";
const TAG: &str =
    "              if (!mk::is_tagged(parts[source][v], watch.epoch)) missing = source;\n";

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation] = &[
    // Partial sums on their way.
    mutation("partial sums awaited of the first call", scatter, &[("watch.epoch * 2 * kSubTiles}", "2 * kSubTiles}")]),
    mutation("one sub-tile of partial sums not awaited", scatter, &[("watch.epoch * 2 * kSubTiles}", "watch.epoch * 2 * kSubTiles - 1}")]),
    mutation("flag of partial sums not acquired", scatter, &[RELAXED_WAIT, (PARTIAL_WAIT, "    mk::relaxed_wait(watch, partial_flag_at(workspace, source, unit.tile.index),\n")]),
    mutation("flag of another tile awaited", scatter, &[(PARTIAL_WAIT, "    mk::wait_flag(watch, partial_flag_at(workspace, source, unit.tile.index ^ 1),\n")]),
    mutation("partial sums counted before they arrive", scatter, &[(COUNT, "  mk::fence_proxy_async();\n  mk::fence_sys();\n")]),
    mutation("partial sums counted when they were read", scatter, &[(COUNT, "  mk::tma_wait_read<0>();\n  mk::fence_proxy_async();\n  mk::fence_sys();\n")]),
    mutation("no fence before partial sums are counted", scatter, &[(COUNT, "  mk::tma_wait<0>();\n  mk::fence_proxy_async();\n")]),
    mutation("the same slots in every call", scatter, &[("epoch % 2 * cfg::kWorld * cfg::kOwnerTiles + partial", "partial")]),
    mutation("slots of sources overlap", ragged, &[("return source * cfg::kOwnerTiles + tile;", "return tile;")]),
    // Partial sums in shared memory.
    mutation("too few bytes of partial sums announced", scatter, &[("2 * cfg::kPartialSubs * cfg::kOutBytes);", "cfg::kPartialSubs * cfg::kOutBytes);")]),
    mutation("no wait for partial sums", scatter, &[("      mk::wait_barrier(watch, smem.stage_full(ring.stage), ring.parity, mk::kMath, mk::kStageFull, ring.stage);\n#pragma unroll\n      for (u32 sub", "#pragma unroll\n      for (u32 sub")]),
    mutation("stage of partial sums not released", scatter, &[("      __syncwarp();\n      if (mk::lane_index() == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n", "")]),
    mutation("stage of partial sums released by a warp that still reads", scatter, &[("      __syncwarp();\n      if (mk::lane_index() == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n", "      if (mk::lane_index() == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n")]),
    mutation("partial sums of the other warpgroup", scatter, &[("smem.partial(ring.stage, group, sub - first)", "smem.partial(ring.stage, 1 - group, sub - first)")]),
    mutation("fragments written in another order", scatter, &[("buffer + fragment_at(fragment)", "buffer + fragment_at(fragment ^ 1)")]),
    mutation("halves of a word swapped", scatter, &[("d[0] += mk::low_bf16(v.x), d[1] += mk::high_bf16(v.x)", "d[0] += mk::high_bf16(v.x), d[1] += mk::low_bf16(v.x)")]),
    mutation("partial sums not added", scatter, &[("    if (owned) add_partials(watch, smem, unit, group, ring, sum);\n", "")]),
    // Owners and rows.
    mutation("rows of the first owner for all", scatter, &[("return tile.owner * cfg::kShardRows + tile.row * cfg::kTileM;", "return tile.row * cfg::kTileM;")]),
    mutation("owners wait for each other", scatter, &[("if (index < kOthers * cfg::kRoundTiles) {\n    return tile_of((rank + 1 + index / cfg::kRoundTiles)", "if (index < kOthers * cfg::kRoundTiles) {\n    return tile_of((rank + index / cfg::kRoundTiles)")]),
    mutation("rows of the last warp not sent", ragged, &[("(end - first + 15) / 16", "(end - first) / 16")]),
    // Results.
    mutation("results not awaited", to_all, &[(RESULT_WAIT, "      if (false) mk::wait_flag(watch, result_flag_at(workspace, tile),\n")]),
    mutation("flag of results not acquired", to_all, &[RELAXED_WAIT, (RESULT_WAIT, "      mk::relaxed_wait(watch, result_flag_at(workspace, tile),\n")]),
    mutation("warp not together behind the flag of results", to_all, &[("    __syncwarp();\n    const u8* from", "    const u8* from")]),
    mutation("results counted before they arrive", to_all, &[(COUNT, "  mk::fence_proxy_async();\n  mk::fence_sys();\n")]),
    mutation("results not taken out of the swizzle", to_all, &[("(first % 8 ^ line % 8) * 8", "first % 8 * 8")]),
    mutation("results of one warpgroup taken twice", to_all, &[("from = workspace + result_at(watch.epoch, tile) + (group * kSubTiles", "from = workspace + result_at(watch.epoch, tile) + (0 * kSubTiles")]),
    // Tagged words.
    mutation("tags not looked at", one_shot, &[(TAG, "")]),
    mutation("tag of the call before", one_shot, &[(TAG, "              if (!mk::is_tagged(parts[source][v], watch.epoch - 1)) missing = source;\n")]),
    mutation("one of two tags looked at", one_shot, &[(TAG, "              if (parts[source][v].y != watch.epoch) missing = source;\n")]),
    mutation("slots of words of sources overlap", one_shot, &[("(epoch % 2 * cfg::kSources + source)", "(epoch % 2 * cfg::kSources)")]),
    mutation("own part not sent to the own slot", one_shot, &[("u8* slot = watch.workspaces[(row + half * 8) / cfg::kShardRows] + to;", "u8* slot = watch.workspaces[1 - watch.rank] + to;")]),
    mutation("words stored beyond the columns of C", one_shot, &[("          if (to + 8 < cfg::kN) mk::store_word", "          mk::store_word")]),
    mutation("tags of relayed sums not looked at", relay, &[("missing |= !mk::is_tagged(words[v], watch.epoch);", "missing |= false;")]),
];
