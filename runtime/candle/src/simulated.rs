//! Calls with tensors of the CPU, on simulated GPUs.
//!
//! Operands are copied to the memory of the simulated GPU, and results back. So candle can read and write its tensors at
//! once, and the simulator checks every access of the kernels as in its own memory.

use crate::called::Called;
use crate::error::{self, refuse};
use crate::operands::{self, Input, Output};
use crate::ranks::Ranks;
use crate::slices::{self, Slice};
use candle_core::{CpuStorage, DType, Result, Storage, Tensor, bail};
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use std::sync::Arc;

/// Makes a call, and waits for its end.
pub(crate) fn call<const N: usize>(
    ranks: &Ranks,
    called: Called<'_>,
    inputs: &[Input<'_>],
    outputs: [Output; N],
) -> Result<[Tensor; N]> {
    let stream = ranks.stream();
    let uploads = inputs
        .iter()
        .map(|(operand, tensor)| Ok((*operand, upload(stream, tensor)?)));
    let uploads = uploads.collect::<Result<Vec<_>>>()?;
    let views: Vec<_> = uploads.iter().map(|(name, s)| (*name, s.view())).collect();
    let results = outputs
        .iter()
        .map(|output| Ok((output.operand, zeros(stream, output)?)));
    let mut results = results.collect::<Result<Vec<_>>>()?;
    let call = slices::operator_call(called, stream, &views, &mut results);
    call.launch().map_err(error::of_mkernel)?;
    ranks.synchronize()?;
    let mut results = results.into_iter();
    let tensors = outputs.map(|output| download(stream, &output, results.next().map(|(_, s)| s)));
    operands::all(tensors)
}

fn upload(stream: &Arc<CudaStream>, tensor: &Tensor) -> Result<Slice> {
    let (storage, layout) = tensor.storage_and_layout();
    let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    match &*storage {
        Storage::Cpu(CpuStorage::BF16(all)) => copy(stream, &all[range]).map(Slice::Bf16),
        Storage::Cpu(CpuStorage::F16(all)) => copy(stream, &all[range]).map(Slice::F16),
        Storage::Cpu(CpuStorage::F8E4M3(all)) => copy(stream, &all[range]).map(Slice::E4m3),
        Storage::Cpu(CpuStorage::F32(all)) => copy(stream, &all[range]).map(Slice::F32),
        Storage::Cpu(CpuStorage::I32(all)) => copy(stream, &all[range]).map(Slice::I32),
        _ => refuse!(
            "operators take tensors of bf16, f16, f8e4m3, f32 and i32, not {:?}; call to_dtype first",
            tensor.dtype()
        ),
    }
}

/// Copies elements to the GPU. A copy of nothing has one element, since an allocation cannot be empty.
fn copy<T: DeviceRepr + ValidAsZeroBits>(
    stream: &Arc<CudaStream>,
    elements: &[T],
) -> Result<CudaSlice<T>> {
    let copied = match elements {
        [] => stream.alloc_zeros(1),
        _ => stream.clone_htod(elements),
    };
    copied.map_err(error::of_driver)
}

fn zeros(stream: &Arc<CudaStream>, output: &Output) -> Result<Slice> {
    let elems = output.shape.elem_count().max(1);
    let slice = match output.dtype {
        DType::BF16 => stream.alloc_zeros(elems).map(Slice::Bf16),
        DType::F16 => stream.alloc_zeros(elems).map(Slice::F16),
        DType::F8E4M3 => stream.alloc_zeros(elems).map(Slice::E4m3),
        DType::F32 => stream.alloc_zeros(elems).map(Slice::F32),
        DType::I32 => stream.alloc_zeros(elems).map(Slice::I32),
        dtype => bail!("operators do not write {dtype:?}"),
    };
    slice.map_err(error::of_driver)
}

fn download(stream: &Arc<CudaStream>, output: &Output, slice: Option<Slice>) -> Result<Tensor> {
    let shape = &output.shape;
    match slice {
        Some(Slice::Bf16(slice)) => fetch(stream, &slice, shape),
        Some(Slice::F16(slice)) => fetch(stream, &slice, shape),
        Some(Slice::E4m3(slice)) => fetch(stream, &slice, shape),
        Some(Slice::F32(slice)) => fetch(stream, &slice, shape),
        Some(Slice::I32(slice)) => fetch(stream, &slice, shape),
        None => bail!("a result is missing"),
    }
}

fn fetch<T: DeviceRepr + candle_core::WithDType>(
    stream: &Arc<CudaStream>,
    slice: &CudaSlice<T>,
    shape: &candle_core::Shape,
) -> Result<Tensor> {
    let mut elements = stream.clone_dtoh(slice).map_err(error::of_driver)?;
    elements.truncate(shape.elem_count());
    Tensor::from_vec(elements, shape, &candle_core::Device::Cpu)
}
