//! [`CopyStreams`]: the streams on which copies and flags are enqueued.

use super::schedule::CopyAddresses;
use crate::driver::{Event, Stream};
use crate::error::Error;
use crate::report::Page;
use cudarc::driver::CudaContext;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One stream per peer, since one copy engine alone does not saturate the links.
#[derive(Default)]
pub(super) struct CopyStreams {
    by_distance: Vec<Stream>,
    /// Whether the driver has refused to write words to the memory of peers.
    refused: AtomicBool,
}

impl CopyStreams {
    pub fn new(ctx: &Arc<CudaContext>, world: u32) -> Result<Self, Error> {
        let by_distance = (1..world)
            .map(|_| Stream::new(ctx))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            by_distance,
            refused: AtomicBool::new(false),
        })
    }

    pub fn to(&self, peer: u32, rank: u32) -> &Stream {
        let world = self.by_distance.len() + 1;
        let distance = (rank as usize + world - peer as usize) % world;
        &self.by_distance[distance.max(1) - 1]
    }

    /// Returns whether all work of the streams is done.
    pub fn are_done(&self) -> Result<bool, Error> {
        for stream in &self.by_distance {
            if !stream.is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Records events after all work that is in the streams now.
    pub fn ends(&self, ctx: &Arc<CudaContext>) -> Result<Vec<Event>, Error> {
        let end = |stream: &Stream| {
            let event = Event::new(ctx)?;
            // SAFETY: the stream is alive.
            unsafe { event.record(stream.raw())? };
            Ok(event)
        };
        self.by_distance.iter().map(end).collect()
    }

    /// # Safety
    /// The source and the destination must stay mapped until the stream is done.
    pub unsafe fn copy(&self, stream: &Stream, copy: &CopyAddresses) -> Result<(), Error> {
        let CopyAddresses {
            to,
            from,
            pitch_bytes,
            row_bytes,
            rows,
            ..
        } = *copy;
        if rows == 0 {
            return Ok(());
        }
        if pitch_bytes == row_bytes {
            // SAFETY: guaranteed by the caller.
            return unsafe { stream.copy(to, from, (rows * row_bytes) as usize) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            stream.copy_rows(
                to,
                from,
                pitch_bytes as usize,
                row_bytes as usize,
                rows as usize,
            )
        }
    }

    /// Writes `epoch` to the flag at `to` after the stream's earlier copies.
    ///
    /// # Safety
    /// The flag and `page` must stay alive until the stream is done.
    pub unsafe fn write_flag(
        &self,
        stream: &Stream,
        to: u64,
        epoch: u32,
        page: &Page,
    ) -> Result<(), Error> {
        if !self.refused.load(Ordering::Relaxed) {
            // SAFETY: guaranteed by the caller.
            match unsafe { stream.write_word(to, epoch) } {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let error = crate::error::with_causes(&error);
                    tracing::warn!(
                        error,
                        "the driver refuses to write flags to peers, so the flags are copied"
                    );
                    self.refused.store(true, Ordering::Relaxed);
                }
            }
        }
        // SAFETY: guaranteed by the caller. The number of words is the number of calls for which a word keeps its
        // value.
        unsafe { stream.copy(to, page.flag_word(epoch), 4) }
    }
}
