//! How an emulated NIC moves bytes between GPUs of one host: the receiver's copy engines fetch them, while its proxy goes
//! on.

use crate::driver::{self, Pinned, Stream};
use crate::error::{Error, with_causes};
use crate::symmetric::Symmetric;
use cudarc::driver::CudaContext;
use mkernel_fabric::emulated::{CopyEngine, CopyStatus};
use mkernel_fabric::{MemoryKind, MemoryRange};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Rank and offset, little-endian.
const PAYLOAD_BYTES: usize = 12;

/// Copies that run at once, so that a copy's start hides behind others.
const LANES: usize = 3;

/// A copy takes about 6 µs besides its bytes, so that 256 KiB move at some 40 GB/s and 2 MiB at 170. Neighbours that wait
/// for a lane become one copy, up to this.
const MERGED_BYTES: u64 = 2 << 20;

/// From one lane's word to the next: a line each.
const WORD_STRIDE_BYTES: usize = 128;

/// Copies from the regions of all ranks, which have one each, of the same size.
pub(crate) struct PeerCopies {
    ctx: Arc<CudaContext>,
    rank: u32,
    world: u32,
    /// Of a copy.
    timeout: Duration,
    lanes: Vec<Lane>,
    memory: Arc<Reached>,
    waiting: VecDeque<Piece>,
    done: Done,
}

/// The memory that copies read and write.
struct Reached {
    /// The regions, of all ranks.
    regions: Symmetric,
    /// By lane, the number of its last copy that is over. A stream writes it behind the copy, so that the proxy sees the
    /// end of a copy without asking the driver, which would take it a microsecond each time.
    words: Pinned,
}

/// What was done, for the log.
#[derive(Default)]
struct Done {
    copies: u64,
    pieces: u64,
    /// Of the proxy's thread, in the driver.
    driver: Duration,
}

/// A stream with one copy at most.
struct Lane {
    stream: Stream,
    /// Copies begun, modulo 2^32.
    begun: u32,
    since: Instant,
    /// What the running copy brings.
    tokens: Vec<u64>,
}

/// Bytes to copy.
struct Piece {
    to: u64,
    from: u64,
    bytes: u64,
    token: u64,
}

impl PeerCopies {
    pub fn new(
        ctx: &Arc<CudaContext>,
        (rank, world): (u32, u32),
        regions: Symmetric,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let lane = |_| {
            Ok(Lane {
                stream: Stream::new(ctx)?,
                begun: 0,
                since: Instant::now(),
                tokens: Vec::new(),
            })
        };
        Ok(Self {
            ctx: ctx.clone(),
            rank,
            world,
            timeout,
            lanes: (0..LANES).map(lane).collect::<Result<_, Error>>()?,
            memory: Arc::new(Reached {
                regions,
                words: Pinned::allocate(ctx, LANES * WORD_STRIDE_BYTES)?,
            }),
            waiting: VecDeque::new(),
            done: Done::default(),
        })
    }

