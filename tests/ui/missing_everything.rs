use mkernel::fused_kernel;

#[fused_kernel]
pub struct UpProjection;

fn main() {}
