//! Operands in device memory.

use super::inputs::Inputs;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError};
use mkernel::half::bf16;
use mkernel::spec::abi::{Operand, OperandSpec};
use mkernel::{Call, Dtype, Error};
use std::sync::Arc;

/// A tensor of a call.
pub enum Tensor {
    Bf16(CudaSlice<bf16>),
    Fp32(CudaSlice<f32>),
    Int32(CudaSlice<i32>),
}

/// A number that no kernel writes.
const POISON: i32 = i32::MIN;

impl Tensor {
    /// What `rank` passes as an operand that the kernel reads.
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

    /// What a kernel leaves out of it stays a NaN that none computes.
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

    /// The call that writes it as `operand`.
    pub fn written_by<'a>(&'a mut self, call: Call<'a>, operand: Operand) -> Call<'a> {
        match self {
            Self::Bf16(slice) => call.write(operand, slice),
            Self::Fp32(slice) => call.write(operand, slice),
            Self::Int32(slice) => call.write(operand, slice),
        }
    }

    /// The call that reads it as `operand`.
    pub fn read_by<'a>(&'a self, call: Call<'a>, operand: Operand) -> Call<'a> {
        match self {
            Self::Bf16(slice) => call.read(operand, slice),
            Self::Fp32(slice) => call.read(operand, slice),
            Self::Int32(slice) => call.read(operand, slice),
        }
    }

    /// Its elements; numbers that were not written are none.
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

/// An allocation cannot be empty; a rank without rows may pass any.
pub fn upload<E: DeviceRepr + Copy>(
    stream: &Arc<CudaStream>,
    values: &[E],
    any: E,
) -> Result<CudaSlice<E>, Error> {
    let values = if values.is_empty() { &[any] } else { values };
    stream.clone_htod(values).map_err(cuda("clone_htod"))
}

/// A call of the driver that cudarc makes for us.
fn cuda(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |source| Error::Cuda { call, source }
}
