//! A property of plans with copy engines: the copies of the host agree with the chunks that the kernel awaits.

use crate::cases;
use crate::configs::{gemm, plans};
use mkernel_spec::Transfer;
use mkernel_spec::plan::GemmWorkspace;
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn copies_agree_with_the_kernel(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some(chunks) = &gemm.chunks else { return Ok(()) };
        prop_assert_eq!(plan.body().copies.is_some(), gemm.transfer == Some(Transfer::CopyEngine));
        let Some(copies) = &plan.body().copies else { return Ok(()) };
        prop_assert_eq!(chunks.k_slices, 1, "copies move whole rows");
        prop_assert!(!chunks.to_self, "copies go to peers only");
        prop_assert_eq!(copies.rows, chunks.rows);
        prop_assert_eq!(copies.flags_per_source, chunks.per_shard);
        prop_assert_eq!((chunks.push_warps, chunks.arrivals), (0, 1), "SMs push what is copied");
        prop_assert_eq!(copies.row_bytes, gemm.shape.k * 2);
        prop_assert_eq!(copies.shard_rows, gemm.shape.shard_rows(plan.spec.world()));
        prop_assert_eq!(copies.total_rows, gemm.shape.m);
        let region = |id| plan.body().region(id).expect("a region");
        // The flags of a source are contiguous, and its rows are contiguous.
        prop_assert_eq!(Some(copies.flags_offset_bytes), region(GemmWorkspace::chunk_ready).offset_of(&[0, 0, 0]));
        let gathered = [0, 1].map(|parity| region(GemmWorkspace::gathered).offset_of(&[parity, 0]));
        prop_assert_eq!(copies.gathered_offset_bytes.map(Some), gathered);
    }
}
