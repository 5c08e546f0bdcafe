//! [`Blocks`]: timed blocks of calls, on all ranks at the same time.

use crate::lab::{Failure, Lab};
use mkernel::Communicator;
use mkernel::cudarc::driver::{CudaEvent, PinnedHostSlice, result, sys};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The largest number of calls of a block. With the launches between them, they are fewer than a stream accepts before
/// it blocks the host.
pub const MAX_ITERATIONS: u32 = 60;

/// The events and the memory with which a rank times calls together with the other ranks.
pub struct Blocks<'a> {
    ranks: &'a Communicator,
    lab: &'a Lab,
    /// A word that the stream waits for while a block is enqueued, so that no launch is late.
    gate: u64,
    opened: Cell<u32>,
    _gate_memory: PinnedHostSlice<u32>,
    barriers: [u64; 8],
    events: Vec<(CudaEvent, CudaEvent)>,
    own_barrier: u64,
}

impl<'a> Blocks<'a> {
    /// Creates the blocks of a rank. Collective: all ranks must call this function.
    pub fn new(ranks: &'a Communicator, lab: &'a Lab) -> Result<Self, Failure> {
        let ctx = ranks.context();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the word is written below before it is read.
        let mut gate_memory = unsafe { ctx.alloc_pinned_with_flags::<u32>(1, flags) }?;
        gate_memory.as_mut_slice()?[0] = 0;
        // The memory is not allocated from the context's pool, which peers cannot access.
        // SAFETY: the context is current, and the memory is freed on drop.
        let own_barrier = unsafe { result::malloc_sync(8) }?;
        // SAFETY: the memory has been allocated above with this size.
        unsafe { result::memset_d8_sync(own_barrier, 0, 8) }?;
        let time = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let pair = || Ok((ctx.new_event(time)?, ctx.new_event(time)?));
        let events = (0..MAX_ITERATIONS)
            .map(|_| pair())
            .collect::<Result<_, Failure>>()?;
        Ok(Self {
            ranks,
            lab,
            // Host and GPU use the same address for pinned memory.
            gate: gate_memory.as_mut_ptr()? as u64,
            opened: Cell::new(0),
            _gate_memory: gate_memory,
            barriers: exchange_barriers(ranks, own_barrier)?,
            events,
            own_barrier,
        })
    }

    /// Returns the times of `iterations` calls in µs, each with the time of its slowest rank. Collective.
    pub fn time(
        &self,
        iterations: u32,
        call: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let (rank, world) = (self.ranks.rank(), self.ranks.world());
        let stream = &self.lab.stream;
        self.ranks.barrier()?;
        let opened = self.opened.get() + 1;
        self.opened.set(opened);
        self.lab.gate(self.gate, opened)?;
        let events = &self.events[..iterations.min(MAX_ITERATIONS) as usize];
        for (start, end) in events {
            self.lab.meet(self.barriers, rank, world)?;
            start.record(stream)?;
            call()?;
            end.record(stream)?;
        }
        self.ranks.barrier()?;
        // SAFETY: the word is alive and aligned, and is only accessed as an atomic from here on.
        unsafe { AtomicU32::from_ptr(self.gate as *mut u32) }.store(opened, Ordering::Release);
        self.ranks.synchronize(stream)?;
        let times = events
            .iter()
            .map(|(start, end)| Ok(f64::from(start.elapsed_ms(end)?) * 1e3));
        self.slowest(&times.collect::<Result<Vec<_>, Failure>>()?)
    }

    /// Returns the maximum of each element over all ranks. Collective.
    pub fn slowest(&self, own: &[f64]) -> Result<Vec<f64>, Failure> {
        let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut largest = own.to_vec();
        for theirs in self.ranks.all_gather(&bytes)? {
            let values = theirs
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f64::from_le_bytes(*bytes));
            for (largest, value) in largest.iter_mut().zip(values) {
                *largest = largest.max(value);
            }
        }
        Ok(largest)
    }
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        // A peer that is still in a block writes to this memory. So ranks wait for each other, unless one has failed.
        let _ = self.ranks.barrier();
        if self.ranks.context().bind_to_thread().is_ok() {
            // SAFETY: `new` has allocated the memory, and all ranks have left their last block.
            let _ = unsafe { result::free_sync(self.own_barrier) };
        }
    }
}

/// Exchanges the addresses of the barriers between the ranks, which are all in this process, and lets each GPU write to
/// all of them.
fn exchange_barriers(ranks: &Communicator, own_barrier: u64) -> Result<[u64; 8], Failure> {
    let context = ranks.context().cu_ctx() as u64;
    let message = [context.to_le_bytes(), own_barrier.to_le_bytes()].concat();
    let mut barriers = [0; 8];
    for (peer, message) in ranks.all_gather(&message)?.iter().enumerate() {
        let (words, _) = message.as_chunks::<8>();
        let [context, barrier] = words else {
            return Err("a rank sent a message that is not two words".into());
        };
        barriers[peer] = u64::from_le_bytes(*barrier);
        if peer == ranks.rank() as usize {
            continue;
        }
        let context = u64::from_le_bytes(*context) as sys::CUcontext;
        // SAFETY: the thread of the peer keeps its context as long as its communicator.
        let code = unsafe { sys::cuCtxEnablePeerAccess(context, 0) };
        if code != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            code.result()?;
        }
    }
    ranks.barrier()?;
    Ok(barriers)
}
