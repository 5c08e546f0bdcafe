//! [`Flusher`]: the queue pair by which a NIC reads this endpoint's own memory, so that the bytes of arrivals become visible.

use super::connect_info::{QueuePairInfo, RemoteAddress};
use super::queue_pair_type::{Purpose, QueuePairType};
use super::rail::Rail;
use crate::flush::FlushQueue;
use ibverbs_sys::ibv_sge;
use std::io;

/// The number of bytes that a flush reads.
const READ_BYTES: u32 = 1;

/// A queue pair of a rail that is connected to itself, and the arrivals that wait for its reads.
pub(super) struct Flusher<K> {
    pair: K,
    pub(super) queue: FlushQueue,
}

impl<K: QueuePairType> Flusher<K> {
    /// Creates the queue pair and connects it to itself.
    pub(super) fn new(rail: &Rail, random: u32) -> Result<Self, String> {
        let nonce = K::nonce(random);
        let mut pair = K::new(rail, nonce, Purpose::Flush)?;
        let own = QueuePairInfo {
            number: pair.pair().number(),
            nonce,
        };
        pair.connect(0, rail, &rail.info(vec![own]), own)?;
        Ok(Self {
            pair,
            queue: FlushQueue::default(),
        })
    }

    pub(super) fn number(&self) -> u32 {
        self.pair.pair().number()
    }

    /// Starts a read of `memory`, which is registered on the rail.
    pub(super) fn start(&mut self, rail: &Rail, memory: RemoteAddress) -> io::Result<()> {
        let to = ibv_sge {
            length: READ_BYTES,
            ..rail.scratch_sge()
        };
        self.pair.read(to, memory)
    }
}
