//! Shared memory, and slots in the workspace.

use super::kernel::Kernel;
use super::plans;
use crate::cases;
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn memory_is_that_of_the_slots(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let kernel = &Kernel::all(&plan)[0];
        prop_assert!(plan.smem_bytes <= plan.device.smem_bytes);
        prop_assert!(plan.grid_ctas <= plan.device.sm_count);
        for regions in [&plan.smem, &plan.workspace.regions] {
            for pair in regions.windows(2) {
                prop_assert!(pair[0].offset_bytes + pair[0].bytes <= pair[1].offset_bytes, "{pair:?}");
            }
        }
        let slots = plan.workspace.regions.iter().find(|region| region.name == "slots");
        let bytes = slots.map_or(0, |region| region.bytes);
        prop_assert_eq!(bytes, if kernel.world() == 1 { 0 } else { kernel.body.slot_bytes(kernel.world()) });
        // Pushing warps have buffers of 64 columns of a tile where queries and keys will be.
        let room = plan.smem.iter().find(|region| region.name == "barriers").expect("barriers");
        prop_assert!(u64::from(kernel.body.push_warps) * 16_384 <= room.offset_bytes);
    }
}
