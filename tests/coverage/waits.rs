//! Waits and signals of all golden plans.

use mkernel_spec::plan::{
    Body, CombineWorkspace, DispatchWorkspace, Element, GemmSmem, Region, RegionId, RoleKind, Word,
    faults,
};
use mkernel_testing::golden::Golden;
use std::collections::BTreeSet;

/// Every awaited word is signalled, every signalled word is awaited, and no roles wait for each other in a circle.
#[test]
fn roles_do_not_wait_in_circles() {
    let mut found = Vec::new();
    for Golden { name, plan, .. } in Golden::all() {
        for bucket in &plan.bodies {
            let faults = faults(&bucket.agents()).into_iter();
            found.extend(faults.map(|fault| format!("{name}: {fault}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Regions of flags that are read without a wait.
const READ_WITHOUT_WAIT: [RegionId; 4] = [
    DispatchWorkspace::fault_mark,
    CombineWorkspace::listed,
    CombineWorkspace::listed_before,
    CombineWorkspace::slot_mark,
];

/// Barriers of output buffers.
const OUTPUT: [RegionId; 2] = [GemmSmem::output_full, GemmSmem::output_empty];

/// Every flag of the workspace and every barrier in shared memory is awaited by some role.
#[test]
fn flags_and_barriers_are_awaited() {
    for golden in Golden::all() {
        for body in &golden.plan.bodies {
            let awaited = awaited(body);
            let stores = body.roles.iter().any(|role| role.kind == RoleKind::Store);
            // Kernels that store C from registers do not use their output buffers.
            let smem = body
                .smem
                .iter()
                .filter(|region| stores || !OUTPUT.contains(&region.id()));
            let regions = body.workspace.regions.iter().chain(smem);
            for region in regions.filter(|region| is_awaited(region)) {
                assert!(
                    awaited.contains(&region.id()),
                    "{}: nobody waits for {}",
                    golden.name,
                    region.name
                );
            }
        }
    }
}

fn awaited(body: &Body) -> BTreeSet<RegionId> {
    let agents = body.agents();
    let waits = agents
        .iter()
        .flat_map(|agent| agent.steps)
        .flat_map(|step| &step.waits);
    let regions = waits.filter_map(|wait| match wait.word {
        Word::Region(region) => Some(region),
        _ => None,
    });
    regions.collect()
}

fn is_awaited(region: &Region) -> bool {
    let is_flag = matches!(
        region.element,
        Element::Flag | Element::Count | Element::Marked | Element::Barrier
    );
    is_flag && region.bytes > 0 && !READ_WITHOUT_WAIT.contains(&region.id())
}
