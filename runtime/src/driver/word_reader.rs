//! [`WordReader`]: reads single words of device memory while kernels run.

use super::call::bind;
use super::capture::Uncaptured;
use super::memory::Pinned;
use super::stream::Stream;
use crate::error::Error;
use cudarc::driver::CudaContext;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most words of one read.
pub(crate) const WORDS_OF_A_READ: usize = 64;

/// Reads single words of device memory into pinned memory, in a stream of its own.
pub(crate) struct WordReader {
    ctx: Arc<CudaContext>,
    /// The stream and the buffer. `None` after a read that has not ended in time, since its copies may still write the buffer.
    buffer: Mutex<Option<(Stream, Pinned)>>,
}

impl WordReader {
    pub fn new(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        let buffer = (
            Stream::new(ctx)?,
            Pinned::allocate(ctx, 4 * WORDS_OF_A_READ)?,
        );
        Ok(Self {
            ctx: ctx.clone(),
            buffer: Mutex::new(Some(buffer)),
        })
    }

    /// Returns the words at these addresses, at most [`WORDS_OF_A_READ`].
    ///
    /// # Safety
    /// The words must be mapped for this GPU until this returns, or for ever if it returns an error.
    pub unsafe fn read(&self, addresses: &[u64], timeout: Duration) -> Result<Vec<u32>, Error> {
        bind(&self.ctx)?;
        // Another thread may be capturing a stream of its own, which must not be affected.
        let _uncaptured = Uncaptured::new();
        let buffer = self.buffer.lock();
        let mut buffer = buffer.unwrap_or_else(PoisonError::into_inner);
        let Some((stream, words)) = buffer.as_ref() else {
            return Err(Error::StillBusy { waited: timeout });
        };
        let places = || (0..).step_by(4).zip(addresses.iter().take(WORDS_OF_A_READ));
        let copied = places().try_for_each(|(offset, from)| {
            // SAFETY: the caller keeps the source mapped. The buffer has room for this many words, and only the holder of
            // the lock uses it.
            unsafe { stream.copy(words.device_address() + offset, *from, 4) }
        });
        if let Err(error) = copied.and_then(|()| stream.wait(timeout)) {
            // The copies may still write to the buffer.
            std::mem::forget(buffer.take());
            return Err(error);
        }
        let read = |(offset, _): (u64, _)| words.word(offset as usize).load(Ordering::Acquire);
        Ok(places().map(read).collect())
    }
}
