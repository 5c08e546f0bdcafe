use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::fused_kernel;
use mkernel::half::bf16;
use std::sync::Arc;

#[fused_kernel(op = ag_gemm, m = dynamic, n = 1024, k = 8192)]
pub struct Up;

fn prepare(ranks: &mkernel::Communicator) {
    let _ = Up::prepare(ranks);
}

fn unused(_: &Arc<CudaStream>, _: &CudaSlice<bf16>) {}

fn main() {}
