//! [`arrows`]: pairs of a raised flag and the wait that the flag ends.

use super::times::Aligned;
use mkernel::spec::abi::{Activity, Wait};
use mkernel::trace::Span;
use std::collections::HashMap;

/// The place of a span: the rank, and the index among the spans of the rank.
pub type Place = (usize, usize);

/// The name of a flag: the rank that raises it, the rank that waits, the awaited event and its index.
type Flag = (u32, u32, Option<Wait>, u32);

/// The raised flags, each with the wait that it ends. If several threads raise a flag, the last of these threads ends the wait.
pub fn arrows(aligned: &Aligned) -> Vec<(Place, Place)> {
    let mut raised: HashMap<Flag, Place> = HashMap::new();
    let span = |(rank, index): Place| -> &Span { &aligned.traces[rank].spans[index] };
    for (place, of) in all(aligned, Activity::RaiseFlag) {
        let rank = aligned.traces[place.0].rank;
        let last = raised
            .entry((rank, of.peer, of.wait, of.index))
            .or_insert(place);
        if span(*last).begin_ns < of.begin_ns {
            *last = place;
        }
    }
    let waits = all(aligned, Activity::Await).filter_map(|(place, of)| {
        let rank = aligned.traces[place.0].rank;
        let flag = raised.get(&(of.peer, rank, of.wait, of.index))?;
        (of.peer != rank).then_some((*flag, place))
    });
    waits.collect()
}

fn all(aligned: &Aligned, activity: Activity) -> impl Iterator<Item = (Place, &Span)> {
    let traces = aligned.traces.iter().enumerate();
    traces
        .flat_map(|(rank, trace)| {
            let spans = trace.spans.iter().enumerate();
            spans.map(move |(index, span)| ((rank, index), span))
        })
        .filter(move |(_, span)| span.activity == activity)
}
