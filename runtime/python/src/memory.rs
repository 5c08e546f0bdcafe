//! Calls with tensors that are given by their addresses. All unsafe code of this crate is here.
//!
//! Python objects own the tensors, and the Python sources of the package keep them alive during a call. A call with an
//! address that is not a tensor's is undefined behaviour, as with ctypes.

use crate::symmetric::HostTensors;
use cudarc::driver::sys::{CUstream, CUstreamCaptureStatus};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError};
use mkernel::cudarc;
use mkernel::float8::F8E4M3;
use mkernel::half::{bf16, f16};
use mkernel::operands::{RawSlice, Rows};
use mkernel::spec::Dtype;
use mkernel::{Call, Communicator, Error, Operand, Operator, SymmetricSlice};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A contiguous tensor by its address.
#[derive(Clone, Copy)]
pub struct Tensor {
    pub operand: Operand,
    pub dtype: Dtype,
    pub address: u64,
    pub elems: usize,
}

impl Tensor {
    fn bytes(&self) -> usize {
        self.elems * self.dtype.bytes() as usize
    }
}

/// A tensor in the memory of a GPU.
enum Slice {
    Bf16(RawSlice<bf16>),
    Fp16(RawSlice<f16>),
    E4m3(RawSlice<F8E4M3>),
    Fp32(RawSlice<f32>),
    Int32(RawSlice<i32>),
}

/// Enqueues a call on the stream with the handle `stream`, or adds it to the graph into which the stream is captured.
///
/// # Safety
/// The stream belongs to `context`. The tensors are memory of its GPU that stays allocated until the work that is in the stream
/// now has ended, and in all replays of a graph.
pub unsafe fn enqueue(
    operator: &Operator,
    (context, stream): (&Arc<CudaContext>, u64),
    tensors: &[Tensor],
    rows: Rows,
) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller. The wrapper is dropped before this function returns.
    let stream = unsafe { context.wrap_borrowed_stream(stream as CUstream) };
    let status = stream
        .capture_status()
        .map_err(of_driver("cuStreamIsCapturing"))?;
    let is_captured = status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: guaranteed by the caller.
    unsafe { call(operator, &stream, tensors, rows, is_captured) }
}

/// The memory of a simulated GPU to which a tensor of the host is copied.
enum Copied {
    Own(CudaSlice<u8>),
    /// Symmetric memory, which has another owner.
    Symmetric(ManuallyDrop<CudaSlice<u8>>),
}

impl Copied {
    fn slice(&self) -> &CudaSlice<u8> {
        match self {
            Self::Own(slice) => slice,
            Self::Symmetric(slice) => slice,
        }
    }
}

/// Makes a call with tensors of the host on the simulated GPU of `communicator`, and waits for its end. Operands are copied to
/// the GPU, and results back. `symmetric` are the tensors that stand for symmetric memory.
///
/// # Safety
/// The tensors, and the word of [`Rows::At`], are memory of this process that no other thread writes during the call. No other
/// thread reads the results.
pub unsafe fn run_on_host(
    communicator: &Communicator,
    operator: &Operator,
    tensors: &[Tensor],
    rows: Rows,
    symmetric: &HostTensors,
) -> Result<(), Error> {
    let stream = communicator.default_stream();
    let copy = |tensor: &Tensor| {
        let (address, bytes) = (tensor.address, tensor.bytes());
        // SAFETY: guaranteed by the caller. A tensor that stands for symmetric memory lives during the call, so the memory does.
        unsafe {
            match symmetric.on_gpu(address, bytes).filter(|_| bytes > 0) {
                Some(on_gpu) => upload_to(&stream, address, bytes, on_gpu),
                None => upload(&stream, address, bytes).map(Copied::Own),
            }
        }
    };
    let mut copies = tensors.iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    let mut on_gpu = tensors.to_vec();
    for (tensor, copy) in on_gpu.iter_mut().zip(&copies) {
        tensor.address = copy.slice().device_ptr(&stream).0;
    }
    let rows = match rows {
        Rows::At(address) => {
            // SAFETY: guaranteed by the caller.
            copies.push(Copied::Own(unsafe {
                upload(&stream, address, size_of::<i32>())?
            }));
            Rows::At(copies[tensors.len()].slice().device_ptr(&stream).0)
        }
        rows => rows,
    };
    // SAFETY: the copies are memory of this GPU, and are dropped after the call has ended.
    unsafe { call(operator, &stream, &on_gpu, rows, false)? };
    communicator.synchronize(&stream)?;
    for (tensor, copy) in tensors.iter().zip(&copies) {
        if is_written(operator, tensor.operand) && tensor.elems > 0 {
            // SAFETY: guaranteed by the caller.
            let to = unsafe {
                std::slice::from_raw_parts_mut(tensor.address as *mut u8, tensor.bytes())
            };
            stream
                .memcpy_dtoh(&copy.slice().slice(..tensor.bytes()), to)
                .map_err(of_driver("copying a result"))?;
        }
    }
    stream
        .synchronize()
        .map_err(of_driver("copying the results"))
}

/// Copies bytes of the host to the GPU. A copy of nothing has a byte, since an allocation cannot be empty.
///
/// # Safety
/// The bytes are memory of this process that no other thread writes.
unsafe fn upload(
    stream: &Arc<CudaStream>,
    address: u64,
    bytes: usize,
) -> Result<CudaSlice<u8>, Error> {
    let copied = match bytes {
        0 => stream.alloc_zeros(1),
        _ => {
            // SAFETY: guaranteed by the caller.
            let from = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
            stream.clone_htod(from)
        }
    };
    copied.map_err(of_driver("copying an operand"))
}

