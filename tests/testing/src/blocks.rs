//! [`Blocks`]: timed blocks of calls, all ranks side by side.

use crate::lab::{Failure, Lab};
use mkernel::Communicator;
use mkernel::cudarc::driver::{CudaEvent, PinnedHostSlice, result, sys};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most calls of a block: with what is launched between them, fewer than a stream takes before it blocks the host.
pub const MAX_ITERATIONS: u32 = 60;

/// What a rank needs to time calls together with the other ranks.
pub struct Blocks<'a> {
    ranks: &'a Communicator,
    lab: &'a Lab,
    /// While a block is enqueued, the stream stands at a gate, so that no launch is late.
    gate: u64,
    opened: Cell<u32>,
    _gate_memory: PinnedHostSlice<u32>,
    meetings: [u64; 8],
    events: Vec<(CudaEvent, CudaEvent)>,
    own_meeting: u64,
}

impl<'a> Blocks<'a> {
    /// Collective.
    pub fn new(ranks: &'a Communicator, lab: &'a Lab) -> Result<Self, Failure> {
        let ctx = ranks.context();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the word is written below, before anyone reads it.
        let mut gate_memory = unsafe { ctx.alloc_pinned_with_flags::<u32>(1, flags) }?;
        gate_memory.as_mut_slice()?[0] = 0;
        // Not from the context's pool: peers cannot access that.
        // SAFETY: the context is current; the memory is freed on drop.
        let own_meeting = unsafe { result::malloc_sync(8) }?;
        // SAFETY: the memory was allocated above.
        unsafe { result::memset_d8_sync(own_meeting, 0, 8) }?;
        let time = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let pair = || Ok((ctx.new_event(time)?, ctx.new_event(time)?));
        let events = (0..MAX_ITERATIONS)
            .map(|_| pair())
            .collect::<Result<_, Failure>>()?;
        Ok(Self {
            ranks,
            lab,
            // Host and GPU have the same address for it.
            gate: gate_memory.as_mut_ptr()? as u64,
            opened: Cell::new(0),
            _gate_memory: gate_memory,
            meetings: introduce(ranks, own_meeting)?,
            events,
            own_meeting,
        })
    }

    /// Times of `iterations` calls in µs, each of the rank that was slowest in it. Collective.
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
            self.lab.meet(self.meetings, rank, world)?;
            start.record(stream)?;
            call()?;
            end.record(stream)?;
        }
        self.ranks.barrier()?;
        // SAFETY: the word is alive, aligned, and only accessed as an atomic from here on.
        unsafe { AtomicU32::from_ptr(self.gate as *mut u32) }.store(opened, Ordering::Release);
        self.ranks.synchronize(stream)?;
        let times = events
            .iter()
            .map(|(start, end)| Ok(f64::from(start.elapsed_ms(end)?) * 1e3));
        self.slowest(&times.collect::<Result<Vec<_>, Failure>>()?)
    }

    /// The largest of each element over all ranks. Collective.
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
        // A peer that is still in a block writes here; whoever comes first waits, unless ranks have failed.
        let _ = self.ranks.barrier();
        if self.ranks.context().bind_to_thread().is_ok() {
            // SAFETY: allocated by `new`; all ranks have left their last block.
            let _ = unsafe { result::free_sync(self.own_meeting) };
        }
    }
}

/// Tells the ranks, all in this process, where the meetings are, and lets each GPU write to all of them.
fn introduce(ranks: &Communicator, own_meeting: u64) -> Result<[u64; 8], Failure> {
    let context = ranks.context().cu_ctx() as u64;
    let card = [context.to_le_bytes(), own_meeting.to_le_bytes()].concat();
    let mut meetings = [0; 8];
    for (peer, card) in ranks.all_gather(&card)?.iter().enumerate() {
        let (words, _) = card.as_chunks::<8>();
        let [context, meeting] = words else {
            return Err("a card is two words".into());
        };
        meetings[peer] = u64::from_le_bytes(*meeting);
        if peer == ranks.rank() as usize {
            continue;
        }
        let context = u64::from_le_bytes(*context) as sys::CUcontext;
        // SAFETY: the peer's thread keeps its context as long as its communicator.
        let code = unsafe { sys::cuCtxEnablePeerAccess(context, 0) };
        if code != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            code.result()?;
        }
    }
    ranks.barrier()?;
    Ok(meetings)
}
