//! The memory of a kernel that is traced: see `mk/trace.cuh`.

/// The parts of the memory as offsets from its address, and the sizes of slices, which are powers of 2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceBuffer {
    /// The address of the memory.
    pub address: u64,
    /// A [`TraceCta`] for each CTA.
    pub ctas: u64,
    /// A [`TraceWarp`] for each warp.
    pub warps: u64,
    /// The slices of events: of the first thread of each warp, and behind them of every thread.
    pub events: u64,
    /// The size of the slice of the first thread of a warp.
    pub first_events: u32,
    /// The size of the slice of each thread. The first thread of a warp does not use this slice.
    pub other_events: u32,
}

/// The begin of a CTA.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCta {
    /// The time by the clock of the GPU.
    pub begin_ns: u64,
    /// The same moment by the clock of the SM.
    pub begin_ticks: u64,
    /// The SM that runs the CTA.
    pub sm: u32,
    /// The number of the call among all calls of the operator.
    pub call: u32,
}

/// The end of a warp; zero if the warp has not ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceWarp {
    /// The time by the clock of the GPU.
    pub end_ns: u64,
    /// The same moment by the clock of the SM.
    pub end_ticks: u64,
}

/// An event of a thread.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceEvent {
    /// The begin in ticks of the SM, modulo 2^32. In the last place of a slice, the number of the call whose events the slice
    /// has.
    pub begin: u32,
    /// The end in ticks of the SM, modulo 2^32.
    pub end: u32,
    /// From the lowest bit: a [`Role`](super::Role) in 4 bits, a [`Wait`](super::Wait) in 8, an
    /// [`Activity`](super::Activity) in 4, and a rank in 16. 0 behind the last event of a slice.
    pub what: u32,
    /// The index of the tile, chunk, stage or flag. In the last place of a slice, the number of events that have no place.
    pub index: u32,
}

/// The sizes of the slices of threads of a kernel that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRoom {
    first_events: u32,
    other_events: u32,
}

impl TraceRoom {
    /// The largest size of a slice.
    pub const MOST: u32 = 1 << 16;

    /// Slices for `first_events` events of the first thread of each warp, and for few events of the other threads, which have
    /// events only where the threads of a warp wait for different flags.
    #[must_use]
    pub fn of(first_events: u32) -> Self {
        let first_events = slice_events(first_events);
        Self {
            first_events,
            other_events: slice_events(first_events / 32),
        }
    }

    /// Equal slices of all threads. On simulated GPUs, each thread of a warp writes its events.
    #[must_use]
    pub fn equal(events: u32) -> Self {
        let events = slice_events(events);
        Self {
            first_events: events,
            other_events: events,
        }
    }
}

/// The size of a slice for this number of events. Two places are the least: one event, and the place that counts events.
fn slice_events(events: u32) -> u32 {
    events.clamp(2, TraceRoom::MOST).next_power_of_two()
}

/// The layout of the memory of a kernel that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLayout {
    /// The offsets of the parts. The address is 0.
    pub buffer: TraceBuffer,
    /// The size of the memory in bytes.
    pub bytes: u64,
    /// The number of CTAs.
    pub ctas: u64,
    /// The number of threads of a CTA.
    pub threads: u64,
}

impl TraceLayout {
    /// The threads of a warp.
    pub const WARP: u64 = 32;

    /// The layout for a launch of `ctas` CTAs with `threads` threads each.
    #[must_use]
    pub fn new(ctas: u32, threads: u32, room: TraceRoom) -> Self {
        let (ctas, threads) = (u64::from(ctas), u64::from(threads));
        let warps = ctas * (threads / Self::WARP);
        let of_warps = ctas * size_of::<TraceCta>() as u64;
        let of_events = of_warps + warps * size_of::<TraceWarp>() as u64;
        let buffer = TraceBuffer {
            address: 0,
            ctas: 0,
            warps: of_warps,
            events: of_events.next_multiple_of(align_of::<TraceEvent>() as u64),
            first_events: room.first_events,
            other_events: room.other_events,
        };
        let events =
            warps * u64::from(room.first_events) + ctas * threads * u64::from(room.other_events);
        Self {
            buffer,
            bytes: buffer.events + events * size_of::<TraceEvent>() as u64,
            ctas,
            threads,
        }
    }

    /// The size of the slice of a thread, and the offset of its first event in bytes. Threads are numbered over the CTAs.
    #[must_use]
    pub fn slice(&self, thread: u64) -> (u32, u64) {
        let (first, other) = (self.buffer.first_events, self.buffer.other_events);
        let (events, place) = match thread % Self::WARP {
            0 => (first, thread / Self::WARP * u64::from(first)),
            _ => {
                let of_first = self.ctas * (self.threads / Self::WARP) * u64::from(first);
                (other, of_first + thread * u64::from(other))
            }
        };
        let offset = self.buffer.events + place * size_of::<TraceEvent>() as u64;
        (events, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_powers_of_2_and_do_not_overlap() {
        for room in [TraceRoom::of(100), TraceRoom::of(0), TraceRoom::equal(5)] {
            let layout = TraceLayout::new(3, 64, room);
            let mut slices: Vec<_> = (0..3 * 64).map(|thread| layout.slice(thread)).collect();
            slices.sort_by_key(|(_, offset)| *offset);
            for pair in slices.windows(2) {
                let end = pair[0].1 + u64::from(pair[0].0) * 16;
                assert!(end <= pair[1].1, "{room:?}: {pair:?}");
            }
            for (events, offset) in slices {
                let place = (offset - layout.buffer.events) / 16;
                assert!(events.is_power_of_two() && place.is_multiple_of(events.into()));
                assert!(offset + u64::from(events) * 16 <= layout.bytes);
            }
        }
    }
}
