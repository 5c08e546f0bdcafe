//! [`View`]: a matrix in device memory.

use mkernel::{operands::RawOperand, spec::Dtype};
use std::ops::Range;

/// A row-major matrix in device memory, or a part of a matrix. A view does not own the memory.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The number of rows.
    pub rows: u64,
    /// The number of columns.
    pub cols: u64,
    /// The number of elements from the start of a row to the start of the next.
    pub stride: u64,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The address of the first element.
    pub address: u64,
}

impl View {
    /// Returns the matrix as an operand of a call.
    pub fn operand(&self) -> RawOperand {
        RawOperand {
            ptr: self.address,
            row_stride_elems: self.stride,
        }
    }

    /// Returns the first elements of the memory as a matrix of these sizes without gaps.
    pub fn reshaped(&self, rows: u64, cols: u64) -> Self {
        Self {
            rows,
            cols,
            stride: cols,
            ..*self
        }
    }

    /// Returns the part of the matrix in these rows and columns.
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
