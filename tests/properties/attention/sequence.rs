//! The order of the plan is the order of the device code.

use super::kernel::{Kernel, Keys, Tile};
use mkernel_spec::plan::{KeyTile, QueryTile};

/// CTAs take tiles of queries in the order of the plan, and a tile meets keys in the order of the plan.
pub fn tiles_and_keys_have_the_order_of_the_plan(kernels: &[Kernel]) {
    let heads = |kernel: &Kernel| kernel.op_plan.shape.heads as u32;
    for kernel in kernels {
        let (plan, topology) = (&kernel.op_plan, kernel.plan.spec.topology());
        let of_plan = |QueryTile { head, chunk, row }| Tile {
            batch: head / heads(kernel),
            head: head % heads(kernel),
            chunk,
            row,
        };
        let tiles = plan.tile_sequence();
        let taken: Vec<_> = tiles.iter().copied().map(of_plan).collect();
        assert_eq!(taken, kernel.all_tiles(), "{}", kernel.plan.id);
        let with_rows = kernel.tiles();
        for tile in tiles.into_iter().filter(|tile| tile.head == 0) {
            if !with_rows.contains(&of_plan(tile)) {
                continue;
            }
            let met = plan.key_tiles_of(tile, kernel.rank, topology).into_iter();
            let met = met.map(|KeyTile { source, chunk, row }| Keys { source, chunk, row });
            let of_call = |keys: &&Keys| (keys.chunk as usize) < kernel.chunks().len();
            let computed = kernel.blocks(of_plan(tile)).iter().filter(of_call).copied();
            assert!(met.eq(computed), "{tile:?} of {}", kernel.plan.id);
        }
    }
}
