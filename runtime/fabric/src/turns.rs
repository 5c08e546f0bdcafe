//! [`Turns`]: the peers to which something may be to be sent, so that a step looks at no others.

use std::collections::VecDeque;

/// Peers by number, each once, the one that waits longest first.
pub struct Turns {
    waiting: VecDeque<u16>,
    /// By peer.
    is_waiting: Vec<bool>,
}

impl Turns {
    /// Of so many peers; none waits.
    pub fn new(peers: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            is_waiting: vec![false; peers],
        }
    }

    /// A peer is to be looked at; nothing if it waits already, or is none.
    pub fn add(&mut self, peer: u16) {
        if let Some(is_waiting) = self.is_waiting.get_mut(usize::from(peer))
            && !std::mem::replace(is_waiting, true)
        {
            self.waiting.push_back(peer);
        }
    }

    /// All peers are to be looked at.
    pub fn add_all(&mut self) {
        (0..self.is_waiting.len() as u16).for_each(|peer| self.add(peer));
    }

    /// The next peer.
    pub fn take(&mut self) -> Option<u16> {
        let peer = self.waiting.pop_front()?;
        self.is_waiting[usize::from(peer)] = false;
        Some(peer)
    }

    /// How many peers wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn each_peer_waits_once_and_in_order() {
        let mut turns = Turns::new(3);
        for peer in [2, 0, 2, 7] {
            turns.add(peer);
        }
        assert_eq!((turns.len(), turns.take()), (2, Some(2)));
        turns.add_all();
        let rest: Vec<_> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!((rest, turns.len()), (vec![0, 1, 2], 0));
    }
}
