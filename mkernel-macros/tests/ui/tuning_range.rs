use mkernel_macros::fused_kernel;

#[fused_kernel(
    op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192,
    stages = 1, comm_ctas = 200, k_slices = 3, chunk_rows = 100, group_m = 0
)]
pub struct UpProjection;

fn main() {}
