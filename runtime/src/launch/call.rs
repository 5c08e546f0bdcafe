//! [`Call`]: one call of an operator, whose operands are slices.

use crate::driver::{self, Capture, UserStream};
use crate::error::{CallError, Error, OperandFault};
use crate::launch::rows::{CallRows, Rows};
use crate::launch::slice_types::{Element, Readable, Writable};
use crate::launch::slices::{SliceOperand, Slices};
use crate::launch::waits::{Waits, event_of, record};
use crate::operator::Operator;
use cudarc::driver::{CudaEvent, CudaStream};
use half::bf16;
use mkernel_spec::abi::Operand;
use std::sync::Arc;

/// One call of an [`Operator`], created by [`Operator::call`]. Pass each operand of
/// [`KernelPlan::operands`](crate::KernelPlan::operands), in any order, then call [`launch`](Self::launch).
///
/// Slices must have at least the size of this rank's part. Rows are contiguous, unless the slice is a
/// [`Strided`](crate::operands::Strided). For an operand without rows on this rank, any slice can be passed.
#[must_use = "nothing is enqueued before `launch`"]
pub struct Call<'a> {
    operator: &'a Operator,
    stream: &'a Arc<CudaStream>,
    /// Whether the stream belongs to the operator's GPU.
    is_ours: bool,
    slices: Slices<'a>,
    rows: Rows,
    /// The event of the slice with the rows, to be recorded behind the kernel.
    rows_used: Option<&'a CudaEvent>,
    /// The fault of the slice with the rows, if there is one.
    rows_fault: Option<CallError>,
    waits: Waits<'a>,
    /// The error of [`Waits::beside`], if that call failed.
    failure: Option<Error>,
}

