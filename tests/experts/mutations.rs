//! Mutations of `dispatch_gemm` and `combine` on one node. A test plants one mistake at a time, and the simulator or
//! the comparison of the results must find it with some seed.

use mkernel_testing::jobs::experts::{CombineEdits, Layer};
use mkernel_testing::jobs::{SimulatedJob, WRAPPING_CALL_COUNTS, all_are_found, mutated};

/// A mutation: its name, and the edit of the kernel's text.
pub type Mutation = (&'static str, &'static str, &'static str);

/// Returns a layer with tokens so long that a slot holds only one token and a flag covers two tokens.
fn long_tokens() -> Layer {
    let mut layer = Layer::new(2, 2, 1, 48);
    layer.hidden = 4104;
    layer.intermediate = 8;
    layer.call(&[48, 48], |rank, _| vec![1 - rank as i32])
}

/// Returns a layer with tokens so short that a tile takes one stage. There are more stages than slots for tiles, so
/// that loads can run ahead of the matrix products.
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

/// The number of seeds with which a mutation must be found.
const SEEDS_TO_FIND: u64 = 10;
/// The number of seeds with which a kernel without a mutation is run.
const SEEDS_WITHOUT_ALARM: u64 = 2;

fn layer() -> Layer {
    let choose = |salt: usize| {
        move |rank: usize, token: usize| {
            let first = (rank * 5 + token * 3 + salt) % 6;
            vec![first as i32, ((first + 1 + token % 2) % 6) as i32]
        }
    };
    let mut layer = Layer::new(2, 6, 2, 24);
    // A tile takes more stages than the pipeline has, and two sub-tiles pass through one output buffer.
    layer.hidden = 456;
    layer.intermediate = 200;
    layer.tile = Some((64, 256));
    layer
        .call(&[24, 24], choose(0))
        .call(&[24, 0], choose(1))
        .call(&[24, 24], choose(2))
}

/// Returns a layer in which rank 0 can be a call ahead.
///
/// Tokens of rank 0 have experts on rank 0 only. Tokens of each other rank have experts on the next rank other than 0. Each of
/// these ranks alternately computes a sum for a peer and waits for a sum of its own, and meanwhile reads the entries of rank 0.
/// Rank 0 waits for no peer.
fn rank_0_ahead() -> CombineEdits {
    let mut layer = Layer::new(4, 4, 1, 16);
    (layer.hidden, layer.intermediate) = (8, 8);
    (layer.sms, layer.skew) = (1, 100);
    layer.low_latency_tokens = Some(0);
    CombineEdits((0..3).fold(layer, |layer, _| {
        layer.call(&[16; 4], |rank, _| vec![[0, 2, 3, 1][rank]])
    }))
}

/// Returns a layer in which a CTA has more rows than its pipeline has stages, and all sums pass through it.
fn combine_layer() -> CombineEdits {
    let mut layer = layer();
    layer.sms = 3;
    layer.low_latency_tokens = Some(0);
    CombineEdits(layer)
}

/// Returns a layer in which all sums travel in packets, and ranks have fewer tokens from call to call.
fn few_tokens() -> CombineEdits {
    let layer = Layer::new(2, 6, 2, 24);
    let mut layer = [[24, 24], [20, 24], [3, 1], [2, 9], [24, 24]]
        .iter()
        .enumerate()
        .fold(layer, |layer, (salt, counts)| {
            layer.call(counts, |rank, token| {
                let first = (rank * 5 + token * 3 + salt) % 6;
                vec![first as i32, ((first + 1 + token % 2) % 6) as i32]
            })
        });
    (layer.intermediate, layer.skew) = (200, 100);
    CombineEdits(layer)
}

/// Returns a layer in which the sums of ranks with few tokens travel in packets, and the sums of other ranks do not.
fn few_and_many_tokens() -> CombineEdits {
    let CombineEdits(mut layer) = few_tokens();
    layer.low_latency_tokens = Some(20);
    CombineEdits(layer)
}

/// Returns a layer with fewer tiles than CTAs, which are divided into slices.
fn layer_in_slices() -> Layer {
    let mut layer = layer();
    (layer.intermediate, layer.split_k, layer.sms, layer.skew) = (72, Some(3), 11, 100);
    layer
}

/// Returns a layer in which tokens lack choices, and all sums of `combine` pass through the pipeline.
fn padded_layer() -> Layer {
    let mut layer = layer().padded();
    layer.low_latency_tokens = Some(0);
    layer
}

/// Returns a layer in which tokens lack choices, and all sums travel in packets.
fn padded_few_tokens() -> CombineEdits {
    let CombineEdits(layer) = few_tokens();
    CombineEdits(layer.padded())
}

/// Returns a layer whose C is the product of two sums.
fn swiglu_layer() -> Layer {
    let mut layer = layer();
    layer.swiglu = true;
    layer
}

#[rustfmt::skip]
const SWIGLU: &[Mutation] = &[
    ("gate and up exchanged", "@swiglu.apply", "silu(gate) * up.at(half, col) => gate * silu(up.at(half, col))"),
    ("no silu", "@swiglu.apply", "silu(gate) => gate"),
    ("up taken from the gate's columns", "@swiglu.up-column", " * cols => * 0"),
];

/// Mutations of the sums of tiles that are divided into slices.
#[rustfmt::skip]
const SLICES: &[Mutation] = &[
    ("slices with a gap between them", "@split-k.end", "/ splits() => / splits() - 1"),
    ("slices that overlap", "@split-k.begin", "split() * steps / splits() => 0"),
    ("sums of all slices in one place", "@split-k.slot", "slice.tile() * slice.splits() + split => slice.tile() * slice.splits()"),
    ("slices counted before all threads have stored their sums", "@split-k.stored", ""),
    ("sums read before they are stored", "@split-k.count", "slice.splits() => slice.splits() - 1"),
    ("a count that releases and acquires nothing", "@split-k.count", "fetch_add_acq_rel_gpu => fetch_add_relaxed_gpu"),
    ("slices not counted anew in later calls", "@split-k.reset", ""),
    ("sums read by threads that have not acquired them", "@split-k.counted", "sync() => __syncwarp()"),
];

#[rustfmt::skip]
const DISPATCH: &[Mutation] = &[
    // Routing.
    ("slices added before all CTAs have counted", "@routing.meet", "__syncthreads();"),
    ("lists read before a peer has written them", "@routing.wait", "wanted} => wanted - gridDim.x}"),
    ("no fence before lists are signalled", "@routing.signal-fence", ""),
    ("rows of all sources start at the first row", "@routing.rows-before", "rows_before = rows => rows_before = 0"),
    ("no fence before TMA writes over the tables of slices", "@routing.reuse-fence", ""),
    // Transfer of tokens.
    ("tokens not awaited", "@tokens.wait", ""),
    ("another block awaited", "@tokens.block", "Config::kBlockTokens => Config::kBlockTokens / 2"),
    ("flag stored before tokens are written", "@copy.stored", ""),
    ("flag that releases nothing", "@tokens.signal", "store_release_sys => store_relaxed_sys"),
    ("slot not full", "@copy.wait", ""),
    ("stages where slots are still in use", "@roles.first-phase", ""),
    // Tiles.
    ("a tile read before it is written", "@tiles.wait", ""),
    ("the counter of tiles not reset", "@tile-counter.reset", ""),
    // Loads of rows into the pipeline.
    ("stage not empty", "@grouped.acquire", ""),
    ("copies not awaited", "@grouped.copies", ""),
    ("last copies not awaited", "@grouped.last-copies", ""),
    ("no fence between copies and products", "@grouped.copies-fence", ""),
    ("a warp's rows not awaited", "@grouped.arrivals", "1 + kLoadWarps => kLoadWarps"),
    ("addresses read before they are written", "@grouped.addresses", ""),
    // Results.
    ("stage released before it is read", "@mainloop.product", ""),
    ("rows beyond an expert's", "@grouped.rows", ">= tile.rows => > tile.rows"),
    ("output buffer not read", "@grouped.out-read", ""),
];

/// Mutations of how `dispatch_gemm` treats choices that tokens do not have.
#[rustfmt::skip]
const NO_EXPERT: &[Mutation] = &[
    ("no choice taken for a wrong expert", "@choices.no-expert", ""),
    ("a row for no choice", "@routing.no-row", ""),
    ("the index of a row for no choice", "@routing.no-index", "e != kNoExpert => true"),
];

/// The same of `combine`. The first ones are also in kernels whose sums travel in packets.
#[rustfmt::skip]
const NO_ROW: &[Mutation] = &[
    ("no row taken for a wrong index", "@topk.no-row", " && row_index != kNoRow => "),
    ("a token without rows not written", "@own-tokens.no-rows", ""),
];

/// Mutations with one buffer for all calls, in the code that writes the buffer and in the code that reads it.
#[rustfmt::skip]
const ONE_BUFFER: &[(&str, [(&str, &str); 2])] = &[
    ("the same messages in every call", [("@routing.read-message", "ctx.parity() => 0u"), ("@routing.write-message", "ctx.parity() => 0u")]),
    ("the same lists in every call", [("@routing.read-list", "ctx.parity() => 0u"), ("@routing.write-list", "ctx.parity() => 0u")]),
];

/// The list has no mutation without the proxy fence in `TokenSum::load`, since that is right on one node. The rows that
/// are loaded there were written before the kernel began, or by TMA with a proxy fence before the release of the flag.
/// Data that NICs write needs the fence, and `multinode` has that mutation.
#[rustfmt::skip]
const COMBINE: &[Mutation] = &[
    // Entries.
    ("entries read before they have arrived", "@topk.wait", "!packet.has_arrived(ctx.mark()) => false"),
    ("a rank sends before it has read what it received", "@topk.send-fence", ""),
    ("a send does not acquire the reads of its rank", "@topk.acquire", "Ordering::kAcquire => Ordering::kRelaxed"),
    ("number of tokens not awaited", "@peer-tokens.counts", ""),
    ("the epoch advances before it is read", "@topk.enter", "if (threadIdx.x == 0) advance_epoch(ctx); if (!enter(ctx)) return false;"),
    // Sums of peers.
    ("sums of peers not awaited", "@sums.poll", "is_here = 1;"),
    ("the last sums of peers not awaited", "@sums.wait", ""),
    ("sums of peers read without acquire", "@sums.poll", "load_acquire_sys => load_relaxed_sys"),
    ("flags that only one lane has read", "@sums.all-lanes", "all &= broadcast(is_here, 0);"),
    ("flag stored before its sum is written", "@rows.sum-arrived", ""),
    ("flag that releases nothing", "@rows.sum-flag", "store_release_sys => store_relaxed_sys"),
    ("the sum of a peer added once for each of its rows", "@sums.first-of-group", "(is_own || is_first) => (is_own || true)"),
    // The pipelines.
    ("rows of a sum loaded into the same stage", "@rows.lane-stage", ""),
    ("stage not free", "@rows.acquire", ""),
    ("stage freed before it is read by all lanes", "@rows.release-warp", ""),
    ("sum not free", "@rows.output-acquire", ""),
    ("sum freed before it is read", "@rows.output-read", ""),
    ("sum stored without a fence", "@rows.output-fence", ""),
    ("a lane's columns not awaited", "@pipeline.warp-commit", ""),
    ("a warp's columns not awaited", "@rows.output-barriers", "kAdderWarps => kAdderWarps - 1"),
    ("weights of other entries", "@sums.weight", "is_own ? entry.weight_bits : SumRow::kOneBits => SumRow::kOneBits"),
];

/// Mutations of kernels all of whose sums travel in packets.
///
/// The list has no mutation without the acquire of counts. It orders the receiver's relaxed stores of zeros before the
/// sender's relaxed stores two calls later. The simulator keeps their order in any case.
#[rustfmt::skip]
const LOW_LATENCY: &[Mutation] = &[
    ("entries read before they have arrived", "@topk.wait", "!packet.has_arrived(ctx.mark()) => false"),
    ("entries of tokens that do not exist", "@topk.no-token", ""),
    ("the epoch advances before it is read", "@topk.enter", "if (threadIdx.x == 0) advance_epoch(ctx); if (!enter(ctx)) return false;"),
    ("packets not awaited", "@low-latency.arrived", "if (false) continue;"),
    ("half of a vector awaited", "@lamport.vec-arrived", "&& => ||"),
    ("packets not cleared", "@low-latency.clear", ""),
    ("weights of other entries", "@low-latency.weight", "is_own ? entry.weight_bits : SumRow::kOneBits => SumRow::kOneBits"),
    ("rows of a sum in one place", "@low-latency.position", "= SumRow::position_in_sum<Config>(group, is_own) => = group == SumRow::kNoGroup ? SumRow::kNone : group * kWarp"),
    ("the sum of a peer added once for each of its rows", "@sums.first-of-group", "(is_own || is_first) => (is_own || true)"),
];

/// Mutations of kernels in which a rank's number of tokens decides how its sums travel.
#[rustfmt::skip]
const FEW_AND_MANY: &[Mutation] = &[
    ("numbers of tokens read before they are written", "@low-latency.counts", ""),
    ("packets not awaited", "@low-latency.arrived", "if (false) continue;"),
];

/// Plants each mutation in a `job` of its own, where it must be found.
pub fn are_found<J: SimulatedJob + Sync>(job: fn() -> J, mutations: &[Mutation]) {
    let mutate = |(name, from, to): &Mutation| (*name, mutated(job(), &[(*from, *to)]));
    all_are_found(
        &mutations.iter().map(mutate).collect::<Vec<_>>(),
        SEEDS_TO_FIND,
    );
}

#[test]
fn every_mutation_of_dispatch_gemm_is_found() {
    are_found(layer, DISPATCH);
    are_found(swiglu_layer, SWIGLU);
    are_found(layer_in_slices, SLICES);
    are_found(padded_layer, NO_EXPERT);
    let mutate =
        |(name, edits): &(&'static str, [(&str, &str); 2])| (*name, mutated(layer(), edits));
    all_are_found(
        &ONE_BUFFER.iter().map(mutate).collect::<Vec<_>>(),
        SEEDS_TO_FIND,
    );
}

#[test]
fn a_missing_wait_for_free_slots_is_found() {
    assert_eq!(long_tokens().run(0).err(), None);
    let mutation = ("slot not read", "@copy.slot-read", "");
    are_found(long_tokens, &[mutation]);
}

#[test]
fn a_missing_wait_for_free_tile_slots_is_found() {
    assert_eq!(short_tokens().run(0).err(), None);
    let mutation = (
        "a tile's slot overwritten before it is read",
        "@tiles.acquire",
        "",
    );
    are_found(short_tokens, &[mutation]);
}

#[test]
fn one_buffer_of_entries_for_all_calls_is_found() {
    for seed in 0..SEEDS_WITHOUT_ALARM {
        assert_eq!(rank_0_ahead().run(seed).err(), None, "seed {seed}");
    }
    let buffers = ["@topk.counts-buffer", "@topk.buffer"].map(|tag| (tag, "ctx.parity() => 0u"));
    let mutation = (
        "one buffer of entries for all calls",
        mutated(rank_0_ahead(), &buffers),
    );
    all_are_found(&[mutation], SEEDS_TO_FIND);
}

/// In these mutations, a call takes a word that was written long ago, or never, for the word that it awaits.
#[test]
fn stale_marks_that_are_taken_for_new_ones_are_found() {
    let [before_2_31, before_2_32] = WRAPPING_CALL_COUNTS;
    let layer = |calls| Layer {
        low_latency_tokens: Some(0),
        ..Layer::new(2, 6, 2, 48).with_call_count(calls)
    };
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
                "dispatch_gemm: marks compared by a window",
                mutated(
                    layer(before_2_31),
                    &[("@tokens.wait", "wait_mark => wait_flag")],
                ),
            ),
            (
                "dispatch_gemm: 0 used as a mark",
                mutated(
                    layer(before_2_32),
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
                "combine: marks compared by a window",
                mutated(CombineEdits(layer(before_2_31)), &windows),
            ),
            (
                "combine: 0 used as a mark",
                mutated(CombineEdits(layer(before_2_32)), &marks),
            ),
        ],
        SEEDS_TO_FIND,
    );
}

#[test]
fn every_mutation_of_combine_is_found() {
    are_found(combine_layer, COMBINE);
    are_found(|| CombineEdits(padded_layer()), NO_ROW);
    are_found(padded_few_tokens, &NO_ROW[..1]);
}

#[test]
fn every_mutation_of_sums_in_packets_is_found() {
    for seed in 0..SEEDS_WITHOUT_ALARM {
        for job in [few_tokens(), few_and_many_tokens(), padded_few_tokens()] {
            assert_eq!(job.run(seed).err(), None, "seed {seed}");
        }
    }
    are_found(few_tokens, LOW_LATENCY);
    are_found(few_and_many_tokens, FEW_AND_MANY);
}

#[test]
fn kernels_without_mutations_are_right() {
    for seed in 0..SEEDS_WITHOUT_ALARM {
        for layer in [layer(), layer_in_slices(), padded_layer()] {
            assert_eq!(layer.run(seed).err(), None, "seed {seed}");
        }
    }
}
