//! How a rank's rows travel to its peers: by SMs or by copy engines, and in which chunks.

use super::config::Transfer;
use super::op_plan::{Chunks, SLOT_BYTES};
use super::spec::GemmSpec;
use crate::arch::Tile;
use crate::device::Device;
use crate::parts::network::PUT_BYTES;
use crate::plan::Network;

/// Bytes that a warp of a compute CTA pushes before it raises a flag. With fewer bytes, flags take too much time. With more, too
/// few warps are busy.
const PIECE_BYTES: u64 = 8 << 10;
/// Bytes of a piece if the consumer warps push too. Then rows are few and a call waits for the slowest warp, so every CTA gets a
/// piece (`docs/performance.md#pieces-of-few-rows`).
const ALL_HANDS_PIECE_BYTES: std::ops::RangeInclusive<u64> = 2 << 10..=4 << 10;
/// 16-byte loads in flight of a thread that pushes while other warps compute. Registers limit the number. If each call gives the
/// rows, the number is half of this.
const PUSH_UNROLL: u32 = 4;
/// The most bytes of a piece: four slots under one fence.
const MAX_PIECE_BYTES: u64 = 4 * SLOT_BYTES as u64;
/// The most bytes of the shard per CTA with which the consumer warps push too, before they multiply. The delay is short, and the
/// link is busy from the start.
const ALL_HANDS_BYTES: u64 = 32 << 10;
/// The fewest bytes of a copy. With shorter copies, the copy engines idle while the host enqueues.
const MIN_COPY_BYTES: u64 = 1 << 20;
/// The most bytes of a copy. Longer copies are no faster than this and delay the first tile.
const MAX_COPY_BYTES: u64 = 16 << 20;
/// Rows of a chunk, equal to the rows of the largest tile.
const CHUNK_ROWS: u64 = 128;

/// How the shard travels.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// By SMs alone.
    Sm { ctas: u32, slices: u32 },
    /// By copy engines alone, in about `per_peer` copies to each peer.
    Copies { per_peer: u32 },
}

/// Every way that the spec allows. Copy engines need a number of rows that the host knows, and do not copy scales.
pub(super) fn ways(spec: GemmSpec<'_>) -> Vec<Way> {
    let tuning = spec.tuning();
    let choices =
        |fixed: Option<u32>, all: &[u32]| fixed.map_or_else(|| all.to_vec(), |one| vec![one]);
    let allows = |transfer| tuning.transfer.is_none_or(|t| t == transfer);
    let mut ways = Vec::new();
    if spec.crosses_nodes() {
        // Whole rows travel, so that a put is one range of bytes.
        let ctas = choices(tuning.comm_ctas, &[1, 2, 4, 8, 16]).into_iter();
        return ctas.map(|ctas| Way::Sm { ctas, slices: 1 }).collect();
    }
    if allows(Transfer::SmPush) {
        for ctas in choices(tuning.comm_ctas, &[0, 4, 8, 16]) {
            for slices in choices(tuning.k_slices, &[1, 2, 4, 8]) {
                ways.push(Way::Sm { ctas, slices });
            }
        }
    }
    // A given `k_slices` or `comm_ctas` implies `transfer = sm_push`.
    let may_copy = allows(Transfer::CopyEngine)
        && !spec.takes_rows()
        && spec.config.row_scales(spec.shape.k) == 0;
    if may_copy && tuning.comm_ctas.is_none() && tuning.k_slices.is_none() {
        ways.extend([16, 8, 4].map(|per_peer| Way::Copies { per_peer }));
    }
    ways
}

/// The numbers on which the chunks of a candidate depend.
pub(super) struct Exchange<'a> {
    pub spec: GemmSpec<'a>,
    pub device: &'a Device,
    pub aligned: bool,
    pub tiles: u32,
}

