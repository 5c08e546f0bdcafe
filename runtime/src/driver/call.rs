//! Helpers for all calls of the CUDA driver: errors, and the current context.

use crate::error::{Error, with_causes};
use cudarc::driver::{CudaContext, DriverError, sys};

/// Adds the name of the call to its error.
pub(crate) fn named<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, Error> {
    result.map_err(|source| Error::Cuda { call, source })
}

pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<(), Error> {
    named(call, code.result())
}

/// Logs the error of a call in a `drop`, which cannot return it.
pub(super) fn warn(result: Result<(), Error>) {
    if let Err(error) = result {
        tracing::warn!(
            error = with_causes(&error),
            "a call failed while freeing a resource"
        );
    }
}

/// Makes the context current on this thread.
pub(crate) fn bind(ctx: &CudaContext) -> Result<(), Error> {
    named(
        "making the context current, or an earlier call in it,",
        ctx.bind_to_thread(),
    )
}

/// Returns whether the error is fatal for the context: nothing runs in it any more, and nothing ever will.
pub(crate) fn has_ended_context(error: &Error) -> bool {
    use sys::CUresult as Code;
    let Error::Cuda { source, .. } = error else {
        return false;
    };
    matches!(
        source.0,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_CONTAINED
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_DEINITIALIZED
    )
}
