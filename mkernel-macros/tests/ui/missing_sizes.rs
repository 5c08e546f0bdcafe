use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic)]
pub struct UpProjection;

fn main() {}
