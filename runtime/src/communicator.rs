//! [`Communicator`]: one rank of a job, with its GPU.

use crate::alloc;
use crate::bootstrap::{self, Collective, Owner};
use crate::cluster::Cluster;
use crate::completion::Completion;
use crate::deadlines::DRAIN_MARGIN;
use crate::driver::{self, Uncaptured};
use crate::env::Timeouts;
use crate::error::{CallError, Error, Finding};
use crate::fabric::transport::Transport;
use crate::gpu::Gpu;
use crate::heap::Heap;
use crate::launch::slice_types::Element;
use crate::operator::{KnownOperators, Operator};
use crate::prepare::{self, Code};
use crate::shared::Shared;
use crate::simulation::SimulatedJob;
use crate::stats::Stats;
use crate::symmetric_slice::SymmetricSlice;
use cudarc::driver::{CudaContext, CudaStream};
use mkernel_compile::{GenError, KernelTemplate};
use mkernel_spec::{Device, KernelConfig, Sizes, Tuned};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One rank of a job: its GPU and its connections to the other ranks.
///
/// A communicator is created by [`Communicator::from_env`], [`Communicator::connect`], [`Communicator::local`] or
/// [`Communicator::simulated`]. [`split`](Self::split) creates communicators of groups of its ranks, and
/// [`rebuild`](Self::rebuild) creates one of the ranks that are left after a failure.
/// [`prepare`](Self::prepare), [`alloc`](Self::alloc) and [`barrier`](Self::barrier) are collective: every rank must call
/// them, in the same order. When a rank fails, or does not make a call before the deadline, all other ranks get an error that names it.
///
/// Drop the communicator before the process ends. A rank that ends without doing so is lost to the other ranks
/// ([`Error::RankLost`]), whose communicators can only be rebuilt after that. A rank whose thread panics is lost too. When a rank
/// drops its communicator before it has made all calls that other ranks make, the other ranks get
/// [`Error::LeftWithoutCall`].
///
/// All connections between processes end at rank 0. After rank 0 has dropped its communicator, the other ranks do not
/// detect any more that a rank leaves or is lost, and wait for it until their deadlines. So let rank 0 drop its communicator last,
/// after a [`barrier`](Self::barrier).
///
/// Streams and slices must belong to [`context`](Self::context), which is the GPU's primary context.
///
/// A forked child does not take part in the job: if it drops a communicator, nothing happens. Let children `exec` soon.
/// As long as a child has its parent's connections, the other ranks do not detect that the parent has died.
pub struct Communicator {
    // The heap is dropped first: the other ranks may wait for this rank's endpoints to close.
    heap: Mutex<Heap>,
    operators: Mutex<KnownOperators>,
    shared: Arc<Shared>,
    owner: Owner,
}

impl Communicator {
    /// The most bytes that a rank can pass to [`all_gather`](Self::all_gather): 64 KiB.
    pub const MAX_CONTRIBUTION_BYTES: usize = bootstrap::MAX_CONTRIBUTION_BYTES;

    pub(crate) fn new(
        gpu: Gpu,
        ranks: Collective,
        cluster: Cluster,
        timeouts: &Timeouts,
        simulated: Option<Arc<SimulatedJob>>,
    ) -> Self {
        Self::of_shared(Shared::new(gpu, ranks, cluster, timeouts, simulated))
    }

    pub(crate) fn of_shared(shared: Shared) -> Self {
        Self {
            heap: Mutex::default(),
            operators: Mutex::default(),
            shared: Arc::new(shared),
            owner: Owner::this_process(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn heap(&self) -> MutexGuard<'_, Heap> {
        // A panic while the heap changes ends the collective step on the other ranks too, so nobody uses it after that.
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.shared.world
    }

    /// Returns the number of hosts of the ranks.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.shared.cluster.hosts.count()
    }

    /// Returns the primary context of this rank's GPU.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.shared.ctx
    }

    /// Returns a stream for this rank's calls: the default stream of its GPU, or a stream of its own if it
    /// [shares](Self::local) the GPU with other ranks.
    #[must_use]
    pub fn default_stream(&self) -> Arc<CudaStream> {
        self.shared.default_stream.clone()
    }

