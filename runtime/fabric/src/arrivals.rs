//! [`Arrivals`]: a proxy's reports to kernels that puts have arrived, or that the fabric has failed.
//!
//! The progress counters of the command ring are reported separately, by [`command_ring`](crate::command_ring).

use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::sync::{AtomicU32, Ordering};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use std::sync::Arc;

/// The receiver of arrival counts and of the abort signal.
pub trait Arrivals: Send {
    /// Sets the arrival word of the peer's channel to `count`: the first `count` puts (modulo 2^32) are in memory.
    ///
    /// The store has release semantics, so a reader that acquires the word sees the data. `count` only grows.
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32);

    /// Sets the word that makes kernels abort, because nothing more will arrive. This is called at most once.
    ///
    /// Returns the number of the lost endpoint if the error is about a loss. The proxy sends that number to the
    /// peers. All endpoints of a job must use the same numbers, which must be below 65535.
    fn abort(&mut self, error: &FabricError) -> Option<u32>;
}

#[repr(align(128))]
struct Line(AtomicU32);

const _: () = assert!(size_of::<Line>() as u64 == FLAG_STRIDE_BYTES);

/// Arrival words in the memory of this process. Tests and benchmarks use them.
#[derive(Clone)]
pub struct HostArrivals {
    words: Arc<[Line]>,
    channels: u16,
    abort: Arc<AtomicU32>,
}

impl HostArrivals {
    /// Creates one word per peer and channel with the initial value `first`, which is 0 except in tests of counters that wrap
    /// around.
    #[must_use]
    pub fn new(peers: usize, channels: u16, first: u32) -> Self {
        let words = peers * usize::from(channels);
        Self {
            words: (0..words).map(|_| Line(AtomicU32::new(first))).collect(),
            channels,
            abort: Arc::new(AtomicU32::new(0)),
        }
    }

    /// Returns the number of puts that have arrived, modulo 2^32. The load acquires their data.
    #[must_use]
    pub fn count(&self, peer: PeerId, channel: u16) -> u32 {
        self.word(peer, channel).load(Ordering::Acquire)
    }

    /// Returns whether the fabric has failed.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Acquire) != 0
    }

    fn word(&self, peer: PeerId, channel: u16) -> &AtomicU32 {
        &self.words[usize::from(peer.0) * usize::from(self.channels) + usize::from(channel)].0
    }
}

impl Arrivals for HostArrivals {
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32) {
        self.word(peer, channel).store(count, Ordering::Release);
    }

    /// Endpoints have no job-wide numbers here, so only a number that a peer sent can be returned.
    fn abort(&mut self, error: &FabricError) -> Option<u32> {
        self.abort.store(1, Ordering::Release);
        match error {
            FabricError::PeerAborted { lost_rank, .. } => Some(*lost_rank),
            _ => None,
        }
    }
}
