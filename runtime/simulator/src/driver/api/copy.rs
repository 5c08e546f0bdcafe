//! Copies, fills and written words.

use super::{Here, answer, enqueue, ensure_not_captured, here, stream};
use crate::driver::memory::Place;
use crate::driver::queue::{Point, Step, StreamId};
use crate::driver::{Code, Result, Work};
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUmemorytype, CUstream};
use std::ffi::{c_uchar, c_uint, c_void};
use std::ptr::null_mut;

/// Bytes from one address to another; each may be a GPU's, pinned, or any of the program's.
#[derive(Clone, Copy)]
struct Span {
    to: u64,
    from: u64,
    bytes: u64,
}

impl Span {
    fn new(to: u64, from: u64, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { to, from, bytes }
    }

    /// Enqueues the copy. One to memory that is not pinned is over when this returns, one from there has been read.
    ///
    /// # Safety
    /// What is neither a GPU's nor pinned must be memory that may be read or written.
    unsafe fn enqueue(self, on: CUstream) -> Result<()> {
        let (here, id) = stream(on)?;
        if self.bytes == 0 {
            return Ok(());
        }
        let (to, from) = {
            let state = here.host.call_on(id.device)?;
            let place = |address| state.memory.place(address, self.bytes);
            (place(self.to)?, place(self.from)?)
        };
        match (to, from) {
            (Place::Other, Place::Other) => Err(Code::CUDA_ERROR_INVALID_VALUE),
            // SAFETY: the target is the program's, by the caller.
            (Place::Other, _) => unsafe { self.download(&here, id) },
            // SAFETY: the source is the program's, by the caller.
            (_, Place::Other) => unsafe { self.upload(&here, id) },
            _ => {
                let work = Work::Copy {
                    to: self.to,
                    from: self.from,
                    to_pitch_bytes: self.bytes,
                    from_pitch_bytes: self.bytes,
                    row_bytes: self.bytes,
                    rows: 1,
                };
                enqueue(&here, id, Step::Work(work)).map(drop)
            }
        }
    }

    /// # Safety
    /// The source must be readable.
    unsafe fn upload(self, here: &Here, id: StreamId) -> Result<()> {
        // A graph would read it when it is launched, when it may be gone.
        ensure_not_captured(here, id)?;
        // SAFETY: by the caller.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.from as *const u8, self.bytes as usize) };
        let work = Work::Upload {
            to: self.to,
            bytes: bytes.to_vec(),
        };
        enqueue(here, id, Step::Work(work)).map(drop)
    }

    /// # Safety
    /// The target must be writable.
    unsafe fn download(self, here: &Here, id: StreamId) -> Result<()> {
        ensure_not_captured(here, id)?;
        let work = Work::Download {
            from: self.from,
            bytes: self.bytes,
        };
        let ticket = enqueue(here, id, Step::Work(work))?.ok_or(Code::CUDA_ERROR_UNKNOWN)?;
        here.host.wait(id.device, Point::end_of(&ticket))?;
        let bytes = ticket.get().map(|end| end.take_read()).unwrap_or_default();
        if bytes.len() as u64 != self.bytes {
            return Err(Code::CUDA_ERROR_UNKNOWN);
        }
        // SAFETY: by the caller; the lengths are equal.
        unsafe { (self.to as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// # Safety
    /// As for [`Self::enqueue`].
    unsafe fn copy_now(self) -> Result<()> {
        let here = here()?;
        // SAFETY: by the caller.
        unsafe { self.enqueue(null_mut())? };
        let point = here
            .host
            .call()?
            .queues
            .point(StreamId::default_of(here.device));
        here.host.wait(here.device, point)
    }
}

pub(super) unsafe extern "C" fn cuMemcpyHtoD_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to, from as u64, bytes).copy_now() })
}

pub(super) unsafe extern "C" fn cuMemcpyDtoH_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to as u64, from, bytes).copy_now() })
}

/// Like the driver, does not wait.
pub(super) unsafe extern "C" fn cuMemcpyDtoD_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to, from, bytes).enqueue(null_mut()) })
}

pub(super) unsafe extern "C" fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to, from, bytes).copy_now() })
}

pub(super) unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to, from as u64, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to as u64, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyAsync(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the caller.
    answer(|| unsafe { Span::new(to, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    _to_context: CUcontext,
    from: CUdeviceptr,
    _from_context: CUcontext,
    bytes: usize,
    on: CUstream,
) -> Code {
    // SAFETY: by the caller. Addresses say whose memory they are.
    answer(|| unsafe { Span::new(to, from, bytes).enqueue(on) })
}

pub(super) unsafe extern "C" fn cuMemcpy2DAsync_v2(
    request: *const CUDA_MEMCPY2D,
    on: CUstream,
) -> Code {
    answer(|| {
        // SAFETY: by the caller.
        let request = unsafe { request.as_ref() }.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let (here, id) = stream(on)?;
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
        let state = here.host.call_on(id.device)?;
        for (address, pitch_bytes) in [(to, to_pitch_bytes), (from, from_pitch_bytes)] {
            let whole = (rows - 1)
                .checked_mul(pitch_bytes)
                .and_then(|n| n.checked_add(row_bytes));
            let whole = whole.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
            if state.memory.place(address, whole)? == Place::Other {
                return Err(Code::CUDA_ERROR_INVALID_VALUE);
            }
        }
        drop(state);
        enqueue(&here, id, Step::Work(work)).map(drop)
    })
}

/// The rows that are to be copied, from GPU to GPU; a fill of nothing if there are none.
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
    answer(|| fill(to, value, bytes, null_mut()))
}

pub(super) unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: c_uchar,
    bytes: usize,
    on: CUstream,
) -> Code {
    answer(|| fill(to, value, bytes, on))
}

fn fill(to: u64, value: u8, bytes: usize, on: CUstream) -> Result<()> {
    let (here, id) = stream(on)?;
    let bytes = bytes as u64;
    if bytes == 0 {
        return Ok(());
    }
    here.ensure_accessible(to, bytes)?;
    enqueue(&here, id, Step::Work(Work::Fill { to, value, bytes })).map(drop)
}

pub(super) unsafe extern "C" fn cuStreamWriteValue32_v2(
    on: CUstream,
    to: CUdeviceptr,
    value: u32,
    _flags: c_uint,
) -> Code {
    answer(|| {
        let (here, id) = stream(on)?;
        if !to.is_multiple_of(4) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        here.ensure_accessible(to, 4)?;
        enqueue(&here, id, Step::Work(Work::Write { to, value })).map(drop)
    })
}

impl Here {
    fn ensure_accessible(&self, address: u64, bytes: u64) -> Result<()> {
        match self.host.call()?.memory.place(address, bytes)? {
            Place::Device | Place::Pinned => Ok(()),
            Place::Other => Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    }
}
