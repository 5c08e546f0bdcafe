//! [`Communicator`]: one rank of a job.

use crate::declaration;
use crate::detached::Detached;
use crate::error::exception;
use crate::operator::{Operator, closed};
use crate::symmetric::{HostTensors, SymmetricMemory};
use mkernel::{Error, Rendezvous, Simulation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One rank of a job: its GPU, and its connections to the other ranks.
#[pyclass(frozen, module = "mkernel._native")]
pub struct Communicator {
    communicator: Mutex<Option<Detached<Arc<mkernel::Communicator>>>>,
    symmetric: Arc<HostTensors>,
}

impl Communicator {
    fn new(communicator: mkernel::Communicator) -> Self {
        Self {
            communicator: Mutex::new(Some(Detached::new(Arc::new(communicator)))),
            symmetric: Arc::default(),
        }
    }

    fn get(&self) -> PyResult<Arc<mkernel::Communicator>> {
        // Nothing panics while the lock is held.
        let guard = self
            .communicator
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let communicator = guard.as_ref().and_then(Detached::get).cloned();
        communicator.ok_or_else(closed)
    }

    /// Calls `step`, which may wait for other ranks.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        step: impl FnOnce(&mkernel::Communicator) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let communicator = self.get()?;
        py.detach(move || step(&communicator)).map_err(exception)
    }
}

