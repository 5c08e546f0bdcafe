//! What ranks send to each other and wait for.

use crate::cases;
use crate::configs::{gemm, plans_of_parts};
use crate::kernel::Kernel;
use mkernel_compile::{CudaSource, render};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use mkernel_spec::plan::{Chunks, Copies};
use mkernel_spec::{KernelPlan, Transfer};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a rank sends to each of its peers in one call.
#[derive(Default)]
struct Sent {
    /// How often each row of the shard travels, by slice of K.
    rows: Vec<Vec<u32>>,
    /// What each flag of this source grows by, by chunk and slice.
    counts: BTreeMap<(u32, u32), u32>,
}

impl Sent {
    fn new(kernel: &Kernel, chunks: &Chunks) -> Self {
        let rows = vec![vec![0; kernel.own_rows() as usize]; chunks.k_slices as usize];
        Self {
            rows,
            ..Self::default()
        }
    }

    fn add_rows(&mut self, slice: u32, rows: Range<u32>) {
        for row in rows {
            self.rows[slice as usize][row as usize] += 1;
        }
    }
}

/// Pieces that SMs push.
fn push(kernel: &Kernel, chunks: &Chunks, sent: &mut Sent) -> Result<(), TestCaseError> {
    for piece in kernel.pieces() {
        let rows = kernel.piece_rows(piece);
        prop_assert!(piece.chunk < chunks.per_shard && piece.slice < chunks.k_slices);
        for row in rows.clone() {
            // A row behind another chunk's flag might be read before it is there.
            prop_assert_eq!(row / chunks.rows, piece.chunk, "row {} of {:?}", row, piece);
        }
        // 16 bytes per access, and a stage of K is not divided.
        let cols = kernel.piece_cols(piece);
        prop_assert!(
            !cols.is_empty() && cols.start.is_multiple_of(64) && cols.len().is_multiple_of(8)
        );
        sent.add_rows(piece.slice, rows);
        *sent.counts.entry((piece.chunk, piece.slice)).or_default() += 1;
    }
    Ok(())
}

/// Copies that the host enqueues, as `Copies` describes them.
fn copy(kernel: &Kernel, copies: &Copies, sent: &mut Sent) {
    let own = kernel.own_rows();
    for chunk in 0..copies.flags_per_source {
        let rows = (chunk * copies.rows).min(own)..((chunk + 1) * copies.rows).min(own);
        sent.add_rows(0, rows);
        // The flag becomes the epoch: it grows by one from call to call.
        *sent.counts.entry((chunk, 0)).or_default() += 1;
    }
}

/// A plan that exchanges rows, rendered.
fn exchanges(plan: &KernelPlan) -> Option<(&Chunks, CudaSource)> {
    let source = render(plan).expect("a plan renders");
    Some((gemm(plan).chunks.as_ref()?, source))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn every_row_travels_once_and_every_flag_counts_all_its_arrivals(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some((chunks, source)) = exchanges(&plan) else { return Ok(()) };
        for rank in 0..plan.spec.world() {
            let kernel = Kernel::read(&source, rank);
            let mut sent = Sent::new(&kernel, chunks);
            push(&kernel, chunks, &mut sent)?;
            if let Some(copies) = &plan.copies {
                copy(&kernel, copies, &mut sent);
            }
            for (slice, rows) in sent.rows.iter().enumerate() {
                let wrong = rows.iter().position(|count| *count != 1);
                prop_assert!(wrong.is_none(), "row {wrong:?} of slice {slice} of rank {rank}: {}", plan.id);
            }
            prop_assert_eq!(sent.counts.len() as u32, chunks.per_shard * chunks.k_slices);
            // Also the flags of a rank without rows, since nobody knows that it has none.
            for (flag, count) in sent.counts {
                prop_assert_eq!(count, kernel.get("kArrivals"), "flag {:?} of rank {}", flag, rank);
            }
        }
        let covered: u64 = (0..chunks.k_slices)
            .map(|slice| u64::from(chunks.slice_cols).min(gemm.shape.k - u64::from(slice * chunks.slice_cols)))
            .sum();
        prop_assert_eq!(covered, gemm.shape.k);
    }

    #[test]
    fn a_tile_waits_for_all_its_rows_at_flags_that_exist(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some((chunks, source)) = exchanges(&plan) else { return Ok(()) };
        let flags = plan.workspace.regions.iter().find(|r| r.name == "chunk_ready").expect("flags");
        let flags = flags.bytes / FLAG_STRIDE_BYTES;
        let kernel = Kernel::read(&source, plan.spec.world() - 1);
        let shard = kernel.get("kShardRows");
        // The loader waits when it comes to a slice; it must not come to one that nobody sends.
        prop_assert!((kernel.get("kSteps") - 1) / kernel.get("kSliceSteps") < chunks.k_slices);
        prop_assert_eq!(u64::from(kernel.get("kSteps")), gemm.shape.k.div_ceil(64));
        for tile_row in 0..kernel.get("kRowTiles") {
            let awaited = kernel.awaited_chunks(tile_row);
            let first = tile_row * gemm.tile.m;
            let end = (first + gemm.tile.m).min(kernel.get("kM"));
            for row in first..end {
                let needed = (row / shard, row % shard / chunks.rows);
                prop_assert!(awaited.contains(&needed), "row {row}: {needed:?} not in {awaited:?}");
                prop_assert!(!kernel.in_place(tile_row) || needed.0 == kernel.rank);
                // Own rows that are read from `gathered` must have been sent there.
                prop_assert!(kernel.in_place(tile_row) || needed.0 != kernel.rank || chunks.to_self);
            }
            for (source, chunk) in awaited {
                prop_assert!(source < plan.spec.world() && chunk < chunks.per_shard);
                let last = kernel.flag_index(source, chunk, chunks.k_slices - 1);
                prop_assert!(u64::from(last) < flags, "flag {last} of {flags}");
            }
        }
    }

    /// What the host is told agrees with what the kernel was rendered with.
    #[test]
    fn copies_agree_with_the_kernel(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some((chunks, source)) = exchanges(&plan) else { return Ok(()) };
        prop_assert_eq!(plan.copies.is_some(), gemm.transfer == Some(Transfer::CopyEngine));
        let Some(copies) = &plan.copies else { return Ok(()) };
        let kernel = Kernel::read(&source, 0);
        prop_assert_eq!(chunks.k_slices, 1, "copies move whole rows");
        prop_assert!(!chunks.to_self, "copies go to peers only");
        prop_assert_eq!(copies.rows, kernel.get("kChunkRows"));
        prop_assert_eq!(copies.flags_per_source, kernel.get("kChunks"));
        prop_assert_eq!(kernel.pieces().count(), 0, "SMs push what is copied");
        prop_assert_eq!(copies.row_bytes, gemm.shape.k * 2);
        prop_assert_eq!(copies.shard_rows, gemm.shape.shard_rows(plan.spec.world()));
        prop_assert_eq!(copies.total_rows, gemm.shape.m);
        let start = |name| plan.workspace.offset_of(name).expect("a region");
        prop_assert_eq!(copies.flags_offset_bytes, start("chunk_ready"));
        let buffer = gemm.shape.m * gemm.shape.k * 2;
        prop_assert_eq!(copies.gathered_offset_bytes, [start("gathered"), start("gathered") + buffer]);
    }
}
