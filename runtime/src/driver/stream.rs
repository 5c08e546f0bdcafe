//! Streams, and the work other than kernels that is enqueued on them.

use super::call::{bind, check, named, warn};
use crate::error::Error;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A stream of the runtime. No other stream waits for this stream, and its work has priority over the work of other streams.
pub(crate) struct Stream {
    raw: sys::CUstream,
    ctx: Arc<CudaContext>,
}

// SAFETY: streams of the driver may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: see above.
unsafe impl Sync for Stream {}

impl Stream {
    // This does not use `CudaContext::new_stream`, which would enable event tracking for the user's slices.
    pub fn new(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        bind(ctx)?;
        let (_, greatest) = named(
            "cuCtxGetStreamPriorityRange",
            result::stream::get_priority_range(),
        )?;
        let kind = result::stream::StreamKind::NonBlocking;
        let raw = named(
            "cuStreamCreateWithPriority",
            result::stream::create_with_priority(kind, greatest),
        )?;
        Ok(Self {
            raw,
            ctx: ctx.clone(),
        })
    }

    /// Returns the handle of the driver.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Returns whether all work of the stream is done.
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: the stream is alive.
        unsafe { is_done(self.raw) }
    }

    /// Waits until all work of the stream is done.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let started = Instant::now();
        while !self.is_done()? {
            if started.elapsed() >= timeout {
                return Err(Error::StillBusy { waited: timeout });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Sets `bytes` bytes at `to` to zero.
    ///
    /// # Safety
    /// The range must be mapped until the stream is done.
    pub unsafe fn zero(&self, to: u64, bytes: usize) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        named("cuMemsetD8Async", unsafe {
            result::memset_d8_async(to, 0, bytes, self.raw)
        })
    }

    /// Copies between any two addresses that the GPU can access.
    ///
    /// # Safety
    /// Both ranges must be mapped until the stream is done, and nothing else may write them meanwhile.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(to, from, bytes, self.raw)
        })
    }

    /// Copies device memory at `from` to host memory.
    ///
    /// # Safety
    /// The source must be mapped, and the target must be alive, until the stream is done. Nothing else may access the target
    /// meanwhile.
    pub unsafe fn read(&self, to: &mut [u8], from: u64) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        named("cuMemcpyDtoHAsync", unsafe {
            result::memcpy_dtoh_async(to, from, self.raw)
        })
    }

    /// Copies `rows` rows of `row_bytes` bytes. The rows of the source are `from_pitch_bytes` apart; the rows of the
    /// destination are contiguous.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    pub unsafe fn copy_rows(
        &self,
        to: u64,
        from: u64,
        from_pitch_bytes: usize,
        row_bytes: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let request = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from,
            srcArray: null_mut(),
            srcPitch: from_pitch_bytes,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: to,
            dstArray: null_mut(),
            dstPitch: row_bytes,
            WidthInBytes: row_bytes,
            Height: rows,
        };
        // SAFETY: guaranteed by the caller.
        check("cuMemcpy2DAsync", unsafe {
            sys::cuMemcpy2DAsync_v2(&raw const request, self.raw)
        })
    }

    /// Writes a word after all earlier work of the stream.
    ///
    /// # Safety
    /// The word must be mapped until the stream is done.
    pub unsafe fn write_word(&self, to: u64, value: u32) -> Result<(), Error> {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: guaranteed by the caller.
        check("cuStreamWriteValue32", unsafe {
            sys::cuStreamWriteValue32_v2(self.raw, to, value, flags)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: this value owns the stream. The driver finishes the work of the stream before it frees the stream.
        warn(named("cuStreamDestroy", unsafe {
            result::stream::destroy(self.raw)
        }));
    }
}

/// Allows the calling thread to use streams while other threads capture.
pub(crate) fn ignore_captures_of_others() -> Result<(), Error> {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the pointer is to a live mode; only this thread is affected.
    check("cuThreadExchangeStreamCaptureMode", unsafe {
        sys::cuThreadExchangeStreamCaptureMode(&raw mut mode)
    })
}

/// Returns whether all work of a stream is done.
///
/// # Safety
/// `stream` must be alive.
pub(crate) unsafe fn is_done(stream: sys::CUstream) -> Result<bool, Error> {
    // SAFETY: guaranteed by the caller.
    match unsafe { sys::cuStreamQuery(stream) } {
        sys::CUresult::CUDA_SUCCESS => Ok(true),
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => check("cuStreamQuery", code).map(|()| true),
    }
}

/// Calls `function` once on a thread of the driver when the stream has done all work that is in it now, or when the GPU has
/// failed. `function` must not call the driver. If the context ends earlier, `function` is leaked.
///
/// # Safety
/// `stream` must be alive and must not be being captured.
pub(crate) unsafe fn call_back(
    stream: sys::CUstream,
    function: impl FnOnce() + Send + 'static,
) -> Result<(), Error> {
    type Function = Box<dyn FnOnce() + Send>;
    unsafe extern "C" fn call(_: sys::CUstream, _: sys::CUresult, data: *mut c_void) {
        // SAFETY: the driver passes the pointer below, once.
        let function = unsafe { Box::from_raw(data.cast::<Function>()) };
        // A panic must not cross the driver.
        let _ = catch_unwind(AssertUnwindSafe(*function));
    }
    let data = Box::into_raw(Box::new(Box::new(function) as Function));
    // Unlike cuLaunchHostFunc, this calls the function after a failure of the GPU too.
    // SAFETY: guaranteed by the caller; `call` takes this pointer.
    let code = unsafe { sys::cuStreamAddCallback(stream, Some(call), data.cast(), 0) };
    check("cuStreamAddCallback", code).inspect_err(|_| {
        // SAFETY: the driver has not taken the pointer.
        drop(unsafe { Box::from_raw(data) });
    })
}

/// Returns whether a stream is being captured into a graph.
///
/// # Safety
/// `stream` must be alive.
pub(crate) unsafe fn is_capturing(stream: sys::CUstream) -> Result<bool, Error> {
    // SAFETY: guaranteed by the caller.
    let status = named("cuStreamIsCapturing", unsafe {
        result::stream::is_capturing(stream)
    })?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// A stream of the caller.
#[derive(Clone)]
pub(crate) struct UserStream {
    raw: sys::CUstream,
    /// The owner, which keeps the stream alive. `None` if the caller has promised to keep the stream alive.
    owner: Option<Arc<CudaStream>>,
}

// SAFETY: streams of the driver may be used from any thread.
unsafe impl Send for UserStream {}

impl UserStream {
    pub fn of(stream: &Arc<CudaStream>) -> Self {
        Self {
            raw: stream.cu_stream(),
            owner: Some(stream.clone()),
        }
    }

    /// Wraps a stream that the caller keeps alive as long as this value and its clones are used.
    pub fn raw(raw: sys::CUstream) -> Self {
        Self { raw, owner: None }
    }

    pub fn handle(&self) -> sys::CUstream {
        self.raw
    }

    pub fn is_owned(&self) -> bool {
        self.owner.is_some()
    }
}

impl PartialEq for UserStream {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

/// A point in a stream that another stream can wait for.
pub(crate) struct Event(cudarc::driver::CudaEvent);

impl Event {
    pub fn new(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        named("cuEventCreate", ctx.new_event(None)).map(Self)
    }

    /// Returns an event behind all work that is in `stream` now, or `None` if the stream is being captured.
    ///
    /// # Safety
    /// The stream must be alive and belong to the context.
    pub unsafe fn behind(
        ctx: &Arc<CudaContext>,
        stream: &UserStream,
    ) -> Result<Option<Self>, Error> {
        bind(ctx)?;
        // SAFETY: guaranteed by the caller.
        if unsafe { is_capturing(stream.handle())? } {
            return Ok(None);
        }
        let event = Self::new(ctx)?;
        // SAFETY: guaranteed by the caller.
        unsafe { event.record(stream.handle())? };
        Ok(Some(event))
    }

    /// Records the event after all work that is in `stream` now.
    ///
    /// # Safety
    /// The stream must be alive and belong to the event's context.
    pub unsafe fn record(&self, stream: sys::CUstream) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        named("cuEventRecord", unsafe {
            result::event::record(self.0.cu_event(), stream)
        })
    }

    /// Returns whether all work before the event is done.
    pub fn is_over(&self) -> Result<bool, Error> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0.cu_event()) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Makes later work in `later` wait for all work that is in `earlier` now.
    ///
    /// # Safety
    /// Both streams must be alive and belong to the event's context.
    pub unsafe fn order(&self, earlier: sys::CUstream, later: sys::CUstream) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.record(earlier)?;
            self.hold_back(later)
        }
    }

    /// Makes later work in `stream` wait for the work before the event.
    ///
    /// # Safety
    /// The stream must be alive and belong to the event's context.
    pub unsafe fn hold_back(&self, stream: sys::CUstream) -> Result<(), Error> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: guaranteed by the caller.
        named("cuStreamWaitEvent", unsafe {
            result::stream::wait_event(stream, self.0.cu_event(), flags)
        })
    }
}
