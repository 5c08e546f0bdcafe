//! Limits that several kinds of operators have.

/// The largest M, N or K: tensor maps take 32-bit coordinates.
pub const MAX_DIM: u64 = i32::MAX as u64;

/// The largest number of elements of a matrix. With elements of two bytes, the matrix has half a TiB, more than the
/// memory of a GPU.
pub const MAX_ELEMS: u64 = 1 << 38;

/// The step of the number of columns of collectives, in elements. Threads read vectors of 16 bytes, which are 8 elements of two
/// bytes.
pub const DIM_STEP: u64 = 8;
