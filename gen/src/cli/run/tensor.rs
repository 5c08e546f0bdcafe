//! Operands in device memory.

use super::inputs::Inputs;
use super::memory::Memory;
use crate::cli::parallel::elements;
use mkernel::cudarc::driver::CudaStream;
use mkernel::float8::F8E4M3;
use mkernel::half::{bf16, f16};
use mkernel::spec::abi::{Operand, OperandSpec};
use mkernel::{Call, Communicator, Error, spec::Dtype};
use std::sync::Arc;

/// An operand in device memory.
pub enum Tensor {
    Bf16(Memory<bf16>),
    Fp16(Memory<f16>),
    E4m3(Memory<F8E4M3>),
    Fp32(Memory<f32>),
    Int32(Memory<i32>),
}

/// An integer that no kernel writes.
const POISON: i32 = i32::MIN;

/// Calls an expression with the memory of a tensor of any type.
macro_rules! by_type {
    ($tensor:expr, $memory:ident => $then:expr) => {
        match $tensor {
            Self::Bf16($memory) => $then,
            Self::Fp16($memory) => $then,
            Self::E4m3($memory) => $then,
            Self::Fp32($memory) => $then,
            Self::Int32($memory) => $then,
        }
    };
}

impl Tensor {
    /// Uploads an operand that the kernel reads. If it is in symmetric memory, all ranks must call this.
    pub fn input(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        inputs: &Inputs,
        spec: &OperandSpec,
        rank: usize,
    ) -> Result<Self, Error> {
        let floats: &[f32] = inputs
            .of(spec.operand)
            .get(rank)
            .map_or(&[], |values| values);
        Ok(match spec.dtype {
            Dtype::Bf16 => {
                let values = elements(floats.len(), |at| bf16::from_f32(floats[at]));
                Self::Bf16(Memory::upload(ranks, stream, spec, &values, bf16::ZERO)?)
            }
            Dtype::Fp16 => {
                let values = elements(floats.len(), |at| f16::from_f32(floats[at]));
                Self::Fp16(Memory::upload(ranks, stream, spec, &values, f16::ZERO)?)
            }
            Dtype::E4m3 => {
                let values = elements(floats.len(), |at| F8E4M3::from_f32(floats[at]));
                Self::E4m3(Memory::upload(ranks, stream, spec, &values, F8E4M3::ZERO)?)
            }
            Dtype::Fp32 => Self::Fp32(Memory::upload(ranks, stream, spec, floats, 0.0)?),
            Dtype::Int32 => {
                let values = &inputs.numbers(spec.operand)[rank];
                Self::Int32(Memory::upload(ranks, stream, spec, values, 0)?)
            }
        })
    }

    /// A tensor with NaNs that no kernel computes, to detect which elements are written. If it is in symmetric memory, all
    /// ranks must call this.
    pub fn poisoned(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        spec: &OperandSpec,
        elems: usize,
    ) -> Result<Self, Error> {
        Ok(match spec.dtype {
            Dtype::Bf16 => {
                let poison = bf16::from_bits(0xffff);
                Self::Bf16(Memory::filled(ranks, stream, spec, elems, poison)?)
            }
            Dtype::Fp16 => {
                let poison = f16::from_bits(0xffff);
                Self::Fp16(Memory::filled(ranks, stream, spec, elems, poison)?)
            }
            Dtype::E4m3 => {
                let poison = F8E4M3::from_bits(0xff);
                Self::E4m3(Memory::filled(ranks, stream, spec, elems, poison)?)
            }
            Dtype::Fp32 => {
                let poison = f32::from_bits(0xffff_ffff);
                Self::Fp32(Memory::filled(ranks, stream, spec, elems, poison)?)
            }
            Dtype::Int32 => Self::Int32(Memory::filled(ranks, stream, spec, elems, POISON)?),
        })
    }

    /// Adds the tensor to `call` as an operand that the kernel writes.
    pub fn written_by<'a>(&'a mut self, call: Call<'a>, operand: Operand) -> Call<'a> {
        by_type!(self, memory => memory.written_by(call, operand))
    }

    /// Adds the tensor to `call` as an operand that the kernel reads.
    pub fn read_by<'a>(&'a self, call: Call<'a>, operand: Operand) -> Call<'a> {
        by_type!(self, memory => memory.read_by(call, operand))
    }

    /// The address of the first element, and the bytes of all elements.
    pub fn span(&self, stream: &CudaStream) -> (u64, u64) {
        by_type!(self, memory => memory.span(stream))
    }

    /// The elements. Integers that were not written become NaN.
    pub fn download(&self, stream: &Arc<CudaStream>) -> Result<Vec<f32>, Error> {
        Ok(match self {
            Self::Bf16(memory) => {
                let values = memory.download(stream)?;
                values.into_iter().map(bf16::to_f32).collect()
            }
            Self::Fp16(memory) => {
                let values = memory.download(stream)?;
                values.into_iter().map(f16::to_f32).collect()
            }
            Self::E4m3(memory) => {
                let values = memory.download(stream)?;
                values.into_iter().map(|value| value.to_f32()).collect()
            }
            Self::Fp32(memory) => memory.download(stream)?,
            Self::Int32(memory) => {
                let number = |value| match value {
                    POISON => f32::NAN,
                    value => value as f32,
                };
                memory.download(stream)?.into_iter().map(number).collect()
            }
        })
    }
}
