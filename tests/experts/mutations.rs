//! Mistakes planted in the kernels, one at a time: each is found.

use crate::layer::{Combining, Layer};
use crate::simulated::{AGES, Simulated, all_are_found, planted};

/// What is wrong, and what is replaced by what.
type Mistake = (&'static str, &'static str, &'static str);

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

/// Tokens of rank 0 stay there, those of the others go round among them. These make a sum for a peer and wait for one of their
/// own, by turns, and read rank 0's choices as they get on; it waits for none of them, and comes to its next call meanwhile.
fn staying() -> Combining {
    let mut layer = Layer::new(4, 4, 1, 16);
    (layer.hidden, layer.intermediate) = (8, 8);
    (layer.sms, layer.skew) = (1, 100);
    Combining((0..3).fold(layer, |layer, _| {
        layer.call(&[16; 4], |rank, _| vec![[0, 2, 3, 1][rank]])
    }))
}

/// More rows of a CTA than stages of its ring.
fn combining() -> Combining {
    let mut layer = layer();
    layer.sms = 3;
    Combining(layer)
}

#[rustfmt::skip]
const DISPATCH: &[Mistake] = &[
    // Routing.
    ("slices added before all CTAs have counted", "  if (!meet(watch, tables)) return false;", "  __syncthreads();"),
    ("lists read before a peer has written them", "watch.epoch * gridDim.x;\n    u32 is_here", "(watch.epoch - 1) * gridDim.x;\n    u32 is_here"),
    ("no fence before lists are told", "      mk::fence_sys();\n      mk::add_relaxed_sys(routed_flag_at", "      mk::add_relaxed_sys(routed_flag_at"),
    ("the same numbers in every call", "u64{epoch % 2 * cfg::kWorld + source} * cfg::kCountWords", "u64{source} * cfg::kCountWords"),
    ("the same lists in every call", "u64{epoch % 2 * cfg::kWorld + source} * cfg::kSourceRows", "u64{source} * cfg::kSourceRows"),
    ("rows of all sources from the start", "if (source == watch.rank) rows_before = rows;", "rows_before = 0;"),
    ("TMA into the numbers of slices without a fence", "  mk::fence_proxy_async_shared();  // TMA writes next", "  // TMA writes next"),
    // Tokens on their way.
    ("tokens not awaited", "mk::Awaited{mk::kLoad, mk::kChunk, source, block, watch.mark()}", "mk::Awaited{mk::kLoad, mk::kChunk, source, block, mk::load(flag_at(workspace, source, block))}"),
    ("another block awaited", "const u32 block = where / cfg::kBlockTokens;", "const u32 block = where / cfg::kBlockTokens / 2;"),
    ("flag before tokens have come", "  mk::tma_wait<0>();\n  mk::fence_proxy_async();\n}", "  mk::fence_proxy_async();\n}"),
    ("flag that releases nothing", "mk::store_release_sys(flag_at", "mk::store_relaxed_sys(flag_at"),
    ("slot not full", "      mk::wait_barrier(watch, loaded, parity, mk::kPush, mk::kStageFull, first);\n", ""),
    ("stages where slots are still in use", "    __syncthreads();  // the slots become stages\n", ""),
    // Tiles.
    ("a tile read before it is there", "    mk::wait_barrier(watch, smem.tile_full(read.stage), read.parity, role, mk::kStageFull, read.stage);\n", ""),
    ("the counter of tiles not set back", "  mk::store(taken_tiles(watch, watch.epoch + 1), 0);\n", ""),
    // Rows into the ring.
    ("stage not free", "      mk::wait_barrier(watch, smem.stage_free(ring.stage), ring.parity ^ 1, mk::kLoad, mk::kStageFree, ring.stage);\n", ""),
    ("copies not awaited", "      mk::copy_wait<cfg::kCopiesAhead>();\n", ""),
    ("last copies not awaited", "    mk::copy_wait<0>();  //", "    //"),
    ("products of what copies wrote without a fence", "    mk::fence_proxy_async_shared();\n    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.stage_full(done.stage));", "    __syncwarp();\n    if (lane == 0) mk::barrier_arrive(smem.stage_full(done.stage));"),
    ("a warp's rows not awaited", "mk::barrier_init(smem.stage_full(stage), 5);", "mk::barrier_init(smem.stage_full(stage), 4);"),
    ("addresses read before they are there", "    __syncwarp();\n    const u8* from[kCopies];", "    const u8* from[kCopies];"),
    // Results.
    ("stage freed before it is read", "      mk::mma_wait<0>();\n      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));", "      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n      mk::mma_wait<0>();"),
    ("rows beyond an expert's", "if (first + row >= tile.rows", "if (first + row > tile.rows"),
    ("output buffer not read", "  __syncwarp();  // the rows before are read\n", ""),
];

/// Without the proxy fence in `TokenSum::load` nothing is wrong on one node, so it is not here: what is loaded there was written by
/// TMA, whose completion is followed by a proxy fence, before the flag was released, or before the kernel began. What NICs
/// write needs it: see `multinode`.
#[rustfmt::skip]
const COMBINE: &[Mistake] = &[
    // Choices.
    ("choices read before they are there", "@topk.wait", "!packet.has_arrived(ctx.mark()) => false"),
    ("a rank sends before it has read what it was sent", "@topk.send-fence", ""),
    ("a rank that has sent is not known to have read", "@topk.acquire", "Ordering::kAcquire => Ordering::kRelaxed"),
    ("number of tokens not awaited", "@peer-tokens.counts", ""),
    ("the epoch passes before it is read", "@combine.enter", "if (threadIdx.x == 0) advance_epoch(ctx); if (!enter(ctx)) return false;"),
    // Sums of peers.
    ("sums of peers not awaited", "@sums.poll", "is_here = 1;"),
    ("the last sums of peers not awaited", "@sums.wait", ""),
    ("sums of peers that nothing acquired", "@sums.poll", "load_acquire_sys => load_relaxed_sys"),
    ("flags that one lane saw", "@sums.all-lanes", "all &= broadcast(is_here, 0);"),
    ("flag before its sum has come", "@rows.sum-arrived", ""),
    ("flag that releases nothing", "@rows.sum-flag", "store_release_sys => store_relaxed_sys"),
    ("a sum of a peer for each of its rows", "@sums.first-of-group", "(is_own || is_first) => (is_own || true)"),
    // The pipelines.
    ("rows of a sum into the same stage", "@rows.lane-stage", ""),
    ("stage not free", "@rows.acquire", ""),
    ("stage freed before it is read by all lanes", "@rows.release-warp", ""),
    ("sum not free", "@rows.output-acquire", ""),
    ("sum freed before it is read", "@rows.output-read", ""),
    ("sum stored without a fence", "@rows.output-fence", ""),
    ("a lane's columns not awaited", "@pipeline.warp-commit", ""),
    ("a warp's columns not awaited", "@rows.output-barriers", "kAdderWarps => kAdderWarps - 1"),
    ("gates of other choices", "@sums.gate", "is_own ? entry.gate_bits : kOneBits => kOneBits"),
];

/// Each mistake alone, in `job`.
fn are_found<J: Simulated + Sync>(job: fn() -> J, mistakes: &[Mistake]) {
    let plant = |(name, from, to): &Mistake| (*name, planted(job(), &[(*from, *to)]));
    all_are_found(
        &mistakes.iter().map(plant).collect::<Vec<_>>(),
        SEEDS_TO_FIND,
    );
}

#[test]
fn every_mistake_in_dispatch_is_found() {
    are_found(layer, DISPATCH);
}

#[test]
fn slots_that_are_not_free_are_found() {
    assert_eq!(long_tokens().run(0).err(), None);
    let mistake = (
        "slot not free",
        "      mk::tma_wait_read<0>();  // the slot is free\n",
        "",
    );
    are_found(long_tokens, &[mistake]);
}

#[test]
fn places_of_tiles_that_are_not_free_are_found() {
    assert_eq!(short_tokens().run(0).err(), None);
    let mistake = (
        "a tile's place taken before it is read",
        "    mk::wait_barrier(watch, smem.tile_free(given.stage), given.parity ^ 1, mk::kLoad, mk::kStageFree, given.stage);\n",
        "",
    );
    are_found(short_tokens, &[mistake]);
}

#[test]
fn one_buffer_of_choices_for_all_calls_is_found() {
    for seed in 0..SEEDS_TO_FIND / 2 {
        assert_eq!(staying().run(seed).err(), None, "seed {seed}");
    }
    let buffers = ["@topk.counts-buffer", "@topk.buffer"].map(|tag| (tag, "ctx.parity() => 0u"));
    let mistake = (
        "one buffer of choices for all calls",
        planted(staying(), &buffers),
    );
    all_are_found(&[mistake], SEEDS_TO_FIND);
}

/// What was written long ago, or never, is not what a call waits for.
#[test]
fn old_calls_that_are_taken_for_new_ones_are_found() {
    let [half, whole] = AGES;
    let layer = |age| Layer::new(2, 6, 2, 48).growing_old(age);
    let window = [("mk::wait_mark(", "mk::wait_flag(")];
    let windows = [
        ("@sums.wait", "wait_mark => wait_flag"),
        (
            "@sums.poll",
            "load_acquire_sys(flag) == site.wanted => has_reached(load_acquire_sys(flag), site.wanted)",
        ),
    ];
    let marks = [(
        "@rank-context.mark",
        "epoch != 0 ? epoch : 0x80000000u => epoch",
    )];
    let epochs = [("watch.mark()", "watch.epoch")];
    all_are_found(
        &[
            (
                "dispatch_gemm: a window of calls",
                planted(layer(half), &window),
            ),
            (
                "dispatch_gemm: 0 is the mark of a call",
                planted(layer(whole), &epochs),
            ),
        ],
        SEEDS_TO_FIND,
    );
    all_are_found(
        &[
            (
                "combine: a window of calls",
                planted(Combining(layer(half)), &windows),
            ),
            (
                "combine: 0 is the mark of a call",
                planted(Combining(layer(whole)), &marks),
            ),
        ],
        SEEDS_TO_FIND,
    );
}

#[test]
fn every_mistake_in_combine_is_found() {
    are_found(combining, COMBINE);
}

#[test]
fn kernels_as_they_are_raise_no_alarm() {
    for seed in 0..SEEDS_TO_FIND / 2 {
        assert_eq!(layer().run(seed).err(), None, "seed {seed}");
    }
}
