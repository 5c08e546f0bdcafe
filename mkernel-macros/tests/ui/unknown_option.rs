use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192, stage = 4, banana = 1)]
pub struct UpProjection;

fn main() {}
