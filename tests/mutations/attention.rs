//! Mistakes in `ring_attention`.

use crate::simulated::attention::AttentionJob;
use crate::{Kernel, Mutation, OLD_RELAXED_WAIT, mutation};
use mkernel::Placement;

/// Tiles of attention take a simulated GPU long.
pub const SEEDS_EACH_TIME: u64 = 3;

pub const KERNELS: &[Kernel<AttentionJob>] = &[
    ("gathered", gathered),
    ("ring", ring),
    ("many", many),
    ("one_way", one_way),
    ("masked", masked),
];

/// Several tiles of queries and of keys on each of two ranks.
fn gathered() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2)
}

/// Three heads take turns in one slot.
fn ring() -> AttentionJob {
    AttentionJob::new(2, [1, 200, 3, 3, 64], 3).slots(1, 1)
}

/// More tiles than a CTA has buffers, and more parts of keys than there are warps that push.
fn many() -> AttentionJob {
    AttentionJob::new(2, [1, 130, 6, 6, 64], 2)
}

/// The first rank sends and waits for nobody: it can be a call ahead.
fn one_way() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2).causal(Placement::Contiguous)
}

/// Tiles that end early, in keys and in queries.
fn masked() -> AttentionJob {
    AttentionJob::new(2, [1, 300, 2, 1, 64], 2).causal(Placement::Zigzag)
}

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation<AttentionJob>] = &[
    // Between ranks.
    mutation("keys are not awaited", gathered, &[("    wait_keys(watch, tile, keys);  // while the stage is still in use\n", "")]),
    mutation("the wait for keys does not acquire", gathered, &[OLD_RELAXED_WAIT, ("  mk::wait_flag(watch, flag_at(", "  mk::relaxed_wait(watch, flag_at(")]),
    mutation("fewer parts of a tile are awaited", gathered, &[("(slot.earlier + 1) * cfg::kArrivals", "(slot.earlier + 1) * cfg::kArrivals - 1")]),
    mutation("keys of the call before are taken", gathered, &[("(slot.earlier + 1) * cfg::kArrivals", "slot.earlier * cfg::kArrivals")]),
    mutation("the flag comes before the bytes", gathered, &[("    mk::tma_wait<0>();\n", "    mk::tma_wait_read<0>();\n")]),
    mutation("the flag is not behind a fence", gathered, &[("    mk::fence_sys();\n", "")]),
    mutation("a peer's slot is not waited for", ring, &[("slot.earlier * readers(reader)", "0")]),
    mutation("a peer's slot is taken one tile early", ring, &[("slot.earlier * readers(reader)", "slot.earlier * (readers(reader) - 1)")]),
    mutation("the wait for a slot does not acquire", ring, &[OLD_RELAXED_WAIT, ("    mk::wait_flag(watch, read_at(", "    mk::relaxed_wait(watch, read_at(")]),
    mutation("sources are told before the keys are read", ring, &[("    if (row == 0) tell_sources(watch, tile);\n", ""), ("    Walk walk(tile, watch.rank);\n", "    if (row == 0) tell_sources(watch, tile);\n    Walk walk(tile, watch.rank);\n")]),
    mutation("sources are told without a fence", ring, &[("  mk::fence_sys();\n  mk::add_relaxed_sys(read_at(", "  mk::add_relaxed_sys(read_at(")]),
    // Within a CTA.
    mutation("tiles come before the last push", gathered, &[("    __syncthreads();  // the buffers become those of tiles\n", "")]),
    mutation("a pushing warp's buffer is loaded too early", gathered, &[("    mk::tma_wait<0>();\n    mk::fence_proxy_async();\n", "    mk::fence_proxy_async();\n")]),
    mutation("K is free before it is read", gathered, &[("      mk::mma_wait<1>();\n      mk::mma_hold(s);\n      free_k();\n", "      free_k();\n      mk::mma_wait<1>();\n      mk::mma_hold(s);\n")]),
    mutation("K is not awaited", gathered, &[("      mk::wait_barrier_watched(watch, smem.k_full(k.stage), k.parity, mk::kMath, mk::kStageFull, k.stage);\n      mk::sync", "      mk::sync")]),
    mutation("V is not awaited", gathered, &[("      mk::wait_barrier_watched(watch, smem.v_full(v.stage), v.parity, mk::kMath, mk::kStageFull, v.stage);\n      multiply_values", "      multiply_values")]),
    mutation("a turn is not handed on", gathered, &[("      mk::arrive_named(kTurn + (group ^ 1), 2 * mk::kWarpgroup);\n", "")]),
    mutation("a call does not wait for the one before", one_way, &[("slot.earlier * readers(reader, part.source)", "(slot.earlier - (slot.earlier > 0)) * readers(reader, part.source)")]),
    mutation("a pushing warp loses count", many, &[("  parity ^= 1;\n", "")]),
    mutation("queries are loaded over results", many, &[("    mk::fence_proxy_async_shared();\n", "")]),
    // Arithmetic.
    mutation("earlier sums do not fade", gathered, &[("o[i] *= fade[i / 2 % 2];", "o[i] *= 1.0f;")]),
    mutation("a key too many", masked, &[("row + lane / 4 + 1;", "row + lane / 4 + 2;")]),
    mutation("a key too few", masked, &[("row + lane / 4 + 1;", "row + lane / 4;")]),
    mutation("keys that there are not", masked, &[("else if (there < cfg::kTileKeys) {", "else if (there < 1) {")]),
    mutation("the wrong chunk", masked, &[("return segment == 0 ? rank : 2 * cfg::kWorld - 1 - rank;", "return segment == 0 ? rank : 2 * cfg::kWorld - 1 - (rank ^ 1);")]),
];
