//! Copies to shared memory by `cp.async` that a thread has issued and has not waited for.

/// The largest number of bytes that one `cp.async` copies.
pub const ASYNC_COPY_BYTES: usize = 16;

/// The copies of a thread that it has not waited for.
#[derive(Debug, Default)]
pub struct AsyncCopies {
    /// The number of committed groups.
    pub committed: u32,
    pub copies: Vec<AsyncCopy>,
}

/// A copy whose source has been read and whose target has not been written yet.
#[derive(Debug)]
pub struct AsyncCopy {
    pub group: u32,
    pub to: u32,
    pub data: [u8; ASYNC_COPY_BYTES],
    pub pc: u64,
}
