//! [`Operator`]: a kernel that is ready to be launched, with its memory on every rank.

mod calls;
mod core;
pub(crate) mod health;
mod known;
mod launches;
mod parts;
mod retired;
#[cfg(all(test, feature = "simulator"))]
mod tests;
mod trace_memory;

pub(crate) use self::core::OperatorCore;
use crate::copy_engine::{CopyJob, CopyThread};
use crate::driver::{self, Capture, LaunchMode, UserStream, WordReader};
use crate::error::{CallError, Error};
use crate::fabric::endpoint::Fabric;
use crate::health::Monitored;
use crate::kernel::Kernel;
use crate::launch::raw_operand::RawOperand;
use crate::launch::rows::{CallRows, Rows};
use crate::order;
use crate::range::Range;
use crate::report::Page;
use crate::shared::Shared;
use crate::symmetric::OwnMemory;
use crate::trace::Trace;
use crate::workspace::Workspace;
use calls::BegunCalls;
use cudarc::driver::{CudaContext, CudaStream, sys};
use health::OperatorHealth;
pub(crate) use known::KnownOperators;
use launches::Launches;
use mkernel_spec::KernelPlan;
use parts::Parts;
use std::sync::Arc;
pub(crate) use trace_memory::TraceMemory;

/// A kernel with its workspace, created by [`Communicator::prepare`](crate::Communicator::prepare).
///
/// All ranks must launch their operators in one order, and every rank must launch each operator equally often, except `gemm`,
/// whose ranks do not wait for each other. Launches on one GPU are ordered after each other, also on different streams and of
/// several communicators. A launch can be captured into a CUDA graph and replayed, identically on every rank: see
/// [`Call::capture`](crate::Call::capture). Replays are not ordered after other launches or graphs, so order them by one stream
/// or by events.
///
/// Operators of a communicator that are prepared with equal configurations and sizes share their kernel and its workspace, as
/// long as one of these operators exists on every rank. Each layer of a model can therefore prepare operators of its own.
///
/// Dropping the last operator that shares a workspace waits until the launches have ended, or until the deadline. The shared
/// memory is freed then. If a graph has captured a launch, the memory is freed when that graph and all executable graphs made
/// from the graph are destroyed.
pub struct Operator {
    // The launches end before the core is dropped.
    launches: Launches,
    core: Arc<OperatorCore>,
}

/// The parts of an operator that exist before the other ranks' memory is mapped.
pub(crate) struct Loaded {
    pub kernel: Kernel,
    pub page: Arc<Page>,
    /// The copy thread, if the plan uses copy engines.
    pub copies: Option<Arc<CopyThread>>,
    /// The gate that calls of all operators on this GPU share.
    pub gate: Arc<OwnMemory>,
    /// The reader of the numbers of calls that ranks have begun.
    pub reader: Arc<WordReader>,
    /// The memory of the trace, if the kernel is traced.
    pub trace: Option<TraceMemory>,
}

/// Returns the counts of the calls of an operator.
fn begun_calls(
    shared: &Shared,
    operator: u32,
    kernel: &Kernel,
    workspace: &Arc<Workspace>,
    (reader, gate): (Arc<WordReader>, &Arc<OwnMemory>),
) -> BegunCalls {
    match &shared.simulated {
        Some(job) => {
            let key = (shared.cluster.splits.clone(), operator);
            let place = (shared.rank, &shared.cluster.job_ranks[..]);
            BegunCalls::Simulated(job.count_calls(key, place, kernel.handle()))
        }
        None => BegunCalls::Mapped {
            reader,
            workspace: workspace.clone(),
            gate: gate.clone(),
            operator,
            first_rank: shared.rank - workspace.local_rank(),
        },
    }
}

