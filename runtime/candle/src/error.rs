//! Errors of mkernel as errors of candle.

use candle_core::Error;
use mkernel::error::CallError;

/// Converts an error of mkernel. [`cause`] gets it back.
pub(crate) fn of_mkernel(error: mkernel::Error) -> Error {
    Error::Cuda(Box::new(error)).bt()
}

/// Creates an error of the caller's tensors. [`cause`] has its kind.
pub(crate) fn of_tensors(reason: String) -> Error {
    of_mkernel(mkernel::Error::Call(CallError::Tensors(reason)))
}

/// Returns an error of the caller's tensors, with a text that `format!` makes.
macro_rules! refuse {
    ($($text:tt)+) => {
        return Err($crate::error::of_tensors(format!($($text)+)))
    };
}
pub(crate) use refuse;

/// Converts an error of cudarc.
pub(crate) fn of_driver(error: mkernel::cudarc::driver::DriverError) -> Error {
    Error::Cuda(Box::new(error)).bt()
}

/// Returns the error of mkernel that is the cause of an error of candle, if there is one. The
/// [`kind`](mkernel::Error::kind) of the error determines the remedy.
///
/// ```
/// # use mkernel::cudarc::driver::CudaStream;
/// fn is_usable(result: &candle_core::Result<()>) -> bool {
///     let error = result.as_ref().err().and_then(mkernel_candle::cause);
///     !matches!(error.map(mkernel::Error::kind), Some(mkernel::ErrorKind::Timeout | mkernel::ErrorKind::RankLost))
/// }
/// # assert!(is_usable(&Ok(())));
/// ```
#[must_use]
pub fn cause(error: &Error) -> Option<&mkernel::Error> {
    match error {
        Error::Cuda(error) => error.downcast_ref(),
        Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref(),
        Error::Context { inner, .. }
        | Error::WithPath { inner, .. }
        | Error::WithBacktrace { inner, .. } => cause(inner),
        _ => None,
    }
}
