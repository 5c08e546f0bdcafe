//! [`FlushQueue`]: arrivals that are reported only after their bytes were flushed to memory.
//!
//! A NIC writes bytes to GPU memory and completions to host memory, on different paths. On some machines a completion can be
//! seen before the bytes. A read of the GPU's memory by the NIC pushes all earlier writes of the NIC ahead of its own answer.

use crate::transport::Event;

/// The arrivals of a NIC that wait for a flush. At most one flush is in progress.
#[derive(Debug, Default)]
pub(crate) struct FlushQueue {
    /// Arrivals that the next flush will cover.
    waiting: Vec<Event>,
    /// Arrivals that the flush in progress covers.
    covered: Vec<Event>,
}

impl FlushQueue {
    /// Holds an arrival back.
    pub fn hold(&mut self, arrival: Event) {
        self.waiting.push(arrival);
    }

    /// Returns whether the caller has to start a flush now, for all arrivals that were held until now.
    pub fn begin(&mut self) -> bool {
        let begins = self.covered.is_empty() && !self.waiting.is_empty();
        if begins {
            std::mem::swap(&mut self.covered, &mut self.waiting);
        }
        begins
    }

    /// Reports the arrivals that the completed flush covers.
    pub fn end(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.covered);
    }

    /// Returns whether no arrival is held.
    pub fn is_empty(&self) -> bool {
        self.covered.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::FlushQueue;
    use crate::peer_id::PeerId;
    use crate::transport::Event;

    fn arrival(immediate: u32) -> Event {
        let peer = PeerId(0);
        Event::Arrived { peer, immediate }
    }

    #[test]
    fn a_flush_covers_the_arrivals_before_it_only() {
        let mut queue = FlushQueue::default();
        assert!(queue.is_empty() && !queue.begin(), "nothing to flush");
        queue.hold(arrival(1));
        queue.hold(arrival(2));
        assert!(queue.begin());
        queue.hold(arrival(3));
        assert!(!queue.begin(), "a flush is in progress");
        let mut events = Vec::new();
        queue.end(&mut events);
        assert_eq!(events, [arrival(1), arrival(2)]);
        assert!(!queue.is_empty() && queue.begin());
        queue.end(&mut events);
        assert_eq!(events.len(), 3);
        assert!(queue.is_empty() && !queue.begin());
    }
}
