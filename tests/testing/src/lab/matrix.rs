//! Matrices in device memory.

use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::{Dtype, RawOperand};
use std::ops::{Deref, Range};

/// A matrix in device memory, row-major; or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub rows: u64,
    pub cols: u64,
    pub stride: u64,
    pub dtype: Dtype,
    pub(super) address: u64,
}

impl View {
    pub fn operand(&self) -> RawOperand {
        RawOperand {
            ptr: self.address,
            row_stride_elems: self.stride,
        }
    }

    pub fn part(&self, rows: Range<u64>, cols: Range<u64>) -> Self {
        Self {
            rows: rows.end - rows.start,
            cols: cols.end - cols.start,
            stride: self.stride,
            dtype: self.dtype,
            address: self.address + (rows.start * self.stride + cols.start) * self.dtype.bytes(),
        }
    }
}

/// A matrix and its memory: of fp32, twice as many elements.
pub struct Matrix {
    pub memory: CudaSlice<bf16>,
    pub view: View,
}

impl Deref for Matrix {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}