/// Copies bytes of the host to symmetric memory of the GPU.
///
/// # Safety
/// The bytes are memory of this process that no other thread writes. The symmetric memory has the same size.
unsafe fn upload_to(
    stream: &Arc<CudaStream>,
    address: u64,
    bytes: usize,
    on_gpu: u64,
) -> Result<Copied, Error> {
    // SAFETY: guaranteed by the caller. `ManuallyDrop` leaves the memory to its owner.
    let (from, mut to) = unsafe {
        let from = std::slice::from_raw_parts(address as *const u8, bytes);
        let to = stream.upgrade_device_ptr::<u8>(on_gpu, bytes);
        (from, ManuallyDrop::new(to))
    };
    stream
        .memcpy_htod(from, &mut *to)
        .map_err(of_driver("copying an operand"))?;
    Ok(Copied::Symmetric(to))
}

/// Allocates symmetric memory for the stream with the handle `stream`. Returns the memory and its address.
///
/// # Safety
/// The stream belongs to the communicator's GPU, and lives as long as the memory. The stream is not used if the GPU is
/// simulated.
pub unsafe fn allocate(
    communicator: &Communicator,
    stream: u64,
    bytes: usize,
) -> Result<(SymmetricSlice<F8E4M3>, u64), Error> {
    let stream = match communicator.is_simulated() {
        true => communicator.default_stream(),
        // SAFETY: guaranteed by the caller.
        false => unsafe {
            communicator
                .context()
                .wrap_borrowed_stream(stream as CUstream)
        },
    };
    let slice = communicator.alloc::<F8E4M3>(&stream, bytes)?;
    let address = slice.device_ptr(&stream).0;
    Ok((slice, address))
}

/// Enqueues a call, or adds it to a graph if `is_captured`.
///
/// # Safety
/// As for [`enqueue`].
unsafe fn call(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    tensors: &[Tensor],
    rows: Rows,
    is_captured: bool,
) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    let slice = |tensor: &Tensor| unsafe { slice(stream, tensor) };
    let mut slices: Vec<Slice> = tensors.iter().map(slice).collect();
    let word = match rows {
        // SAFETY: guaranteed by the caller.
        Rows::At(address) => Some(unsafe { RawSlice::<i32>::new(stream, address, 1) }),
        _ => None,
    };
    let mut call = operator.call(stream);
    for (tensor, slice) in tensors.iter().zip(&mut slices) {
        call = pass(
            call,
            tensor.operand,
            slice,
            is_written(operator, tensor.operand),
        );
    }
    call = match (rows, &word) {
        (Rows::Count(rows), _) => call.rows(rows),
        (_, Some(word)) => call.rows_in(word),
        _ => call,
    };
    match is_captured {
        // SAFETY: guaranteed by the caller.
        true => unsafe { call.capture() },
        false => call.launch(),
    }
}

fn pass<'a>(call: Call<'a>, operand: Operand, slice: &'a mut Slice, written: bool) -> Call<'a> {
    match (slice, written) {
        (Slice::Bf16(slice), false) => call.read(operand, &*slice),
        (Slice::Fp16(slice), false) => call.read(operand, &*slice),
        (Slice::E4m3(slice), false) => call.read(operand, &*slice),
        (Slice::Fp32(slice), false) => call.read(operand, &*slice),
        (Slice::Int32(slice), false) => call.read(operand, &*slice),
        (Slice::Bf16(slice), true) => call.write(operand, slice),
        (Slice::Fp16(slice), true) => call.write(operand, slice),
        (Slice::E4m3(slice), true) => call.write(operand, slice),
        (Slice::Fp32(slice), true) => call.write(operand, slice),
        (Slice::Int32(slice), true) => call.write(operand, slice),
    }
}

/// Returns whether the kernel writes an operand.
fn is_written(operator: &Operator, operand: Operand) -> bool {
    let mut specs = operator.plan().operands().iter();
    specs.any(|spec| spec.operand == operand && spec.written)
}

/// # Safety
/// As for [`enqueue`].
unsafe fn slice(stream: &Arc<CudaStream>, tensor: &Tensor) -> Slice {
    let Tensor {
        dtype,
        address,
        elems,
        ..
    } = *tensor;
    // SAFETY: guaranteed by the caller.
    unsafe {
        match dtype {
            Dtype::Bf16 => Slice::Bf16(RawSlice::new(stream, address, elems)),
            Dtype::Fp16 => Slice::Fp16(RawSlice::new(stream, address, elems)),
            Dtype::E4m3 => Slice::E4m3(RawSlice::new(stream, address, elems)),
            Dtype::Fp32 => Slice::Fp32(RawSlice::new(stream, address, elems)),
            Dtype::Int32 => Slice::Int32(RawSlice::new(stream, address, elems)),
        }
    }
}

/// Waits for the work of the stream with the handle `stream`.
///
/// # Safety
/// The stream belongs to the communicator's GPU.
pub unsafe fn synchronize(communicator: &Communicator, stream: u64) -> Result<(), Error> {
    let context = communicator.context();
    // SAFETY: guaranteed by the caller. The wrapper is dropped before this function returns.
    let stream = unsafe { context.wrap_borrowed_stream(stream as CUstream) };
    communicator.synchronize(&stream)
}

fn of_driver(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |source| Error::Cuda { call, source }
}
