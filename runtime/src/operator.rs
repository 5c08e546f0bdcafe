//! [`Operator`]: a kernel that is ready to run, with its memory on every rank.

use crate::args::{self, Bindings, RawOperand};
use crate::copies::{CopyThread, Job};
use crate::driver;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::report::Page;
use crate::shared::Shared;
use crate::simulation::Watch;
use crate::symmetric::Symmetric;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, sys};
use half::bf16;
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::Operand;
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
    workspace: Arc<Symmetric>,
    args: Mutex<Args>,
    copies: Option<Arc<CopyThread>>,
    shared: Arc<Shared>,
}

/// What the communicator sees of an operator.
pub(crate) struct Live {
    pub page: Arc<Page>,
    pub job: Option<Arc<Job>>,
}

impl Live {
    /// Why a call failed, if one did.
    pub fn failure(&self) -> Option<Error> {
        // The cause comes before its consequence: failed copies make waits fail.
        self.job
            .as_ref()
            .and_then(|job| job.failure())
            .or_else(|| self.page.failure())
    }
}

/// What a rank has before it knows the other ranks' memory.
pub(crate) struct Loaded {
    pub kernel: Kernel,
    pub page: Arc<Page>,
    /// Where the plan wants copies.
    pub copies: Option<Arc<CopyThread>>,
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
        workspace: Arc<Symmetric>,
        shared: Arc<Shared>,
    ) -> Self {
        let Loaded {
            kernel,
            page,
            copies,
        } = loaded;
        let job = plan.copies.clone().map(|copies| {
            let (rank, world) = (shared.rank, shared.world);
            Arc::new(Job::new(
                copies,
                rank,
                world,
                page.clone(),
                workspace.clone(),
            ))
        });
        if let (Some(thread), Some(job)) = (&copies, &job) {
            thread.add(job.clone());
        }
        let watch = shared.simulated.as_ref().zip(job.clone());
        let watch = watch.map(|(host, job)| host.watch(move || job.is_busy()));
        let live = Arc::new(Live { page, job });
        shared.register(&live);
        Self {
            _watch: watch,
            plan,
            live,
            kernel,
            workspace,
            args: Mutex::default(),
            copies,
            shared,
        }
    }

    /// How the kernel works.
    #[must_use]
    pub fn plan(&self) -> &KernelPlan {
        &self.plan
    }

    /// Enqueues one call on `stream`: what [`Op`](crate::Op) says of the kernel's operator. Returns at once; see
    /// [`Communicator::synchronize`](crate::Communicator::synchronize).
    ///
    /// Slices are dense and exactly of this rank's size, as in [`KernelPlan::operands`]; for an operand without rows on
    /// this rank any slice will do.
    /// While capturing, slices must not track events (`CudaContext::disable_event_tracking` before allocating).
    ///
    /// # Errors
    /// [`Error::Operands`] with all mistakes, [`Error::WrongDevice`], [`Error::Aborted`] after an earlier failure.
    pub fn launch<A, B, C>(
        &self,
        stream: &Arc<CudaStream>,
        a: &A,
        b: &B,
        c: &mut C,
    ) -> Result<(), Error>
    where
        A: DevicePtr<bf16> + ?Sized,
        B: DevicePtr<bf16> + ?Sized,
        C: DevicePtrMut<bf16> + ?Sized,
    {
        self.check_device("the stream", stream)?;
        self.check_device("A", a.stream())?;
        self.check_device("B", b.stream())?;
        self.check_device("C", c.stream())?;
        self.check_lengths(&[
            (Operand::A, a.len()),
            (Operand::B, b.len()),
            (Operand::C, c.len()),
        ])?;
        let (a, _a_in_use) = a.device_ptr(stream);
        let (b, _b_in_use) = b.device_ptr(stream);
        let (c, _c_in_use) = c.device_ptr_mut(stream);
        let operands: Vec<RawOperand> = self
            .plan
            .operands
            .iter()
            .map(|spec| {
                let ptr = match spec.operand {
                    Operand::A => a,
                    Operand::B => b,
                    Operand::C => c,
                    // A kernel with other operands has no launch of three slices.
                    _ => 0,
                };
                RawOperand {
                    ptr,
                    row_stride_elems: spec.cols,
                }
            })
            .collect();
        // SAFETY: the slices have the operands' sizes; cudarc keeps their memory until the stream is past this call.
        unsafe { self.enqueue(stream.cu_stream(), Some(stream), &operands) }
    }

    /// Enqueues one call on `stream`, with operands in the order of [`KernelPlan::operands`]: A, B, C.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    ///
    /// # Safety
    /// Operands must be device memory of the sizes in the plan (rows of this rank, columns, the given stride), which
    /// stays until the call is over, and nothing else may write the inputs or touch C meanwhile. `stream` must be of
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

    fn check_device(&self, what: &'static str, stream: &CudaStream) -> Result<(), Error> {
        let (given, expected) = (stream.context(), &self.shared.ctx);
        if given == expected {
            return Ok(());
        }
        Err(Error::WrongDevice {
            what,
            given: given.ordinal(),
            expected: expected.ordinal(),
        })
    }

    fn check_lengths(&self, elems: &[(Operand, usize)]) -> Result<(), Error> {
        let faults: Vec<_> = self
            .plan
            .operands
            .iter()
            .filter_map(|spec| {
                let (_, elems) = elems.iter().find(|(operand, _)| *operand == spec.operand)?;
                args::check_length(spec, *elems, self.shared.rank)
            })
            .collect();
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Error::Operands(faults))
        }
    }

    /// # Safety
    /// As for [`Self::launch_raw`].
    unsafe fn enqueue(
        &self,
        stream: sys::CUstream,
        owner: Option<&Arc<CudaStream>>,
        operands: &[RawOperand],
    ) -> Result<(), Error> {
        if let Some(error) = self.live.failure() {
            self.shared.poison(error);
        }
        self.shared.ensure_usable()?;
        args::check(&self.plan.operands, operands, self.shared.rank)?;
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
        let bindings = Bindings {
            specs: &self.plan.operands,
            operands,
            workspaces: self.workspace.addresses(),
            host_page: self.live.page.device_address(),
            deadline_ns,
            rank: self.shared.rank,
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
