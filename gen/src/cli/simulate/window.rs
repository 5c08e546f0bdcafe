//! [`Windows`]: the credits of pairs of ranks, as runtime/fabric/src/flow_control.rs counts them.

use std::collections::{HashMap, VecDeque};

/// The window of one pair.
#[derive(Clone, Copy, Default)]
struct Window {
    /// Puts that the sender has posted and for which it has no credit back.
    posted: u32,
    /// Puts that the receiver has delivered and for which it has returned no credit.
    delivered: u32,
}

/// The windows of all pairs, and the puts that wait for credits.
pub struct Windows<T> {
    credits: u32,
    pairs: Vec<Window>,
    waiting: HashMap<usize, VecDeque<T>>,
}

impl<T> Windows<T> {
    pub fn new(pairs: usize, credits: u32) -> Self {
        Self {
            credits,
            pairs: vec![Window::default(); pairs],
            waiting: HashMap::new(),
        }
    }

    /// Takes a credit for a put, and returns true. If there is none, keeps the put until [`release`](Self::release) returns it.
    pub fn take(&mut self, pair: usize, put: T) -> bool {
        let window = &mut self.pairs[pair];
        if window.posted < self.credits {
            window.posted += 1;
            return true;
        }
        self.waiting.entry(pair).or_default().push_back(put);
        false
    }

    /// Counts a delivered put. Returns the number of credits that the receiver returns now, a quarter of all credits at a time.
    pub fn deliver(&mut self, pair: usize) -> Option<u32> {
        let window = &mut self.pairs[pair];
        window.delivered += 1;
        if window.delivered < self.credits.div_ceil(4) {
            return None;
        }
        Some(std::mem::take(&mut window.delivered))
    }

    /// Takes back `count` credits, and returns the puts that get them.
    pub fn release(&mut self, pair: usize, count: u32) -> Vec<T> {
        let window = &mut self.pairs[pair];
        window.posted -= count;
        let Some(waiting) = self.waiting.get_mut(&pair) else {
            return Vec::new();
        };
        let room = (self.credits - window.posted) as usize;
        let puts: Vec<T> = waiting.drain(..room.min(waiting.len())).collect();
        window.posted += puts.len() as u32;
        if waiting.is_empty() {
            self.waiting.remove(&pair);
        }
        puts
    }
}

#[cfg(test)]
mod tests {
    use super::Windows;

    #[test]
    fn puts_beyond_the_credits_wait_in_order() {
        let mut windows = Windows::new(2, 4);
        let posted: Vec<_> = (0..6).map(|put| windows.take(1, put)).collect();
        assert_eq!(posted, [true, true, true, true, false, false]);
        assert!(windows.take(0, 9), "pairs have windows of their own");
        assert_eq!(windows.deliver(1), Some(1));
        assert_eq!(windows.release(1, 1), [4]);
        assert_eq!(windows.deliver(1), Some(1));
        assert_eq!(windows.release(1, 1), [5]);
        assert!(windows.release(1, 1).is_empty());
    }
}
