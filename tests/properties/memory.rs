//! Shared memory, workspace, arguments, registers.

use crate::cases;
use crate::configs::{gemm, plans, plans_of_parts};
use crate::kernel::{Kernel, WARPS};
use mkernel_compile::render;
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::{ArgKind, FLAG_STRIDE_BYTES, MAX_RANKS, Source, State};
use mkernel_spec::plan::{Element, Region, THREADS};
use proptest::prelude::*;
use std::ops::Range;

/// The 128-byte swizzle repeats after this many bytes; dynamic shared memory may start anywhere below.
const SWIZZLE_BYTES: u64 = 1024;

fn bytes_of(regions: &[Region], name: &str) -> Option<Range<u64>> {
    let region = regions.iter().find(|r| r.name == name)?;
    Some(region.offset_bytes..region.offset_bytes + region.bytes)
}

/// Regions follow each other, each on a multiple of `align` unless it is barriers, up to `end`.
fn check_regions(regions: &[Region], end: u64, align: u64) -> Result<(), TestCaseError> {
    let mut free = 0;
    for region in regions {
        prop_assert!(region.bytes > 0, "{region:?}");
        prop_assert!(region.offset_bytes >= free, "{region:?} overlaps");
        let align = if region.element == Element::Barrier || region.name == "barriers" {
            8
        } else {
            align
        };
        prop_assert!(region.offset_bytes.is_multiple_of(align), "{region:?}");
        free = region.offset_bytes + region.bytes;
    }
    prop_assert!(free <= end, "{regions:?} do not fit {end} bytes");
    Ok(())
}

/// Bytes of every argument, from its kind alone.
fn arg_bytes(kind: &ArgKind) -> (usize, usize) {
    match kind {
        ArgKind::TensorMap(_) => (128, 128),
        ArgKind::Workspaces => (8 * MAX_RANKS, 8),
        ArgKind::Rank => (4, 4),
        _ => (8, 8),
    }
}

