use mkernel_macros::fused_kernel;

#[fused_kernel(
    op = gemm_rs, world = 8, m = dynamic, n = 8192, k = 1024,
    bias = 1, activation = gelu_tan, residual = yes, output = fp8,
)]
pub struct DownProjection;

fn main() {}
