//! [`Operator`]: a kernel that is ready to run, with its memory on every rank.

mod body;
mod ends;
#[cfg(all(test, feature = "simulator"))]
mod tests;

use crate::args::Wires;
use crate::call::{Call, Element, Readable, Writable};
use crate::copies::{CopyThread, Job};
use crate::driver::{self, Capture, UserStream};
use crate::error::Error;
use crate::fabric::endpoint::Fabric;
use crate::kernel::Kernel;
use crate::operands::{self, RawOperand};
use crate::order;
use crate::report::Page;
use crate::shared::Shared;
use crate::symmetric::{OwnMemory, Symmetric};
use body::{Body, Parts};
use cudarc::driver::{CudaContext, CudaStream, sys};
use half::bf16;
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::{MAX_RANKS, Operand};
use std::sync::Arc;

/// A kernel with its workspace, made by [`Communicator::prepare`](crate::Communicator::prepare).
///
/// Every rank must launch its operators the same number of times in the same order. Launches on one GPU wait for each
/// other, also on different streams, and those of several communicators. A launch may be captured into a CUDA graph and
/// replayed, on every rank alike: see [`Call::capture`]. Replays wait neither for other launches nor for other graphs;
/// put them into an order, by one stream or by events.
///
/// Dropping an operator waits until its launches are over, as long as the deadline allows. Its memory is freed then, or,
/// if a graph has captured a launch of it, when that graph and all executable graphs made of it are gone.
pub struct Operator {
    body: Arc<Body>,
}

/// What a kernel's [`Epilogue`](mkernel_spec::Epilogue) reads beside the sum.
#[derive(Clone, Copy, Default)]
pub struct Addends<'a> {
    /// `[N]`, of this rank's columns.
    pub bias: Option<&'a dyn Readable<bf16>>,
    /// With the rows and columns of this rank's C. `gemm_ar`: the same values on every rank, since of each row perhaps
    /// only one rank's is read. It may be C itself, with the same row stride and type of elements, but must not overlap it
    /// otherwise.
    pub residual: Option<&'a dyn Readable<bf16>>,
}

/// The workspaces, and across nodes the way between them.
pub(crate) enum Memory {
    /// Of all ranks.
    Host(Arc<Symmetric>),
    /// Of a node's ranks: region 0 of the fabric.
    Node {
        fabric: Arc<Fabric>,
        workspaces: [u64; MAX_RANKS],
        local_rank: u32,
    },
}

impl Memory {
    fn fabric(&self) -> Option<&Arc<Fabric>> {
        match self {
            Self::Host(_) => None,
            Self::Node { fabric, .. } => Some(fabric),
        }
    }

    fn wires(&self) -> Wires {
        self.fabric().map_or_else(Wires::default, |fabric| Wires {
            ring: fabric.ring(),
            arrivals: fabric.arrivals(),
        })
    }
}

/// What the communicator sees of an operator.
pub(crate) struct Live {
    pub page: Arc<Page>,
    pub job: Option<Arc<Job>>,
    pub fabric: Option<Arc<Fabric>>,
}

impl Live {
    /// Why the network failed, if it did: the cause of what else is found.
    pub fn network_failure(&self) -> Option<Error> {
        self.fabric.as_ref()?.failure()
    }

    /// A launch is captured: from now on kernels may run that no launch announces.
    pub(crate) fn capture(&self) {
        if let Some(fabric) = &self.fabric {
            fabric.capture();
        }
        if let Some(job) = &self.job {
            job.capture();
        }
    }

    /// Why a call failed, if one did.
    pub fn failure(&self) -> Option<Error> {
        // Failed copies, or a failed network, make waits fail. These causes are stored before the page says so, and read
        // after it: whoever sees the consequence sees the cause.
        let consequence = self.page.failure();
        self.network_failure()
            .or_else(|| self.job.as_ref().and_then(|job| job.failure()))
            .or(consequence)
    }
}

/// What a rank has before it knows the other ranks' memory.
pub(crate) struct Loaded {
    pub kernel: Kernel,
    pub page: Arc<Page>,
    /// Where the plan wants copies.
    pub copies: Option<Arc<CopyThread>>,
    /// What calls of all operators on this GPU have in common.
    pub gate: Arc<OwnMemory>,
}

impl Operator {
    /// Puts together what was prepared; the other ranks must have prepared theirs.
    pub(crate) fn new(
        plan: KernelPlan,
        loaded: Loaded,
        memory: Memory,
        shared: Arc<Shared>,
    ) -> Self {
        let Loaded {
            kernel,
            page,
            copies,
            gate,
        } = loaded;
        let job = match (plan.copies.clone(), &memory) {
            (Some(copies), Memory::Host(workspace)) => {
                let (rank, world) = (shared.rank, shared.world);
                let job = Job::new(copies, rank, world, page.clone(), workspace.clone());
                Some(Arc::new(job))
            }
            _ => None,
        };
        if let (Some(thread), Some(job)) = (&copies, &job) {
            thread.add(job.clone());
        }
        let watch = shared.simulated.as_ref().zip(job.clone());
        let watch = watch.map(|(host, job)| host.watch(move || job.is_busy()));
        let fabric = memory.fabric().cloned();
        let live = Arc::new(Live { page, job, fabric });
        shared.register(&live);
        let parts = Parts {
            _watch: watch,
            plan,
            live,
            kernel,
            memory,
            copies,
            gate,
            number: shared.next_number(),
            shared,
        };
        Self {
            body: Arc::new(Body::new(parts)),
        }
    }

