//! Partial sums: which part of which tile goes where, who waits for it, and when.

use crate::cases;
use crate::configs::{gemm, plans_of_parts};
use crate::kernel::{Kernel, Tile};
use mkernel_compile::{CudaSource, render};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use mkernel_spec::plan::Reduction;
use mkernel_spec::{GemmOp, KernelPlan};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A plan whose tiles have owners, rendered.
fn owned(plan: &KernelPlan) -> Option<(&Reduction, CudaSource)> {
    let reduction = gemm(plan).reduction.as_ref().filter(|r| r.shots == 2)?;
    Some((reduction, render(plan).expect("a plan renders")))
}

fn region(plan: &KernelPlan, name: &str) -> Range<u64> {
    let region = plan.workspace.regions.iter().find(|r| r.name == name);
    let region = region.expect("a region");
    region.offset_bytes..region.offset_bytes + region.bytes
}

/// Tiles of a rank's units, and the sub-tiles that all its CTAs finish of each.
fn finished(kernel: &Kernel, plan: &KernelPlan) -> BTreeMap<Tile, u32> {
    let mut found = BTreeMap::new();
    for unit in (0..plan.grid_ctas).flat_map(|cta| kernel.units_of(cta)) {
        let subs = (0..kernel.sub_tiles()).filter(|sub| kernel.finishes(&unit, *sub));
        *found.entry(unit.tile).or_default() += 2 * subs.count() as u32;
    }
    found
}

/// Rows of A in a tile that belong to its owner.
fn rows(kernel: &Kernel, plan: &KernelPlan, tile: Tile) -> Range<u64> {
    let gemm = gemm(plan);
    let first = u64::from(kernel.row_in_a(tile));
    let end = match gemm.config.op {
        GemmOp::GemmRs => (u64::from(tile.owner) + 1) * gemm.shape.shard_rows(plan.spec.world()),
        _ => gemm.shape.m,
    };
    first..(first + u64::from(gemm.tile.m)).min(end).min(gemm.shape.m)
}

