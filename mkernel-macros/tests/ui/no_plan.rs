use mkernel_macros::fused_kernel;

// 8 stages of this tile do not fit in shared memory.
#[fused_kernel(op = ag_gemm, world = 8, m = 8192, n = 1024, k = 8192, tile_m = 128, tile_n = 256, stages = 8)]
pub struct TooManyStages;

// Copy engines move whole tiles, 1000 rows over 8 ranks are none.
#[fused_kernel(op = ag_gemm, world = 8, m = 1000, n = 1024, k = 8192, transfer = copy_engine)]
pub struct Straddling;

fn main() {}
