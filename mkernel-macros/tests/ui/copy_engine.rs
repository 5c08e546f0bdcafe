use mkernel_macros::fused_kernel;

#[fused_kernel(
    op = ag_gemm, world = 8, m = 8192, n = 1024, k = 8192,
    transfer = copy_engine, comm_ctas = 8, k_slices = 2
)]
pub struct UpProjection;

fn main() {}
