//! Mutations of `ring_attention`.

use crate::{Kernel, RELAXED_WAIT};
use mkernel::spec::Placement;
use mkernel_testing::jobs::Mutation;
use mkernel_testing::jobs::attention::{AttentionJob, InputKind};

pub const KERNELS: &[Kernel<AttentionJob>] = &[
    ("gathered", gathered),
    ("ring", ring),
    ("many", many),
    ("one_way", one_way),
    ("masked", masked),
];

/// Each of two ranks has several tiles of queries and several blocks of keys.
fn gathered() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2)
}

/// Three heads take turns in one slot.
fn ring() -> AttentionJob {
    AttentionJob::new(2, [1, 200, 3, 3, 64], 3).slots(1, 1)
}

/// A CTA has more tiles than buffers, and there are more parts of keys than warps that push.
fn many() -> AttentionJob {
    AttentionJob::new(2, [1, 130, 6, 6, 64], 2)
}

/// The first rank sends, but waits for no other rank. So it can be a call ahead.
fn one_way() -> AttentionJob {
    AttentionJob::new(2, [1, 512, 1, 1, 64], 2).causal(Placement::Contiguous)
}

/// Tiles of queries and blocks of keys end inside a tile.
fn masked() -> AttentionJob {
    AttentionJob::new(2, [1, 300, 2, 1, 64], 2).causal(Placement::Zigzag)
}

/// The first row of the last chunk is not finite. It lies behind the first rank's first chunk.
fn not_finite_behind() -> AttentionJob {
    let job = AttentionJob::new(2, [1, 200, 1, 1, 64], 2).causal(Placement::Zigzag);
    job.inputs(InputKind::NotFiniteRow(150))
}

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation<AttentionJob>] = &[
    // Between ranks.
    ("keys are not awaited", gathered, &[("@ring-attention.kv-wait", "")]),
    ("the wait for keys does not acquire", gathered, &[RELAXED_WAIT, ("@kv-slots.wait", "wait_flag( => relaxed_wait(")]),
    ("fewer parts of a block are awaited", gathered, &[("@kv-slots.wanted", "* kParts => * kParts - 1")]),
    ("keys of the previous call are used", gathered, &[("@kv-slots.wanted", "(slot.earlier + 1) => slot.earlier")]),
    ("the flag is stored before the bytes", gathered, &[("@copy.stored", "tma_wait< => tma_wait_read<")]),
    ("there is no fence before the flag", gathered, &[("@kv-push.count-fence", "")]),
    ("a peer's slot is not waited for", ring, &[("@kv-slots.credit", "slot.earlier => 0u")]),
    ("a peer's slot is taken one tile early", ring, &[("@kv-slots.credit", "}); => - slot.earlier});")]),
    ("the wait for a slot does not acquire", ring, &[RELAXED_WAIT, ("@kv-slots.credit-wait", "wait_flag( => relaxed_wait(")]),
    ("slots are released before the keys are read", ring, &[("@ring-attention.release", ""), ("@ring-attention.queries", "; => ; if (row == 0) KvSlots<Config, Workspace, Mask>::release_slots(ctx, tile);")]),
    ("slots are released without a fence", ring, &[("@kv-slots.release-fence", "")]),
    // Within a CTA.
    ("tiles are loaded before the last push", gathered, &[("@roles.first-phase", "")]),
    ("a pushing warp's buffer is loaded too early", gathered, &[("@copy.stored", "")]),
    ("K is free before it is read", gathered, &[("@attention-mainloop.k-release", ""), ("@attention-mainloop.scores", "mma_wait => k.consumer_release_warp(); mma_wait")]),
    ("K is not awaited", gathered, &[("@attention-mainloop.k-wait", "")]),
    ("V is not awaited", gathered, &[("@attention-mainloop.v-wait", "")]),
    ("a turn is not passed on", gathered, &[("@attention-mainloop.pass-turn", "")]),
    ("a call does not wait for the previous one", one_way, &[("@kv-slots.credit", "slot.earlier => (slot.earlier - (slot.earlier > 0))")]),
    ("a pushing warp does not advance its phase", many, &[("@copy.phase", "")]),
    ("queries are loaded over results that are not stored yet", many, &[("@ring-attention.output-fence", "")]),
    // Arithmetic.
    ("earlier sums are not rescaled", gathered, &[("@attention-mainloop.rescale", "rescale[half] => 1.0f")]),
    ("one key too many", masked, &[("@attention-mainloop.diagonal", "+ 1; => + 2;")]),
    ("one key too few", masked, &[("@attention-mainloop.diagonal", "+ 1; => + 0;")]),
    ("values of keys of the mirrored chunk", not_finite_behind, &[("@tile-load.rows", "end - at.row => Config::kTileRows")]),
    ("keys beyond the end of the sequence", masked, &[("@attention-mainloop.ragged", "Config::kTileKeys => 1")]),
    ("the wrong chunk", masked, &[("@sequence.zigzag", "- 1 - rank => - 1 - (rank ^ 1)")]),
];
