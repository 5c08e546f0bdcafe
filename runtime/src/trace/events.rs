//! Reads the memory that a kernel has written.

use mkernel_spec::abi::{TraceCta, TraceEvent, TraceLayout, TraceWarp};

/// The events of a thread in the order of time, and the number of events without a place.
pub(super) struct ThreadEvents {
    pub thread: u64,
    pub events: Vec<TraceEvent>,
    pub dropped: u64,
}

/// The events of a thread in this call. The slice of a thread without events has events of an earlier call.
pub(super) fn events(layout: &TraceLayout, bytes: &[u8], thread: u64, call: u32) -> ThreadEvents {
    let (count, offset) = layout.slice(thread);
    let size = size_of::<TraceEvent>();
    let slice = &bytes[offset as usize..][..count as usize * size];
    let last = event(&slice[slice.len() - size..]);
    let of_call = if last.begin == call {
        count as usize - 1
    } else {
        0
    };
    let all: Vec<_> = slice
        .chunks_exact(size)
        .take(of_call)
        .map(event)
        .take_while(|event| event.what != 0)
        .collect();
    let is_full = all.len() == count as usize - 1;
    ThreadEvents {
        thread,
        events: all,
        dropped: if is_full { last.index.into() } else { 0 },
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_ne_bytes)
}

pub(super) fn ctas(layout: &TraceLayout, head: &[u8]) -> Vec<TraceCta> {
    let bytes = head[layout.buffer.ctas as usize..].chunks_exact(size_of::<TraceCta>());
    let cta = |bytes: &[u8]| TraceCta {
        begin_ns: u64_at(bytes, 0),
        begin_ticks: u64_at(bytes, 8),
        sm: u32_at(bytes, 16),
        call: u32_at(bytes, 20),
    };
    bytes.take(layout.ctas as usize).map(cta).collect()
}

/// The warps, by CTA.
pub(super) fn warps(layout: &TraceLayout, head: &[u8]) -> Vec<TraceWarp> {
    let bytes = head[layout.buffer.warps as usize..].chunks_exact(size_of::<TraceWarp>());
    let warp = |bytes: &[u8]| TraceWarp {
        end_ns: u64_at(bytes, 0),
        end_ticks: u64_at(bytes, 8),
    };
    let count = layout.ctas * (layout.threads / TraceLayout::WARP);
    bytes.take(count as usize).map(warp).collect()
}

fn event(bytes: &[u8]) -> TraceEvent {
    TraceEvent {
        begin: u32_at(bytes, 0),
        end: u32_at(bytes, 4),
        what: u32_at(bytes, 8),
        index: u32_at(bytes, 12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::abi::TraceRoom;

    #[test]
    fn events_of_an_earlier_call_are_left_out() {
        let layout = TraceLayout::new(1, 32, TraceRoom::equal(4));
        let mut bytes = vec![0; layout.bytes as usize];
        let (count, offset) = layout.slice(3);
        let size = size_of::<TraceEvent>();
        let place = |index: u32| offset as usize + index as usize * size;
        bytes[place(0) + 8] = 1;
        bytes[place(count - 1)] = 7;
        let of_call = |call| events(&layout, &bytes, 3, call).events.len();
        assert_eq!((of_call(7), of_call(8)), (1, 0));
    }
}
