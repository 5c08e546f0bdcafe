//! The names and the meanings of the error codes that the simulated driver returns.

use crate::driver::result::Code;
use std::ffi::CStr;

/// Returns the name of a code.
pub(super) fn error_name(error: Code) -> &'static CStr {
    match error {
        Code::CUDA_SUCCESS => c"CUDA_SUCCESS",
        Code::CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        Code::CUDA_ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        Code::CUDA_ERROR_DEINITIALIZED => c"CUDA_ERROR_DEINITIALIZED",
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        Code::CUDA_ERROR_INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        Code::CUDA_ERROR_INVALID_IMAGE => c"CUDA_ERROR_INVALID_IMAGE",
        Code::CUDA_ERROR_INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        Code::CUDA_ERROR_OPERATING_SYSTEM => c"CUDA_ERROR_OPERATING_SYSTEM",
        Code::CUDA_ERROR_INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        Code::CUDA_ERROR_NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        Code::CUDA_ERROR_NOT_READY => c"CUDA_ERROR_NOT_READY",
        Code::CUDA_ERROR_CONTEXT_IS_DESTROYED => c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        Code::CUDA_ERROR_LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
        Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        Code::CUDA_ERROR_NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        Code::CUDA_ERROR_CAPTURED_EVENT => c"CUDA_ERROR_CAPTURED_EVENT",
        Code::CUDA_ERROR_ILLEGAL_STATE => c"CUDA_ERROR_ILLEGAL_STATE",
        Code::CUDA_ERROR_UNKNOWN => c"CUDA_ERROR_UNKNOWN",
        _ => c"an error of CUDA",
    }
}

/// Returns the meaning of a code for simulated GPUs.
pub(super) fn error_text(error: Code) -> &'static CStr {
    match error {
        Code::CUDA_SUCCESS => c"no error",
        Code::CUDA_ERROR_INVALID_VALUE => c"invalid argument (simulated GPU)",
        Code::CUDA_ERROR_OUT_OF_MEMORY => c"out of memory (simulated GPU)",
        Code::CUDA_ERROR_DEINITIALIZED => c"the simulated host has been closed",
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            c"this simulated GPU does not belong to a job; use the GPUs of a Communicator"
        }
        Code::CUDA_ERROR_INVALID_DEVICE => c"there is no such simulated GPU",
        Code::CUDA_ERROR_INVALID_IMAGE => {
            c"the image is not a kernel for simulated GPUs; it may have been compiled for a real GPU"
        }
        Code::CUDA_ERROR_INVALID_CONTEXT => c"no context is current, or the context is not one of simulated GPUs",
        Code::CUDA_ERROR_INVALID_HANDLE => {
            c"the handle is not one of simulated GPUs, or was destroyed"
        }
        Code::CUDA_ERROR_LAUNCH_FAILED => {
            c"a kernel failed on this simulated GPU; the reason is in the simulator's findings"
        }
        Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
            c"the CTAs of a cooperative launch do not fit on this simulated GPU at once"
        }
        Code::CUDA_ERROR_NOT_SUPPORTED => c"simulated GPUs do not support this",
        Code::CUDA_ERROR_UNKNOWN => c"the simulator failed; the program's output has its message",
        other => error_name(other),
    }
}
