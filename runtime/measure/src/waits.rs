//! [`Waits`]: kernels that let the streams of all ranks begin a call at the same time.

use crate::{Failure, Kernels};
use mkernel::cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;

/// The CUDA source of the kernels.
pub(crate) const KERNELS: &str = include_str!("waits.cu");

/// The time after which the kernels stop waiting.
pub(crate) const LIMIT_NS: u64 = 5_000_000_000;

/// The kernels, loaded on one GPU. All kernels run on one stream.
pub struct Waits {
    /// The stream on which the kernels run.
    pub stream: Arc<CudaStream>,
    barrier: CudaFunction,
    gate: CudaFunction,
}

impl Waits {
    /// Compiles the kernels, or loads them from the cache, for the GPU of `stream`.
    ///
    /// # Errors
    /// The kernels cannot be compiled or loaded.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, Failure> {
        let kernels = Kernels::new(stream, "waits", KERNELS)?;
        Ok(Self {
            stream: stream.clone(),
            barrier: kernels.get("barrier")?,
            gate: kernels.get("gate")?,
        })
    }

    /// Enqueues a barrier of the streams of all ranks, after which they continue at the same time.
    ///
    /// `counters` holds an address for each rank, and 0 beyond the last rank. At each address are 8 bytes that were
    /// zeroed before the first barrier and that the GPUs of all ranks can write.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn barrier(&self, counters: [u64; 8], rank: u32, world: u32) -> Result<(), Failure> {
        let limit_ns = LIMIT_NS;
        let mut launch = self.stream.launch_builder(&self.barrier);
        launch.arg(&counters).arg(&rank).arg(&world).arg(&limit_ns);
        // SAFETY: the kernel writes only the counters, whose memory the caller keeps.
        unsafe { launch.launch(one_thread()) }?;
        Ok(())
    }

    /// Blocks the stream until the word at `address`, which the host can write, is `wanted`.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn gate(&self, address: u64, wanted: u32) -> Result<(), Failure> {
        let limit_ns = LIMIT_NS;
        let mut launch = self.stream.launch_builder(&self.gate);
        launch.arg(&address).arg(&wanted).arg(&limit_ns);
        // SAFETY: the kernel only reads the word, whose memory the caller keeps.
        unsafe { launch.launch(one_thread()) }?;
        Ok(())
    }
}

fn one_thread() -> LaunchConfig {
    LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (1, 1, 1),
        shared_mem_bytes: 0,
    }
}
