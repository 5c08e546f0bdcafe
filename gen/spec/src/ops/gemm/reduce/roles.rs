//! Which warps of an operator that reduces do what.

use super::super::core;
use super::super::op_plan::{Reduction, THREADS};
use super::super::spec::GemmSpec;
use crate::plan::Role;

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
        roles.retain(|role| role.name != "store");
        return roles;
    }
    let Some(reduction) = reduction else {
        return roles;
    };
    for role in &mut roles {
        role.about = match (role.name, reduction.results) {
            ("load", _) => "A, B and others' partial sums to shared memory".into(),
            ("store", false) => "sums to C, or to the rank that reduces them".into(),
            ("store", true) if reduction.on_peers => {
                "sums to C of all ranks, or to the rank that reduces them".into()
            }
            ("store", true) => {
                "sums to C and to all ranks, or to the rank that reduces them".into()
            }
            _ => continue,
        };
    }
    let role = |name, ctas, warps, about: &str| Role {
        name,
        ctas,
        warps,
        about: about.into(),
    };
    if reduction.results {
        let about = match reduction.on_peers {
            true => "waits for the results that other owners store to C",
            false => "other owners' results to C",
        };
        roles.push(role("collect", compute, (3, 4), about));
    }
    match (comm_ctas, reduction.results) {
        (0, _) => {}
        (_, true) => roles.push(role(
            "communicate",
            (0, comm_ctas),
            (0, THREADS / 32),
            "a warp watches arrivals, one puts, all others forward results of other nodes",
        )),
        // One CTA: arrivals have one watcher, and each sum is put once.
        (_, false) => roles.extend([
            role("watch_arrivals", (0, 1), (0, 1), "puts of other nodes"),
            role(
                "put_sums",
                (0, 1),
                (1, 2),
                "sums of this node to those who own them",
            ),
        ]),
    }
    roles
}
