//! Mistakes planted in the kernels, one at a time: each is found.

use crate::layer::Layer;

/// Tokens through a slot that holds one, two under a flag.
fn long_tokens() -> Layer {
    let mut layer = Layer::new(2, 2, 1, 48);
    layer.hidden = 4104;
    layer.intermediate = 8;
    layer.call(&[48, 48], |rank, _| vec![1 - rank as i32])
}

/// A stage per tile, and more stages than there are places for tiles: loaders run ahead of products.
fn short_tokens() -> Layer {
    let mut layer = Layer::new(2, 6, 2, 24);
    layer.hidden = 64;
    layer.intermediate = 600;
    layer.tile = Some((64, 128));
    layer.call(&[24, 24], |rank, token| {
        let first = (rank * 5 + token * 3) % 6;
        vec![first as i32, ((first + 1) % 6) as i32]
    })
}

/// Seeds within which a mistake must be found.
const SEEDS_TO_FIND: u64 = 10;

fn layer() -> Layer {
    let choose = |salt: usize| {
        move |rank: usize, token: usize| {
            let first = (rank * 5 + token * 3 + salt) % 6;
            vec![first as i32, ((first + 1 + token % 2) % 6) as i32]
        }
    };
    let mut layer = Layer::new(2, 6, 2, 24);
    // More stages than there are of the ring, and two sub-tiles through one buffer.
    layer.hidden = 456;
    layer.intermediate = 200;
    layer.tile = Some((64, 256));
    layer
        .call(&[24, 24], choose(0))
        .call(&[24, 0], choose(1))
        .call(&[24, 24], choose(2))
}

#[rustfmt::skip]
const DISPATCH: &[(&str, &[(&str, &str)])] = &[
    // Routing.
    ("slices added before all CTAs have counted", &[("  if (!meet(watch, tables)) return false;", "  __syncthreads();")]),
    ("lists read before a peer has written them", &[("watch.epoch * gridDim.x;\n    u32 is_here", "(watch.epoch - 1) * gridDim.x;\n    u32 is_here")]),
    ("no fence before lists are told", &[("      mk::fence_sys();\n      mk::add_relaxed_sys(routed_flag_at", "      mk::add_relaxed_sys(routed_flag_at")]),
    ("the same numbers in every call", &[("u64{epoch % 2 * cfg::kWorld + source} * cfg::kCountWords", "u64{source} * cfg::kCountWords")]),
    ("the same lists in every call", &[("u64{epoch % 2 * cfg::kWorld + source} * cfg::kSourceRows", "u64{source} * cfg::kSourceRows")]),
    ("rows of all sources from the start", &[("if (source == watch.rank) rows_before = rows;", "rows_before = 0;")]),
    ("TMA into the numbers of slices without a fence", &[("  mk::fence_proxy_async_shared();  // TMA writes next", "  // TMA writes next")]),
    // Tokens on their way.
    ("tokens not awaited", &[("mk::Awaited{mk::kLoad, mk::kChunk, source, block, watch.epoch}", "mk::Awaited{mk::kLoad, mk::kChunk, source, block, watch.epoch - 1}")]),
    ("another block awaited", &[("const u32 block = where / cfg::kBlockTokens;", "const u32 block = where / cfg::kBlockTokens / 2;")]),
    ("flag before tokens have come", &[("  mk::tma_wait<0>();\n  mk::fence_proxy_async();\n}", "  mk::fence_proxy_async();\n}")]),
    ("flag that releases nothing", &[("mk::store_release_sys(flag_at", "mk::store_relaxed_sys(flag_at")]),
    ("slot not full", &[("      mk::wait_barrier(watch, loaded, parity, mk::kPush, mk::kStageFull, first);\n", "")]),
    ("stages where slots are still in use", &[("    __syncthreads();  // the slots become stages\n", "")]),
    // Tiles.
    ("a tile read before it is there", &[("    mk::wait_barrier(watch, smem.tile_full(read.stage), read.parity, role, mk::kStageFull, read.stage);\n", "")]),
    ("the counter of tiles not set back", &[("  mk::store(taken_tiles(watch), 0);\n", "")]),
    // Rows into the ring.
    ("stage not free", &[("      mk::wait_barrier(watch, smem.stage_free(ring.stage), ring.parity ^ 1, mk::kLoad, mk::kStageFree, ring.stage);\n", "")]),
    ("copies not awaited", &[("      mk::copy_wait<cfg::kCopiesAhead>();\n", "")]),
    ("last copies not awaited", &[("    mk::copy_wait<0>();  //", "    //")]),
    ("products of what copies wrote without a fence", &[("    mk::fence_proxy_async_shared();\n    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.stage_full(done.stage));", "    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.stage_full(done.stage));")]),
    ("a warp's rows not awaited", &[("mk::barrier_init(smem.stage_full(stage), 5);", "mk::barrier_init(smem.stage_full(stage), 4);")]),
    ("addresses read before they are there", &[("    __syncwarp();\n    const u8* from[kCopies];", "    const u8* from[kCopies];")]),
    // Results.
    ("stage freed before it is read", &[("      mk::mma_wait<0>();\n      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));", "      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n      mk::mma_wait<0>();")]),
    ("rows beyond an expert's", &[("if (first + row >= tile.rows", "if (first + row > tile.rows")]),
    ("output buffer not read", &[("  __syncwarp();  // the rows before are read\n", "")]),
];

#[rustfmt::skip]
const TILES: &[(&str, &[(&str, &str)])] = &[
    ("a tile's place taken before it is read", &[("    mk::wait_barrier(watch, smem.tile_free(given.stage), given.parity ^ 1, mk::kLoad, mk::kStageFree, given.stage);\n", "")]),
];

