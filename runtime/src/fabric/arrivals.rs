//! Arrival words in pinned host memory: raising one is a store of the proxy's, and no call of the driver.

use crate::driver::Pinned;
use crate::error::Error;
use crate::report::Page;
use crate::shared::Shared;
use crate::standing::Lost;
use mkernel_fabric::{Arrivals, FabricError, PeerId};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The words of a rank, by peer and channel, [`FLAG_STRIDE_BYTES`] apart. Clones share them.
#[derive(Clone)]
pub(crate) struct PinnedArrivals {
    words: Arc<Pinned>,
    /// What each word counts beyond the puts that arrived: 0, but in tests of wrapping.
    pretended: Arc<[AtomicU32]>,
    channels: u16,
    rank: u32,
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
        let words = peers.len() * usize::from(channels);
        let bytes = words * FLAG_STRIDE_BYTES as usize;
        Ok(Self {
            words: Arc::new(Pinned::allocate(&shared.ctx, bytes)?),
            pretended: (0..words).map(|_| AtomicU32::new(0)).collect(),
            channels,
            rank: shared.rank,
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

    /// Multiplies the count of each word, and counts on from there. No put may be on its way.
    pub fn pretend(&self, times: u32) {
        for (index, pretended) in self.pretended.iter().enumerate() {
            let word = self.word(index);
            let count = word.load(Ordering::Relaxed);
            let more = count.wrapping_mul(times).wrapping_sub(count);
            pretended.fetch_add(more, Ordering::Relaxed);
            word.store(count.wrapping_add(more), Ordering::Release);
        }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        self.words.word(index * FLAG_STRIDE_BYTES as usize)
    }
}

impl Arrivals for PinnedArrivals {
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32) {
        let index = usize::from(peer.0) * usize::from(self.channels) + usize::from(channel);
        let pretended = self.pretended[index].load(Ordering::Relaxed);
        let count = count.wrapping_add(pretended);
        self.word(index).store(count, Ordering::Release);
    }

    fn abort(&mut self, error: &FabricError) -> Option<u32> {
        let rank = match error {
            FabricError::PeerAborted { lost_rank, .. } => {
                Some(*lost_rank).filter(|rank| *rank < self.world)
            }
            // Without its network this rank is of no use to the others: they need not wait for their deadlines.
            FabricError::Nic { .. } | FabricError::Command { .. } => Some(self.rank),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Communicator, Simulation};
    use std::time::{Duration, Instant};

    #[test]
    fn a_rank_whose_own_network_fails_is_lost_to_all_others() {
        let simulation = Simulation {
            ranks: 3,
            ..Simulation::default()
        };
        let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
        let shared = ranks[1].shared();
        let page = Arc::new(Page::allocate(&shared.ctx).expect("a page"));
        let arrivals = PinnedArrivals::allocate(shared, &[2], 1, &page);
        let reason = "port 1 has been down".to_owned();
        let told = arrivals.expect("words").abort(&FabricError::Nic { reason });
        assert_eq!((told, page.is_aborted()), (Some(1), true));
        let end = Instant::now() + Duration::from_secs(60);
        for other in [0, 2] {
            let error = loop {
                match ranks[other].check() {
                    Err(error) => break error,
                    Ok(()) => assert!(Instant::now() < end, "rank {other} was not told"),
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(matches!(error, Error::RankLost { rank: 1 }), "{error}");
        }
    }
}
