//! Who computes what.

use crate::cases;
use crate::configs::{gemm, plans, plans_of_parts, sizes};
use crate::kernel::{Kernel, Tile, WARPS};
use mkernel_compile::render;
use mkernel_spec::{Device, GemmOp, KernelPlan, KernelSpec, Transfer};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One CTA's work on a tile: steps of K, and columns of the tile that it finishes.
struct Share {
    cta: u32,
    steps: Range<u32>,
    cols: BTreeSet<u32>,
}

/// The work on each tile.
fn shares(kernel: &Kernel, plan: &KernelPlan) -> BTreeMap<Tile, Vec<Share>> {
    let mut shares: BTreeMap<_, Vec<_>> = BTreeMap::new();
    // Rows of one warpgroup are those of the other, or their columns are.
    let groups = kernel.get("kTileN") / kernel.get("kGroupN");
    for cta in gemm(plan).comm_ctas..plan.grid_ctas {
        for unit in kernel.units_of(cta) {
            let subs = (0..kernel.sub_tiles()).filter(|sub| kernel.finishes(&unit, *sub));
            let cols = subs
                .flat_map(|sub| (0..groups).map(move |group| (group, sub)))
                .map(|(group, sub)| group * kernel.get("kGroupN") + sub * 64)
                .collect();
            shares.entry(unit.tile).or_default().push(Share {
                cta,
                steps: unit.steps,
                cols,
            });
        }
    }
    shares
}

