//! Properties of roles and estimates of GEMM plans: every warp of a CTA has one role, every configuration without
//! options has a plan, and no estimate is below the bound.

use crate::cases;
use crate::configs::{gemm, plans, plans_with_rows, sizes};
use mkernel_compile::render;
use mkernel_spec::plan::{RoleKind, faults};
use mkernel_spec::{Device, KernelPlan, SizedSpec, Transfer};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The number of warps of a CTA.
const WARPS: u32 = 12;

/// The roles that push rows of A.
const PUSHES: [RoleKind; 3] = [
    RoleKind::Communicate,
    RoleKind::Push,
    RoleKind::PushByRegisters,
];

/// Returns the number of warps of a CTA that push.
fn pushes(count: &impl Fn(RoleKind) -> usize) -> usize {
    PUSHES.iter().map(|kind| count(*kind)).sum()
}

proptest! {
    #![proptest_config(cases())]

    /// Every CTA has roles, and no warp has two.
    #[test]
    fn roles_partition_the_grid(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let mut taken = BTreeMap::new();
        for role in &plan.body().roles {
            let ((cta, cta_end), (warp, warp_end)) = (role.ctas, role.warps);
            prop_assert!(cta < cta_end && cta_end <= plan.launch().grid_ctas, "{role:?}");
            prop_assert!(warp < warp_end && warp_end <= WARPS, "{role:?}");
            for warp in (cta..cta_end).flat_map(|c| (warp..warp_end).map(move |w| (c, w))) {
                let other = taken.insert(warp, role.kind);
                prop_assert!(other.is_none(), "{warp:?}: {} and {other:?}", role.kind);
            }
        }
        let one_shot = gemm.reduction.as_ref().is_some_and(|r| r.shots == 1);
        let stores = if one_shot || gemm.cluster.is_some() { 0 } else { 2 };
        for cta in 0..plan.launch().grid_ctas {
            let count = |kind: RoleKind| (0..WARPS).filter(|w| taken.get(&(cta, *w)) == Some(&kind)).count();
            let expected = if cta < gemm.comm_ctas { (12, 0, 0, 0) } else { (pushes(&count), 1, 8, stores) };
            let found = (pushes(&count), count(RoleKind::Load), count(RoleKind::Multiply), count(RoleKind::Store));
            prop_assert_eq!(found, expected, "CTA {}", cta);
            let collects = gemm.reduction.as_ref().is_some_and(|r| r.results && r.shots == 2);
            prop_assert_eq!(count(RoleKind::Collect), usize::from(collects), "CTA {}", cta);
        }
        let pushes = taken.values().any(|kind| PUSHES.contains(kind));
        prop_assert_eq!(pushes, gemm.transfer == Some(Transfer::SmPush));
    }

    /// Every awaited word is signalled, every signalled word is awaited, and no roles wait for each other in a circle.
    #[test]
    fn roles_do_not_wait_in_circles(plan in prop_oneof![plans(), plans_with_rows()]) {
        let Some(plan) = plan else { return Ok(()) };
        for bucket in &plan.bodies {
            prop_assert_eq!(faults(&bucket.agents()), Vec::<String>::new());
        }
    }

    /// A configuration without tuning options has a plan for every M, N, K and world.
    #[test]
    fn untuned_configurations_have_a_plan(config in sizes()) {
        let spec = SizedSpec::validate(config).expect("sizes in bounds");
        let plan = KernelPlan::new(&spec, &Device::h200());
        prop_assert!(plan.is_ok(), "{}", plan.expect_err("not ok"));
    }

    #[test]
    fn no_estimate_is_below_the_bound(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let (bound, estimate) = (plan.body().bound.us(), plan.body().estimate_us);
        prop_assert!(bound > 0.0 && bound <= estimate, "bound {bound}, estimate {estimate}: {}", plan.id);
    }

    #[test]
    fn plans_depend_only_on_spec_and_device(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let again = KernelPlan::new(&plan.spec, &plan.device).expect("planned before");
        prop_assert_eq!(render(&again).expect("a plan renders"), render(&plan).expect("a plan renders"));
        prop_assert_eq!(again, plan);
    }
}
