//! The program of README.md.

use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::{Communicator, Error, fused_kernel};

/// The up projection of a feed-forward block: 8192 features in, 1024 out on each GPU.
#[fused_kernel(op = ag_gemm, m = dynamic, n = 1024, k = 8192, b_layout = nk)]
pub struct UpProjection;

/// One rank of 8: its 512 tokens `x` [512, 8192], its weight `w` [1024, 8192], all tokens' outputs `y` [4096, 1024].
pub fn forward(
    ranks: &Communicator,
    x: &CudaSlice<bf16>,
    w: &CudaSlice<bf16>,
    y: &mut CudaSlice<bf16>,
) -> Result<(), Error> {
    // Once per size, on every rank: plans, compiles or loads from the cache, maps the peers' memory.
    let up = UpProjection::prepare(ranks, 4096)?;
    let stream = ranks.context().default_stream();
    for _layer in 0..80 {
        // Enqueues one kernel and returns at once.
        up.launch(&stream, UpProjectionOperands { a: x, b: w, c: y })?;
    }
    let result = ranks.synchronize(&stream);
    if let Err(Error::Timeout { peer, awaited, waited, .. }) = &result {
        eprintln!("rank {peer} is missing: waited {waited:?} for {awaited}");
    }
    result
}
