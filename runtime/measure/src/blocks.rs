//! Times of calls that all ranks make together, in blocks of several calls.

use crate::graph::Graph;
use crate::waits::{self, Waits};
use crate::{Failure, Random};
use mkernel::Communicator;
use mkernel::cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice, result, sys};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The largest number of calls in a block.
pub const MAX_ITERATIONS: u32 = 60;
/// The largest number of ranks, whose counters are an argument of the kernel that waits for all ranks.
const MAX_RANKS: usize = 8;
/// The launches that a block enqueues behind its closed gate. With more, the driver would block the host, which opens the gate.
const GATED_LAUNCHES: u32 = 500;
/// The graphs that a block enqueues behind its closed gate. Seven graphs of 20 collectives of NCCL block the host. A graph takes longer
/// than its launch, so later graphs begin in time, too.
const GATED_GRAPHS: usize = 2;
/// The time of a block of calls.
const BLOCK_US: f64 = 20_000.0;

/// A rank's part in timing calls together with the other ranks.
pub struct Blocks<'a> {
    ranks: &'a Communicator,
    waits: Waits,
    /// The address of the word for which the stream waits until many launches are enqueued, so that no launch of a block is late.
    gate: u64,
    /// The number of blocks for which the gate has been opened.
    opened: Cell<u32>,
    _gate_memory: PinnedHostSlice<u32>,
    /// The address of each rank's barrier counter.
    counters: [u64; MAX_RANKS],
    events: Vec<(CudaEvent, CudaEvent)>,
    own_counter: u64,
}

impl<'a> Blocks<'a> {
    /// Allocates the barrier counters and the events for calls on `stream`. All ranks must call this together, in threads of one process.
    ///
    /// # Errors
    /// The driver refuses memory or events, or a rank does not take part.
    pub fn new(ranks: &'a Communicator, stream: &Arc<CudaStream>) -> Result<Self, Failure> {
        if ranks.world() as usize > MAX_RANKS {
            return Err(format!(
                "{} ranks are too many to measure; use up to {MAX_RANKS} on one host",
                ranks.world()
            )
            .into());
        }
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
            waits: Waits::new(stream)?,
            // The word has the same address on the host and on the GPU.
            gate: gate_memory.as_mut_ptr()? as u64,
            opened: Cell::new(0),
            _gate_memory: gate_memory,
            counters: share_counter(ranks, own_counter)?,
            events,
            own_counter,
        })
    }

    /// Makes `iterations` calls of one launch each, at most [`MAX_ITERATIONS`], and returns the time of each call in µs on its
    /// slowest rank. All ranks must call this together.
    ///
    /// # Errors
    /// A call fails, the driver blocks the host while it enqueues a call, or a rank does not take part.
    pub fn time(
        &self,
        iterations: u32,
        call: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        self.time_gated(gated_calls(1), iterations, call)
    }

    /// As [`Self::time`], with this number of calls enqueued before the first call begins.
    fn time_gated(
        &self,
        gated: usize,
        iterations: u32,
        call: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let stream = &self.waits.stream;
        self.ranks.barrier()?;
        let opened = self.opened.get() + 1;
        self.opened.set(opened);
        self.waits.gate(self.gate, opened)?;
        let closed = Instant::now();
        let events = &self.events[..iterations.min(MAX_ITERATIONS) as usize];
        let (gated, others) = events.split_at(gated.min(events.len()));
        self.enqueue(gated, call)?;
        self.ranks.barrier()?;
        // SAFETY: the word is allocated and aligned, and from here on it is only accessed as an atomic.
        unsafe { AtomicU32::from_ptr(self.gate as *mut u32) }.store(opened, Ordering::Release);
        let limit = Duration::from_nanos(waits::LIMIT_NS);
        if closed.elapsed() > limit {
            return Err(format!(
                "the host took more than {limit:?} to enqueue {} calls, so they may have begun late",
                gated.len()
            )
            .into());
        }
        self.enqueue(others, call)?;
        self.ranks.synchronize(stream)?;
        let times = events
            .iter()
            .map(|(start, end)| Ok(f64::from(start.elapsed_ms(end)?) * 1e3));
        self.slowest(&times.collect::<Result<Vec<_>, Failure>>()?)
    }

    /// Enqueues a call for each pair of events, which all ranks begin together.
    fn enqueue(
        &self,
        events: &[(CudaEvent, CudaEvent)],
        call: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (rank, world) = (self.ranks.rank(), self.ranks.world());
        for (start, end) in events {
            self.waits.barrier(self.counters, rank, world)?;
            start.record(&self.waits.stream)?;
            call()?;
            end.record(&self.waits.stream)?;
        }
        Ok(())
    }

    /// Returns the times in µs of one call of a block of calls that each have `launches` launches. A block takes about
    /// 20 ms. All ranks must call this together.
    ///
    /// # Errors
    /// A call fails, the driver blocks the host while it enqueues a call, or a rank does not take part.
    pub fn times_of(
        &self,
        launches: u32,
        call: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        // A host that launches may be slower than short calls, so all calls are enqueued behind the gate.
        let gated = gated_calls(launches);
        self.times_gated((gated, gated.min(MAX_ITERATIONS as usize)), call)
    }

    /// Times a block of at most `most` calls, which takes about 20 ms, with `gated` calls enqueued before the first call begins.
    fn times_gated(
        &self,
        (gated, most): (usize, usize),
        call: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let first = median(&self.time_gated(gated, 2, call)?);
        let iterations = (BLOCK_US / first).clamp(3.0, (most as f64).max(3.0)) as u32;
        self.time_gated(gated, iterations, call)
    }

    /// Returns the times in µs of one call of a graph that has `calls` calls. All ranks must call this together.
    ///
    /// # Errors
    /// The graph cannot be launched, the driver blocks the host while it enqueues graphs, or a rank does not take part.
    pub fn times_in_graph(&self, calls: u32, graph: &Graph) -> Result<Vec<f64>, Failure> {
        let limits = (GATED_GRAPHS, MAX_ITERATIONS as usize);
        let times = self.times_gated(limits, &|| graph.launch(&self.waits.stream))?;
        Ok(per_call(&times, calls))
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
        Ok(per_call(&self.times_of(calls, all)?, calls))
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
/// The clocks of a GPU depend on the previous block, so the order of a round is random. All ranks have the same order.
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
        for index in order(round, candidates) {
            let of_block = block(index)?;
            if round > 0 {
                times[index].extend(of_block);
            }
        }
    }
    Ok(times)
}