    /// Appends the tokens of copies that are over.
    fn collect(&mut self, placed: &mut Vec<u64>) -> Result<(), Error> {
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            if lane.tokens.is_empty() {
                continue;
            }
            let word = self.memory.words.word(at * WORD_STRIDE_BYTES);
            if word.load(Ordering::Acquire) == lane.begun {
                placed.append(&mut lane.tokens);
                continue;
            }
            let waited = lane.since.elapsed();
            if waited >= self.timeout {
                return Err(Error::StillBusy { waited });
            }
        }
        Ok(())
    }

    /// Begins a copy of what waits first, if a lane is free. No more than one: that takes the proxy some microseconds.
    fn begin(&mut self) -> Result<(), Error> {
        let free = |(_, lane): &(usize, &mut Lane)| lane.tokens.is_empty();
        let Some((at, lane)) = self.lanes.iter_mut().enumerate().find(free) else {
            return Ok(());
        };
        let Some(Piece {
            to,
            from,
            mut bytes,
            token,
        }) = self.waiting.pop_front()
        else {
            return Ok(());
        };
        lane.tokens.push(token);
        while let Some(next) = self.waiting.front()
            && (next.to, next.from) == (to + bytes, from + bytes)
            && bytes + next.bytes <= MERGED_BYTES
        {
            bytes += next.bytes;
            lane.tokens.push(next.token);
            self.waiting.pop_front();
        }
        driver::bind(&self.ctx)?;
        lane.begun = lane.begun.wrapping_add(1);
        lane.since = Instant::now();
        let word = self.memory.words.device_address() + (at * WORD_STRIDE_BYTES) as u64;
        // SAFETY: both places are in regions: `start_copy` has checked the source, and its caller the target. The drop lets go of
        // regions and words once the stream is done, or never.
        unsafe {
            lane.stream.copy(to, from, bytes as usize)?;
            lane.stream.write_word(word, lane.begun)?;
        }
        self.done.copies += 1;
        self.done.pieces += lane.tokens.len() as u64;
        self.done.driver += lane.since.elapsed();
        Ok(())
    }

    /// Where this process has mapped a rank's region.
    fn region(&self, rank: u32) -> Option<u64> {
        let known = rank < self.world;
        known.then(|| self.memory.regions.addresses()[rank as usize])
    }

    /// Waits for the copies that run.
    fn finish(&self) -> Result<(), Error> {
        driver::bind(&self.ctx)?;
        let started = Instant::now();
        for lane in &self.lanes {
            while !lane.stream.is_done()? {
                let waited = started.elapsed();
                if waited >= self.timeout {
                    return Err(Error::StillBusy { waited });
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

impl CopyEngine for PeerCopies {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        match memory.kind() {
            MemoryKind::Gpu { .. } if self.region(self.rank) == Some(memory.address()) => Ok(()),
            _ => Err("only the memory that all ranks have mapped can be a region".to_owned()),
        }
    }

    fn stage(
        &mut self,
        _: &MemoryRange,
        offset: u64,
        _: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        payload.extend(self.rank.to_le_bytes());
        payload.extend(offset.to_le_bytes());
        Ok(())
    }

    fn start_copy(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &[u8],
        token: u64,
    ) -> Result<CopyStatus, String> {
        let malformed = || format!("a write that says {payload:02x?} of its source");
        let payload: &[u8; PAYLOAD_BYTES] = payload.try_into().map_err(|_| malformed())?;
        let (rank, from) = payload.split_at(4);
        let rank = u32::from_le_bytes(rank.try_into().unwrap_or_default());
        let from = u64::from_le_bytes(from.try_into().unwrap_or_default());
        let region = self.region(rank);
        let ends = from.checked_add(bytes.into());
        let (Some(region), Some(true)) = (region, ends.map(|end| end <= to.bytes())) else {
            return Err(malformed());
        };
        self.waiting.push_back(Piece {
            to: to.address() + offset,
            from: region + from,
            bytes: bytes.into(),
            token,
        });
        Ok(CopyStatus::Pending)
    }

    fn poll(&mut self, placed: &mut Vec<u64>) -> Result<(), String> {
        let collected = self.collect(placed);
        let outcome = collected.and_then(|()| match placed.is_empty() {
            true => self.begin(),
            // To be told first.
            false => Ok(()),
        });
        outcome.map_err(|error| with_causes(&error))
    }
}

impl Drop for PeerCopies {
    fn drop(&mut self) {
        let Done {
            copies,
            pieces,
            driver,
        } = self.done;
        tracing::debug!(
            rank = self.rank,
            copies,
            pieces,
            ?driver,
            "an emulated NIC has moved"
        );
        if let Err(error) = self.finish() {
            let error = with_causes(&error);
            tracing::warn!(error, "copies have not ended; their memory is never freed");
            std::mem::forget(self.memory.clone());
        }
    }
}
