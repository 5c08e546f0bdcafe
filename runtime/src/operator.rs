//! [`Operator`]: a kernel that is ready to run, with its memory on every rank.

use crate::args::{self, Bindings, RawOperand};
use crate::copies::{CopyThread, Job};
use crate::driver;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::report::Page;
use crate::shared::Shared;
use crate::symmetric::{OwnMemory, Symmetric};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, sys};
use half::bf16;
use mkernel_gen::{CudaSource, Store};
use mkernel_spec::abi::Operand;
use mkernel_spec::{KernelConfig, KernelPlan, KernelSpec, Shape};
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long rank 0 may compile. A rank that dies is noticed at once.
const BUILD_TIMEOUT: Duration = Duration::from_secs(600);

/// A kernel with its workspace, made by [`Communicator::prepare`](crate::Communicator::prepare).
///
/// Every rank must launch its operators the same number of times in the same order. Launches wait for each other
/// even on different streams. A launch may be captured into a CUDA graph and replayed, on every rank alike; the
/// operands' addresses are then those of the capture. With [`Transfer::CopyEngine`](mkernel_spec::Transfer) a
/// captured call fixes the address of A for all later calls of the operator.
///
/// Dropping it waits for the GPU's work, and must not happen while a stream is being captured.
pub struct Operator {
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

/// The argument of the last launch, and what it was made of.
#[derive(Default)]
struct Args {
    operands: Vec<RawOperand>,
    deadline_ns: u64,
    bytes: Vec<u8>,
}

/// Makes an operator, on all ranks. Each step tells all ranks how it came out on each.
pub(crate) fn prepare(
    shared: &Arc<Shared>,
    config: &KernelConfig,
    shape: Shape,
) -> Result<Operator, Error> {
    let timeout = shared.timeout();
    let mut ranks = shared.ranks();

    let planned = shared
        .ensure_usable()
        .and_then(|()| plan(shared, config, shape));
    let planned = planned.map(|(plan, source)| {
        let identity = identity(config, &plan, &source);
        ((plan, source), identity)
    });
    let ((plan, source), identities) = ranks.agree("planning", planned, timeout)?;
    compare(&identities)?;

    let store = Store::from_env();
    let build = || {
        store.get_or_build(&source).map_err(|error| Error::Build {
            id: plan.id.clone(),
            source: Arc::new(error),
        })
    };
    // The other ranks find it in the store, or, without one, compile it too.
    let first = if shared.rank == 0 {
        build().map(Some)
    } else {
        Ok(None)
    };
    let (first, _) = ranks.agree(
        "compiling on rank 0",
        first.map(|cubin| (cubin, Vec::new())),
        BUILD_TIMEOUT,
    )?;

    let made = (|| {
        let cubin = first.map_or_else(build, Ok)?;
        let kernel = Kernel::load(&shared.ctx, &cubin.bytes, &plan)?;
        let page = Arc::new(Page::allocate(&shared.ctx)?);
        let memory =
            OwnMemory::allocate(&shared.ctx, &shared.stream, plan.workspace.bytes, timeout)?;
        let copies = plan.copies.as_ref().map(|_| shared.copies()).transpose()?;
        let size = memory.bytes().to_string().into_bytes();
        Ok(((kernel, page, memory, copies), size))
    })();
    let ((kernel, page, memory, copies), sizes) =
        ranks.agree("loading and allocating", made, BUILD_TIMEOUT)?;
    same_on_all(&sizes)?;
    let workspace = Arc::new(memory.share(&shared.ctx, &mut ranks, timeout)?);
    drop(ranks);

    let job = plan.copies.clone().map(|copies| {
        Arc::new(Job::new(
            copies,
            shared.rank,
            shared.world,
            page.clone(),
            workspace.clone(),
        ))
    });
    if let (Some(thread), Some(job)) = (&copies, &job) {
        thread.add(job.clone());
    }
    let live = Arc::new(Live { page, job });
    shared.register(&live);
    Ok(Operator {
        plan,
        live,
        kernel,
        workspace,
        args: Mutex::default(),
        copies,
        shared: shared.clone(),
    })
}

fn plan(
    shared: &Shared,
    config: &KernelConfig,
    shape: Shape,
) -> Result<(KernelPlan, CudaSource), Error> {
    if config.world != shared.world {
        return Err(Error::WrongWorld {
            declared: config.world,
            world: shared.world,
        });
    }
    let spec = KernelSpec::validate(config.clone())
        .and_then(|spec| spec.specialise(shape))
        .map_err(Error::Config)?;
    let plan = KernelPlan::new(&spec, &shared.device).map_err(Error::Config)?;
    let source = mkernel_gen::render(&plan).map_err(|error| Error::Build {
        id: plan.id.clone(),
        source: Arc::new(error),
    })?;
    Ok((plan, source))
}

/// A digest of all that ranks must have in common, and a description for people.
fn identity(config: &KernelConfig, plan: &KernelPlan, source: &CudaSource) -> Vec<u8> {
    let mut hash = Sha256::new();
    // Plans hold what the kernel's text does not: the copies that the host makes.
    for part in [serde_json::to_vec(config), serde_json::to_vec(plan)] {
        hash.update(part.unwrap_or_default());
        hash.update([0]);
    }
    hash.update(&source.text);
    let mut identity = hash.finalize().to_vec();
    identity.extend_from_slice(format!("{} on {}", plan.id, plan.device.name).as_bytes());
    identity
}

fn compare(identities: &[Vec<u8>]) -> Result<(), Error> {
    let reference = &identities[0];
    let others: Vec<u32> = (0..)
        .zip(identities)
        .filter(|(_, id)| *id != reference)
        .map(|(rank, _)| rank)
        .collect();
    let Some(first) = others.first() else {
        return Ok(());
    };
    let describe = |id: &[u8]| match id.split_at_checked(32) {
        Some((digest, text)) => {
            let digest: String = digest[..4]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("{}, digest {digest}", String::from_utf8_lossy(text))
        }
        None => "something malformed".to_owned(),
    };
    Err(Error::Mismatch {
        reference: describe(reference),
        theirs: describe(&identities[*first as usize]),
        ranks: others,
    })
}

/// Peers map as many bytes as they allocated themselves.
fn same_on_all(sizes: &[Vec<u8>]) -> Result<(), Error> {
    let text = |rank: usize| {
        format!(
            "a workspace of {} bytes",
            String::from_utf8_lossy(&sizes[rank])
        )
    };
    match sizes.iter().position(|size| *size != sizes[0]) {
        Some(rank) => Err(Error::Mismatch {
            ranks: vec![rank as u32],
            reference: text(0),
            theirs: text(rank),
        }),
        None => Ok(()),
    }
}

impl Operator {
    /// How the kernel works.
    #[must_use]
    pub fn plan(&self) -> &KernelPlan {
        &self.plan
    }

