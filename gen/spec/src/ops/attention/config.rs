//! The configuration of an attention operator: `ring_attention`.

use super::placement::{Layout, Placement};
use crate::config::{Dim, Dtype, Field, Scale};
use crate::diagnostic::Diagnostics;
use crate::options::op::Op;
use crate::options::option::{OptionSpec, options};
use crate::options::option_type::OptionType;
use crate::options::value::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most heads over all batches. Tiles of queries are counted in 32 bits.
pub const MAX_HEADS: u64 = 1 << 20;

// The limit of `kv_slots` is a literal, since documentation shows it.
const _: () = assert!(MAX_HEADS == 1048576);

/// The most packed sequences of a call, or sequences with cached rows. Each CTA has a table of the sequences in shared memory.
pub const MAX_SEQUENCES: u64 = 1024;

/// The most cached rows of a sequence on a rank. Rows over all ranks are counted in 32 bits.
pub const MAX_CACHED_ROWS: u32 = 1 << 24;

options! {
    /// An attention operator: `dtype` in and out, fp32 softmax.
    ///
    /// ```
    /// use mkernel_spec::{AttentionConfig, AttentionOp, Dim, Placement};
    ///
    /// let attention = AttentionConfig {
    ///     batch: Dim::Static(1),
    ///     heads: Dim::Static(64),
    ///     kv_heads: Dim::Static(8),
    ///     head_dim: Dim::Static(128),
    ///     causal: true,
    ///     placement: Placement::Zigzag,
    ///     ..AttentionConfig::new(AttentionOp::RingAttention)
    /// };
    /// assert_eq!(attention.seq, Dim::Dynamic);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct AttentionConfig {
        op: AttentionOp, sizes: AttentionShape {
            /// Sequences; with `packed`, the most that a call may have.
            batch as BATCH,
            /// Rows of each sequence, over all ranks, without cached rows; with `packed`, the most rows that all sequences of a
            /// call together may have.
            seq as SEQ,
            /// Heads of Q and O.
            heads as HEADS,
            /// Heads of K and V, a divisor of `heads`.
            ///
            /// If `kv_heads` equals `heads`, every head has K and V of its own; with 1, all heads share K and V.
            kv_heads as KV_HEADS,
            /// Elements of a row of a head: 64 or 128.
            head_dim as HEAD_DIM,
        }
        options {
            /// Type of the elements of Q, K, V and O.
            ///
            /// Sums are fp32. fp16 has numbers up to 65504; larger results become infinite.
            #[among(Dtype::FACTORS)]
            #[serde(default)]
            dtype: Dtype as =DTYPE,
            /// How Q, K, V and O lie in memory: as `[B, S, H, D]` (bshd), or as `[B, H, S, D]` (bhsd).
            #[serde(default)]
            layout: Layout as LAYOUT,
            /// Whether a row attends to no later rows.
            #[serde(default)]
            causal: bool as CAUSAL,
            /// The rows of the sequence that a rank has: of W chunks number r (contiguous), or of 2W chunks number r and then
            /// number 2W - 1 - r (zigzag).
            ///
            /// With `causal`, only `zigzag` gives all ranks equal work.
            #[serde(default)]
            placement: Placement as PLACEMENT,
            /// Whether sequences have different lengths, which each call gives as offsets, and lie one after the other without
            /// padding.
            ///
            /// The ranks are those of one node.
            #[serde(default)]
            packed: bool as PACKED,
            /// The most rows of K and V that a rank has from earlier calls, in each sequence.
            ///
            /// Each call gives the number of cached rows. Every row attends to all cached rows, also with `causal`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            cached: Option<u32> as CACHED,
            /// The factor by which scores are multiplied before the softmax, a number above 0.
            #[serde(default)]
            scale: Scale as SCALE,
            /// Whether the logarithm of the sum of exponentials of each row's scores is written.
            ///
            /// Without it, calls have no operand `lse`: inference does not need one.
            #[default(written())]
            #[serde(default = "written")]
            lse: bool as LSE,
        }
        groups {
            /// Options that fix choices of the planner.
            #[serde(default)]
            tuning: AttentionTuning,
        }
    }

    /// Options that fix choices of the planner. The planner makes the choices that are `None`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct AttentionTuning {
        options {
            /// CTAs that send K and V.
            ///
            /// On one node these CTAs send before they compute, on several nodes while they compute.
            #[limits(1..=128)]
            #[serde(skip_serializing_if = "Option::is_none")]
            comm_ctas: Option<u32> as =COMM_CTAS,
            /// For each peer, the number of heads of K and V, over all batches, for which a rank has room.
            #[limits(1..=1048576)]
            #[serde(skip_serializing_if = "Option::is_none")]
            kv_slots: Option<u32> as KV_SLOTS,
        }
    }
}

