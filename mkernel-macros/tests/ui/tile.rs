use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192, tile_m = 100, tile_n = 512)]
pub struct UpProjection;

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192, tile_m = 64, tile_n = 64)]
pub struct SmallTile;

fn main() {}
