//! Elements in GPU memory, of the types that operators take.

use crate::called::Called;
use half::{bf16, f16};
use mkernel::cudarc::driver::{CudaSlice, CudaStream, CudaView};
use mkernel::float8::F8E4M3;
use mkernel::{Call, Operand};
use std::sync::Arc;

/// Memory that is owned.
pub(crate) enum Slice {
    Bf16(CudaSlice<bf16>),
    F16(CudaSlice<f16>),
    E4m3(CudaSlice<F8E4M3>),
    F32(CudaSlice<f32>),
    I32(CudaSlice<i32>),
}

/// Memory that is borrowed.
pub(crate) enum View<'a> {
    Bf16(CudaView<'a, bf16>),
    F16(CudaView<'a, f16>),
    E4m3(CudaView<'a, F8E4M3>),
    F32(CudaView<'a, f32>),
    I32(CudaView<'a, i32>),
}

impl Slice {
    pub fn view(&self) -> View<'_> {
        match self {
            Self::Bf16(slice) => View::Bf16(slice.as_view()),
            Self::F16(slice) => View::F16(slice.as_view()),
            Self::E4m3(slice) => View::E4m3(slice.as_view()),
            Self::F32(slice) => View::F32(slice.as_view()),
            Self::I32(slice) => View::I32(slice.as_view()),
        }
    }
}

/// Returns a call with these operands, which is not enqueued yet.
pub(crate) fn operator_call<'a>(
    Called { operator, rows }: Called<'a>,
    stream: &'a Arc<CudaStream>,
    inputs: &'a [(Operand, View<'a>)],
    outputs: &'a mut [(Operand, Slice)],
) -> Call<'a> {
    let mut call = operator.call(stream);
    for (operand, view) in inputs {
        call = match view {
            View::Bf16(view) => call.read(*operand, view),
            View::F16(view) => call.read(*operand, view),
            View::E4m3(view) => call.read(*operand, view),
            View::F32(view) => call.read(*operand, view),
            View::I32(view) => call.read(*operand, view),
        };
    }
    for (operand, slice) in outputs {
        call = match slice {
            Slice::Bf16(slice) => call.write(*operand, slice),
            Slice::F16(slice) => call.write(*operand, slice),
            Slice::E4m3(slice) => call.write(*operand, slice),
            Slice::F32(slice) => call.write(*operand, slice),
            Slice::I32(slice) => call.write(*operand, slice),
        };
    }
    match rows {
        Some(rows) => call.rows(rows),
        None => call,
    }
}
