//! Which warps of an operator that reduces do what.

use super::super::core;
use super::super::op_plan::{Reduction, THREADS};
use super::super::spec::GemmSpec;
use crate::plan::{Role, RoleKind};

/// Whether the warps that multiply store C themselves: with one shot, or if one rank normalises rows.
pub(super) fn stores_from_registers(spec: GemmSpec<'_>, reduction: Option<&Reduction>) -> bool {
    spec.normalises_alone() || reduction.is_some_and(|r| r.shots == 1)
}

/// The roles of `grid_ctas` CTAs, of which the first `comm_ctas` only communicate.
pub(super) fn roles(
    spec: GemmSpec<'_>,
    reduction: Option<&Reduction>,
    (comm_ctas, grid_ctas): (u32, u32),
) -> Vec<Role> {
    let compute = (comm_ctas, grid_ctas);
    let mut roles = core::roles(compute, false);
    if stores_from_registers(spec, reduction) {
        roles.retain(|role| role.kind != RoleKind::Store);
        return roles;
    }
    let Some(reduction) = reduction else {
        return roles;
    };
    for role in &mut roles {
        role.about = match (role.kind, reduction.results) {
            (RoleKind::Load, _) => "A, B and others' partial sums to shared memory".into(),
            (RoleKind::Store, false) => "sums to C, or to the rank that reduces them".into(),
            (RoleKind::Store, true) if reduction.on_peers => {
                "sums to C of all ranks, or to the rank that reduces them".into()
            }
            (RoleKind::Store, true) => {
                "sums to C and to all ranks, or to the rank that reduces them".into()
            }
            _ => continue,
        };
    }
    if reduction.results {
        let about = match reduction.on_peers {
            true => "waits for the results that other owners store to C",
            false => "other owners' results to C",
        };
        roles.push(Role::new(RoleKind::Collect, compute, (3, 4), about));
    }
    match (comm_ctas, reduction.results) {
        (0, _) => {}
        (_, true) => roles.push(Role::new(
            RoleKind::Communicate,
            (0, comm_ctas),
            (0, THREADS / 32),
            "a warp watches arrivals, one puts, all others forward results of other nodes",
        )),
        // One CTA: arrivals have one watcher, and each sum is put once.
        (_, false) => roles.extend([
            Role::new(
                RoleKind::WatchArrivals,
                (0, 1),
                (0, 1),
                "puts of other nodes",
            ),
            Role::new(
                RoleKind::PutSums,
                (0, 1),
                (1, 2),
                "sums of this node to those who own them",
            ),
        ]),
    }
    roles
}
