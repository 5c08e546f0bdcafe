use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gemm, world = 8, m = 0, n = 1001, k = 4_294_967_296)]
pub struct UpProjection;

fn main() {}
