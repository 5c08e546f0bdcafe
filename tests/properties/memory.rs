//! Properties of the shared memory, the workspace, the arguments and the registers of GEMM plans.

use crate::cases;
use crate::configs::{gemm, plans};
use mkernel_spec::abi::{ArgKind, MAX_RANKS, Source, State};
use mkernel_spec::plan::{CommSmem, Element, GemmSmem, Region, SLOT_BYTES, Workspace};
use proptest::prelude::*;

/// Bytes after which the 128-byte swizzle repeats. Dynamic shared memory may start at any smaller offset.
const SWIZZLE_BYTES: u64 = 1024;

/// Checks that regions do not overlap, end before `end`, and start at multiples of `align`, or of 8 for barriers and of 4 for
/// words.
fn check_regions(regions: &[Region], end: u64, align: u64) -> Result<(), TestCaseError> {
    let mut free = 0;
    for region in regions {
        prop_assert!(region.bytes > 0, "{region:?}");
        prop_assert!(region.offset_bytes >= free, "{region:?} overlaps");
        let align = match region.element {
            Element::Words(_) => 4,
            Element::Barrier => 8,
            _ => align,
        };
        prop_assert!(region.offset_bytes.is_multiple_of(align), "{region:?}");
        free = region.offset_bytes + region.bytes;
    }
    prop_assert!(free <= end, "{regions:?} do not fit {end} bytes");
    Ok(())
}

/// Returns the size and the alignment of an argument of this kind.
fn arg_bytes(kind: &ArgKind) -> (usize, usize) {
    match kind {
        ArgKind::TensorMap(_) => (128, 128),
        ArgKind::TensorMapsOnPeers { count, .. } => (128 * count, 128),
        ArgKind::Workspaces | ArgKind::OnPeers(_) => (8 * MAX_RANKS, 8),
        ArgKind::Rank => (4, 4),
        _ => (8, 8),
    }
}

proptest! {
    #![proptest_config(cases())]

    /// A stage in one piece has the loaded rows of A, and all rows and columns that a product reads as A.
    #[test]
    fn stages_hold_what_products_read(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        prop_assert!(gemm.load_rows_a <= gemm.stage_rows_a && gemm.stage_rows_a <= gemm.tile.m);
        if let Some(stages) = plan.body().region(GemmSmem::a_and_b) {
            prop_assert!(gemm.stage_rows_a < gemm.tile.m);
            let lines = gemm.stage_rows_a + gemm.tile.n;
            prop_assert!(lines >= gemm.tile.m);
            prop_assert_eq!(stages.element, Element::Bytes(u64::from(lines) * 128));
            prop_assert!((u64::from(lines) * 128).is_multiple_of(SWIZZLE_BYTES));
        }
    }

    #[test]
    fn shared_memory_fits(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        prop_assert!(plan.smem_bytes() <= plan.device.smem_bytes);
        let end = u64::from(plan.smem_bytes()) - SWIZZLE_BYTES;
        check_regions(&plan.body().smem, end, SWIZZLE_BYTES)?;
        // CTAs that only communicate have another layout.
        check_regions(&plan.body().comm_smem, end, SWIZZLE_BYTES)?;
    }

    /// A CTA that copies through shared memory has a slot and a barrier for each of its warps.
    #[test]
    fn communication_ctas_have_slots(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let bytes = |id| plan.body().region(id).map(|region| region.bytes);
        let copies = gemm(&plan).comm_ctas > 0;
        let warps = plan.launch().threads / 32;
        prop_assert_eq!(bytes(CommSmem::copy_slot), copies.then(|| u64::from(warps * SLOT_BYTES)));
        prop_assert_eq!(bytes(CommSmem::copy_loaded), copies.then(|| u64::from(warps * 8)));
    }

    /// The regions of the workspace follow the state, and each is as long as its dimensions require.
    #[test]
    fn the_workspace_has_room_for_each_region(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let regions = &plan.body().workspace.regions;
        check_regions(regions, plan.workspace_bytes(), SWIZZLE_BYTES)?;
        let state = plan.body().region(Workspace::STATE).expect("a state");
        prop_assert!(state.offset_bytes == 0 && state.bytes >= size_of::<State>() as u64);
        for region in &regions[1..] {
            let last: Vec<_> = region.indices.iter().map(|index| index.extent - 1).collect();
            let end = region.offset_of(&last).map(|last| last + region.element.stride_bytes());
            prop_assert_eq!(end, Some(region.offset_bytes + region.bytes), "{:?}", region);
        }
    }

    #[test]
    fn arguments_are_aligned_and_disjoint(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let mut free = 0;
        for arg in &plan.body().args.args {
            let (bytes, align) = arg_bytes(&arg.kind);
            prop_assert!(arg.offset_bytes >= free && arg.offset_bytes.is_multiple_of(align), "{arg:?}");
            free = arg.offset_bytes + bytes;
            let ArgKind::TensorMap(map) = &arg.kind else { continue };
            prop_assert_eq!(map.extents.len(), map.box_elems.len());
            prop_assert_eq!(map.extents.len(), map.strides.len() + 1);
            // The requirements of cuTensorMapEncodeTiled for a box with a 128-byte swizzle, and for an address.
            prop_assert!(map.box_elems[0] * 2 <= 128 && map.box_elems.iter().all(|e| (1..=256).contains(e)));
            if let Source::Workspace { offset_bytes } = map.source {
                prop_assert!(offset_bytes.is_multiple_of(128));
            }
        }
        prop_assert!(free <= plan.body().args.size_bytes && plan.body().args.size_bytes <= 4096);
        prop_assert!(plan.body().args.size_bytes.is_multiple_of(128));
    }

    #[test]
    fn registers_fit_an_sm(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let (r, threads) = (plan.launch().registers, plan.launch().threads);
        prop_assert!(128 * r.producer + 256 * r.consumer <= 65_536 && threads * r.entry <= 65_536);
        // setmaxnreg takes multiples of 8 from 24 to 256. It can only redistribute the registers of the launch.
        for count in [r.producer, r.consumer] {
            prop_assert!(count.is_multiple_of(8) && (24..=256).contains(&count));
        }
        prop_assert!(128 * r.producer + 256 * r.consumer <= threads * r.entry);
    }
}
