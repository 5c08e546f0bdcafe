use mkernel_macros::fused_kernel;

#[fused_kernel]
pub struct UpProjection;

fn main() {}
