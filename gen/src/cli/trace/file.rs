//! [`TraceFile`]: traces of all ranks in the Trace Event Format, which Perfetto reads.

use super::arrows::{Place, arrows};
use super::rows::Rows;
use super::times::Aligned;
use mkernel::KernelPlan;
use mkernel::spec::abi::{Activity, Wait};
use mkernel::trace::Span;
use schemars::JsonSchema;
use serde::Serialize;

/// A file in the Trace Event Format. Ranks are processes, and warps are threads.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceFile {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
    /// The kernel and the accuracy of its times.
    other_data: About,
}

/// The kernel of a trace.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
struct About {
    kernel: String,
    device: String,
    simulated: bool,
    /// The largest error of times of one rank against times of another, ns. Absent if clocks could not be aligned.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_error_ns: Option<u64>,
    /// Events of all ranks for which there was no room.
    dropped: u64,
}

/// An event. Times are in µs.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "ph")]
enum Event {
    /// The name of a process or a thread.
    #[serde(rename = "M")]
    Name {
        name: &'static str,
        pid: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        tid: Option<u64>,
        args: Name,
    },
    /// A step or a wait.
    #[serde(rename = "X")]
    Span {
        name: String,
        cat: &'static str,
        pid: u32,
        tid: u64,
        ts: f64,
        dur: f64,
        args: Details,
    },
    /// A raised flag.
    #[serde(rename = "i")]
    Moment {
        name: String,
        cat: &'static str,
        s: &'static str,
        pid: u32,
        tid: u64,
        ts: f64,
        args: Details,
    },
    /// The begin of an arrow.
    #[serde(rename = "s")]
    ArrowFrom {
        name: &'static str,
        cat: &'static str,
        id: usize,
        pid: u32,
        tid: u64,
        ts: f64,
    },
    /// The end of an arrow.
    #[serde(rename = "f")]
    ArrowTo {
        name: &'static str,
        cat: &'static str,
        id: usize,
        bp: &'static str,
        pid: u32,
        tid: u64,
        ts: f64,
    },
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Name {
    Text { name: String },
    Order { sort_index: u64 },
}

#[derive(Serialize, JsonSchema)]
struct Details {
    /// The index of the tile, chunk, stage or flag.
    index: u32,
    /// The awaited rank, or the rank whose flag was raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
}

/// The category and the name of arrows.
const ARROW: (&str, &str) = ("flag", "flag");

impl TraceFile {
    /// The file of the traces of a call.
    pub fn new(aligned: &Aligned, plan: &KernelPlan, is_simulated: bool) -> Self {
        let mut events = Vec::new();
        let mut rows = Vec::new();
        for (at, trace) in aligned.traces.iter().enumerate() {
            let of_rank = Rows::new(trace);
            let process = format!("rank {}", trace.rank);
            events.push(name(
                "process_name",
                trace.rank,
                None,
                Name::Text { name: process },
            ));
            for (row, of_row) in &of_rank.names {
                let text = Name::Text {
                    name: of_row.clone(),
                };
                events.push(name("thread_name", trace.rank, Some(*row), text));
                let order = Name::Order { sort_index: *row };
                events.push(name("thread_sort_index", trace.rank, Some(*row), order));
            }
            let spans = trace.spans.iter().zip(&of_rank.of_spans);
            events.extend(spans.map(|(span, row)| event(aligned, (at, trace.rank), span, *row)));
            rows.push(of_rank);
        }
        for (id, (from, to)) in arrows(aligned).into_iter().enumerate() {
            events.extend(arrow(aligned, &rows, id, (from, to)));
        }
        Self {
            trace_events: events,
            display_time_unit: "ns",
            other_data: About {
                kernel: plan.id.clone(),
                device: plan.device.name.clone(),
                simulated: is_simulated,
                clock_error_ns: aligned.error_ns(),
                dropped: aligned.traces.iter().map(|trace| trace.dropped).sum(),
            },
        }
    }
}

fn name(name: &'static str, pid: u32, tid: Option<u64>, args: Name) -> Event {
    Event::Name {
        name,
        pid,
        tid,
        args,
    }
}

fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

fn event(aligned: &Aligned, (at, pid): (usize, u32), span: &Span, tid: u64) -> Event {
    let ts = us(aligned.ns(at, span.begin_ns));
    let details = Details {
        index: span.index,
        rank: span.wait.map(|_| span.peer),
    };
    let awaited = span.wait.map(|wait| Wait::describe(wait as u32));
    match (span.activity, awaited) {
        (Activity::RaiseFlag, awaited) => Event::Moment {
            name: format!("flag: {}", awaited.unwrap_or_default()),
            cat: "flag",
            s: "t",
            pid,
            tid,
            ts,
            args: details,
        },
        (activity, awaited) => Event::Span {
            name: match awaited {
                Some(awaited) => format!("waits for {awaited}"),
                None if activity == Activity::RunRole => {
                    span.role.map_or("role", |role| role.cxx()).to_owned()
                }
                None => Activity::describe(activity as u32).to_owned(),
            },
            cat: if activity == Activity::Await {
                "wait"
            } else {
                "step"
            },
            pid,
            tid,
            ts,
            dur: span.ns() as f64 / 1e3,
            args: details,
        },
    }
}

/// The two ends of an arrow, which lie inside of the spans that they connect.
fn arrow(aligned: &Aligned, rows: &[Rows], id: usize, (from, to): (Place, Place)) -> [Event; 2] {
    let span = |(at, index): Place| &aligned.traces[at].spans[index];
    let place = |(at, index): Place| (aligned.traces[at].rank, rows[at].of_spans[index]);
    let ((from_pid, from_tid), (to_pid, to_tid)) = (place(from), place(to));
    let end_ns = span(to).end_ns.saturating_sub(1).max(span(to).begin_ns);
    let (cat, name) = ARROW;
    [
        Event::ArrowFrom {
            name,
            cat,
            id,
            pid: from_pid,
            tid: from_tid,
            ts: us(aligned.ns(from.0, span(from).begin_ns)),
        },
        Event::ArrowTo {
            name,
            cat,
            id,
            bp: "e",
            pid: to_pid,
            tid: to_tid,
            ts: us(aligned.ns(to.0, end_ns)),
        },
    ]
}
