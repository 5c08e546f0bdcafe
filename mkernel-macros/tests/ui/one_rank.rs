use mkernel_macros::fused_kernel;

#[fused_kernel(
    op = ag_gemm, world = 1, m = dynamic, n = 1024, k = 8192,
    transfer = sm_push, comm_ctas = 8, k_slices = 2, chunk_rows = 128
)]
pub struct UpProjection;

fn main() {}
