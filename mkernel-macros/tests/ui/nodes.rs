use mkernel_macros::fused_kernel;

#[fused_kernel(op = gemm_rs, world = 9, nodes = 2, m = dynamic, n = 1024, k = 8192, shots = 1)]
pub struct Down;

#[fused_kernel(op = ring_attention, world = 4, nodes = 2, batch = 1, seq = 4096, heads = 8, kv_heads = 8, head_dim = 128, kv_slots = 2)]
pub struct Attention;

fn main() {}
