//! Times of calls that all ranks make together, in blocks of several calls.

use crate::graph::Graph;
use crate::lab::{Failure, Lab};
use mkernel::Communicator;
use mkernel::cudarc::driver::{CudaEvent, PinnedHostSlice, result, sys};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The largest number of calls in a block. Calls and the barriers between calls are fewer than the launches that a
/// stream accepts before it blocks the host.
pub const MAX_ITERATIONS: u32 = 60;
/// The launches that a block may enqueue behind its gate. With more, the stream would block the host, which opens the
/// gate.
const MAX_LAUNCHES: u32 = 500;
/// The time of a block of calls.
const BLOCK_US: f64 = 20_000.0;

/// A rank's part in timing calls together with the other ranks.
pub struct Blocks<'a> {
    ranks: &'a Communicator,
    lab: &'a Lab,
    /// The address of the word for which the stream waits while a block is enqueued, so that no launch of a block is
    /// late.
    gate: u64,
    /// The number of blocks for which the gate has been opened.
    opened: Cell<u32>,
    _gate_memory: PinnedHostSlice<u32>,
    /// The address of each rank's barrier counter.
    counters: [u64; 8],
    events: Vec<(CudaEvent, CudaEvent)>,
    own_counter: u64,
}

impl<'a> Blocks<'a> {
    /// Allocates the barrier counters and the events. All ranks must call this together, in threads of one process.
    ///
    /// # Errors
    /// The driver refuses memory or events, or a rank does not take part.
    pub fn new(ranks: &'a Communicator, lab: &'a Lab) -> Result<Self, Failure> {
        let ctx = ranks.context();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the word is written below, before it is read.
        let mut gate_memory = unsafe { ctx.alloc_pinned_with_flags::<u32>(1, flags) }?;
        gate_memory.as_mut_slice()?[0] = 0;
        // Peers cannot access the memory of the context's pool.
        // SAFETY: the context is current, and the memory is freed on drop.
        let own_counter = unsafe { result::malloc_sync(8) }?;
        // SAFETY: the memory was allocated above.
        unsafe { result::memset_d8_sync(own_counter, 0, 8) }?;
        let time = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let pair = || Ok((ctx.new_event(time)?, ctx.new_event(time)?));
        let events = (0..MAX_ITERATIONS)
            .map(|_| pair())
            .collect::<Result<_, Failure>>()?;
        Ok(Self {
            ranks,
            lab,
            // The word has the same address on the host and on the GPU.
            gate: gate_memory.as_mut_ptr()? as u64,
            opened: Cell::new(0),
            _gate_memory: gate_memory,
            counters: share_counter(ranks, own_counter)?,
            events,
            own_counter,
        })
    }

    /// Makes `iterations` calls, at most [`MAX_ITERATIONS`], and returns the time of each call in µs on its slowest
    /// rank. All ranks must call this together.
    ///
    /// # Errors
    /// A call fails, or a rank does not take part.
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
            self.lab.barrier(self.counters, rank, world)?;
            start.record(stream)?;
            call()?;
            end.record(stream)?;
        }
        self.ranks.barrier()?;
        // SAFETY: the word is allocated and aligned, and from here on it is only accessed as an atomic.
        unsafe { AtomicU32::from_ptr(self.gate as *mut u32) }.store(opened, Ordering::Release);
        self.ranks.synchronize(stream)?;
        let times = events
            .iter()
            .map(|(start, end)| Ok(f64::from(start.elapsed_ms(end)?) * 1e3));
        self.slowest(&times.collect::<Result<Vec<_>, Failure>>()?)
    }

    /// Returns the times in µs of one call of a block of calls that each have `launches` launches. A block takes about
    /// 20 ms. All ranks must call this together.
    ///
    /// # Errors
    /// A call fails, or a rank does not take part.
    pub fn times_of(
        &self,
        launches: u32,
        call: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let first = median(&self.time(2, call)?);
        // Beside the launches, an iteration has a barrier and records two events.
        let most = (MAX_LAUNCHES / (launches + 3)).min(MAX_ITERATIONS);
        let iterations = (BLOCK_US / first).clamp(3.0, f64::from(most)) as u32;
        self.time(iterations, call)
    }

    /// Returns the times in µs of one call of a graph that has `calls` calls. All ranks must call this together.
    ///
    /// # Errors
    /// The graph cannot be launched, or a rank does not take part.
    pub fn times_in_graph(&self, calls: u32, graph: &Graph) -> Result<Vec<f64>, Failure> {
        self.times_per_call(calls, &|| graph.launch(&self.lab.stream))
    }

    /// Returns the times in µs of one of the `calls` calls that `all` enqueues. All ranks must call this together.
    ///
    /// # Errors
    /// A call fails, or a rank does not take part.
    pub fn times_per_call(
        &self,
        calls: u32,
        all: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let times = self.times_of(calls, all)?;
        Ok(times.iter().map(|us| us / f64::from(calls)).collect())
    }

    /// Returns the largest value of each element over all ranks. All ranks must call this together.
    ///
    /// # Errors
    /// A rank does not take part.
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
        // A peer that is still in a block writes the counter, so all ranks wait for each other. The barrier returns an
        // error if ranks have failed.
        let _ = self.ranks.barrier();
        if self.ranks.context().bind_to_thread().is_ok() {
            // SAFETY: `new` allocated the memory, and all ranks have ended their last block.
            let _ = unsafe { result::free_sync(self.own_counter) };
        }
    }
}

/// Times `candidates` candidates in turns, and returns the times of each. `block` measures a block of one candidate. An
/// additional first round warms up.
///
/// The clocks of a GPU depend on the previous block. The order alternates, so that each candidate runs after both of its
/// neighbours.
///
/// # Errors
/// A block fails.
pub fn in_turns(
    rounds: u32,
    candidates: usize,
    block: impl Fn(usize) -> Result<Vec<f64>, Failure>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let mut times = vec![Vec::new(); candidates];
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..candidates).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let of_block = block(index)?;
            if round > 0 {
                times[index].extend(of_block);
            }
        }
    }
    Ok(times)
}

/// Returns the median, or NaN without values.
pub fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Exchanges the addresses of the ranks' counters, and enables access of this GPU to the counters of its peers. All
/// ranks are in this process.
fn share_counter(ranks: &Communicator, own_counter: u64) -> Result<[u64; 8], Failure> {
    let context = ranks.context().cu_ctx() as u64;
    let own = [context.to_le_bytes(), own_counter.to_le_bytes()].concat();
    let mut counters = [0; 8];
    for (peer, message) in ranks.all_gather(&own)?.iter().enumerate() {
        let (words, _) = message.as_chunks::<8>();
        let [context, counter] = words else {
            return Err("a message is not two words long".into());
        };
        counters[peer] = u64::from_le_bytes(*counter);
        if peer == ranks.rank() as usize {
            continue;
        }
        let context = u64::from_le_bytes(*context) as sys::CUcontext;
        // SAFETY: the peer's thread keeps its context alive as long as its communicator.
        let code = unsafe { sys::cuCtxEnablePeerAccess(context, 0) };
        if code != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            code.result()?;
        }
    }
    ranks.barrier()?;
    Ok(counters)
}
