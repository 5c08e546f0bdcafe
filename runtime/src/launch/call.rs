//! [`Call`]: one call of an operator, whose operands are slices.

use crate::driver::{self, Capture, Uncaptured, UserStream};
use crate::error::{CallError, Error, OperandFault};
use crate::launch::rows::Rows;
use crate::launch::slice_types::{Element, Readable, Writable};
use crate::launch::slices::{self, SliceOperand};
use crate::operator::Operator;
use crate::reaper::{self, GpuUse, Retired};
use cudarc::driver::{CudaStream, SyncOnDrop};
use half::bf16;
use mkernel_spec::Dtype;
use mkernel_spec::abi::Operand;
use std::sync::Arc;
use std::time::Duration;

/// Returns the address of a slice and marks the slice as used by the call's stream. If another stream is passed, that
/// stream waits for the slice, and only the address is returned.
type Take<'a> =
    Box<dyn FnOnce(&'a CudaStream, Option<&CudaStream>) -> (u64, Option<SyncOnDrop<'a>>) + 'a>;

/// A stream that takes part in a capture because it waited for captured work. It must live until the capture ends.
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

/// One call of an [`Operator`], created by [`Operator::call`]. Pass each operand of
/// [`KernelPlan::operands`](crate::KernelPlan::operands), in any order, then call [`launch`](Self::launch).
///
/// Slices must be contiguous and have at least the size of this rank's part. For an operand without rows on this rank,
/// any slice can be passed.
#[must_use = "nothing is enqueued before `launch`"]
pub struct Call<'a> {
    operator: &'a Operator,
    stream: &'a Arc<CudaStream>,
    is_ours: bool,
    passed: Vec<SliceOperand>,
    /// A function for each operand in `passed`, which marks its slice as used.
    takes: Vec<Take<'a>>,
    rows: Rows,
    /// A function that marks the slice with the rows as used, if there is one.
    take_rows: Option<Take<'a>>,
    /// What is wrong with that slice.
    rows_fault: Option<CallError>,
    /// Mistakes that were found while operands were passed.
    faults: Vec<(Operand, OperandFault)>,
}

/// The operands that a kernel's [`Epilogue`](mkernel_spec::Epilogue) reads in addition to the matrices.
#[derive(Clone, Copy, Default)]
pub struct Addends<'a> {
    /// The bias, a vector of the N columns of this rank.
    pub bias: Option<&'a dyn Readable<bf16>>,
    /// The residual, with the rows and columns of this rank's C. For `gemm_ar` it must have the same values on every
    /// rank, since each row may be read on only one rank. It may be C itself, with the same row stride and element
    /// type. It must not overlap C in any other way.
    pub residual: Option<&'a dyn Readable<bf16>>,
}

impl Operator {
    /// Creates a call on `stream` of the operator that [`Op`](crate::Op) describes. Pass its operands by name, then
    /// call [`launch`](Call::launch).
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

    /// Makes one [`call`](Self::call) of a GEMM operator without a bias or residual.
    ///
    /// # Errors
    /// The errors are those of [`Call::launch`].
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

    /// Makes one call of a GEMM operator that adds a bias or a residual.
    ///
    /// # Errors
    /// The errors are those of [`Call::launch`].
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
            rows: Rows::Most,
            take_rows: None,
            rows_fault: None,
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

    /// Passes an operand that the kernel writes. It writes all elements.
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

    /// Gives the number of rows of this call, up to the number that the operator was prepared for, which is the default. All
    /// ranks must give the same number. The operator must take rows at run time: see
    /// [`KernelPlan::max_rows`](crate::KernelPlan::max_rows). Operands need only as many rows.
    pub fn rows(mut self, rows: u64) -> Self {
        (self.rows, self.take_rows, self.rows_fault) = (Rows::Count(rows), None, None);
        self
    }

