//! Copies, fills, and writes of words.

use super::call::{TargetGpu, current_gpu, driver_call, enqueue, ensure_not_captured, stream};
use crate::driver::Work;
use crate::driver::address_space::MemorySpace;
use crate::driver::completion::StreamPoint;
use crate::driver::result::{Code, Result};
use crate::driver::stream::StreamOp;
use crate::driver::streams::StreamId;
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUmemorytype, CUstream};
use std::ffi::{c_uchar, c_uint, c_void};
use std::ptr::null_mut;

/// A copy of contiguous bytes. Both addresses may be memory of a GPU, pinned memory, or other memory of the program.
#[derive(Clone, Copy)]
struct LinearCopy {
    to: u64,
    from: u64,
    bytes: u64,
}

impl LinearCopy {
    fn new(to: u64, from: u64, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { to, from, bytes }
    }

    /// Enqueues the copy. If the target is memory of the program that is not pinned, the copy is complete on return. If
    /// the source is such memory, it has been read on return.
    ///
    /// # Safety
    /// Addresses that are neither memory of a GPU nor pinned must be readable or writable memory of the program.
    unsafe fn enqueue(self, on: CUstream) -> Result<()> {
        let (gpu, id) = stream(on)?;
        if self.bytes == 0 {
            return Ok(());
        }
        let (to, from) = {
            let state = gpu.host.call_on(id.device)?;
            let space_of = |address| state.memory.space_of(address, self.bytes);
            (space_of(self.to)?, space_of(self.from)?)
        };
        match (to, from) {
            (MemorySpace::Unregistered, MemorySpace::Unregistered) => {
                Err(Code::CUDA_ERROR_INVALID_VALUE)
            }
            // SAFETY: the caller guarantees that the target is writable memory of the program.
            (MemorySpace::Unregistered, _) => unsafe { self.download(&gpu, id) },
            // SAFETY: the caller guarantees that the source is readable memory of the program.
            (_, MemorySpace::Unregistered) => unsafe { self.upload(&gpu, id) },
            _ => {
                let work = Work::Copy {
                    to: self.to,
                    from: self.from,
                    to_pitch_bytes: self.bytes,
                    from_pitch_bytes: self.bytes,
                    row_bytes: self.bytes,
                    rows: 1,
                };
                enqueue(&gpu, id, StreamOp::Work(work)).map(drop)
            }
        }
    }

    /// Copies memory of the program to a GPU.
    ///
    /// # Safety
    /// The source must be readable.
    unsafe fn upload(self, gpu: &TargetGpu, id: StreamId) -> Result<()> {
        // A graph would read the memory at each launch, when it may have been freed.
        ensure_not_captured(gpu, id)?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.from as *const u8, self.bytes as usize) };
        let work = Work::Upload {
            to: self.to,
            bytes: bytes.to_vec(),
        };
        enqueue(gpu, id, StreamOp::Work(work)).map(drop)
    }

    /// Copies memory of a GPU to the program, and waits for the copy.
    ///
    /// # Safety
    /// The target must be writable.
    unsafe fn download(self, gpu: &TargetGpu, id: StreamId) -> Result<()> {
        ensure_not_captured(gpu, id)?;
        let work = Work::Download {
            from: self.from,
            bytes: self.bytes,
        };
        let completion = enqueue(gpu, id, StreamOp::Work(work))?.ok_or(Code::CUDA_ERROR_UNKNOWN)?;
        gpu.host.wait(id.device, StreamPoint::end_of(&completion))?;
        let bytes = completion
            .get()
            .map(|end| end.take_read())
            .unwrap_or_default();
        if bytes.len() as u64 != self.bytes {
            return Err(Code::CUDA_ERROR_UNKNOWN);
        }
        // SAFETY: the caller guarantees that the target is writable. The lengths are equal.
        unsafe { (self.to as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Enqueues the copy on the default stream and waits for it.
    ///
    /// # Safety
    /// As for [`Self::enqueue`].
    unsafe fn copy_now(self) -> Result<()> {
        let gpu = current_gpu()?;
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        unsafe { self.enqueue(null_mut())? };
        let point = gpu
            .host
            .call()?
            .streams
            .point(StreamId::default_of(gpu.device));
        gpu.host.wait(gpu.device, point)
    }
}

pub(super) unsafe extern "C" fn cuMemcpyHtoD_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to, from as u64, bytes).copy_now() })
}

pub(super) unsafe extern "C" fn cuMemcpyDtoH_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to as u64, from, bytes).copy_now() })
}

/// Copies without waiting for the copy, as the real driver does.
pub(super) unsafe extern "C" fn cuMemcpyDtoD_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to, from, bytes).enqueue(null_mut()) })
}

pub(super) unsafe extern "C" fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to, from, bytes).copy_now() })
}