    fn parts(&self) -> &Parts {
        &self.body.parts
    }

    /// How the kernel works.
    #[must_use]
    pub fn plan(&self) -> &KernelPlan {
        &self.parts().plan
    }

    /// One call on `stream`: what [`Op`](crate::Op) says of the kernel's operator. Pass its operands by name, then
    /// [`launch`](Call::launch) it.
    ///
    /// ```no_run
    /// # use mkernel::{Error, Operator, cudarc::driver::{CudaSlice, CudaStream}, half::bf16, spec::abi::Operand};
    /// # use std::sync::Arc;
    /// # type Slice = CudaSlice<bf16>;
    /// # fn f(operator: &Operator, stream: &Arc<CudaStream>, a: &Slice, b: &Slice, c: &mut Slice) -> Result<(), Error> {
    /// operator
    ///     .call(stream)
    ///     .read(Operand::A, a)
    ///     .read(Operand::B, b)
    ///     .write(Operand::C, c)
    ///     .launch()
    /// # }
    /// ```
    pub fn call<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Call<'a> {
        Call::new(self, stream)
    }

    /// [`call`](Self::call) of a GEMM operator without addends.
    ///
    /// # Errors
    /// As for [`Call::launch`].
    pub fn launch<A, B, C, E>(
        &self,
        stream: &Arc<CudaStream>,
        a: &A,
        b: &B,
        c: &mut C,
    ) -> Result<(), Error>
    where
        A: Readable<bf16> + ?Sized,
        B: Readable<bf16> + ?Sized,
        C: Writable<E> + ?Sized,
        E: Element,
    {
        self.launch_with(stream, a, b, c, Addends::default())
    }

    /// The same of one that adds a bias or a residual.
    ///
    /// # Errors
    /// As for [`Call::launch`].
    pub fn launch_with<A, B, C, E>(
        &self,
        stream: &Arc<CudaStream>,
        a: &A,
        b: &B,
        c: &mut C,
        addends: Addends,
    ) -> Result<(), Error>
    where
        A: Readable<bf16> + ?Sized,
        B: Readable<bf16> + ?Sized,
        C: Writable<E> + ?Sized,
        E: Element,
    {
        let mut call = self
            .call(stream)
            .read(Operand::A, a)
            .read(Operand::B, b)
            .write(Operand::C, c);
        if let Some(bias) = addends.bias {
            call = call.read(Operand::Bias, bias);
        }
        if let Some(residual) = addends.residual {
            call = call.read(Operand::Residual, residual);
        }
        call.launch()
    }

    /// Enqueues one call on `stream`, with operands in the order of [`KernelPlan::operands`]; of a GEMM operator these
    /// are A, B, C, then the bias and the residual that the kernel has.
    ///
    /// # Errors
    /// As for [`Call::launch`].
    ///
    /// # Safety
    /// Operands must be device memory of the sizes in the plan (rows of this rank, columns, the given stride), which
    /// stays until the call is over, and nothing else may write the inputs or touch the results meanwhile. If the stream is
    /// being captured, this holds for every replay of the graph. `stream` must be of the communicator's context, and live
    /// until this operator is launched on another stream, or dropped.
    pub unsafe fn launch_raw(
        &self,
        stream: sys::CUstream,
        operands: &[RawOperand],
    ) -> Result<(), Error> {
        driver::bind(self.context())?;
        // SAFETY: by the caller.
        unsafe {
            let capture = Capture::of(stream)?;
            self.enqueue(&UserStream::raw(stream), capture.as_ref(), operands)
        }
    }

    /// [`Communicator::check`](crate::Communicator::check).
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<(), Error> {
        self.parts().shared.check()
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.parts().shared.ctx
    }

    /// Where this rank's workspace is.
    pub(crate) fn workspace(&self) -> u64 {
        let Parts { memory, shared, .. } = self.parts();
        match memory {
            Memory::Host(workspace) => workspace.addresses()[shared.rank as usize],
            Memory::Node {
                workspaces,
                local_rank,
                ..
            } => workspaces[*local_rank as usize],
        }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.parts().shared.rank
    }

    /// The way to other nodes, if there are any.
    pub(crate) fn fabric(&self) -> Option<&Arc<Fabric>> {
        self.parts().memory.fabric()
    }

    pub(crate) fn is_of_device(&self, stream: &CudaStream) -> bool {
        stream.context() == self.context()
    }

    /// Enqueues a call, or adds it to the graph that `stream` is captured into by `capture`.
    ///
    /// # Safety
    /// As for [`Self::launch_raw`]; the context must be current, and `capture` be what the stream takes part in.
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &UserStream,
        capture: Option<&Capture>,
        operands: &[RawOperand],
    ) -> Result<(), Error> {
        let Parts {
            plan, live, shared, ..
        } = self.parts();
        if let Some(error) = live.failure() {
            shared.poison(error);
        }
        shared.ensure_usable()?;
        operands::check(&plan.operands, operands, shared.rank)?;
        // One launch at a time, so that the copies' order, the streams' order and the launches' order are the same.
        let mut order = order::lock(&shared.order);
        let mut state = self.body.state();
        self.parts().bind(&mut state.args, operands)?;
        if let Some(fabric) = self.fabric() {
            fabric.wake();
        }
        // SAFETY: by the caller.
        unsafe {
            match capture {
                Some(capture) => self.body.capture(stream, capture, &mut order, &mut state),
                None => self.body.launch(stream, &mut order, &mut state),
            }
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Graphs may keep the body, but streams without owners need not live any longer.
        self.body.end();
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
