use mkernel_macros::fused_kernel;

const HIDDEN: u64 = 8192;

#[fused_kernel(
    op = 1,
    world = "eight",
    m = true,
    n = 4 * 256,
    k = HIDDEN,
    stages = -4,
    tile_m = 128.0,
    comm_ctas = 5_000_000_000,
)]
pub struct UpProjection;

fn main() {}
