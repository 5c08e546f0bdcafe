//! Arrival words in pinned host memory: raising one is a store of the proxy's, and no call of the driver.

use crate::driver::Pinned;
use crate::error::Error;
use crate::report::Page;
use crate::shared::Shared;
use crate::standing::Lost;
use mkernel_fabric::{Arrivals, FabricError, PeerId};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The words of a rank, by peer and channel, [`FLAG_STRIDE_BYTES`] apart. Clones share them.
#[derive(Clone)]
pub(crate) struct PinnedArrivals {
    words: Arc<Pinned>,
    channels: u16,
    /// The rank of each peer.
    peers: Arc<[u32]>,
    world: u32,
    /// Whose abort word ends the waits of kernels.
    page: Arc<Page>,
    /// Where the communicator finds who is lost.
    lost: Lost,
}

impl PinnedArrivals {
    pub fn allocate(
        shared: &Shared,
        peers: &[u32],
        channels: u16,
        page: &Arc<Page>,
    ) -> Result<Self, Error> {
        let bytes = peers.len() * usize::from(channels) * FLAG_STRIDE_BYTES as usize;
        Ok(Self {
            words: Arc::new(Pinned::allocate(&shared.ctx, bytes)?),
            channels,
            peers: peers.into(),
            world: shared.world,
            page: page.clone(),
            lost: shared.standing.lost.clone(),
        })
    }

    /// Where they are for kernels.
    pub fn device_address(&self) -> u64 {
        self.words.device_address()
    }
}

impl Arrivals for PinnedArrivals {
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32) {
        let index = usize::from(peer.0) * usize::from(self.channels) + usize::from(channel);
        let word = self.words.word(index * FLAG_STRIDE_BYTES as usize);
        word.store(count, Ordering::Release);
    }

    fn abort(&mut self, error: &FabricError) -> Option<u32> {
        let rank = match error {
            FabricError::GaveUp { lost, .. } => Some(*lost).filter(|lost| *lost < self.world),
            _ => error
                .peer()
                .and_then(|peer| self.peers.get(usize::from(peer.0)).copied()),
        };
        // Who is lost first makes others end.
        let lost = rank.map(|rank| *self.lost.get_or_init(|| rank));
        match lost {
            Some(rank) => self.page.abort_without(rank),
            None => self.page.abort(),
        }
        lost
    }
}
