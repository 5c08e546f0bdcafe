//! [`Communicator`]: one rank of a job, with its GPU.

use crate::bootstrap::{Collective, Owner};
use crate::cluster::Cluster;
use crate::deadlines::DRAIN_MARGIN;
use crate::driver::{self, Uncaptured};
use crate::env::Timeouts;
use crate::error::{Error, Finding};
use crate::fabric::transport::Transport;
use crate::fused::FusedKernel;
use crate::operator::Operator;
use crate::prepare;
use crate::shared::{Gpu, Shared};
use crate::simulation::SimulatedJob;
use cudarc::driver::{CudaContext, CudaStream};
use mkernel_spec::{Device, KernelConfig, Shape};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank of a job: its GPU, and the way to the other ranks.
///
/// Made by [`Communicator::from_env`] or [`Communicator::local`]. [`prepare`](Self::prepare) and
/// [`barrier`](Self::barrier) are collective: every rank must call them, in the same order. When a rank fails,
/// or does not come before the deadline, all others get an error that names it.
///
/// Drop it before the process ends: a rank that is gone without that is lost to the others ([`Error::RankLost`]), whose
/// communicators are then out of use. So is one whose thread panics.
///
/// All connections between processes end at rank 0. Once it has dropped its communicator, the others do not notice any more
/// that one of them is lost, and wait for it until their deadlines: let rank 0 drop its own last, after a
/// [`barrier`](Self::barrier).
///
/// Streams and slices must be of [`context`](Self::context), the GPU's primary context.
///
/// A forked child has no part in the job: a communicator that it drops stays as it is. Let children `exec` soon, for as long
/// as one has its parent's connections, the others do not notice that the parent has died.
pub struct Communicator {
    shared: Arc<Shared>,
    owner: Owner,
}

impl Communicator {
    pub(crate) fn new(
        gpu: Gpu,
        ranks: Collective,
        cluster: Cluster,
        timeouts: &Timeouts,
        simulated: Option<Arc<SimulatedJob>>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared::new(gpu, ranks, cluster, timeouts, simulated)),
            owner: Owner::this_process(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.shared.world
    }