    /// Does the same with the number in the first element of `slice`, which the kernel reads when it starts. A graph reads it
    /// at each replay. The operands must have as many rows as the operator was prepared for: batches and heads of
    /// `ring_attention` lie as far apart as with the most rows. A larger number is an error of that call,
    /// which [`check`](crate::Communicator::check) returns.
    pub fn rows_in<S>(mut self, slice: &'a S) -> Self
    where
        S: Readable<i32> + ?Sized,
    {
        self.rows_fault = match self.operator.is_of_device(slice.stream()) {
            false => Some(CallError::RowsWrongDevice {
                given: slice.stream().context().ordinal(),
                expected: self.operator.context().ordinal(),
            }),
            // The kernel would read what lies behind it.
            true if slice.is_empty() => Some(CallError::RowsEmpty),
            true => None,
        };
        // The address is known when the call is enqueued.
        self.rows = Rows::At(0);
        self.take_rows = Some(Box::new(move |stream, other| match other {
            Some(other) => (slice.device_ptr(other).0, None),
            None => {
                let (address, in_use) = slice.device_ptr(stream);
                (address, Some(in_use))
            }
        }));
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

    /// Enqueues the call and returns immediately. See [`Communicator::synchronize`](crate::Communicator::synchronize).
    ///
    /// # Errors
    /// [`Error::Operands`] with all mistakes, [`Error::Call`] if the stream belongs to another GPU, and
    /// [`Error::Aborted`] after an earlier failure. [`CallError::StreamCaptured`] if the stream is being captured; the
    /// capture continues, and [`Self::capture`] can be used.
    pub fn launch(mut self) -> Result<(), Error> {
        self.check()?;
        let stream = UserStream::of(self.stream);
        // SAFETY: the stream is borrowed, so it is alive.
        if unsafe { driver::is_capturing(stream.handle())? } {
            return Err(Error::Call(CallError::StreamCaptured));
        }
        // These guards must be dropped after the kernel is enqueued: they then make other streams wait for the kernel
        // before they use the slices.
        let mut in_use = Vec::with_capacity(self.takes.len());
        for (passed, take) in self.passed.iter_mut().zip(self.takes) {
            let (address, used) = take(self.stream, None);
            passed.address = address;
            in_use.extend(used);
        }
        if let Some(take) = self.take_rows {
            let (address, used) = take(self.stream, None);
            self.rows = Rows::At(address);
            in_use.extend(used);
        }
        let operands = slices::dense(&self.operator.plan().operands, &self.passed);
        // SAFETY: the slices have the operands' sizes, and only types of cudarc can be slices. cudarc frees their
        // memory after the work that it knows of: on the slices' own stream, which waits for the stream of this call if
        // the slices track events, since `in_use` is dropped after the kernel is enqueued. The kernel ends after all
        // work that reads or writes operands, also after an abort. The stream is not being captured, so the kernel runs
        // once.
        unsafe { self.operator.enqueue(&stream, None, &operands, self.rows) }
    }

    /// Adds the call to the graph that the stream is being captured into. The graph keeps the operator and its
    /// communicator alive as long as the graph, or an executable graph made of it, exists. Launches in one capture are
    /// ordered after each other, also if they are in different streams.
    ///
    /// The graph does not keep the operands alive, and does not wait for their use by other streams, since cudarc's
    /// events are not part of the graph.
    ///
    /// # Errors
    /// The errors are those of [`Self::launch`], and [`CallError::StreamNotCaptured`] if the stream is not being
    /// captured.
    ///
    /// # Safety
    /// During every replay, the operands' memory must be allocated at its present address. Nothing else may write the
    /// memory that the kernel reads, and nothing else may access the memory that it writes.
    pub unsafe fn capture(mut self) -> Result<(), Error> {
        self.check()?;
        let stream = UserStream::of(self.stream);
        // SAFETY: the stream is borrowed, so it is alive.
        let Some(capture) = (unsafe { Capture::of(stream.handle())? }) else {
            return Err(Error::Call(CallError::StreamNotCaptured));
        };
        self.take_addresses()?;
        let operands = slices::dense(&self.operator.plan().operands, &self.passed);
        // SAFETY: the slices have the operands' sizes. The caller guarantees the rest.
        unsafe {
            self.operator
                .enqueue(&stream, Some(&capture), &operands, self.rows)
        }
    }

    /// Takes the addresses of the operands. A stream that is being captured must not wait for events from outside of
    /// the capture, so another stream waits for these.
    fn take_addresses(&mut self) -> Result<(), Error> {
        let call = "a stream beside one that is being captured";
        let _uncaptured = Uncaptured::new();
        let context = self.stream.context();
        // If cudarc does not track events, nothing waits for events, and creating a stream would enable the tracking.
        let tracks = context.is_managing_stream_synchronization();
        let other = tracks.then(|| context.new_stream()).transpose();
        let other = driver::named(call, other)?;
        for (passed, take) in self.passed.iter_mut().zip(self.takes.drain(..)) {
            let waits = other.as_ref().unwrap_or(self.stream);
            (passed.address, _) = take(self.stream, Some(waits));
        }
        if let Some(take) = self.take_rows.take() {
            let waits = other.as_ref().unwrap_or(self.stream);
            self.rows = Rows::At(take(self.stream, Some(waits)).0);
        }
        let Some(other) = other else {
            return Ok(());
        };
        // SAFETY: the stream is alive.
        if unsafe { driver::is_capturing(other.cu_stream())? } {
            // Work that was captured before also uses a slice, so this stream has become part of the capture.
            driver::named(call, self.stream.join(&other))?;
            reaper::retire(Box::new(Waiting(other)), Duration::ZERO);
        }
        Ok(())
    }

    /// Checks the stream and the operands, and makes the context current.
    fn check(&mut self) -> Result<(), Error> {
        let (given, expected) = (self.stream.context(), self.operator.context());
        if !self.is_ours {
            return Err(Error::Call(CallError::WrongDevice {
                given: given.ordinal(),
                expected: expected.ordinal(),
            }));
        }
        let plan = self.operator.plan();
        self.rows.check(plan)?;
        if let Some(fault) = self.rows_fault.take() {
            return Err(Error::Call(fault));
        }
        let specs = &self.rows.specs(plan);
        let faults = std::mem::take(&mut self.faults);
        slices::check(specs, &self.passed, faults, self.operator.rank())?;
        driver::bind(expected)
    }

    /// Returns whether the slice can be used on this call's stream. A slice of another GPU is recorded as a mistake. If
    /// the stream belongs to another GPU, slices cannot be checked.
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
