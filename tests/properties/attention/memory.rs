//! Shared memory, and slots in the workspace.

use super::plans;
use crate::cases;
use mkernel_spec::plan::OpPlan;
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn memory_is_that_of_the_slots(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let OpPlan::Attention(op_plan) = &plan.op_plan else { panic!("attention") };
        prop_assert!(plan.smem_bytes <= plan.device.smem_bytes);
        prop_assert!(plan.grid_ctas <= plan.device.sm_count);
        for regions in [&plan.smem, &plan.workspace.regions] {
            for pair in regions.windows(2) {
                prop_assert!(pair[0].offset_bytes + pair[0].bytes <= pair[1].offset_bytes, "{pair:?}");
            }
        }
        let (world, regions) = (plan.spec.world(), &plan.workspace.regions);
        let bytes = regions.iter().find(|region| region.name == "kv_parts").map_or(0, |region| region.bytes);
        prop_assert_eq!(bytes, if world == 1 { 0 } else { op_plan.slot_bytes(world) });
        // Warps that push before their CTA computes have their parts where queries and keys will be.
        let barriers = plan.smem.iter().find(|region| region.name == "q_full").expect("barriers");
        let end = plan.comm_smem.iter().map(|region| region.offset_bytes + region.bytes).max();
        prop_assert!(end.unwrap_or(0) <= barriers.offset_bytes);
    }
}
