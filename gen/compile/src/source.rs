//! [`CudaSource`]: the text of one kernel.

/// A kernel in CUDA, as rendered. It includes nothing but [`device_headers`](crate::device_headers).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaSource {
    /// Kernel symbol and file stem.
    pub id: String,
    /// The text.
    pub text: String,
}