#[pymethods]
impl Communicator {
    /// Creates the communicator of this process from the variables of torchrun, srun or mpirun.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Self> {
        let created = py.detach(mkernel::Communicator::from_env);
        created.map(Self::new).map_err(exception)
    }

    /// Creates the communicator of this process. Rank 0 listens at `host` and `port`, and all other ranks connect to it.
    #[staticmethod]
    #[pyo3(signature = (rank, world, host, port, local_rank=None, secret=None))]
    fn connect(
        py: Python<'_>,
        rank: u32,
        world: u32,
        host: String,
        port: u16,
        local_rank: Option<u32>,
        secret: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let rendezvous = Rendezvous {
            local_rank,
            secret,
            ..Rendezvous::new(rank, world, host, port)
        };
        let created = py.detach(|| mkernel::Communicator::connect(&rendezvous));
        created.map(Self::new).map_err(exception)
    }

    /// This rank.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.get()?.rank())
    }

    /// The number of ranks.
    #[getter]
    fn world(&self) -> PyResult<u32> {
        Ok(self.get()?.world())
    }

    /// The number of hosts that the ranks are on.
    #[getter]
    fn hosts(&self) -> PyResult<u32> {
        Ok(self.get()?.hosts())
    }

    /// The ordinal of the rank's GPU among the GPUs of the process, or None if the GPU is simulated.
    #[getter]
    fn device(&self) -> PyResult<Option<usize>> {
        let communicator = self.get()?;
        Ok((!communicator.is_simulated()).then(|| communicator.context().ordinal()))
    }

    /// The timeout of waits in kernels, in seconds.
    #[getter]
    fn timeout(&self) -> PyResult<f64> {
        Ok(self.get()?.timeout().as_secs_f64())
    }

    /// The timeout of steps in which ranks wait for each other on the host, in seconds.
    #[getter]
    fn host_timeout(&self) -> PyResult<f64> {
        Ok(self.get()?.host_timeout().as_secs_f64())
    }

    /// Sets the timeout of every wait, in seconds. `host` is another timeout for steps on the host.
    #[pyo3(signature = (seconds, host=None))]
    fn set_timeout(&self, py: Python<'_>, seconds: f64, host: Option<f64>) -> PyResult<()> {
        let device = duration(seconds)?;
        let host = host.map(duration).transpose()?;
        self.wait(py, move |communicator| {
            communicator.set_timeout(device);
            if let Some(host) = host {
                communicator.set_host_timeout(host);
            }
            Ok(())
        })
    }

    /// Prepares the operator that `options` declare, such as `op = ag_gemm, m = 4096, n = 1024, k = 8192`. All ranks call
    /// this, in the same order.
    fn prepare(&self, py: Python<'_>, options: &str) -> PyResult<Operator> {
        let communicator = self.get()?;
        let config = declaration::config(&communicator, options)?;
        py.detach(move || {
            let prepared = communicator.prepare(&config, []);
            prepared.map(|operator| Operator::new(operator, &communicator, self.symmetric.clone()))
        })
        .map_err(exception)
    }

    /// Allocates memory at one offset on all ranks, for the stream with this handle. On a simulated GPU, calls find it by the
    /// address of a tensor of the host, which is `host`. All ranks call this.
    #[pyo3(signature = (stream, bytes, host=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        stream: u64,
        bytes: usize,
        host: Option<u64>,
    ) -> PyResult<SymmetricMemory> {
        // SAFETY: the Python sources pass torch's current stream of this GPU, and torch never destroys its streams.
        let allocate =
            |communicator: &_| unsafe { crate::memory::allocate(communicator, stream, bytes) };
        let memory = self.wait(py, allocate)?;
        let host = host.map(|address| (address, self.symmetric.clone()));
        Ok(SymmetricMemory::new(memory, host))
    }

    /// Creates the communicator of the ranks that pass this colour, ordered by key and then by rank. A rank without a colour gets
    /// None. All ranks call this.
    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i32) -> PyResult<Option<Self>> {
        let group = self.wait(py, move |communicator| communicator.split(color, key))?;
        Ok(group.map(Self::new))
    }

    /// Creates the communicator of the ranks that are left after a failure, of which there must be at least this number. All ranks
    /// that are left call this.
    fn rebuild(&self, py: Python<'_>, at_least: u32) -> PyResult<Self> {
        let left = self.wait(py, move |communicator| communicator.rebuild(at_least))?;
        Ok(Self::new(left))
    }

    /// Returns when every rank has called this.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, mkernel::Communicator::barrier)
    }

    /// Sends bytes, 64 KiB at most, to all ranks, and returns the bytes of each.
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        data: Vec<u8>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let all = self.wait(py, move |communicator| communicator.all_gather(&data))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Raises the error of a call that has ended. Does not wait.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, mkernel::Communicator::check)
    }

    /// Waits for the work of the stream with this handle, and raises the error of a call.
    fn synchronize(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        self.wait(py, move |communicator| match communicator.is_simulated() {
            true => communicator.check(),
            // SAFETY: the Python sources pass streams of the communicator's GPU.
            false => unsafe { crate::memory::synchronize(communicator, stream) },
        })
    }

    /// Ends all waits of this rank. The communicator cannot be used after that.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, |communicator| {
            communicator.abort();
            Ok(())
        })
    }

    /// Leaves the job. Calls after this raise an error. Nothing happens if the communicator is closed.
    fn close(&self) {
        let mut guard = self
            .communicator
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let communicator = guard.take();
        drop(guard);
        drop(communicator);
    }
}

/// Creates the communicators of a job on simulated GPUs, one for each thread of this process that is to be a rank.
#[pyfunction]
#[pyo3(signature = (ranks, seed=0, sms=8, skew=20))]
pub fn simulated(
    py: Python<'_>,
    ranks: u32,
    seed: u64,
    sms: u32,
    skew: u32,
) -> PyResult<Vec<Communicator>> {
    let simulation = Simulation {
        ranks,
        seed,
        sms,
        skew,
        ..Simulation::default()
    };
    let created = py.detach(|| mkernel::Communicator::simulated(&simulation));
    all(created)
}

/// Creates a communicator for each of these GPUs. Each communicator is for a thread of this process.
#[pyfunction]
pub fn local(py: Python<'_>, devices: Vec<usize>) -> PyResult<Vec<Communicator>> {
    let created = py.detach(|| mkernel::Communicator::local(&devices));
    all(created)
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("{seconds} s: {error}")))
}

fn all(created: Result<Vec<mkernel::Communicator>, Error>) -> PyResult<Vec<Communicator>> {
    let communicators = created.map_err(exception)?.into_iter();
    Ok(communicators.map(Communicator::new).collect())
}