proptest! {
    #![proptest_config(cases())]

    /// Each tile by one CTA, or by several of which each has a part of K and finishes a part of the columns.
    #[test]
    fn every_tile_is_computed_once(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let source = render(&plan).expect("a plan renders");
        for rank in [0, plan.spec.world() - 1] {
            let kernel = Kernel::read(&source, rank);
            let shares = shares(&kernel, &plan);
            let (m, n) = (u64::from(gemm.tile.m), u64::from(gemm.tile.n));
            let cols = gemm.shape.n.div_ceil(n);
            let rows = u64::from(kernel.get("kRowTiles"));
            if gemm.order.shard_row_tiles.is_none() {
                prop_assert_eq!(rows, gemm.shape.m.div_ceil(m));
            }
            prop_assert_eq!(shares.len() as u64, u64::from(gemm.order.row_tiles) * cols);
            for (tile, mut shares) in shares {
                prop_assert!(u64::from(tile.row) < rows && u64::from(tile.col) < cols, "{tile:?}");
                shares.sort_by_key(|share| share.steps.start);
                let parts = shares.len() as u32;
                prop_assert!(parts == 1 || parts == gemm.order.tail_parts, "{parts} for {tile:?}");
                let ctas: BTreeSet<_> = shares.iter().map(|share| share.cta).collect();
                prop_assert_eq!(ctas.len() as u32, parts, "a CTA would wait for itself");
                let mut done = 0;
                let mut finished = BTreeSet::new();
                for share in shares {
                    prop_assert_eq!(share.steps.start, done);
                    prop_assert!(!share.steps.is_empty() && !share.cols.is_empty());
                    done = share.steps.end;
                    for col in share.cols {
                        prop_assert!(finished.insert(col), "column {col} of {tile:?} twice");
                    }
                }
                prop_assert_eq!(u64::from(done), gemm.shape.k.div_ceil(64));
                prop_assert!(finished.into_iter().eq((0..gemm.tile.n).step_by(64)));
            }
        }
    }

    /// CTAs that share a tile wait for each other: all must run at once, and nothing may come after.
    #[test]
    fn ctas_that_wait_for_each_other_run_at_once(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let kernel = Kernel::read(&render(&plan).expect("a plan renders"), 0);
        prop_assert!(plan.grid_ctas <= plan.device.sm_count);
        prop_assert_eq!(kernel.get("kComputeCtas"), plan.grid_ctas - gemm.comm_ctas);
        for cta in gemm.comm_ctas..plan.grid_ctas {
            let units = kernel.units_of(cta);
            let not_last = units.iter().rev().skip(1);
            prop_assert!(not_last.clone().all(|unit| unit.shared.is_none()), "CTA {cta}");
        }
    }

    /// A rank begins with what it has, if its rows are tiles of their own, and takes every row tile once.
    #[test]
    fn own_rows_come_first(plan in plans_of_parts()) {
        let Some(plan) = plan.filter(|plan| gemm(plan).config.op == GemmOp::AgGemm) else { return Ok(()) };
        let gemm = gemm(&plan);
        let source = render(&plan).expect("a plan renders");
        for rank in 0..plan.spec.world() {
            let kernel = Kernel::read(&source, rank);
            let rows: Vec<_> = (0..gemm.order.row_tiles).map(|i| kernel.row_tile_at(i)).collect();
            prop_assert!(rows.iter().collect::<BTreeSet<_>>().into_iter().eq(&(0..gemm.order.row_tiles).collect::<Vec<_>>()));
            let Some(shard) = gemm.order.shard_row_tiles else { continue };
            let own = shard * rank..shard * (rank + 1);
            prop_assert!(rows[..shard as usize].iter().copied().eq(own.clone()), "{rows:?}");
            // A group of row tiles advances together: where groups don't mix own and remote rows, own tiles come first.
            if shard.is_multiple_of(gemm.order.group_m) {
                for index in 0..shard * gemm.order.col_tiles {
                    prop_assert!(own.contains(&kernel.tile_at(index).row), "tile {index}");
                }
            }
        }
    }

    /// Every CTA has something to do, no warp two roles.
    #[test]
    fn roles_partition_the_grid(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let mut taken = BTreeMap::new();
        for role in &plan.roles {
            let ((cta, cta_end), (warp, warp_end)) = (role.ctas, role.warps);
            prop_assert!(cta < cta_end && cta_end <= plan.grid_ctas, "{role:?}");
            prop_assert!(warp < warp_end && warp_end <= WARPS, "{role:?}");
            for place in (cta..cta_end).flat_map(|c| (warp..warp_end).map(move |w| (c, w))) {
                let other = taken.insert(place, role.name);
                prop_assert!(other.is_none(), "{place:?}: {} and {other:?}", role.name);
            }
        }
        let one_shot = gemm.reduction.as_ref().is_some_and(|r| r.shots == 1);
        let stores = if one_shot { 0 } else { 2 };
        for cta in 0..plan.grid_ctas {
            let count = |name| (0..WARPS).filter(|w| taken.get(&(cta, *w)) == Some(&name)).count();
            let expected = if cta < gemm.comm_ctas { (12, 0, 0, 0) } else { (count("push"), 1, 8, stores) };
            let found = (count("push"), count("load"), count("multiply"), count("store"));
            prop_assert_eq!(found, expected, "CTA {}", cta);
            let collects = gemm.reduction.as_ref().is_some_and(|r| r.results && r.shots == 2);
            prop_assert_eq!(count("collect"), usize::from(collects), "CTA {}", cta);
        }
        let pushes = taken.values().any(|name| *name == "push");
        prop_assert_eq!(pushes, gemm.transfer == Some(Transfer::SmPush));
    }

    /// Who leaves all to the planner gets a plan: any M, N and K, any world.
    #[test]
    fn untuned_configurations_have_a_plan(config in sizes()) {
        let spec = KernelSpec::validate(config).expect("sizes in bounds");
        let plan = KernelPlan::new(&spec, &Device::h200());
        prop_assert!(plan.is_ok(), "{}", plan.expect_err("not ok"));
    }

    #[test]
    fn no_estimate_is_below_the_bound(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let (bound, estimate) = (plan.bound.us(), plan.estimate_us);
        prop_assert!(bound > 0.0 && bound <= estimate, "bound {bound}, estimate {estimate}: {}", plan.id);
    }

    #[test]
    fn plans_are_functions_of_spec_and_device(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let again = KernelPlan::new(&plan.spec, &plan.device).expect("planned before");
        prop_assert_eq!(render(&again).expect("a plan renders"), render(&plan).expect("a plan renders"));
        prop_assert_eq!(again, plan);
    }
}