#[rustfmt::skip]
const COMBINE: &[(&str, &[(&str, &str)])] = &[
    ("choices read before they are there", &[("watch.epoch * gridDim.x;\n    u32 is_here", "(watch.epoch - 1) * gridDim.x;\n    u32 is_here")]),
    ("no fence before choices are told", &[("      mk::fence_sys();\n      mk::add_relaxed_sys(told_flag_at", "      mk::add_relaxed_sys(told_flag_at")]),
    ("the same header in every call", &[("(epoch % 2 * cfg::kWorld + source) * cfg::kHeaderWords", "source * cfg::kHeaderWords")]),
    ("the same choices in every call", &[("u64{epoch % 2 * cfg::kWorld + source} * cfg::kMaxTokens", "u64{source} * cfg::kMaxTokens")]),
    ("sums of peers not awaited", &[("is_here = mk::load_acquire_sys(flag) == watch.epoch;", "is_here = 1;")]),
    ("the last sums of peers not awaited", &[("mk::kPeerPartial, lane, part.token, watch.epoch}", "mk::kPeerPartial, lane, part.token, watch.epoch - 1}")]),
    ("sums of peers that nothing acquired", &[("is_here = mk::load_acquire_sys(flag) == watch.epoch;", "is_here = mk::load_relaxed_sys(flag) == watch.epoch;")]),
    ("flags that one lane saw", &[("    __syncwarp();\n    u32 all = 1;\n    for (u32 rank = 0; rank < cfg::kWorld; ++rank) all &= mk::broadcast(is_here, rank);\n    return all != 0;", "    return mk::broadcast(is_here, 0) != 0;")]),
    ("flag before its sum has come", &[("      mk::tma_wait<0>();\n      mk::fence_proxy_async();\n      mk::store_release_sys(goal.flag", "      mk::fence_proxy_async();\n      mk::store_release_sys(goal.flag")]),
    ("flag that releases nothing", &[("mk::store_release_sys(goal.flag", "mk::store_relaxed_sys(goal.flag")]),
    ("stage not free", &[("      mk::wait_barrier(watch, smem.stage_free(ring.stage), ring.parity ^ 1, mk::kLoad, mk::kStageFree, ring.stage);\n", "")]),
    ("stage freed before it is read by all lanes", &[("    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));", "    if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));")]),
    ("sum not free", &[("    mk::wait_barrier(watch, smem.out_free(out), outs.parity ^ 1, mk::kMath, mk::kOutputFree, out);\n", "")]),
    ("sum freed before it is read", &[("    mk::tma_wait_read<0>();\n    mk::barrier_arrive(smem.out_free(index));", "    mk::barrier_arrive(smem.out_free(index));")]),
    ("sum stored without a fence", &[("    mk::fence_proxy_async_shared();\n    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.out_full(out));", "    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.out_full(out));")]),
    ("a lane's columns not awaited", &[("    mk::fence_proxy_async_shared();\n    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.out_full(out));", "    mk::fence_proxy_async_shared();\n    if (lane == 0) mk::barrier_arrive(smem.out_full(out));")]),
    ("a warp's columns not awaited", &[("mk::barrier_init(smem.out_full(index), kAdders / mk::kWarp);", "mk::barrier_init(smem.out_full(index), kAdders / mk::kWarp - 1);")]),
    ("gates of other choices", &[("part.bytes(), choice.gate_bits, --left", "part.bytes(), choices.of(0).gate_bits, --left")]),
];

fn all_are_found(
    layer: fn() -> Layer,
    mutations: &[(&str, &[(&str, &str)])],
    plant: fn(&mut Layer, Vec<(String, String)>),
) {
    let mut missed = Vec::new();
    for (name, edits) in mutations {
        let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
        let mut layer = layer();
        plant(&mut layer, edits.iter().map(owned).collect());
        match (0..SEEDS_TO_FIND).find_map(|seed| Some((seed, layer.failure(seed)?))) {
            Some((seed, failure)) => {
                let line = failure
                    .lines()
                    .find(|line| !line.contains("simulator found"));
                println!("{name}: seed {seed}: {}", line.unwrap_or(""));
                // A text that does not compile, or a replacement that finds nothing, proves nothing.
                if failure.contains("does not compile") || failure.contains("a rank panicked") {
                    missed.push(format!("{name}: {failure}"));
                }
            }
            None => missed.push(format!("{name}: not found")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_mistake_in_dispatch_is_found() {
    all_are_found(layer, DISPATCH, |layer, edits| layer.dispatch_edits = edits);
}

#[test]
fn slots_that_are_not_free_are_found() {
    assert_eq!(long_tokens().failure(0), None);
    let edit = [("      mk::tma_wait_read<0>();  // the slot is free\n", "")];
    all_are_found(long_tokens, &[("slot not free", &edit)], |layer, edits| {
        layer.dispatch_edits = edits;
    });
}

#[test]
fn places_of_tiles_that_are_not_free_are_found() {
    assert_eq!(short_tokens().failure(0), None);
    all_are_found(short_tokens, TILES, |layer, edits| {
        layer.dispatch_edits = edits;
    });
}

#[test]
fn every_mistake_in_combine_is_found() {
    all_are_found(layer, COMBINE, |layer, edits| layer.combine_edits = edits);
}

#[test]
fn kernels_as_they_are_raise_no_alarm() {
    for seed in 0..SEEDS_TO_FIND / 2 {
        assert_eq!(layer().failure(seed), None, "seed {seed}");
    }
}
