//! Constants that host and device share.

/// The largest world of one node; arrays over ranks have this length.
pub const MAX_RANKS: usize = 8;

/// The most operands of a kernel.
pub const MAX_OPERANDS: usize = 12;

/// The distance between flags in bytes: a line of L2. A thread that polls one flag therefore does not delay the writer of another.
pub const FLAG_STRIDE_BYTES: u64 = 128;

/// The most buckets of an operator, which are kernels for different numbers of rows.
pub const MAX_BUCKETS: usize = 4;