impl Operator {
    /// Creates the operator from its parts. The other ranks must have created their parts.
    pub(crate) fn new(
        (plan, name): (KernelPlan, &str),
        loaded: Loaded,
        workspace: Arc<Workspace>,
        shared: Arc<Shared>,
    ) -> Self {
        let Loaded {
            kernel,
            page,
            copies,
            gate,
            reader,
            trace,
        } = loaded;
        let operator = shared.name_operator(name);
        let job = plan.body().copies.clone().map(|copies| {
            let (rank, world) = (shared.rank, shared.world);
            Arc::new(CopyJob::new(
                copies,
                rank,
                world,
                page.clone(),
                workspace.addresses(),
            ))
        });
        if let (Some(thread), Some(job)) = (&copies, &job) {
            thread.add(job.clone());
        }
        let busy_guard = shared.simulated.as_ref().zip(job.clone());
        let busy_guard =
            busy_guard.map(|(simulated, job)| simulated.pause_clock_while(move || job.is_busy()));
        let fabric = workspace.fabric().cloned();
        let begun_calls = || {
            let number = operator.number();
            begun_calls(&shared, number, &kernel, &workspace, (reader, &gate))
        };
        let health = Arc::new(OperatorHealth {
            calls: plan.spec.problem().communicates().then(begun_calls),
            operators: shared.operators.clone(),
            operator,
            page,
            job,
            fabric,
        });
        shared.register(health.clone());
        let parts = Parts {
            _busy_guard: busy_guard,
            parameter: plan.parameter(),
            plan,
            health,
            kernel,
            workspace,
            copies,
            gate,
            trace,
            shared,
        };
        Self::with_core(Arc::new(OperatorCore::new(parts)))
    }

    /// Creates an operator that shares `core` with other operators.
    pub(crate) fn with_core(core: Arc<OperatorCore>) -> Self {
        Self {
            launches: Launches::new(),
            core,
        }
    }

    pub(crate) fn core(&self) -> &Arc<OperatorCore> {
        &self.core
    }

    fn parts(&self) -> &Parts {
        &self.core.parts
    }

    /// Returns the plan of the kernel.
    #[must_use]
    pub fn plan(&self) -> &KernelPlan {
        &self.parts().plan
    }

