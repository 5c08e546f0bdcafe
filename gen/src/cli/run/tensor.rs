//! Operands in device memory.

use super::inputs::Inputs;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError};
use mkernel::half::bf16;
use mkernel::spec::abi::{Operand, OperandSpec};
use mkernel::{Call, Error, spec::Dtype};
use std::sync::Arc;

/// An operand in device memory.
pub enum Tensor {
    Bf16(CudaSlice<bf16>),
    Fp32(CudaSlice<f32>),
    Int32(CudaSlice<i32>),
}

/// An integer that no kernel writes.
const POISON: i32 = i32::MIN;

impl Tensor {
    /// Uploads an operand that the kernel reads.
    pub fn input(
        stream: &Arc<CudaStream>,
        inputs: &Inputs,
        spec: &OperandSpec,
        rank: usize,
    ) -> Result<Self, Error> {
        Ok(match spec.dtype {
            Dtype::Bf16 => Self::Bf16(upload(stream, &inputs.of(spec.operand)[rank], bf16::ZERO)?),
            Dtype::Fp32 => Self::Fp32(upload(stream, &inputs.fractions(spec.operand)[rank], 0.0)?),
            Dtype::Int32 => Self::Int32(upload(stream, &inputs.numbers(spec.operand)[rank], 0)?),
        })
    }

    /// A tensor with NaNs that no kernel computes, to detect which elements are written.
    pub fn poisoned(stream: &Arc<CudaStream>, dtype: Dtype, elems: usize) -> Result<Self, Error> {
        Ok(match dtype {
            Dtype::Bf16 => {
                let poison = bf16::from_bits(0xffff);
                Self::Bf16(upload(stream, &vec![poison; elems], poison)?)
            }
            Dtype::Fp32 => {
                let poison = f32::from_bits(0xffff_ffff);
                Self::Fp32(upload(stream, &vec![poison; elems], poison)?)
            }
            Dtype::Int32 => Self::Int32(upload(stream, &vec![POISON; elems], POISON)?),
        })
    }

    /// Adds the tensor to `call` as an operand that the kernel writes.
    pub fn written_by<'a>(&'a mut self, call: Call<'a>, operand: Operand) -> Call<'a> {
        match self {
            Self::Bf16(slice) => call.write(operand, slice),
            Self::Fp32(slice) => call.write(operand, slice),
            Self::Int32(slice) => call.write(operand, slice),
        }
    }

    /// Adds the tensor to `call` as an operand that the kernel reads.
    pub fn read_by<'a>(&'a self, call: Call<'a>, operand: Operand) -> Call<'a> {
        match self {
            Self::Bf16(slice) => call.read(operand, slice),
            Self::Fp32(slice) => call.read(operand, slice),
            Self::Int32(slice) => call.read(operand, slice),
        }
    }

    /// The elements. Integers that were not written become NaN.
    pub fn download(&self, stream: &Arc<CudaStream>) -> Result<Vec<f32>, Error> {
        Ok(match self {
            Self::Bf16(slice) => {
                let values = stream.clone_dtoh(slice).map_err(cuda("clone_dtoh"))?;
                values.into_iter().map(bf16::to_f32).collect()
            }
            Self::Fp32(slice) => stream.clone_dtoh(slice).map_err(cuda("clone_dtoh"))?,
            Self::Int32(slice) => {
                let values = stream.clone_dtoh(slice).map_err(cuda("clone_dtoh"))?;
                let number = |value| {
                    if value == POISON {
                        f32::NAN
                    } else {
                        value as f32
                    }
                };
                values.into_iter().map(number).collect()
            }
        })
    }
}

/// Copies values to the device. Allocations cannot be empty, so an empty one gets the element `filler`.
pub fn upload<E: DeviceRepr + Copy>(
    stream: &Arc<CudaStream>,
    values: &[E],
    filler: E,
) -> Result<CudaSlice<E>, Error> {
    let values = if values.is_empty() { &[filler] } else { values };
    stream.clone_htod(values).map_err(cuda("clone_htod"))
}

/// Converts an error of a driver call.
fn cuda(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |source| Error::Cuda { call, source }
}
