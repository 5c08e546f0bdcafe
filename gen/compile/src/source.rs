//! [`CudaSource`]: the text of one kernel.

use mkernel_spec::Target;

/// A kernel in CUDA, as rendered. It includes nothing but the [`headers`](crate::headers) of its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaSource {
    /// Kernel symbol and file stem.
    pub id: String,
    /// What it is to be compiled to. The same text can be compiled to any.
    pub target: Target,
    /// The text.
    pub text: String,
}
