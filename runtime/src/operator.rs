//! [`Operator`]: a kernel that is ready to run, with its memory on every rank.

use crate::args::{Bindings, Wires};
use crate::call::{Call, Element};
use crate::copies::{CopyThread, Job};
use crate::driver;
use crate::error::Error;
use crate::fabric::endpoint::Fabric;
use crate::kernel::Kernel;
use crate::operands::{self, RawOperand};
use crate::report::Page;
use crate::shared::Shared;
use crate::simulation::Watch;
use crate::symmetric::{OwnMemory, Symmetric};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, sys};
use half::bf16;
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::{MAX_RANKS, Operand};
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel with its workspace, made by [`Communicator::prepare`](crate::Communicator::prepare).
///
/// Every rank must launch its operators the same number of times in the same order. Launches wait for each other
/// even on different streams. A launch may be captured into a CUDA graph and replayed, on every rank alike; the
/// operands' addresses are then those of the capture.
///
/// Dropping it waits for the GPU's work, and must not happen while a stream is being captured.
pub struct Operator {
    _watch: Option<Watch>,
    plan: KernelPlan,
    live: Arc<Live>,
    kernel: Kernel,
    memory: Memory,
    args: Mutex<Args>,
    copies: Option<Arc<CopyThread>>,
    gate: Arc<OwnMemory>,
    number: u32,
    shared: Arc<Shared>,
}

/// What a kernel's [`Epilogue`](mkernel_spec::Epilogue) reads beside the sum.
#[derive(Clone, Copy, Default)]
pub struct Addends<'a> {
    /// `[N]`, of this rank's columns.
    pub bias: Option<&'a dyn DevicePtr<bf16>>,
    /// With the rows and columns of this rank's C. `gemm_ar`: the same values on every rank, since of each row perhaps
    /// only one rank's is read. It may be C itself, with the same row stride and type of elements, but must not overlap it
    /// otherwise.
    pub residual: Option<&'a dyn DevicePtr<bf16>>,
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

    /// Why a call failed, if one did.
    pub fn failure(&self) -> Option<Error> {
        // The cause comes before its consequence: failed copies, or a failed network, make waits fail.
        self.network_failure()
            .or_else(|| self.job.as_ref().and_then(|job| job.failure()))
            .or_else(|| self.page.failure())
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

/// The argument of the last launch, and what it was made of.
#[derive(Default)]
struct Args {
    operands: Vec<RawOperand>,
    deadline_ns: u64,
    bytes: Vec<u8>,
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
        Self {
            _watch: watch,
            plan,
            live,
            kernel,
            memory,
            args: Mutex::default(),
            copies,
            gate,
            number: shared.next_number(),
            shared,
        }
    }

    /// How the kernel works.
    #[must_use]
    pub fn plan(&self) -> &KernelPlan {
        &self.plan
    }

    /// One call on `stream`: what [`Op`](crate::Op) says of the kernel's operator. Pass its operands by name, then
    /// [`launch`](Call::launch) it.
    ///
    /// While capturing, slices must not track events (`CudaContext::disable_event_tracking` before allocating).
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
        A: DevicePtr<bf16> + ?Sized,
        B: DevicePtr<bf16> + ?Sized,
        C: DevicePtrMut<E> + ?Sized,
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
        A: DevicePtr<bf16> + ?Sized,
        B: DevicePtr<bf16> + ?Sized,
        C: DevicePtrMut<E> + ?Sized,
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
    /// stays until the call is over, and nothing else may write the inputs or touch the results meanwhile. `stream` must be of
    /// the communicator's context, and live until the communicator's next launch on another stream.
    pub unsafe fn launch_raw(
        &self,
        stream: sys::CUstream,
        operands: &[RawOperand],
    ) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.enqueue(stream, None, operands) }
    }

    /// [`Communicator::check`](crate::Communicator::check).
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.shared.ctx
    }

    /// Where this rank's workspace is.
    pub(crate) fn workspace(&self) -> u64 {
        match &self.memory {
            Memory::Host(workspace) => workspace.addresses()[self.shared.rank as usize],
            Memory::Node {
                workspaces,
                local_rank,
                ..
            } => workspaces[*local_rank as usize],
        }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.shared.rank
    }

    pub(crate) fn is_of_device(&self, stream: &CudaStream) -> bool {
        stream.context() == self.context()
    }

    /// # Safety
    /// As for [`Self::launch_raw`].
    pub(crate) unsafe fn enqueue(
        &self,
        stream: sys::CUstream,
        owner: Option<&Arc<CudaStream>>,
        operands: &[RawOperand],
    ) -> Result<(), Error> {
        if let Some(error) = self.live.failure() {
            self.shared.poison(error);
        }
        self.shared.ensure_usable()?;
        operands::check(&self.plan.operands, operands, self.shared.rank)?;
        driver::bind(&self.shared.ctx)?;
        // SAFETY: by the caller.
        let capturing = unsafe { driver::is_capturing(stream)? };

        // One launch at a time, so that the copies' order, the streams' order and the launches' order are the same.
        let mut order = self
            .shared
            .order
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut args = self.args.lock().unwrap_or_else(PoisonError::into_inner);
        self.bind(&mut args, operands)?;
        if !capturing {
            // SAFETY: by the caller.
            unsafe { order.follow(stream, owner)? };
        }
        if let Some(fabric) = self.memory.fabric() {
            fabric.wake();
        }
        // SAFETY: the bytes are laid out by the plan's table; the workspaces and the page stay until drop, which
        // waits for the GPU, and the operands by the caller.
        let launched = unsafe { self.kernel.launch(stream, &mut args.bytes) };
        if let (Some(job), Some(thread), Ok(()), false) =
            (&self.live.job, &self.copies, &launched, capturing)
        {
            job.expect();
            thread.nudge();
        }
        launched
    }

    /// Renews the argument if it differs from the last launch's.
    fn bind(&self, args: &mut Args, operands: &[RawOperand]) -> Result<(), Error> {
        let deadline_ns = self.shared.timeout_ns();
        if args.operands == operands && args.deadline_ns == deadline_ns {
            return Ok(());
        }
        let (workspaces, local_rank) = match &self.memory {
            Memory::Host(workspace) => (workspace.addresses(), self.shared.rank),
            Memory::Node {
                workspaces,
                local_rank,
                ..
            } => (*workspaces, *local_rank),
        };
        let bindings = Bindings {
            specs: &self.plan.operands,
            operands,
            workspaces,
            local_rank,
            host_page: self.live.page.device_address(),
            gate: self.gate.address(),
            operator_number: self.number,
            deadline_ns,
            rank: self.shared.rank,
            wires: self.memory.wires(),
        };
        let bytes = bindings.fill(&self.plan.args, driver::encode_tensor_map)?;
        *args = Args {
            operands: operands.to_vec(),
            deadline_ns,
            bytes,
        };
        Ok(())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let wait = || {
            if let Err(error) = driver::synchronize(&self.shared.ctx) {
                tracing::warn!(
                    error = crate::error::with_causes(&error),
                    "waiting for an operator to end"
                );
            }
        };
        // Kernels end by themselves, at their deadline at the latest; they need their copies until then.
        wait();
        if let (Some(thread), Some(job)) = (&self.copies, &self.live.job) {
            thread.remove(job);
            wait();
        }
    }
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Operator({}, rank {} of {})",
            self.plan.id, self.shared.rank, self.shared.world
        )
    }
}
