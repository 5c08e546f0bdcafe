//! The streams on which copies and flags travel.

use super::schedule::Transfer;
use crate::driver::{Event, Stream};
use crate::error::Error;
use crate::report::Page;
use cudarc::driver::CudaContext;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stream per peer, since one copy engine fills only part of the links.
#[derive(Default)]
pub(super) struct Streams {
    by_distance: Vec<Stream>,
    /// Whether the driver refuses to write words to peers.
    refused: AtomicBool,
}

impl Streams {
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

    /// Whether all that is in them is over.
    pub fn are_done(&self) -> Result<bool, Error> {
        for stream in &self.by_distance {
            if !stream.is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The end of all that is in them now.
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
    /// Both ends must stay until the stream is done.
    pub unsafe fn copy(&self, stream: &Stream, copy: &Transfer) -> Result<(), Error> {
        let Transfer {
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
            // SAFETY: by the caller.
            return unsafe { stream.copy(to, from, (rows * row_bytes) as usize) };
        }
        // SAFETY: by the caller.
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
    /// The flag and `page` must stay until the stream is done.
    pub unsafe fn write_flag(
        &self,
        stream: &Stream,
        to: u64,
        epoch: u32,
        page: &Page,
    ) -> Result<(), Error> {
        if !self.refused.load(Ordering::Relaxed) {
            // SAFETY: by the caller.
            match unsafe { stream.write_word(to, epoch) } {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let error = crate::error::with_causes(&error);
                    tracing::warn!(
                        error,
                        "the driver refuses to write flags, so they are copied"
                    );
                    self.refused.store(true, Ordering::Relaxed);
                }
            }
        }
        // SAFETY: by the caller; the word keeps its value for as many calls as there are words.
        unsafe { stream.copy(to, page.flag_word(epoch), 4) }
    }
}
