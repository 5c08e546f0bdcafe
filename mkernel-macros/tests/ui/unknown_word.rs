use mkernel_macros::fused_kernel;

#[fused_kernel(
    op = gemm_ag, world = 8, m = dynamic, n = 1024, k = 8192, b_layout = kk, transfer = copy_engin
)]
pub struct UpProjection;

fn main() {}