    /// Returns the properties from which plans are made. Each property is the lowest value of all ranks' GPUs.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Returns the timeout of waits in kernels that are launched from now on.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.shared.timeout()
    }

    /// Sets the timeout of every wait. The default is `MKERNEL_TIMEOUT_MS`, or 30 s. A captured graph keeps the
    /// timeout that was set when it was captured. On simulated GPUs this is simulated time, and collective steps keep
    /// their own timeout.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.set_timeout(timeout);
        self.heap().set_deadline(timeout);
    }

    /// Returns the timeout of collective steps on the host, such as [`prepare`](Self::prepare),
    /// [`barrier`](Self::barrier) and [`all_gather`](Self::all_gather). This time is paused while a thread waits for
    /// simulated GPUs.
    #[must_use]
    pub fn host_timeout(&self) -> Duration {
        self.shared.host_timeout()
    }

    /// Sets the timeout of collective steps alone. Call it after [`set_timeout`](Self::set_timeout). The default is
    /// `MKERNEL_HOST_TIMEOUT_MS`, or else the timeout of every wait. On simulated GPUs it is 300 s if neither variable
    /// is set.
    pub fn set_host_timeout(&self, timeout: Duration) {
        self.shared.set_host_timeout(timeout);
    }

    /// Returns whether this rank's GPU is simulated.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.shared.simulated.is_some()
    }

    /// Returns the findings of the simulator so far on the ranks of this job. The list is empty on real GPUs.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.shared.findings()
    }

    /// Returns the timeline of all roles of all ranks in simulated time, as JSON for Perfetto
    /// (<https://ui.perfetto.dev>). Returns `None` unless [`Simulation::timeline`](crate::Simulation::timeline) is set.
    #[must_use]
    pub fn timeline(&self) -> Option<String> {
        self.shared
            .simulated
            .as_ref()
            .and_then(|host| host.timeline())
    }

    /// Sets the transport for puts between nodes, for operators that are prepared from now on. All ranks must choose
    /// transports of one kind. The default is `MKERNEL_TRANSPORT`, or else emulated NICs if all ranks are on one host
    /// and RC if they are on several.
    pub fn set_transport(&self, transport: Transport) {
        self.shared.set_transport(transport);
    }

    /// Sets the measured choices of operators that are prepared from now on. All ranks must set equal choices. The default is the
    /// file `MKERNEL_TUNED` and the choices that mkernel ships.
    pub fn set_tuned(&self, tuned: Tuned) {
        self.shared.set_tuned(tuned);
    }

    /// Sets the most events of a thread that kernels with `traced` record in a call, for operators that are prepared from now on.
    /// The default is 2048 for the first thread of each warp, and 64 for the other threads, which record few events; on
    /// simulated GPUs it is 256 for all threads. See [`Operator::trace`](crate::Operator::trace).
    pub fn set_trace_events(&self, events: u32) {
        self.shared.set_trace_events(events);
    }

    /// Prepares an operator: plans the kernel, compiles it or loads it from the store, and allocates its memory. An equal
    /// operator that exists on all ranks gives its kernel and its memory instead. This is a collective call.
    ///
    /// `sizes` is a [`Shape`](mkernel_spec::Shape) with all sizes, or the dynamic sizes by name: `[(Field::M, 4096)]`, or `[]`
    /// if the configuration has all sizes.
    ///
    /// # Errors
    /// [`Error::Config`] with all mistakes of the configuration, [`Error::Build`], [`Error::Mismatch`] if ranks prepare
    /// different kernels, [`Error::Cluster`] if the ranks and hosts do not fit the kernel's ranks and nodes,
    /// [`Error::Network`] and [`Error::Fabric`] if the network cannot be used, or [`Error::RanksFailed`] with the
    /// errors of other ranks.
    pub fn prepare(
        &self,
        config: &KernelConfig,
        sizes: impl Into<Sizes>,
    ) -> Result<Operator, Error> {
        self.prepare_code((config, None), sizes.into(), |template| {
            Ok(Code::Template(template))
        })
    }

    /// Prepares an operator whose code `code` makes from the kernel's template. If the configuration has no name, errors
    /// call the operator `name`.
    pub(crate) fn prepare_code(
        &self,
        (config, name): (&KernelConfig, Option<&str>),
        sizes: Sizes,
        code: impl FnOnce(KernelTemplate) -> Result<Code, GenError>,
    ) -> Result<Operator, Error> {
        let mut heap = self.heap();
        // Nothing panics while a known operator is added.
        let operators = self.operators.lock();
        let mut operators = operators.unwrap_or_else(PoisonError::into_inner);
        prepare::prepare(
            &self.shared,
            (&mut heap, &mut operators),
            (config, name),
            sizes,
            code,
        )
    }

    /// Allocates a tensor of `elems` elements in the symmetric memory, at the same offset on every rank. All elements are 0.
    /// `stream` orders the uses of the tensor, as the stream of a cudarc allocation does. This is a collective call.
    ///
    /// ```no_run
    /// # use mkernel::{Communicator, Error, half::bf16};
    /// # fn f(ranks: &Communicator) -> Result<(), Error> {
    /// let stream = ranks.default_stream();
    /// let mut x = ranks.alloc::<bf16>(&stream, 4096)?;
    /// stream.memcpy_htod(&vec![bf16::ONE; 4096], &mut x).expect("a copy");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`] if ranks allocate different tensors, [`Error::Call`] if the stream belongs to another GPU,
    /// [`Error::Device`] if the GPU has no memory for the tensor, or [`Error::RanksFailed`] with the errors of other
    /// ranks.
    pub fn alloc<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        elems: usize,
    ) -> Result<SymmetricSlice<T>, Error> {
        alloc::alloc(&self.shared, &mut self.heap(), stream, elems)
    }

    /// Returns the resources of the communicator on this rank, and its traffic so far. This waits while another thread
    /// prepares an operator or allocates a tensor.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.heap().stats()
    }

    /// Returns when every rank has called this. This does not wait for the work of GPUs.
    ///
    /// # Errors
    /// [`Error::RanksMissing`] and [`Error::RankLeft`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.shared
            .ranks()
            .barrier("barrier", self.shared.host_timeout())
    }

    /// Sends `bytes`, at most [`MAX_CONTRIBUTION_BYTES`](Self::MAX_CONTRIBUTION_BYTES), to all ranks. Returns the bytes
    /// of each rank, by rank. This is a collective call.
    ///
    /// # Errors
    /// [`Error::ContributionTooLong`] on a rank that sends more, and [`Error::RanksFailed`] on the other ranks;
    /// [`Error::RanksMissing`] and [`Error::RankLeft`].
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.shared
            .ranks()
            .all_gather("all_gather", bytes, self.shared.host_timeout())
    }

    /// Waits for the stream's work, at most for the timeout plus 10 s, then calls [`check`](Self::check). The caller's
    /// own work on the stream must fit into that time too.
    ///
    /// # Errors
    /// [`Error::Timeout`] if a wait in a kernel failed, and [`Error::StillBusy`] if the stream was not done in time.
    /// [`Error::Routing`], once, if the tokens of a call were invalid; the communicator remains usable after that.
    /// [`Error::Call`] if the stream is being captured. [`Error::Simulation`] if the simulator found a mistake of a kernel.
    pub fn synchronize(&self, stream: &CudaStream) -> Result<(), Error> {
        driver::bind(&self.shared.ctx)?;
        // Another thread may be capturing a stream of its own, which must not be affected.
        let _uncaptured = Uncaptured::new();
        // A query would end the capture.
        // SAFETY: the stream is borrowed, so it is alive.
        if unsafe { driver::is_capturing(stream.cu_stream())? } {
            return Err(Error::Call(CallError::WaitInCapture));
        }
        let limit = self.shared.gpu_timeout() + DRAIN_MARGIN;
        let started = Instant::now();
        // SAFETY: the stream is borrowed, so it is alive.
        let is_done = || unsafe { driver::is_done(stream.cu_stream()) };
        // If the GPU failed, the report of its kernel may have the cause.
        while !is_done().or_else(|error| self.check().and(Err(error)))? {
            let waited = started.elapsed();
            if waited >= limit {
                self.check()?;
                return Err(Error::StillBusy { waited });
            }
            // Callers may measure short waits, so short waits spin.
            if waited > Duration::from_millis(20) {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::hint::spin_loop();
            }
        }
        self.check()
    }

    /// Returns a future that is ready when the work that is in `stream` now is done, with the result of
    /// [`check`](Self::check). The future does the work of [`synchronize`](Self::synchronize) without blocking a
    /// thread.
    ///
    /// # Errors
    /// [`Error::Call`] if the stream is being captured, and errors of the driver. The errors of the future are those of
    /// [`synchronize`](Self::synchronize).
    pub fn completion(&self, stream: &CudaStream) -> Result<Completion, Error> {
        Completion::new(&self.shared, stream)
    }

    /// Checks whether all calls that have ended were successful. Does not wait.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::RankLost`], [`Error::Aborted`], or the reason why copies could not be made. The
    /// communicator cannot be used after that: [`rebuild`](Self::rebuild) it, or drop it with its operators, on every rank, and
    /// create a new one.
    /// [`Error::Routing`] is different: it affects only one call, and it is returned once.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Ends all waits of this rank, in its kernels and in collective steps. The communicator cannot be used after that.
    /// This may be called from any thread.
    ///
    /// A kernel that is running on this rank aborts the other ranks of its node at once, and a collective step that is
    /// aborted here aborts all ranks. Otherwise the waits of the other ranks end within about a second.
    pub fn abort(&self) {
        if let Some(host) = &self.shared.simulated {
            host.abort();
        }
        self.shared.health.abort();
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // The threads, the locks and the CUDA context belong to the parent process, so nothing that waits for them
            // may be dropped.
            std::mem::forget(self.shared.clone());
            // The lock may be held by a thread that does not exist here.
            let heap = self.heap.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(heap));
        } else if !std::thread::panicking() {
            // This rank leaves before the network is closed, so that ranks that need this rank do not mistake the close
            // for a failure.
            self.shared.health.leave();
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}", self.rank(), self.world())?;
        let group = self.shared.cluster.group_name();
        group.map_or(Ok(()), |name| write!(f, ", {name}"))?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests;
