//! [`RawOperand`]: an operand as an address.

/// A row-major matrix in device memory. Its element type is that of the
/// [`OperandSpec`](mkernel_spec::abi::OperandSpec).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOperand {
    /// The address of the first element, a multiple of 16.
    pub ptr: u64,
    /// The distance from one row to the next in elements. It is at least the number of columns and a multiple of 8. Numbers,
    /// which have one column, lie one after the other: their stride does not count.
    pub row_stride_elems: u64,
}