/// The last byte of `gathered` that pushes of `rank` write, as `push_piece` computes addresses.
fn last_pushed(kernel: &Kernel, plan: &KernelPlan) -> Option<u64> {
    let gemm = gemm(plan);
    let gathered = kernel.find_u64("kGathered")?;
    let last = kernel
        .pieces()
        .filter(|piece| !kernel.piece_rows(*piece).is_empty())
        .map(|piece| {
            let shard = u64::from(kernel.rank) * u64::from(kernel.get("kShardRows"));
            let row = gemm.shape.m + shard + u64::from(kernel.piece_rows(piece).end - 1);
            (row * gemm.shape.k + u64::from(kernel.piece_cols(piece).end)) * 2
        })
        .max()?;
    Some(gathered + last)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn shared_memory_fits(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let kernel = Kernel::read(&render(&plan).expect("a plan renders"), 0);
        prop_assert!(plan.smem_bytes <= plan.device.smem_bytes);
        let end = u64::from(plan.smem_bytes) - SWIZZLE_BYTES;
        check_regions(&plan.smem, end, SWIZZLE_BYTES)?;
        let bytes = |name| bytes_of(&plan.smem, name).expect("a region");
        let stages = u64::from(gemm.stages);
        let length = |range: Range<u64>| range.end - range.start;
        prop_assert_eq!(length(bytes("a")), stages * u64::from(gemm.tile.m) * 128);
        prop_assert_eq!(length(bytes("b")), stages * u64::from(gemm.tile.n) * 128);
        let buffers = 2 * u64::from(kernel.get("kOutBuffers"));
        prop_assert_eq!(length(bytes("out")), buffers * 64 * 64 * 2);
        // Full and free of each stage and of each output buffer.
        let barriers = ["stage_full", "stage_empty", "output_full", "output_empty"];
        let barriers: u64 = barriers.map(|name| length(bytes(name))).iter().sum();
        prop_assert!(barriers >= 8 * 2 * (stages + buffers));
        for (constant, name) in [("kSmemA", "a"), ("kSmemB", "b"), ("kSmemOut", "out"), ("kSmemBarriers", "stage_full")] {
            prop_assert_eq!(u64::from(kernel.get(constant)), bytes(name).start);
        }
    }

    /// A communication CTA has the same shared memory, but a slot per warp in it, and a barrier per slot.
    #[test]
    fn slots_of_communication_ctas_fit(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let kernel = Kernel::read(&render(&plan).expect("a plan renders"), 0);
        let Some(slot_bytes) = kernel.find("kSlotBytes") else {
            prop_assert_eq!(gemm(&plan).comm_ctas, 0);
            return Ok(());
        };
        let barriers = bytes_of(&plan.smem, "stage_full").expect("barriers");
        prop_assert!(u64::from(WARPS * slot_bytes) <= barriers.start, "slots overlap barriers: {:?}", plan.smem);
        prop_assert!(barriers.start + 8 * u64::from(WARPS) <= u64::from(plan.smem_bytes) - SWIZZLE_BYTES);
        let row_bytes = kernel.get("kSliceCols").min(kernel.get("kK")) * 2;
        let fits = kernel.get("kSlotRows") == 1 || kernel.get("kSlotRows") * row_bytes <= slot_bytes;
        prop_assert!(fits && kernel.get("kSlotRows") >= 1);
    }

    #[test]
    fn the_workspace_holds_all_that_is_written(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let source = render(&plan).expect("a plan renders");
        check_regions(&plan.workspace.regions, plan.workspace.bytes, SWIZZLE_BYTES)?;
        let bytes = |name| bytes_of(&plan.workspace.regions, name);
        let state = bytes("state").expect("a state");
        prop_assert!(state.start == 0 && state.end >= size_of::<State>() as u64);
        for rank in 0..plan.spec.world() {
            let kernel = Kernel::read(&source, rank);
            if let Some(last) = last_pushed(&kernel, &plan) {
                let gathered = bytes("gathered").expect("a gathered buffer");
                prop_assert!(last <= gathered.end, "rank {rank} writes up to {last} of {gathered:?}");
                prop_assert_eq!(kernel.find_u64("kGathered"), Some(gathered.start));
            }
        }
        let kernel = Kernel::read(&source, 0);
        prop_assert_eq!(kernel.find_u64("kFlags"), bytes("chunk_ready").map(|flags| flags.start));
        let stride = kernel.find_u64("kFlagStride");
        prop_assert!(stride.is_none_or(|stride| stride == FLAG_STRIDE_BYTES));
    }

    #[test]
    fn sums_of_shared_tiles_have_places_of_their_own(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let kernel = Kernel::read(&render(&plan).expect("a plan renders"), 0);
        let Some(parts) = kernel.find("kParts") else { return Ok(()) };
        let bytes = |name| bytes_of(&plan.workspace.regions, name).expect("a region");
        let (sums, flags) = (bytes("split_sums"), bytes("split_ready"));
        let tails = gemm(&plan).order.tail_tiles();
        prop_assert_eq!(kernel.find_u64("kTailSums"), Some(sums.start));
        prop_assert_eq!(kernel.find_u64("kTailFlags"), Some(flags.start));
        let mut free = 0;
        for tail in 0..tails {
            for (part, group) in (0..parts).flat_map(|part| [(part, 0), (part, 1)]) {
                for sub in 0..kernel.sub_tiles() {
                    let floats = kernel.tail_sums_at(tail, part, group, sub);
                    prop_assert_eq!(floats.start, free);
                    free = floats.end;
                }
            }
        }
        prop_assert!(u64::from(free) * 4 <= sums.end - sums.start);
        // One flag for each of eight math warps.
        prop_assert!(u64::from(tails) * 8 * FLAG_STRIDE_BYTES <= flags.end - flags.start);
    }

    #[test]
    fn arguments_are_aligned_and_disjoint(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let mut free = 0;
        for arg in &plan.args.args {
            let (bytes, align) = arg_bytes(&arg.kind);
            prop_assert!(arg.offset_bytes >= free && arg.offset_bytes.is_multiple_of(align), "{arg:?}");
            free = arg.offset_bytes + bytes;
            let ArgKind::TensorMap(map) = &arg.kind else { continue };
            prop_assert_eq!(map.extents.len(), map.box_elems.len());
            prop_assert_eq!(map.extents.len(), map.strides.len() + 1);
            // What cuTensorMapEncodeTiled wants of a box with a 128-byte swizzle, and of an address.
            prop_assert!(map.box_elems[0] * 2 <= 128 && map.box_elems.iter().all(|e| (1..=256).contains(e)));
            if let Source::Workspace { offset_bytes } = map.source {
                prop_assert!(offset_bytes.is_multiple_of(128));
            }
        }
        prop_assert!(free <= plan.args.size_bytes && plan.args.size_bytes <= 4096);
        prop_assert!(plan.args.size_bytes.is_multiple_of(128));
    }

    #[test]
    fn registers_fit_an_sm(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let r = plan.registers;
        prop_assert!(128 * r.mover + 256 * r.math <= 65_536 && THREADS * r.entry <= 65_536);
        // setmaxnreg takes multiples of 8 from 24 to 256, and can only hand on what the launch gave.
        for count in [r.mover, r.math] {
            prop_assert!(count.is_multiple_of(8) && (24..=256).contains(&count));
        }
        prop_assert!(128 * r.mover + 256 * r.math <= THREADS * r.entry);
    }
}
