//! [`TraceLine`]: where the time of a call goes: busy time and waits of each role.

use super::times::{Aligned, union_ns};
use crate::cli::format::count;
use crate::cli::input::Kernel;
use crate::cli::output::Line;
use mkernel::KernelPlan;
use mkernel::spec::abi::{Activity, Wait};
use mkernel::trace::{Span, Trace};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// A trace as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct TraceLine {
    label: String,
    id: String,
    device: String,
    simulated: bool,
    ranks: Vec<OfRank>,
    /// The time from the begin of the first rank to the last event of any rank.
    us: f64,
    /// The largest error of times of one rank against times of another. Absent if clocks could not be aligned.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_error_us: Option<f64>,
    /// Events of all ranks for which there was no room.
    dropped: u64,
    file: String,
}

/// The times of a rank.
#[derive(Serialize, JsonSchema)]
struct OfRank {
    rank: u32,
    /// The begin of the rank after the begin of the first rank.
    begin_us: f64,
    /// The end of the first and of the last wait for another rank. Absent if the rank has not waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_received_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_received_us: Option<f64>,
    roles: Vec<OfRole>,
}

/// The times of a role, on average over its warps.
#[derive(Serialize, JsonSchema)]
struct OfRole {
    role: &'static str,
    warps: usize,
    /// The time from the begin to the end of the role.
    run_us: f64,
    /// The part of that time in which no thread of the warp waits.
    busy_us: f64,
    /// The waits, the longest ones first. Threads of a warp may wait for several events at a time.
    waits: Vec<OfWait>,
}

#[derive(Serialize, JsonSchema)]
struct OfWait {
    event: &'static str,
    /// The awaited rank; the rank itself for events of its own GPU.
    rank: u32,
    us: f64,
}

impl Line for TraceLine {
    const KIND: &'static str = "trace";
}

impl TraceLine {
    pub fn new(
        kernel: &Kernel,
        plan: &KernelPlan,
        aligned: &Aligned,
        (file, is_simulated): (&Path, bool),
    ) -> Self {
        let traces = aligned.traces.iter().enumerate();
        Self {
            label: kernel.label.clone(),
            id: plan.id.clone(),
            device: plan.device.name.clone(),
            simulated: is_simulated,
            ranks: traces
                .map(|(at, trace)| OfRank::new(aligned, at, trace))
                .collect(),
            us: us(aligned.end_ns()),
            clock_error_us: aligned.error_ns().map(|ns| ns as f64 / 1e3),
            dropped: aligned.traces.iter().map(|trace| trace.dropped).sum(),
            file: file.display().to_string(),
        }
    }

    /// The text for people.
    pub fn text(&self) -> String {
        let clocks = match (self.simulated, self.clock_error_us) {
            (true, _) => "simulated time".to_owned(),
            (false, Some(us)) => format!("clocks of ranks aligned to {us:.1} µs"),
            (false, None) => {
                "clocks of ranks not aligned: some ranks never waited for each other".to_owned()
            }
        };
        let mut text = format!(
            "{}: {}\n  {:.1} µs, {clocks}\n",
            self.label, self.id, self.us
        );
        for rank in &self.ranks {
            rank.write(&mut text);
        }
        if self.dropped > 0 {
            let dropped = count(self.dropped as usize, "event");
            // Writing to a String never fails.
            let _ = writeln!(
                text,
                "  {dropped} had no room, so later events of their warps are missing; give more --events"
            );
        }
        let _ = writeln!(text, "  open {} in https://ui.perfetto.dev", self.file);
        text
    }
}

impl OfRank {
    fn new(aligned: &Aligned, at: usize, trace: &Trace) -> Self {
        let received = trace
            .spans
            .iter()
            .filter(|span| span.activity == Activity::Await && span.peer != trace.rank);
        let received = received.map(|span| span.end_ns);
        let at_us = |ns: u64| us(aligned.ns(at, ns));
        Self {
            rank: trace.rank,
            begin_us: at_us(trace.begin_ns),
            first_received_us: received.clone().min().map(at_us),
            last_received_us: received.max().map(at_us),
            roles: roles(trace),
        }
    }

    fn write(&self, text: &mut String) {
        let _ = write!(
            text,
            "  rank {}: begins after {:.1} µs",
            self.rank, self.begin_us
        );
        if let (Some(first), Some(last)) = (self.first_received_us, self.last_received_us) {
            let _ = write!(
                text,
                "; waits for other ranks end from {first:.1} to {last:.1} µs"
            );
        }
        let _ = writeln!(
            text,
            "\n    {:16} {:>5} {:>9} {:>9}  waits, µs",
            "role", "warps", "run µs", "busy µs"
        );
        for role in &self.roles {
            let waits = role
                .waits
                .iter()
                .filter(|wait| wait.us >= 0.05)
                .map(|wait| match wait.rank == self.rank {
                    true => format!("{} {:.1}", wait.event, wait.us),
                    false => format!("{} (rank {}) {:.1}", wait.event, wait.rank, wait.us),
                });
            let waits: Vec<_> = waits.collect();
            let _ = writeln!(
                text,
                "    {:16} {:>5} {:>9.1} {:>9.1}  {}",
                role.role,
                role.warps,
                role.run_us,
                role.busy_us,
                waits.join(", ")
            );
        }
    }
}

fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

/// The sums of a role over its warps, ns.
#[derive(Default)]
struct Sums {
    warps: usize,
    run: u64,
    busy: u64,
    waits: BTreeMap<(u32, u32), u64>,
}

/// The roles of a rank, in the order of their warps.
fn roles(trace: &Trace) -> Vec<OfRole> {
    let mut names = Vec::new();
    let mut sums: BTreeMap<_, Sums> = BTreeMap::new();
    let of_warp = |a: &Span, b: &Span| (a.cta, a.warp, a.role) == (b.cta, b.warp, b.role);
    for spans in trace.spans.chunk_by(of_warp) {
        let Some(role) = spans[0].role else { continue };
        if !names.contains(&role) {
            names.push(role);
        }
        let run = |span: &&Span| span.activity == Activity::RunRole;
        let waits = || spans.iter().filter(|span| span.activity == Activity::Await);
        let sum = sums.entry(role).or_default();
        let run = union_ns(spans.iter().filter(run));
        sum.warps += 1;
        sum.run += run;
        sum.busy += run.saturating_sub(union_ns(waits()));
        let mut kinds: Vec<_> = waits().map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for of in kinds {
            *sum.waits.entry(of).or_default() += union_ns(waits().filter(|span| kind(span) == of));
        }
    }
    let average = |role| {
        let sum = sums.remove(&role).unwrap_or_default();
        let us = |ns: u64| ns as f64 / 1e3 / sum.warps.max(1) as f64;
        let waits = sum.waits.iter().map(|((wait, rank), ns)| OfWait {
            event: Wait::describe(*wait),
            rank: *rank,
            us: us(*ns),
        });
        let mut waits: Vec<_> = waits.collect();
        waits.sort_by(|a, b| b.us.total_cmp(&a.us));
        OfRole {
            role: mkernel::spec::plan::RoleKind::cxx(role),
            warps: sum.warps,
            run_us: us(sum.run),
            busy_us: us(sum.busy),
            waits,
        }
    };
    names.into_iter().map(average).collect()
}

/// The awaited event and the awaited rank.
fn kind(span: &Span) -> (u32, u32) {
    (span.wait.map_or(0, |wait| wait as u32), span.peer)
}
