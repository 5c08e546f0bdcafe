//! Makes a [`Trace`] of the memory that a kernel has written.

use super::events::{ctas, events, warps};
use super::pairing::{RawSpan, merged, paired, role_ends};
use super::sm_clock::{SmClock, clock_step_ns, clocks};
use super::span::{Span, Trace};
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::{Activity, TraceLayout, Wait};
use mkernel_spec::plan::RoleKind;
use std::cmp::Reverse;

/// Makes a trace of the memory.
pub(crate) fn decode(
    (rank, plan): (u32, &KernelPlan),
    layout: &TraceLayout,
    bytes: &[u8],
) -> Trace {
    let (ctas, warps) = (ctas(layout, bytes), warps(layout, bytes));
    let clocks = clocks(layout, &ctas, &warps);
    let (mut raw, mut dropped) = (Vec::new(), 0);
    for (first, warp) in (0..).step_by(TraceLayout::WARP as usize).zip(&warps) {
        let call = |thread| {
            ctas.get((thread / layout.threads) as usize)
                .map_or(0, |of| of.call)
        };
        let threads = (first..first + TraceLayout::WARP)
            .map(|thread| events(layout, bytes, thread, call(thread)));
        let threads: Vec<_> = threads.filter(|of| !of.events.is_empty()).collect();
        let ends = role_ends(&threads, warp.end_ticks as u32);
        for of in &threads {
            dropped += of.dropped;
            raw.extend(paired(of, &ends));
        }
    }
    let mut spans: Vec<_> = merged(raw)
        .iter()
        .filter_map(|raw| {
            let cta = (raw.thread / layout.threads) as u32;
            let (clock, sm) = (clocks.get(cta as usize)?, ctas.get(cta as usize)?.sm);
            let warp = (raw.thread % layout.threads / TraceLayout::WARP) as u32;
            Some(span(raw, (cta, sm, warp), clock))
        })
        .collect();
    spans.sort_by_key(|of| (of.cta, of.warp, of.begin_ns, Reverse(of.end_ns)));
    assign_roles(plan, &mut spans);
    Trace {
        rank,
        call: ctas.first().map_or(0, |cta| cta.call),
        begin_ns: ctas.iter().map(|cta| cta.begin_ns).min().unwrap_or(0),
        spans,
        dropped,
        clock_step_ns: clock_step_ns(&ctas, &warps),
    }
}

fn span(raw: &RawSpan, (cta, sm, warp): (u32, u32, u32), clock: &SmClock) -> Span {
    let what = raw.event.what;
    let begin_ns = clock.ns(raw.event.begin);
    Span {
        cta,
        sm,
        warp,
        role: None,
        activity: raw.activity,
        wait: Wait::of(what >> 4 & 0xff),
        peer: what >> 16,
        index: raw.event.index,
        begin_ns,
        end_ns: clock.ns(raw.event.end).max(begin_ns),
    }
}

/// Gives each span the role that its warp runs at that time. A warp runs its roles in the order of the plan.
fn assign_roles(plan: &KernelPlan, spans: &mut [Span]) {
    for of_warp in spans.chunk_by_mut(|a, b| (a.cta, a.warp) == (b.cta, b.warp)) {
        let (cta, warp) = (of_warp[0].cta, of_warp[0].warp);
        let has = |range: (u32, u32), at| range.0 <= at && at < range.1;
        let roles = plan.body().roles.iter();
        let mut roles = roles
            .filter(|role| has(role.ctas, cta) && has(role.warps, warp))
            .map(|role| role.kind);
        let mut running: Option<(RoleKind, u64)> = None;
        for span in of_warp {
            let is_outside = running.is_none_or(|(_, end_ns)| span.begin_ns >= end_ns);
            if span.activity == Activity::RunRole && is_outside {
                let last = running.map(|(role, _)| role);
                running = roles.next().or(last).map(|role| (role, span.end_ns));
            }
            let is_inside = |(_, end_ns): &(RoleKind, u64)| span.end_ns <= *end_ns;
            span.role = running.filter(is_inside).map(|(role, _)| role);
        }
    }
}
