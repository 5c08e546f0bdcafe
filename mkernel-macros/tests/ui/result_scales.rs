use mkernel_macros::fused_kernel;

#[fused_kernel(op = all_reduce, world = 8, m = dynamic, n = 1032, norm = rms, result_scales = row)]
pub struct NarrowRows;

#[fused_kernel(op = all_reduce, world = 8, m = dynamic, n = 8192, norm = rms, result_scales = tensor)]
pub struct OneScale;

#[fused_kernel(op = all_reduce, world = 8, m = dynamic, n = 8192, result_scales = block)]
pub struct WithoutNorm;

#[fused_kernel(op = gemm, world = 8, m = dynamic, n = 1032, k = 512, b_layout = nk, result_scales = row, output = fp32, tile_n = 64)]
pub struct ScalesOfRows;

#[fused_kernel(op = gemm_rs, world = 8, m = dynamic, n = 1024, k = 512, b_layout = nk, result_scales = block, cluster = true)]
pub struct Sums;

fn main() {}