    /// How many hosts they are on.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.shared.cluster.hosts.count()
    }

    /// The primary context of this rank's GPU.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.shared.ctx
    }

    /// The figures that plans are made from: of each the least of all ranks' GPUs.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// How long waits of kernels that are launched from now on may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.shared.timeout()
    }

    /// Sets the deadline of every wait; at first it is `MKERNEL_TIMEOUT_MS`, or 30 s. A graph keeps the one it was
    /// captured with. On simulated GPUs this is simulated time, and collective steps keep their own deadline.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.set_timeout(timeout);
    }

    /// How long ranks wait for each other in collective steps: [`prepare`](Self::prepare), [`barrier`](Self::barrier),
    /// [`all_gather`](Self::all_gather). While a thread waits for simulated GPUs, this time stands still.
    #[must_use]
    pub fn host_timeout(&self) -> Duration {
        self.shared.host_timeout()
    }

    /// Sets the deadline of collective steps alone; call it after [`set_timeout`](Self::set_timeout). At first it is
    /// `MKERNEL_HOST_TIMEOUT_MS`, or else that of every wait, or 300 s on simulated GPUs where neither is set.
    pub fn set_host_timeout(&self, timeout: Duration) {
        self.shared.set_host_timeout(timeout);
    }

    /// Whether this rank's GPU is a simulated one.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.shared.simulated.is_some()
    }

    /// What the simulator found so far on the ranks of this job; nothing on GPUs.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.shared.findings()
    }

    /// What every role of every rank did when, in simulated time, as JSON for Perfetto (<https://ui.perfetto.dev>);
    /// none unless [`Simulation::timeline`] is set.
    #[must_use]
    pub fn timeline(&self) -> Option<String> {
        self.shared
            .simulated
            .as_ref()
            .and_then(|host| host.timeline())
    }

    /// What carries puts between nodes, for operators that are prepared from now on; of one kind on all ranks. At first it
    /// is what `MKERNEL_TRANSPORT` says; else emulated NICs where all ranks are on one host, RC where they are on several.
    pub fn set_transport(&self, transport: Transport) {
        self.shared.set_transport(transport);
    }

    /// Makes an operator: plans, compiles (or loads from the store), allocates. Collective.
    ///
    /// # Errors
    /// [`Error::Config`] with all mistakes, [`Error::Build`], [`Error::Mismatch`] if ranks differ,
    /// [`Error::Cluster`] if they are on several hosts and the kernel is for one, [`Error::Cluster`] and
    /// [`Error::Cluster`] if they do not fit the kernel's nodes, [`Error::Fabric`] and the like of the network, or [`Error::RanksFailed`] with what went wrong elsewhere.
    pub fn prepare(
        &self,
        config: &KernelConfig,
        shape: impl Into<Shape>,
    ) -> Result<Operator, Error> {
        prepare::prepare(&self.shared, config, shape.into(), |_| ())
    }

    /// [`prepare`](Self::prepare) with a kernel whose CUDA text you have changed: for work on templates, and for tests
    /// that plant mistakes. `edit` gets the rendered text, and must do the same on every rank. The plan stays as it is,
    /// so what the host does (arguments, memory, copies) must still fit.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare); text that does not compile is [`Error::Build`] with the compiler's messages.
    ///
    /// ```compile_fail,E0133
    /// # use mkernel::{Communicator, KernelConfig, Shape};
    /// # fn f(ranks: &Communicator, config: &KernelConfig, shape: Shape) {
    /// let operator = ranks.prepare_edited(config, shape, |text| text.clear());
    /// # }
    /// ```
    ///
    /// # Safety
    /// Whatever the text says is run, on simulated GPUs as code of this process. It must access nothing but what the
    /// kernel's arguments give it and the unchanged text would access, and must end.
    pub unsafe fn prepare_edited(
        &self,
        config: &KernelConfig,
        shape: impl Into<Shape>,
        edit: impl FnOnce(&mut String),
    ) -> Result<Operator, Error> {
        prepare::prepare(&self.shared, config, shape.into(), |source| {
            source.text = source.with_headers();
            edit(&mut source.text);
        })
    }

    /// [`prepare`](Self::prepare) for a type with `#[fused_kernel(...)]`.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare).
    pub fn prepare_fused<K: FusedKernel>(
        &self,
        shape: impl Into<Shape>,
    ) -> Result<Operator, Error> {
        self.prepare(&K::config(), shape)
    }

    /// Returns when every rank has come here. Says nothing about GPUs.
    ///
    /// # Errors
    /// [`Error::RanksMissing`], [`Error::RankLeft`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.shared
            .ranks()
            .barrier("barrier", self.shared.host_timeout())
    }

    /// Gives `bytes`, at most 64 KiB, to all ranks; returns what each gave, by rank. Collective.
    ///
    /// # Errors
    /// [`Error::OfferTooLong`] on the rank that gives more, [`Error::RanksFailed`] on the others; [`Error::RanksMissing`],
    /// [`Error::RankLeft`].
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.shared
            .ranks()
            .all_gather("all_gather", bytes, self.shared.host_timeout())
    }

    /// Waits for the stream's work, then [`check`](Self::check)s. Waits no longer than the deadline and 10 s, which
    /// the caller's own work on the stream must fit in too.
    ///
    /// # Errors
    /// [`Error::Timeout`] if a kernel gave up, [`Error::StillBusy`] if the stream was not done in time; [`Error::Routing`], once,
    /// if tokens of a call were wrong, after which the communicator stays of use;
    /// [`Error::Simulation`] if a simulated kernel did what it must not.
    pub fn synchronize(&self, stream: &CudaStream) -> Result<(), Error> {
        driver::bind(&self.shared.ctx)?;
        // Another thread may be capturing a stream of its own.
        let _uncaptured = Uncaptured::new();
        let limit = self.shared.gpu_timeout() + DRAIN_MARGIN;
        let started = Instant::now();
        // SAFETY: the stream is borrowed, so it is alive.
        let is_done = || unsafe { driver::is_done(stream.cu_stream()) };
        // Where the GPU failed, its kernel may have said why.
        while !is_done().or_else(|error| self.check().and(Err(error)))? {
            let waited = started.elapsed();
            if waited >= limit {
                self.check()?;
                return Err(Error::StillBusy { waited });
            }
            // Short waits are those that somebody times.
            if waited > Duration::from_millis(20) {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::hint::spin_loop();
            }
        }
        self.check()
    }

    /// Whether all calls that are over went well; does not wait.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::RankLost`], [`Error::Aborted`], or why copies could not be made. The communicator is out of use then:
    /// drop it with its operators, on every rank, and make a new one. But for [`Error::Routing`], which concerns one call: it
    /// is returned once.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Ends all waits that are under way on this rank, of its kernels and in collective steps, and takes this communicator
    /// out of use. May be called from any thread.
    ///
    /// A kernel that is running here tells the other ranks, and so does a collective step that is ended; without either
    /// they notice at their deadline.
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
            // Threads, locks and CUDA's context are those of the parent, so nothing that waits for them may be dropped.
            std::mem::forget(self.shared.clone());
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Communicator(rank {} of {})",
            self.shared.rank, self.shared.world
        )
    }
}
