//! [`ReadyPeers`]: the peers to which something may be to be sent, so that a step looks at no others.

use std::collections::VecDeque;

/// Peers by number, each once, the one that waits longest first.
pub struct ReadyPeers {
    queue: VecDeque<u16>,
    /// By peer.
    is_queued: Vec<bool>,
}

impl ReadyPeers {
    /// Of so many peers; none waits.
    pub fn new(peers: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            is_queued: vec![false; peers],
        }
    }

    /// A peer is to be looked at; nothing if it waits already, or is none.
    pub fn mark(&mut self, peer: u16) {
        if let Some(is_queued) = self.is_queued.get_mut(usize::from(peer))
            && !std::mem::replace(is_queued, true)
        {
            self.queue.push_back(peer);
        }
    }

    /// All peers are to be looked at.
    pub fn mark_all(&mut self) {
        (0..self.is_queued.len() as u16).for_each(|peer| self.mark(peer));
    }

    /// The next peer.
    pub fn next(&mut self) -> Option<u16> {
        let peer = self.queue.pop_front()?;
        self.is_queued[usize::from(peer)] = false;
        Some(peer)
    }

    /// How many peers wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::ReadyPeers;

    #[test]
    fn each_peer_waits_once_and_in_order() {
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
