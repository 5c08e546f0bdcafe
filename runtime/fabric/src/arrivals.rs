//! What a proxy tells kernels, but for the ring's own words.

use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::sync::{AtomicU32, Ordering};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use std::sync::Arc;

/// Where arrivals are told, and the end of all.
pub trait Arrivals: Send {
    /// The first `count` puts (modulo 2^32) of the peer's channel are in memory. Raises the arrival word, as a release:
    /// who acquires the word sees the data. `count` only grows.
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32);

    /// Nothing more will arrive. Raises the word that makes kernels give up. Called once at most. The number of whoever is
    /// lost, if the error is about that: peers are told. All endpoints of a job number each other alike, below 65535.
    fn abort(&mut self, error: &FabricError) -> Option<u32>;
}

#[repr(align(128))]
struct Line(AtomicU32);

const _: () = assert!(size_of::<Line>() as u64 == FLAG_STRIDE_BYTES);

/// Arrival words in memory of this process.
#[derive(Clone)]
pub struct HostArrivals {
    words: Arc<[Line]>,
    channels: u16,
    abort: Arc<AtomicU32>,
}

impl HostArrivals {
    /// A word per peer and channel, with the value `first`: 0, but in tests of wrapping.
    #[must_use]
    pub fn new(peers: usize, channels: u16, first: u32) -> Self {
        let words = peers * usize::from(channels);
        Self {
            words: (0..words).map(|_| Line(AtomicU32::new(first))).collect(),
            channels,
            abort: Arc::new(AtomicU32::new(0)),
        }
    }

    /// How many puts have arrived, modulo 2^32; acquires their data.
    #[must_use]
    pub fn count(&self, peer: PeerId, channel: u16) -> u32 {
        self.word(peer, channel).load(Ordering::Acquire)
    }

    /// Whether the fabric has failed.
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

    /// Endpoints have no numbers here, but for those that peers told.
    fn abort(&mut self, error: &FabricError) -> Option<u32> {
        self.abort.store(1, Ordering::Release);
        match error {
            FabricError::PeerAborted { lost_rank, .. } => Some(*lost_rank),
            _ => None,
        }
    }
}
