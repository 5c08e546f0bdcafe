//! [`ReadyPeers`]: a queue of the peers to which an endpoint may have something to send. A step visits only these peers.

use std::collections::VecDeque;

/// Peers by index, each at most once, the longest waiting first.
pub struct ReadyPeers {
    queue: VecDeque<u16>,
    /// Whether the peer with this index is in `queue`.
    is_queued: Vec<bool>,
}

impl ReadyPeers {
    /// Creates an empty queue for the given number of peers.
    pub fn new(peers: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            is_queued: vec![false; peers],
        }
    }

    /// Appends a peer. Does nothing if it is queued already or does not exist.
    pub fn mark(&mut self, peer: u16) {
        if let Some(is_queued) = self.is_queued.get_mut(usize::from(peer))
            && !std::mem::replace(is_queued, true)
        {
            self.queue.push_back(peer);
        }
    }

    /// Appends all peers.
    pub fn mark_all(&mut self) {
        (0..self.is_queued.len() as u16).for_each(|peer| self.mark(peer));
    }

    /// Removes and returns the next peer.
    pub fn next(&mut self) -> Option<u16> {
        let peer = self.queue.pop_front()?;
        self.is_queued[usize::from(peer)] = false;
        Some(peer)
    }

    /// Returns the number of queued peers.
    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::ReadyPeers;

    #[test]
    fn each_peer_is_queued_once_and_in_order() {
        let mut ready = ReadyPeers::new(3);
        for peer in [2, 0, 2, 7] {
            ready.mark(peer);
        }
        assert_eq!((ready.len(), ready.next()), (2, Some(2)));
        ready.mark_all();
        let rest: Vec<_> = std::iter::from_fn(|| ready.next()).collect();
        assert_eq!((rest, ready.len()), (vec![0, 1, 2], 0));
    }
}
