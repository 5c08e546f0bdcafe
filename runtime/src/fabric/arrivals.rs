//! [`PinnedArrivals`]: arrival words in pinned host memory. The proxy raises a word by a store, without a call of the
//! driver.

use crate::driver::Pinned;
use crate::error::Error;
use crate::health::Health;
use crate::report::AbortCause;
use crate::shared::Shared;
use mkernel_fabric::{Arrivals, FabricError, PeerId};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use mkernel_spec::fabric::PUT_CHANNELS;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// The arrival words of a rank, by peer and channel, [`FLAG_STRIDE_BYTES`] apart. Clones share them.
#[derive(Clone)]
pub(crate) struct PinnedArrivals {
    words: Arc<Pinned>,
    /// The amount by which each word exceeds the number of puts that arrived. It is 0 except in tests of counters that
    /// wrap around.
    pretended: Arc<[AtomicU32]>,
    rank: u32,
    /// The rank of each peer.
    peers: Arc<[u32]>,
    world: u32,
    /// The health of the communicator: it ends the waits of kernels and holds the first lost rank.
    health: Weak<Health>,
    /// Whether the proxy has failed, so that nothing arrives any more.
    are_over: Arc<AtomicBool>,
}

impl PinnedArrivals {
    pub fn allocate(shared: &Shared, peers: &[u32]) -> Result<Self, Error> {
        let words = peers.len() * usize::from(PUT_CHANNELS);
        let bytes = words * FLAG_STRIDE_BYTES as usize;
        Ok(Self {
            words: Arc::new(Pinned::allocate(&shared.ctx, bytes)?),
            pretended: (0..words).map(|_| AtomicU32::new(0)).collect(),
            rank: shared.rank,
            peers: peers.into(),
            world: shared.world,
            health: Arc::downgrade(&shared.health),
            are_over: Arc::default(),
        })
    }

    /// Returns the address of the words for kernels.
    pub fn device_address(&self) -> u64 {
        self.words.device_address()
    }

    /// Returns whether the proxy has failed.
    pub fn are_over(&self) -> bool {
        self.are_over.load(Ordering::Acquire)
    }

    /// Multiplies the count of each word, and continues to count from the product. No put may be under way.
    #[cfg(feature = "testing")]
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
        let index = usize::from(peer.0) * usize::from(PUT_CHANNELS) + usize::from(channel);
        let pretended = self.pretended[index].load(Ordering::Relaxed);
        let count = count.wrapping_add(pretended);
        self.word(index).store(count, Ordering::Release);
    }

    /// A rank that has closed its endpoint has left and is not lost, so earlier calls of other ranks still complete.
    fn abort(&mut self, error: &FabricError) -> Option<u32> {
        let peer = error
            .peer()
            .and_then(|peer| self.peers.get(usize::from(peer.0)).copied());
        let rank = match error {
            FabricError::PeerAborted {
                lost_rank: lost, ..
            } => Some(*lost).filter(|lost| *lost < self.world),
            // Without its network, this rank cannot take part any more. The rank is reported as lost, so that the other ranks
            // need not wait for their deadlines.
            FabricError::Nic { .. } | FabricError::Command { .. } => Some(self.rank),
            _ => peer,
        };
        self.are_over.store(true, Ordering::Release);
        let Some(health) = self.health.upgrade() else {
            return rank;
        };
        if let (FabricError::PeerClosed { .. }, Some(rank)) = (error, peer) {
            health.record_left(rank);
            return None;
        }
        // Only the first lost rank is reported.
        let lost = rank.map(|rank| *health.lost.get_or_init(|| rank));
        health.abort_kernels(lost.map_or(AbortCause::Host, AbortCause::Lost));
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::OperatorId;
    use crate::operator::health::OperatorHealth;
    use crate::report::Page;
    use crate::{Communicator, Simulation};
    use mkernel_fabric::PeerIdentity;
    use std::time::{Duration, Instant};

    /// Returns the communicators of three ranks, and the state of an operator of rank 1.
    fn three_ranks() -> (Vec<Communicator>, Arc<OperatorHealth>) {
        let simulation = Simulation {
            ranks: 3,
            ..Simulation::default()
        };
        let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
        let shared = ranks[1].shared();
        let operator = Arc::new(OperatorHealth {
            operator: OperatorId::new(1, "any"),
            operators: shared.operators.clone(),
            calls: None,
            page: Arc::new(Page::allocate(&shared.ctx).expect("a page")),
            job: None,
            fabric: None,
        });
        shared.register(operator.clone());
        (ranks, operator)
    }

    #[test]
    fn a_rank_that_has_closed_its_endpoint_has_left_and_is_not_lost() {
        let (ranks, operator) = three_ranks();
        let shared = ranks[1].shared();
        let arrivals = PinnedArrivals::allocate(shared, &[2]);
        let (id, name) = (PeerId(0), "rank 2".into());
        let peer = PeerIdentity { id, name };
        let lost = arrivals
            .expect("words")
            .abort(&FabricError::PeerClosed { peer });
        assert_eq!((lost, operator.page.is_aborted()), (None, true));
        assert_eq!(shared.health.lost.get(), None);
    }

    #[test]
    fn a_rank_whose_own_network_fails_is_lost_to_all_others() {
        let (ranks, operator) = three_ranks();
        let arrivals = PinnedArrivals::allocate(ranks[1].shared(), &[2]);
        let reason = "port 1 has been down".to_owned();
        let lost = arrivals.expect("words").abort(&FabricError::Nic { reason });
        assert_eq!((lost, operator.page.is_aborted()), (Some(1), true));
        let end = Instant::now() + Duration::from_secs(60);
        for other in [0, 2] {
            let error = loop {
                match ranks[other].check() {
                    Err(error) => break error,
                    Ok(()) => assert!(Instant::now() < end, "rank {other} did not detect the loss"),
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(
                matches!(
                    error,
                    Error::RankLost {
                        rank: 1,
                        is_thread: true
                    }
                ),
                "{error}"
            );
        }
    }
}
