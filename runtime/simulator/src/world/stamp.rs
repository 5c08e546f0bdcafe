//! [`Stamp`]: the record of one access to memory. [`Accessor`]: a new access that is compared with earlier accesses.

use super::clock::{Clock, Component};

/// The kind of an access to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessKind {
    /// An ordinary access of a thread.
    Weak,
    /// An ordinary access that may race with an access of another launch. A launch that overlaps with another launch
    /// does not use the value.
    Early,
    /// An ordinary read of data that the thread sends. A write of the same launch may depend on the read, and then needs no other
    /// order after the read. An earlier unordered write is a race, as with any other read.
    Sent,
    /// An atomic or ordered access whose scope is this GPU or less.
    AtomicGpu,
    /// An atomic or ordered access at system scope.
    AtomicSys,
    /// An access by the async proxy, that is by TMA or tensor cores.
    Async,
    /// A copy by the host.
    Host,
}

impl AccessKind {
    /// Returns whether the access is ordinary, so that it neither acquires nor releases.
    #[inline]
    pub fn is_ordinary(self) -> bool {
        matches!(self, Self::Weak | Self::Early | Self::Sent)
    }
}

/// The record of an access. Accesses of a thread by the same instruction within one step share a stamp.
///
/// A later access is ordered after this access if it knows `step` of `component`, or, for the access of a thread, if it knows
/// `solo_step` of the thread's solo component.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub kind: AccessKind,
    pub component: Component,
    pub step: u32,
    /// The slot of the thread, or [`NO_SLOT`] if the access is not a thread's own.
    pub slot: u32,
    pub solo_step: u32,
    pub origin: Origin,
}

/// The thread and the instruction of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub device: u32,
    pub launch: u32,
    pub cta: u32,
    pub thread: u32,
    /// The address of the instruction; 0 for accesses of the host.
    pub pc: u64,
}

/// The slot of accesses that are not a thread's own.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// A new access, and its knowledge of earlier accesses.
pub(super) struct Accessor<'a> {
    /// The index of the access's stamp.
    pub stamp: u32,
    /// The knowledge of ordinary accesses. All clocks must know an earlier access.
    pub generic: &'a [&'a Clock],
    /// The knowledge of the async proxy, if the async proxy makes the access. Otherwise `None`.
    pub proxy: Option<&'a [&'a Clock]>,
    /// The slot of the thread that accesses, or that issued the access.
    pub slot: u32,
    /// The thread's own accesses up to this solo step happened before.
    pub own: u32,
    /// The thread's own ordinary writes up to this solo step are visible to the async proxy.
    pub fenced: u32,
}

impl<'a> Accessor<'a> {
    /// Returns an ordinary or atomic access by the thread with `slot`, which knows `generic`.
    #[inline]
    pub fn ordinary(stamp: u32, slot: u32, generic: &'a [&'a Clock]) -> Self {
        Self {
            stamp,
            generic,
            proxy: None,
            slot,
            own: u32::MAX,
            fenced: 0,
        }
    }
}