proptest! {
    #![proptest_config(cases())]

    /// Every rank sends a part of every tile to its owner, all of it, and the owner waits for no more.
    #[test]
    fn every_partial_sum_is_sent_once_and_awaited(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let Some((reduction, source)) = owned(&plan) else { return Ok(()) };
        let mut tiles: Option<BTreeSet<Tile>> = None;
        for rank in 0..plan.spec.world() {
            let kernel = Kernel::read(&source, rank);
            let finished = finished(&kernel, &plan);
            for (tile, subs) in &finished {
                prop_assert!(tile.owner < reduction.owners && tile.index < reduction.owner_tiles);
                prop_assert_eq!(*subs, 2 * kernel.sub_tiles(), "{:?} of rank {}", tile, rank);
            }
            let found: BTreeSet<_> = finished.into_keys().collect();
            prop_assert!(tiles.get_or_insert_with(|| found.clone()) == &found, "rank {rank}");
        }
    }

    /// An owner waits in its order for what others compute earlier in theirs: they cannot wait for each other.
    #[test]
    fn nobody_waits_for_what_comes_later(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let Some((reduction, source)) = owned(&plan) else { return Ok(()) };
        let places = reduction.owners * reduction.owner_tiles;
        prop_assert_eq!(places, gemm(&plan).order.places);
        let orders: Vec<BTreeMap<Tile, u32>> = (0..plan.spec.world())
            .map(|rank| {
                let kernel = Kernel::read(&source, rank);
                (0..places).map(|at| (kernel.tile_at(at), at)).collect()
            })
            .collect();
        for (rank, order) in orders.iter().enumerate() {
            prop_assert_eq!(order.len() as u32, places, "rank {}", rank);
            for (tile, at) in order.iter().filter(|(tile, _)| tile.owner as usize == rank) {
                for (source, theirs) in orders.iter().enumerate() {
                    // Who owns nothing waits for nobody.
                    let waits = source != rank && source < reduction.owners as usize;
                    prop_assert!(!waits || theirs[tile] < *at, "{tile:?} of {rank}, from {source}");
                }
            }
        }
    }

    /// Each row of C is in the tiles of one owner, and each tile is where its owner's C has it.
    #[test]
    fn rows_have_one_owner(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some((reduction, source)) = owned(&plan) else { return Ok(()) };
        let kernel = Kernel::read(&source, 0);
        let mut covered = BTreeMap::<_, Vec<Range<u64>>>::new();
        let mut full = true;
        for owner in 0..reduction.owners {
            for index in 0..reduction.owner_tiles {
                let tile = kernel.tile_of(owner, index);
                if tile.row == kernel.get("kRowTiles") {
                    prop_assert_eq!(gemm.config.op, GemmOp::GemmAr);
                    continue;
                }
                let rows = rows(&kernel, &plan, tile);
                full &= rows.end.saturating_sub(rows.start) == u64::from(gemm.tile.m);
                covered.entry(tile.col).or_default().push(rows);
            }
        }
        // Where all tiles are full, nothing is rendered that asks.
        prop_assert_eq!(full, !source.text.contains("sub_tile_bytes"));
        prop_assert_eq!(covered.len() as u64, gemm.shape.n.div_ceil(u64::from(gemm.tile.n)));
        for mut rows in covered.into_values() {
            rows.retain(|rows| !rows.is_empty());
            rows.sort_by_key(|rows| rows.start);
            let mut done = 0;
            for rows in rows {
                prop_assert_eq!(rows.start, done);
                done = rows.end;
            }
            prop_assert_eq!(done, gemm.shape.m);
        }
    }

    /// Slots, flags and results have places of their own.
    #[test]
    fn slots_are_in_the_workspace(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let Some((reduction, source)) = owned(&plan) else { return Ok(()) };
        let kernel = Kernel::read(&source, 0);
        let (slots, flags) = (region(&plan, "partials"), region(&plan, "partial_ready"));
        prop_assert_eq!(kernel.find_u64("kPartialFlags"), Some(flags.start));
        let flag_count = (flags.end - flags.start) / FLAG_STRIDE_BYTES;
        let mut free = slots.start;
        for epoch in 0..2 {
            for from in 0..plan.spec.world() {
                for tile in 0..reduction.owner_tiles {
                    let slot = kernel.partial(epoch, from, tile);
                    prop_assert_eq!(slot.start, free);
                    free = slot.end;
                    prop_assert!(u64::from(kernel.partial_index(from, tile)) < flag_count);
                }
            }
        }
        prop_assert!(free <= slots.end);
        if !reduction.results { return Ok(()) }
        let (results, flags) = (region(&plan, "results"), region(&plan, "result_ready"));
        prop_assert_eq!(kernel.find_u64("kResultFlags"), Some(flags.start));
        let flag_count = (flags.end - flags.start) / FLAG_STRIDE_BYTES;
        let mut free = results.start;
        for epoch in 0..2 {
            for (owner, index) in (0..reduction.owners).flat_map(|o| (0..reduction.owner_tiles).map(move |i| (o, i))) {
                let tile = kernel.tile_of(owner, index);
                prop_assert_eq!(kernel.result(epoch, tile).start, free);
                free = kernel.result(epoch, tile).end;
                prop_assert!(u64::from(kernel.result_index(tile)) < flag_count);
            }
        }
        prop_assert!(free <= results.end);
    }

    /// What a stage takes of partial sums fits the part of it that they go to, and is what a CTA finishes.
    #[test]
    fn partial_sums_fit_a_stage(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some((reduction, source)) = owned(&plan) else { return Ok(()) };
        let kernel = Kernel::read(&source, 0);
        let subs = reduction.partial_subs;
        let part = gemm.tile.m.max(gemm.tile.n) * 128;
        prop_assert!(subs > 0 && 2 * subs * 64 * 64 * 2 <= part);
        let finished = kernel.sub_tiles() / kernel.find("kParts").unwrap_or(1);
        prop_assert!(finished.is_multiple_of(subs), "{subs} of {finished}");
    }

    /// With one shot, every tile of every rank has its slots, for words and tags.
    #[test]
    fn slots_of_one_shot_are_in_the_workspace(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let Some(reduction) = gemm.reduction.as_ref().filter(|r| r.shots == 1) else { return Ok(()) };
        let kernel = Kernel::read(&render(&plan).expect("a plan renders"), 0);
        let slots = region(&plan, "packets");
        prop_assert_eq!(kernel.find_u64("kSlots"), Some(slots.start));
        prop_assert_eq!(reduction.owner_tiles, gemm.order.tiles());
        // 64 rows and columns of words of 2 bytes, and as many of tags.
        let places = u64::from(2 * kernel.get("kSources") * kernel.get("kTiles") * 2 * kernel.sub_tiles());
        prop_assert_eq!(u64::from(8 * kernel.get("kTaggedBytes")), 64 * 64 * 4);
        prop_assert!(slots.start + places * 64 * 64 * 4 <= slots.end);
        prop_assert!(4 % kernel.get("kTaggedVecs") == 0);
    }
}
