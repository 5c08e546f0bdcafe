//! [`Copies`]: the copies that copy engines make for a kernel.

use serde::Serialize;

/// Copies that the host enqueues when the kernel rings the doorbell: for each chunk, the bytes and then the flag to
/// every peer.
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
    /// The region whose element `e % 2` has the gathered rows of epoch `e` in a peer's workspace.
    pub gathered_offset_bytes: [u64; 2],
    /// The flags of source rank 0 in a peer's workspace: u32 each, [`FLAG_STRIDE_BYTES`](crate::abi::FLAG_STRIDE_BYTES) apart.
    pub flags_offset_bytes: u64,
    /// Flags, and chunks, per source rank. In epoch `e` the flag behind each chunk becomes `e`.
    pub flags_per_source: u32,
}
