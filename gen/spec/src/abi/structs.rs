//! The structs that both sides define.

use super::layout::{StructLayout, layout};
use super::state::{Gate, HostPage, Report, State};
use super::trace::{TraceBuffer, TraceCta, TraceEvent, TraceWarp};
use crate::fabric::{Command, CommandRing, KernelEndpoint, NetworkState, RingState, RingWords};

/// The structs that device headers share with this crate.
#[must_use]
pub fn shared_structs() -> Vec<StructLayout> {
    vec![
        layout!(Report: valid, rank, cta, role, wait, peer, index, wanted, seen, epoch, aborted_by, waited_ns),
        layout!(HostPage: abort, doorbell, source, source_row_bytes, claimed, answered, withdrawn, report, fault),
        layout!(State: epoch, readers, abort, reported, faulted, sent, bucket_epochs),
        layout!(Gate: due, left, last, failed, entered),
        layout!(Command: tag, peer, channel, source_region, target_region, kind, bytes, source_offset, target_offset),
        layout!(RingWords: consumed, sent),
        layout!(RingState: claimed, consumed_seen),
        layout!(CommandRing: slots, words, state, capacity_log2),
        layout!(NetworkState: calls, watched),
        layout!(TraceBuffer: address, ctas, warps, events, first_events, other_events),
        layout!(TraceCta: begin_ns, begin_ticks, sm, call),
        layout!(TraceWarp: end_ns, end_ticks),
        layout!(TraceEvent: begin, end, what, index),
        layout!(KernelEndpoint: ring, arrivals, network, workspace_offset, region),
    ]
}