/// The operands that a kernel's [`Epilogue`](mkernel_spec::Epilogue) reads in addition to the matrices.
#[derive(Clone, Copy, Default)]
pub struct Addends<'a, T = bf16> {
    /// The bias, a vector of the N columns of this rank.
    pub bias: Option<&'a dyn Readable<T>>,
    /// The residual, with the rows and columns of this rank's C. For `gemm_ar` the residual must have equal values on every
    /// rank, since each row may be read on only one rank. The residual may be C itself, with C's row stride and element type.
    /// It must not overlap C in any other way.
    pub residual: Option<&'a dyn Readable<T>>,
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
    /// The errors of [`Call::launch`].
    pub fn launch<A, B, C, T, E>(
        &self,
        stream: &Arc<CudaStream>,
        a: &A,
        b: &B,
        c: &mut C,
    ) -> Result<(), Error>
    where
        A: Readable<T> + ?Sized,
        B: Readable<T> + ?Sized,
        C: Writable<E> + ?Sized,
        T: Element,
        E: Element,
    {
        let addends = Addends {
            bias: None,
            residual: None,
        };
        self.launch_with(stream, a, b, c, addends)
    }

    /// Makes one call of a GEMM operator that adds a bias or a residual.
    ///
    /// # Errors
    /// The errors of [`Call::launch`].
    pub fn launch_with<A, B, C, T, E>(
        &self,
        stream: &Arc<CudaStream>,
        a: &A,
        b: &B,
        c: &mut C,
        addends: Addends<T>,
    ) -> Result<(), Error>
    where
        A: Readable<T> + ?Sized,
        B: Readable<T> + ?Sized,
        C: Writable<E> + ?Sized,
        T: Element,
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
            slices: Slices::new(operator.plan().operands()),
            rows: Rows::Most,
            rows_used: None,
            rows_fault: None,
            waits: Waits::of(stream),
            failure: None,
        }
    }

    /// Passes an operand that the kernel reads.
    pub fn read<T, S>(mut self, operand: Operand, slice: &'a S) -> Self
    where
        T: Element,
        S: Readable<T> + ?Sized,
    {
        if self.takes(operand, slice.stream())
            && let Some((address, used)) = self.address_of(slice)
        {
            self.slices.pass(
                operand,
                SliceOperand {
                    elems: slice.len(),
                    row_stride: slice.row_stride(),
                    dtype: T::DTYPE,
                    written: false,
                    address,
                    used,
                },
            );
        }
        self
    }

    /// Passes an operand that the kernel writes, with all of its elements.
    pub fn write<T, S>(mut self, operand: Operand, slice: &'a mut S) -> Self
    where
        T: Element,
        S: Writable<T> + ?Sized,
    {
        if !self.takes(operand, slice.stream()) {
            return self;
        }
        let (elems, row_stride) = (slice.len(), slice.row_stride());
        let (address, used) = match self.waits.beside() {
            Ok(None) => {
                let (address, guard) = slice.device_ptr_mut(self.stream);
                (address, event_of(guard))
            }
            Ok(Some(beside)) => (slice.device_ptr_mut(beside).0, None),
            Err(error) => {
                self.failure = Some(error);
                return self;
            }
        };
        self.slices.pass(
            operand,
            SliceOperand {
                elems,
                row_stride,
                dtype: T::DTYPE,
                written: true,
                address,
                used,
            },
        );
        self
    }

    /// Passes a result in the place of the input that it replaces, such as [`Operand::ResidualOut`] in the place of
    /// [`Operand::Residual`]. The kernel reads the elements of `slice` as the input, and writes the result over them.
    ///
    /// [`OperandSpec::in_place_of`](mkernel_spec::abi::OperandSpec::in_place_of) names the input, which is not passed on its
    /// own. If the result replaces no input, or a larger input, the launch returns an error.
    pub fn update<T, S>(self, result: Operand, slice: &'a mut S) -> Self
    where
        T: Element,
        S: Writable<T> + ?Sized,
    {
        let mut call = self.write(result, slice);
        call.slices.pass_replaced(result);
        call
    }

    /// Gives the number of rows of this call, up to the number that the operator was prepared for, which is the default. All
    /// ranks must give equal numbers, except to `gemm`. The operator must take rows at run time: see
    /// [`KernelPlan::max_rows`](crate::KernelPlan::max_rows). Operands need only the rows of this call.
    pub fn rows(mut self, rows: u64) -> Self {
        (self.rows, self.rows_used, self.rows_fault) = (Rows::Count(rows), None, None);
        self
    }

    /// Takes the number of rows of this call from the first element of `slice`, which the kernel reads when it starts. A graph
    /// reads the element at each replay. The operands must have all rows that the operator was prepared for: the distances
    /// between batches and heads of `ring_attention` are the distances in a call with the most rows. A larger number is an
    /// error of that call, which [`check`](crate::Communicator::check) returns.
    pub fn rows_in<S>(mut self, slice: &'a S) -> Self
    where
        S: Readable<i32> + ?Sized,
    {
        self.rows_fault = match self.operator.is_of_device(slice.stream()) {
            false => Some(CallError::RowsWrongDevice {
                given: slice.stream().context().ordinal(),
                expected: self.operator.context().ordinal(),
            }),
            // The kernel would read the memory behind an empty slice.
            true if slice.is_empty() => Some(CallError::RowsEmpty),
            true => None,
        };
        (self.rows, self.rows_used) = (Rows::At(0), None);
        if self.rows_fault.is_none()
            && self.is_ours
            && let Some((address, used)) = self.address_of(slice)
        {
            (self.rows, self.rows_used) = (Rows::At(address), used);
        }
        self
    }

    /// Returns the address of a slice that the kernel reads, and the event to record behind the kernel. Makes the stream that
    /// waits for operands wait for earlier writes of the slice.
    fn address_of<T, S>(&mut self, slice: &'a S) -> Option<(u64, Option<&'a CudaEvent>)>
    where
        S: Readable<T> + ?Sized,
    {
        match self.waits.beside() {
            Ok(None) => {
                let (address, guard) = slice.device_ptr(self.stream);
                Some((address, event_of(guard)))
            }
            Ok(Some(beside)) => Some((slice.device_ptr(beside).0, None)),
            Err(error) => {
                self.failure = Some(error);
                None
            }
        }
    }

    /// Enqueues the call and returns immediately. See [`Communicator::synchronize`](crate::Communicator::synchronize).
    ///
    /// # Errors
    /// [`Error::Operands`] with all mistakes, [`Error::Call`] if the stream belongs to another GPU, and
    /// [`Error::Aborted`] after an earlier failure. [`CallError::StreamCaptured`] if the stream is being captured, or was
    /// when operands were passed; the capture continues, and [`Self::capture`] can be used.
    pub fn launch(mut self) -> Result<(), Error> {
        let rows = self.check()?;
        let stream = UserStream::of(self.stream);
        // SAFETY: the stream is borrowed, so it is alive.
        if unsafe { driver::is_capturing(stream.handle())? } || self.waits.are_beside() {
            return Err(Error::Call(CallError::StreamCaptured));
        }
        let (operands, count) = self.slices.dense();
        // SAFETY: the slices have the operands' sizes, and only types of cudarc can be slices. cudarc frees their
        // memory after the work that it knows of: on the slices' own stream, which waits for the stream of this call if
        // the slices track events, since their events are recorded after the kernel is enqueued, while they are still
        // borrowed. The kernel ends after all work that reads or writes operands, also after an abort. The stream is not
        // being captured, so the kernel runs once.
        let launched = unsafe { (self.operator).enqueue(&stream, None, &operands[..count], rows) };
        for event in self.slices.used().chain(self.rows_used) {
            record(event, self.stream);
        }
        launched
    }

    /// Adds the call to the graph that the stream is being captured into. The graph keeps the operator and its
    /// communicator alive as long as the graph, or an executable graph made of it, exists. Launches in one capture are
    /// ordered after each other, also if they are in different streams.
    ///
    /// The graph does not keep the operands alive, and does not wait for their use by other streams, since cudarc's
    /// events are not part of the graph.
    ///
    /// # Errors
    /// The errors of [`Self::launch`], and [`CallError::StreamNotCaptured`] if the stream is not being captured.
    ///
    /// # Safety
    /// During every replay, the operands' memory must be allocated at its present address. Nothing else may write the
    /// memory that the kernel reads, and nothing else may access the memory that it writes.
    pub unsafe fn capture(mut self) -> Result<(), Error> {
        let rows = self.check()?;
        self.waits.join()?;
        let stream = UserStream::of(self.stream);
        // SAFETY: the stream is borrowed, so it is alive.
        let Some(capture) = (unsafe { Capture::of(stream.handle())? }) else {
            return Err(Error::Call(CallError::StreamNotCaptured));
        };
        let (operands, count) = self.slices.dense();
        let operands = &operands[..count];
        // SAFETY: the slices have the operands' sizes. The caller guarantees the rest.
        unsafe { (self.operator).enqueue(&stream, Some(&capture), operands, rows) }
    }

    /// Checks the stream and the operands, and makes the context current.
    fn check(&mut self) -> Result<CallRows<'a>, Error> {
        let (given, expected) = (self.stream.context(), self.operator.context());
        if !self.is_ours {
            return Err(Error::Call(CallError::WrongDevice {
                given: given.ordinal(),
                expected: expected.ordinal(),
            }));
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let rows = self.rows.checked(self.operator.plan())?;
        if let Some(fault) = self.rows_fault.take() {
            return Err(Error::Call(fault));
        }
        self.slices.check(rows.specs(), self.operator.rank())?;
        driver::bind(expected)?;
        Ok(rows)
    }

    /// Returns whether the slice can be used on this call's stream. A slice of another GPU is recorded as a mistake. If the
    /// stream belongs to another GPU than the operator, slices cannot be checked.
    fn takes(&mut self, operand: Operand, stream: &CudaStream) -> bool {
        let is_ours = self.operator.is_of_device(stream);
        if !is_ours {
            let fault = OperandFault::WrongDevice {
                given: stream.context().ordinal(),
                expected: self.operator.context().ordinal(),
            };
            self.slices.refuse(operand, fault);
        }
        is_ours && self.is_ours
    }
}