    /// Enqueues one call on `stream`, with operands in the order of [`KernelPlan::operands`]. For a GEMM operator these
    /// are A, B, C, then the bias and the residual if the kernel has them.
    ///
    /// # Errors
    /// The errors of [`Call::launch`](crate::Call::launch).
    ///
    /// # Safety
    /// The operands must be device memory of the sizes in the plan (rows of this rank, columns, the passed stride).
    /// The operands must stay allocated until the call has ended. Until then, nothing else may write the inputs or access the
    /// results. If the stream is being captured, this holds for every replay of the graph. `stream` must belong to the
    /// communicator's context. The stream must stay alive until this operator is launched on another stream or dropped.
    pub unsafe fn launch_raw(
        &self,
        stream: sys::CUstream,
        operands: &[RawOperand],
    ) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.launch_raw_rows(stream, operands, Rows::Most) }
    }

    /// Enqueues one call with the given rows, as [`launch_raw`](Self::launch_raw) does with the most rows.
    ///
    /// # Errors
    /// The errors of [`launch_raw`](Self::launch_raw), and [`Error::Call`] if the operator does not take rows at
    /// run time, or was prepared for fewer rows.
    ///
    /// # Safety
    /// As for [`launch_raw`](Self::launch_raw), except that operands need only the rows of the call. With [`Rows::At`]
    /// the operands must have the most rows, and the address must refer to a readable word of device memory for as long as the
    /// operands must be allocated.
    pub unsafe fn launch_raw_rows(
        &self,
        stream: sys::CUstream,
        operands: &[RawOperand],
        rows: Rows,
    ) -> Result<(), Error> {
        let rows = rows.checked(self.plan())?;
        driver::bind(self.context())?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let capture = Capture::of(stream)?;
            self.enqueue(&UserStream::raw(stream), capture.as_ref(), operands, rows)
        }
    }

    /// Sets whether later calls may start while the preceding kernel on the stream is still running.
    ///
    /// An overlapping call of a GEMM operator loads the first tiles of B (the weights) while the preceding kernel finishes, and
    /// reads and writes everything else only after that kernel. In a chain of small calls this hides a part of each call. There
    /// is no gain after work other than kernels, and little gain after kernels that do not allow an early start. All kernels of
    /// mkernel allow an early start, and so do kernels of other libraries that use programmatic dependent launch. Operators
    /// other than GEMMs load nothing early. Nor do GEMMs that take their rows at run time, since the first tile of B depends on
    /// the rows.
    ///
    /// The launches are not cooperative. If another stream runs kernels that wait for other ranks on the same GPU, each kernel
    /// can hold a part of the SMs and wait for the rest, until an error at the deadline. Leave SMs to such kernels by
    /// [`max_sms`](crate::KernelConfig::max_sms), or do not use this option. For the same reason, calls of ranks that
    /// [share](crate::Communicator::local) a GPU do not overlap.
    ///
    /// # Safety
    /// No work that is enqueued on the stream before a call may write or allocate the call's B, unless work other than a
    /// kernel, such as a copy or a wait for an event, comes between that work and the call. If the stream is being captured,
    /// this holds for the graph.
    pub unsafe fn overlap_calls(&self, overlap: bool) {
        self.launches.state().mode = match overlap && !self.parts().shared.shares_gpu {
            true => LaunchMode::Overlapping,
            false => LaunchMode::Cooperative,
        };
    }

    /// Checks the communicator, as [`Communicator::check`](crate::Communicator::check) does.
    ///
    /// # Errors
    /// The errors of [`Communicator::check`](crate::Communicator::check).
    pub fn check(&self) -> Result<(), Error> {
        self.parts().shared.check()
    }

    /// Returns when the waits and the steps of the last call's roles began and ended on this rank. The kernel must have been
    /// prepared with [`traced`](crate::KernelConfig::traced). The call must have ended, so call
    /// [`Communicator::synchronize`](crate::Communicator::synchronize) before. Operators with equal configurations and sizes
    /// share their trace.
    ///
    /// # Errors
    /// [`Error::Call`] if the kernel is not traced, or the error of a copy from device memory.
    pub fn trace(&self) -> Result<Trace, Error> {
        let Parts {
            trace,
            shared,
            plan,
            ..
        } = self.parts();
        match trace {
            Some(trace) => trace.read(shared, plan),
            None => Err(Error::Call(CallError::NotTraced {
                id: plan.id.clone(),
            })),
        }
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.parts().shared.ctx
    }

    /// Returns the address of this rank's workspace.
    #[cfg(feature = "testing")]
    pub(crate) fn workspace(&self) -> u64 {
        self.parts().workspace.own()
    }

    pub(crate) fn rank(&self) -> u32 {
        self.parts().shared.rank
    }

    /// Returns the fabric, if the kernel has several nodes.
    pub(crate) fn fabric(&self) -> Option<&Arc<Fabric>> {
        self.parts().workspace.fabric()
    }

    pub(crate) fn is_of_device(&self, stream: &CudaStream) -> bool {
        stream.context() == self.context()
    }

    /// Enqueues a call, or adds it to the graph that `stream` is captured into by `capture`.
    ///
    /// # Safety
    /// As for [`Self::launch_raw`]. Also, the context must be current, and `capture` must be the capture that
    /// the stream takes part in, if any.
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &UserStream,
        capture: Option<&Capture>,
        operands: &[RawOperand],
        rows: CallRows<'_>,
    ) -> Result<(), Error> {
        let Parts { health, shared, .. } = self.parts();
        let _range = Range::begin(|| self.parts().name_of_call(rows));
        if health.failure().is_some()
            && let Some(cause) = shared.health.failure()
        {
            shared.fail_because_of(cause);
        }
        shared.ensure_usable()?;
        // The lock is held during the launch, so that copies, streams and launches have one order.
        let mut order = order::lock(&shared.order);
        let mut state = self.launches.state();
        self.parts().bind(&mut state.args, operands, rows)?;
        if let Some(fabric) = self.fabric() {
            fabric.wake();
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            match capture {
                Some(capture) => {
                    let (core, launches) = (&self.core, &self.launches);
                    launches.capture(core, stream, capture, &mut order, &mut state)
                }
                None => (self.launches).launch(&self.core, stream, &mut order, &mut state),
            }
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Graphs may keep the core alive, but streams without an owner need not outlive the operator.
        self.launches.end(&self.core);
    }
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Operator({}, rank {} of {})",
            self.plan().id,
            self.parts().shared.rank,
            self.parts().shared.world
        )
    }
}
