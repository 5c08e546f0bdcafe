//! [`Aligned`]: the traces of all ranks on one clock.

use mkernel::trace::{ClockOffset, Span, Trace};

/// The traces of all ranks. Times count from the begin of the first rank, by the clock of rank 0.
pub struct Aligned {
    pub traces: Vec<Trace>,
    pub offsets: Vec<ClockOffset>,
    begin_ns: i64,
}

impl Aligned {
    /// Aligns the clocks. Simulated GPUs have one clock.
    pub fn new(traces: Vec<Trace>, is_simulated: bool) -> Self {
        let exact = ClockOffset {
            ns: 0,
            error_ns: Some(0),
        };
        let offsets = match is_simulated {
            true => vec![exact; traces.len()],
            false => Trace::offsets(&traces),
        };
        let begins = traces.iter().zip(&offsets);
        let begins = begins.map(|(trace, offset)| trace.begin_ns as i64 + offset.ns);
        let begin_ns = begins.min().unwrap_or(0);
        Self {
            traces,
            offsets,
            begin_ns,
        }
    }

    /// A time of a rank in ns since the begin.
    pub fn ns(&self, rank: usize, ns: u64) -> i64 {
        ns as i64 + self.offsets.get(rank).map_or(0, |offset| offset.ns) - self.begin_ns
    }

    /// The largest error of the alignment; `None` if a clock could not be aligned.
    pub fn error_ns(&self) -> Option<u64> {
        let errors = self.offsets.iter().map(|offset| offset.error_ns);
        errors.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// The end of the last event.
    pub fn end_ns(&self) -> i64 {
        let of_rank = |(rank, trace): (usize, &Trace)| {
            let ends = trace.spans.iter().map(|span| span.end_ns).max();
            ends.map_or(0, |end| self.ns(rank, end))
        };
        self.traces
            .iter()
            .enumerate()
            .map(of_rank)
            .max()
            .unwrap_or(0)
    }
}

/// The union of spans in the order of their begins, ns.
pub fn union_ns<'a>(spans: impl Iterator<Item = &'a Span>) -> u64 {
    let (mut total, mut end) = (0, 0);
    for span in spans {
        let begin = span.begin_ns.max(end);
        total += span.end_ns.saturating_sub(begin);
        end = end.max(span.end_ns);
    }
    total
}
