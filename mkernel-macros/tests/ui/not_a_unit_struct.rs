use mkernel_macros::fused_kernel;

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192)]
pub fn up_projection() {}

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192)]
pub struct WithFields {
    pub weight: u32,
}

#[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 1024, k = 8192)]
pub struct Generic<const N: usize>;

fn main() {}
