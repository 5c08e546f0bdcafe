//! The order and the addresses of copies. This file calls no CUDA function.

use crate::report::CopySource;
use mkernel_spec::abi::{Extent, FLAG_STRIDE_BYTES};
use mkernel_spec::plan::Copies;

/// One copy and the flag that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyStep {
    pub peer: u32,
    pub chunk: u32,
    pub first_row: u64,
    /// The number of rows. If it is 0, only the flag is written, so that every flag changes in every call.
    pub rows: u64,
}

/// Returns the copies of `rank` in order: chunk by chunk, and for each chunk the peers in the order in which they need the
/// chunk.
///
/// Each rank computes its own rows first, then the rows of the next rank, and so on. Rank - 1 therefore needs the rows of
/// this rank first.
pub(super) fn schedule(
    copies: &Copies,
    rank: u32,
    world: u32,
) -> impl Iterator<Item = CopyStep> + use<> {
    let own = Extent::ShardRows {
        total: copies.total_rows,
        per_rank: copies.shard_rows,
    }
    .on(rank);
    let (rows, chunks) = (u64::from(copies.rows), copies.flags_per_source);
    (0..chunks).flat_map(move |chunk| {
        let first_row = u64::from(chunk) * rows;
        let rows = own.saturating_sub(first_row).min(rows);
        (1..world).map(move |distance| CopyStep {
            peer: (rank + world - distance) % world,
            chunk,
            first_row,
            rows,
        })
    })
}

/// The addresses and sizes of one copy and its flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyAddresses {
    pub to: u64,
    pub from: u64,
    pub pitch_bytes: u64,
    pub row_bytes: u64,
    pub rows: u64,
    pub flag: u64,
}

pub(super) fn addresses_of(
    copies: &Copies,
    rank: u32,
    epoch: u32,
    step: &CopyStep,
    a: CopySource,
    peer_workspace: u64,
) -> CopyAddresses {
    let row = u64::from(rank) * copies.shard_rows + step.first_row;
    let pitch_bytes = a.row_stride_bytes;
    let flag = u64::from(rank) * u64::from(copies.flags_per_source) + u64::from(step.chunk);
    CopyAddresses {
        to: peer_workspace
            + copies.gathered_offset_bytes[(epoch % 2) as usize]
            + row * copies.row_bytes,
        from: a.address + step.first_row * pitch_bytes,
        pitch_bytes,
        row_bytes: copies.row_bytes,
        rows: step.rows,
        flag: peer_workspace + copies.flags_offset_bytes + flag * FLAG_STRIDE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies() -> Copies {
        Copies {
            row_bytes: 128,
            rows: 4,
            shard_rows: 10,
            total_rows: 37,
            gathered_offset_bytes: [4096, 8192],
            flags_offset_bytes: 1024,
            flags_per_source: 3,
        }
    }

    #[test]
    fn every_row_reaches_every_peer_once_and_every_flag_is_written_once() {
        for rank in 0..4 {
            let steps: Vec<_> = schedule(&copies(), rank, 4).collect();
            let own = if rank == 3 { 7 } else { 10 };
            for peer in (0..4).filter(|peer| *peer != rank) {
                let mine: Vec<_> = steps.iter().filter(|step| step.peer == peer).collect();
                let rows: Vec<u64> = mine
                    .iter()
                    .flat_map(|s| s.first_row..s.first_row + s.rows)
                    .collect();
                assert_eq!(rows, (0..own).collect::<Vec<_>>(), "rank {rank} to {peer}");
                assert_eq!(
                    mine.iter().map(|step| step.chunk).collect::<Vec<_>>(),
                    [0, 1, 2]
                );
            }
            assert!(steps.iter().all(|step| step.peer != rank));
        }
    }

    #[test]
    fn the_rank_that_needs_a_chunk_first_gets_it_first() {
        let peers: Vec<_> = schedule(&copies(), 1, 4)
            .take(4)
            .map(|step| (step.chunk, step.peer))
            .collect();
        assert_eq!(peers, [(0, 0), (0, 3), (0, 2), (1, 0)]);
        assert_eq!(schedule(&copies(), 0, 1).count(), 0);
    }

    #[test]
    fn a_rank_without_rows_writes_flags_only() {
        let empty = Copies {
            total_rows: 10,
            ..copies()
        };
        let steps: Vec<_> = schedule(&empty, 2, 4).collect();
        assert_eq!(steps.len(), 9);
        assert!(steps.iter().all(|step| step.rows == 0));
    }

    #[test]
    fn bytes_go_to_the_buffer_and_the_flag_of_their_source() {
        let a = CopySource {
            address: 0x1000,
            row_stride_bytes: 144,
        };
        let step = CopyStep {
            peer: 0,
            chunk: 1,
            first_row: 4,
            rows: 4,
        };
        let expected = CopyAddresses {
            to: 0x10_0000 + 8192 + (2 * 10 + 4) * 128,
            from: 0x1000 + 4 * 144,
            pitch_bytes: 144,
            row_bytes: 128,
            rows: 4,
            flag: 0x10_0000 + 1024 + (2 * 3 + 1) * 128,
        };
        assert_eq!(addresses_of(&copies(), 2, 7, &step, a, 0x10_0000), expected);
        let even = addresses_of(&copies(), 2, 8, &step, a, 0x10_0000);
        assert_eq!(even.to, expected.to - 4096);
    }
}