    /// Enqueues one call on `stream`: C = AllGather(A) · B. Returns at once; see
    /// [`Communicator::synchronize`](crate::Communicator::synchronize).
    ///
    /// Slices are dense and exactly of this rank's size; a rank without rows of A may pass any slice for it.
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
        if let Some(job) = &self.live.job
            && !job.expect(self.operand(Operand::A, operands), capturing)
        {
            return Err(Error::CapturedOperand {
                id: self.plan.id.clone(),
            });
        }
        // SAFETY: the bytes are laid out by the plan's table; the workspaces and the page stay until drop, which
        // waits for the GPU, and the operands by the caller.
        let launched = unsafe { self.kernel.launch(stream, &mut args.bytes) };
        match (&self.live.job, &self.copies) {
            (Some(job), _) if launched.is_err() && !capturing => job.retract(),
            (Some(_), Some(thread)) if !capturing => thread.nudge(),
            _ => {}
        }
        launched
    }

    fn operand(&self, wanted: Operand, operands: &[RawOperand]) -> RawOperand {
        let mut pairs = self.plan.operands.iter().zip(operands);
        pairs
            .find(|(spec, _)| spec.operand == wanted)
            .map(|(_, operand)| *operand)
            .unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(digest: u8, text: &str) -> Vec<u8> {
        [&[digest; 32], text.as_bytes()].concat()
    }

    #[test]
    fn ranks_with_another_kernel_are_named() {
        let same = identity(1, "ag_gemm on H200");
        assert!(compare(&[same.clone(), same.clone(), same.clone()]).is_ok());
        let error = compare(&[
            same.clone(),
            identity(2, "other"),
            same,
            identity(3, "third"),
        ])
        .expect_err("two differ");
        let text = error.to_string();
        for part in [
            "ranks 1, 3 are",
            "ag_gemm on H200, digest 01010101",
            "other, digest 02020202",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn a_malformed_identity_is_a_mismatch() {
        let error = compare(&[identity(1, "a"), b"short".to_vec()]).expect_err("malformed");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }

    #[test]
    fn workspaces_of_different_size_are_a_mismatch() {
        assert!(same_on_all(&[b"4096".to_vec(), b"4096".to_vec()]).is_ok());
        let error = same_on_all(&[b"4096".to_vec(), b"8192".to_vec()]).expect_err("they differ");
        assert!(error.to_string().contains("rank 1 is"), "{error}");
    }
}
