//! The pending work of emulated NICs: writes in flight, and [`Action`]s that are due at a point in time.

use crate::peer_id::PeerId;

/// A write in flight from this endpoint.
pub(super) struct SentWrite {
    pub peer: PeerId,
    pub id: u64,
    pub is_acked: bool,
}

/// A write of a peer that has not been reported as arrived.
pub(super) struct ReceivedWrite {
    pub peer: PeerId,
    pub ticket: u64,
    pub immediate: u32,
    pub due_ns: u64,
}

/// An action that is scheduled for a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Arrive { token: u64 },
    Complete { ticket: u64 },
    SentAgain { id: u64 },
    ArrivedAgain { peer: PeerId, immediate: u32 },
    Flushed,
}