/// The default of `lse`.
const fn written() -> bool {
    true
}

/// The operator. [`Op`] describes each operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionOp {
    /// [`Op::RingAttention`]
    RingAttention,
}

impl AttentionOp {
    /// All operators of the kind.
    pub const ALL: [Self; 1] = [Self::RingAttention];

    /// The [`Op`] of this operator.
    #[must_use]
    pub const fn op(self) -> Op {
        match self {
            Self::RingAttention => Op::RingAttention,
        }
    }
}

impl fmt::Display for AttentionOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())
    }
}

impl AttentionConfig {
    /// Batches of the operands. Packed sequences share one batch.
    pub(super) const fn batches(&self) -> Dim {
        match self.packed {
            true => Dim::Static(1),
            false => self.batch,
        }
    }
}

impl AttentionShape {
    /// The largest number of rows of a sequence that a rank has: rows of Q and O if no call gives their number to the host, and
    /// rows of K and V behind the cached rows.
    #[must_use]
    pub const fn rank_rows(self, world: u32, placement: Placement) -> u64 {
        self.chunk_rows(world, placement) * placement.segments() as u64
    }

    /// Rows of a chunk of the sequence, perhaps fewer in the last chunks.
    #[must_use]
    pub const fn chunk_rows(self, world: u32, placement: Placement) -> u64 {
        self.seq
            .div_ceil(world as u64 * placement.segments() as u64)
    }

    /// The largest number of rows that the operands of a rank need for packed sequences. The rows of every sequence are divided
    /// among the ranks, and the first ranks have more rows of a sequence than the last ranks.
    #[must_use]
    pub fn packed_rank_rows(self, world: u32, placement: Placement) -> u64 {
        self.packed_chunk_parts(world, placement, 1) * u64::from(placement.segments())
    }

    /// The most parts of up to `rows` rows in a chunk of each of the packed sequences: the sum of
    /// ⌈length / (chunks · rows)⌉ is at most this, and equal if all sequences but one have a row each.
    pub(super) fn packed_chunk_parts(self, world: u32, placement: Placement, rows: u64) -> u64 {
        let of_part = u64::from(world) * u64::from(placement.segments()) * rows;
        let sequences = self.batch.min(self.seq);
        (self.seq + sequences * (of_part - 1)) / of_part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the offsets of sequences of these lengths.
    fn offsets(lengths: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets.last().unwrap_or(&0) + length);
        }
        offsets
    }

    /// Calls `check` with each world, each placement, and lengths of sequences of all kinds.
    fn for_each_packing(check: impl Fn(u32, Placement, &[u64])) {
        for world in [1, 2, 4, 8] {
            for placement in Placement::ALL {
                for lengths in [
                    &[][..],
                    &[0],
                    &[1],
                    &[1, 1, 1, 1],
                    &[1, 1, 1, 997],
                    &[3, 0, 128, 129, 17],
                    &[1000, 1, 24],
                ] {
                    check(world, placement, lengths);
                }
            }
        }
    }

    #[test]
    fn every_packed_row_has_one_rank() {
        for_each_packing(|world, placement, lengths| {
            let offsets = offsets(lengths);
            let of_rank = |rank| placement.packed_rows_of(world, rank, &offsets);
            let mut rows: Vec<u64> = (0..world).flat_map(of_rank).flatten().collect();
            rows.sort_unstable();
            let all: Vec<u64> = (0..lengths.iter().sum()).collect();
            assert_eq!(rows, all, "{world} {placement} {lengths:?}");
        });
    }

    #[test]
    fn packed_rows_and_blocks_fit_into_their_room() {
        for_each_packing(|world, placement, lengths| {
            let shape = AttentionShape {
                batch: lengths.len() as u64,
                seq: lengths.iter().sum(),
                heads: 1,
                kv_heads: 1,
                head_dim: 64,
            };
            let offsets = offsets(lengths);
            for rank in 0..world {
                let rows = placement.packed_rows_of(world, rank, &offsets);
                let rows: u64 = rows.iter().map(|rows| rows.end - rows.start).sum();
                assert!(rows <= shape.packed_rank_rows(world, placement));
            }
            let chunks = u64::from(world * placement.segments());
            let of_chunk = |rows: u64| lengths.iter().map(|seq| seq.div_ceil(chunks * rows)).sum();
            for rows in [1, 128] {
                let most = shape.packed_chunk_parts(world, placement, rows);
                let found: u64 = of_chunk(rows);
                assert!(found <= most);
                // All sequences but one have a row each.
                if lengths.iter().filter(|seq| **seq > 1).count() <= 1 && !lengths.contains(&0) {
                    assert_eq!(found, most, "{world} {placement} {lengths:?}");
                }
            }
        });
    }
}
