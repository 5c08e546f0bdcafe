//! Calls with tensors of a CUDA device. Operators take the memory of the tensors as it is.

use crate::called::Called;
use crate::error::{self, refuse};
use crate::operands::{self, Input, Output};
use crate::ranks::Ranks;
use crate::slices::{self, Slice, View};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Layout, Result, Storage, Tensor, bail};
use mkernel::cudarc::driver::{CudaSlice, CudaView};

/// Enqueues a call behind all earlier work on the device's stream. The memory of operands that are dropped before the
/// call has run is freed behind it, in the same stream.
pub(crate) fn call<const N: usize>(
    ranks: &Ranks,
    device: &CudaDevice,
    called: Called<'_>,
    inputs: &[Input<'_>],
    outputs: [Output; N],
) -> Result<[Tensor; N]> {
    let (empty, filled): (Vec<_>, Vec<_>) = inputs
        .iter()
        .partition(|(_, tensor)| tensor.elem_count() == 0);
    let locks: Vec<_> = filled
        .iter()
        .map(|(operand, tensor)| (*operand, tensor.storage_and_layout()))
        .collect();
    // Any memory will do for an operand without elements.
    let placeholders = empty.iter().map(|(operand, tensor)| {
        let output = Output::new(*operand, (), tensor.dtype());
        Ok((*operand, allocate(device, &output)?))
    });
    let placeholders = placeholders.collect::<Result<Vec<_>>>()?;
    let views = locks
        .iter()
        .map(|(operand, (storage, layout))| Ok((*operand, view(storage, layout)?)));
    let mut views = views.collect::<Result<Vec<_>>>()?;
    views.extend(
        placeholders
            .iter()
            .map(|(name, slice)| (*name, slice.view())),
    );
    let results = outputs
        .iter()
        .map(|output| Ok((output.operand, allocate(device, output)?)));
    let mut results = results.collect::<Result<Vec<_>>>()?;
    let call = slices::operator_call(called, ranks.stream(), &views, &mut results);
    let enqueued = match ranks.captures() {
        // SAFETY: `Ranks::capture` is the only place that sets this, and its caller keeps all memory of the graph and
        // orders its replays.
        true => unsafe { call.capture() },
        false => call.launch(),
    };
    enqueued.map_err(error::of_mkernel)?;
    let mut results = results.into_iter().map(|(_, slice)| slice);
    let tensors = outputs.map(|output| match results.next() {
        Some(slice) => Ok(tensor(device, slice, &output)),
        None => bail!("a result is missing"),
    });
    operands::all(tensors)
}

/// Lets candle keep the parameters of its kernels in GPU memory as long as the result exists, so that a graph need not copy the
/// parameters from the host.
pub(crate) fn keep_kernel_parameters(device: &Device) -> Result<impl Sized> {
    Ok(device.as_cuda_device()?.enable_cuda_graph_htod_cache())
}

/// Makes tensors of the device that are created from now on track no events.
///
/// # Safety
/// The tensors must be used on the device's stream only.
pub(crate) unsafe fn disable_event_tracking(device: &Device) -> Result<()> {
    // SAFETY: the caller uses the tensors on one stream.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok(())
}

/// Returns the elements of a contiguous tensor.
fn view<'a>(storage: &'a Storage, layout: &Layout) -> Result<View<'a>> {
    let Storage::Cuda(storage) = storage else {
        bail!("a tensor is not on the GPU");
    };
    match &storage.slice {
        CudaStorageSlice::BF16(slice) => Ok(View::Bf16(part(slice, layout))),
        CudaStorageSlice::F16(slice) => Ok(View::F16(part(slice, layout))),
        CudaStorageSlice::F8E4M3(slice) => Ok(View::E4m3(part(slice, layout))),
        CudaStorageSlice::F32(slice) => Ok(View::F32(part(slice, layout))),
        CudaStorageSlice::I32(slice) => Ok(View::I32(part(slice, layout))),
        _ => {
            refuse!("operators take tensors of bf16, f16, f8e4m3, f32 and i32; call to_dtype first")
        }
    }
}

fn part<'a, T>(slice: &'a CudaSlice<T>, layout: &Layout) -> CudaView<'a, T> {
    let first = layout.start_offset();
    slice.slice(first..first + layout.shape().elem_count())
}

fn allocate(device: &CudaDevice, output: &Output) -> Result<Slice> {
    let elems = output.shape.elem_count().max(1);
    // SAFETY: every pattern of bits is a value of these types. The operator writes the elements before the stream comes to
    // any other work that could read them.
    unsafe {
        match output.dtype {
            DType::BF16 => device.alloc(elems).map(Slice::Bf16),
            DType::F16 => device.alloc(elems).map(Slice::F16),
            DType::F8E4M3 => device.alloc(elems).map(Slice::E4m3),
            DType::F32 => device.alloc(elems).map(Slice::F32),
            DType::I32 => device.alloc(elems).map(Slice::I32),
            dtype => bail!("operators do not write {dtype:?}"),
        }
    }
}

fn tensor(device: &CudaDevice, slice: Slice, output: &Output) -> Tensor {
    let storage = match slice {
        Slice::Bf16(slice) => storage(device, slice),
        Slice::F16(slice) => storage(device, slice),
        Slice::E4m3(slice) => storage(device, slice),
        Slice::F32(slice) => storage(device, slice),
        Slice::I32(slice) => storage(device, slice),
    };
    Tensor::from_storage(storage, output.shape.clone(), BackpropOp::none(), false)
}

fn storage<T: CudaDType>(device: &CudaDevice, slice: CudaSlice<T>) -> Storage {
    Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone()))
}
