use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192, nk, stages(4), tile_m =)]
pub struct UpProjection;

fn main() {}
