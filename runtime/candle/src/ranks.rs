//! [`Ranks`]: a communicator together with the device of candle whose tensors its operators take.

use crate::error;
use crate::operators::Operators;
use candle_core::{Device, Result, bail};
use mkernel::cudarc::driver::CudaStream;
use mkernel::spec::Problem;
use mkernel::{Communicator, KernelConfig, Operator, Shape};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One rank: a communicator of mkernel, and the device of candle whose tensors the operators take. A clone refers to the same
/// rank.
///
/// An operator is prepared when it is first called with its sizes, and kept for later calls. All layers with equal sizes
/// share one operator and its memory. Preparing is a collective step that takes milliseconds, or seconds if a kernel
/// must be compiled. Every rank must therefore make the same calls in the same order. Make calls that matter for latency
/// once in advance.
///
/// Calls are enqueued on the stream of the device, and return at once. [`synchronize`](Self::synchronize) returns
/// their errors. On simulated GPUs each call waits for its end.
#[derive(Clone)]
pub struct Ranks(Arc<Inner>);

struct Inner {
    // The operators are dropped before the communicator.
    operators: Mutex<Operators>,
    communicator: Arc<Communicator>,
    device: Device,
    stream: Arc<CudaStream>,
    captures: AtomicBool,
    is_batch_invariant: AtomicBool,
}

impl Ranks {
    /// Binds a communicator to a device.
    ///
    /// The device is a CUDA device with the GPU of the communicator, or the CPU if the communicator has simulated GPUs.
    /// Operators copy the operands of CPU tensors to the simulated GPU, and the results back.
    ///
    /// # Errors
    /// Fails if the device is another device.
    pub fn new(communicator: impl Into<Arc<Communicator>>, device: &Device) -> Result<Self> {
        let communicator = communicator.into();
        let stream = stream(&communicator, device)?;
        Ok(Self(Arc::new(Inner {
            operators: Mutex::default(),
            communicator,
            device: device.clone(),
            stream,
            captures: AtomicBool::new(false),
            is_batch_invariant: AtomicBool::new(false),
        })))
    }

    /// Returns the communicator.
    #[must_use]
    pub fn communicator(&self) -> &Communicator {
        &self.0.communicator
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.communicator.rank() as usize
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.0.communicator.world() as usize
    }

    /// Returns the device of the tensors.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the stream of all calls: the stream of the device or of the simulated GPU.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    /// Waits for all calls, and returns their errors. `Device::synchronize` does not return errors of kernels.
    ///
    /// # Errors
    /// The errors of [`Communicator::synchronize`], which [`cause`](crate::cause) extracts.
    pub fn synchronize(&self) -> Result<()> {
        let result = self.0.communicator.synchronize(&self.0.stream);
        result.map_err(error::of_mkernel)
    }

    /// Sets how many prepared operators are kept. The default is 64. When there are more, the least recently used
    /// operator is dropped. Set an equal number on all ranks.
    pub fn set_operator_capacity(&self, capacity: usize) {
        self.operators().set_capacity(capacity);
    }

    /// Returns how many prepared operators are kept now.
    #[must_use]
    pub fn operator_count(&self) -> usize {
        self.operators().len()
    }

    /// Sets whether the bits of a row of a result are the same in every batch: the option `batch_invariant` of all operators
    /// but `ring_attention`, from the next call on. The default is false. Set an equal value on all ranks.
    ///
    /// Products that candle computes, such as the products of [`grouped_matmul`](crate::grouped_matmul), are not
    /// affected.
    pub fn set_batch_invariant(&self, is_invariant: bool) {
        let flag = &self.0.is_batch_invariant;
        flag.store(is_invariant, Ordering::Relaxed);
    }

    /// Returns the operator for a problem of this size on all ranks.
    pub(crate) fn operator(
        &self,
        problem: impl Into<Problem>,
        shape: impl Into<Shape>,
    ) -> Result<Arc<Operator>> {
        let communicator = self.communicator();
        let mut problem = problem.into();
        problem.set_batch_invariant(self.0.is_batch_invariant.load(Ordering::Relaxed));
        let config = KernelConfig {
            nodes: communicator.hosts(),
            ..KernelConfig::new(communicator.world(), problem)
        };
        let operator = self.operators().get(communicator, &config, shape.into());
        operator.map_err(error::of_mkernel)
    }

    /// Returns whether calls are added to a graph.
    #[cfg(feature = "cuda")]
    pub(crate) fn captures(&self) -> bool {
        self.0.captures.load(Ordering::Relaxed)
    }

    pub(crate) fn set_captures(&self, captures: bool) {
        self.0.captures.store(captures, Ordering::Relaxed);
    }

    fn operators(&self) -> MutexGuard<'_, Operators> {
        // The cache is consistent at every point where a panic is possible.
        let operators = self.0.operators.lock();
        operators.unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ranks({:?})", self.0.communicator)
    }
}

/// Returns the stream on which tensors of `device` are used, if it is the communicator's device.
fn stream(communicator: &Communicator, device: &Device) -> Result<Arc<CudaStream>> {
    match device {
        Device::Cpu if communicator.is_simulated() => Ok(communicator.default_stream()),
        Device::Cpu => bail!(
            "the communicator has a GPU, but the tensors are on the CPU; \
             use Device::new_cuda({}), or simulated GPUs (MKERNEL_DEVICE=sim)",
            communicator.context().ordinal()
        ),
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) if cuda.cuda_stream().context() == communicator.context() => {
            Ok(cuda.cuda_stream())
        }
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => {
            bail!(
                "tensors on GPUs need the feature cuda of mkernel-candle, which is off in this program"
            )
        }
        device => bail!(
            "the communicator has GPU {}, but the tensors are on {:?}; use Device::new_cuda({0})",
            communicator.context().ordinal(),
            device.location()
        ),
    }
}
