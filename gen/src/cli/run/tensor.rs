//! Operands in device memory.

use mkernel::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{Call, Dtype, Error};
use std::sync::Arc;

/// A result.
pub enum Tensor {
    Bf16(CudaSlice<bf16>),
    Fp32(CudaSlice<f32>),
}

impl Tensor {
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
        })
    }

    /// The call that writes it as `operand`.
    pub fn written_by<'a>(&'a mut self, call: Call<'a>, operand: Operand) -> Call<'a> {
        match self {
            Self::Bf16(slice) => call.write(operand, slice),
            Self::Fp32(slice) => call.write(operand, slice),
        }
    }

    /// Its elements.
    pub fn download(&self, stream: &Arc<CudaStream>) -> Result<Vec<f32>, Error> {
        Ok(match self {
            Self::Bf16(slice) => {
                let values = stream.clone_dtoh(slice).map_err(cuda("clone_dtoh"))?;
                values.into_iter().map(bf16::to_f32).collect()
            }
            Self::Fp32(slice) => stream.clone_dtoh(slice).map_err(cuda("clone_dtoh"))?,
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