impl Exchange<'_> {
    fn shard_rows(&self) -> u64 {
        self.spec.shard_rows()
    }

    /// Chunks that SMs push in pieces of some KiB. A flag counts the pieces of a chunk of rows in a slice of K. `None` if a slice
    /// would be empty.
    pub fn sm_chunks(&self, comm_ctas: u32, k_slices: u32) -> Option<Chunks> {
        let slice_cols = self
            .spec
            .shape
            .k
            .div_ceil(u64::from(k_slices))
            .next_multiple_of(self.spec.types().tile_k().into());
        if slice_cols * u64::from(k_slices - 1) >= self.spec.shape.k {
            return None;
        }
        let shard_rows = self.shard_rows();
        let shard_bytes = shard_rows * self.spec.a_row_bytes();
        let chunk_rows = self
            .spec
            .tuning()
            .chunk_rows
            .map_or_else(|| self.chunk_rows(), u64::from);
        let all_hands = shard_bytes <= ALL_HANDS_BYTES * u64::from(self.device.sm_count);
        let piece_bytes = match u64::from(comm_ctas * self.device.arch.spec().warps()) {
            0 if all_hands => {
                let (least, most) = ALL_HANDS_PIECE_BYTES.into_inner();
                (shard_bytes / u64::from(self.device.sm_count)).clamp(least, most)
            }
            0 => PIECE_BYTES,
            // A fence waits for all stores of its SM, so pieces are few, but every warp gets two pieces.
            warps => (shard_bytes / warps / 2).clamp(u64::from(SLOT_BYTES), MAX_PIECE_BYTES),
        };
        let slice_bytes = slice_cols * self.spec.types().a.bytes();
        let piece_rows = whole_pieces(piece_bytes / slice_bytes, chunk_rows);
        let per_shard = shard_rows.div_ceil(chunk_rows) as u32;
        // If all tiles are computed in one wave, all rows are needed at once, slice by slice. Otherwise whole rows are sent first.
        let panel_chunks = match k_slices {
            1 => 1,
            _ if self.tiles <= self.device.sm_count => per_shard,
            _ => per_shard.min(4),
        };
        let push_warps = match comm_ctas {
            0 if all_hands => 9,
            0 => 1,
            _ => self.device.arch.spec().warps(),
        };
        Some(Chunks {
            rows: chunk_rows as u32,
            per_shard,
            k_slices,
            slice_cols: slice_cols as u32,
            piece_rows: piece_rows as u32,
            arrivals: chunk_rows.div_ceil(piece_rows) as u32,
            panel_chunks,
            push_warps,
            push_unroll: match (comm_ctas, self.spec.takes_rows()) {
                (0, false) => PUSH_UNROLL,
                (0, true) => PUSH_UNROLL / 2,
                _ => 0,
            },
            to_self: !self.aligned && !self.spec.takes_rows(),
        })
    }

    /// Rows of a chunk. Across nodes, a chunk is a put.
    fn chunk_rows(&self) -> u64 {
        let rows = CHUNK_ROWS.min(self.shard_rows().next_power_of_two());
        if self.spec.crosses_nodes() {
            let in_put = (u64::from(PUT_BYTES) / self.spec.sent_row_bytes()).max(1);
            return rows.min(1 << in_put.ilog2());
        }
        rows
    }

    /// Copies of whole row tiles, about `per_peer` to each peer within limits.
    pub fn copy_chunks(&self, tile: Tile, per_peer: u32) -> Chunks {
        let (row_bytes, shard_rows) = (self.spec.a_row_bytes(), self.shard_rows());
        let bytes =
            (shard_rows * row_bytes / u64::from(per_peer)).clamp(MIN_COPY_BYTES, MAX_COPY_BYTES);
        let tile_rows = u64::from(tile.m);
        let rows = self.spec.tuning().chunk_rows.map_or_else(
            || {
                (bytes / row_bytes)
                    .next_multiple_of(tile_rows)
                    .max(tile_rows)
                    .min(shard_rows)
            },
            u64::from,
        );
        Chunks {
            rows: rows as u32,
            per_shard: shard_rows.div_ceil(rows) as u32,
            k_slices: 1,
            slice_cols: self.spec.shape.k as u32,
            piece_rows: rows as u32,
            arrivals: 1,
            panel_chunks: 1,
            push_warps: 0,
            push_unroll: 0,
            to_self: false,
        }
    }
}

/// Bytes that a rank copies to the source of its puts; 0 on one node.
pub(super) fn own_bytes(spec: GemmSpec<'_>) -> u64 {
    match spec.crosses_nodes() {
        true => spec.shard_rows() * spec.sent_row_bytes(),
        false => 0,
    }
}

/// Bytes of a put to another node; 0 on one node.
pub(super) fn put_bytes(spec: GemmSpec<'_>, chunks: &Chunks) -> u64 {
    match spec.crosses_nodes() {
        true => u64::from(chunks.rows).min(spec.shard_rows()) * spec.sent_row_bytes(),
        false => 0,
    }
}

/// The puts that the kernel needs across nodes. `None` on one node.
pub(super) fn network(spec: GemmSpec<'_>, chunks: Option<&Chunks>) -> Option<Network> {
    let chunks = chunks.filter(|_| spec.crosses_nodes())?;
    Some(Network {
        channels: 1,
        puts: chunks.per_shard + u32::from(spec.takes_rows()),
        put_bytes: put_bytes(spec, chunks),
    })
}

/// The largest power of two not above `rows` that divides `chunk_rows`, so that no piece reaches into the next chunk.
const fn whole_pieces(rows: u64, chunk_rows: u64) -> u64 {
    let most = if rows < 2 { 1 } else { 1 << rows.ilog2() };
    let in_chunk = 1 << chunk_rows.trailing_zeros();
    if most < in_chunk { most } else { in_chunk }
}
