//! [`Buffer`] and [`Elements`]: the memory of operands.

use crate::lab::Failure;
use mkernel::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DeviceRepr,
};
use mkernel::float8::F8E4M3;
use mkernel::half::{bf16, f16};
use mkernel::operands::Element;
use mkernel::spec::{Dtype, abi::OperandSpec};
use mkernel::{Call, Communicator, Operand, Operator, SymmetricSlice};
use std::sync::Arc;

/// The memory of an operand, in symmetric memory if the operator wants the operand there.
pub enum Buffer<E: 'static> {
    /// An allocation of its own.
    Slice(CudaSlice<E>),
    /// A tensor in symmetric memory.
    Symmetric(SymmetricSlice<E>),
}

/// Returns whether an operand of this operator is in symmetric memory.
pub fn is_symmetric(operator: &Operator, operand: Operand) -> bool {
    let mut specs = operator.plan().operands().iter();
    specs.any(|spec| spec.operand == operand && spec.symmetric)
}

impl<E: Element + DeviceRepr> Buffer<E> {
    /// Allocates memory and uploads the values. If the memory is symmetric, all ranks must call this with equal numbers
    /// of values.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn upload(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        is_symmetric: bool,
        values: &[E],
    ) -> Result<Self, Failure> {
        if !is_symmetric {
            return Ok(Self::Slice(stream.clone_htod(values)?));
        }
        let mut tensor = ranks.alloc(stream, values.len())?;
        stream.memcpy_htod(values, &mut tensor)?;
        Ok(Self::Symmetric(tensor))
    }

    /// Returns the whole buffer.
    pub fn view(&self) -> CudaView<'_, E> {
        match self {
            Self::Slice(slice) => slice.as_view(),
            Self::Symmetric(tensor) => tensor.as_view(),
        }
    }

    /// Returns the whole buffer, to be written.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, E> {
        match self {
            Self::Slice(slice) => slice.as_view_mut(),
            Self::Symmetric(tensor) => tensor.as_view_mut(),
        }
    }
}

/// The memory of an operand whose elements have any type.
pub enum Elements {
    /// bf16.
    Bf16(Buffer<bf16>),
    /// fp16.
    Fp16(Buffer<f16>),
    /// e4m3.
    E4m3(Buffer<F8E4M3>),
    /// fp32.
    Fp32(Buffer<f32>),
    /// int32.
    Int32(Buffer<i32>),
}

/// Evaluates an expression with `$buffer` as the memory of an [`Elements`].
macro_rules! by_type {
    ($elements:expr, $buffer:ident => $then:expr) => {
        match $elements {
            Elements::Bf16($buffer) => $then,
            Elements::Fp16($buffer) => $then,
            Elements::E4m3($buffer) => $then,
            Elements::Fp32($buffer) => $then,
            Elements::Int32($buffer) => $then,
        }
    };
}

