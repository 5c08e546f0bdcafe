//! Sizes and offsets of what both sides define.

use super::{Gate, HostPage, Report, State};
use crate::fabric::{Command, CommandRing, RingState, RingWords};
use serde::Serialize;

/// A struct that a device header defines too: the rendered kernel asserts size and offsets.
#[derive(Clone, Debug, Serialize)]
pub struct StructLayout {
    /// Its name in CUDA.
    pub name: &'static str,
    /// Its size.
    pub size_bytes: usize,
    /// Its fields and their offsets.
    pub fields: Vec<(&'static str, usize)>,
}

/// The [`StructLayout`] of a struct: its name, and all its fields.
macro_rules! layout {
    ($t:ident: $($f:ident),+) => {
        $crate::abi::StructLayout {
            name: stringify!($t),
            size_bytes: std::mem::size_of::<$t>(),
            fields: vec![$((stringify!($f), std::mem::offset_of!($t, $f))),+],
        }
    };
}
pub(crate) use layout;

/// The structs that device headers share with this crate.
#[must_use]
pub fn shared_structs() -> Vec<StructLayout> {
    vec![
        layout!(Report: valid, rank, cta, role, wait, peer, index, wanted, seen, epoch, aborted_by, waited_ns),
        layout!(HostPage: abort, doorbell, source, source_row_bytes, claimed, answered, withdrawn, report, fault),
        layout!(State: epoch, readers, abort, reported, faulted, sent),
        layout!(Gate: due, last, entered),
        layout!(Command: tag, peer, channel, source_region, target_region, kind, bytes, source_offset, target_offset),
        layout!(RingWords: consumed, sent),
        layout!(RingState: claimed, consumed_seen),
        layout!(CommandRing: slots, words, state, capacity_log2),
    ]
}