fn per_call(times: &[f64], calls: u32) -> Vec<f64> {
    times.iter().map(|us| us / f64::from(calls)).collect()
}

/// The calls of this number of launches that a block may enqueue behind its closed gate.
fn gated_calls(launches: u32) -> usize {
    // Beside its launches, a call has a barrier and records two events.
    (GATED_LAUNCHES / (launches + 3)).max(2) as usize
}

/// Returns the candidates in the order of a round.
fn order(round: u32, candidates: usize) -> Vec<usize> {
    let mut random = Random(round.into());
    let mut order: Vec<usize> = (0..candidates).collect();
    for end in (1..=candidates).rev() {
        order.swap(end - 1, random.below(end as u64) as usize);
    }
    order
}

/// Returns the median, or NaN without values.
pub fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Exchanges the addresses of the ranks' counters, and enables access of this GPU to the counters of its peers. All
/// ranks are in this process.
fn share_counter(ranks: &Communicator, own_counter: u64) -> Result<[u64; MAX_RANKS], Failure> {
    let context = ranks.context().cu_ctx() as u64;
    let own = [context.to_le_bytes(), own_counter.to_le_bytes()].concat();
    let mut counters = [0; MAX_RANKS];
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

#[cfg(test)]
mod tests {
    use super::{in_turns, median, order};
    use std::cell::RefCell;

    #[test]
    fn each_round_has_every_candidate_once_in_an_order_of_its_own() {
        let rounds: Vec<_> = (0..20).map(|round| order(round, 4)).collect();
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort();
            assert_eq!(sorted, [0, 1, 2, 3]);
        }
        let firsts: Vec<_> = (0..4)
            .map(|first| rounds.iter().filter(|round| round[0] == first).count())
            .collect();
        assert!(firsts.iter().all(|times| *times > 0), "{firsts:?}");
        assert_eq!(rounds[3], order(3, 4), "equal on all ranks");
    }

    #[test]
    fn the_first_round_warms_up() {
        let calls = RefCell::new(0.0);
        let times = in_turns(3, 2, |_| {
            *calls.borrow_mut() += 1.0;
            Ok(vec![*calls.borrow()])
        });
        let times = times.expect("no block fails");
        assert_eq!(*calls.borrow(), 8.0);
        assert_eq!(times.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
        assert!(times.iter().flatten().all(|call| *call > 2.0), "{times:?}");
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
