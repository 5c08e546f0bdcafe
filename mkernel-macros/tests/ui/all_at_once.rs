use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gem, world = 6, m = "many", k = 8191, tile_m = 100, stage = 4, tile_m = 128)]
pub struct UpProjection;

fn main() {}
