//! [`Call`]: the operands of one call, as slices.

use crate::error::Error;
use crate::operands::OperandFault;
use crate::operator::Operator;
use crate::passed::{self, Passed};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use half::bf16;
use mkernel_spec::Dtype;
use mkernel_spec::abi::Operand;
use std::sync::Arc;

/// What elements of an operand can be.
pub trait Element: sealed::Element {
    /// Its name in a declaration.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Element {}
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

/// One call of an [`Operator`], made by [`Operator::call`]: pass each operand of
/// [`KernelPlan::operands`](crate::KernelPlan::operands), in any order, then [`launch`](Self::launch).
///
/// Slices are dense and exactly of this rank's size; for an operand without rows on this rank any slice will do.
#[must_use = "nothing is enqueued before `launch`"]
pub struct Call<'a> {
    operator: &'a Operator,
    stream: &'a Arc<CudaStream>,
    is_ours: bool,
    passed: Vec<Passed>,
    /// What cannot be looked at any further.
    faults: Vec<(Operand, OperandFault)>,
    /// Tell other streams, when dropped, until when a slice is in use: behind the kernel.
    in_use: Vec<SyncOnDrop<'a>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(operator: &'a Operator, stream: &'a Arc<CudaStream>) -> Self {
        Self {
            operator,
            stream,
            is_ours: operator.is_of_device(stream),
            passed: Vec::new(),
            faults: Vec::new(),
            in_use: Vec::new(),
        }
    }

    /// Passes an operand that the kernel reads.
    pub fn read<T, S>(mut self, operand: Operand, slice: &'a S) -> Self
    where
        T: Element,
        S: DevicePtr<T> + ?Sized,
    {
        if self.takes(operand, slice.stream()) {
            let elems = slice.len();
            let (address, in_use) = slice.device_ptr(self.stream);
            self.in_use.push(in_use);
            self.passed.push(Passed {
                operand,
                elems,
                dtype: T::DTYPE,
                written: false,
                address,
            });
        }
        self
    }

    /// Passes an operand that the kernel writes: all of it.
    pub fn write<T, S>(mut self, operand: Operand, slice: &'a mut S) -> Self
    where
        T: Element,
        S: DevicePtrMut<T> + ?Sized,
    {
        if self.takes(operand, slice.stream()) {
            let elems = slice.len();
            let (address, in_use) = slice.device_ptr_mut(self.stream);
            self.in_use.push(in_use);
            self.passed.push(Passed {
                operand,
                elems,
                dtype: T::DTYPE,
                written: true,
                address,
            });
        }
        self
    }

    /// Enqueues the call. Returns at once; see [`Communicator::synchronize`](crate::Communicator::synchronize).
    ///
    /// # Errors
    /// [`Error::Operands`] with all mistakes, [`Error::WrongDevice`], [`Error::Aborted`] after an earlier failure.
    pub fn launch(self) -> Result<(), Error> {
        let (given, expected) = (self.stream.context(), self.operator.context());
        if !self.is_ours {
            return Err(Error::WrongDevice {
                given: given.ordinal(),
                expected: expected.ordinal(),
            });
        }
        let specs = &self.operator.plan().operands;
        passed::check(specs, &self.passed, self.faults, self.operator.rank())?;
        let operands = passed::dense(specs, &self.passed);
        // SAFETY: the slices have the operands' sizes; cudarc keeps their memory until the stream is past this call,
        // since `in_use` is dropped behind it.
        unsafe {
            self.operator
                .enqueue(self.stream.cu_stream(), Some(self.stream), &operands)
        }
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
