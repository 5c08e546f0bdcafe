//! Properties of the memory of `ring_attention`: regions do not overlap, and the workspace has the bytes of the slots.

use super::kernel::Case;
use super::plans;
use crate::cases;
use mkernel_spec::plan::{AttentionSmem, AttentionWorkspace, OpPlan};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn regions_are_disjoint_and_hold_the_slots(plan in plans()) {
        let Some(Case { plan, .. }) = plan else { return Ok(()) };
        let OpPlan::Attention(op_plan) = &plan.body().op_plan else { panic!("attention") };
        prop_assert!(plan.smem_bytes() <= plan.device.smem_bytes);
        prop_assert!(plan.launch().grid_ctas <= plan.device.sm_count);
        for regions in [&plan.body().smem, &plan.body().workspace.regions] {
            for pair in regions.windows(2) {
                prop_assert!(pair[0].offset_bytes + pair[0].bytes <= pair[1].offset_bytes, "{pair:?}");
            }
        }
        let world = plan.spec.world();
        let bytes = plan.body().region(AttentionWorkspace::kv_parts).map_or(0, |region| region.bytes);
        prop_assert_eq!(bytes, if world == 1 { 0 } else { op_plan.slot_bytes(world) });
        // Warps that push before their CTA computes use the memory of queries and keys, but not the memory of the barriers.
        let barriers = plan.body().region(AttentionSmem::q_full).expect("barriers");
        let end = plan.body().comm_smem.iter().map(|region| region.offset_bytes + region.bytes).max();
        prop_assert!(end.unwrap_or(0) <= barriers.offset_bytes);
    }
}
