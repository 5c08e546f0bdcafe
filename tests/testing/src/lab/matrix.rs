//! Matrices in device memory.

use mkernel::SymmetricSlice;
use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel_measure::View;
use std::ops::Deref;

/// A matrix that owns its memory.
pub struct Matrix {
    /// The memory. An element of fp32 takes two elements of this slice.
    pub memory: CudaSlice<bf16>,
    /// The whole matrix.
    pub view: View,
}

/// A matrix in symmetric memory, whose rows are contiguous.
pub struct SymmetricMatrix {
    /// The memory. An element of fp32 takes two elements of this slice.
    pub memory: SymmetricSlice<bf16>,
    /// The whole matrix.
    pub view: View,
}

impl Deref for Matrix {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}
