//! Makes spans of the events of threads.

use super::events::ThreadEvents;
use mkernel_spec::abi::{Activity, TraceEvent, TraceLayout};

/// A step, a wait or a raised flag by ticks.
pub(super) struct RawSpan {
    pub thread: u64,
    pub activity: Activity,
    pub event: TraceEvent,
}

/// The activity whose end an event is.
fn ended(event: &TraceEvent) -> Option<Activity> {
    let is_end = Activity::of(event.what >> 12 & 0xf) == Some(Activity::EndStep);
    is_end.then(|| Activity::of(event.what >> 4 & 0xff))?
}

/// The ends of phases of a warp, and the end of the warp. A role ends with the first of them after its begin. Not every thread
/// that runs a role also writes the end of the phase.
pub(super) fn role_ends(threads: &[ThreadEvents], end_of_warp: u32) -> Vec<u32> {
    let events = threads.iter().flat_map(|of| &of.events);
    let phases = events
        .clone()
        .filter(|event| ended(event) == Some(Activity::RunRole));
    let mut ends: Vec<_> = phases.map(|event| event.begin).collect();
    // A warp that has not ended has no time of its end.
    let all = events.map(|event| event.end).chain([end_of_warp]);
    ends.extend(all.reduce(|a, b| if is_before(a, b) { b } else { a }));
    ends
}

/// Whether a moment comes before another one. Ticks wrap around.
const fn is_before(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) > 0
}

/// The spans of a thread. A step ends with its end, or at the latest as its role does.
pub(super) fn paired(of: &ThreadEvents, ends: &[u32]) -> Vec<RawSpan> {
    let mut spans: Vec<RawSpan> = Vec::with_capacity(of.events.len());
    let mut open: Vec<usize> = Vec::new();
    for event in &of.events {
        let Some(activity) = Activity::of(event.what >> 12 & 0xf) else {
            continue;
        };
        let closed = match (activity, ended(event)) {
            (_, Some(step)) => {
                let begun = open.iter().rposition(|at| spans[*at].activity == step);
                begun.map_or(0..0, |begun| begun..open.len())
            }
            (Activity::RunRole, _) => 0..open.len(),
            _ => 0..0,
        };
        open.drain(closed)
            .for_each(|at| spans[at].event.end = event.begin);
        match activity {
            Activity::EndStep => continue,
            Activity::Await | Activity::RaiseFlag => {}
            _ => open.push(spans.len()),
        }
        spans.push(RawSpan {
            thread: of.thread,
            activity,
            event: *event,
        });
    }
    for at in open {
        let begin = spans[at].event.begin;
        let after = ends.iter().filter(|end| !is_before(**end, begin));
        let ticks = after.map(|end| end.wrapping_sub(begin)).min();
        spans[at].event.end = begin.wrapping_add(ticks.unwrap_or(0));
    }
    for span in &mut spans {
        if span.activity == Activity::Poll {
            span.activity = Activity::Await;
        }
    }
    spans
}

/// Whether a span begins before another thread's span ends. A role may begin when the warp's earlier role ends.
fn touches(last: &TraceEvent, next: &RawSpan) -> bool {
    let begin = next.event.begin;
    begin < last.end
        || begin == last.begin
        || begin == last.end && next.activity != Activity::RunRole
}

/// The events of a warp, in which equal events of several threads at the same time are one event. Threads that wait together are
/// not always active together.
pub(super) fn merged(mut raw: Vec<RawSpan>) -> Vec<RawSpan> {
    let key = |of: &RawSpan| (of.thread / TraceLayout::WARP, of.event.what, of.event.index);
    raw.sort_by_key(|of| (key(of), of.event.begin));
    let mut all: Vec<RawSpan> = Vec::with_capacity(raw.len());
    for of in raw {
        match all.last_mut() {
            Some(last)
                if key(last) == key(&of)
                    && last.thread != of.thread
                    && touches(&last.event, &of) =>
            {
                last.event.end = last.event.end.max(of.event.end);
            }
            _ => all.push(of),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(thread: u64, begin: u32, end: u32, index: u32) -> RawSpan {
        let event = TraceEvent {
            begin,
            end,
            what: 1 << 12,
            index,
        };
        RawSpan {
            thread,
            activity: Activity::Await,
            event,
        }
    }

    #[test]
    fn threads_of_a_warp_that_wait_together_are_one_span() {
        let all = vec![
            raw(0, 10, 20, 1),
            raw(31, 15, 30, 1),
            raw(1, 40, 50, 1),
            raw(2, 12, 18, 7),
            raw(32, 12, 18, 1),
        ];
        let merged = merged(all);
        let times: Vec<_> = merged
            .iter()
            .map(|of| {
                (
                    of.thread / TraceLayout::WARP,
                    of.event.index,
                    of.event.begin,
                    of.event.end,
                )
            })
            .collect();
        assert_eq!(
            times,
            [
                (0, 1, 10, 30),
                (0, 1, 40, 50),
                (0, 7, 12, 18),
                (1, 1, 12, 18)
            ]
        );
    }

    #[test]
    fn steps_nest_and_end_with_their_warp_at_the_latest() {
        let moment = |activity: Activity, at: u32| TraceEvent {
            begin: at,
            end: at,
            what: (activity as u32) << 12,
            index: at,
        };
        let end_of = |step: Activity, at: u32| TraceEvent {
            what: (Activity::EndStep as u32) << 12 | (step as u32) << 4,
            ..moment(Activity::EndStep, at)
        };
        let events = vec![
            moment(Activity::RunRole, 1),
            moment(Activity::SendData, 2),
            moment(Activity::RaiseFlag, 3),
            end_of(Activity::SendData, 4),
            moment(Activity::RunRole, 5),
            moment(Activity::LoadTile, 6),
        ];
        let of = ThreadEvents {
            thread: 0,
            events,
            dropped: 0,
        };
        let ends = role_ends(std::slice::from_ref(&of), 9);
        let spans = paired(&of, &ends);
        let times: Vec<_> = spans
            .iter()
            .map(|of| (of.event.begin, of.event.end))
            .collect();
        assert_eq!(times, [(1, 5), (2, 4), (3, 3), (5, 9), (6, 9)]);
    }

    #[test]
    fn a_phase_ends_the_roles_of_all_threads_of_its_warp() {
        let event = |activity: Activity, of: u32, at: u32| TraceEvent {
            begin: at,
            end: at,
            what: (activity as u32) << 12 | of << 4,
            index: 0,
        };
        let thread = |thread, events| ThreadEvents {
            thread,
            events,
            dropped: 0,
        };
        let phase = event(Activity::EndStep, Activity::RunRole as u32, 20);
        let threads = [
            thread(0, vec![phase, event(Activity::RunRole, 0, 25)]),
            thread(3, vec![event(Activity::RunRole, 0, 10)]),
        ];
        let ends = role_ends(&threads, 40);
        let spans: Vec<_> = threads.iter().flat_map(|of| paired(of, &ends)).collect();
        let times: Vec<_> = spans
            .iter()
            .map(|of| (of.event.begin, of.event.end))
            .collect();
        assert_eq!(times, [(25, 40), (10, 20)]);
    }
}
