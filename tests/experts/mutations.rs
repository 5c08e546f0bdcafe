//! Mistakes planted in the kernels, one at a time: each is found.

use mkernel_testing::jobs::experts::{CombineEdits, Layer};
use mkernel_testing::jobs::{SimulatedJob, WRAPPING_CALL_COUNTS, all_are_found, mutated};

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
fn staying() -> CombineEdits {
    let mut layer = Layer::new(4, 4, 1, 16);
    (layer.hidden, layer.intermediate) = (8, 8);
    (layer.sms, layer.skew) = (1, 100);
    CombineEdits((0..3).fold(layer, |layer, _| {
        layer.call(&[16; 4], |rank, _| vec![[0, 2, 3, 1][rank]])
    }))
}

/// More rows of a CTA than stages of its ring.
fn combining() -> CombineEdits {
    let mut layer = layer();
    layer.sms = 3;
    CombineEdits(layer)
}

#[rustfmt::skip]
const DISPATCH: &[Mistake] = &[
    // Routing.
    ("slices added before all CTAs have counted", "@routing.meet", "__syncthreads();"),
    ("lists read before a peer has written them", "@routing.wait", "wanted} => wanted - gridDim.x}"),
    ("no fence before lists are signalled", "@routing.signal-fence", ""),
    ("rows of all sources from the start", "@routing.rows-before", "rows_before = rows => rows_before = 0"),
    ("TMA into the tables of slices without a fence", "@routing.reuse-fence", ""),
    // Tokens on their way.
    ("tokens not awaited", "@tokens.wait", ""),
    ("another block awaited", "@tokens.block", "Config::kBlockTokens => Config::kBlockTokens / 2"),
    ("flag before tokens have arrived", "@copy.stored", ""),
    ("flag that releases nothing", "@tokens.signal", "store_release_sys => store_relaxed_sys"),
    ("slot not full", "@copy.wait", ""),
    ("stages where slots are still in use", "@roles.first-phase", ""),
    // Tiles.
    ("a tile read before it is there", "@tiles.wait", ""),
    ("the counter of tiles not reset", "@tile-counter.reset", ""),
    // Rows into the ring.
    ("stage not empty", "@grouped.acquire", ""),
    ("copies not awaited", "@grouped.copies", ""),
    ("last copies not awaited", "@grouped.last-copies", ""),
    ("products of what copies wrote without a fence", "@grouped.copies-fence", ""),
    ("a warp's rows not awaited", "@grouped.arrivals", "1 + kLoadWarps => kLoadWarps"),
    ("addresses read before they are there", "@grouped.addresses", ""),
    // Results.
    ("stage released before it is read", "@mainloop.product", ""),
    ("rows beyond an expert's", "@grouped.rows", ">= tile.rows => > tile.rows"),
    ("output buffer not read", "@grouped.out-read", ""),
];

/// The same numbers and lists in every call: both sides of each.
#[rustfmt::skip]
const ONE_BUFFER: &[(&str, [(&str, &str); 2])] = &[
    ("the same messages in every call", [("@routing.read-message", "ctx.parity() => 0u"), ("@routing.write-message", "ctx.parity() => 0u")]),
    ("the same lists in every call", [("@routing.read-list", "ctx.parity() => 0u"), ("@routing.write-list", "ctx.parity() => 0u")]),
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
    ("gates of other choices", "@sums.weight", "is_own ? entry.weight_bits : kOneBits => kOneBits"),
];

/// Each mistake alone, in `job`.
fn are_found<J: SimulatedJob + Sync>(job: fn() -> J, mistakes: &[Mistake]) {
    let plant = |(name, from, to): &Mistake| (*name, mutated(job(), &[(*from, *to)]));
    all_are_found(
        &mistakes.iter().map(plant).collect::<Vec<_>>(),
        SEEDS_TO_FIND,
    );
}

#[test]
fn every_mistake_in_dispatch_is_found() {
    are_found(layer, DISPATCH);
    let plant =
        |(name, edits): &(&'static str, [(&str, &str); 2])| (*name, mutated(layer(), edits));
    all_are_found(
        &ONE_BUFFER.iter().map(plant).collect::<Vec<_>>(),
        SEEDS_TO_FIND,
    );
}

#[test]
fn slots_that_are_not_free_are_found() {
    assert_eq!(long_tokens().run(0).err(), None);
    let mistake = ("slot not read", "@copy.slot-read", "");
    are_found(long_tokens, &[mistake]);
}

#[test]
fn places_of_tiles_that_are_not_free_are_found() {
    assert_eq!(short_tokens().run(0).err(), None);
    let mistake = (
        "a tile's place taken before it is read",
        "@tiles.acquire",
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
        mutated(staying(), &buffers),
    );
    all_are_found(&[mistake], SEEDS_TO_FIND);
}

/// What was written long ago, or never, is not what a call waits for.
#[test]
fn old_calls_that_are_taken_for_new_ones_are_found() {
    let [half, whole] = WRAPPING_CALL_COUNTS;
    let layer = |age| Layer::new(2, 6, 2, 48).with_call_count(age);
    let windows = [
        ("@sums.wait", "wait_mark => wait_flag"),
        (
            "@sums.poll",
            "load_acquire_sys(flag) == site.wanted => has_reached(load_acquire_sys(flag), site.wanted)",
        ),
    ];
    let marks = ["@sums.expected", "@rows.sum-flag"].map(|tag| (tag, "ctx.mark() => ctx.epoch"));

    all_are_found(
        &[
            (
                "dispatch_gemm: a window of calls",
                mutated(layer(half), &[("@tokens.wait", "wait_mark => wait_flag")]),
            ),
            (
                "dispatch_gemm: 0 is the mark of a call",
                mutated(
                    layer(whole),
                    &[
                        ("@tokens.wait", "ctx.mark() => ctx.epoch"),
                        ("@tokens.signal", "ctx.mark() => ctx.epoch"),
                    ],
                ),
            ),
        ],
        SEEDS_TO_FIND,
    );
    all_are_found(
        &[
            (
                "combine: a window of calls",
                mutated(CombineEdits(layer(half)), &windows),
            ),
            (
                "combine: 0 is the mark of a call",
                mutated(CombineEdits(layer(whole)), &marks),
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
