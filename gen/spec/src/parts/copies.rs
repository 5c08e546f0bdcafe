//! [`Copies`]: what copy engines do for a kernel.

use serde::Serialize;

/// Copies that the host enqueues when the kernel rings the doorbell: for each chunk the same bytes to every peer, then its flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// Bytes of a row; rows are contiguous in the gathered buffer.
    pub row_bytes: u64,
    /// Rows of a chunk, which is one copy; chunk `i` is rows `i·rows ..` of the shard.
    pub rows: u32,
    /// Rows of a full shard.
    pub shard_rows: u64,
    /// Rows over all ranks.
    pub total_rows: u64,
    /// Where epoch `e`'s gathered rows start in a peer's workspace: element `e % 2`.
    pub gathered_offset_bytes: [u64; 2],
    /// Where the flags of source rank 0 start in a peer's workspace; u32 each,
    /// [`FLAG_STRIDE_BYTES`](crate::abi::FLAG_STRIDE_BYTES) apart.
    pub flags_offset_bytes: u64,
    /// Flags, and chunks, per source rank. In epoch `e` the flag behind each chunk becomes `e`.
    pub flags_per_source: u32,
}
