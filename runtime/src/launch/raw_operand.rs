//! [`RawOperand`]: an operand that is given by its address.

/// A row-major matrix in device memory. The element type is the type in the [`OperandSpec`](mkernel_spec::abi::OperandSpec).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOperand {
    /// The address of the first element, a multiple of 16, or of 4 for the scales of collectives.
    pub ptr: u64,
    /// The distance from one row to the next, in elements. The distance is at least the number of columns and a multiple of 8.
    /// An operand with one column, such as `lse` or `cu_seqlens`, is contiguous: with several rows its stride is 1.
    pub row_stride_elems: u64,
}
