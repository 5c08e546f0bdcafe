//! [`Call`]: the operands of one call, as slices.

use crate::driver::{self, Capture, Uncaptured, UserStream};
use crate::error::{CallError, Error, OperandFault};
use crate::launch::slices::{self, SliceOperand};
use crate::operator::Operator;
use crate::reaper::{self, GpuUse, Retired};
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use half::bf16;
use mkernel_spec::Dtype;
use mkernel_spec::abi::Operand;
use std::sync::Arc;
use std::time::Duration;

/// What elements of an operand can be.
pub trait Element: sealed::Element {
    /// Its name in a declaration.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Element {}
    pub trait Slice<T> {}
}

macro_rules! elements {
    ($($element:ty: $dtype:ident),+) => {$(
        impl sealed::Element for $element {}
        impl Element for $element {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )+};
}
elements!(bf16: Bf16, f32: Fp32, i32: Int32);

/// Memory of a GPU that a kernel can read: cudarc's slices and views.
///
/// No other type can be one: what a kernel accesses is only as sound as the address and the length that a slice gives.
///
/// ```compile_fail,E0277
/// # use mkernel::{Operator, cudarc::driver::{CudaStream, DevicePtr}, half::bf16, spec::abi::Operand};
/// # use std::sync::Arc;
/// fn read<S: DevicePtr<bf16>>(operator: &Operator, stream: &Arc<CudaStream>, any: &S) {
///     let _ = operator.call(stream).read(Operand::A, any);
/// }
/// ```
pub trait Readable<T>: DevicePtr<T> + sealed::Slice<T> {}

/// Memory of a GPU that a kernel can write; see [`Readable`].
pub trait Writable<T>: DevicePtrMut<T> + sealed::Slice<T> {}

impl<T> sealed::Slice<T> for CudaSlice<T> {}
impl<T> sealed::Slice<T> for CudaView<'_, T> {}
impl<T> sealed::Slice<T> for CudaViewMut<'_, T> {}
impl<T> Readable<T> for CudaSlice<T> {}
impl<T> Readable<T> for CudaView<'_, T> {}
impl<T> Readable<T> for CudaViewMut<'_, T> {}
impl<T> Writable<T> for CudaSlice<T> {}
impl<T> Writable<T> for CudaViewMut<'_, T> {}

/// Gives a slice's address, after which it is in use on the call's stream; or, if another stream is given for what the
/// slice has to wait for, the address alone.
type Take<'a> =
    Box<dyn FnOnce(&'a CudaStream, Option<&CudaStream>) -> (u64, Option<SyncOnDrop<'a>>) + 'a>;

/// A stream that has waited for what was captured before, and must live until the capture ends.
struct Waiting(Arc<CudaStream>);

impl Retired for Waiting {
    fn name(&self) -> String {
        "a stream of a capture".to_owned()
    }

    fn is_unused(&mut self) -> Result<GpuUse, Error> {
        driver::bind(self.0.context())?;
        // SAFETY: the stream is alive.
        Ok(match unsafe { driver::is_capturing(self.0.cu_stream())? } {
            true => GpuUse::Capturing,
            false => GpuUse::Unused,
        })
    }
}

/// One call of an [`Operator`], made by [`Operator::call`]: pass each operand of
/// [`KernelPlan::operands`](crate::KernelPlan::operands), in any order, then [`launch`](Self::launch).
///
/// Slices are dense and exactly of this rank's size; for an operand without rows on this rank any slice will do.
#[must_use = "nothing is enqueued before `launch`"]
pub struct Call<'a> {
    operator: &'a Operator,
    stream: &'a Arc<CudaStream>,
    is_ours: bool,
    passed: Vec<SliceOperand>,
    /// Of each that was passed.
    takes: Vec<Take<'a>>,
    /// What cannot be looked at any further.
    faults: Vec<(Operand, OperandFault)>,
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

impl Operator {
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
}

impl<'a> Call<'a> {
    pub(crate) fn new(operator: &'a Operator, stream: &'a Arc<CudaStream>) -> Self {
        Self {
            operator,
            stream,
            is_ours: operator.is_of_device(stream),
            passed: Vec::new(),
            faults: Vec::new(),
            takes: Vec::new(),
        }
    }

    /// Passes an operand that the kernel reads.
    pub fn read<T, S>(mut self, operand: Operand, slice: &'a S) -> Self
    where
        T: Element,
        S: Readable<T> + ?Sized,
    {
        if self.takes(operand, slice.stream()) {
            self.pass(operand, slice.len(), T::DTYPE, false);
            self.takes.push(Box::new(move |stream, other| match other {
                Some(other) => (slice.device_ptr(other).0, None),
                None => {
                    let (address, in_use) = slice.device_ptr(stream);
                    (address, Some(in_use))
                }
            }));
        }
        self
    }

    /// Passes an operand that the kernel writes: all of it.
    pub fn write<T, S>(mut self, operand: Operand, slice: &'a mut S) -> Self
    where
        T: Element,
        S: Writable<T> + ?Sized,
    {
        if self.takes(operand, slice.stream()) {
            self.pass(operand, slice.len(), T::DTYPE, true);
            self.takes.push(Box::new(move |stream, other| match other {
                Some(other) => (slice.device_ptr_mut(other).0, None),
                None => {
                    let (address, in_use) = slice.device_ptr_mut(stream);
                    (address, Some(in_use))
                }
            }));
        }
        self
    }

    fn pass(&mut self, operand: Operand, elems: usize, dtype: Dtype, written: bool) {
        self.passed.push(SliceOperand {
            operand,
            elems,
            dtype,
            written,
            address: 0,
        });
    }

    /// Enqueues the call. Returns at once; see [`Communicator::synchronize`](crate::Communicator::synchronize).
    ///
    /// # Errors
    /// [`Error::Operands`] with all mistakes, [`Error::Call`], [`Error::Aborted`] after an earlier failure.
    /// [`Error::Call`] if the stream is being captured, which goes on: see [`Self::capture`].
    pub fn launch(mut self) -> Result<(), Error> {
        self.check()?;
        let stream = UserStream::of(self.stream);
        // SAFETY: the stream is borrowed, so it is alive.
        if unsafe { driver::is_capturing(stream.handle())? } {
            return Err(Error::Call(CallError::StreamCaptured));
        }
        // Tell other streams, when dropped, until when a slice is in use: behind the kernel.
        let mut in_use = Vec::with_capacity(self.takes.len());
        for (passed, take) in self.passed.iter_mut().zip(self.takes) {
            let (address, used) = take(self.stream, None);
            passed.address = address;
            in_use.extend(used);
        }
        let operands = slices::dense(&self.operator.plan().operands, &self.passed);
        // SAFETY: the slices have the operands' sizes, and no type but cudarc's own can be one. cudarc frees their memory
        // behind what it knows of: on their own stream, which waits for the stream of this call where they track events,
        // since `in_use` is dropped behind the kernel. The kernel ends after all that reads or writes operands, also after
        // an abort. The stream is not being captured, so the kernel runs once.
        unsafe { self.operator.enqueue(&stream, None, &operands) }
    }

    /// Adds the call to the graph that the stream is being captured into. The graph keeps the operator and its
    /// communicator alive, as long as it or an executable graph made of it lives; launches in one capture come one after
    /// the other, also in different streams.
    ///
    /// It does not keep the operands alive, and does not wait for what other streams do with them: cudarc's events are
    /// not a part of the graph.
    ///
    /// # Errors
    /// As for [`Self::launch`]; [`Error::Call`] if the stream is not being captured.
    ///
    /// # Safety
    /// During every replay, the operands' memory must be allocated at the place that it has now, nothing else may write
    /// what the kernel reads, and nothing else may access what it writes.
    pub unsafe fn capture(mut self) -> Result<(), Error> {
        self.check()?;
        let stream = UserStream::of(self.stream);
        // SAFETY: the stream is borrowed, so it is alive.
        let Some(capture) = (unsafe { Capture::of(stream.handle())? }) else {
            return Err(Error::Call(CallError::StreamNotCaptured));
        };
        self.take_addresses()?;
        let operands = slices::dense(&self.operator.plan().operands, &self.passed);
        // SAFETY: the slices have the operands' sizes; the rest by the caller.
        unsafe { self.operator.enqueue(&stream, Some(&capture), &operands) }
    }

    /// Takes the addresses of what was passed. A stream that is being captured must not wait for events from outside of
    /// the capture, so another one waits for those.
    fn take_addresses(&mut self) -> Result<(), Error> {
        let call = "a stream beside one that is being captured";
        let _uncaptured = Uncaptured::new();
        let context = self.stream.context();
        // Else nothing waits for events, and to make a stream would change that.
        let tracks = context.is_managing_stream_synchronization();
        let other = tracks.then(|| context.new_stream()).transpose();
        let other = driver::named(call, other)?;
        for (passed, take) in self.passed.iter_mut().zip(self.takes.drain(..)) {
            let waits = other.as_ref().unwrap_or(self.stream);
            (passed.address, _) = take(self.stream, Some(waits));
        }
        let Some(other) = other else {
            return Ok(());
        };
        // SAFETY: the stream is alive.
        if unsafe { driver::is_capturing(other.cu_stream())? } {
            // Something captured before uses a slice, too, so this stream has become a part of the capture.
            driver::named(call, self.stream.join(&other))?;
            reaper::retire(Box::new(Waiting(other)), Duration::ZERO);
        }
        Ok(())
    }

    /// Finds what is wrong with the stream and the operands. Makes the context current.
    fn check(&mut self) -> Result<(), Error> {
        let (given, expected) = (self.stream.context(), self.operator.context());
        if !self.is_ours {
            return Err(Error::Call(CallError::WrongDevice {
                given: given.ordinal(),
                expected: expected.ordinal(),
            }));
        }
        let specs = &self.operator.plan().operands;
        let faults = std::mem::take(&mut self.faults);
        slices::check(specs, &self.passed, faults, self.operator.rank())?;
        driver::bind(expected)
    }

    /// Whether the slice can be used on this call's stream. One of another GPU is a fault; with a stream of another GPU
    /// nothing can be said.
    fn takes(&mut self, operand: Operand, stream: &CudaStream) -> bool {
        let is_ours = self.operator.is_of_device(stream);
        if !is_ours {
            let fault = OperandFault::WrongDevice {
                given: stream.context().ordinal(),
                expected: self.operator.context().ordinal(),
            };
            self.faults.push((operand, fault));
        }
        is_ours && self.is_ours
    }
}
