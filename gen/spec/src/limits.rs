//! Limits that several kinds of operators have.

/// The largest M, N or K: tensor maps take 32-bit coordinates.
pub const MAX_DIM: u64 = i32::MAX as u64;

/// The most elements of one matrix: half a TiB of two bytes each, more than a GPU has.
pub const MAX_ELEMS: u64 = 1 << 38;

/// The step of the number of columns of collectives, in elements. Threads read vectors of 16 bytes, which are 8 elements of two
/// bytes.
pub const DIM_STEP: u64 = 8;