impl Elements {
    /// Allocates memory for an operand and uploads the nearest elements. If the memory is symmetric, all ranks must call
    /// this with equal numbers of values.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn upload(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        spec: &OperandSpec,
        values: &[f32],
    ) -> Result<Self, Failure> {
        fn upload<E: Element + DeviceRepr>(
            (ranks, stream, is_symmetric): (&Communicator, &Arc<CudaStream>, bool),
            values: &[f32],
            convert: impl Fn(f32) -> E,
        ) -> Result<Buffer<E>, Failure> {
            let values: Vec<_> = values.iter().copied().map(convert).collect();
            Buffer::upload(ranks, stream, is_symmetric, &values)
        }
        let place = (ranks, stream, spec.symmetric);
        Ok(match spec.dtype {
            Dtype::Bf16 => Self::Bf16(upload(place, values, bf16::from_f32)?),
            Dtype::Fp16 => Self::Fp16(upload(place, values, f16::from_f32)?),
            Dtype::E4m3 => Self::E4m3(upload(place, values, F8E4M3::from_f32)?),
            Dtype::Fp32 => Self::Fp32(upload(place, values, |value| value)?),
            Dtype::Int32 => Self::Int32(upload(place, values, |value| value as i32)?),
        })
    }

    /// Adds the operand to a call that reads it.
    pub fn read_by<'a>(&'a self, call: Call<'a>, operand: Operand) -> Call<'a> {
        by_type!(self, buffer => match buffer {
            Buffer::Slice(slice) => call.read(operand, slice),
            Buffer::Symmetric(tensor) => call.read(operand, tensor),
        })
    }

    /// Adds the operand to a call that writes it.
    pub fn written_by<'a>(&'a mut self, call: Call<'a>, operand: Operand) -> Call<'a> {
        by_type!(self, buffer => match buffer {
            Buffer::Slice(slice) => call.write(operand, slice),
            Buffer::Symmetric(tensor) => call.write(operand, tensor),
        })
    }

    /// The address of the first element.
    pub(super) fn address(&self, stream: &CudaStream) -> u64 {
        by_type!(self, buffer => buffer.view().device_ptr(stream).0)
    }

    /// Downloads the elements, integers as the nearest numbers of fp32.
    ///
    /// # Errors
    /// The copy fails.
    pub fn values(&self, stream: &Arc<CudaStream>) -> Result<Vec<f32>, Failure> {
        fn values<E: Element + DeviceRepr + Into<f32>>(
            buffer: &Buffer<E>,
            stream: &Arc<CudaStream>,
        ) -> Result<Vec<f32>, Failure> {
            let elements = stream.clone_dtoh(&buffer.view())?;
            Ok(elements.into_iter().map(Into::into).collect())
        }
        match self {
            Self::Bf16(buffer) => values(buffer, stream),
            Self::Fp16(buffer) => values(buffer, stream),
            Self::E4m3(buffer) => values(buffer, stream),
            Self::Fp32(buffer) => values(buffer, stream),
            Self::Int32(buffer) => {
                let elements = stream.clone_dtoh(&buffer.view())?;
                Ok(elements.into_iter().map(|value| value as f32).collect())
            }
        }
    }

    /// Copies memory of the same type, which is not longer.
    ///
    /// # Errors
    /// The copy fails.
    ///
    /// # Panics
    /// The types differ, or the memory is longer.
    pub fn copy_from(&mut self, stream: &Arc<CudaStream>, from: &Self) -> Result<(), Failure> {
        macro_rules! copy {
            ($($Type:ident),+) => {
                match (self, from) {
                    $((Self::$Type(to), Self::$Type(from)) => {
                        let (from, mut to) = (from.view(), to.view_mut());
                        // An empty buffer has no part.
                        if from.len() > 0 {
                            stream.memcpy_dtod(&from, &mut to.slice_mut(..from.len()))?;
                        }
                    })+
                    _ => panic!("elements of different types"),
                }
            };
        }
        copy!(Bf16, Fp16, E4m3, Fp32, Int32);
        Ok(())
    }
}

/// An operand that launched calls read: own memory of each call, or one tensor in symmetric memory that calls use in turn. The
/// tensor is written again behind each call, so a call may end only when nothing reads the tensor any more.
pub(super) struct SharedOperand(Option<Elements>);

impl SharedOperand {
    /// Allocates the tensor if the operator wants the operand there. All ranks must call this.
    pub fn new(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        operator: &Operator,
        operand: Operand,
    ) -> Result<Self, Failure> {
        let mut specs = operator.plan().operands().iter();
        let spec = specs.find(|spec| spec.operand == operand && spec.symmetric);
        let tensor = spec.map(|spec| {
            // The tensor has the same length on all ranks, and the first rank has the most rows.
            let elems = (spec.rows.on(0) * spec.cols) as usize;
            Elements::upload(ranks, stream, spec, &vec![1.0; elems])
        });
        Ok(Self(tensor.transpose()?))
    }

    /// Returns memory with these values for the next call.
    pub fn with<'a>(
        &'a mut self,
        stream: &Arc<CudaStream>,
        values: &'a Elements,
    ) -> Result<&'a Elements, Failure> {
        let Some(tensor) = &mut self.0 else {
            return Ok(values);
        };
        tensor.copy_from(stream, values)?;
        Ok(tensor)
    }
}

/// The result of launched calls: own memory of each call, or one tensor in symmetric memory that calls use in turn. Each
/// call then finds the tensor in use by copies around other calls.
pub(super) struct SharedResult<E: 'static>(Option<SymmetricSlice<E>>);

impl<E: Element + DeviceRepr> SharedResult<E> {
    /// Allocates the tensor if `is_symmetric`. All ranks must then call this with equal numbers of elements.
    pub fn new(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        is_symmetric: bool,
        elems: usize,
    ) -> Result<Self, Failure> {
        let tensor = is_symmetric.then(|| ranks.alloc(stream, elems));
        Ok(Self(tensor.transpose()?))
    }

    /// Calls `launch` with the memory to which the call writes. The memory holds `result` before the call, and the call's
    /// result is copied to `result` at the end.
    pub fn launch(
        &mut self,
        stream: &Arc<CudaStream>,
        result: &mut CudaViewMut<'_, E>,
        launch: impl FnOnce(&mut CudaViewMut<'_, E>) -> Result<(), mkernel::Error>,
    ) -> Result<(), Failure> {
        let Some(tensor) = &mut self.0 else {
            return Ok(launch(result)?);
        };
        stream.memcpy_dtod(result, tensor)?;
        launch(&mut tensor.as_view_mut())?;
        Ok(stream.memcpy_dtod(tensor, result)?)
    }
}