pub(super) unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to, from as u64, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to as u64, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyAsync(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    driver_call(|| unsafe { LinearCopy::new(to, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    _to_context: CUcontext,
    from: CUdeviceptr,
    _from_context: CUcontext,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the contract of the driver's function, which the caller upholds. Addresses say whose memory they are.
    driver_call(|| unsafe { LinearCopy::new(to, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpy2DAsync_v2(
    request: *const CUDA_MEMCPY2D,
    on: CUstream,
) -> Code {
    driver_call(|| {
        // SAFETY: by the contract of the driver's function, which the caller upholds.
        let request = unsafe { request.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let (gpu, id) = stream(on)?;
        let work = rows(request)?;
        let Work::Copy {
            to,
            from,
            to_pitch_bytes,
            from_pitch_bytes,
            row_bytes,
            rows,
        } = work
        else {
            return Ok(());
        };
        let state = gpu.host.call_on(id.device)?;
        for (address, pitch_bytes) in [(to, to_pitch_bytes), (from, from_pitch_bytes)] {
            let whole = (rows - 1)
                .checked_mul(pitch_bytes)
                .and_then(|n| n.checked_add(row_bytes));
            let whole = whole.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
            if state.memory.space_of(address, whole)? == MemorySpace::Unregistered {
                return Err(Code::CUDA_ERROR_INVALID_VALUE);
            }
        }
        drop(state);
        enqueue(&gpu, id, StreamOp::Work(work)).map(drop)
    })
}

/// Returns the copy of rows that `request` describes, from GPU to GPU. Without rows, returns a fill of 0 bytes.
fn rows(request: &CUDA_MEMCPY2D) -> Result<Work> {
    let is_device = |kind| {
        matches!(
            kind,
            CUmemorytype::CU_MEMORYTYPE_DEVICE | CUmemorytype::CU_MEMORYTYPE_UNIFIED
        )
    };
    if !is_device(request.srcMemoryType) || !is_device(request.dstMemoryType) {
        return Err(Code::CUDA_ERROR_NOT_SUPPORTED);
    }
    let (width, height) = (request.WidthInBytes as u64, request.Height as u64);
    if width == 0 || height == 0 {
        return Ok(Work::Fill {
            to: 0,
            value: 0,
            bytes: 0,
        });
    }
    let first = |base: u64, pitch: usize, x: usize, y: usize| {
        let is_long_enough = pitch >= x.saturating_add(request.WidthInBytes);
        let offset = (pitch as u64)
            .checked_mul(y as u64)
            .and_then(|rows| rows.checked_add(x as u64));
        let address = offset.and_then(|offset| base.checked_add(offset));
        address
            .filter(|_| is_long_enough)
            .ok_or(Code::CUDA_ERROR_INVALID_VALUE)
    };
    Ok(Work::Copy {
        to: first(
            request.dstDevice,
            request.dstPitch,
            request.dstXInBytes,
            request.dstY,
        )?,
        from: first(
            request.srcDevice,
            request.srcPitch,
            request.srcXInBytes,
            request.srcY,
        )?,
        to_pitch_bytes: request.dstPitch as u64,
        from_pitch_bytes: request.srcPitch as u64,
        row_bytes: width,
        rows: height,
    })
}

pub(super) unsafe extern "C" fn cuMemsetD8_v2(
    to: CUdeviceptr,
    value: c_uchar,
    bytes: usize,
) -> Code {
    driver_call(|| fill(to, value, bytes, null_mut()))
}

pub(super) unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: c_uchar,
    bytes: usize,
    on: CUstream,
) -> Code {
    driver_call(|| fill(to, value, bytes, on))
}

fn fill(to: u64, value: u8, bytes: usize, on: CUstream) -> Result<()> {
    let (gpu, id) = stream(on)?;
    let bytes = bytes as u64;
    if bytes == 0 {
        return Ok(());
    }
    gpu.ensure_accessible(to, bytes)?;
    enqueue(&gpu, id, StreamOp::Work(Work::Fill { to, value, bytes })).map(drop)
}

pub(super) unsafe extern "C" fn cuStreamWriteValue32_v2(
    on: CUstream,
    to: CUdeviceptr,
    value: u32,
    _flags: c_uint,
) -> Code {
    driver_call(|| {
        let (gpu, id) = stream(on)?;
        if !to.is_multiple_of(4) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        gpu.ensure_accessible(to, 4)?;
        enqueue(&gpu, id, StreamOp::Work(Work::Write { to, value })).map(drop)
    })
}

impl TargetGpu {
    /// Fails if a range is not memory that GPUs can access.
    fn ensure_accessible(&self, address: u64, bytes: u64) -> Result<()> {
        match self.host.call()?.memory.space_of(address, bytes)? {
            MemorySpace::Device | MemorySpace::PinnedHost => Ok(()),
            MemorySpace::Unregistered => Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    }
}
