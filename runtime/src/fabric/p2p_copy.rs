//! [`P2pCopies`]: transfers bytes between GPUs of one host for an emulated NIC. The copy engines of the receiver fetch the
//! bytes while its proxy continues.

use crate::driver::{self, Pinned, Stream};
use crate::error::{Error, with_causes};
use crate::symmetric::Symmetric;
use cudarc::driver::CudaContext;
use mkernel_fabric::emulated::{CopyEngine, CopyStatus};
use mkernel_fabric::{MemoryKind, MemoryRange};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The length of a payload: a rank, the number of its region and an offset, little-endian.
const PAYLOAD_BYTES: usize = 16;

/// The number of copies that run at once, so that the start of one copy overlaps with the others.
const LANES: usize = 3;

/// The longest merged copy. A copy takes about 6 µs in addition to the transfer of its bytes, so that copies of 256 KiB
/// reach about 40 GB/s and copies of 2 MiB reach 170 GB/s. Adjacent pieces that wait for a lane are merged up to this
/// size.
const MERGED_BYTES: u64 = 2 << 20;

/// The distance between the words of two lanes, so that each has a cache line of its own.
const WORD_STRIDE_BYTES: usize = 128;

/// The regions of an endpoint. Each region has one size on all ranks. Clones share the list.
#[derive(Clone, Default)]
pub(super) struct SharedRegions(Arc<Mutex<Vec<Symmetric>>>);

impl SharedRegions {
    /// Adds a region before it is registered. All ranks must add their regions in the same order.
    pub fn add(&self, region: Symmetric) {
        self.with(|regions| regions.push(region));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Symmetric>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of the region that is at `address` on this rank.
    fn find(&self, address: u64) -> Option<u32> {
        let is_there = |region: &Symmetric| region.own().address() == address;
        self.with(|regions| regions.iter().position(is_there))
            .map(|at| at as u32)
    }

    /// Returns the address in this process of a range of bytes in a rank's region, or `None` if the range is not inside the
    /// region.
    fn address(&self, rank: u32, region: u32, offset: u64, bytes: u32) -> Option<u64> {
        self.with(|regions| {
            let region = regions.get(region as usize)?;
            let start = *region.addresses().get(rank as usize)?;
            let end = offset.checked_add(bytes.into())?;
            (start != 0 && end <= region.bytes()).then_some(start + offset)
        })
    }
}

/// Copies from the regions of all ranks of the host.
pub(crate) struct P2pCopies {
    ctx: Arc<CudaContext>,
    rank: u32,
    /// The longest time that one copy may take.
    timeout: Duration,
    lanes: Vec<Lane>,
    memory: Arc<Reached>,
    waiting: VecDeque<Piece>,
    done: Done,
}

/// The memory that copies read and write.
struct Reached {
    regions: SharedRegions,
    /// For each lane, the number of its last copy that has ended. The stream writes the number after the copy, so the proxy
    /// sees the end of a copy without a call of the driver, which would take a microsecond each time.
    words: Pinned,
}

/// Counters for the log.
#[derive(Default)]
struct Done {
    copies: u64,
    pieces: u64,
    /// The time that the proxy's thread spent in calls of the driver.
    driver: Duration,
}

/// A stream with at most one copy.
struct Lane {
    stream: Stream,
    /// The number of copies that were started, modulo 2^32.
    begun: u32,
    since: Instant,
    /// The tokens of the pieces that the running copy transfers.
    tokens: Vec<u64>,
}

/// A range of bytes that is to be copied.
struct Piece {
    to: u64,
    from: u64,
    bytes: u64,
    token: u64,
}

impl P2pCopies {
    pub fn new(
        ctx: &Arc<CudaContext>,
        rank: u32,
        regions: SharedRegions,
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

    /// Appends the tokens of copies that have ended.
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

    /// Starts a copy of the first waiting piece, if a lane is free. Only one copy is started per call, since each start takes
    /// the proxy some microseconds.
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
        // SAFETY: both ranges are in regions: `start_copy` has checked the source, and its caller the destination. `drop`
        // releases the regions and the words only after the stream is done, or never.
        unsafe {
            lane.stream.copy(to, from, bytes as usize)?;
            lane.stream.write_word(word, lane.begun)?;
        }
        self.done.copies += 1;
        self.done.pieces += lane.tokens.len() as u64;
        self.done.driver += lane.since.elapsed();
        Ok(())
    }

    /// Waits for the running copies.
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

impl CopyEngine for P2pCopies {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        match memory.kind() {
            MemoryKind::Gpu { .. } if self.memory.regions.find(memory.address()).is_some() => {
                Ok(())
            }
            _ => Err("only memory that all ranks have mapped can be a region".to_owned()),
        }
    }

    fn stage(
        &mut self,
        memory: &MemoryRange,
        offset: u64,
        _: u32,
        payload: &mut Vec<u8>,
    ) -> Result<(), String> {
        let region = self.memory.regions.find(memory.address());
        let region = region.ok_or("a write has a source that is no region")?;
        payload.extend(self.rank.to_le_bytes());
        payload.extend(region.to_le_bytes());
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
        let malformed = || format!("a write has an invalid source: {payload:02x?}");
        let payload: &[u8; PAYLOAD_BYTES] = payload.try_into().map_err(|_| malformed())?;
        let word = |at: usize| {
            payload[at..at + 4]
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u32::from(*byte))
        };
        let from_offset = u64::from(word(8)) | u64::from(word(12)) << 32;
        let from = self
            .memory
            .regions
            .address(word(0), word(4), from_offset, bytes);
        let from = from.ok_or_else(malformed)?;
        self.waiting.push_back(Piece {
            to: to.address() + offset,
            from,
            bytes: bytes.into(),
            token,
        });
        Ok(CopyStatus::Pending)
    }

    fn poll(&mut self, placed: &mut Vec<u64>) -> Result<(), String> {
        let collected = self.collect(placed);
        let outcome = collected.and_then(|()| match placed.is_empty() {
            true => self.begin(),
            // The tokens of ended copies are reported before another copy is started.
            false => Ok(()),
        });
        outcome.map_err(|error| with_causes(&error))
    }
}

impl Drop for P2pCopies {
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
            "the copies of an emulated NIC"
        );
        if let Err(error) = self.finish() {
            let error = with_causes(&error);
            tracing::warn!(
                error,
                "copies have not ended, so their memory is never freed"
            );
            std::mem::forget(self.memory.clone());
        }
    }
}
