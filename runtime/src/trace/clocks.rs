//! Aligns the clocks of GPUs by the flags that ranks raise for each other.

use super::span::Trace;
use mkernel_spec::abi::{Activity, Wait};
use std::collections::HashMap;

/// What must be added to the times of a rank so that they are times of rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The number to add.
    pub ns: i64,
    /// The largest error of the number. `None` if nothing in the traces limits the error.
    pub error_ns: Option<u64>,
}

impl Trace {
    /// Returns the offset of each rank's clock, from the traces of one call of all ranks in the order of ranks.
    ///
    /// A wait for a flag of another rank ends after that rank has raised the flag, or if the trace lacks that moment, after that
    /// rank has begun the call. Flags in both directions limit the offset from both sides, and the middle is taken. The error is
    /// about the time of a flag between two GPUs, some µs.
    #[must_use]
    pub fn offsets(traces: &[Self]) -> Vec<ClockOffset> {
        offsets(traces)
    }
}

/// A difference of two offsets without a limit.
const NONE: i64 = i64::MAX;

/// The name of a flag: the rank that raises it, the rank that waits, the awaited event and its index.
type Flag = (u32, u32, Option<Wait>, u32);

fn offsets(traces: &[Trace]) -> Vec<ClockOffset> {
    let limits = shortest_paths(limits(traces));
    let offset = |rank: usize| {
        // The offset of a rank is at most `above`, and at least -`below`.
        let (above, below) = (limits[rank][0], limits[0][rank]);
        match (above, below) {
            _ if rank == 0 => ClockOffset {
                ns: 0,
                error_ns: Some(0),
            },
            (NONE, NONE) => ClockOffset {
                ns: 0,
                error_ns: None,
            },
            (above, NONE) => ClockOffset {
                ns: above,
                error_ns: None,
            },
            (NONE, below) => ClockOffset {
                ns: -below,
                error_ns: None,
            },
            (above, below) => ClockOffset {
                ns: i64::midpoint(above, -below),
                error_ns: Some((above.saturating_add(below)).unsigned_abs().div_ceil(2)),
            },
        }
    };
    (0..traces.len()).map(offset).collect()
}

/// The limits at `[a][b]` of the offset of rank a minus the offset of rank b. If an event of a comes before an event of b, the
/// limit is the time of the event of b minus the time of the event of a, each by the clock of its own rank.
fn limits(traces: &[Trace]) -> Vec<Vec<i64>> {
    let mut limits = vec![vec![NONE; traces.len()]; traces.len()];
    let mut raised: HashMap<Flag, u64> = HashMap::new();
    for trace in traces {
        let flags = trace
            .spans
            .iter()
            .filter(|of| of.activity == Activity::RaiseFlag);
        for of in flags {
            let flag = (trace.rank, of.peer, of.wait, of.index);
            // If several threads raise a flag, it is complete when the last thread has raised it.
            let at = raised.entry(flag).or_default();
            *at = of.begin_ns.max(*at);
        }
    }
    for trace in traces {
        let waits = trace
            .spans
            .iter()
            .filter(|of| of.activity == Activity::Await);
        for of in waits.filter(|of| of.peer != trace.rank && is_of_this_call(of.wait)) {
            let Some(sender) = traces.get(of.peer as usize) else {
                continue;
            };
            let flag = (of.peer, trace.rank, of.wait, of.index);
            let before = raised.get(&flag).copied().unwrap_or(sender.begin_ns);
            let limit = of.end_ns as i64 - before as i64;
            let least = &mut limits[of.peer as usize][trace.rank as usize];
            *least = limit.min(*least);
        }
    }
    limits
}

/// Whether the end of a wait shows that the awaited rank has begun this call.
fn is_of_this_call(wait: Option<Wait>) -> bool {
    matches!(
        wait,
        Some(
            Wait::Chunk
                | Wait::PeerPartial
                | Wait::Result
                | Wait::Begun
                | Wait::Arrival
                | Wait::Routing
                | Wait::Hidden
                | Wait::Returned
        )
    )
}

/// The limits that follow from chains of limits (Floyd and Warshall).
fn shortest_paths(mut limits: Vec<Vec<i64>>) -> Vec<Vec<i64>> {
    for over in 0..limits.len() {
        for from in 0..limits.len() {
            for to in 0..limits.len() {
                let (first, second) = (limits[from][over], limits[over][to]);
                if first != NONE && second != NONE {
                    limits[from][to] = limits[from][to].min(first + second);
                }
            }
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::span::Span;

    fn span(activity: Activity, peer: u32, index: u32, at: u64) -> Span {
        Span {
            cta: 0,
            sm: 0,
            warp: 0,
            role: None,
            activity,
            wait: Some(Wait::PeerPartial),
            peer,
            index,
            begin_ns: at,
            end_ns: at,
        }
    }

    fn trace(rank: u32, begin_ns: u64, spans: Vec<Span>) -> Trace {
        Trace {
            rank,
            call: 1,
            begin_ns,
            spans,
            dropped: 0,
            clock_step_ns: 32,
        }
    }

    /// The clock of rank 1 is 1,000,000 ns ahead, and that of rank 2 is 500 behind. Flags take 600 ns.
    #[test]
    fn flags_in_both_directions_align_clocks() {
        let traces = [
            trace(
                0,
                1000,
                vec![
                    span(Activity::RaiseFlag, 1, 3, 2000),
                    span(Activity::Await, 1, 4, 4600),
                    span(Activity::Await, 2, 9, 1700),
                ],
            ),
            trace(
                1,
                1_001_100,
                vec![
                    span(Activity::Await, 0, 3, 1_002_600),
                    span(Activity::RaiseFlag, 0, 4, 1_004_000),
                    span(Activity::RaiseFlag, 2, 5, 1_005_000),
                ],
            ),
            trace(2, 600, vec![span(Activity::Await, 1, 5, 5100)]),
        ];
        let offsets = offsets(&traces);
        assert_eq!(
            offsets[0],
            ClockOffset {
                ns: 0,
                error_ns: Some(0)
            }
        );
        assert_eq!(
            offsets[1],
            ClockOffset {
                ns: -1_000_000,
                error_ns: Some(600)
            }
        );
        let third = offsets[2];
        let error = third.error_ns.expect("limits on both sides");
        assert!((third.ns - 500).unsigned_abs() <= error, "{third:?}");
        assert!(error <= 1300, "{third:?}");
    }

    #[test]
    fn without_flags_in_both_directions_the_error_is_unknown() {
        let none = offsets(&[trace(0, 10, Vec::new()), trace(1, 20, Vec::new())]);
        assert_eq!(
            none[1],
            ClockOffset {
                ns: 0,
                error_ns: None
            }
        );
        let one = offsets(&[
            trace(0, 10, vec![span(Activity::Await, 1, 0, 50)]),
            trace(1, 20, Vec::new()),
        ]);
        assert_eq!(
            one[1],
            ClockOffset {
                ns: 30,
                error_ns: None
            }
        );
    }
}
