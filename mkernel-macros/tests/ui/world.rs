use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gemm, world = 3, m = dynamic, n = 1024, k = 8192)]
pub struct UpProjection;

fn main() {}
