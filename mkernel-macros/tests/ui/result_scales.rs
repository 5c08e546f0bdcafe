use mkernel_macros::fused_kernel;

#[fused_kernel(op = all_reduce, world = 8, m = dynamic, n = 1032, norm = rms, result_scales = row)]
pub struct NarrowRows;

#[fused_kernel(op = all_reduce, world = 8, m = dynamic, n = 8192, norm = rms, result_scales = tensor)]
pub struct OneScale;

#[fused_kernel(op = all_reduce, world = 8, m = dynamic, n = 8192, result_scales = block)]
pub struct WithoutNorm;

fn main() {}
